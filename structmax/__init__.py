from structmax.backends import which, warm_up
from structmax.structures.simplex import Simplex
from structmax.inference.argmax import argmax
from structmax.inference.entropy import cross_entropy, entropy, kl_divergence, log_prob
from structmax.inference.log_partition import log_partition, marginals
from structmax.inference.max_marginals import max_marginals
from structmax.inference.sample import sample
from structmax.inference.topk import topk

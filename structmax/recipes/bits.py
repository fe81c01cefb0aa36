"""A VAE whose code is a vector of bits: which estimators find good codes, and with how many decoder calls?

    log p(x) ≥ E_q(y|x)[log p(x|y)] − D log 2 + H(q(y|x))          y of D bits, each as likely as not

There are 2ᴰ codes, too many to sum over. Estimators draw some, or give all the probability to a few: `topk_sparsemax`
to the best ones, `sparsemap` to some whose mean is nearest to the scores, `sparsemap_budget` to such with at most D / 2
ones. `calls` counts how often the decoder ran for an image. To compare them:

    structmax compare bits --over estimator=score_function,gumbel,topk_sparsemax,sparsemap --seeds 3 --jobs 2

In the end log p(x) is bounded by importance samples. Where q has few codes S, their p(x, y) are summed, and samples of
a proposal r that may give any code stand for all others:

    p(x) = Σ_{y in S} p(x, y) + E_r[ p(x, y) / r(y), if y is not in S ]

Any r makes the mean of the right-hand side right, so its logarithm is a lower bound on average, and the tighter, the
more samples there are. r has independent bits: those of q where that is a Gibbs distribution; otherwise the mean of q,
with as many bits flipped as make one of a code on average.

Reference: Correia, Niculae, Aziz & Martins 2020, Efficient marginalization of discrete and structured latent variables
via sparsity, https://arxiv.org/abs/2007.01919.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import structmax
from structmax.recipes.data import images
from structmax.recipes.models import latent
from structmax.training import Task, option

# A sum over all codes runs the decoder for each of them.
MOST_BITS_TO_SUM = 12
# Numbers that the decoder makes at once for importance samples: 64 megabytes.
AT_ONCE = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Config(latent.LatentSettings, images.ImageSettings):
    """A run of one estimator; the defaults take about a minute."""

    least = (
        latent.LatentSettings.least
        | images.ImageSettings.least
        | {"bits": 2, "hidden": 1, "features": 1, "importance_samples": 1}
    )
    refused = latent.REFUSED_FOR_BITS
    estimator: latent.Name = option("topk_sparsemax", latent.ESTIMATOR)
    bits: int = option(32, "number of bits of a code")
    hidden: int = option(128, "size of the layers of encoder and decoder")
    features: int = option(5, "features of a pixel, from which its level is predicted")
    importance_samples: int = option(1024, "draws by which the log-likelihood of a test image is bounded")
    epochs: int = option(60, "passes over the training data")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.estimator == "dense" and self.bits > MOST_BITS_TO_SUM:
            raise ValueError(
                f"`bits` should be at most {MOST_BITS_TO_SUM} for the sum over all codes of dense, but is {self.bits}. "
                "Try another estimator, such as sparsemap or sum_and_sample."
            )


class Model(nn.Module):
    """q(y|x) and p(x|y) of images with so many pixels, whose levels occur so often: (levels,)."""

    def __init__(self, config: Config, pixels: int, counts: Tensor) -> None:
        super().__init__()
        hidden, bits, features, levels = config.hidden, config.bits, config.features, len(counts)
        self.scores = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, bits))
        self.write = nn.Sequential(nn.Linear(bits, hidden), nn.ReLU(), nn.Linear(hidden, pixels * features))
        self.level = nn.Linear(features, levels)
        # levels begin with their frequencies, and neighbours alike: waves of one, two … half turns
        places = (torch.arange(levels) + 0.5) / levels
        with torch.no_grad():
            self.level.weight.copy_(torch.cos(math.pi * torch.outer(places, torch.arange(1, features + 1))))
            self.level.bias.copy_(((counts + 1) / (counts + 1).sum()).log())
        self.latent = latent.Latent(config, structmax.Bits(), bits, pixels)

    def features(self, y: Tensor) -> Tensor:
        """From which the levels of each pixel are predicted: (…, P, features)."""
        return self.write(y).unflatten(-1, (-1, self.level.in_features))

    def log_joint(self, x: Tensor) -> latent.LogJoint:
        """From codes and the images (M,) they are for, log p(x, y): (M,). The levels x are whole numbers (B, P)."""

        def log_joint(y: Tensor, index: Tensor) -> Tensor:
            layer, target = self.level, x[index]
            # −log p of each pixel's level; the scores of all levels are never in memory
            cost = structmax.linear_entmax_loss(
                self.features(y), layer.weight, target, alpha=1.0, bias=layer.bias, reduction="none"
            )
            return -cost.sum(-1) - y.shape[-1] * math.log(2)

        return log_joint

    def log_likelihood(self, x: Tensor, shades: Tensor, samples: int, generator: torch.Generator) -> Tensor:
        """A stochastic lower bound of log p(x): (B,)."""
        log_joint, scores = self.log_joint(x), self.scores(shades).float()
        support = self.latent.support(log_joint, scores, shades)
        if support is None:
            proposal = scores.sigmoid()
        else:
            flip = 1 / scores.shape[-1]
            mean = (support.q.unsqueeze(-1) * support.structures).sum(1)
            proposal = flip + (1 - 2 * flip) * mean
        bound = scores.new_full((len(x),), -math.inf) if support is None else support.log_joint.logsumexp(-1)
        listed = 0 if support is None else support.q.numel() * scores.shape[-1]
        chunk = max(1, AT_ONCE // (x.numel() * self.level.in_features + listed))
        for start in range(0, samples, chunk):
            count = min(chunk, samples - start)
            y = torch.bernoulli(proposal.expand(count, *proposal.shape), generator=generator)
            log_r = torch.where(y > 0, proposal, 1 - proposal).log().sum(-1)
            index = torch.arange(len(x), device=x.device).repeat(count)
            weights = log_joint(y.flatten(0, 1), index).view(count, -1) - log_r
            if support is not None:
                weights = weights.masked_fill(_is_among(y, support), -math.inf)
            bound = torch.logaddexp(bound, weights.logsumexp(0) - math.log(samples))
        return bound


def _is_among(y: Tensor, support: latent.Support) -> Tensor:
    """Whether codes (S, B, D) are among those of their instance's support: (S, B)."""
    codes = support.structures
    # whole numbers, exact in float32
    with torch.autocast(y.device.type, enabled=False):
        apart = y.sum(-1, keepdim=True) + codes.sum(-1) - 2 * torch.einsum("sbd,bkd->sbk", y, codes)
    return ((apart == 0) & (support.q > 0)).any(-1)


class Recipe(Task[Config]):
    model: Model
    best = "bound"
    shown = ("loss", "calls")
    meanings = {
        "loss": "what training minimises: minus the bound, as the estimator computes it",
        "calls": "how often the decoder runs for an image in training",
        "bound": "the evidence lower bound of an image's log-likelihood, in nats",
        "bits_per_dim": "an upper bound of −log2 p(x) for each pixel, by importance samples",
    }
    lower = ("loss", "bits_per_dim")

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        data = {name: split.to(device) for name, split in images.splits(config).items()}
        self.train = data.pop("train")
        self.held_out = data
        counts = torch.bincount(self.train.pixels.flatten(), minlength=self.train.levels)
        self.model = Model(config, self.train.pixels.shape[-1], counts).to(device)

    def batches(self, epoch: int) -> Sequence[Tensor]:
        return torch.randperm(len(self.train), generator=self.shuffling(epoch)).split(self.config.batch_size)

    def updates(self, indices: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        cost, calls = self.cost(self.train.at(indices.to(self.device)), generator)
        yield cost.mean(), {"calls": cost.new_full((), calls)}

    def cost(self, data: images.Images, generator: torch.Generator) -> tuple[Tensor, float]:
        """Minus the bound of each image, and the decoder's calls for it."""
        x, shades = data.pixels.long(), data.shades()
        return self.model.latent(self.model.log_joint(x), self.model.scores(shades), shades, generator)

    def evaluate(self, split: str) -> dict[str, float]:
        data, samples = self.held_out[split], self.config.importance_samples
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        tally, found = latent.Tally(), []
        for start in range(0, len(data), self.config.batch_size):
            batch = data.at(slice(start, start + self.config.batch_size))
            tally.add(*self.cost(batch, generator))
            if split == "test":
                x, shades = batch.pixels.long(), batch.shades()
                found.append(self.model.log_likelihood(x, shades, samples, generator))
        metrics = {"bound": -tally.cost, "calls": tally.calls}
        if found:
            metrics["bits_per_dim"] = -torch.cat(found).mean().item() / (math.log(2) * data.pixels.shape[-1])
        return metrics

    def drawings(self) -> list[dict[str, Any]]:
        """Images, what the decoder makes of their best codes, and of these with a bit flipped."""
        data, structure, flipped = self.held_out["valid"].at(slice(8)), self.model.latent.structure, 6
        best = structmax.argmax(self.model.scores(data.shades()), structure)
        flips = torch.eye(self.config.bits, device=self.device)[:flipped]
        codes = torch.cat([best.unsqueeze(1), (best.unsqueeze(1) - flips).abs()], 1)
        levels = torch.arange(data.levels, device=self.device) / (data.levels - 1)
        made = (self.model.level(self.model.features(codes)).softmax(-1) * levels).sum(-1)
        return [
            {
                "kind": "images",
                "title": "Images, the mean images of their codes, and those of codes with one bit flipped",
                "images": [
                    [data.drawable(shades), *map(data.drawable, row)]
                    for shades, row in zip(data.shades(), made, strict=True)
                ],
                "rows": ["".join(str(int(bit)) for bit in code) for code in best.tolist()],
                "columns": ["image", "code", *(f"bit {bit + 1}" for bit in range(len(flips)))],
            }
        ]

    def state(self) -> dict[str, Any]:
        return self.model.latent.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.latent.load_state(state)

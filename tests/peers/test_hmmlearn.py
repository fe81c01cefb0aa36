"""Against hmmlearn, its concatenated sequences padded: the same likelihoods, posteriors, paths and fits."""

import pytest
import torch

import structmax
from structmax.testing import same

hmm = pytest.importorskip("hmmlearn.hmm")

STATES, SYMBOLS = 3, 4
LENGTHS = torch.tensor([7, 4, 6])
SEEDS = range(3)


def rows(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64).add(0.1).log().log_softmax(-1)


def padded(flat):
    """Sequences one after the other, as theirs take them, to (B, N, …)."""
    return torch.nn.utils.rnn.pad_sequence(flat.split(LENGTHS.tolist()), batch_first=True)


def joined(ours):
    """(B, N, …) to sequences one after the other."""
    return torch.cat([row[:length] for row, length in zip(ours, LENGTHS.tolist(), strict=True)])


def agree(theirs, observations, ours):
    """Likelihood, posterior and best path of all sequences."""
    given = observations.numpy(), LENGTHS.tolist()
    same("score", ours.log_partition.sum(), torch.tensor(theirs.score(*given), dtype=torch.float64), 1e-9)
    same("predict_proba", joined(ours.mean.unary), torch.from_numpy(theirs.predict_proba(*given)), 1e-9)
    value, path = theirs.decode(*given)
    assert joined(ours.structure.decode(ours.mode)).tolist() == path.tolist()
    best = structmax.topk(ours.scores, ours.structure, 1).values[0].sum()
    same("decode", best, torch.tensor(value, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_symbols(seed):
    initial, transition, table = rows(3, seed=seed), rows(3, 3, seed=seed + 10), rows(3, SYMBOLS, seed=seed + 20)
    symbols = torch.randint(SYMBOLS, (int(LENGTHS.sum()), 1), generator=torch.Generator().manual_seed(seed))
    theirs = hmm.CategoricalHMM(STATES, n_iter=4, tol=-1e9, params="ste", init_params="")
    theirs.n_features = SYMBOLS
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (t.exp().numpy() for t in (initial, transition, table))
    seen = padded(symbols[:, 0])

    def states(initial, transition, table):
        return structmax.hidden_markov(initial, transition, table[:, seen].permute(1, 2, 0), LENGTHS)

    agree(theirs, symbols, states(initial, transition, table))
    theirs.fit(symbols.numpy(), LENGTHS.tolist())
    parameters = [initial, transition, table]
    for _ in range(4):
        parameters = [t.detach().requires_grad_() for t in parameters]
        counts = torch.autograd.grad(states(*parameters).log_partition.sum(), parameters)
        parameters = [(count / count.sum(-1, keepdim=True)).log() for count in counts]
    for ours, fitted in zip(parameters, (theirs.startprob_, theirs.transmat_, theirs.emissionprob_), strict=True):
        same("fit", ours.exp(), torch.from_numpy(fitted), 1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_vectors(seed):
    initial, transition = rows(3, seed=seed), rows(3, 3, seed=seed + 10)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(int(LENGTHS.sum()), 2, generator=generator, dtype=torch.float64)
    means, variances = torch.randn(3, 2, generator=generator, dtype=torch.float64), torch.full((3, 2), 0.7).double()
    # a prior of 0 is none
    theirs = hmm.GaussianHMM(STATES, n_iter=4, tol=-1e9, covars_prior=0.0, min_covar=0.0, params="stmc", init_params="")
    theirs.startprob_, theirs.transmat_ = initial.exp().numpy(), transition.exp().numpy()
    theirs.means_, theirs.covars_ = means.numpy(), variances.numpy()
    series = padded(x)

    def states(initial, transition, means, variances):
        family = torch.distributions.Independent(torch.distributions.Normal(means, variances.sqrt()), 1)
        return structmax.hidden_markov(initial, transition, family.log_prob(series.unsqueeze(-2)), LENGTHS)

    agree(theirs, x, states(initial, transition, means, variances))
    theirs.fit(x.numpy(), LENGTHS.tolist())
    for _ in range(4):
        initial, transition = (t.detach().requires_grad_() for t in (initial, transition))
        p = states(initial, transition, means, variances)
        counts = torch.autograd.grad(p.log_partition.sum(), (initial, transition), retain_graph=True)
        weight = p.mean.unary.detach()
        weight = weight / weight.sum((0, 1))
        means = torch.einsum("bnc,bnd->cd", weight, series)
        variances = torch.einsum("bnc,bncd->cd", weight, (series.unsqueeze(-2) - means).square())
        initial, transition = ((count / count.sum(-1, keepdim=True)).log() for count in counts)
    ours = initial.exp(), transition.exp(), means, variances
    fitted = theirs.startprob_, theirs.transmat_, theirs.means_, theirs.covars_.diagonal(axis1=1, axis2=2)
    for a, b in zip(ours, fitted, strict=True):
        same("fit", a, torch.tensor(b), 1e-8)

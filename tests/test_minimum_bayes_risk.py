"""The structure of least expected distance from a draw; test_laws.py compares it with enumeration."""

import pytest
import torch

import structmax
from structmax import Bits, LinearChain, Matching, omega


def chain_scores():
    """Each path with a 1 at the end is worse than the best, but there are more of them."""
    return LinearChain.Parts(torch.zeros(2, 2), torch.tensor([[0.5, 0.0], [-torch.inf, 0.3]]))


def test_it_is_not_the_best_structure():
    scores, chain = chain_scores(), LinearChain()
    assert chain.decode(structmax.argmax(scores, chain)).tolist() == [0, 0]
    assert chain.decode(structmax.minimum_bayes_risk(scores, chain)).tolist() == [0, 1]


def test_the_part_tensors_that_count():
    """Over transitions, the most probable one wins."""
    scores, chain = chain_scores(), LinearChain()
    best = structmax.minimum_bayes_risk(scores, chain, over=("pairwise",))
    assert chain.decode(best).tolist() == [0, 0]


def test_a_forbidden_part_is_never_returned():
    """Labels 0 and 1 are each most probable at their place, but 1 may not follow 0."""
    unary = torch.tensor([[1.0, 0.0, 0.9], [0.0, 1.0, 0.9]])
    forbidden = torch.zeros(3, 3)
    forbidden[0, 1] = -torch.inf
    best = structmax.minimum_bayes_risk((unary, forbidden), LinearChain())
    assert structmax.log_prob((unary, forbidden), LinearChain(), best) > -torch.inf
    # also where the mean is that of another Ω
    best = structmax.minimum_bayes_risk((unary, forbidden), LinearChain(), omega=omega.SquaredNorm())
    assert structmax.log_prob((unary, forbidden), LinearChain(), best) > -torch.inf


def test_the_threshold_asks_for_more_or_for_fewer_parts():
    scores = torch.tensor([0.2, 0.5, 0.8]).logit()
    for threshold, want in ((0.0, [1.0, 1.0, 1.0]), (0.3, [0.0, 1.0, 1.0]), (0.7, [0.0, 0.0, 1.0])):
        assert structmax.minimum_bayes_risk(scores, Bits(), threshold=threshold).tolist() == want
    assert structmax.minimum_bayes_risk(scores, Bits()).tolist() == structmax.argmax(scores, Bits()).tolist()


@pytest.mark.parametrize("mean", [omega.SquaredNorm(), omega.LocalL2(), omega.Entropy(0.3)])
def test_the_mean_is_that_of_any_omega(mean):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(4, 5, 5, generator=generator)
    got = structmax.minimum_bayes_risk(scores, structmax.BinaryTree(), omega=mean)
    mu = structmax.smoothed_marginals(scores, structmax.BinaryTree(), mean)
    best = structmax.argmax(mu, structmax.BinaryTree())
    torch.testing.assert_close((mu * got).sum((-1, -2)), (mu * best).sum((-1, -2)))


def test_without_marginals_a_sparse_mean_does():
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    with pytest.raises(structmax.Refusal, match="marginals"):
        structmax.minimum_bayes_risk(scores, Matching())
    found = structmax.minimum_bayes_risk(scores, Matching(), omega=omega.SquaredNorm())
    assert found.sum() == 3


def test_it_has_no_gradient():
    scores = torch.randn(2, 4, requires_grad=True)
    assert not structmax.minimum_bayes_risk(scores, structmax.Simplex()).requires_grad


def test_a_distribution_has_it():
    p = structmax.Distribution(chain_scores(), LinearChain())
    want = structmax.minimum_bayes_risk(chain_scores(), LinearChain(), over=("pairwise",))
    got = p.minimum_bayes_risk(over=("pairwise",))
    assert torch.equal(got.unary, want.unary)
    assert torch.equal(got.pairwise, want.pairwise)
    bits = structmax.Distribution(torch.zeros(3), Bits())
    assert bits.minimum_bayes_risk(threshold=0.0).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"over": ("spans",)}, ValueError, "`over` should be a tuple of some of 'unary', 'pairwise', but is"),
        ({"over": "unary"}, ValueError, "`over` should be a tuple of some of 'unary', 'pairwise', but is 'unary'"),
        ({"threshold": -1.0}, ValueError, "`threshold` should be"),
        ({"omega": "entropy"}, TypeError, "`omega` should be a regulariser"),
    ],
)
def test_what_does_not_fit_is_said(options, error, message):
    with pytest.raises(error, match=message):
        structmax.minimum_bayes_risk(chain_scores(), LinearChain(), **options)

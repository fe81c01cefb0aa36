"""Perturb-and-MAP: exact where parts are members, members everywhere, and spoken errors."""

import math

import pytest
import torch
from cases import CASES

import structmax

DRAWS = 20_000


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def frequencies_agree(got, want, draws=DRAWS):
    """Within 4.5 standard errors of a binomial frequency."""
    error = (want * (1 - want) / draws).sqrt().clamp_min(1e-9)
    assert bool(((got - want).abs() <= 4.5 * error).all()), (got - want).abs() / error


def test_gumbels_on_the_simplex_draw_from_the_softmax():
    x = torch.tensor([0.3, -1.0, 2.0, -math.inf], dtype=torch.float64)
    drawn = structmax.perturb_and_map(x, structmax.Simplex(), (DRAWS,), generator=seeded())
    frequencies_agree(drawn.mean(0), x.softmax(-1))


def test_a_temperature_flattens():
    x = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    drawn = structmax.perturb_and_map(x, structmax.Simplex(), (DRAWS,), temperature=2.0, generator=seeded())
    frequencies_agree(drawn.mean(0), (x / 2).softmax(-1))


def test_logistic_noise_draws_bits():
    x = torch.tensor([0.3, -1.0, 2.0, -math.inf], dtype=torch.float64)
    noise = structmax.noise.Logistic()
    drawn = structmax.perturb_and_map(x, structmax.Bits(), (DRAWS,), noise=noise, generator=seeded())
    frequencies_agree(drawn.mean(0), x.sigmoid())


def test_gumbel_topk_draws_without_replacement():
    x = torch.tensor([0.3, -1.0, 1.0, 0.0], dtype=torch.float64)
    drawn = structmax.perturb_and_map(x, structmax.Subset(2), (DRAWS,), generator=seeded())
    p = x.softmax(-1)
    # in either order: p_i p_j / (1 − p_i) + p_j p_i / (1 − p_j)
    pairs = p[:, None] * p / (1 - p[:, None])
    pairs = (pairs + pairs.T).fill_diagonal_(0.0)
    together = torch.einsum("ni,nj->ij", drawn, drawn).fill_diagonal_(0.0) / DRAWS
    frequencies_agree(together, pairs)


@pytest.mark.parametrize("hard", [False, True])
def test_gumbel_topk_sums_to_k_and_has_the_relaxed_gradient(hard):
    x = torch.randn(3, 6, generator=seeded(1), requires_grad=True)
    drawn = structmax.gumbel_topk(x, 2, 0.5, hard, generator=seeded(2))
    torch.testing.assert_close(drawn.sum(-1), torch.full((3,), 2.0))
    assert hard == bool(((drawn == 0) | (drawn == 1)).all())
    (gradient,) = torch.autograd.grad((drawn * torch.arange(6)).sum(), x)
    soft = structmax.gumbel_topk(x, 2, 0.5, generator=seeded(2))
    (want,) = torch.autograd.grad((soft * torch.arange(6)).sum(), x)
    torch.testing.assert_close(gradient, want)
    assert bool((gradient != 0).any())


def test_gumbel_topk_of_a_short_row():
    drawn = structmax.gumbel_topk(torch.zeros(2, 4), 2, lengths=torch.tensor([3, 1]), generator=seeded())
    assert drawn[0, :3].sum() == pytest.approx(2)
    assert drawn[0, 3] == 0
    assert not drawn[1].any()


@pytest.mark.parametrize("noise", [structmax.noise.Gumbel(), structmax.noise.Logistic(), structmax.noise.Normal()])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_draws_are_members(case, noise):
    scores = case.scores()
    drawn = structmax.perturb_and_map(case.parts(scores), case.structure, (5,), noise=noise, generator=seeded())
    found = (case.flat(drawn).unsqueeze(-2) == case.members(scores)).all(-1).sum(-1)
    assert bool((found == (case.scores_of_members(scores) > -math.inf).any(-1)).all())


def test_the_seed_decides():
    x = torch.randn(2, 3, 3, generator=seeded(3))
    one, other = (structmax.perturb_and_map(x, structmax.Matching(), (4,), generator=seeded(5)) for _ in range(2))
    assert torch.equal(one, other)
    assert one.shape == (4, 2, 3, 3)


def test_errors():
    with pytest.raises(ValueError, match="temperature"):
        structmax.perturb_and_map(torch.zeros(3), structmax.Simplex(), temperature=0.0)
    with pytest.raises(TypeError, match=r"`noise` should be Gumbel\(\), Logistic\(\) or Normal\(\), but is"):
        structmax.perturb_and_map(torch.zeros(3), structmax.Simplex(), noise=structmax.noise.Gumbel)
    with pytest.raises(TypeError, match="`noise` should be"):
        structmax.perturb_and_map(torch.zeros(3), structmax.Simplex(), noise="gumbel")


def test_what_cannot_be_computed_is_refused_by_name():
    with pytest.raises(structmax.Refusal, match=r"Matching does not support `log_partition`: .*permanent.*`sinkhorn`"):
        structmax.log_partition(torch.zeros(3, 3), structmax.Matching())
    assert "permanent" in structmax.which(torch.zeros(3, 3), structmax.Matching())["log_partition"]

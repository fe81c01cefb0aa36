"""Against pytorch-crf 0.7.2: parameters, log-likelihoods, gradients and decoding; and where it goes wrong."""

import pytest
import torch

from structmax.nn import CRF
from structmax.testing import same

torchcrf = pytest.importorskip("torchcrf")

# The default mask of the peer is of a dtype that torch warns about.
pytestmark = pytest.mark.filterwarnings("ignore:where received a uint8 condition")


def pair(batch_first, seed=0):
    torch.manual_seed(seed)
    theirs = torchcrf.CRF(5, batch_first)
    ours = CRF(5, batch_first)
    ours.load_state_dict(theirs.state_dict())
    return ours.double(), theirs.double()


def draw(batch_first):
    emissions, tags = torch.randn(4, 7, 5, dtype=torch.float64), torch.randint(5, (4, 7))
    mask = torch.arange(7) < torch.tensor([[7], [1], [4], [6]])
    return (emissions, tags, mask) if batch_first else (emissions.transpose(0, 1), tags.T, mask.T)


@pytest.mark.parametrize("seed", range(10))
def test_parameters_are_drawn_alike(seed):
    torch.manual_seed(seed)
    theirs = torchcrf.CRF(5)
    torch.manual_seed(seed)
    ours = CRF(5)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    theirs.load_state_dict(CRF(5).state_dict())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "token_mean"])
def test_likelihood_and_gradients(reduction, masked, batch_first):
    (ours, theirs), (emissions, tags, mask) = pair(batch_first), draw(batch_first)
    emissions.requires_grad_()
    answers = []
    for crf in (ours, theirs):
        value = crf(emissions, tags, mask if masked else None, reduction)
        answers.append((value, *torch.autograd.grad(value.sum(), [emissions, *crf.parameters()])))
    names = "value", "emissions", "start", "end", "transitions"
    for name, a, b in zip(names, *answers, strict=True):
        same(name, a, b)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_decoding(batch_first, seed):
    (ours, theirs), (emissions, _, mask) = pair(batch_first, seed), draw(batch_first)
    assert ours.decode(emissions) == theirs.decode(emissions)
    assert ours.decode(emissions, mask) == theirs.decode(emissions, mask)
    assert ours.decode(emissions, mask.to(torch.uint8)) == theirs.decode(emissions, mask)


def test_a_mask_with_holes_is_the_sequence_without_them():
    """The peer is right once the steps are cut out, and wrong when told to leave them out."""
    (ours, theirs), (emissions, tags, _) = pair(True), draw(True)
    keep = torch.tensor([True, False, True, True, False, False, True])
    cut = emissions[:, keep], tags[:, keep]
    mask = keep.expand(4, 7)
    same("log-likelihood", ours(emissions, tags, mask, "none"), theirs(*cut, reduction="none"))
    assert ours.decode(emissions, mask) == theirs.decode(cut[0])
    assert not torch.allclose(theirs(emissions, tags, mask, "none"), theirs(*cut, reduction="none"))

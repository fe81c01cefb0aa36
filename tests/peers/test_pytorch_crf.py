"""Against pytorch-crf 0.7.2: log-likelihoods, gradients and decoding, with start and end transitions and prefix masks.

Masks with holes are left out: there its numerator and decoding are wrong. Our own enumeration judges those.
"""

import pytest
import torch

import structmax
from structmax.testing import same

torchcrf = pytest.importorskip("torchcrf")


@pytest.fixture(params=range(5))
def model(request):
    torch.manual_seed(request.param)
    return torchcrf.CRF(4, batch_first=True).double()


@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 1, 3])])
def test_likelihood_gradients_and_decoding(model, lengths):
    emissions = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    tags = torch.randint(4, (3, 5))
    full = torch.full((3,), 5) if lengths is None else lengths
    mask = torch.arange(5) < full[:, None]
    chain = structmax.LinearChain(lengths)
    scores = chain.Parts(emissions, model.transitions, model.start_transitions, model.end_transitions)
    parts = chain.encode(torch.where(mask, tags, -1), scores)
    ours = structmax.log_prob(scores, chain, parts)
    theirs = model(emissions, tags, mask=mask, reduction="none")
    same("log-likelihood", ours, theirs)
    inputs = (emissions, model.transitions, model.start_transitions, model.end_transitions)
    for a, b in zip(torch.autograd.grad(ours.sum(), inputs), torch.autograd.grad(theirs.sum(), inputs), strict=True):
        same("gradient", a, b)
    decoded = chain.decode(structmax.argmax(scores, chain))
    assert [row[row >= 0].tolist() for row in decoded] == model.decode(emissions, mask=mask)


def test_a_mask_with_holes_is_the_chain_without_them(model):
    """What pytorch-crf would say of the sequence with the holes cut out."""
    emissions = torch.randn(1, 6, 4, dtype=torch.float64)
    keep = torch.tensor([[True, False, True, True, False, True]])
    tags = torch.tensor([[0, 9, 1, 2, 9, 3]])
    chain = structmax.LinearChain(keep=keep)
    scores = chain.Parts(emissions, model.transitions, model.start_transitions, model.end_transitions)
    ours = structmax.log_prob(scores, chain, chain.encode(torch.where(keep, tags, -1), scores))
    theirs = model(emissions[:, keep[0]], tags[:, keep[0]], reduction="none")
    same("log-likelihood", ours, theirs)
    decoded = chain.decode(structmax.argmax(scores, chain))
    assert decoded[keep].tolist() == model.decode(emissions[:, keep[0]])[0]
    assert (decoded[~keep] == -1).all()

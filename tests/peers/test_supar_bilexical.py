"""Against supar's bilexicalised constituency trees, its conventions converted: the same values, gradients, best trees.

Its release 1.1.4 does not have them: they are in its repository only. Draws and k best are left out: they fail there.
"""

import pytest
import torch
from torch import Tensor

import structmax
from structmax.testing import same

trees = pytest.importorskip("supar.structs.tree", exc_type=ImportError)
if not hasattr(trees, "BiLexicalizedConstituencyCRF"):
    pytest.skip("this release of supar has no BiLexicalizedConstituencyCRF", allow_module_level=True)


def to_supar(parts: structmax.BilexicalTree.Parts) -> tuple[Tensor, Tensor, Tensor]:
    """[dependent, head], and spans between fenceposts, with heads counted from 1."""
    pad = torch.nn.functional.pad
    return parts.arc.mT, pad(parts.span, (1, 0, 0, 1)), pad(parts.head, (1, 0, 1, 0, 0, 1))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 2])])
def test_bilexical_tree(seed, lengths):
    generator = torch.Generator().manual_seed(seed)
    sizes = (2, 5, 5), (2, 4, 4), (2, 4, 4, 4)
    leaves = [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]
    scores, structure = structmax.BilexicalTree.Parts(*leaves), structmax.BilexicalTree(lengths)
    theirs = trees.BiLexicalizedConstituencyCRF(to_supar(scores), lengths)
    value = structmax.log_partition(scores, structure)
    same("log_partition", value, theirs.log_partition)
    got = torch.autograd.grad(value.sum(), leaves)
    want = torch.autograd.grad(theirs.log_partition.sum(), leaves, retain_graph=True)
    for a, b in zip(got, want, strict=True):
        same("gradient", a, b)
    same("value of the best", structmax.topk(scores, structure, 1).values[0], theirs.max)
    heads, spans = structure.decode(structmax.argmax(scores, structure))
    their_heads, their_spans = theirs.argmax
    assert torch.equal(heads.clamp_min(0), their_heads[:, 1:])
    for ours, other in zip(spans.tolist(), their_spans, strict=True):
        assert sorted([i, j + 1] for i, j in ours if i >= 0) == sorted(other)

"""Against supar 1.1.4, its conventions converted: trees with and without siblings, chains, spans.

Its classes need nothing but torch, but the package around them imports parsers, so they are imported without it. Left
out are its draws of second-order trees, which crash.
"""

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

import structmax
from structmax.testing import same


def bare(name: str) -> None:
    """A package whose modules can be imported, though its own `__init__` has not run."""
    found = importlib.util.find_spec(name)
    if found is None or found.submodule_search_locations is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    package = ModuleType(name)
    package.__path__ = list(found.submodule_search_locations)
    sys.modules[name] = package


for name in ("supar", "supar.utils"):
    if name not in sys.modules:
        bare(name)
supar = pytest.importorskip("supar.structs")

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = pytest.mark.parametrize("seed", range(3))
ROOTS = pytest.mark.parametrize("single_root", [True, False])
LENGTHS = pytest.mark.parametrize("lengths", [torch.tensor([4, 4]), torch.tensor([2, 4])])


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def agree(scores, structure: structmax.AbstractStructure, peer, inputs: tuple[Tensor, ...]) -> None:
    """Values, their gradients, entropies, and the scores of the k best."""
    log_z, entropy = structmax.log_partition(scores, structure), structmax.entropy(scores, structure)
    same("log_partition", log_z, peer.log_partition)
    same("entropy", entropy, peer.entropy, 1e-9)
    for ours, theirs in ((log_z, peer.log_partition), (entropy, peer.entropy)):
        got = torch.autograd.grad(ours.sum(), inputs, retain_graph=True, materialize_grads=True)
        want = torch.autograd.grad(theirs.sum(), inputs, retain_graph=True, materialize_grads=True)
        for a, b in zip(got, want, strict=True):
            same("gradient", a, b, 1e-9)
    best = structmax.topk(scores, structure, 3).values.mT
    found = best > -torch.inf
    same("k-max 3", best[found], peer.kmax(3)[found], 1e-9)
    same("max", best[:, 0], peer.max)


@SEEDS
@ROOTS
@LENGTHS
def test_second_order_trees(seed, single_root, lengths):
    arc, sibling = normal(seed, 2, 5, 5), normal(seed + 50, 2, 5, 5, 5)
    other = normal(seed + 100, 2, 5, 5), normal(seed + 150, 2, 5, 5, 5)
    structure = structmax.SecondOrderTree(lengths, single_root=single_root)
    peer, second = (supar.Dependency2oCRF(s, lengths, multiroot=not single_root) for s in ((arc, sibling), other))
    scores, others = (structmax.SecondOrderTree.from_dependent_first(*s) for s in ((arc, sibling), other))
    agree(scores, structure, peer, (arc, sibling))
    same("kl", structmax.kl_divergence(scores, others, structure), peer.kl(second), 1e-9)
    same("cross-entropy", structmax.cross_entropy(scores, others, structure), peer.cross_entropy(second), 1e-9)
    heads = structure.decode(structmax.argmax(scores, structure))
    assert torch.equal(heads.clamp_min(0), peer.argmax[:, 1:])
    # its marginals are those of arcs, dependents first
    same("marginals", structmax.marginals(scores, structure).arc.mT, peer.marginals)


@SEEDS
@ROOTS
@LENGTHS
def test_projective_trees(seed, single_root, lengths):
    arc = normal(seed, 2, 5, 5)
    structure = structmax.ProjectiveTree(lengths, single_root=single_root)
    agree(arc.mT, structure, supar.DependencyCRF(arc, lengths, multiroot=not single_root), (arc,))


@SEEDS
@ROOTS
def test_spanning_trees(seed, single_root):
    arc = normal(seed, 2, 5, 5)
    lengths = torch.tensor([2, 4])
    structure = structmax.SpanningTree(lengths, single_root=single_root)
    peer = supar.MatrixTree(arc, lengths, multiroot=not single_root)
    # its determinants come back in float32
    same("log_partition", structmax.log_partition(arc.mT, structure), peer.log_partition.double(), 1e-6)
    same("entropy", structmax.entropy(arc.mT, structure), peer.entropy.double(), 1e-6)
    same("marginals", structmax.marginals(arc.mT, structure).mT, peer.marginals.double(), 1e-6)


@SEEDS
def test_chains(seed):
    emission, transition = normal(seed, 2, 4, 3), normal(seed + 50, 4, 4)
    lengths = torch.tensor([2, 4])
    # the last row holds the scores of the first label, the last column those of the last
    scores = structmax.LinearChain.Parts(emission, transition[:-1, :-1], transition[-1, :-1], transition[:-1, -1])
    agree(
        scores,
        structmax.LinearChain(lengths),
        supar.LinearChainCRF(emission, transition, lengths),
        (emission, transition),
    )


@SEEDS
def test_spans(seed):
    spans = normal(seed, 2, 5, 5)
    lengths = torch.tensor([2, 4])
    # [i, j] is from the fencepost i to j, so that the last word of a span is j − 1
    agree(spans[:, :-1, 1:], structmax.BinaryTree(lengths), supar.ConstituencyCRF(spans, lengths), (spans,))

"""Recursions computed block by block: the same numbers, and few of them kept."""

import re

import numpy as np
import pytest
import torch
from cases import CASES
from hypergraph_cases import Case as Drawn

import structmax
from structmax import backends, omega
from structmax.recursion import kernel_numba, reference, reference_checkpoints
from structmax.recursion.edges import Hyperedges, layout
from structmax.recursion.kernel_numba.checkpoints import checkpoints
from structmax.structures.binary_tree.reference import recursion as binary_trees
from structmax.testing.case import same

RECURSIONS = [
    name
    for name, case in CASES.items()
    if backends.explain(case.structure.room, "smoothed_checkpointed", "cpu")["numba"] is None
]
OMEGAS = (omega.Entropy(), omega.Entropy(0.5), omega.LocalL2(0.7), omega.LocalTsallis(1.5))


def chain(positions: int, labels: int) -> Hyperedges:
    """A label for each position, with a part for each; the last node chooses among the last labels."""
    n, c, i = (t.flatten() for t in torch.meshgrid(*map(torch.arange, (positions, labels, labels)), indexing="ij"))
    first = (n == 0) & (i == 0)
    head, tail, part = n * labels + c, torch.where(n > 0, (n - 1) * labels + i, -1), n * labels + c
    kept = (n > 0) | first
    last = torch.arange((positions - 1) * labels, positions * labels)
    columns = (
        torch.cat([head[kept], torch.full((labels,), positions * labels)]),
        torch.cat([tail[kept], last]),
        torch.cat([part[kept], torch.full((labels,), -1)]),
    )
    return Hyperedges.of(*columns, positions * labels + 1)


@pytest.mark.parametrize("seed", [0, 1, 2, 9, 16, 22, 33])
@pytest.mark.parametrize("numbers", [{"alpha": 1.0, "gamma": 1.0}, {"alpha": 2.0, "gamma": 0.7}])
def test_the_engines_give_the_same_numbers(seed, numbers):
    case = Drawn(seed)
    value, counts = kernel_numba.smoothed_and_marginals(case.x, **numbers, **case.graph)
    found = kernel_numba.smoothed_checkpointed_and_marginals(case.x, **numbers, **case.graph)
    assert torch.equal(found[0], value)
    assert torch.equal(found[1], counts)
    assert torch.equal(kernel_numba.smoothed_checkpointed(case.x, **numbers, **case.graph), value)
    found = reference_checkpoints.smoothed_checkpointed_and_marginals(case.x, **numbers, **case.graph)
    assert torch.equal(found[0], reference.smoothed(case.x, **numbers, **case.graph))
    same("counts", found[1], reference.smoothed_and_marginals(case.x, **numbers, **case.graph)[1], 1e-12)


@pytest.mark.parametrize("name", RECURSIONS)
def test_every_structure(name):
    case = CASES[name]
    scores = case.parts(case.scores())
    for plain in OMEGAS:
        blocks = omega.Checkpointed(plain)
        value = structmax.smoothed(scores, case.structure, plain)
        same("value", structmax.smoothed(scores, case.structure, blocks), value, 1e-12)
        wanted = case.flat(structmax.smoothed_marginals(scores, case.structure, plain))
        for backend in ("numba", "reference"):
            found = case.flat(structmax.smoothed_marginals(scores, case.structure, blocks, backend=backend))
            same(backend, found, wanted, 1e-10)


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_a_long_chain_is_the_same_to_the_last_bit(backend):
    edges = chain(40, 3)
    x = torch.randn(4, 120, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1, 30:33] = -torch.inf
    x[2, 7] = -torch.inf
    graph = {"goal": torch.tensor([120, 120, 120, 60]), **edges._asdict(), "alpha": 1.0, "gamma": 1.0}
    plain = kernel_numba if backend == "numba" else reference
    blocks = kernel_numba if backend == "numba" else reference_checkpoints
    value, counts = plain.smoothed_and_marginals(x, **graph)
    found = blocks.smoothed_checkpointed_and_marginals(x, **graph)
    assert torch.equal(found[0], value)
    assert torch.equal(found[1], counts)
    assert value[1] == -torch.inf
    assert not counts[1].any()


def test_derivatives():
    paths, blocks = structmax.MonotoneAlignment(torch.tensor([3, 2])), omega.Checkpointed(omega.LocalTsallis(1.5))
    x = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    for backend in ("numba", "reference"):

        def value(x, backend=backend):
            return structmax.smoothed(x, paths, blocks, backend=backend)

        assert torch.autograd.gradcheck(value, (x,))
        assert torch.autograd.gradgradcheck(value, (x,))
    target = structmax.argmax(x, paths)
    entropy = omega.Entropy()
    wanted = structmax.fenchel_young(x, paths, target, entropy)
    same("loss", structmax.fenchel_young(x, paths, target, omega.Checkpointed(entropy)), wanted, 1e-12)
    walk = structmax.smoothed_log_prob(x, paths, target, blocks)
    same("walk", walk, structmax.smoothed_log_prob(x, paths, target, omega.LocalTsallis(1.5)), 1e-12)


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_forms(backend):
    paths, blocks = structmax.MonotoneAlignment(), omega.Checkpointed(omega.Entropy())
    assert structmax.smoothed_marginals(torch.zeros(0, 3, 3), paths, blocks, backend=backend).shape == (0, 3, 3)
    x = torch.zeros(3, 3)
    x[0, 0] = torch.nan
    assert structmax.smoothed(x, paths, blocks, backend=backend).isnan()
    x = torch.zeros(2, 3, 3, dtype=torch.bfloat16, requires_grad=True)
    value = structmax.smoothed(x, paths, blocks, backend=backend)
    assert value.dtype == torch.bfloat16
    assert torch.autograd.grad(value.sum(), x)[0].dtype == torch.bfloat16
    with torch.inference_mode():
        same("value", structmax.smoothed(x, paths, blocks, backend=backend), value.detach(), 0.0)


def kept(edges: Hyperedges, goal: int) -> tuple[int, int]:
    """How many blocks a recursion is cut into, and how many values are kept at the cuts."""
    first, tails, parts = (t.numpy() for t in edges)
    cuts, _, nodes = checkpoints(goal, first, tails, parts, np.empty(len(first), np.int32))
    return len(cuts) - 1, len(nodes)


def test_what_is_kept():
    # 1601 nodes in blocks of 41: at each of 39 cuts the labels of one or two positions
    blocks, values = kept(chain(400, 4), 1600)
    assert blocks == 40
    assert 4 * 39 <= values <= 8 * 39
    # a goal in the middle cuts what it builds on alone
    blocks, values = kept(chain(400, 4), 99)
    assert blocks == 10
    # bracketings use every span to the end, and are one block
    edges, goal = binary_trees(torch.zeros(1, 12, 12), lengths=torch.tensor([12]))
    assert kept(edges, int(goal)) == (1, 0)


def test_levels_are_cut_into_blocks():
    blocks = reference_checkpoints.blocks_of(layout(chain(40, 3), 120, torch.device("cpu")))
    assert len(blocks) == 6
    assert [len(block.frontier) for block in blocks] == [0, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("wrong", [omega.SquaredNorm(), omega.Checkpointed(omega.Entropy()), 1.0])
def test_what_has_no_recursion_is_refused(wrong):
    says = "`omega` should be one of a recursion, Entropy(), LocalL2() or LocalTsallis(), but is "
    with pytest.raises(TypeError, match=re.escape(says)):
        omega.Checkpointed(wrong)

"""`encode` is the way back of `decode`, refuses what is out of range, and lets padding hold anything."""

import inspect
import re

import pytest
import torch
from cases import CASES, LATTICE

import structmax
from structmax import (
    CTC,
    PCFG,
    BinaryTree,
    Bits,
    JumpAlignment,
    Lattice,
    LinearChain,
    Matching,
    MonotoneAlignment,
    ProjectiveTree,
    SemiMarkov,
    ShiftReduce,
    Simplex,
    SpanningTree,
    Subset,
)


def encoded(structure, decoded, scores):
    """`encode` of what `decode` returns, with the sizes it wants beside."""
    first = structure.tensors(scores)[0]
    given = decoded if isinstance(decoded, tuple) else (decoded,)
    wanted = list(inspect.signature(structure.encode).parameters.values())[len(given) :]
    if wanted and wanted[0].name == "scores":
        return structure.encode(*given, scores)
    if getattr(structure, "labelled", False):
        return structure.encode(*given, first.shape[-1])
    sizes = sum(parameter.default is parameter.empty for parameter in wanted)
    return structure.encode(*given, *first.shape[first.dim() - sizes :])


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_encode_is_the_way_back(case):
    scores = case.scores()
    for member in case.members(scores).unbind(-2):
        # an instance that has fewer members stands for one in which nothing is feasible: zeros
        vector = torch.where((member < 0).any(-1, keepdim=True), 0.0, member)
        parts = case.unflat(vector, scores)
        again = encoded(case.structure, case.structure.decode(parts), case.parts(scores))
        assert torch.equal(case.flat(again).double(), vector)


chain = LinearChain(torch.tensor([3, 1])), (torch.zeros(2, 3, 4), torch.zeros(4, 4))
segments = SemiMarkov(torch.tensor([3, 1])), (torch.zeros(2, 3, 2, 2), torch.zeros(2, 2))
kept = LinearChain(keep=torch.tensor([True, False, True])), (torch.zeros(3, 4), torch.zeros(2, 4, 4))
frames = CTC(torch.tensor([1]), torch.tensor([2, 1]))
trees = SpanningTree(torch.tensor([3, 1]), single_root=False)
labelled = ProjectiveTree(torch.tensor([2, 1]), single_root=True, labelled=True)
edges = SpanningTree(torch.tensor([3, 2]), directed=False)
warped = MonotoneAlignment(torch.tensor([2, 1]), torch.tensor([2, 1]))
gaps = MonotoneAlignment(torch.tensor([1]), torch.tensor([1]), gaps=True)
steps = ShiftReduce(torch.tensor([2, 1]))
pairs = Matching(torch.tensor([2, 1]), torch.tensor([2, 2]))

# What may hold anything: each pair encodes the same.
PADDED = {
    "chain": (chain, [[0, 1, 2], [3, -100, 9]], [[0, 1, 2], [3, -1, -1]]),
    "kept": (kept, [0, 77, 3], [0, -1, 3]),
    "segments": (
        segments,
        [[[0, 2, 1], [2, 1, 0], [5, -9, 9]], [[0, 1, 1], [-100, 7, 7], [1, -3, 0]]],
        [[[0, 2, 1], [2, 1, 0], [-1, -1, -1]], [[0, 1, 1], [-1, -1, -1], [-1, -1, -1]]],
    ),
    "frames": ((frames, torch.zeros(2, 3, 2)), [[1, 0, 7], [1, -100, 5]], [[1, 0, -1], [1, -1, -1]]),
    "trees": ((trees, torch.zeros(2, 4, 4)), [[0, 1, 1], [0, 3, -100]], [[0, 1, 1], [0, -1, -1]]),
    "edges": (
        (edges, torch.zeros(2, 3, 3)),
        [[[0, 1], [1, 2]], [[0, 1], [7, -5]]],
        [[[0, 1], [1, 2]], [[0, 1], [-1, -1]]],
    ),
    "warped": (
        (warped, torch.zeros(2, 2, 2)),
        [[[0, 0], [1, 1], [9, 9]], [[0, 0], [-7, 0], [1, 1]]],
        [[[0, 0], [1, 1], [-1, -1]], [[0, 0], [-1, -1], [-1, -1]]],
    ),
    "gaps": (
        (gaps, (torch.zeros(1, 2, 2), torch.zeros(1, 2, 3), torch.zeros(1, 3, 2))),
        [[[0, 0, 1], [1, 0, 2], [5, 5, 5]]],
        [[[0, 0, 1], [1, 0, 2], [-1, -1, -1]]],
    ),
    "steps": ((steps, torch.zeros(2, 3, 2)), [[0, 0, 1], [0, 8, -100]], [[0, 0, 1], [0, -1, -1]]),
    "pairs": ((pairs, torch.zeros(2, 3, 2)), [[1, 0, 55], [1, -100, 2]], [[1, 0, -1], [1, -1, -1]]),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_may_hold_anything(name):
    (structure, scores), garbage, plain = PADDED[name]
    got, want = (encoded(structure, torch.tensor(given), scores) for given in (garbage, plain))
    for a, b in zip(structure.tensors(got), structure.tensors(want), strict=True):
        assert torch.equal(a, b)
    assert any(part.any() for part in structure.tensors(want))


def test_padding_of_labels_and_of_masks_may_hold_anything():
    heads, labels = torch.tensor([[0, 1], [0, -100]]), torch.tensor([[1, 0], [1, 9]])
    parts = labelled.encode(heads, labels, 2)
    assert torch.equal(parts, labelled.encode(heads.clamp_min(-1), labels.where(labels < 9, -1), 2))
    assert parts.sum() == 3
    assert torch.equal(Bits(torch.tensor(1)).encode(torch.tensor([True, True])), torch.tensor([1.0, 0.0]))


# What is refused, and what the message says.
REFUSED = {
    "simplex": (lambda: Simplex().encode(torch.tensor([0, 3]), 3), "`index` should lie between 0 and 2, but hold 3"),
    "a mask of numbers": (lambda: Bits().encode(torch.tensor([2, 0])), "`mask` should be a bool tensor"),
    "items": (lambda: Subset(2).encode(torch.tensor([1, 5]), 5), "`items` should be items from 0 to 4, but hold 5"),
    "items past the length": (
        lambda: Subset(1, lengths=torch.tensor([2])).encode(torch.tensor([[2]]), 5),
        "below the lengths, but hold 2",
    ),
    "too few items": (lambda: Subset(2).encode(torch.tensor([1, -1]), 5), "but hold -1. Try `Subset(at_most=k)`"),
    "a label": (
        lambda: chain[0].encode(torch.tensor([[0, 7, 1], [0, 0, 0]]), chain[1]),
        "`labels` should lie between 0 and 3 at every position that counts, but hold 7. Try `LinearChain`",
    ),
    "a label of -100 in the length": (
        lambda: chain[0].encode(torch.tensor([[0, 1, -100], [0, 0, 0]]), chain[1]),
        "but hold -100",
    ),
    "a label of -1 without lengths": (
        lambda: LinearChain().encode(torch.tensor([0, 1, -1]), (torch.zeros(3, 2), torch.zeros(2, 2))),
        "but hold -1",
    ),
    "labels of another length": (
        lambda: chain[0].encode(torch.tensor([[0, 1], [0, 0]]), chain[1]),
        "`labels` should have shape (…, 3), one for each position, not (2, 2)",
    ),
    "a width": (
        lambda: segments[0].encode(torch.tensor([[[0, 3, 1]] * 3, [[0, 1, 1]] * 3]), segments[1]),
        "with widths from 1 to 2 and labels from 0 to 1, but hold [0, 3, 1]",
    ),
    "a gap between segments": (
        lambda: SemiMarkov().encode(
            torch.tensor([[0, 1, 1], [2, 1, 1], [-1, -1, -1]]), (torch.zeros(3, 2, 2), torch.zeros(2, 2))
        ),
        "one after the other up to the length",
    ),
    "a symbol": (lambda: frames.encode(torch.tensor([[1, 2], [1, 0]]), 2), "`symbols` should lie between 0 and 1"),
    "a cell": (
        lambda: MonotoneAlignment().encode(torch.tensor([[0, 2]]), 2, 2),
        "`path` should be steps (row, column)",
    ),
    "a cell past the true size": (
        lambda: warped.encode(torch.tensor([[[0, 0], [1, 1]], [[1, 1], [0, 0]]]), 2, 2),
        "inside of 2 × 2 items and the true sizes, but hold [1, 1]",
    ),
    "a jump too far": (
        lambda: JumpAlignment().encode(torch.tensor([[0, 0], [2, 1]]), (torch.zeros(3, 2), torch.zeros(2, 1, 1))),
        "each one column on and 0 to 1 rows down, but hold [2, 1]",
    ),
    "a way down that is none": (
        lambda: JumpAlignment().encode(torch.tensor([[0, 0], [1, 0]]), (torch.zeros(2, 1), torch.zeros(2, 1, 1))),
        "each one column on and 0 to 1 rows down, but hold [1, 0]",
    ),
    "a move": (lambda: gaps.encode(torch.tensor([[[0, 0, 3]]]), 1, 1), "`path` should be steps (row, column, move)"),
    "a local step": (
        lambda: MonotoneAlignment(gaps=True, local=True).encode(torch.tensor([[0, 0, 0], [-100, 0, 0]]), 1, 1),
        "but hold [-100, 0, 0]. −1 stands for nothing",
    ),
    "a column": (lambda: pairs.encode(torch.tensor([[1, 2], [0, 0]]), 4), "`columns` should lie between 0 and 3"),
    "a single row": (lambda: Matching().encode(torch.tensor([0, -1]), 2), "partial=True if rows may stay single"),
    "a span": (
        lambda: BinaryTree().encode(torch.tensor([[0, 1], [0, 0], [2, 1]]), torch.zeros(2, 2)),
        "`spans` should be rows (first leaf, last leaf), with leaves from 0 to 1",
    ),
    "a span's label": (
        lambda: BinaryTree(labelled=True).encode(torch.tensor([[0, 0, 5]]), torch.zeros(1, 1, 2)),
        "with labels from 0 to 1 and leaves in range, but hold [0, 0, 5]",
    ),
    "too few spans": (
        lambda: BinaryTree().encode(torch.tensor([[0, 1], [0, 0], [-1, -1]]), torch.zeros(2, 2)),
        "`spans` of a tree over n leaves should be 2n − 1, but are 2 for 2 leaves",
    ),
    "a head": (
        lambda: trees.encode(torch.tensor([[0, 1, 4], [0, 0, 0]])),
        "`heads` should lie between 0, the root, and 3",
    ),
    "a head past the length": (lambda: trees.encode(torch.tensor([[0, 1, 1], [2, 0, 0]])), "or the length"),
    "a word as its own head": (
        lambda: trees.encode(torch.tensor([[0, 2, 1], [0, 0, 0]])),
        "another than the word itself",
    ),
    "an arc's label": (
        lambda: labelled.encode(torch.tensor([[0, 1], [0, 0]]), torch.tensor([[0, 2], [0, 0]]), 2),
        "`labels` should lie between 0 and 1, but hold 2. Try `lengths`",
    ),
    "an edge": (
        lambda: edges.encode(torch.tensor([[[0, 1], [1, 3]], [[0, 1], [0, 0]]])),
        "`edges` should join two nodes",
    ),
    "a node of a parse": (
        lambda: PCFG().encode(
            [(0, 1, 0), (0, 0, 1), (1, 1, 9)], (torch.zeros(2, 1), torch.zeros(1, 2, 2), torch.zeros(1))
        ),
        "over one word, preterminals from 1 to 1, but hold (1, 1, 9)",
    ),
    "half a parse": (
        lambda: PCFG().encode([(0, 1, 0), (0, 0, 1)], (torch.zeros(2, 1), torch.zeros(1, 2, 2), torch.zeros(1))),
        "`nodes` should be the 2n − 1 nodes of a binary tree over n words, but (0, 1) has no two children",
    ),
    "an action": (
        lambda: steps.encode(torch.tensor([[0, 2, 1], [0, 0, 0]])),
        "`actions` should be 0, shift, or 1, reduce",
    ),
    "an edge of a lattice": (
        lambda: Lattice(LATTICE, source=0, sink=2).encode(torch.tensor([0, 9])),
        "`path` should be edges from 0 to 8, or −1 for none, but hold 9",
    ),
    "a part": (
        lambda: CASES["hypergraph"].structure.encode([0, 99], 16),
        "`indices` should be parts from 0 to 15, but hold 99",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_encode_refuses(name):
    encode, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        encode()


def test_nothing_is_read_while_compiling():
    """Values out of range mark nothing there, and index nothing out of bounds."""
    structure, scores = chain

    def parts(labels):
        return structure.encode(labels, scores).unary

    labels = torch.tensor([[0, 7, 1], [0, 0, 0]])
    assert torch.func.vmap(lambda row: LinearChain().encode(row, (scores[0][0], scores[1])).unary)(labels).sum() == 5
    with pytest.raises(ValueError, match="hold 7"):
        parts(labels)


def test_a_hypergraph_decodes_counts():
    twice = structmax.Hypergraph(torch.tensor([0, 1]), torch.tensor([[-1, -1], [0, 0]]), torch.tensor([0, 1]))
    parts = structmax.argmax(torch.zeros(2), twice)
    assert twice.decode(parts) == [0, 0, 1]
    assert torch.equal(twice.encode([0, 0, 1], 2), parts)

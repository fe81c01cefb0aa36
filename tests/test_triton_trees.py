"""The Triton kernels of trees and parses against the CPU's in float64: on a GPU, or under Triton's interpreter.

The last instance of each batch is infeasible, the one before holds a NaN, and padding is NaN everywhere.
"""

import math

import pytest
import torch

pytest.importorskip("triton")

from structmax import PCFG, BinaryTree, ProjectiveTree, rooms
from structmax.numerics.kernel_triton import sizes
from structmax.structures.binary_tree import kernel_triton as of_spans
from structmax.structures.pcfg import kernel_triton as of_parses
from structmax.structures.projective_tree import kernel_triton as of_arcs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SUMS = ("log_partition_and_marginals", "marginals_jvp")
EVERY = (*SUMS, "argmax", "sample")
# The interpreter is slow: every day it does one case of a kind.
thorough = pytest.mark.thorough


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def forbidden(x, kept):
    """Some scores −inf, but none of those to keep."""
    lost = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.15
    return x.masked_fill(lost & ~kept, -math.inf)


def binary(N, labels=()):
    lengths, x = torch.tensor([N, N - 2, N, N]), normal(4, N, N, *labels)
    leaf = torch.arange(N)
    x = forbidden(x, ((leaf == leaf[:, None]) | (leaf[:, None] == 0)).reshape(N, N, *(1 for _ in labels)))
    x[2, 0, N - 1], x[3, 1, 1] = math.nan, -math.inf
    return BinaryTree(lengths, labelled=bool(labels)), (x,)


def projective(N, labels=(), single_root=True, directed=True):
    lengths, arc = torch.tensor([N, N - 2, N, N]), normal(4, N + 1, N + 1, *labels)
    arc = forbidden(arc, (torch.arange(N + 1) == 0).reshape(N + 1, 1, *(1 for _ in labels)))
    arc[2, N, 1], arc[3, :, 1] = math.nan, -math.inf
    if not directed:
        # node 1 is joined to no other
        arc, lengths = arc.transpose(1, 2), lengths + 1
        arc[3, 1] = -math.inf
    return ProjectiveTree(lengths, single_root=single_root, labelled=bool(labels), directed=directed), (arc,)


def parses(N, K, T):
    S = K + T
    terms, rules, roots, spans = normal(4, N, T), normal(4, K, S, S), normal(4, K), normal(4, N, N, K)
    rules = forbidden(rules, torch.tensor(False))
    spans[2, 0, 1, 0], roots[3] = math.nan, -math.inf
    return PCFG(torch.tensor([N, N - 1, N, N])), (terms, rules, roots, spans)


def on_device(fields, dtype):
    """Noise in the dtype of the scores."""
    moved = {name: t.to(DEVICE) for name, t in fields.items() if isinstance(t, torch.Tensor)}
    return fields | {name: t.to(dtype) if t.is_floating_point() else t for name, t in moved.items()}


def compare(structure, scores, names=EVERY, dtype=torch.float64, tolerance=1e-11):
    exists = structure.exists(scores)
    scores = tuple(torch.where(there, x, math.nan) for there, x in zip(exists, scores, strict=True))
    tangent = tuple(normal(*x.shape, seed=1) for x in scores)
    numbers = structure.noise_size(structure.parts(scores))
    noise = torch.rand(len(scores[0]), 2, numbers, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    fields = structure.fields(scores)
    calls = {"marginals_jvp": (scores + tangent, fields), "sample": (scores, fields | {"noise": noise})}
    for name in ("log_partition", *names):
        tensors, keywords = calls.get(name, (scores, fields))
        given = (t.to(DEVICE, dtype) for t in tensors)
        got = rooms.function(structure.room, name, "triton")(*given, **on_device(keywords, dtype))
        want = rooms.function(structure.room, name, "numba")(*tensors, **keywords)
        got, want = ((t,) if isinstance(t, torch.Tensor) else t for t in (got, want))
        if name.startswith("log_partition"):
            assert want[0].isfinite().tolist() == [True, True, False, False]
            torch.testing.assert_close(got[0].cpu().double(), want[0], atol=tolerance, rtol=tolerance, equal_nan=True)
            got, want = got[1:], want[1:]
        for a, b, there in zip(got, want, exists, strict=False):
            # an engine may spoil parts that no structure has, where others are NaN
            b = torch.where(there.unsqueeze(1) if name == "sample" else there, b, 0.0)
            torch.testing.assert_close(a.cpu().double(), b, atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles that a few words cross, and a launch for each width."""
    monkeypatch.setattr(sizes, "FEW_POSITIONS", 1)
    monkeypatch.setattr(sizes, "MOST_SPANS", 2)
    monkeypatch.setattr(sizes, "MOST_TERMS", 2)


@pytest.mark.parametrize("labels", [pytest.param((), marks=thorough), (3,)])
def test_binary_trees(labels):
    compare(*binary(4, labels))


def test_binary_trees_across_tiles(small_tiles):
    compare(*binary(5, (2,)), SUMS)


@pytest.mark.parametrize(("labels", "single_root"), [((), True), pytest.param((3,), False, marks=thorough)])
def test_projective_trees(labels, single_root):
    compare(*projective(3, labels, single_root))


@pytest.mark.parametrize("labels", [(), pytest.param((2,), marks=thorough)])
def test_projective_trees_without_directions(labels):
    compare(*projective(3, labels, directed=False))


@thorough
def test_large_scores():
    structure, (arc,) = projective(4)
    compare(structure, (1e3 * arc,), SUMS[:1])


@thorough
def test_projective_trees_across_tiles(small_tiles):
    compare(*projective(4, (), False), SUMS)


def test_parses():
    compare(*parses(4, 2, 2))


@thorough
@pytest.mark.skipif(DEVICE == "cpu", reason="takes minutes under the interpreter")
@pytest.mark.parametrize("make", [binary, projective])
@pytest.mark.parametrize("N", [70, 300])
def test_real_tiles(make, N):
    """More spans than a tile has, in one launch, and in one for each width."""
    compare(*make(N), tolerance=1e-10)
    compare(*make(N), SUMS, torch.float32, 1e-4)


def test_float32():
    compare(*binary(3), SUMS[:1], torch.float32, 1e-5)


@thorough
def test_float32_of_arcs_and_parses():
    compare(*projective(3), SUMS[:1], torch.float32, 1e-5)
    compare(*parses(3, 2, 2), SUMS[:1], torch.float32, 1e-5)


def test_what_is_too_large_is_refused():
    def meta(*shape):
        return torch.zeros(shape, device="meta")

    for module, what in ((of_spans, "4096 leaves"), (of_arcs, "4095 words")):
        assert module.refuses("argmax", [meta(1, 4, 4)], {}) is None
        assert what in module.refuses("argmax", [meta(1, 4097, 4097)], {})
        assert "16384 labels" in module.refuses("argmax", [meta(1, 4, 4, 16385)], {})
    assert of_parses.refuses("argmax", [meta(1, 4, 1), meta(1, 1, 2, 2)], {}) is None
    assert "2048 symbols" in of_parses.refuses("argmax", [meta(1, 4, 2048), meta(1, 1, 2049, 2049)], {})
    assert "4096 words" in of_parses.refuses("argmax", [meta(1, 4097, 1), meta(1, 1, 2, 2)], {})

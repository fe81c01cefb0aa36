"""Against the mean-field and loopy modules of supar 1.1.4, its conventions converted: the same marginals.

Its scores are indexed by dependent, head and third word, and pairs of arcs are scored in both orders. Not compared is
what those modules compute otherwise: grandparents reach the first of the two arcs alone; loopy messages of semantic
graphs are divided by what was sent, not by what was received, so that the first sweep alone agrees; those of trees
weigh a pair by 1 + exp s, and leave out a word's message about itself as a head.
"""

import importlib.util
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from test_belief_propagation import draw
from torch import Tensor

from structmax import belief_propagation, mean_field
from structmax.factors import second_order_arcs, second_order_spans

SPEC = importlib.util.find_spec("supar")
if SPEC is None or SPEC.submodule_search_locations is None:
    pytest.skip("supar is not installed", allow_module_level=True)
HOME = Path(next(iter(SPEC.submodule_search_locations)))


@pytest.fixture(scope="module")
def supar():
    """Its module of these alone: the package itself imports much else."""
    stand_ins = {name: types.ModuleType(name) for name in ("supar", "supar.utils", "supar.utils.common")}
    stand_ins["supar.utils.common"].MIN = -1e32  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins.items():
            patch.setitem(sys.modules, name, module)
        spec = importlib.util.spec_from_file_location("supar_vi", HOME / "structs" / "vi.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


N, LENGTHS = 4, torch.tensor([4, 3])


def arc_scores(scale: float = 0.5) -> tuple[Tensor, Tensor]:
    """arc (B, W, W), and scores (B, W, W, W) of which all three orders are used."""
    return scale * draw(2, N + 1, N + 1), scale * draw(2, N + 1, N + 1, N + 1, seed=1)


def both_orders(scores: Tensor) -> Tensor:
    """[h, m, s] for m < s, also at [h, s, m]."""
    upper = scores.triu(1)
    return upper + upper.mT


def allowed(arc: Tensor) -> Tensor:
    """arc without those to the root, from a word to itself, and past the lengths: far below all others."""
    node = torch.arange(N + 1)
    inside = node <= LENGTHS[:, None]
    there = inside[:, :, None] & inside[:, None] & (node[:, None] != node) & (node > 0)
    return arc.masked_fill(~there, -1e32)


def compare(ours: Tensor, theirs: Tensor) -> None:
    """Marginals (B, h, m) of ours and (B, m, h) of theirs, of the words that are there."""
    for k, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(ours[k, : length + 1, 1 : length + 1], theirs[k, 1 : length + 1, : length + 1].mT)


def words() -> Tensor:
    """The mask of supar: True for words, the root not counted."""
    node = torch.arange(N + 1)
    return (node > 0) & (node <= LENGTHS[:, None])


@pytest.mark.parametrize("sweeps", [1, 3])
def test_mean_field_of_trees(supar, sweeps):
    arc, sibling = arc_scores()
    # their arcs to the root are among the siblings
    sibling[..., 0] = sibling[..., 0, :] = 0.0
    theirs = supar.DependencyMFVI(sweeps)((allowed(arc).mT, both_orders(sibling).transpose(1, 2)), words())
    graph = second_order_arcs(N, lengths=LENGTHS)
    ours = mean_field({"arc": arc, "sibling": sibling}, graph, max_iter=sweeps, tol=0, parallel=True)
    compare(ours.marginals["arc"], theirs)


@pytest.mark.parametrize("sweeps", [1, 3])
def test_mean_field_of_semantic_graphs(supar, sweeps):
    arc, sibling = arc_scores()
    coparent = 0.5 * draw(2, N + 1, N + 1, N + 1, seed=2)
    # theirs are masked like siblings: the root is no co-parent of a word, but a word is one of the root
    coparent[:, 0] = 0.0
    mask = (allowed(arc) > -1e30).mT
    # [h, g, m] of ours, for h < g, is [m, h, g] and [m, g, h] of theirs
    heads = both_orders(coparent.permute(0, 3, 1, 2))
    nothing = torch.zeros_like(sibling)
    given = arc.mT, both_orders(sibling).transpose(1, 2), heads, nothing
    theirs = supar.SemanticDependencyMFVI(sweeps)(given, mask)
    graph = second_order_arcs(N, lengths=LENGTHS, coparents=True, several_heads=True)
    scores = {"arc": arc, "sibling": sibling, "coparent": coparent}
    ours = mean_field(scores, graph, max_iter=sweeps, tol=0, parallel=True).marginals["arc"]
    compare(ours, theirs * mask)


@pytest.mark.parametrize("sweeps", [1, 3])
def test_mean_field_of_spans(supar, sweeps):
    """Their spans are between N + 1 boundaries, and each with the same left one has a score."""
    span, start = 0.5 * draw(2, N, N), 0.5 * draw(2, N, N, N, seed=1)
    word = torch.arange(N)
    inside = (word[:, None] <= word) & (word < LENGTHS[:, None, None])
    theirs_span, pair = torch.zeros(2, N + 1, N + 1).double(), torch.zeros(2, N + 1, N + 1, N + 1).double()
    theirs_span[:, :-1, 1:] = span
    mask = torch.zeros(2, N + 1, N + 1, dtype=torch.bool)
    mask[:, :-1, 1:] = inside
    # theirs counts spans that are not there, unless their pairs score nothing
    there = inside[..., None] & inside[:, :, None]
    pair[:, :-1, 1:, 1:] = both_orders(start) * there
    theirs = supar.ConstituencyMFVI(sweeps)((theirs_span, pair), mask)
    graph = second_order_spans(N, lengths=LENGTHS)
    ours = mean_field({"span": span, "start": start}, graph, max_iter=sweeps, tol=0, parallel=True).marginals["span"]
    torch.testing.assert_close(ours, (theirs * mask)[:, :-1, 1:])


def test_loopy_beliefs_of_semantic_graphs(supar):
    """After one sweep, with siblings alone."""
    arc, sibling = arc_scores()
    mask = (allowed(arc) > -1e30).mT
    nothing = torch.zeros_like(sibling)
    theirs = supar.SemanticDependencyLBP(1)((arc.mT, both_orders(sibling).transpose(1, 2), nothing, nothing), mask)
    graph = second_order_arcs(N, lengths=LENGTHS, several_heads=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = belief_propagation({"arc": arc, "sibling": sibling}, graph, max_iter=1).marginals["arc"]
    compare(ours, theirs * mask)

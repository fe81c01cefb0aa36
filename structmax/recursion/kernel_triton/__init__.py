"""Every question, asked of any ordered hypergraph, on CUDA. The twin in plain torch is reference.py.

The arguments are those of kernel_numba, with scores on the device and tables on the CPU; the tables are copied to the
device once. All arrays lie there with the instances innermost. A pass is one launch for each level that has work for
the whole machine, and one for all thin levels in a row, which one program walks for its own instances. Probabilities of
edges are computed anew where they are needed: what is stored is a few numbers for each node and instance, so that
memory grows with nodes × instances and is read once for each use of an edge.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.numerics.kernel_triton.searches import few_instances
from structmax.recursion.edges import Hyperedges
from structmax.recursion.kernel_triton.given_walks import attribute, visit
from structmax.recursion.kernel_triton.lists import list_best, unfold
from structmax.recursion.kernel_triton.passes import ascend, descend
from structmax.recursion.kernel_triton.tables import Rows, Tables, combinations, power, tables_of
from structmax.recursion.kernel_triton.walks import draw

# Lanes of a program of walks, for the edges of their nodes; walks it has at most, and cells of a row it writes at once.
LANES, WALKS, CELLS = 512, 64, 16
# Derivations a node may list: each takes a round over all candidates.
MOST = 32
# A sparse map takes dozens of searches, one after the other and each level by level, for as many instances as there are
# at once. So many to a core were measured faster on the CPU, with the copies there and back.
SEARCHED = 4
YIELDS = {"sparsemap": lambda name, tensors, fields: few_instances(len(tensors[0]), SEARCHED)}


def refuses(name: str, tensors: list[Tensor], fields: dict[str, Any]) -> str | None:
    """Why these kernels cannot answer, or None."""
    if not 1 <= fields.get("alpha", 1.0) <= 2:
        return f"`alpha` should be between 1 and 2 there, but is {fields['alpha']}"
    if name in ("topk", "smoothed_topk") and fields["k"] > MOST:
        return f"`k` should be at most {MOST} there, but is {fields['k']}"
    return None


@dataclass
class _Chart:
    """A batch on the hypergraph, and what the passes have found: arrays (V, B) or (P, B), None where there is none."""

    graph: Tables
    # (B,), among the nodes in level order
    goal: Tensor
    x: Tensor
    kind: str
    gamma: float
    alpha: float = 1.0
    required: Tensor | None = None
    tangent: Tensor | None = None
    value: Tensor | None = None
    peak: Tensor | None = None
    level: Tensor | None = None
    met: Tensor | None = None
    d_value: Tensor | None = None
    centre: Tensor | None = None

    def fill(self) -> Tensor:
        """The pass up; returns the value of each instance's goal."""
        x = self.x
        B = x.shape[1]
        shape, values = (self.graph.nodes, B), {"dtype": torch.float64, "device": x.device}
        self.value = torch.empty(shape, **values)
        if self.kind == "max":
            self.level = torch.empty(shape, dtype=torch.int32, device=x.device)
        else:
            self.peak, self.level = torch.empty(shape, **values), x.new_empty(shape)
        if self.required is not None:
            self.met = x.new_empty(shape)
        if self.tangent is not None:
            self.d_value, self.centre = x.new_empty(2, *shape).unbind(0)
        up = self.graph.up
        arrays = (*self._arrays(), up.first, self.graph.parts, self.graph.tails, up.levels)
        self._launch(ascend, up, arrays, ())
        # what the dtype of the scores cannot hold is −inf
        return self.at_goal(self.value).to(x.dtype)

    def at_goal(self, array: Tensor | None) -> Tensor:
        assert array is not None
        return array.gather(0, self.goal.unsqueeze(0)).squeeze(0)

    def collect(self, answer: Tensor, kind: str) -> Tensor:
        """The pass down and to the parts: (B, P), for instances whose value is `answer` (B,)."""
        size, B = self.x.shape
        out = self.x.new_empty(B, size)
        # ways to the goal are values
        dtype = torch.float64 if kind == "best" else out.dtype
        expected = torch.empty(self.graph.nodes, B, dtype=dtype, device=out.device)
        d_expected = None if self.tangent is None else torch.empty_like(expected)
        arrays = (*self._arrays(), expected, d_expected, self.goal, answer, out)
        for rows in (self.graph.down, self.graph.by_part):
            lists = (rows.first, rows.edge, rows.head, self.graph.parts, self.graph.tails, rows.levels)
            self._launch(descend, rows, (*arrays, *lists), (rows is self.graph.by_part,), (size,), kind)
        return out

    def _arrays(self) -> tuple[Tensor | None, ...]:
        found = self.x, self.value, self.peak, self.level, self.required, self.met
        return *found, self.tangent, self.d_value, self.centre

    def _launch(
        self,
        kernel: Any,
        rows: Rows,
        arrays: tuple[Tensor | None, ...],
        last: tuple[Any, ...],
        sizes: tuple[int, ...] = (),
        kind: str = "",
    ) -> None:
        graph, B = self.graph, self.x.shape[1]
        given, moving, double = self.required is not None, self.tangent is not None, self.x.dtype == torch.float64
        shared = (kind or self.kind, given, moving, double, graph.parts.shape[1], graph.tails.shape[1])
        for it in rows.launches(B):
            numbers = (it.start, it.stop, it.programs, it.groups, B, *sizes, self.gamma, float(self.alpha) - 1)
            constants = (*shared, it.rows, it.edges, it.instances, *last)
            launch(kernel, (it.programs * it.groups,), (*arrays, *numbers), constants, it.warps)


def _inner(x: Tensor) -> Tensor:
    """(B, P) as (P, B), in float32 or wider."""
    return x.t().to(torch.promote_types(x.dtype, torch.float32)).contiguous()


def _chart(x: Tensor, kind: str, goal: Tensor, edges: dict[str, Tensor], gamma: float = 1.0, **more: Any) -> _Chart:
    graph = tables_of(Hyperedges(**edges), x.shape[1], x.device)
    more = {name: _inner(value) if isinstance(value, Tensor) else value for name, value in more.items()}
    return _Chart(graph, graph.place[goal.to(x.device)], _inner(x), kind, float(gamma), **more)


def _kind(alpha: float) -> str:
    return {1.0: "softmax", 2.0: "sparsemax"}.get(alpha, "entmax")


# --- each maximum of the recursion smoothed by γ Ω_α ----------------------------------------------------------------


def smoothed(x: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor) -> Tensor:
    """The value of the goal, where max over p of ⟨p, s⟩ − γ Ω_α(p) stands for the maximum at each node: (B,)."""
    return _chart(x, _kind(alpha), goal, edges, gamma, alpha=alpha).fill()


def smoothed_and_marginals(
    x: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor
) -> tuple[Tensor, Tensor]:
    """The value and its gradient, the expected parts of the walk that takes edges with these p: (B,), (B, P)."""
    chart = _chart(x, _kind(alpha), goal, edges, gamma, alpha=alpha)
    value = chart.fill()
    return value, chart.collect(value, chart.kind)


def smoothed_marginals_jvp(
    x: Tensor, tangent: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor
) -> Tensor:
    """Its Hessian times the tangent: (B, P)."""
    chart = _chart(x, _kind(alpha), goal, edges, gamma, alpha=alpha, tangent=tangent)
    return chart.collect(chart.fill(), chart.kind)


def smoothed_sample(x: Tensor, noise: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor) -> Tensor:
    """Members drawn by that walk with noise (B, S, K): (B, S, P)."""
    chart = _chart(x, _kind(alpha), goal, edges, gamma, alpha=alpha)
    graph, (B, S, K) = chart.graph, noise.shape
    # Only where some node could ask for more is the goal, which may be on the device, looked at.
    if graph.decisions.max(initial=0) > K and graph.decisions[goal.cpu().numpy()].max(initial=0) > K:
        raise ValueError("`noise` should have a number for each decision a derivation can take.")
    answer, size, stack = chart.fill(), x.shape[1], graph.stack()
    out = chart.x.new_zeros(B, S, size)
    room = torch.empty(B * S, stack, dtype=torch.int32, device=x.device)
    found = chart.x, chart.value, chart.peak, chart.level, chart.goal, answer, noise.contiguous(), room, out
    numbers = B, B * S, S, K, size, stack, chart.gamma, float(alpha) - 1
    lanes = min(LANES, power(graph.up.longest()))
    walks = min(LANES // lanes, WALKS, power(B * S))
    shapes = graph.parts.shape[1], graph.tails.shape[1], walks, lanes, CELLS
    arguments = (*found, graph.up.first, graph.parts, graph.tails, *numbers)
    launch(draw, (-(-B * S // walks),), arguments, (chart.kind, out.dtype == torch.float64, *shapes))
    return out


class _Walk:
    """The walks that yield y (B, P): their log-probabilities, and what their gradient is made of."""

    def __init__(self, x: Tensor, y: Tensor, alpha: float, gamma: float, goal: Tensor, edges: dict[str, Tensor]):
        self.chart = chart = _chart(x, _kind(alpha), goal, edges, gamma, alpha=alpha)
        answer, y = chart.fill(), _inner(y)
        # 1 for each part that may be used
        worth = torch.where((y > 0) & (chart.x > -torch.inf), 1.0, -torch.inf).to(chart.x.dtype)
        parse = _Chart(chart.graph, chart.goal, worth, "max", 1.0)
        covered = parse.fill()
        users = _inner(parse.collect(covered, "alive"))
        visits, rest, log, mass, total = chart.x.new_empty(5, chart.graph.nodes, y.shape[1]).unbind(0)
        best = torch.empty(visits.shape, dtype=torch.int32, device=x.device)
        self.found = (chart.x, chart.value, chart.peak, chart.level, worth, parse.value, users, y, visits, best, rest)
        self.sums = mass, total
        own = (chart.goal, chart.graph.up.first)
        self._launch(visit, chart.graph.down, (*self.found, log, mass, total, *own), (), ())
        counts = self._collect(False)
        possible = (counts == y.t()).all(1) & (covered > -torch.inf) & (answer > -torch.inf)
        # NaN stays, and what no walk visits may hold anything
        log = torch.where(visits > 0, log, 0.0).sum(0)
        self.log_prob = torch.where(possible, log, -torch.inf).masked_fill(answer.isnan(), torch.nan)

    def gradient(self, d_value: Tensor) -> Tensor:
        """Of the log-probabilities for the scores, times d_value (B,); 0 where there is none."""
        out = self._collect(True) * d_value.unsqueeze(1)
        out = out.masked_fill(self.log_prob.unsqueeze(1) == -torch.inf, 0.0)
        return out.masked_fill(self.log_prob.isnan().unsqueeze(1), torch.nan)

    def _collect(self, gradient: bool) -> Tensor:
        """How often the parts are used, or the gradient for them: (B, P)."""
        chart, graph = self.chart, self.chart.graph
        size, B = chart.x.shape
        out, passed = chart.x.new_empty(B, size), chart.x.new_empty(graph.nodes, B)
        arrays = (*self.found, *self.sums, passed, out)
        for rows in (graph.down, graph.by_part) if gradient else (graph.by_part,):
            self._launch(attribute, rows, arrays, (gradient, rows is graph.by_part), (size,))
        return out

    def _launch(self, kernel: Any, rows: Rows, arrays: Any, last: tuple[Any, ...], sizes: tuple[int, ...]) -> None:
        chart, graph, B = self.chart, self.chart.graph, self.chart.x.shape[1]
        lists = (rows.first, rows.edge, rows.head, graph.parts, graph.tails, rows.levels)
        shared = chart.kind, chart.x.dtype == torch.float64, graph.parts.shape[1], graph.tails.shape[1]
        for it in rows.launches(B):
            numbers = it.start, it.stop, it.programs, it.groups, B, *sizes, chart.gamma, float(chart.alpha) - 1
            constants = (*shared, it.rows, it.edges, it.instances, *last)
            launch(kernel, (it.programs * it.groups,), (*arrays, *lists, *numbers), constants, it.warps)


def smoothed_log_prob(x: Tensor, y: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor) -> Tensor:
    """The log-probability that the walk yields the member y (B, P), −inf if it cannot: (B,)."""
    return _Walk(x, y, alpha, gamma, goal, edges).log_prob


def smoothed_log_prob_pullback(
    x: Tensor, y: Tensor, d_value: Tensor, *, alpha: float, gamma: float, goal: Tensor, **edges: Tensor
) -> Tensor:
    """Its gradient for x, times d_value (B,); 0 where the walk cannot yield y: (B, P)."""
    return _Walk(x, y, alpha, gamma, goal, edges).gradient(d_value)


# --- the distribution exp⟨x, y⟩ ------------------------------------------------------------------------------------


def log_partition(x: Tensor, **graph: Tensor) -> Tensor:
    """log Σ exp⟨x, y⟩ over the members: (B,)."""
    return smoothed(x, alpha=1.0, gamma=1.0, **graph)


def log_partition_and_marginals(x: Tensor, **graph: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and its gradient, the expected number of uses of each part: (B,), (B, P)."""
    return smoothed_and_marginals(x, alpha=1.0, gamma=1.0, **graph)


def marginals_jvp(x: Tensor, tangent: Tensor, **graph: Tensor) -> Tensor:
    """The Hessian of the log-partition times the tangent: (B, P)."""
    return smoothed_marginals_jvp(x, tangent, alpha=1.0, gamma=1.0, **graph)


def sample(x: Tensor, noise: Tensor, **graph: Tensor) -> Tensor:
    """Members drawn with noise (B, S, K): (B, S, P)."""
    return smoothed_sample(x, noise, alpha=1.0, gamma=1.0, **graph)


# --- that distribution, given parts that must be used --------------------------------------------------------------


def _given(
    x: Tensor, required: Tensor, goal: Tensor, edges: dict[str, Tensor], **more: Tensor
) -> tuple[_Chart, Tensor]:
    """The filled chart, and the values: −inf where no member has all that is required."""
    needed = (required > 0).to(x.dtype)
    chart = _chart(x, "softmax", goal, edges, required=needed, **more)
    value = chart.fill()
    lacks = (chart.at_goal(chart.met) < (required > 0).sum(1)) & ~value.isnan()
    return chart, value.masked_fill(lacks, -torch.inf)


def given_log_partition(x: Tensor, required: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """log Σ exp⟨x, y⟩ over the members with all parts where `required` (B, P) is 1: (B,).

    Parts that a member can use twice cannot be required.
    """
    return _given(x, required, goal, edges)[1]


def given_log_partition_and_marginals(
    x: Tensor, required: Tensor, *, goal: Tensor, **edges: Tensor
) -> tuple[Tensor, Tensor]:
    """The same, and its gradient: (B,), (B, P)."""
    chart, value = _given(x, required, goal, edges)
    return value, chart.collect(value, chart.kind)


def given_marginals_jvp(x: Tensor, required: Tensor, tangent: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """Its Hessian times the tangent: (B, P)."""
    chart, value = _given(x, required, goal, edges, tangent=tangent)
    return chart.collect(value, chart.kind)


# --- the best members ----------------------------------------------------------------------------------------------


def argmax(x: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """A best member, at each node by the first of equal edges: (B, P)."""
    chart = _chart(x, "max", goal, edges)
    return chart.collect(chart.fill(), "max")


def max_marginals(x: Tensor, *, goal: Tensor, **edges: Tensor) -> Tensor:
    """The score of the best member with the part, −inf if there is none: (B, P)."""
    chart = _chart(x, "max", goal, edges)
    return chart.collect(chart.fill(), "best")


def topk(x: Tensor, *, k: int, goal: Tensor, **edges: Tensor) -> tuple[Tensor, Tensor]:
    """The k best members, best first, and −inf and zeros past the last: (B, k), (B, k, P)."""
    chart = _chart(x, "max", goal, edges)
    return _listed(chart, chart.x, chart.graph.parts, k)


def smoothed_topk(
    x: Tensor, *, k: int, alpha: float, gamma: float, goal: Tensor, **edges: Tensor
) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the k most probable walks, and their members: (B, k), (B, k, P)."""
    chart = _chart(x, _kind(alpha), goal, edges, gamma, alpha=alpha)
    log_q = _edge_logs(chart, chart.fill())
    own = torch.arange(len(log_q), dtype=torch.int32, device=x.device).unsqueeze(1)
    return _listed(chart, log_q, own, k)


def _edge_logs(chart: _Chart, answer: Tensor) -> Tensor:
    """log q of each edge, from a filled chart with these values of the goals: (E, B).

    −inf where no walk takes it, and NaN at nodes whose value is.
    """
    graph, x, value, peak, level = chart.graph, chart.x, chart.value, chart.peak, chart.level
    assert value is not None
    assert peak is not None
    assert level is not None
    # one row more, where −1 points
    pairs = ((x.double(), graph.parts), (value, graph.tails))
    s = sum(torch.nn.functional.pad(table, (0, 0, 0, 1))[edge] for table, index in pairs for edge in index.long().t())
    nodes = torch.arange(graph.nodes, device=x.device)
    head = nodes.repeat_interleave(graph.up.first.diff(), output_size=len(graph.tails))
    z, level = ((s - peak[head]) / chart.gamma).to(x.dtype), level[head]
    if chart.kind == "softmax":
        log_q = z + level.log()
    else:
        e = float(chart.alpha) - 1
        log_q = torch.where(z > level, (e * (z - level)).log() / e, -torch.inf)
    return log_q.masked_fill(answer == -torch.inf, -torch.inf).masked_fill(value[head].isnan(), torch.nan)


def _listed(chart: _Chart, scores: Tensor, own: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best derivations where an edge has the parts `own` (E, Q) of `scores` (…, B), and the parts they use."""
    graph, x, (size, B) = chart.graph, chart.x, chart.x.shape
    lists = torch.empty(graph.nodes, k, B, dtype=torch.float64, device=x.device)
    back = torch.empty(lists.shape, dtype=torch.int32, device=x.device)
    parts, tails = graph.parts.shape[1], graph.tails.shape[1]
    ranks = combinations(k, tails, x.device)
    arrays = scores, lists, back, ranks, graph.up.first, own, graph.tails, graph.up.levels
    for it in graph.up.launches(B, len(ranks), k):
        # Threads divide up rows and instances first, and what is left the candidates: few have to be asked for a best.
        low = min(it.edges, max(1, 32 // it.instances), max(1, 32 * it.warps // (it.rows * it.instances)))
        numbers = it.start, it.stop, it.programs, it.groups, B, k, len(ranks)
        constants = own.shape[1], tails, it.rows, it.edges // low, low, it.instances, it.whole
        launch(list_best, (it.programs * it.groups,), (*arrays, *numbers), constants, it.warps)
    values = lists[chart.goal, :, torch.arange(B, device=x.device)].to(x.dtype)
    out, stack = x.new_zeros(B, k, size), graph.stack()
    room = torch.empty(B * k, stack, dtype=torch.int64, device=x.device)
    found = values, back, ranks, chart.goal, room, out, graph.up.first, graph.parts, graph.tails
    walks = min(WALKS, power(B * k))
    launch(
        unfold, (-(-B * k // walks),), (*found, B, B * k, k, len(ranks), size, stack), (parts, tails, walks, CELLS), 1
    )
    return values, out

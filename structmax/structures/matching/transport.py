"""Relaxed matchings in plain torch: entropic, nearest, and their derivatives; slow but correct, on any device.

Derivation: README.md in this folder. Here the lines are always the columns, so that either side may be bounded only.
All is computed in float64; everything outside the r × c scores of an instance counts as forbidden.
"""

import math
from typing import Any

import torch
from torch import Tensor

from structmax.contract import returns

# Scores are first shrunk until they spread over no more than this, then grown by GROWTH again and again.
SPREAD, GROWTH = 8.0, 8.0
# How exactly a stage is solved that is not the last.
STAGE_TOLERANCE = 0.1
# The Hessian is lifted by this fraction of the gradient and, where that vanishes, by this much.
LIFT, LEAST_LIFT = 0.01, 1e-11
STEEP = 0.5
SHORTENINGS, FORESIGHT = 50, 4
MOST_PASSES = 2000
POLISHINGS = 6
# Sums and parts below this fraction of the scores' spread are rounding.
ROUNDING = 2.0**-50
# A sum is held at 1 if it is nearer to 1 than this many units of its dtype, or this many times the tolerance.
UNITS_FROM_ONE, TOLERANCES_FROM_ONE = 1024, 4
# Below this fraction of the weights of a row, a pivot is smaller than the rounding of what it divides.
NO_PIVOT = 2.0**-46


def _inside(x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows (B, N) and which columns (B, M) an instance has."""
    N, M = x.shape[1:]
    return torch.arange(N, device=x.device) < rows[:, None], torch.arange(M, device=x.device) < columns[:, None]


def _tight(x: Tensor, rows: Tensor, columns: Tensor, partial: bool) -> tuple[Tensor, Tensor]:
    """Which rows (B, N) and which columns (B, M) have the sum 1; the others have at most 1."""
    in_rows, in_columns = _inside(x, rows, columns)
    whole = not partial
    return in_rows & (whole & (rows <= columns))[:, None], in_columns & (whole & (columns <= rows))[:, None]


# ---------------------------------------------------------------- lines


def _solve_lines(table: Tensor, u: Tensor, tight: Tensor, sparse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Duals v (B, M) and parts (B, N, M) of the columns for duals u (B, N) of the rows, and the dual function (B,)."""
    z = table - u[:, :, None]
    peak = z.amax(1)
    feasible = peak > -math.inf
    peak = torch.where(feasible, peak, 0.0)
    if sparse:
        # the support ends 1 below the peak
        order = (z - peak[:, None]).clamp_min(-2).sort(dim=1, descending=True).values
        rank = torch.arange(1, z.shape[1] + 1, dtype=z.dtype, device=z.device)[:, None]
        total = order.cumsum(1) - 1
        size = (rank * order > total).sum(1, keepdim=True).clamp_min(1)
        v = peak + (total.gather(1, size - 1) / size).squeeze(1)
    else:
        v = peak + (z - peak[:, None]).exp().sum(1).clamp_min(torch.finfo(z.dtype).tiny).log()
    v = torch.where(feasible & (tight | (v > 0)), v, 0.0)
    p = (z - v[:, None]).clamp_min(0) if sparse else (z - v[:, None]).exp()
    conjugate = 0.5 * p.square() if sparse else p
    return v, p, u.sum(-1) + v.sum(-1) + conjugate.sum((1, 2))


def _violation(u: Tensor, sums: Tensor, tight: Tensor) -> Tensor:
    over = sums - 1
    return torch.where(tight | (u > 0), over.abs(), over.clamp_min(0)).amax(-1)


# ---------------------------------------------------------------- Newton's method


def _directions(
    D: Tensor, u: Tensor, v: Tensor, sums: Tensor, column_sums: Tensor, tight: tuple[Tensor, Tensor], lift: Tensor
) -> tuple[Tensor, Tensor]:
    """Steps in u: with the sums held that are held now, and with those the linear model, too, would hold."""
    lines = D.sum(1)
    held, held_lines = tight[0] | (u > 0) | (sums > 1), tight[1] | (v > 0)
    excess = torch.where(held_lines, 0.0, column_sums - 1)
    steps: list[Tensor] = []
    for _ in range(FORESIGHT):
        share = torch.where(held_lines & (lines > 0), 1 / lines, 0.0)
        hessian = torch.diag_embed(D.sum(2)) - (D * share[:, None]) @ D.mT
        right = sums - 1 + (D * torch.where(held_lines, -excess * share, v)[:, None]).sum(2)
        known = torch.where(held, 0.0, -u)
        right = torch.where(held, right - (hessian @ known[:, :, None]).squeeze(2), 0.0)
        pair = held[:, :, None] & held[:, None, :]
        system = torch.where(pair, hessian, 0.0) + torch.diag_embed(torch.where(held, lift[:, None], 1.0))
        step = torch.linalg.solve_ex(system, right[:, :, None]).result.squeeze(2) + known
        steps.append(step)
        pull = (D * step[:, :, None]).sum(1)
        moves = torch.where(held_lines, (excess - pull) * share, -v)
        left = sums - 1 - (D * (step[:, :, None] + moves[:, None])).sum(2)
        next_lines = tight[1] | torch.where(held_lines, v + moves >= 0, excess - pull + v * lines > 0)
        next_held = tight[0] | torch.where(held, u + step >= 0, left > 0)
        if torch.equal(next_lines, held_lines) and torch.equal(next_held, held):
            break
        held, held_lines = next_held, next_lines
    return steps[0], steps[-1]


def _stage(
    table: Tensor, u: Tensor, tight: tuple[Tensor, Tensor], sparse: bool, tol: Tensor, budget: Tensor
) -> tuple[Tensor, ...]:
    """Newton's method at one scale: u, v, parts, sums of rows, value, error, passes."""

    def column(t: Tensor) -> Tensor:
        return t[:, None]

    def solved(at: Tensor) -> tuple[Tensor, ...]:
        v, p, value = _solve_lines(table, at, tight[1], sparse)
        return at, v, p, p.sum(2), value

    state = solved(u)
    passes = torch.ones_like(tol)
    while True:
        u, v, p, sums, value = state
        error = _violation(u, sums, tight[0])
        active = (error > tol) & (passes < budget)
        if not active.any():
            return *state, error, passes
        D = (p > 0).to(p.dtype) if sparse else p
        plain, foreseen = _directions(D, u, v, sums, p.sum(1), tight, (LIFT * error).clamp_min(LEAST_LIFT))
        foreseen = torch.where(column(((sums - 1) * foreseen).sum(-1) > 0), foreseen, plain)
        direction = torch.where(column(active), foreseen, 0.0)
        slope = ((sums - 1) * direction).sum(-1)
        step, low, high = torch.ones_like(slope), torch.zeros_like(slope), torch.zeros_like(slope)
        slope_low, slope_high = -slope, torch.zeros_like(slope)
        searching = active.clone()
        for _ in range(SHORTENINGS):
            trial = u + column(step) * direction
            trial = torch.where(tight[0], trial, trial.clamp_min(0))
            state = solved(trial)
            passes = passes + searching.to(passes.dtype)
            end = torch.where(tight[0] | (trial > 0), (1 - state[3]) * direction, 0.0).sum(-1)
            far = searching & ((end > STEEP * slope) | (state[4] > value + ROUNDING * value.abs()))
            near = searching & ~far & (high > 0) & (end < -STEEP * slope)
            high, slope_high = torch.where(far, step, high), torch.where(far, end.clamp_min(0), slope_high)
            low, slope_low = torch.where(near, step, low), torch.where(near, end, slope_low)
            searching = far | near
            if not searching.any():
                break
            share = (slope_low / (slope_low - slope_high)).nan_to_num(0.5).clamp(0.1, 0.5)
            step = torch.where(searching, low + (high - low) * share, step)
        # where rounding hides the way down, there is no more to do
        budget = torch.where(searching & (low == 0), 0.0, budget)


def _descend(
    table: Tensor, tight: tuple[Tensor, Tensor], sparse: bool, tol: float, max_iter: int
) -> tuple[Tensor, ...]:
    """u, v, parts, sums of rows, value, error, passes, and below which rounding hides an error."""
    finite = table > -math.inf
    low = torch.where(finite, table, 0.0).amin((1, 2))
    spread = torch.where(finite, table, 0.0).amax((1, 2)) - low
    rounding = ROUNDING * (spread + SPREAD)
    most = float(spread.max()) if len(spread) else 0.0
    stages = math.ceil(math.log(most / SPREAD, GROWTH)) if most > SPREAD else 0
    # Newton's steps are too short for a way from far off: the score nearest to 0 between the least and the greatest
    least, greatest = (table.masked_fill(~finite, end).flatten(1) for end in (math.inf, -math.inf))
    level = torch.minimum(least.amin(1).clamp_min(0.0), greatest.amax(1)).nan_to_num(posinf=0.0, neginf=0.0)
    u, passes = torch.where(tight[0], level[:, None], 0.0), torch.zeros_like(spread)
    scale = torch.ones_like(spread)
    for stage in range(stages + 1):
        last = stage == stages
        before, scale = scale, (SPREAD * GROWTH**stage / spread).clamp_max(1.0) if not last else torch.ones_like(spread)
        u = u * (scale / before)[:, None]
        loose = rounding.clamp_min(tol if last else STAGE_TOLERANCE)
        out = _stage(table * scale[:, None, None], u, tight, sparse, loose, max_iter - passes)
        u, passes = out[0], passes + out[-1]
    return *out[:-1], passes, rounding


# ---------------------------------------------------------------- which pairs can be used


def _usable(table: list[list[bool]]) -> list[list[bool]] | None:
    """Which pairs are in some matching of all rows, of n allowed rows and m ≥ n columns; None if there is none."""
    n, m = len(table), len(table[0])
    owner: list[int | None] = [None] * m

    def place(i: int, seen: set[int]) -> bool:
        for j in range(m):
            if table[i][j] and j not in seen:
                seen.add(j)
                rival = owner[j]
                if rival is None or place(rival, seen):
                    owner[j] = i
                    return True
        return False

    if not all(place(i, set()) for i in range(n)):
        return None
    # Node n stands for all columns that no row has.
    node = [n if i is None else i for i in owner]
    reach = [{node[j] for j in range(m) if table[i][j]} for i in range(n)]
    reach.append(set(range(n)) if m > n else set())
    for k in range(n + 1):
        reach = [ways | reach[k] if k in ways else ways for ways in reach]
    return [[node[j] in reach[i] and i in reach[node[j]] for j in range(m)] for i in range(n)]


def _forbid_unusable(table: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The table with −inf at pairs of no matching, and which instances have one."""
    feasible = torch.ones_like(rows, dtype=torch.bool)
    for b in range(len(table)):
        r, c = int(rows[b]), int(columns[b])
        inner = table[b, :r, :c]
        if min(r, c) == 0 or bool((inner > -math.inf).all()):
            continue
        turned = r > c
        usable = _usable(((inner.mT if turned else inner) > -math.inf).tolist())
        if usable is None:
            feasible[b] = False
            continue
        keep = torch.tensor(usable, device=table.device)
        table[b, :r, :c] = inner.masked_fill(~(keep.mT if turned else keep), -math.inf)
    return table, feasible


# ---------------------------------------------------------------- the linear system


def _solve_sums(D: Tensor, held: Tensor, held_columns: Tensor, right: Tensor, right_columns: Tensor) -> Tensor:
    """a ⊕ b (B, N, M), such that D ∘ (a ⊕ b) has the given sums where they are held, and a, b are 0 elsewhere.

    Columns are eliminated first, then rows from the last to the first; numbers are only ever added, never subtracted.
    """
    lines = D.sum(1)
    share = torch.where(held_columns & (lines > 0), 1 / lines, 0.0)
    b = right_columns * share
    w = (D * share[:, None]) @ D.mT
    ground = (D * (share == 0)[:, None]).sum(2) + (w * ~held[:, None]).sum(2)
    w = torch.where(held[:, :, None] & held[:, None, :], w, 0.0)
    ground, a = torch.where(held, ground, 0.0), torch.where(held, right - (D * b[:, None]).sum(2), 0.0)
    least = NO_PIVOT * D.sum(2)
    pivot = torch.empty_like(a)
    for k in range(D.shape[1] - 1, -1, -1):
        row = w[:, k, :k]
        whole = ground[:, k] + row.sum(-1)
        # a component without ground: its last row stays at 0
        pivot[:, k] = torch.where(whole > least[:, k], whole, math.inf)
        part = row / pivot[:, k, None]
        ground[:, :k] += part * ground[:, k, None]
        a[:, :k] += part * a[:, k, None]
        w[:, :k, :k] += part[:, :, None] * row[:, None]
    for k in range(D.shape[1]):
        a[:, k] = (a[:, k] + (w[:, k, :k] * a[:, :k]).sum(-1)) / pivot[:, k]
    b = torch.where(share > 0, b - (D * a[:, :, None]).sum(1) * share, 0.0)
    return a[:, :, None] + b[:, None]


def _polish(p: Tensor, held: Tensor, held_columns: Tensor, rounding: Tensor) -> Tensor:
    """The exact projection, once its support is known; what is as small as rounding leaves the support."""
    for polishing in range(POLISHINGS):
        inside = p > rounding[:, None, None]
        if polishing >= 2 and torch.equal(inside, p != 0):
            break
        p = torch.where(inside, p, 0.0)
        shift = _solve_sums(inside.to(p.dtype), held, held_columns, 1 - p.sum(2), 1 - p.sum(1))
        p = torch.where(inside, p + shift, 0.0)
    return torch.where(p > rounding[:, None, None], p, 0.0)


# ---------------------------------------------------------------- the questions


def _points(
    x: Tensor, rows: Tensor, columns: Tensor, partial: bool, sparse: bool, temperature: float, tol: float, max_iter: int
) -> tuple[Tensor, ...]:
    """Parts, value, error, passes, and whether that is converged."""
    in_rows, in_columns = _inside(x, rows, columns)
    inner = in_rows[:, :, None] & in_columns[:, None, :]
    table = torch.where(inner, x.double(), -math.inf) / temperature
    sound = (table < math.inf).flatten(1).all(-1)
    tight = _tight(x, rows, columns, partial)
    feasible = torch.ones_like(sound)
    if not partial:
        table, feasible = _forbid_unusable(table, rows, columns)
    solvable = sound & feasible
    table = torch.where(inner & ~solvable[:, None, None], 0.0, table)
    if 0 in x.shape:
        zero = x.new_zeros(len(x), dtype=torch.float64)
        return table.new_zeros(x.shape), zero, zero, zero, zero == 0
    u, v, p, _, value, error, passes, rounding = _descend(table, tight, sparse, tol, max_iter)
    if sparse:
        p = _polish(p, tight[0] | (u > 0), tight[1] | (v > 0), rounding)
    converged = (error <= rounding.clamp_min(tol)) & sound
    value = torch.where(feasible, temperature * value, -math.inf).masked_fill(~sound, math.nan)
    error = torch.where(feasible, error, 0.0).masked_fill(~sound, math.nan)
    p = torch.where(feasible[:, None, None], p, 0.0).masked_fill(inner & ~sound[:, None, None], math.nan)
    return p, value, error, torch.where(solvable, passes, 0.0), converged


def _held(parts: Tensor, rows: Tensor, columns: Tensor, partial: bool, tol: float = 0.0) -> tuple[Tensor, Tensor]:
    near = max(UNITS_FROM_ONE * torch.finfo(parts.dtype).eps, TOLERANCES_FROM_ONE * tol)
    tight = _tight(parts, rows, columns, partial)
    return tight[0] | (parts.double().sum(2) > 1 - near), tight[1] | (parts.double().sum(1) > 1 - near)


def project(x: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    """argmin over relaxed matchings of ½‖μ − x‖²: (B, N, M), exactly 0 outside its support."""
    return _points(x, rows, columns, partial, True, 1.0, 0.0, MOST_PASSES)[0].to(x.dtype)


def project_jvp(parts: Tensor, tangent: Tensor, *, rows: Tensor, columns: Tensor, partial: bool) -> Tensor:
    """D ∘ (t − a ⊕ b), with D the support: the tangent, projected onto the directions of the face: (B, N, M)."""
    D, t = (parts > 0).double(), tangent.double()
    inside = torch.where(parts > 0, t, 0.0)
    broken = parts.isnan().flatten(1).any(-1)
    moved = inside - D * _solve_sums(D, *_held(parts, rows, columns, partial), inside.sum(2), inside.sum(1))
    in_rows, in_columns = _inside(parts, rows, columns)
    inner = in_rows[:, :, None] & in_columns[:, None, :]
    return moved.masked_fill(inner & broken[:, None, None], math.nan).to(tangent.dtype)


@returns("parts", "value", "value", "value:int32", "value:bool")
def sinkhorn(
    x: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, temperature: float, tol: float, max_iter: int
) -> tuple[Tensor, ...]:
    """argmax over relaxed matchings of ⟨x, μ⟩ − temperature Σ μ (log μ − 1): (B, N, M), and its value: (B,).

    Then the largest violation of a sum, how many times the lines were solved, and whether that is converged: (B,).
    """
    p, value, error, passes, converged = _points(x, rows, columns, partial, False, temperature, tol, max_iter)
    return p.to(x.dtype), value.to(x.dtype), error.to(x.dtype), passes.int(), converged


@returns("parts")
def potentials(parts: Tensor, x: Tensor, *, rows: Tensor, columns: Tensor, partial: bool, tol: float) -> Tensor:
    """K x = a ⊕ b, such that μ ∘ (a ⊕ b) has the sums of x where those of μ are held at 1: (B, N, M)."""
    sound = (~parts.isnan()).flatten(1).all(-1)[:, None, None]
    D = torch.where(sound, parts.double(), 0.0)
    in_rows, in_columns = _inside(parts, rows, columns)
    inner = in_rows[:, :, None] & in_columns[:, None, :]
    right = torch.where(inner, x.double(), 0.0)
    out = _solve_sums(D, *_held(parts, rows, columns, partial, tol), right.sum(2), right.sum(1))
    return torch.where(inner, torch.where(sound, out, math.nan), 0.0).to(x.dtype)


def examples(x: Tensor) -> Any:
    """Calls of all functions of this file."""
    scores, size = x.new_zeros(2, 3, 3), torch.full((2,), 3, device=x.device)
    fields = {"rows": size, "columns": size, "partial": False}
    yield "project", (scores,), fields
    yield "project_jvp", (scores, scores), fields
    yield "sinkhorn", (scores,), {**fields, "temperature": 1.0, "tol": 1e-9, "max_iter": 100}
    yield "potentials", (scores, scores), {**fields, "tol": 1e-9}

"""The proximal maps in plain torch: slow but correct, on any device. Derivations: README.md in this folder.

Every function takes rows flattened to (B, n). An entry of −inf is removed: its neighbours become neighbours, it stays
−inf and belongs to no group. A row that holds NaN or +inf, or has a strength that is not ≥ 0, is NaN throughout.
All is computed in float64, so that which entries fuse does not depend on the dtype.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from structmax.contract import returns

# Where rounding cannot tell whether two values meet, they meet: below this fraction of a row's size, a gap is none.
SLACK = 2.0**-43
# Entries of the (rows, n, n) tables that `_pool` may hold at once.
TABLE_ENTRIES = 1 << 24

# A few operators of torch: on a GPU they are faster than copies to the host and back.
ON_DEVICE = ("group_mean",)


def _column(lam: float | Tensor, x: Tensor) -> Tensor:
    return torch.as_tensor(lam, dtype=torch.float64, device=x.device).expand(len(x))[:, None]


def _block_means(z: Tensor, blocks: Tensor) -> Tensor:
    """Mean of each entry's block, at every entry: (B, n)."""
    # One number more than entries: the block of those that belong to none.
    zero = z.new_zeros(len(z), z.shape[-1] + 1)
    size = zero.scatter_add(-1, blocks, torch.ones_like(z)).gather(-1, blocks)
    # Measured from the largest entry of the block, equal entries have exactly their own value as mean.
    origin = zero.scatter_reduce(-1, blocks, z, "amax", include_self=False).gather(-1, blocks)
    return origin + zero.scatter_add(-1, blocks, z - origin).gather(-1, blocks) / size


def _blocks(cut: Tensor) -> Tensor:
    """Number the blocks of a row 0, 1, 2, … from `cut` (B, n−1): does a block end between i and i + 1?"""
    return torch.nn.functional.pad(cut.long(), (1, 0)).cumsum(-1)


def _restore(x: Tensor, order: Tensor, y: Tensor, groups: Tensor, sound: Tensor) -> tuple[Tensor, Tensor]:
    """Undo `order`, mark removed entries and rows that are not sound."""
    kept = x > -math.inf
    y = torch.where(kept, torch.empty_like(y).scatter(-1, order, y), -math.inf)
    groups = torch.where(kept, torch.empty_like(groups).scatter(-1, order, groups), -1)
    y, groups = torch.where(sound, y, math.nan), torch.where(sound, groups, 0)
    return y.to(x.dtype), groups.to(torch.int32)


@returns("parts", "parts:int32")
def prox_tv(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """y = argmin ½‖y − x‖² + λ Σ|yᵢ₊₁ − yᵢ|: (B, n), and the number of the fused run of each entry: (B, n) int32."""
    return _tv(x, _column(lam, x), shifted=False)


@returns("parts", "parts:int32")
def prox_tv_shifted(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """What `sparsemax` turns into the fusedmax: `prox_tv` of the scores less their maximum, none below −1 − 4λ: (B, n).

    A constant changes nothing on the simplex, and neither does how far below a score without probability lies; so
    neither large scores nor a mask of −1e30 cost the others their digits.
    """
    return _tv(x, _column(lam, x), shifted=True)


def _tv(x: Tensor, lam: Tensor, shifted: bool) -> tuple[Tensor, Tensor]:
    """Follows the solution as the strength grows from 0 to λ: runs only ever merge, the earliest first."""
    sound = (x < math.inf).all(-1, keepdim=True) & (lam >= 0)
    kept = (x > -math.inf) & sound
    # Removed entries go to the end, each a run of its own.
    order = (~kept).long().argsort(dim=-1, stable=True)
    z = torch.where(kept, x.double(), 0.0)
    high = torch.where(kept, z, -math.inf).amax(-1, keepdim=True)
    if shifted:
        z = torch.where(kept, (z - high).maximum(-1 - 4 * lam), 0.0)
        high = torch.where(high > -math.inf, 0.0, high)
    slack = SLACK * (high - torch.where(kept, z, math.inf).amin(-1, keepdim=True)).clamp_min(0)
    z = z.gather(-1, order)
    pair = kept.gather(-1, order)[:, 1:]
    step = torch.where(pair, z.diff(dim=-1), 0.0)
    rise = torch.where(step.abs() > slack, step.sign(), 0.0)
    cut = (rise != 0) | ~pair | (lam == 0)
    while True:
        runs = _blocks(cut)
        zero = torch.zeros_like(z)
        size = zero.scatter_add(-1, runs, torch.ones_like(z)).gather(-1, runs)
        total = zero.scatter_add(-1, runs, z).gather(-1, runs)
        # A run is pulled towards its neighbours: y = (total + λ pull) / size.
        at_cut = torch.where(cut, rise, 0.0)
        pull = torch.nn.functional.pad(at_cut, (0, 1)) - torch.nn.functional.pad(at_cut, (1, 0))
        pull = zero.scatter_add(-1, runs, pull).gather(-1, runs)
        # Each gap is linear in λ; times both sizes, whole numbers stay whole.
        left, right = slice(None, -1), slice(1, None)
        gap = at_cut * (total[:, right] * size[:, left] - total[:, left] * size[:, right])
        speed = at_cut * (pull[:, left] * size[:, right] - pull[:, right] * size[:, left])
        closes = torch.where(speed > 0, gap / torch.where(speed > 0, speed, 1.0), math.inf)
        earliest = torch.nn.functional.pad(closes, (0, 1), value=math.inf).amin(-1, keepdim=True)
        closing = (lam > 0) & (speed > 0) & (closes <= earliest + slack) & (closes <= lam + slack)
        if not closing.any():
            break
        cut = cut & ~closing
    y = _block_means(z, runs) + torch.where(pull == 0, 0.0, lam * pull / size)
    return _restore(x, order, y, runs, sound)


def _pool(z: Tensor, weights: Tensor, kept: Tensor, slack: Tensor) -> Tensor:
    """Blocks of the non-increasing sequence nearest to z = sorted magnitudes − weights, kept first: `cut` (B, n−1).

    A block ends after k if and only if every interval that ends at k has a greater mean than every interval that
    starts at k + 1. Where all weights of two such intervals are equal, z descends as the magnitudes do: there they are
    never pooled, though their means be equal.
    """
    n = z.shape[-1]
    rank = torch.arange(n, device=z.device)
    before = rank[None, :] <= rank[:-1, None]
    cuts = []
    chunk = max(1, TABLE_ENTRIES // (n * n))
    for rows, w, there, s in zip(*(part.split(chunk) for part in (z, weights, kept, slack)), strict=True):
        # (rows, n−1, n): entry j as seen from k; the means of the intervals from j to k, and from k + 1 to j
        seen = rows[:, None, :] - rows[:, :-1, None]
        ending = torch.where(before, seen, 0.0).flip(-1).cumsum(-1).flip(-1) / (rank[:-1, None] + 1 - rank).clamp_min(1)
        starting = torch.where(before, 0.0, seen).cumsum(-1) / (rank - rank[:-1, None]).clamp_min(1)
        ending = torch.where(before, ending, math.inf)
        starting = torch.where(before | ~there[:, None, :], -math.inf, starting)
        heavier, lighter = w[:, None, :] > w[:, 1:, None], w[:, None, :] < w[:, :-1, None]
        above = torch.where(heavier, ending, math.inf).amin(-1) - s > starting.amax(-1)
        below = ending.amin(-1) - s > torch.where(lighter, starting, -math.inf).amax(-1)
        cuts.append(above & below)
    return torch.cat(cuts)


@returns("parts", "parts:int32")
def prox_owl(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """y = argmin ½‖y − x‖² + Σ wᵢ |y|₍ᵢ₎ for w₁ ≥ w₂ ≥ … ≥ 0, (n,) or (B, n): y (B, n), and groups (B, n) int32.

    With m kept entries the first m weights count. Entries whose magnitudes are pooled share a group, numbered from
    the largest magnitude down; entries clipped to zero have group −1. An entry of weight zero is never clipped.
    """
    weights = weights.double().expand(x.shape)
    kept = x > -math.inf
    # Removed entries sort last.
    magnitude, order = torch.where(kept, x.double().abs(), -1.0).sort(dim=-1, descending=True, stable=True)
    ranked = kept.gather(-1, order)
    z = magnitude - weights
    sound = ((x < math.inf) & ~(ranked & z.isnan())).all(-1, keepdim=True)
    slack = SLACK * torch.where(sound, magnitude[:, :1], 0.0).clamp_min(0)
    z = torch.where(ranked & sound, z, 0.0)
    blocks = _blocks(_pool(z, weights, ranked, slack))
    mean = _block_means(z, blocks)
    heaviest = torch.zeros_like(z).scatter_reduce(-1, blocks, weights, "amax", include_self=False).gather(-1, blocks)
    clipped = (mean <= slack) & (heaviest > 0)
    groups = torch.where(clipped, -1, blocks)
    y, groups = _restore(x, order, torch.where(clipped, 0.0, mean), groups, sound)
    return torch.where(x < 0, torch.where(kept, -y, y), y), groups


@returns("parts", "parts:int32")
def prox_oscar(x: Tensor, lam: float | Tensor) -> tuple[Tensor, Tensor]:
    """What `sparsemax` turns into the oscarmax: argmin ½‖y − x‖² + λ Σ_{i<j} max(yᵢ, yⱼ), up to a constant: (B, n).

    On the simplex entries are their own magnitudes, so there are no absolute values here, and a constant changes
    nothing: the greatest score becomes 0. An entry more than 1 + λ (m − 1) below the greatest of m has no probability
    and is removed. Clusters share a group, numbered from the greatest down: (B, n) int32.
    """
    lam = _column(lam, x)
    sound = (x < math.inf).all(-1, keepdim=True) & (lam >= 0)
    z = torch.where(sound, x.double(), 0.0)
    peak = z.amax(-1, keepdim=True)
    present = (z > -math.inf).sum(-1, keepdim=True)
    z = z - torch.where(present > 0, peak, 0.0)
    kept = z > -1 - lam * (present - 1)
    sorted_z, order = torch.where(kept, z, -math.inf).sort(dim=-1, descending=True, stable=True)
    ranked = kept.gather(-1, order)
    rank = torch.arange(x.shape[-1], device=x.device)
    raised = torch.where(ranked, sorted_z + lam * rank, 0.0)
    extent = -torch.where(ranked, sorted_z, 0.0).amin(-1, keepdim=True)
    slack = SLACK * (extent + lam * kept.sum(-1, keepdim=True))
    blocks = _blocks(_pool(raised, -lam * rank, ranked, slack))
    mean = _block_means(raised, blocks)
    return _restore(torch.where(kept | ~sound, x, -math.inf), order, mean, blocks, sound)


@returns("parts:int32")
def isotonic_groups(x: Tensor, weights: Tensor, scale: float, entropic: bool) -> Tensor:
    """The blocks of the projection of scale · x onto the permutahedron of the weights: (B, n) int32, from the left.

    Neighbouring blocks are pooled while the right one has the greater level: the mean of scale · x − weights, or, if
    `entropic`, log Σ exp(scale · x) − log Σ exp(weights).
    """
    groups = torch.empty_like(x, dtype=torch.int32)
    pairs = torch.stack([scale * x.double(), weights.double().expand_as(x)], -1)
    for out, row in zip(groups, pairs, strict=True):
        blocks: list[Tensor] = []
        for entry in row.split(1):
            block = entry
            while blocks and _level(blocks[-1], entropic) < _level(block, entropic):
                block = torch.cat([blocks.pop(), block])
            blocks.append(block)
        numbers = [number for number, block in enumerate(blocks) for _ in block]
        out.copy_(torch.tensor(numbers, dtype=torch.int32))
    return groups


def _level(block: Tensor, entropic: bool) -> float:
    """Of entries (size, 2): what is projected, and the weights."""
    high, low = (block.logsumexp(0) if entropic else block.mean(0)).tolist()
    return high - low


@returns("parts")
def group_mean(v: Tensor, groups: Tensor, signs: Tensor | None = None) -> Tensor:
    """sᵢ · mean of sⱼ vⱼ over the group of i, 0 outside every group: (B, n). Symmetric: pullback and pushforward.

    s is +1 for total variation (`signs` None), the sign of y for OWL (`signs` = y).
    """
    s = torch.ones_like(v, dtype=torch.float64)
    if signs is not None:
        s = torch.where(signs < 0, -1.0, torch.where(signs >= 0, 1.0, signs.double()))
    inside = groups >= 0
    mean = _block_means(s * v.double(), torch.where(inside, groups, v.shape[-1]).long())
    return torch.where(inside, s * mean, 0.0).to(v.dtype)


def examples(x: Tensor) -> Iterator[tuple[str, tuple[Tensor, ...], dict[str, Any]]]:
    """Calls that between them reach every compiled variant."""
    yield "prox_tv", (x,), {"lam": 1.0}
    yield "prox_tv_shifted", (x,), {"lam": 1.0}
    yield "prox_oscar", (x,), {"lam": 1.0}
    yield "prox_owl", (x,), {"weights": torch.zeros_like(x)}
    groups = torch.zeros_like(x, dtype=torch.int32)
    yield "group_mean", (x, groups), {}
    yield "group_mean", (x, groups), {"signs": x}
    yield "isotonic_groups", (x,), {"weights": torch.zeros_like(x), "scale": 1.0, "entropic": False}

"""The simplex in Triton: probabilities, losses and their gradients on CUDA. Derivations: ../README.md.

Short rows are solved in registers, many to a program. A long row is streamed once, and each lane of its program keeps
its `KEPT` largest scores. Those are solved as if they were the row: where the smallest kept score of every lane has
probability 0, so has everything dropped, and the solution is the row's own; otherwise Newton's method goes on from it
over the whole row. The tile's mathematics is in tile.py.

`alpha` is a number or a (B,) tensor; which of its rows are above 2 is known on the device alone. Those are solved by
bisection, which streams a long row once for each halving: steep.py.
"""

import functools

import torch
from torch import Tensor

from structmax.numerics.kernel_triton import launch
from structmax.structures.simplex.kernel_triton.backward import gradient, pull_rows, pull_streamed
from structmax.structures.simplex.kernel_triton.forward import solve_rows, solve_streamed
from structmax.structures.simplex.kernel_triton.heads import attend, list_live, pull_keys, pull_queries
from structmax.structures.simplex.kernel_triton.layer import layer_loss as layer_loss
from structmax.structures.simplex.kernel_triton.layer import layer_loss_pullback as layer_loss_pullback
from structmax.structures.simplex.kernel_triton.small import lose
from structmax.structures.simplex.kernel_triton.sums import add_up, sum_streamed
from structmax.structures.simplex.kernel_triton.supports import list_streamed

# These read and write half precision, and compute in float32.
READS_HALF = (
    "entmax",
    "entmax_pullback",
    "entmax_value",
    "entmax_gradient",
    "entmax_total",
    "entmax_total_gradient",
    "entmax_part_gradient",
    "entmax_sums",
    "entmax_support",
    "log_partition",
    "marginals",
    "marginals_jvp",
    "project",
    "project_jvp",
    "attention",
    "attention_pullback",
)
KINDS = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}
# Longest row that is kept in registers where it could as well be streamed.
SHORT = 4096
# Most rows whose values one program adds up.
FEW = 1 << 17
# Most numbers of a batch that one program solves, as powers of two.
SMALL = 1 << 14


def _family(alpha: float | Tensor) -> tuple[float, str, bool, bool]:
    """α − 1, the kind of kernel, whether an α above 2 is possible, and whether there is one α per row."""
    if isinstance(alpha, Tensor):
        return 0.0, "general", True, True
    return alpha - 1.0, KINDS.get(alpha, "general"), alpha > 2, False


@functools.lru_cache(maxsize=1000)
def _tile(n: int, per_warp: int) -> tuple[int, int, int]:
    """ROWS, BLOCK and warps: short rows share a warp, long ones take several."""
    block = 1 << (n - 1).bit_length()
    return max(1, per_warp // block), block, min(32, max(1, block // per_warp))


def _solve(
    x: Tensor, alpha: float | Tensor, target: Tensor | None, ignored: int, out: Tensor, state: Tensor | None
) -> None:
    """Probabilities into `out`; or, given `state`, values into `out` and states into `state`."""
    B, n = x.shape
    if out.numel() == 0:
        return
    e, kind, steep_possible, per_row = _family(alpha)
    double = x.dtype == torch.float64
    # The binary digits that Newton's method has found at least, before its last step.
    output = (state is not None, target is not None, double, 40 if double else 20)
    halvings = 100 if double else 60
    if n <= SHORT:
        # A power takes more registers than a square: fewer numbers for each warp leave room for more of them.
        per_warp = (128 if n <= 128 else 256) if kind == "general" else 512 if n <= 2048 else 1024
        rows, block, warps = _tile(n, per_warp)
        arguments = x, alpha if per_row else None, target, out, state, ignored, n, B, e
        constants = kind, steep_possible, per_row, *output, halvings, rows, block
        launch(solve_rows, (-(-B // rows),), arguments, constants, warps)
    else:
        lanes = 1024 if n > 16384 else 512
        arguments = x, alpha if per_row else None, target, out, state, ignored, n, e
        launch(solve_streamed, (B,), arguments, (kind, steep_possible, per_row, *output, halvings, lanes, 4))


def entmax(x: Tensor, alpha: float | Tensor) -> Tensor:
    """p = argmax over the simplex of ⟨p, x⟩ − Ω_α(p): (B, n)."""
    p = torch.empty_like(x)
    _solve(x, alpha, None, 0, p, None)
    return p


def entmax_pullback(p: Tensor, v: Tensor, alpha: float | Tensor) -> Tensor:
    """J v with J = diag(s) − s sᵀ / Σs and s = p^(2−α) on the support: (B, n). Off the support v has no say."""
    B, n = p.shape
    out = torch.empty_like(p)
    if out.numel() == 0:
        return out
    e, kind, steep_possible, per_row = _family(alpha)
    double = p.dtype == torch.float64
    if n <= SHORT:
        rows, block, warps = _tile(n, 256 if steep_possible else 512)
        arguments = p, v, alpha if per_row else None, out, n, B, e
        launch(pull_rows, (-(-B // rows),), arguments, (kind, steep_possible, per_row, double, rows, block), warps)
    else:
        lanes = 4096 if n > 16384 else 2048
        arguments = p, v, alpha if per_row else None, out, n, e
        launch(pull_streamed, (B,), arguments, (kind, steep_possible, per_row, double, lanes, 1), lanes // 256)
    return out


def _value(x: Tensor, target: Tensor | None, alpha: float | Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    value = torch.empty(x.shape[0], dtype=wide, device=x.device)
    state = value.new_empty((x.shape[0], 2))
    _solve(x, alpha, target, ignored, value, state)
    return value, state


def entmax_value(x: Tensor, target: Tensor, alpha: float | Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Ω*_α(x) − x[target] per row, as in reference.py: (B,), and the state of the row: (B, 2).

    The state is (max x, τ), or (smallest supported score, its probability) where α > 2; −inf leads it where nothing is
    feasible.
    """
    return _value(x, target, alpha, ignored)


def entmax_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor, ignored: int
) -> Tensor:
    """d_value · (p − onehot(target)), with p recovered from `state`; the pullback of `entmax_value`: (B, n)."""
    return _gradient(x, state, target, d_value, None, alpha, ignored)


def _gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, count: Tensor | None, alpha: float | Tensor, ignored: int
) -> Tensor:
    """For `d_value` of each row; or, given the count, of the mean that was divided by it."""
    B, n = x.shape
    out = torch.empty_like(x)
    if out.numel() == 0:
        return out
    e, kind, steep_possible, per_row = _family(alpha)
    rows, block, warps = _tile(min(n, SHORT), 512 if kind == "general" else 1024)
    tiles = -(-n // block)
    arguments = x, state, target, d_value, count, alpha if per_row else None, out, ignored, n, B, tiles, e
    constants = kind, steep_possible, per_row, count is not None, x.dtype == torch.float64, rows, block
    launch(gradient, (-(-B // rows) * tiles,), arguments, constants, warps)
    return out


def entmax_total(x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The values of all rows added up and divided by a number, as in reference.py: (), (B, 2), ()."""
    value, state = _value(x, target, alpha, ignored)
    B = len(value)
    if B > FEW:
        count = (target != ignored).sum().to(value.dtype) if mean else value.new_ones(())
        return value.sum() / count, state, count
    total, count = value.new_empty(()), value.new_empty(())
    block = min(4096, max(128, 1 << max(B - 1, 0).bit_length()))
    launch(add_up, (1,), (value, target, total, count, ignored, B), (mean, block), max(1, block // 256))
    return total, state, count


def entmax_total_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_total: Tensor, count: Tensor, alpha: float, ignored: int
) -> Tensor:
    """d_total / count · (p − onehot(target)); the pullback of `entmax_total`: (B, n)."""
    return _gradient(x, state, target, d_total, count, alpha, ignored)


def entmax_total_and_gradient(
    x: Tensor, target: Tensor, alpha: float, ignored: int, mean: bool
) -> tuple[Tensor, Tensor]:
    """`entmax_total` and its gradient, as in reference.py: () and (B, n)."""
    B, n = x.shape
    e, kind, steep_possible, _ = _family(alpha)
    rows, block = 1 << max(B - 1, 0).bit_length(), 1 << (n - 1).bit_length()
    if steep_possible or rows * block > SMALL:
        total, state, count = entmax_total(x, target, alpha, ignored, mean)
        return total, entmax_total_gradient(x, state, target, torch.ones_like(total), count, alpha, ignored)
    total, gradient, double = x.new_empty(()), torch.empty_like(x), x.dtype == torch.float64
    constants = kind, mean, double, 40 if double else 20, rows, block
    warps = min(32, max(1, rows * block // (256 if kind == "general" else 512)))
    launch(lose, (1,), (x, target, total, gradient, ignored, n, B, e), constants, warps)
    return total, gradient


def entmax_part_gradient(
    x: Tensor, state: Tensor, target: Tensor, d_value: Tensor, alpha: float | Tensor, ignored: int
) -> Tensor:
    """`entmax_gradient` of a part of each row: a probability is made of its own score and the state alone."""
    return entmax_gradient(x, state, target, d_value, alpha, ignored)


def entmax_sums(x: Tensor, state: Tensor, alpha: float) -> Tensor:
    """Σ p, Σ p^(2−α) and Σ p (x − origin) of a part of each row at the state's threshold: (B, 3), float64; α ≤ 2."""
    B, n = x.shape
    out = torch.zeros(B, 3, dtype=torch.float64, device=x.device)
    if x.numel() > 0:
        e, kind, _, _ = _family(alpha)
        launch(sum_streamed, (B,), (x, state.double(), out, n, e), (kind, x.dtype == torch.float64, 1024))
    return out


def entmax_support(x: Tensor, state: Tensor, alpha: float, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """The entries of a part of each row that have a probability, as in reference.py: (B,), (B, most) and (B, most)."""
    B, n = x.shape
    count = torch.zeros(B, dtype=torch.int32, device=x.device)
    index = count.new_empty(B, most)
    p = state.new_empty(B, most)
    if x.numel() > 0:
        e, kind, _, _ = _family(alpha)
        arguments = x, state, count, index, p, n, most, e
        launch(list_streamed, (B,), arguments, (kind, x.dtype == torch.float64, 2048), 8)
    return count, index, p


def log_partition(x: Tensor) -> Tensor:
    """log Σ exp x per row: (B,)."""
    return _value(x, None, 1.0, 0)[0]


def marginals(x: Tensor) -> Tensor:
    """softmax(x): (B, n)."""
    return entmax(x, 1.0)


def marginals_jvp(x: Tensor, tangent: Tensor) -> Tensor:
    """p (t − ⟨p, t⟩) with p = softmax(x): (B, n)."""
    return entmax_pullback(marginals(x), tangent, 1.0)


def project(x: Tensor) -> Tensor:
    """sparsemax(x): (B, n)."""
    return entmax(x, 2.0)


def project_jvp(point: Tensor, tangent: Tensor) -> Tensor:
    """The tangent less its mean over the support: (B, n)."""
    return entmax_pullback(point, tangent, 2.0)


# ---------------------------------------------------------------- attention


class _Heads:
    """What the kernels of attention share: sizes, strides of the mask, and constants."""

    def __init__(
        self, q: Tensor, k: Tensor, mask: Tensor | None, alpha: float | Tensor, scale: float, causal: bool,
        queries: int, keys: int,
    ) -> None:  # fmt: skip
        (B, H, Q, D), (_, shared, K, _) = q.shape, k.shape
        e, kind, _, per_head = _family(alpha)
        self.alpha = alpha if per_head else None
        # a mask of size 1 in a dimension is the same for all of it
        self.mask = None if mask is None else mask.expand(B, H, Q, K)
        strides = (0, 0, 0, 0) if self.mask is None else self.mask.stride()
        self.numbers = Q, K, H, H // shared, *strides, scale, e
        is_bool = mask is not None and mask.dtype == torch.bool
        masked = "none" if mask is None else "bools" if is_bool else "numbers"
        # three products of tensor cores for one of float32; half precision has one
        precision = "tf32x3" if q.dtype == torch.float32 else "tf32"
        self.kind = kind, per_head, bool(causal), masked, precision
        self.sizes = D, max(16, 1 << (D - 1).bit_length()), queries, keys
        self.tiles, self.blocks = -(-Q // queries), -(-K // keys)
        self.heads, self.shared = B * H, B * shared
        self.warps = 8 if D > (128 if q.dtype == torch.float32 else 64) else 4


def attention(
    q: Tensor, k: Tensor, v: Tensor, alpha: float | Tensor, scale: float, causal: bool, queries: int, keys: int,
    rows: int, tiles: int, mask: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As in reference.py, with the blocks that have weights in the last output."""
    heads = _Heads(q, k, mask, alpha, scale, causal, queries, keys)
    out, mean = torch.empty_like(q), torch.empty_like(q)
    peak, tau = (torch.empty(len(q), rows, dtype=torch.float64, device=q.device) for _ in range(2))
    live = torch.zeros(len(q), tiles, dtype=torch.uint8, device=q.device)
    listed = torch.empty(live.shape, dtype=torch.int32, device=q.device)
    arguments = q, k, v, heads.alpha, heads.mask, out, mean, peak, tau, live, listed, *heads.numbers
    launch(attend, (heads.tiles * heads.heads,), arguments, (*heads.kind, 20, *heads.sizes), heads.warps)
    return out, mean, peak, tau, live


def attention_pullback(
    q: Tensor, k: Tensor, v: Tensor, d_out: Tensor, mean: Tensor, peak: Tensor, tau: Tensor, live: Tensor,
    alpha: float | Tensor, scale: float, causal: bool, queries: int, keys: int, rows: int, mask: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As in reference.py."""
    heads = _Heads(q, k, mask, alpha, scale, causal, queries, keys)
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    d_alpha = torch.zeros(len(q), rows, dtype=torch.float32, device=q.device)
    of_rows = torch.empty(6, len(q), rows, dtype=torch.float32, device=q.device)
    given = q, k, v, heads.alpha, heads.mask, d_out
    of_tiles = _listed(live, heads, heads.tiles, heads.blocks, (heads.blocks, 1))
    arguments = *given, mean, peak, tau, *of_tiles, d_q, of_rows, d_alpha, *heads.numbers
    launch(pull_queries, (heads.tiles * heads.heads,), arguments, (*heads.kind, *heads.sizes), heads.warps)
    of_blocks = _listed(live, heads, heads.blocks, heads.tiles, (1, heads.blocks))
    arguments = *given, of_rows, *of_blocks, d_k, d_v, *heads.numbers
    launch(pull_keys, (heads.blocks * heads.shared,), arguments, (*heads.kind, *heads.sizes), heads.warps)
    return d_q, d_k, d_v, d_alpha


def _listed(live: Tensor, heads: _Heads, rows: int, length: int, strides: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Of each tile the blocks that have weights, or of each block the tiles: their numbers, and how many."""
    count = heads.heads * rows
    listed = torch.empty(count, max(length, 1), dtype=torch.int32, device=live.device)
    counts = torch.empty(count, dtype=torch.int32, device=live.device)
    arguments = live, listed, counts, length, rows, heads.tiles * heads.blocks, *strides
    launch(list_live, (count,), arguments, (1 << max(length - 1, 0).bit_length(),))
    return listed, counts

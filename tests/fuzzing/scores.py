"""Random scores: ordinary ones, and those that break things."""

import math

import numpy as np
import torch
from torch import Tensor

from fuzzing.structures import Shape

BASES = ("normal", "normal", "tiny", "large", "ties", "zeros", "offset")
MASKS = ("none", "none", "forbidden", "infeasible", "1e4", "1e9", "1e15", "1e30", "lowest", "mixture")


def values(rng: np.random.Generator, shape: Shape, base: str, dtype: torch.dtype) -> Tensor:
    """Scores before any mask, in float64."""
    x = rng.standard_normal(shape)
    if base == "tiny":
        x = x * 1e-8
    elif base == "large":
        x = x * 1e3
    elif base == "ties":
        x = rng.integers(-2, 3, shape)
    elif base == "zeros":
        x = np.zeros(shape)
    elif base == "offset":
        x = x + rng.choice([-1, 1]) * (1e3 if dtype == torch.float16 else 1e6)
    return torch.as_tensor(x, dtype=torch.float64)


def masked(rng: np.random.Generator, x: Tensor, mask: str, dtype: torch.dtype, rank: int) -> Tensor:
    """A share of the entries that differs between the instances is set to what people mask with."""
    if mask == "none":
        return x
    if mask == "infeasible":
        # most of them: the others of the batch must not suffer
        shape = (*x.shape[:rank], *(1,) * (x.dim() - rank))
        return x.masked_fill(torch.as_tensor(rng.random(shape) < 0.8), -math.inf)
    lowest = torch.finfo(dtype).min
    kinds = {"forbidden": -math.inf, "1e4": -1e4, "1e9": -1e9, "1e15": -1e15, "1e30": -1e30, "lowest": lowest}
    share = rng.choice(
        [0.05, 0.2, 0.5, 0.8, 1.0], (*x.shape[:rank], *(1,) * (x.dim() - rank)), p=[0.2, 0.3, 0.3, 0.15, 0.05]
    )
    where = torch.as_tensor(rng.random(tuple(x.shape)) < share)
    chosen = list(kinds.values()) if mask == "mixture" else [kinds[mask]]
    fill = torch.as_tensor(rng.choice(chosen, tuple(x.shape)), dtype=torch.float64)
    return torch.where(where, torch.where(fill.isinf(), fill, fill.clamp_min(lowest)), x)


def odd(rng: np.random.Generator, x: Tensor) -> Tensor:
    """The same values, at times in another layout."""
    kind = rng.random()
    if kind < 0.1 and x.dim() >= 2:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if kind < 0.2 and x.dim():
        return torch.stack([x, x], -1)[..., 0]
    return x


def junk(rng: np.random.Generator, x: Tensor, used: Tensor) -> Tensor:
    """Anything where no structure has the part."""
    top = torch.finfo(x.dtype).max
    fill = torch.as_tensor(rng.choice([math.nan, math.inf, -math.inf, 0.0, 1.0, 1e30], tuple(x.shape)))
    return torch.where(used, x, fill.clamp(-math.inf, top if rng.random() < 0.5 else math.inf).to(x.dtype))

"""What is right, by enumeration in extended precision, and how far off a kernel may be."""

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structmax.contract import AbstractStructure
from structmax.inference.question import flat

# Rounding errors of a kernel are counted in units of the last place of the largest sum it meets: a member has about a
# dozen parts, each of them enters inside and outside sums, and a logarithm or exponential adds its own.
UNITS = 64
# What holds at scores of size 1, as the laws have it.
BASE = {torch.float64: 1e-10, torch.float32: 2e-5}
_members: dict[Any, Tensor] = {}


def _key(one: AbstractStructure, shapes: Any) -> Any:
    fields = [(k, v.tolist() if isinstance(v, Tensor) else v) for k, v in vars(one).items() if not k.startswith("_")]
    return type(one).__name__, repr(fields), shapes


def members_of(structure: AbstractStructure, tensors: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """All structures of each instance as vectors (B, M, P), rows of −1 where an instance has fewer, and how many."""
    batch = tensors[0].shape[: tensors[0].dim() - structure.event_dim]
    every = []
    for index in itertools.product(*map(range, batch)):
        one = structure.at(index, batch)
        zeros = tuple(torch.zeros(t.shape[len(batch) :], dtype=torch.float64) for t in tensors)
        key = _key(one, tuple(t.shape for t in zeros))
        if key not in _members:
            if len(_members) > 2000:
                _members.clear()
            found = one.tensors(one.enumerate(one.parts(zeros)))
            _members[key] = torch.cat([m.flatten(1) if m.dim() > 1 else m.unsqueeze(-1) for m in found], -1)
        every.append(_members[key])
    # at least one row, so that maxima over members exist
    most = max([1, *map(len, every)])
    width = flat(tensors, structure).shape[-1]
    padded = [torch.nn.functional.pad(rows, (0, 0, 0, most - len(rows)), value=-1.0) for rows in every]
    counts = torch.tensor([len(rows) for rows in every], dtype=torch.int64)
    return torch.stack(padded) if padded else torch.zeros(0, most, width, dtype=torch.float64), counts


class Truth:
    """The members of each instance of a batch, their scores and probabilities.

    The score of a structure is the sum of its parts' scores in the dtype of the kernel, which is float32 for half
    precision. A sum that overflows to −inf makes the structure infeasible, as −inf does.
    """

    def __init__(
        self,
        structure: AbstractStructure,
        tensors: tuple[Tensor, ...],
        kernel: torch.dtype | None = None,
        narrow: tuple[Tensor, ...] | None = None,
    ) -> None:
        self.structure = structure
        self.kernel = kernel or (torch.float64 if tensors[0].dtype == torch.float64 else torch.float32)
        self.members, counts = members_of(structure, tensors)
        self.real = torch.arange(self.members.shape[1]) < counts.unsqueeze(-1)
        self.y = self.members.clamp_min(0.0)
        self.used = (self.y > 0).any(-2)
        # how often a member has a part at most, and any part
        self.often = self.y.amax(-2)
        self.most = torch.nn.functional.pad(self.often, (0, 1)).amax(-1)
        self.theta = flat(tensors, structure).reshape(len(self.members), self.members.shape[-1]).double()
        theta = torch.where(self.used, self.theta, 0.0)
        terms = _products(self.y.numpy(), theta.numpy()[:, None])
        exact = terms.sum(-1)
        info = torch.finfo(self.kernel)
        over = exact < -np.longdouble(info.max) * (1 + np.longdouble(info.eps) / 4)
        exact = np.where(over | ~self.real.numpy(), -np.inf, exact)
        self.forbidden = torch.as_tensor(np.isneginf(terms).any(-1)) | ~self.real
        # of those without −inf; 0 for none, as an entropy
        self.log_count = (~self.forbidden).sum(-1).clamp_min(1).double().log()
        self.score = torch.as_tensor(exact.astype(np.float64))
        self.feasible = self.score > -torch.inf
        self.some = self.feasible.any(-1)
        # Nothing but sums that overflow: a kernel that forms no such sum may answer with one of them.
        self.lost = ~self.some & ~self.forbidden.all(-1)
        size = np.where(np.isneginf(exact), 0, np.abs(terms).sum(-1)).astype(np.float64)
        self.unit = UNITS * info.eps
        if narrow is not None:
            # Sums that the structure itself forms, as of start and unary scores, are rounded to half precision where a
            # question is asked alone, and not where an answer is composed in float32: either is right.
            lost = (flat(narrow, structure).double().reshape(self.theta.shape) - self.theta).abs().nan_to_num()
            size = size + torch.einsum("bmp,bp->bm", self.y, lost).numpy() / self.unit
        self.size = torch.as_tensor(np.nan_to_num(size, posinf=info.max))
        best = exact.max(-1, keepdims=True, initial=-np.inf)
        lead = np.where(np.isneginf(exact), -np.inf, exact - np.where(np.isneginf(best), 0, best))
        self.lead = torch.as_tensor(lead.astype(np.float64))
        self.best = torch.as_tensor(best[:, 0].astype(np.float64))
        # Who takes part in sums of exponentials: all within 60 of the best, and within the rounding of the best.
        of_best = torch.where(self.lead == 0, self.size, 0.0).amax(-1, keepdim=True)
        takes_part = self.feasible & (self.lead > -60 - self.unit * of_best)
        self.scale = torch.where(takes_part, self.size, 0.0).amax(-1)
        self.delta = self.unit * self.scale
        self.base = BASE[self.kernel]
        # So large a mask on every structure that differences between them are lost.
        self.vague = self.delta > 0.05
        logits = self.lead - _logsumexp(self.lead).unsqueeze(-1)
        self.log_p = torch.where(self.feasible, logits, -torch.inf)
        self.p = self.log_p.exp()
        self.log_z = torch.where(self.some, self.best + _logsumexp(self.lead), -torch.inf)
        self.mean = self.average(self.p)

    def average(self, weights: Tensor) -> Tensor:
        """Σ w(y) y: (B, P)."""
        return torch.einsum("bm,bmp->bp", weights, self.y)

    def which(self, vectors: Tensor) -> Tensor:
        """The number of the member each vector (…, B, P) is, −1 for none: (…, B)."""
        equal = (vectors.unsqueeze(-2) == self.members).all(-1) & self.real
        return torch.where(equal.any(-1), equal.long().argmax(-1), -1)

    def of(self, values: Tensor, index: Tensor) -> Tensor:
        """`values` (B, M) of the members `index` (…, B), −inf for −1."""
        found = values.expand(*index.shape[:-1], *values.shape).gather(-1, index.clamp_min(0).unsqueeze(-1))
        return torch.where(index >= 0, found.squeeze(-1), -torch.inf)

    def outside_hull(self, point: Tensor, tolerance: Tensor) -> Tensor:
        """Whether a point (B, P) leaves the smallest box and the affine hull of the feasible members: (B,)."""
        feasible = self.feasible.unsqueeze(-1)
        low = torch.where(feasible, self.y, torch.inf).amin(-2)
        high = torch.where(feasible, self.y, -torch.inf).amax(-2)
        slack = tolerance.unsqueeze(-1)
        wrong = ((point < low - slack) | (point > high + slack)).any(-1)
        for b in (self.some & ~wrong).nonzero().flatten().tolist():
            rows = self.y[b][self.feasible[b]]
            directions = rows - rows[0]
            _, s, v = torch.linalg.svd(directions, full_matrices=False)
            v = v[s > 1e-9]
            rest = point[b] - rows[0]
            rest = rest - v.T @ (v @ rest)
            wrong[b] = bool((rest.abs() > 4 * tolerance[b]).any())
        return wrong & self.some


def _logsumexp(x: Tensor) -> Tensor:
    total = x.exp().sum(-1)
    return torch.where(total > 0, total.log(), 0.0)


def _products(y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """y θ with 0 · −inf = 0."""
    with np.errstate(invalid="ignore"):
        return np.where(y > 0, y.astype(np.longdouble) * theta, 0)

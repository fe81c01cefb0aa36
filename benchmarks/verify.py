"""What is wrong is not timed: value and gradient of a case against the reference in float64, on a few of its rows."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from benchmarks.cases import TASKS, Case

ROWS = 8
# Where the gradient jumps, the limits from both sides are right: scores a little larger and a little smaller find them.
NEIGHBOURS = (1.0, 1.0 - 1e-6, 1.0 + 1e-6)


@dataclass(frozen=True)
class Inputs:
    """Scores (B, n) that require a gradient, targets (B,), and the cotangent of probabilities (B, n)."""

    scores: Tensor
    target: Tensor
    cotangent: Tensor

    @staticmethod
    def of(case: Case, device: str) -> "Inputs":
        generator = torch.Generator(device).manual_seed(0)
        rows, n = case.shape
        scores, cotangent = (torch.randn(rows, n, device=device, generator=generator).to(case.dtype) for _ in range(2))
        target = torch.randint(n, (rows,), device=device, generator=generator)
        return Inputs(scores.requires_grad_(), target, cotangent)

    def hostile(self) -> "Inputs":
        """The first rows, of which one has forbidden entries and one is all ties."""
        scores, target = self.scores.detach()[:ROWS].clone(), self.target[:ROWS].clone()
        scores[1:2, 1::2] = -inf
        target[1:2] = 0
        scores[2:3] = 0
        return Inputs(scores.requires_grad_(), target, self.cotangent[:ROWS])

    def widened(self, scale: float) -> "Inputs":
        scores = self.scores.detach().double() * scale
        return Inputs(scores.requires_grad_(), self.target, self.cotangent.double())

    def gradient(self, out: Tensor) -> Tensor:
        """The gradient of the scores, from the cotangent or, for a loss, from 1."""
        return torch.autograd.grad(out, self.scores, self.cotangent if out.dim() else None)[0]


def complaints(case: Case, device: str, inputs: Inputs) -> list[str]:
    """What differs from the reference, by name: empty if the case may be timed."""
    ours = inputs.hostile()
    try:
        value = case.ours(device)(ours.scores, ours.target)
        gradient = ours.gradient(value)
    except Exception as error:
        return [f"raises {type(error).__name__}: {error}"]
    references = [ours.widened(scale) for scale in NEIGHBOURS]
    values = [TASKS[case.task](each.scores, each.target, "reference") for each in references]
    gradients = [each.gradient(out) for each, out in zip(references, values, strict=True)]
    wide = torch.promote_types(case.dtype, torch.float32)
    # Half precision rounds twice, the probabilities and the result; in between a kernel computes widely.
    allowed = 64 * torch.finfo(wide).eps + (2 * torch.finfo(case.dtype).eps if case.dtype != wide else 0)
    errors = {"value": _error(value, values[:1]), "gradient of scores": _error(gradient, gradients)}
    return [
        f"{name} is off by {error:.1e} of the row's largest, {allowed:.1e} allowed"
        for name, error in errors.items()
        if not error <= allowed
    ]


def _error(ours: Tensor, references: list[Tensor]) -> float:
    """The worst row's error, relative to its largest entry, against the nearest reference; NaN where ours has NaN."""
    ours = torch.atleast_2d(ours.detach().double())
    errors = []
    for reference in references:
        reference = torch.atleast_2d(reference.detach())
        scale = reference.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny)
        errors.append((ours - reference).abs().amax(-1) / scale)
    return torch.stack(errors).amin(0).max().item()

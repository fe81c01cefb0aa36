"""What is wrong is not timed: value and gradient of a case against the reference in float64, on a few of its rows."""

import torch
from torch import Tensor

from benchmarks.cases import TASKS, Case, Inputs

ROWS = 8
# Where the gradient jumps, the limits from both sides are right: scores a little larger and a little smaller find them.
NEIGHBOURS = (1.0, 1.0 - 1e-6, 1.0 + 1e-6)


def complaints(case: Case, device: str, inputs: Inputs) -> list[str]:
    """What differs from the reference, by name: empty if the case may be timed."""
    ours = inputs.hostile(ROWS)
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
    errors = {
        "value": _error(value, values[:1], by_row=True),
        # A gradient is a difference, and a row in which it cancels still carries the rounding of its terms.
        "gradient of scores": _error(gradient, gradients, by_row=False),
    }
    return [
        f"{name} is off by {error:.1e} of the largest, {allowed:.1e} allowed"
        for name, error in errors.items()
        if not error <= allowed
    ]


def _error(ours: Tensor, references: list[Tensor], by_row: bool) -> float:
    """The worst row's error against the nearest reference, relative to its largest entry by row or over all rows.

    NaN where ours has NaN.
    """
    ours = torch.atleast_2d(ours.detach().double())
    errors = []
    for reference in references:
        reference = torch.atleast_2d(reference.detach())
        largest = reference.abs().amax(-1)
        errors.append((ours - reference).abs().amax(-1) / (largest if by_row else largest.max()))
    return torch.stack(errors).amin(0).max().item()

"""Weights of what a distribution keeps: how they are read, written and shown as ink."""

from __future__ import annotations

from typing import Any

# Sums of probabilities in single precision are this close to one, or closer.
ROUNDING = 1e-4


def read(weight: Any, what: str) -> float:
    """A weight in (0, 1], forgiven its rounding."""
    value = float(weight)
    if not 0 < value <= 1 + ROUNDING:
        raise ValueError(
            f"the weight of {what} should be above 0 and at most 1, but is {value:g}. "
            "Leave out what has weight 0; divide scores by their sum."
        )
    return 1.0 if value > 1 - ROUNDING else value


def number(weight: float | None) -> str:
    """A weight in two digits, `.35`; nothing for a whole one."""
    if weight is None or weight == 1:
        return ""
    return "<.01" if weight < 0.005 else ">.99" if weight >= 0.995 else f"{weight:.2f}"[1:]


def inked(weight: float | None, body: str) -> str:
    """Shapes as faint as their weight is small, never so faint that they are overlooked."""
    return body if weight is None else f'<g class="weighted" opacity="{0.3 + 0.7 * weight:.3f}">{body}</g>'

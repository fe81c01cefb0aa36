"""All members of a set, where there are not too many to be listed."""

import math

import torch
from torch import Tensor

from structmax import check
from structmax.backends import Refusal, answers
from structmax.contract import AbstractStructure
from structmax.questions.entropy import log_count


def members(structure: AbstractStructure, scores: tuple[Tensor, ...], instead: str) -> tuple[Tensor, ...]:
    """The part tensors of all M members of one instance, M first. Raises a Refusal if they would fill the memory."""
    log_size = log_most(structure, scores)
    parts = sum(t.numel() for t in scores)
    if log_size + math.log(max(parts, 1)) > math.log(check.MOST):
        digits, fraction = divmod(log_size / math.log(10), 1.0)
        raise Refusal(
            f"The members of {type(structure).__name__} should be few enough to be listed, at most {check.MOST:.1e} "
            f"numbers in all, but are up to {10**fraction:.1f}e{digits:.0f}, with {parts} parts each. {instead}"
        )
    return structure.tensors(structure.enumerate(structure.parts(tuple(t.detach() for t in scores))))


def log_most(structure: AbstractStructure, scores: tuple[Tensor, ...]) -> float:
    """The logarithm of the number of members, or an upper bound of it where they are not counted."""
    if answers(structure.room, "log_partition", scores[0].device.type):
        # Members are listed whatever their scores.
        every = structure.parts(tuple(torch.zeros_like(t) for t in scores))
        return float(log_count(every, structure))
    return structure.log_bound(scores)

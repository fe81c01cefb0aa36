"""Constraints of tagging schemes, which write chunks of a text as one label for each token."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structmax import check


class _Scheme(NamedTuple):
    """Which prefixes there are; which must come after one that leads, of the same type; which must be followed so."""

    prefixes: str
    follows: str
    leads: str
    open: str


SCHEMES = {
    "IOB1": _Scheme("IB", follows="B", leads="IB", open=""),
    "IOB2": _Scheme("IB", follows="I", leads="IB", open=""),
    "IOBES": _Scheme("IBES", follows="IE", leads="IB", open="IB"),
    "BILOU": _Scheme("IBLU", follows="IL", leads="IB", open="IB"),
}
# by the other names that they have
SCHEMES |= {"BIO": SCHEMES["IOB2"], "BIOES": SCHEMES["IOBES"]}


class TagConstraints(NamedTuple):
    """Scores of 0 for what a scheme allows and −inf for what it forbids, to be added to those of a LinearChain."""

    # (C, C)
    pairwise: Tensor
    # (C,)
    start: Tensor
    end: Tensor


def tag_constraints(labels: Sequence[str], scheme: str = "IOB2") -> TagConstraints:
    """What may follow what, come first and come last, in a scheme that tags chunks.

    `O` is outside of chunks. A chunk of type X is `B-X I-X I-X` in IOB2; in IOB1 it is `I-X I-X I-X`, with `B-X` first
    only where another chunk of type X goes before; in IOBES `B-X I-X E-X`, or `S-X` for a single token; and in BILOU
    `B-X I-X L-X`, or `U-X`.

    Args:
        labels: the C labels in the order of the scores, such as ["O", "B-PER", "I-PER"]; a prefix alone has type "".
        scheme: "IOB1", "IOB2" or "BIO", "IOBES" or "BIOES", or "BILOU".

    Returns:
        `pairwise` (C, C), `start` (C,) and `end` (C,): 0 where allowed, −inf where not.

    Examples:
        >>> import torch, structmax
        >>> constraints = structmax.tag_constraints(["O", "B-PER", "I-PER"])
        >>> constraints.pairwise
        tensor([[0., 0., -inf],
                [0., 0., 0.],
                [0., 0., 0.]])
        >>> scores = structmax.LinearChain.Parts(torch.zeros(4, 3), *constraints)
        >>> structmax.log_partition(scores, structmax.LinearChain()).exp()
        tensor(34.)

    Reference:
        Ramshaw and Marcus 1995, Text chunking using transformation-based learning.
    """
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError(f"`labels` should be a list of labels, such as ['O', 'B-X', 'I-X'], but is {labels!r}.")
    check.choice("scheme", scheme, tuple(SCHEMES))
    rules = SCHEMES[scheme]
    tags = [_split(label, scheme) for label in labels]

    def may_follow(before: tuple[str, str], after: tuple[str, str]) -> bool:
        joined = before[0] in rules.leads and after[0] in rules.follows and before[1] == after[1]
        return joined or not (before[0] in rules.open or after[0] in rules.follows)

    outside = "O", ""
    return TagConstraints(
        _scores([[may_follow(before, after) for after in tags] for before in tags]),
        _scores([may_follow(outside, after) for after in tags]),
        _scores([may_follow(before, outside) for before in tags]),
    )


def _split(label: str, scheme: str) -> tuple[str, str]:
    prefix, _, kind = label.partition("-")
    if label != "O" and (len(prefix) != 1 or prefix not in SCHEMES[scheme].prefixes):
        known = ", ".join(f"{prefix}-X" for prefix in SCHEMES[scheme].prefixes)
        raise ValueError(
            f"`labels` of {scheme} should be O or one of {known} with a type X, but {label!r} is among them. Other "
            f"schemes are {', '.join(name for name in SCHEMES if name != scheme)}."
        )
    return prefix, kind


def _scores(allowed: list[bool] | list[list[bool]]) -> Tensor:
    return torch.where(torch.tensor(allowed), 0.0, -math.inf)

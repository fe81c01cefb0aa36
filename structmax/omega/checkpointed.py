"""Ω in every maximum of a dynamic program, with less memory for the gradient."""

from dataclasses import dataclass
from typing import ClassVar

from structmax.omega.base import AbstractOmega
from structmax.omega.smooth import Smooth


@dataclass(frozen=True)
class Checkpointed(Smooth):
    """The value and the point of another Ω of a recursion, which is computed in blocks of which one is held at a time.

    The V nodes of a recursion, in their order, are cut into about √V blocks. At each cut only the values that later
    nodes use are kept; on the way back each block is computed a second time. A chain or an alignment uses the nodes
    just before alone: instead of numbers for each node and edge, those of about √V nodes and their edges are held. In a
    parse everything is used to the end; nothing is gained there, and it is computed as one block. The answers are those
    of the recursion without blocks, to the last bit by Numba. What both need stays in memory: the list of edges, scores
    and gradient, and here an integer for each node. Second derivatives hold all numbers. A structure's own kernels,
    such as those of `LinearChain`, are not used.

    Args:
        omega: `Entropy`, `LocalL2` or `LocalTsallis`.

    Examples:
        >>> import torch, structmax
        >>> x, entropy = torch.zeros(3, 3), structmax.omega.Entropy()
        >>> paths = structmax.MonotoneAlignment()
        >>> structmax.smoothed(x, paths, structmax.omega.Checkpointed(entropy)).exp().round()
        tensor(13.)

    Reference: Chen, Xu, Zhang & Guestrin (2016), Training deep nets with sublinear memory cost.
    """

    omega: AbstractOmega

    names: ClassVar[tuple[str, str, str]] = (  # type: ignore[misc]
        "smoothed_checkpointed",
        "smoothed_checkpointed_and_marginals",
        "smoothed_marginals_jvp",
    )
    walks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not getattr(self.omega, "walks", False) or isinstance(self.omega, Checkpointed):
            raise TypeError(
                f"`omega` should be one of a recursion, Entropy(), LocalL2() or LocalTsallis(), but is {self.omega!r}."
            )
        numbers = {"alpha": float(self.omega.alpha), "gamma": float(self.omega.temperature)}  # type: ignore[attr-defined]
        object.__setattr__(self, "numbers", numbers)

    @property
    def alpha(self) -> float:
        return self.numbers["alpha"]

    @property
    def temperature(self) -> float:
        return self.numbers["gamma"]

"""The simplex mappings as modules. `forward(scores, mask=None, lengths=None)` is the function of the same name."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from structmax import check
from structmax.estimators.gumbel import gumbel_entmax, gumbel_softmax, gumbel_sparsemax
from structmax.mappings.capped import budget, csoftmax, csparsemax
from structmax.mappings.entmax import entmax, entmax15, smoothed_max, softmax, sparsemax, topk_sparsemax
from structmax.mappings.normmax import normmax
from structmax.mappings.proximal import fusedmax, oscarmax, prox_owl, prox_tv


class Mapping(nn.Module):
    """Keeps a function's settings. A Parameter among them is trained, a tensor moves with the module."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = tuple(settings)
        for name, value in settings.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def forward(self, scores: Tensor, mask: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        settings = {name: getattr(self, name) for name in self.settings}
        return type(self).function(scores, **settings, mask=mask, lengths=lengths)

    def extra_repr(self) -> str:
        values = ((name, getattr(self, name)) for name in self.settings)
        return ", ".join(f"{n}={tuple(v.shape)}" if isinstance(v, Tensor) else f"{n}={v!r}" for n, v in values)


def named(name: str) -> Mapping:
    """The module of a mapping onto the simplex that needs no settings, by the name of its function."""
    modules: list[type[Mapping]] = [Softmax, Sparsemax, Entmax15, Entmax, Normmax, Fusedmax, Oscarmax]
    known: dict[str, Any] = {module.function.__name__: module for module in modules}
    if callable(name):
        raise TypeError(
            f"`mapping` should be a name or a module, but is {getattr(name, '__name__', name)} itself. "
            'Try mapping="entmax15", or mapping=Entmax15().'
        )
    check.choice("mapping", name, tuple(known))
    return known[name]()


class Softmax(Mapping):
    """`structmax.softmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Softmax(dim=0)(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """

    function = softmax

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Sparsemax(Mapping):
    """`structmax.sparsemax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Sparsemax()(torch.tensor([0.0, 2.0]))
        tensor([0., 1.])
    """

    function = sparsemax

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Entmax15(Mapping):
    """`structmax.entmax15` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Entmax15()(torch.tensor([0.0, 2.0]))
        tensor([0., 1.])
    """

    function = entmax15

    def __init__(self, dim: int = -1) -> None:
        super().__init__(dim=dim)


class Entmax(Mapping):
    """`structmax.entmax` as a module. An `alpha` that is a Parameter is trained: one for all, or one for each head.

    Below 1 no probability is 0. Alpha should stay above 0: on the CPU a call refuses it where it does not. To keep it
    between 1 and 2, train an a with alpha = 1 + sigmoid(a), and give that to `structmax.entmax`.

    Examples:
        >>> import torch, structmax
        >>> attention = structmax.nn.Entmax(alpha=torch.nn.Parameter(torch.full((8,), 1.5)))
        >>> attention(torch.zeros(2, 8, 5, 5)).sum(-1).shape
        torch.Size([2, 8, 5])
    """

    function = entmax

    def __init__(self, alpha: float | Tensor = 1.5, dim: int = -1) -> None:
        super().__init__(alpha=alpha, dim=dim)


class TopKSparsemax(Mapping):
    """`structmax.topk_sparsemax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.TopKSparsemax(k=2)(torch.zeros(4)).count_nonzero()
        tensor(2)
    """

    function = topk_sparsemax

    def __init__(self, k: int, dim: int = -1) -> None:
        super().__init__(k=k, dim=dim)


class Normmax(Mapping):
    """`structmax.normmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Normmax(alpha=2.0)(torch.zeros(2))
        tensor([0.5000, 0.5000])
    """

    function = normmax

    def __init__(self, alpha: float = 2.0, dim: int = -1) -> None:
        super().__init__(alpha=alpha, dim=dim)


class Budget(Mapping):
    """`structmax.budget` as a module. A `budget` that is a Parameter is trained.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Budget(budget=2)(torch.zeros(4))
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """

    function = budget

    def __init__(self, budget: float | Tensor = 2.0, dim: int = -1) -> None:
        super().__init__(budget=budget, dim=dim)


class Csparsemax(Mapping):
    """`structmax.csparsemax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Csparsemax(upper=0.6)(torch.tensor([0.0, 5.0]))
        tensor([0.4000, 0.6000])
    """

    function = csparsemax

    def __init__(self, lower: float | Tensor = 0.0, upper: float | Tensor = 1.0, dim: int = -1) -> None:
        super().__init__(lower=lower, upper=upper, dim=dim)


class Csoftmax(Mapping):
    """`structmax.csoftmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Csoftmax(upper=0.6)(torch.tensor([0.0, 5.0]))
        tensor([0.4000, 0.6000])
    """

    function = csoftmax

    def __init__(self, lower: float | Tensor = 0.0, upper: float | Tensor = 1.0, dim: int = -1) -> None:
        super().__init__(lower=lower, upper=upper, dim=dim)


class Fusedmax(Mapping):
    """`structmax.fusedmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Fusedmax(lam=1.0)(torch.tensor([1.0, 1.2, -3.0]))
        tensor([0.5000, 0.5000, 0.0000])
    """

    function = fusedmax

    def __init__(self, lam: float = 1.0, dim: int = -1) -> None:
        super().__init__(lam=lam, dim=dim)


class Oscarmax(Mapping):
    """`structmax.oscarmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.Oscarmax(lam=0.5)(torch.tensor([1.0, -3.0, 1.2]))
        tensor([0.5000, 0.0000, 0.5000])
    """

    function = oscarmax

    def __init__(self, lam: float = 1.0, dim: int = -1) -> None:
        super().__init__(lam=lam, dim=dim)


class ProxTV(Mapping):
    """`structmax.prox_tv` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.ProxTV(lam=1.0)(torch.tensor([0.0, 4.0]))
        tensor([1., 3.])
    """

    function = prox_tv

    def __init__(self, lam: float = 1.0, dim: int = -1) -> None:
        super().__init__(lam=lam, dim=dim)


class ProxOWL(Mapping):
    """`structmax.prox_owl` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.ProxOWL(torch.tensor([1.0, 1.0]))(torch.tensor([3.0, 0.5]))
        tensor([2., 0.])
    """

    function = prox_owl

    def __init__(self, weights: Tensor, dim: int = -1) -> None:
        super().__init__(weights=weights, dim=dim)


class SmoothedMax(Mapping):
    """`structmax.smoothed_max` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.SmoothedMax(alpha=2.0)(torch.tensor([0.0, 3.0]))
        tensor(3.)
    """

    function = smoothed_max

    def __init__(self, alpha: float | Tensor = 1.0, dim: int = -1) -> None:
        super().__init__(alpha=alpha, dim=dim)


class GumbelSoftmax(Mapping):
    """`structmax.gumbel_softmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.GumbelSoftmax(hard=True)(torch.zeros(4)).sum()
        tensor(1.)
    """

    function = gumbel_softmax

    def __init__(self, temperature: float = 1.0, hard: bool = False, dim: int = -1) -> None:
        super().__init__(temperature=temperature, hard=hard, dim=dim)


class GumbelSparsemax(Mapping):
    """`structmax.gumbel_sparsemax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.GumbelSparsemax(hard=True)(torch.zeros(4)).sum()
        tensor(1.)
    """

    function = gumbel_sparsemax

    def __init__(self, temperature: float = 1.0, hard: bool = False, dim: int = -1) -> None:
        super().__init__(temperature=temperature, hard=hard, dim=dim)


class GumbelEntmax(Mapping):
    """`structmax.gumbel_entmax` as a module.

    Examples:
        >>> import torch, structmax
        >>> structmax.nn.GumbelEntmax(alpha=1.5, hard=True)(torch.zeros(4)).sum()
        tensor(1.)
    """

    function = gumbel_entmax

    def __init__(
        self, alpha: float | Tensor = 1.5, temperature: float = 1.0, hard: bool = False, dim: int = -1
    ) -> None:
        super().__init__(alpha=alpha, temperature=temperature, hard=hard, dim=dim)

"""A draw's relaxed twin with a learned part: a control variate that is trained to leave little variance.

As in rebar.py, with any c in place of η f:

    g = (f(y) − c(μ(z'/t))) ∇ log p(y) + ∇ c(μ(z/t)) − ∇ c(μ(z'/t))

is unbiased whatever c is, so that c may be fitted to the draws themselves. E[g] does not depend on c: the gradient of
‖g‖² for the parameters of c is, on average, that of the variance.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structmax import check
from structmax.estimators.expectation import AbstractEstimator, Evaluations
from structmax.estimators.rebar import twins
from structmax.problem import Problem


@dataclass(frozen=True)
class Relax(AbstractEstimator):
    """The score function with a learned control variate: η f and a module, at two relaxed draws that belong to a draw.

    The same backward pass trains the module, to lower the variance of the scores' gradient; that adds 0 to values, and
    weighs all instances alike. With `weight=0.0` f is evaluated at structures only and may be a black box; otherwise it
    should be smooth inside conv(Y), twice differentiable for the module's sake. For `Simplex` and `Bits`.

    Args:
        control: from relaxed structures (2, batch, n) to (2, batch), or to that and a last dimension of 1; smooth.
        temperature: t > 0 of the relaxation.
        weight: η, how much of f's own relaxation is part of the control variate.

    Examples:
        >>> import torch, structmax
        >>> x, cost = torch.zeros(1000, 3, requires_grad=True), torch.tensor([3.0, 2.0, 1.0])
        >>> control = torch.nn.Linear(3, 1)
        >>> g = torch.Generator().manual_seed(0)
        >>> f = lambda z, _: (z @ cost) ** 2
        >>> result = structmax.expect(f, x, structmax.Simplex(), structmax.estimators.Relax(control), generator=g)
        >>> result.value.sum().backward()
        >>> x.grad.mean(0).sub(torch.tensor([1.4444, -0.2222, -1.2222])).abs().max() < 0.2
        tensor(True)
        >>> control.weight.grad is not None
        True

    Reference: Grathwohl, Choi, Wu, Roeder & Duvenaud 2018, Backpropagation through the void,
    https://arxiv.org/abs/1711.00123.
    """

    control: nn.Module
    temperature: float = 0.5
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.control, nn.Module):
            raise TypeError(f"`control` should be a torch.nn.Module, but is {self.control!r}. Try Rebar() without one.")
        check.positive("temperature", self.temperature)

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[str, ...]:
        return "argmax", "marginals", "marginals_jvp"

    def estimate(self, problem: Problem, f: Evaluations, generator: torch.Generator | None) -> Tensor:
        y, log_p, feasible, relaxed = twins(self, problem, self.temperature, generator)
        (scores,) = problem.scores
        (hard,) = f(problem, (y.unsqueeze(0),), feasible)
        if not (torch.is_grad_enabled() and scores.requires_grad):
            return hard
        own, other = self._guesses(problem, f, relaxed, feasible)
        # Nothing here but c, through its parameters, is differentiated once more.
        (score,) = torch.autograd.grad(log_p.sum(), scores, retain_graph=True)
        (path,) = torch.autograd.grad((own - other).sum(), scores, create_graph=True)
        gradient = (hard.detach() - other).unsqueeze(-1) * score + path
        value = hard + (gradient.detach() * _zero(scores)).sum(-1)
        return value + self._training(gradient) / max(1, value.numel())

    def _guesses(self, problem: Problem, f: Evaluations, relaxed: Tensor, feasible: Tensor) -> Tensor:
        """c at relaxed structures (2, B, n), 0 where nothing is feasible: (2, B)."""
        batch = (2, *problem.batch)
        found = self.control(relaxed.reshape(*batch, relaxed.shape[-1]))
        if found.shape not in (batch, (*batch, 1)):
            raise ValueError(
                f"The module of Relax() should return shape {tuple(batch)} for structures of shape "
                f"{(*batch, relaxed.shape[-1])}, but returned {tuple(found.shape)}."
            )
        learned = found.reshape(relaxed.shape[:-1]).masked_fill(~feasible, 0.0)
        if self.weight == 0.0:
            return learned
        return learned + self.weight * f(problem, (relaxed,), feasible.expand(2, -1))

    def _training(self, gradient: Tensor) -> Tensor:
        """0, with the gradient of Σ ‖g‖² for the module's parameters and for nothing else."""
        trained = [p for p in self.control.parameters() if p.requires_grad]
        if not trained:
            return gradient.new_zeros(())
        found = torch.autograd.grad(gradient.square().sum(), trained, retain_graph=True, allow_unused=True)
        total = gradient.new_zeros(())
        for parameter, slope in zip(trained, found, strict=True):
            if slope is not None:
                nothing = _zero(parameter)
                # A hook, not a factor: NaN of one instance is for the module to have, not for the values of others.
                nothing.register_hook(slope.mul)
                total = total + nothing.sum().to(total.dtype)
        return total


def _zero(tensor: Tensor) -> Tensor:
    """Zeros that pass their gradient on to the tensor, −inf or not."""
    finite = torch.where(tensor.isfinite(), tensor, 0.0)
    return finite - finite.detach()

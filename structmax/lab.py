"""Measures gradient estimators of E[f(y)]: how far each is from the exact gradient, on average and each time."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from structmax import check
from structmax.contract import RETURNS, AbstractStructure, Scores
from structmax.estimators.enumerate_all import Enumerate
from structmax.estimators.expectation import AbstractEstimator, Objective, expect
from structmax.estimators.surrogate import AbstractSurrogate
from structmax.problem import Problem

__all__ = ["Gradients", "Row", "gradients"]

Estimator = AbstractEstimator | AbstractSurrogate
# How many draws are taken as one batch, and how many calls are timed.
AT_ONCE, TIMED = 100, 5


@dataclass(frozen=True)
class Row:
    """One estimator g of the exact gradient G, all in units of ‖G‖."""

    name: str
    # what it declares
    unbiased: bool
    # ‖E g − G‖, and its standard error: how large sampling noise makes it for an unbiased estimator
    bias: float
    chance: float
    # E ‖g − E g‖²
    variance: float
    # between E g and G
    cosine: float
    # of f, for each draw of the whole batch
    evaluations: float
    # By name, what the structure was asked in both passes, for each draw of the whole batch: one for each instance a
    # call is about, however many structures it returns, and whatever the answer takes inside.
    questions: Mapping[str, float]
    # one call, forward and backward
    seconds: float


@dataclass(frozen=True)
class Gradients:
    """Rows in the order of the estimators; they print as a table."""

    rows: tuple[Row, ...]
    # ‖G‖ of the exact gradient, and of how many draws means and variances are
    norm: float
    samples: int

    def __repr__(self) -> str:
        heads = (
            "estimator",
            "unbiased",
            "bias",
            "standard error",
            "variance",
            "cosine",
            "evaluations",
            "questions",
            "ms",
        )
        lines = [heads, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = ("  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]) for name, *cells in lines)
        return "\n".join([f"exact gradient: norm {self.norm:.4g}; {self.samples} draws each", *table])

    def plot(self, path: str | Path) -> None:
        """Draws bias and standard deviation of each estimator as bars, into a file. Needs matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 1 + 0.35 * len(self.rows)), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        names = [row.name for row in self.rows]
        left.barh(names, [row.bias for row in self.rows])
        left.plot([row.chance for row in self.rows], names, "k|", label="standard error")
        left.set_xlabel("bias / ‖G‖")
        left.legend()
        left.invert_yaxis()
        right.barh(names, [row.variance**0.5 for row in self.rows])
        right.set_xlabel("standard deviation / ‖G‖")
        figure.savefig(path)


def _cells(row: Row) -> tuple[str, ...]:
    numbers = f"{row.bias:.3f}", f"{row.chance:.3f}", f"{row.variance:.3g}", f"{row.cosine:.3f}"
    costs = f"{row.evaluations:g}", f"{sum(row.questions.values()):g}", f"{1e3 * row.seconds:.2f}"
    return row.name, "yes" if row.unbiased else "no", *numbers, *costs


class Questions(TorchDispatchMode):
    """Counts the calls of structures' functions by name while it is entered: each is a call of the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.structmax.call.default:
            tensors, *_, name, _, _ = args
            # Mappings of plain tensors, such as the softmax over a list, go the same way.
            if name in RETURNS:
                self.counts[name] += len(tensors[0])
        return func(*args, **(kwargs or {}))


def gradients(
    f: Objective,
    scores: Scores,
    structure: AbstractStructure,
    estimators: Mapping[str, Estimator] | Iterable[Estimator],
    *,
    samples: int = 1000,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Gradients:
    """Compares gradients ∂ Σ E[f(y)] / ∂θ with the exact one, by enumeration: bias, variance, direction and cost.

    Draws are taken as further instances of a batch, so baselines with a state see many at once.

    Args:
        f: as in `expect`.
        scores: θ, shaped as the structure says, with any leading batch dimensions.
        structure: the set Y, small enough to be listed.
        estimators: those of `expect` and `surrogate`, in a list or by names.
        samples: how many gradients of each estimator are computed, ≥ 2.
        generator: random number generator.
        backend: "auto", "numba", "triton" or "reference".

    Returns:
        A table with `rows`; `print` it, or `plot` it into a file.

    Examples:
        >>> import torch, structmax
        >>> from structmax.estimators import ScoreFunction, StraightThrough, SumAndSample
        >>> cost = torch.tensor([3.0, 2.0, 1.0])
        >>> table = structmax.lab.gradients(
        ...     lambda z, _: (z @ cost) ** 2,
        ...     torch.zeros(3),
        ...     structmax.Simplex(),
        ...     [ScoreFunction(), SumAndSample(1), StraightThrough()],
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> for row in table.rows:
        ...     print(row.name, f"bias {row.bias:.2f}, variance {row.variance:.2f}")
        ScoreFunction(samples=1, baseline=None, scale=None) bias 0.06, variance 5.03
        SumAndSample(k=1) bias 0.05, variance 2.63
        StraightThrough(backward=Identity()) bias 11.45, variance 0.00
    """
    check.whole("samples", samples, 2)
    problem = Problem.of(scores, structure, backend)
    tensors = problem.with_batch(tuple(t.detach() for t in problem.scores))
    instances = problem.batch.numel()

    def gradient(estimator: Estimator, count: int) -> tuple[Tensor, int]:
        """`count` gradients, (count, all parts of the batch), and how often f was evaluated."""
        many = tuple(t.expand(count, *t.shape).clone().requires_grad_() for t in tensors)
        at = structure.parts(many)
        result = expect(
            lambda z, index: f(z, index % instances), at, structure, estimator, generator=generator, backend=backend
        )
        total = result.value.sum()
        # An f that does not depend on its structure has no gradient to give.
        found = torch.autograd.grad(total, many, allow_unused=True) if total.requires_grad else (None,) * len(many)
        filled = (torch.zeros_like(t) if g is None else g for g, t in zip(found, many, strict=True))
        return torch.cat([g.flatten(1).double() for g in filled], 1), result.evaluations

    exact = gradient(Enumerate(), 1)[0][0]
    norm = float(exact.norm())
    named: Mapping[Any, Estimator] = (
        estimators if isinstance(estimators, Mapping) else {repr(one): one for one in estimators}
    )
    rows = []
    for name, estimator in named.items():
        with Questions() as asked:
            chunks = [gradient(estimator, min(AT_ONCE, samples - done)) for done in range(0, samples, AT_ONCE)]
        found = torch.cat([chunk for chunk, _ in chunks])
        mean, variance = found.mean(0), float(found.var(0).sum())
        rows.append(
            Row(
                name,
                estimator.unbiased,
                bias=float((mean - exact).norm()) / norm,
                chance=(variance / samples) ** 0.5 / norm,
                variance=variance / norm**2,
                cosine=float(torch.nn.functional.cosine_similarity(mean, exact, dim=0)),
                evaluations=sum(count for _, count in chunks) / samples,
                questions={question: count / samples for question, count in asked.counts.items()},
                seconds=_median_seconds(lambda e=estimator: gradient(e, 1)),  # type: ignore[misc]
            )
        )
    return Gradients(tuple(rows), norm, samples)


def _median_seconds(call: Any) -> float:
    taken = []
    for _ in range(TIMED):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[TIMED // 2]

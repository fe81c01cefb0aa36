"""Laws of gradients: against differences, between backends, and under the transforms of torch.func."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from structmax.contract import AbstractStructure
from structmax.questions.entropy import entropy
from structmax.questions.log_partition import log_partition, marginals
from structmax.testing.case import Case, same, variants


def fast(backend: str) -> dict[str, Any]:
    """The gradients of the reference are autograd's own: a random projection of the Jacobian is enough to test them."""
    return {"fast_mode": backend == "reference"}


def law_gradients(case: Case, backend: str) -> None:
    """gradcheck with forward mode, and gradgradcheck, for every smooth question."""
    leaves = tuple(t.clone().requires_grad_() for t in case.scores())
    for question in (log_partition, marginals, entropy):

        def ask(*tensors: Tensor, question: Callable[..., Any] = question) -> Any:
            return case.outputs(question(case.parts(tensors), case.structure, backend=backend))

        assert gradcheck(ask, leaves, check_forward_ad=True, **fast(backend)), question.__name__
        assert gradgradcheck(ask, leaves, **fast(backend)), question.__name__


def law_agrees_with_reference(case: Case, backend: str) -> None:
    """Every kernel equals the reference: outputs, and each gradient by name."""
    for name, scores in variants(case).items():
        for question in (log_partition, marginals, entropy):
            answers = []
            for engine in (backend, "reference"):
                leaves = tuple(t.clone().requires_grad_() for t in scores)
                out = question(case.parts(leaves), case.structure, backend=engine)
                tensors = case.outputs(out)
                finite = sum(((t.masked_fill(t.isinf(), 0.0) ** 2).sum() for t in tensors), torch.zeros(()))
                answers.append((tensors, torch.autograd.grad(finite, leaves)))
            for a, b in zip(answers[0][0], answers[1][0], strict=True):
                same(f"{question.__name__} against reference, {name}", a, b)
            for part, (a, b) in enumerate(zip(answers[0][1], answers[1][1], strict=True)):
                field = case.structure.names[part]
                same(f"gradient of {question.__name__} for `{field}` against reference, {name}", a, b)


def law_transforms(case: Case, backend: str) -> None:
    """vmap, grad, jvp, jacrev and hessian of torch.func agree with plain autograd."""
    scores, tangent = case.scores(), case.scores(9)
    batch = case.structure.batch_shape(case.parts(scores))
    every = tuple(range(len(scores)))

    def total(*tensors: Tensor, structure: AbstractStructure = case.structure) -> Tensor:
        parts = structure.parts(tensors)
        mu = structure.tensors(marginals(parts, structure, backend=backend))
        squares = sum(((m**2).sum() for m in mu), torch.zeros((), dtype=tensors[0].dtype))
        return log_partition(parts, structure, backend=backend).sum() + squares

    def gradient(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        leaves = tuple(t.clone().requires_grad_() for t in tensors)
        return torch.autograd.grad(total(*leaves), leaves)

    stacked = tuple(torch.stack(pair, 1) for pair in zip(scores, tangent, strict=True))
    got = torch.func.vmap(torch.func.grad(total, argnums=every), in_dims=1, out_dims=1)(*stacked)
    want = gradient(scores)
    for out, a, b in zip(got, want, gradient(tangent), strict=True):
        same("vmap of grad", out, torch.stack([a, b], 1))
    pushed = torch.func.jvp(total, scores, tangent)[1]
    pulled = sum(((w * t).sum() for w, t in zip(want, tangent, strict=True)), torch.zeros(()))
    same("jvp", pushed, pulled)
    zero = (0,) * len(batch)
    alone = partial(total, structure=case.structure.at(zero, batch))
    one = tuple(t[zero] for t in scores)
    forward_over_reverse = torch.func.hessian(alone, argnums=0)(*one)
    reverse_over_reverse = torch.func.jacrev(torch.func.jacrev(alone, argnums=0), argnums=0)(*one)
    same("hessian", forward_over_reverse, reverse_over_reverse)

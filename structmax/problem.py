"""A problem: a structure, its scores, and a backend. Built once by a public function, and passed down.

A `Problem` has been checked. Its part tensors have one batch dimension, and so has everything computed from them;
`shaped` and `named` give an answer the batch and the names of the scores. What is known of a form, that is, of shapes,
dtypes and devices of scores for a structure, is kept: the next scores of the same form are not checked again.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import register_pytree_node

from structmax import backends, check, operator
from structmax.backends import HALF, Plan
from structmax.contract import EXTRAS, AbstractStructure, Scores, outside_transforms
from structmax.half import narrow, widened
from structmax.numerics import compilation
from structmax.outline import shapes
from structmax.parts import Tensors

PLAIN = (Tensor, torch.nn.Parameter)
# More forms than this of one structure are not kept.
MOST_FORMS = 1000


@dataclass(eq=False)
class Problem:
    """What every question, loss and estimator receives."""

    structure: AbstractStructure
    # part tensors (B, …)
    scores: Tensors
    # the shape of the batch, B instances in all
    batch: torch.Size
    # one entry for each instance: tensors (B, …) by name
    fields: dict[str, Tensor]
    # what all instances share: numbers and tensors by name
    shared: dict[str, Any]
    backend: str
    # how many part tensors there are
    count: int
    # the dtype of the answers, where it is narrower than that of the scores here
    dtype: torch.dtype
    # whether the values of the fields have been checked
    checked: bool
    # whether naming the parts is all that it takes to make them an answer
    only_named: bool
    # the functions to call, by their names
    plans: dict[str, Plan]
    # the same without its scores: what autograd keeps
    blank: Any = None

    def __repr__(self) -> str:
        given = "no scores"
        if self.scores:
            listed = shapes(self.structure.names, self.with_batch(self.scores))
            given = f"{listed}, {self.dtype}, {self.scores[0].device}"
        return f"Problem({self.structure!r}; {given}; batch {tuple(self.batch)}; backend {self.backend})"

    def __getstate__(self) -> dict[str, Any]:
        # The functions to call are found again.
        return vars(self) | {"plans": {}}

    @staticmethod
    def of(scores: Scores, structure: AbstractStructure, backend: str = "auto", *, wide: bool = False) -> "Problem":
        """The problem of these scores; raises an error that says what is wrong with them.

        With `wide`, half precision is computed with in float32 and rounded once, in the answer.
        """
        if not isinstance(structure, AbstractStructure):
            hint = f" Try `{getattr(structure, '__name__', 'Simplex')}()`."
            check.instance("structure", structure, AbstractStructure, "a structure such as Simplex()", hint)
        given: Any = (scores,) if isinstance(scores, Tensor) else scores
        names: tuple[str, ...] = ()
        if isinstance(scores, dict):
            # by name, in any order
            given, names = tuple(scores.values()), tuple(scores)
        key = _form(given, names, structure, backend, wide)
        forms = structure.remembered.setdefault("forms", {}) if key is not None else {}
        known = forms.get(key)
        if known is None:
            return _unknown(scores, given, structure, backend, wide, key, forms)
        blank, as_given = known
        problem = blank.at(())
        tensors = tuple(given) if as_given else structure.tensors(scores)
        problem.scores = tensors if len(blank.batch) == 1 else _flattened(tensors, blank.batch)
        return problem

    def at(self, scores: Tensors) -> "Problem":
        """The same problem at other scores (B, …)."""
        return self._with(scores, self.batch, self.fields, self.blank or self)

    def _with(self, scores: Tensors, batch: torch.Size, fields: dict[str, Tensor], blank: Any) -> "Problem":
        same = self.shared, self.backend, self.count, self.dtype, self.checked, self.only_named, self.plans
        return Problem(self.structure, scores, batch, fields, *same, blank)

    def repeated(self, *draws: int) -> "Problem":
        """The problem of `draws` copies of the batch, which stand in front of it."""
        return self.broadcast(torch.Size((*draws, *self.batch)))

    def broadcast(self, batch: torch.Size) -> "Problem":
        """The problem with its batch broadcast to another."""
        if batch == self.batch:
            return self

        def spread(tensor: Tensor) -> Tensor:
            wide = tensor.reshape((*self.batch, *tensor.shape[1:])).expand((*batch, *tensor.shape[1:]))
            return wide.reshape((math.prod(batch), *tensor.shape[1:]))

        fields = {name: spread(value) for name, value in self.fields.items()}
        return self._with((), batch, fields, None).at(tuple(map(spread, self.scores)))

    def in_a_row(self, count: int) -> "Problem":
        """The problem in which each instance stands `count` times, without its scores."""
        fields = {name: value.repeat_interleave(count, 0) for name, value in self.fields.items()}
        return self._with((), torch.Size((*self.batch, count)), fields, None)

    def with_samples(self, parts: Scores) -> tuple["Problem", Tensors]:
        """The problem for each of the parts, which may have more leading dimensions, and the parts: (B, …)."""
        tensors = self.structure.tensors(parts)
        for own, given in zip(self.scores, tensors, strict=True):
            shape = (*self.batch, *own.shape[1:])
            check.together("Scores and parts", shape, given.shape, " `structure.encode` makes parts from labels.")
        shapes = [
            torch.broadcast_shapes((*self.batch, *own.shape[1:]), given.shape)
            for own, given in zip(self.scores, tensors, strict=True)
        ]
        problem = self.broadcast(torch.Size(shapes[0][: len(shapes[0]) - self.structure.event_dim]))
        return problem, problem._like_scores(tensors)

    def _like_scores(self, parts: Tensors) -> Tensors:
        """Parts that broadcast to the scores (*batch, …), in their shape (B, …) and dtype; padding is 0."""
        pairs = zip(parts, self.scores, strict=True)
        wide = tuple(part.to(s.dtype).expand((*self.batch, *s.shape[1:])) for part, s in pairs)
        return self.existing(_flattened(wide, self.batch))

    def ask(self, name: str, *tensors: Tensor, **extra: Any) -> list[Tensor]:
        """Calls the structure's function of that name, on this problem's fields: tensors (B, …) in, tensors out."""
        fields = {**self.shared, **self.fields, **extra}
        first = tensors[0]
        if watched(first):
            return operator.call(tensors, fields, self.structure.room, name, self.count, self.backend)
        plan = self.plans.get(name)
        if plan is None:
            plan = backends.plan(self.structure.room, name, first.device.type, self.count, self.backend)
            self.plans[name] = plan
        return run(plan, tensors, fields, self.checked)

    def answers(self, name: str) -> bool:
        """Whether the structure has this function, on the device of the scores and a backend that was asked for."""
        return backends.answers(self.structure.room, name, self.scores[0].device.type, self.backend)

    def keeps_state(self, name: str) -> bool:
        """Whether a kernel has this function of `KEPT` for such scores, and nobody watches the call."""
        if not self.answers(name) or watched(self.scores[0]):
            return False
        plan = backends.plan(self.structure.room, name, self.scores[0].device.type, self.count, self.backend)
        return plan.refuses is None or plan.refuses(name, self.scores, {**self.shared, **self.fields}) is None

    def exists(self) -> Tensors | None:
        """Which parts some structure has, so that the rest is padding: bools that broadcast to the scores."""
        own = self.unfolded()
        found = own.structure.exists(own.with_batch(own.scores))
        return None if found is None else tuple(map(own._without_batch, found, own.scores))

    def unfolded(self) -> "Problem":
        """The problem, with a batch of its own where that of a vmap has become part of it."""
        rows = self.scores[0].shape[0]
        if torch.compiler.is_compiling() or math.prod(self.batch) == rows:
            return self
        other = self._with(self.scores, torch.Size((rows,)), self.fields, self.blank)
        other.structure = self.structure.with_values([self.fields.get(n) for n in self.structure.per_instance])
        return other

    def _without_batch(self, tensor: Tensor, like: Tensor) -> Tensor:
        """A tensor that broadcasts to the shape of the scores, for the flat batch."""
        event = like.dim() - 1
        if tensor.dim() <= event or len(self.batch) == 1:
            return tensor
        return _flattened((tensor.expand((*self.batch, *tensor.shape[tensor.dim() - event :])),), self.batch)[0]

    def existing(self, parts: Tensors) -> Tensors:
        """Parts with 0 for what no structure has, whatever they hold there: padding counts nothing."""
        exists = self.exists()
        return parts if exists is None else tuple(p.masked_fill(~e, 0.0) for p, e in zip(parts, exists, strict=True))

    # ---------------------------------------------------------------- answers

    def shaped(self, values: Tensor) -> Tensor:
        """Numbers (B,) or (B, …) as an answer: the shape of the batch, the dtype of the scores that were given."""
        return self.with_batch((self._rounded(values),))[0]

    def named(self, tensors: Tensors) -> Any:
        """Part tensors (B, …) as an answer: batch, dtype and names of the scores that were given."""
        if not self.only_named or tensors[0].dtype != self.dtype:
            return self.structure.parts(self.with_batch(tuple(map(self._rounded, tensors))))
        tensors = self.with_batch(tensors)
        return tensors[0] if self.structure.Parts is None else self.structure.Parts(*tensors)

    def stacked(self, tensors: Tensors, *draws: int) -> Any:
        """Part tensors (B, K, …) as an answer, with dimensions of K draws in all in front of the batch."""
        rank = len(self.batch)
        in_front = (t.movedim(rank, 0) for t in self.with_batch(tuple(map(self._rounded, tensors))))
        return self.structure.parts(tuple(t.reshape((*draws, *t.shape[1:])) for t in in_front))

    def stacked_values(self, values: Tensor) -> Tensor:
        """Numbers (B, K) as an answer: (K, batch)."""
        return self.shaped(values).movedim(-1, 0)

    def given(self, name: str, parts: Scores) -> Tensors:
        """Parts of the user's, a target say, that broadcast to the scores: in their shape and dtype, padding 0."""
        tensors = self.structure.tensors(parts)
        for part, s in zip(tensors, self.scores, strict=True):
            check.same_device(name, part, s)
            check.parts_like(name, part, (*self.batch, *s.shape[1:]))
        return self._like_scores(tensors)

    def with_batch(self, tensors: Tensors) -> Tensors:
        """Tensors (B, …) in the shape of the batch."""
        if len(self.batch) == 1:
            return tensors
        return tuple(t.reshape((*self.batch, *t.shape[1:])) for t in tensors)

    def _rounded(self, tensor: Tensor) -> Tensor:
        """Half precision, where the scores had it."""
        return tensor.to(self.dtype) if self.dtype in HALF and tensor.is_floating_point() else tensor


def _form(
    given: Any, names: tuple[str, ...], structure: AbstractStructure, backend: str, wide: bool
) -> tuple[Any, ...] | None:
    """A key shared by problems of which only the first must be checked; None where each must be."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return None
    key: list[Any] = [backend, wide, *names]
    for value in vars(structure).values():
        if isinstance(value, Tensor):
            # its entries may change
            return None
        key.append(value)
    for tensor in given:
        if tensor is not None:
            if type(tensor) not in PLAIN:
                return None
            key += (tensor.shape, tensor.dtype, tensor.device)
        else:
            key.append(None)
    if torch._C._len_torch_dispatch_stack() or torch._C._get_tracing_state() is not None:
        return None
    try:
        hash(found := tuple(key))
    except TypeError:
        # a field that may change
        return None
    return found


def _unknown(
    scores: Scores, given: Any, structure: AbstractStructure, backend: str, wide: bool, key: Any, forms: dict[Any, Any]
) -> Problem:
    """The problem of scores of a new form, which is kept under its key, if it has one."""
    half = narrow(scores)
    if half is not None and (wide or structure.adds(scores)):
        problem = Problem.of(widened(scores), structure, backend)
        problem.dtype = half
        return problem
    problem, as_given = _checked(scores, given, structure, backend, key is not None)
    if key is not None:
        if len(forms) >= MOST_FORMS:
            forms.clear()
        forms[key] = problem.blank, as_given
    return problem


def _checked(
    scores: Scores, given: Any, structure: AbstractStructure, backend: str, kept: bool
) -> tuple[Problem, bool]:
    """The problem of scores of a new form, and whether its part tensors are the scores as they were given."""
    structure.check_floating(scores, given)
    structure.check(scores)
    tensors = structure.tensors(scores)
    first = tensors[0]
    batch = first.shape[: first.dim() - structure.event_dim]
    if kept:
        # what outlives the call belongs to no transform
        with outside_transforms():
            fields = structure.fields(tuple(t.detach() for t in tensors))
    else:
        fields = structure.fields(tensors)
    check.unreserved(type(structure).__name__, fields, EXTRAS)
    own = {name: fields.pop(name) for name in list(fields) if name in structure.per_instance}
    named = structure.parts(tensors)
    parts = (named,) if isinstance(named, Tensor) else named
    # optional part tensors, which an answer has not, stand last
    only_named = kept and all(a is b for a, b in itertools.zip_longest(parts, tensors))
    plans = structure.remembered.setdefault(("plans", first.device.type, len(tensors), backend), {})
    flat = tensors if len(batch) == 1 else _flattened(tensors, batch)
    flat_own = dict(zip(own, _flattened(tuple(own.values()), batch), strict=True)) if len(batch) != 1 else own
    seen = torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active()
    blank = Problem(structure, (), batch, flat_own, fields, backend, len(tensors), first.dtype, seen, only_named, plans)
    return blank.at(flat), len(tensors) == len(given) and all(a is b for a, b in zip(tensors, given, strict=True))


def _flattened(tensors: Tensors, batch: torch.Size) -> Tensors:
    """Tensors (*batch, …) as (B, …)."""
    # not batch.numel(), which would fix a symbolic batch
    count, rank = math.prod(batch), len(batch)
    return tuple(t.reshape((count, *t.shape[rank:])) for t in tensors)


# ---------------------------------------------------------------- what transforms of torch.func see


def _open(problem: Problem) -> tuple[list[Any], tuple[Any, ...]]:
    return [*problem.scores, *problem.fields.values()], (problem, len(problem.scores), tuple(problem.fields))


def _close(tensors: Any, context: tuple[Any, ...]) -> Problem:
    problem, count, names = context
    tensors = list(tensors)
    fields = dict(zip(names, tensors[count:], strict=True))
    blank = problem._with((), problem.batch, fields, None)
    return blank.at(tuple(tensors[:count])) if count else blank


register_pytree_node(Problem, _open, _close)


# ---------------------------------------------------------------- calls


def watched(tensor: Tensor) -> bool:
    """Whether a compiler, tracer, mode or tensor subclass is there to see the call."""
    return (
        torch.compiler.is_compiling()
        or type(tensor) not in PLAIN
        or torch._C._len_torch_dispatch_stack() != 0
        or torch._C._get_tracing_state() is not None
    )


def run(plan: Plan, tensors: Any, fields: dict[str, Any], checked: bool) -> list[Tensor]:
    """Calls a plan's function, which sees contiguous tensors without derivatives, in float32 or wider."""
    scores, dtype = tensors[0], tensors[0].dtype
    if plan.refuses is not None:
        plan = backends.second_choice(plan, tensors, fields)
    is_half = dtype in HALF
    widen, fetch, dual = is_half and plan.widens, plan.fetches, forward_ad._current_level >= 0
    change = widen or fetch or dual
    arguments = [
        _clean(t, widen, fetch, dual) if change or t.requires_grad or not t.is_contiguous() else t for t in tensors
    ]
    keywords = {k: _clean(v, widen, fetch, dual) if isinstance(v, Tensor) else v for k, v in fields.items()}
    if not checked or fetch:
        # These could not be checked before: a tracer's tensors, or those on a device that should not be waited for.
        backends.check_values(plan.room, arguments[0].shape[1:], keywords)
    compilation.asked = plan.room, arguments[0].dtype
    if dtype in plan.loaded and (not scores.is_cuda or scores.get_device() == torch._C._cuda_getDevice()):
        out = plan.function(*arguments, **keywords)
    else:
        out = backends.first_or_on_device(plan, scores, arguments, keywords)
    if isinstance(out, Tensor):
        out = (out,)
    elif plan.skipped:
        out = out[plan.skipped :]
    outputs = []
    for tensor, in_dtype in zip(out, plan.in_dtype, strict=True):
        if fetch:
            tensor = tensor.to(scores.device)
        for argument in arguments:
            # The answer should not be the caller's own tensor.
            if tensor is argument:
                tensor = tensor.clone()
                break
        outputs.append(tensor.to(dtype) if is_half and in_dtype else tensor)
    return outputs


def _clean(tensor: Tensor, widen: bool, fetch: bool, dual: bool) -> Tensor:
    if dual and tensor.is_floating_point():
        tensor = forward_ad.unpack_dual(tensor).primal
    if tensor.requires_grad:
        tensor = tensor.detach()
    if widen and tensor.dtype in HALF:
        tensor = tensor.float()
    if fetch:
        tensor = tensor.cpu()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


operator.implement(run)

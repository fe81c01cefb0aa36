"""Factor graphs: intersections of constraints and structures, with scores."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from structmax import check
from structmax.backends import Refusal
from structmax.contract import AbstractRelaxation, Scores, families
from structmax.factor_graph.existence import existing, speaking
from structmax.factor_graph.factors import AbstractFactor, instead_of
from structmax.factor_graph.layout import field_name, lay_out, places
from structmax.factor_graph.members import members
from structmax.factor_graph.search import Best
from structmax.factor_graph.variables import Variables
from structmax.problem import Problem

SUMS = (
    "sums over the members of a graph that has cycles are out of reach. Try `belief_propagation`, which is exact on "
    "trees, `sparsemap`, or `perturb_and_map`."
)
STEPS = "a graph has no recursion whose maxima could be smoothed. Try `sparsemap`, which smooths the maximum over it."
ORDER = "the search for a best structure finds one alone. Try `argmax`, or `perturb_and_map` for several."

HULL = "its convex hull is known only by a larger polytope. Try `sparsemap`, the projection onto that."


class FactorGraph(AbstractRelaxation):
    """Binary variables under constraints that hold together: logic, couplings, and whole structures.

    The set of its members is the intersection of its factors; its relaxation, on which `sparsemap` works, is the
    intersection of their convex hulls (the local polytope). Described once, it can be used with every batch of
    scores. Scores and parts are dictionaries of tensors (…, *shape) by the names of its variables; batches broadcast.

    Args:
        items: factors, and variables that are in none.

    Examples:
        >>> import torch, structmax
        >>> x = structmax.factors.Variables("x", (2, 2))
        >>> lines = [structmax.factors.Xor(line) for line in (x[0], x[1], x[:, 0], x[:, 1])]
        >>> graph = structmax.FactorGraph(*lines)
        >>> graph
        FactorGraph(x (2, 2); 4 × Xor)
        >>> structmax.sparsemap({"x": torch.tensor([[2.0, 1.5], [1.0, 0.8]])}, graph).marginals["x"]
        tensor([[0.5750, 0.4250],
                [0.4250, 0.5750]])

    Reference: Niculae & Martins 2020, LP-SparseMAP: differentiable relaxed optimization for sparse structured
    prediction.
    """

    intractable: ClassVar[dict[str, str]] = {
        **dict.fromkeys(families("log_partition", "marginals", "given", "sample"), SUMS),
        **dict.fromkeys(families("topk", "max_marginals"), ORDER),
        **dict.fromkeys(families("smoothed", "noisy", "semiring"), STEPS),
        **dict.fromkeys(families("project"), HULL),
        "sparsemap": "its relaxation is known, not a distribution over its members. Try `sparse_marginals`, or "
        "`perturb_and_map` for members.",
    }

    def __init__(self, *items: AbstractFactor | Variables) -> None:
        for number, item in enumerate(items):
            if not isinstance(item, AbstractFactor | Variables):
                raise TypeError(
                    f"FactorGraph should be given factors and Variables, but its item {number} is "
                    f"{check.called(item)}. {instead_of(item)}"
                )
        self.layout = lay_out(items)
        # how many factors there are of each kind
        self.kinds = tuple(Counter(item.kind for item in items if isinstance(item, AbstractFactor)).items())
        # (…, n), False for variables that are left out
        self.mask: Tensor | None = None
        for k, outside in enumerate(self.layout.outside):
            for name in outside.fields:
                setattr(self, field_name(k, name), getattr(outside.factor.structure, name))

    def __repr__(self) -> str:
        named = ", ".join(f"{v.name} {v.shape}{' free' if v.free else ''}" for v in self.layout.variables)
        factors = ", ".join(f"{count} × {kind}" for kind, count in self.kinds) or "no factors"
        options = f"{'' if self.mask is None else '; masked'}{'' if self.weights is None else '; weighted'}"
        return f"FactorGraph({named}; {factors}{options})"

    def masked(self, mask: Mapping[str, Tensor]) -> FactorGraph:
        """The same graph, with some variables left out: padding.

        They are 0, whatever their scores are, and a factor all of whose variables are left out has no effect.

        Args:
            mask: by name, True where a variable is present, broadcast to its scores. Other names are present.

        Examples:
            >>> import torch, structmax
            >>> word = structmax.factors.Variables("word", (3,))
            >>> graph = structmax.FactorGraph(structmax.factors.Xor(word[0], word[1]), structmax.factors.Xor(word[2]))
            >>> short = graph.masked({"word": torch.tensor([True, True, False])})
            >>> structmax.argmax({"word": torch.tensor([0.1, 0.9, 0.7])}, short)["word"]
            tensor([0., 1., 0.])
        """
        bound = self.layout.bound
        if not isinstance(mask, Mapping):
            self._refuse(mask, "`mask`")
        for name, given in mask.items():
            if name not in bound:
                raise ValueError(f"`mask` should have names among {sorted(bound)}, but has {name!r}.")
            check.boolean(f"mask[{name!r}]", given, ", True for the variables that are there")
            shape, event = tuple(given.shape), bound[name].shape
            if not check.broadcasts(shape[max(0, len(shape) - len(event)) :], event):
                raise ValueError(f"`mask[{name!r}]` should broadcast to (…, {_spoken(event)}), but has {shape}.")
        whole = {name: mask[name] if name in mask else torch.ones((), dtype=torch.bool) for name in bound}
        batches = [tuple(t.shape[: max(0, t.dim() - len(bound[name].shape))]) for name, t in whole.items()]
        batch = check.batches("`mask`", whole, batches)
        device = next(iter(mask.values())).device if mask else None
        flat = [t.to(device).expand(*batch, *bound[n].shape).reshape(*batch, bound[n].size) for n, t in whole.items()]
        return self.changed({"mask": torch.cat(flat, -1)})

    @property
    def degrees(self) -> dict[str, Tensor]:
        """How many factors each variable is in, by name; 1 for one that is in none."""
        degree = torch.from_numpy(self.layout.arrays.degree).clamp_min(1).double()
        bound = self.layout.bound
        return {name: degree[place].reshape(bound[name].shape) for name, place in places(bound).items()}

    def weighted(self, weights: Mapping[str, float | Tensor]) -> FactorGraph:
        """The same graph with another norm: `sparsemap` and its losses count ½ Σ w μ² in place of ½ ‖μ‖².

        A larger weight draws a variable towards 0. With `graph.degrees` each factor counts its own variables, so
        that one in two factors counts twice; without weights each counts once.

        Args:
            weights: by name, numbers > 0 or tensors that broadcast to the variables' shape. Other names weigh 1.

        Examples:
            >>> import torch, structmax
            >>> word = structmax.factors.Variables("word", (3,))
            >>> graph = structmax.FactorGraph(structmax.factors.Xor(word))
            >>> heavy = graph.weighted({"word": torch.tensor([4.0, 1.0, 1.0])})
            >>> structmax.sparsemap({"word": torch.tensor([1.0, 0.5, 0.0])}, heavy).marginals["word"]
            tensor([0.2778, 0.6111, 0.1111])
        """
        bound = self.layout.bound
        if not isinstance(weights, Mapping):
            self._refuse(weights, "`weights`")
        norm = np.ones(self._size)
        for name, given in weights.items():
            if name not in bound:
                raise ValueError(f"`weights` should have names among {sorted(bound)}, but has {name!r}.")
            check.positive(f"weights[{name!r}]", given)
            one, shape = torch.as_tensor(given).detach().double().cpu(), bound[name].shape
            if not check.broadcasts(one.shape, shape):
                raise ValueError(
                    f"`weights[{name!r}]` should broadcast to ({_spoken(shape)}), but has {tuple(one.shape)}."
                )
            norm[places(bound)[name]] = one.expand(shape).flatten().numpy()
        return self.changed({"layout": dataclasses.replace(self.layout, norm=norm)})

    @property
    def weights(self) -> tuple[Tensor, ...] | None:  # type: ignore[override]
        """How much the norm counts each part, or None where all weigh 1."""
        if (self.layout.norm == 1).all():
            return None
        free = sum(variables.size for variables in self.layout.free.values())
        return self.layout.split(torch.from_numpy(self.layout.norm), torch.ones(free))

    # ---------------------------------------------------------------- what a structure says of itself

    @property
    def event_dim(self) -> int:
        return len(self.layout.variables[0].shape)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(variables.name for variables in self.layout.variables)

    @property
    def regularised(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.layout.bound)

    @property
    def free(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.layout.free)

    @property
    def per_instance(self) -> tuple[str, ...]:  # type: ignore[override]
        return "mask", *(field_name(k, name) for k, one in enumerate(self.layout.outside) for name in one.fields)

    def field_batch_dim(self, name: str) -> int:
        if name == "mask":
            return getattr(self, name).dim() - 1
        for k, (outside, structure) in enumerate(zip(self.layout.outside, self._structures(), strict=True)):
            for own in outside.fields:
                if field_name(k, own) == name:
                    return structure.field_batch_dim(own)
        raise AttributeError(name)

    def _structures(self, fields: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
        """The structures among the factors, with this graph's fields."""
        return self.layout.structures(vars(self) if fields is None else fields)

    def tensors(self, scores: Scores | Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        if not isinstance(scores, Mapping):
            if isinstance(scores, Tensor):
                self._refuse(scores)
            return tuple(scores)
        names = self.names
        unknown, missing = sorted(set(scores) - set(names)), sorted(set(names) - set(scores))
        if unknown or missing:
            raise ValueError(
                f"scores and parts of this graph should have the names {sorted(names)}, but "
                + " and ".join([f"{n!r} is unknown" for n in unknown] + [f"{n!r} is missing" for n in missing])
                + "."
            )
        for name in names:
            check.a_tensor(name, scores[name])
        shapes = [tuple(scores[v.name].shape) for v in self.layout.variables]
        ranks = [max(0, len(s) - len(v.shape)) for s, v in zip(shapes, self.layout.variables, strict=True)]
        batches = [shape[:rank] for shape, rank in zip(shapes, ranks, strict=True)]
        if all(batch == batches[0] for batch in batches):
            return tuple(scores[name] for name in names)
        batch = check.batches("the batch dimensions of `scores`", names, batches)
        each = zip(names, shapes, ranks, strict=True)
        return tuple(scores[name].expand(*batch, *shape[rank:]) for name, shape, rank in each)

    def parts(self, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return dict(zip(self.names, tensors, strict=True))

    def fields(self, tensors: tuple[Tensor, ...]) -> dict[str, Any]:
        given = [name for name in self.per_instance if getattr(self, name) is not None]
        return {"layout": self.layout.number} | {name: self.expanded(name, tensors) for name in given}

    def changed(self, values: Mapping[str, Any]) -> FactorGraph:
        other = copy.copy(self)
        vars(other).update(values)
        return other

    def matches(self, other: Any) -> bool:
        if type(self) is not type(other) or self.layout is not other.layout:
            return False
        pairs = [(getattr(self, name), getattr(other, name)) for name in self.per_instance]
        return all(torch.equal(a, b) if a is not None and b is not None else a is b for a, b in pairs)

    def check(self, scores: Scores | Mapping[str, Tensor]) -> None:
        if not isinstance(scores, Mapping):
            self._refuse(scores)
        for variables, tensor in zip(self.layout.variables, self.tensors(scores), strict=True):
            shape, rank = tuple(tensor.shape), len(variables.shape)
            if shape[max(0, len(shape) - rank) :] != variables.shape:
                given = tuple(scores[variables.name].shape)
                raise ValueError(
                    f"`{variables.name}` should have shape (…, {_spoken(variables.shape)}), but has {given}."
                )
        batch = self.batch_shape(self.tensors(scores))
        if self.mask is not None and not check.broadcasts(self.mask.shape[:-1], batch):
            raise ValueError(
                f"`mask` should broadcast to the batch {tuple(batch)} of the scores, but has batch dimensions "
                f"{tuple(self.mask.shape[:-1])}."
            )
        for outside, structure in zip(self.layout.outside, self._structures(), strict=True):
            # its lengths, or what else it has for each instance, fit the batch
            structure.check(structure.parts(tuple(torch.zeros(()).expand(*batch, *s) for s in outside.shapes)))

    def _refuse(self, what: object, name: str = "scores and parts") -> NoReturn:
        raise TypeError(
            f"{name} of a FactorGraph should be a dictionary by name, but {'are' if ' ' in name else 'is'} "
            f"{check.called(what)}. Try {{{self.names[0]!r}: …}}."
        )

    def exists(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        fields, batch = self.fields(tensors), self.batch_shape(tensors)
        mask = fields.get("mask")
        if mask is None:
            mask = torch.ones((*batch, self._size), dtype=torch.bool)
        on, own = existing(self.layout, mask.cpu(), self._structures({k: _on_host(v) for k, v in fields.items()}))
        return tuple(t.to(tensors[0].device) for t in self.layout.split(on, own))

    @property
    def _size(self) -> int:
        return sum(variables.size for variables in self.layout.bound.values())

    def counts(self, tensors: tuple[Tensor, ...]) -> tuple[bool, ...]:
        counted = set()
        for outside, structure in zip(self.layout.outside, self._structures(), strict=True):
            like = tuple(torch.zeros(shape) for shape in outside.shapes)
            pairs = zip(outside.factor.over, structure.counts(like), strict=True)
            counted |= {one.of.name for one, counts in pairs if counts}
        return tuple(name in counted for name in self.names)

    def log_bound(self, tensors: tuple[Tensor, ...]) -> float:
        return self._size * math.log(2)

    def enumerate(self, scores: Scores | Mapping[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        tensors = self.tensors(scores)
        present = torch.ones(self._size, dtype=torch.bool) if self.mask is None else self.mask.reshape(-1).cpu()
        speaks = speaking(self.layout, present)
        rows = torch.from_numpy(members(self.layout, present.numpy(), speaks.numpy(), self._structures()))
        bound, free = rows[:, : self._size], rows[:, self._size :]
        return self.parts(tuple(t.to(tensors[0]) for t in self.layout.split(bound, free)))

    def decode(self, parts: Scores | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Which variables are on, by name: bool (…, *shape); how often, where parts are counted."""
        tensors = self.tensors(parts)
        pairs = zip(tensors, self.counts(tensors), strict=True)
        return self.parts(tuple(t.round().long() if counted else t > 0 for t, counted in pairs))

    def encode(self, what: Mapping[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        """Parts of 0/1 tensors by name. Free ones that are not given follow from the variables.

        Examples:
            >>> import torch, structmax
            >>> tag = structmax.factors.Variables("tag", (3, 2))
            >>> step = structmax.factors.Variables("step", (2, 2), free=True)
            >>> graph = structmax.FactorGraph(structmax.factors.Factor(structmax.LinearChain(), tag, step))
            >>> graph.encode({"tag": torch.tensor([[1, 0], [1, 0], [0, 1]])})["step"]
            tensor([[1., 1.],
                    [0., 0.]])
        """
        if not isinstance(what, Mapping):
            self._refuse(what)
        given: Any = {name: t.to(torch.get_default_dtype()) for name, t in what.items()}
        absent = {name: variables for name, variables in self.layout.free.items() if name not in given}
        if absent:
            first = next(iter(given.values())) if given else torch.zeros(())
            blank = {name: first.new_zeros(variables.shape) for name, variables in absent.items()}
            given |= {name: _completed(self, given | blank)[name] for name in absent}
        return self.parts(self.tensors(given))

    # ---------------------------------------------------------------- beyond the questions

    def search(
        self,
        scores: Mapping[str, Tensor],
        *,
        exact: bool = False,
        max_iter: int = 1000,
        max_nodes: int = 1000,
    ) -> Best:
        """A best structure, as `argmax` finds it, with bounds on its score: 0/1 variables that satisfy all factors.

        The linear relaxation is solved first. If its solution is 0/1, as it is for many graphs, that is a best
        structure. Otherwise a search by branching on fractional variables ends with the first structure it finds, or
        goes on until the best one is certain. Piecewise constant: no gradient.

        Args:
            scores: θ by name, each (…, *shape); leading batch dimensions broadcast. −inf forbids: the variable is 0.
            exact: whether to search on until it is certain that no structure is better.
            max_iter: steps at most for one quadratic program.
            max_nodes: how many relaxations may be solved for one instance. Beyond that, `exact` is False.

        Returns:
            A `Best`.

        Examples:
            >>> import torch, structmax
            >>> word = structmax.factors.Variables("word", (3,))
            >>> pairs = [structmax.factors.AtMostOne(word[i], word[j]) for i, j in ((0, 1), (0, 2), (1, 2))]
            >>> best = structmax.FactorGraph(*pairs).search({"word": torch.tensor([0.9, 1.0, 0.8])})
            >>> best.parts["word"], best.relaxed["word"], best.exact
            (tensor([0., 1., 0.]), tensor([0.5000, 0.5000, 0.5000]), tensor(True))

        Reference: Martins, Figueiredo, Aguiar, Smith & Xing 2015, AD3: alternating directions dual decomposition for
        MAP inference in graphical models.
        """
        check.whole("max_iter", max_iter, 1)
        check.whole("max_nodes", max_nodes, 1)
        if not isinstance(scores, Mapping):
            self._refuse(scores)
        if torch.compiler.is_compiling():
            return _uncompiled(self, scores, exact, max_iter, max_nodes)
        if torch._C._are_functorch_transforms_active():
            raise Refusal(
                "FactorGraph.search cannot be called inside a transform of torch.func, such as vmap or grad. Try "
                "`argmax`, or leading batch dimensions of the scores."
            )
        return _searched(self, scores, exact, max_iter, max_nodes)


def _completed(graph: FactorGraph, parts: Any) -> Any:
    """Parts with the free ones that belong to the variables, all of which should satisfy the factors."""
    from structmax.factor_graph.program import stated
    from structmax.factor_graph.search import complete

    level: Any = {name: torch.zeros_like(t) for name, t in parts.items()}
    problem = Problem.of(level, graph)
    whole = [t.cpu().double() for t in problem.given("what", parts)]
    fields = {name: _on_host(value) for name, value in problem.fields.items()}
    u, _ = graph.layout.joined(whole)
    met, free = complete(graph.layout, stated(graph.layout, [t * 0 for t in whole], fields).program, u.numpy())
    if not met.all():
        raise ValueError(
            f"the variables should satisfy all factors, but do not in {int((~met).sum())} of {len(met)} instances."
        )
    return problem.named(tuple(t.to(problem.dtype) for t in graph.layout.split(u, torch.from_numpy(free))))


def _searched(graph: FactorGraph, scores: Mapping[str, Tensor], exact: bool, max_iter: int, max_nodes: int) -> Best:
    from structmax.factor_graph.program import stated, worth
    from structmax.factor_graph.search import search

    detached: Any = {name: t.detach() for name, t in scores.items()}
    problem = Problem.of(detached, graph)
    device, dtype = problem.scores[0].device, problem.dtype
    fields = {name: _on_host(value) for name, value in problem.fields.items()}
    program, theta, phi, lost = stated(graph.layout, tuple(t.cpu() for t in problem.scores), fields)
    found = search(graph.layout, program, exact, max_iter, max_nodes)
    value, bound, certain, converged, u, nu = map(
        torch.from_numpy, (found.value, found.upper_bound, found.exact, found.converged, found.u, found.nu)
    )
    # of the scores as they are: the search has seen low ones raised
    value = torch.where(value > -math.inf, worth(theta, u) + worth(phi, nu), value)
    bound = torch.where(certain, value, bound)

    def shaped(numbers: Tensor) -> Tensor:
        numbers = numbers.masked_fill(lost, math.nan) if numbers.is_floating_point() else numbers & ~lost
        return problem.shaped(numbers.to(device, dtype if numbers.is_floating_point() else None))

    def named(bound: Tensor, free: Tensor) -> Any:
        return problem.named(tuple(t.to(device, dtype) for t in graph.layout.split(bound, free)))

    return Best(
        named(u, nu),
        shaped(value),
        exact=shaped(certain),
        converged=shaped(converged),
        upper_bound=shaped(bound),
        relaxed=named(*map(torch.from_numpy, found.relaxed)),
    )


# The decorator loads the compiler when what it decorates is called.
@torch._disable_dynamo
def _uncompiled(*arguments: Any) -> Best:
    """torch.compile breaks the graph here, since the number of steps depends on values."""
    return _searched(*arguments)


def _on_host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _spoken(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))

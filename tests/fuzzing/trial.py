"""One trial: a random structure with a batch of random scores, and what went wrong when it was asked."""

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fuzzing import scores
from fuzzing.structures import MAKERS
from fuzzing.truth import Truth, flat
from structmax import backends
from structmax.half import widened
from structmax.parts import unflat

BATCHES = [(32,), (32,), (32,), (32,), (48,), (4, 8), (), (1,), (3,), (2, 2), (2, 1, 3), (0,)]
DTYPES = [torch.float64, torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16]


@dataclass
class Failure:
    """A wrong answer: to which question, how, and in which instance of the batch (−1: all)."""

    question: str
    reason: str
    instance: int
    detail: str


class Report:
    """What is asked in one dtype, and how it failed."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        self.name, self.rng, self.failures, self.count = name, rng, list[Failure](), 0
        self.batch = BATCHES[rng.integers(len(BATCHES))]
        self.dtype = DTYPES[rng.integers(len(DTYPES))]
        self.backend = "reference" if rng.random() < 0.1 else "auto"
        self.generator = torch.Generator().manual_seed(int(rng.integers(2**31)))

    def rounding(self, want: Tensor) -> Tensor:
        """What the rounding of an answer to the dtype of the scores may add."""
        info = torch.finfo(self.dtype)
        return info.eps * want.abs().nan_to_num(posinf=0.0) + info.tiny

    def ask(self, question: str, function: Callable[[], None]) -> None:
        """Runs a check; what it raises is a failure."""
        try:
            function()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = f"raised {type(error).__name__}"
            place = f"{where.filename.rpartition('/structmax/')[2]}:{where.lineno}"
            self.failures.append(Failure(question, reason, -1, f"{error} ({place})"[:300]))

    def wrong(self, question: str, reason: str, bad: Tensor, detail: Callable[[int], str] = lambda _: "") -> None:
        """Notes a failure where `bad` (B, …) holds for some instance."""
        rows = bad.flatten(1).any(-1) if bad.dim() > 1 else bad
        if bool(rows.any()):
            index = int(rows.nonzero()[0])
            self.failures.append(Failure(question, reason, index, f"{int(rows.sum())} of {len(rows)}; {detail(index)}"))

    def same(self, question: str, got: Tensor, want: Tensor, tolerance: Tensor) -> None:
        """Both (B, …): infinities at the same places, the rest within the tolerance and the rounding of the dtype."""
        if got.shape != want.shape:
            raise AssertionError(f"shape {tuple(got.shape)} should be {tuple(want.shape)}")
        tolerance = tolerance.reshape(*tolerance.shape, *(1,) * (want.dim() - tolerance.dim()))
        slack = tolerance + self.rounding(want)
        close = (got - want).abs() <= slack
        # what the dtype cannot hold becomes infinite
        limit = torch.finfo(self.dtype).max
        over = (want.abs() + slack > limit * (1 - torch.finfo(self.dtype).eps)) & (got == want.sign() * math.inf)
        good = torch.where(want.isinf(), got == want, close | over)

        def detail(b: int) -> str:
            at = (~good[b]).nonzero()[0].tolist() if want.dim() > 1 else []
            one = (b, *at)
            allowed = slack.expand_as(want)[one].item()
            return f"at {at} got {got[one].item():.6g}, want {want[one].item():.6g} ± {allowed:.1g}"

        self.wrong(question, "NaN", got.isnan(), detail)
        self.wrong(question, "wrong", ~good & ~got.isnan(), detail)


class Trial(Report):
    """Structure, scores, truth, and a list of failures."""

    def __init__(self, name: str, rng: np.random.Generator) -> None:
        super().__init__(name, rng)
        if self.backend == "reference":
            self.batch = tuple(min(size, 3) for size in self.batch)
        subject = MAKERS[name](rng, self.batch)
        self.structure = subject.structure
        self.base, self.mask = rng.choice(scores.BASES), rng.choice(scores.MASKS)
        self.raw = self.draw(subject.shapes, self.base, self.mask)
        self.truth = Truth(self.structure, self.structure.tensors(widened(self.scores)))
        self.count = len(self.truth.theta)

    def draw(self, shapes: tuple[Any, ...], base: str, mask: str) -> tuple[Tensor | None, ...]:
        """Scores of these shapes, with anything where no structure looks."""
        rng, rank = self.rng, len(self.batch)
        drawn: list[Tensor | None] = []
        for shape in shapes:
            if shape is None:
                drawn.append(None)
                continue
            own = rank if shape[:rank] == self.batch and len(shape) > rank else 0
            x = scores.masked(rng, scores.values(rng, shape, base, self.dtype), mask, self.dtype, own)
            drawn.append(x.to(self.dtype))
        # One instance for all has no padding of its own.
        raw = self.padded(tuple(drawn)) if rng.random() < 0.6 else self.repeated(tuple(drawn))
        return tuple(t if t is None else scores.odd(rng, t) for t in raw)

    def repeated(self, raw: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """At times one instance for all, expanded."""
        rank = len(self.batch)
        if self.rng.random() < 0.8 or not self.batch or not self.batch[0]:
            return raw
        return tuple(t if t is None or t.shape[:rank] != self.batch else t[:1].expand(t.shape) for t in raw)

    def padded(self, raw: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        leaves = tuple(t if t is None else torch.zeros(t.shape, dtype=torch.float64).requires_grad_() for t in raw)
        tensors = self.structure.tensors(self.parts_of(leaves))
        used = Truth(self.structure, tuple(t.detach() for t in tensors)).used.double()
        vector = flat(tensors, self.structure).reshape(used.shape)
        given = [t for t in leaves if t is not None]
        found = iter(torch.autograd.grad((vector * used).sum(), given, allow_unused=True, materialize_grads=True))
        return tuple(t if t is None else scores.junk(self.rng, t, next(found) > 0) for t in raw)

    def parts_of(self, raw: tuple[Any, ...]) -> Any:
        """What a person passes: one tensor, or all of them."""
        return raw[0] if self.structure.Parts is None else raw

    @property
    def scores(self) -> Any:
        return self.parts_of(self.raw)

    def leaves(self) -> tuple[Any, list[Tensor]]:
        """Scores that record, and the tensors of them."""
        copies = tuple(t if t is None else t.detach().requires_grad_() for t in self.raw)
        return self.parts_of(copies), [t for t in copies if t is not None]

    def answers(self, *names: str) -> bool:
        """Whether the structure can be asked so, by this backend."""
        reasons = [backends.explain(self.structure.room, name, "cpu") for name in names]
        return all(None in (r.values() if self.backend == "auto" else (r[self.backend],)) for r in reasons)

    def rows(self, answer: Any, *front: int) -> Tensor:
        """The parts of an answer as vectors in float64: (front, B, P)."""
        tensors = self.structure.tensors(answer)
        self.right_dtype(tensors[0])
        return flat(tensors, self.structure).reshape(*front, self.count, self.truth.theta.shape[-1]).detach().double()

    def right_dtype(self, tensor: Tensor) -> None:
        if tensor.dtype != self.dtype:
            raise AssertionError(f"the answer has dtype {tensor.dtype} for scores of {self.dtype}")

    def numbers(self, answer: Tensor, *front: int) -> Tensor:
        """A number for each instance: (B, front)."""
        self.right_dtype(answer)
        if answer.shape != (*front, *self.batch):
            raise AssertionError(f"the answer has shape {tuple(answer.shape)}, the batch is {self.batch}")
        return answer.reshape(*front, self.count).movedim(-1, 0).detach().double()

    def unrows(self, vectors: Tensor, dtype: torch.dtype | None = None) -> Any:
        """The way back: parts of vectors (front, B, P), in the dtype of the scores or another."""
        rank = len(self.batch)
        like = [t.flatten(0, rank - 1) if rank else t.unsqueeze(0) for t in self.structure.tensors(self.scores)]
        front = vectors.shape[:-2]
        shaped = vectors.reshape(*front, *self.batch, vectors.shape[-1]).to(dtype or self.dtype)
        return self.structure.parts(unflat(shaped, like))

    def pulled(self, vectors: Tensor) -> list[Tensor]:
        """A gradient by the flat scores (B, P) as one by the scores that were passed, in float64."""
        wide = tuple(t if t is None else torch.zeros(t.shape, dtype=torch.float64).requires_grad_() for t in self.raw)
        vector = flat(self.structure.tensors(self.parts_of(wide)), self.structure).reshape(vectors.shape)
        given = [t for t in wide if t is not None]
        return list(torch.autograd.grad(vector, given, vectors, allow_unused=True, materialize_grads=True))

    def __str__(self) -> str:
        shapes = [None if t is None else tuple(t.shape) for t in self.raw]
        fields = " ".join(str(self.structure).split())
        return f"{fields} {shapes} {self.dtype} {self.base}/{self.mask} backend={self.backend}"

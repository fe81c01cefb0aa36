"""Every error says what should be, what is, and what to try."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import structmax
from structmax import Simplex, check
from structmax.contract import AbstractStructure

X = torch.zeros(2, 3)
ELSEWHERE = torch.zeros(2, 3, device="meta")
TARGET = torch.tensor([0, 1])
Q = torch.zeros(2, 4, 5, 6)


def heads(n: int) -> Tensor:
    return torch.full((n,), 1.5)


def weights(*values: float) -> Tensor:
    return torch.tensor(values)


# call, kind of error, words it must hold
ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    # what a hurried user writes
    "scores by name": (
        lambda: structmax.marginals({"unary": X, "pairwise": X}, structmax.LinearChain()),
        TypeError,
        ("`scores` should be a tuple of tensors", "are a dict", "Try LinearChainParts(**scores)"),
    ),
    "scores that are missing": (
        lambda: structmax.marginals((X, None), structmax.LinearChain()),  # type: ignore[arg-type]
        TypeError,
        ("`scores` should be a torch tensor", "is None"),
    ),
    "scores and structure swapped": (
        lambda: structmax.marginals(Simplex(), (X, X)),  # type: ignore[arg-type]
        TypeError,
        ("`structure` should be a structure", "but is tuple. Try `Simplex()`."),
    ),
    "a structure's class": (
        lambda: structmax.argmax(X, structmax.Bits),  # type: ignore[arg-type]
        TypeError,
        ("is Bits itself. Try `Bits()`.",),
    ),
    "a number of samples": (
        lambda: structmax.sample(X, Simplex(), 3),  # type: ignore[arg-type]
        TypeError,
        (
            "`sample_shape` should be a tuple of sizes",
            "but is 3. Try (3,).",
        ),
    ),
    "distances of arrays": (
        lambda: structmax.squared_distance(X.numpy(), X),  # type: ignore[arg-type]
        TypeError,
        ("`x` should be a torch tensor", "is a ndarray"),
    ),
    "a mapping that is a function": (
        lambda: structmax.nn.Attention(4, mapping=structmax.entmax15),  # type: ignore[arg-type]
        TypeError,
        ("`mapping` should be a name or a module", "is entmax15 itself", "Try mapping="),
    ),
    "nothing to expect": (
        lambda: structmax.expect(None, X, Simplex(), structmax.estimators.Enumerate()),  # type: ignore[arg-type]
        TypeError,
        ("`f` should be a function", "is None"),
    ),
    "a function of parts alone": (
        lambda: structmax.expect(lambda z: z.sum(-1), X, Simplex(), structmax.estimators.Enumerate()),  # type: ignore[arg-type]
        TypeError,
        ("`f` is called as f(parts, index), but takes (z): too many positional arguments.",),
    ),
    "a function without log-probabilities": (
        lambda: structmax.expect(
            lambda z, _: z.sum(-1), X, Simplex(), structmax.estimators.Enumerate(), with_log_prob=True
        ),
        TypeError,
        ("`f` is called as f(parts, index, log_prob), but takes (z, _)",),
    ),
    "a seed for a generator": (
        lambda: structmax.sample(X, Simplex(), generator=3),  # type: ignore[arg-type]
        TypeError,
        ("`generator` should be a torch.Generator or None, but is a int. Try torch.Generator().manual_seed(3).",),
    ),
    "a seed for noise": (
        lambda: structmax.perturb_and_map(X, Simplex(), noise=structmax.noise.Normal(), generator="0"),  # type: ignore[arg-type]
        TypeError,
        ("`generator` should be a torch.Generator or None, but is a str.",),
    ),
    "an alpha that was trained too low": (
        lambda: structmax.nn.Entmax(torch.nn.Parameter(torch.tensor(-0.1)))(X),
        ValueError,
        ("`alpha` should be > 0 everywhere, but its minimum is -0.1.",),
    ),
    "labels in one string": (
        lambda: structmax.tag_constraints("BIO"),
        TypeError,
        ("`labels` should be a list of labels", "but is 'BIO'"),
    ),
    "labels by number": (
        lambda: structmax.tag_constraints({0: "O", 1: "B-X"}),
        TypeError,
        ("`labels` should be a list of labels", "but is {0: 'O', 1: 'B-X'}"),
    ),
    "decoded nothing": (lambda: Simplex().decode(None), TypeError, ("`parts` should be as `argmax` returns them",)),  # type: ignore[arg-type]
    "decoded halves": (
        lambda: structmax.LinearChain().decode(torch.zeros(3, 3)),
        TypeError,
        ("`parts` should be shaped like scores. `scores` of a LinearChain should be (unary, pairwise)",),
    ),
    "decoded rectangle": (
        lambda: structmax.SpanningTree(single_root=True).decode(torch.zeros(3, 4)),
        ValueError,
        ("`parts` should be shaped like scores.", "(…, N + 1, N + 1)", "but have (3, 4)"),
    ),
    "too many to list": (
        lambda: structmax.Bits().enumerate(torch.zeros(60)),
        ValueError,
        ("The members of Bits should be few enough to be listed", "more than 2,236,962", "Try `topk` or `sample`"),
    ),
    "which of an array": (lambda: structmax.which(X.numpy(), Simplex()), TypeError, ("should be a torch tensor",)),
    "which of a class": (lambda: structmax.which(X, Simplex), TypeError, ("is Simplex itself",)),  # type: ignore[arg-type]
    # scores and dim
    "integer scores": (
        lambda: structmax.sparsemax(torch.zeros(3, dtype=torch.int64)),
        TypeError,
        ("`scores` should be floating point", "torch.int64", "Try `scores.float()`"),
    ),
    "scores that are no tensor": (
        lambda: structmax.sparsemax([1.0, 2.0]),  # type: ignore[arg-type]
        TypeError,
        ("`scores` should be a torch tensor", "is a list", "Try torch.as_tensor"),
    ),
    "scalar scores": (
        lambda: structmax.softmax(torch.tensor(1.0)),
        ValueError,
        ("at least one dimension", "is a scalar", "Try `scores[None]`"),
    ),
    "dim too large": (
        lambda: structmax.softmax(X, dim=2),
        ValueError,
        ("`dim` should be between -2 and 1", "shape (2, 3)", "but is 2"),
    ),
    "dim too small": (lambda: structmax.softmax(X, dim=-3), ValueError, ("between -2 and 1", "but is -3")),
    "dim that is no number": (lambda: structmax.softmax(X, dim="last"), ValueError, ("but is 'last'",)),  # type: ignore[arg-type]
    "no entries": (
        lambda: structmax.entmax15(torch.zeros(2, 0)),
        ValueError,
        ("at least one entry along `dim`=-1", "has shape (2, 0)"),
    ),
    "targets that are labels": (
        lambda: structmax.crf_loss(X, Simplex(), TARGET),
        ValueError,
        ("Scores and parts should broadcast", "are (2, 3) and (2,)", "`structure.encode`"),
    ),
    "batches of series that do not fit": (
        lambda: structmax.soft_dtw(torch.zeros(3, 5, 2), torch.zeros(4, 5, 2)),
        ValueError,
        ("batches of `x` and `y` should broadcast", "are (3,) and (4,)"),
    ),
    # masks and lengths
    "mask of numbers": (
        lambda: structmax.softmax(X, mask=torch.ones(2, 3)),
        TypeError,
        (
            "`mask` should be a bool tensor, True where an entry may be used",
            "torch.float32",
            "Try `mask.bool()`; `mask == 0`, if",
        ),
    ),
    "mask that is a list": (
        lambda: structmax.softmax(X, mask=[True]),
        TypeError,
        ("bool tensor", "is a list", "Try torch.as_tensor"),
    ),  # type: ignore[arg-type]
    "mask of another shape": (
        lambda: structmax.softmax(Q, mask=torch.ones(2, 6, dtype=torch.bool)),
        ValueError,
        ("should broadcast to the scores' shape (2, 4, 5, 6)", "has (2, 6)", "mask[:, None, None, :]"),
    ),
    "mask with more dimensions": (
        lambda: structmax.softmax(X, mask=torch.ones(1, 2, 3, dtype=torch.bool)),
        ValueError,
        ("should broadcast", "has (1, 2, 3)"),
    ),
    "mask elsewhere": (
        lambda: structmax.softmax(X, mask=ELSEWHERE.bool()),
        ValueError,
        ("`mask` should be on the device of the scores, cpu", "is on meta", "Try `mask.to(scores.device)`"),
    ),
    "lengths of floats": (
        lambda: structmax.softmax(X, lengths=torch.tensor([1.0, 2.0])),
        TypeError,
        ("`lengths` should be an integer tensor", "torch.float32", "Try lengths.long()"),
    ),
    "lengths in a list": (lambda: structmax.softmax(X, lengths=[1, 2]), TypeError, ("is a list",)),  # type: ignore[arg-type]
    "lengths of another shape": (
        lambda: structmax.softmax(X, lengths=torch.tensor([1, 2, 3])),
        ValueError,
        ("`lengths` should broadcast to the batch shape (2,)", "without `dim`", "has (3,)"),
    ),
    "lengths out of range": (
        lambda: structmax.softmax(X, lengths=torch.tensor([1, 4])),
        ValueError,
        ("`lengths` should be between 0 and 3, the size of `dim`", "between 1 and 4"),
    ),
    "negative lengths": (
        lambda: structmax.softmax(X, lengths=torch.tensor([-1, 3])),
        ValueError,
        ("between -1 and 3",),
    ),
    # parameters
    "alpha of zero": (
        lambda: structmax.entmax(X, 0.0),
        ValueError,
        ("`alpha` should be > 0, but is 0.0", "alpha = 1 is softmax, 2 is sparsemax"),
    ),
    "negative alpha": (lambda: structmax.smoothed_max(X, -1.0), ValueError, ("`alpha` should be > 0", "logsumexp")),
    "alpha that is not a number": (lambda: structmax.entmax(X, math.nan), ValueError, ("but is nan",)),
    "alpha in words": (lambda: structmax.entmax(X, "1.5"), TypeError, ("a number or a tensor", "is a str")),  # type: ignore[arg-type]
    "alpha that is a truth value": (lambda: structmax.entmax(X, True), TypeError, ("is a bool",)),
    "an alpha among others": (
        lambda: structmax.entmax(X, torch.tensor([1.5, -2.0])),
        ValueError,
        ("> 0 everywhere", "its minimum is -2"),
    ),
    "alpha of integers": (
        lambda: structmax.entmax(X, torch.tensor([1, 2])),
        TypeError,
        ("`alpha` should be floating point", "Try `alpha.float()`"),
    ),
    "alpha for other heads": (
        lambda: structmax.entmax(Q, heads(5)),
        ValueError,
        ("`alpha` is a vector of 5 numbers", "each of the 4 heads", "size 1 at `dim`"),
    ),
    "alpha of another shape": (
        lambda: structmax.entmax(Q, torch.full((4, 5, 6), 1.5)),
        ValueError,
        ("should broadcast to the scores' shape (2, 4, 5, 6) with size 1 at `dim`=-1", "has shape (4, 5, 6)"),
    ),
    "alpha elsewhere": (
        lambda: structmax.entmax(X, torch.full((2, 1), 1.5, device="meta")),
        ValueError,
        ("`alpha` should be on the device of the scores", "Try `alpha.to(scores.device)`"),
    ),
    "order of a norm": (
        lambda: structmax.normmax(X, 1.0),
        ValueError,
        ("`alpha` should be > 1, but is 1.0", "A norm of order 1 is constant on the simplex"),
    ),
    "order of a loss in a tensor": (
        lambda: structmax.normmax_loss(X, TARGET, torch.tensor(2.0)),  # type: ignore[arg-type]
        TypeError,
        ("a number > 1, but is a tensor", "Try `float(alpha)`"),
    ),
    "orders of which one is 1": (
        lambda: structmax.normmax(X, torch.tensor([2.0, 1.0])),
        ValueError,
        ("`alpha` should be > 1 everywhere, but its minimum is 1", "A norm of order 1 is constant on the simplex"),
    ),
    "k of zero": (lambda: structmax.topk_sparsemax(X, 0), ValueError, ("`k` should be a whole number ≥ 1", "is 0")),
    "k of a half": (lambda: structmax.topk(X, Simplex(), 1.5), ValueError, ("whole number ≥ 1", "is 1.5")),  # type: ignore[arg-type]
    "negative strength": (lambda: structmax.fusedmax(X, -0.1), ValueError, ("`lam` should be", "is -0.1")),
    "strength in a tensor": (
        lambda: structmax.oscarmax(X, torch.tensor(1.0)),  # type: ignore[arg-type]
        TypeError,
        ("`lam` should be a number ≥ 0, but is a tensor", "receives no gradient", "Try `float(lam)`"),
    ),
    "weights of another size": (
        lambda: structmax.prox_owl(X, weights(1.0, 0.0)),
        ValueError,
        ("`weights` should have shape (3,), one for each rank along `dim`", "has (2,)"),
    ),
    "weights that rise": (
        lambda: structmax.prox_owl(X, weights(0.0, 1.0, 2.0)),
        ValueError,
        ("non-increasing and ≥ 0", "Try `weights.sort(descending=True).values`"),
    ),
    "negative weights": (lambda: structmax.prox_owl(X, weights(1.0, 0.0, -1.0)), ValueError, ("≥ 0",)),
    "weights elsewhere": (
        lambda: structmax.prox_owl(X, torch.zeros(3, device="meta")),
        ValueError,
        ("`weights` should be on the device of the scores",),
    ),
    "temperature of an Ω as a tensor": (
        lambda: structmax.omega.SquaredNorm(torch.tensor(0.5, requires_grad=True)),
        TypeError,
        ("`temperature` should be a number", "is a tensor", "Try `float(temperature)`"),
    ),
    "temperature of zero": (lambda: structmax.gumbel_softmax(X, 0.0), ValueError, ("`temperature` should be > 0",)),
    # bounds
    "upper too small": (
        lambda: structmax.csparsemax(X, upper=0.2),
        ValueError,
        ("`upper` should sum to at least 1", "sums to 0.6 in row (0,)", "Try looser bounds"),
    ),
    "lower too large": (
        lambda: structmax.csoftmax(X, lower=0.5),
        ValueError,
        ("`lower` should sum to at most 1", "sums to 1.5 in row (0,)", "or a mask that leaves more entries"),
    ),
    "crossed bounds": (
        lambda: structmax.csparsemax(X, lower=0.3, upper=torch.tensor([1.0, 0.1, 1.0])),
        ValueError,
        ("`lower` should be ≤ `upper` everywhere", "at (0, 1) (with `dim` last)", "0.3 > 0.1"),
    ),
    "a budget nobody can spend": (
        lambda: structmax.budget(X, 4),
        ValueError,
        (
            "`budget` should be between 0 and the number of usable entries",
            "3 in row (0,), but is 4",
            "Try a smaller budget",
        ),
    ),
    "a budget below nothing": (lambda: structmax.budget(X, -1), ValueError, ("`budget` should be ≥ 0, but is -1",)),
    "a budget of a row below nothing": (
        lambda: structmax.budget(X, torch.tensor(-1.0)),
        ValueError,
        ("`budget` should be ≥ 0 everywhere, but its minimum is -1",),
    ),
    "a bound masked away": (
        lambda: structmax.csparsemax(X, upper=0.4, mask=torch.tensor([True, True, False])),
        ValueError,
        ("sums to 0.8", "a mask that leaves more entries"),
    ),
    "bounds of another shape": (
        lambda: structmax.csparsemax(X, upper=torch.ones(2)),
        ValueError,
        ("`upper` should broadcast to the scores' shape (2, 3)", "has (2,)"),
    ),
    "bounds of integers": (
        lambda: structmax.csparsemax(X, upper=torch.ones(3, dtype=torch.int64)),
        TypeError,
        ("`upper` should be floating point",),
    ),
    "bounds elsewhere": (
        lambda: structmax.csparsemax(X, upper=ELSEWHERE),
        ValueError,
        ("`upper` should be on the device of the scores",),
    ),
    # losses
    "reduction of another library": (
        lambda: structmax.entmax15_loss(X, TARGET, reduction="elementwise_mean"),
        ValueError,
        ("`reduction` should be one of 'mean', 'sum', 'none'", "is 'elementwise_mean'"),
    ),
    "smoothing above one": (
        lambda: structmax.sparsemax_loss(X, TARGET, label_smoothing=1.5),
        ValueError,
        ("`label_smoothing` should be between 0 and 1", "is 1.5"),
    ),
    "target of another shape": (
        lambda: structmax.sparsemax_loss(X, torch.tensor([0, 1, 2])),
        ValueError,
        ("`target` should have shape (2,), the scores without `dim`", "has (3,)", "floating point"),
    ),
    "target too large": (
        lambda: structmax.sparsemax_loss(X, torch.tensor([0, 3])),
        ValueError,
        ("`target` should lie between 0 and 2 or be ignore_index=-100", "holds 3"),
    ),
    "target of truth values": (
        lambda: structmax.sparsemax_loss(X, torch.tensor([True, False])),
        TypeError,
        ("integer classes or probabilities", "torch.bool"),
    ),
    "target elsewhere": (
        lambda: structmax.sparsemax_loss(X, torch.zeros(2, dtype=torch.int64, device="meta")),
        ValueError,
        ("`target` should be on the device of the scores",),
    ),
    "probabilities of another shape": (
        lambda: structmax.sparsemax_loss(X, torch.zeros(2, 4)),
        ValueError,
        ("`target` of probabilities should have the scores' shape (2, 3)", "has (2, 4)", "Classes should be integers"),
    ),
    "class weights of another size": (
        lambda: structmax.entmax_loss(X, TARGET, weight=torch.ones(2)),
        ValueError,
        ("`weight` should have shape (3,)", "has (2,)"),
    ),
    "class weights of integers": (
        lambda: structmax.entmax_loss(X, TARGET, weight=torch.ones(3, dtype=torch.int64)),
        TypeError,
        ("`weight` should be floating point",),
    ),
    "alpha of a loss in a tensor": (
        lambda: structmax.entmax_loss(X, TARGET, torch.tensor(1.5)),  # type: ignore[arg-type]
        TypeError,
        ("`alpha` of a loss should be a number", "is a tensor", "Try `float(alpha)`"),
    ),
    "alpha of a loss": (lambda: structmax.entmax_loss(X, TARGET, 0.0), ValueError, ("alpha = 1 is cross-entropy",)),
    "order of a loss": (lambda: structmax.normmax_loss(X, TARGET, 0.5), ValueError, ("`alpha` should be > 1",)),
    # structures
    "the class of a structure": (
        lambda: structmax.marginals(X, Simplex),  # type: ignore[arg-type]
        TypeError,
        ("`structure` should be a structure such as Simplex()", "is Simplex itself", "Try `Simplex()`"),
    ),
    "no structure": (lambda: structmax.argmax(X, 3), TypeError, ("`structure` should be a structure", "is 3")),  # type: ignore[arg-type]
    "scores of integers": (
        lambda: structmax.log_partition(torch.zeros(3, dtype=torch.int64), Simplex()),
        TypeError,
        ("`scores` should be floating point",),
    ),
    "scores that do not fit": (
        lambda: structmax.log_partition(torch.tensor(0.0), Simplex()),
        ValueError,
        ("`scores` of a Simplex should have shape (…, n) with n ≥ 1", "are ()"),
    ),
    "NaN under validation": (
        lambda: structmax.Distribution(torch.tensor([[0.0, math.nan]]), Simplex(), validate_args=True),
        ValueError,
        ("`scores` should hold no NaN", "holds 1, the first at (0, 1)", "set_detect_anomaly"),
    ),
    "parts of another shape": (
        lambda: structmax.Distribution(X, Simplex(), validate_args=True).log_prob(torch.zeros(5)),
        ValueError,
        ("`value` should have the scores' shape (2, 3)", "but has (5,)", "`structure.encode`"),
    ),
    "parts that are no parts": (
        lambda: structmax.Distribution(X, Simplex(), validate_args=True).log_prob(torch.full((2, 3), 0.5)),
        ValueError,
        ("made of zeros and ones", "`structure.encode` makes parts from labels"),
    ),
    # backends
    "an unknown backend": (
        lambda: structmax.softmax(X, backend="cuda"),
        ValueError,
        ("`backend` should be one of 'auto', 'triton', 'numba', 'reference'", "is 'cuda'"),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_says_what_should_be_what_is_and_what_to_try(name: str) -> None:
    call, kind, words = ERRORS[name]
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


class Mute(AbstractStructure):
    """A structure whose room answers nothing."""

    event_dim = 1

    def check(self, scores: Any) -> None: ...
    def enumerate(self, scores: Any) -> Any: ...
    def decode(self, parts: Any) -> Any: ...
    def encode(self, *what: Any) -> Any: ...
    def fields(self, tensors: Any) -> dict[str, Any]:
        return {}


def test_a_refusal_has_every_reason() -> None:
    with pytest.raises(structmax.Refusal) as caught:
        structmax.log_partition(X, Mute())
    for word in ("Mute does not support `log_partition` with backend='auto'", "triton:", "numba:", "reference:"):
        assert word in str(caught.value)
    assert issubclass(structmax.Refusal, NotImplementedError)


class Whispering(Mute):
    """A structure that answers one question, in plain torch."""

    @staticmethod
    def log_partition(x: Tensor) -> Tensor:
        return x.logsumexp(-1)


def test_a_refusal_names_what_would_work() -> None:
    with pytest.raises(structmax.Refusal) as caught:
        structmax.log_partition(X, Whispering(), backend="numba")
    for word in (
        "Whispering does not support `log_partition` with backend='numba'",
        "numba:",
        "Try backend='reference'",
    ):
        assert word in str(caught.value)
    torch.testing.assert_close(structmax.log_partition(X, Whispering(), backend="reference"), X.logsumexp(-1))


def test_errors_do_not_depend_on_the_layout() -> None:
    moved = X.t()
    with pytest.raises(ValueError, match=r"shape \(3, 2\)"):
        structmax.softmax(moved, dim=5)
    with pytest.raises(ValueError, match=r"scores' shape \(3, 2\)"):
        structmax.csparsemax(moved, upper=torch.ones(3), dim=0)


@pytest.mark.parametrize(
    ("structure", "scores"),
    [
        (structmax.BinaryTree(), torch.zeros(6, 6)),
        (structmax.LinearChain(), (torch.zeros(6, 2), torch.zeros(2, 2))),
        (structmax.Matching(), torch.zeros(6, 6)),
        (structmax.MonotoneAlignment(), torch.zeros(6, 6)),
        (structmax.ProjectiveTree(single_root=True), torch.zeros(5, 5)),
        (structmax.SpanningTree(single_root=True), torch.zeros(5, 5)),
        (structmax.ShiftReduce(), torch.zeros(11, 2)),
        (structmax.Subset(3), torch.zeros(8)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_members_are_counted_before_they_fill_the_memory(
    structure: Any, scores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = structure.tensors(structure.enumerate(scores))
    numbers = sum(t.numel() for t in tensors)
    monkeypatch.setattr(check.arguments, "MOST", numbers)
    assert len(structure.tensors(structure.enumerate(scores))[0]) == len(tensors[0])
    monkeypatch.setattr(check.arguments, "MOST", numbers - 1)
    with pytest.raises(ValueError, match=f"The members of {type(structure).__name__} should be few enough"):
        structure.enumerate(scores)


def test_one_instance_of_a_batch_is_decoded() -> None:
    chain = structmax.LinearChain(torch.tensor([3, 2]))
    best = structmax.argmax((torch.zeros(2, 3, 2), torch.zeros(2, 2)), chain)
    labels = chain.decode(best)
    assert labels[1].tolist() == chain.decode((best.unary[1], best.pairwise[1])).tolist()

"""Losses over large vocabularies: a linear layer without its scores, and words that are split over processes."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import vocabulary_split
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import structmax
from structmax.calling import ask
from structmax.structures.simplex import reference

ALPHAS = (0.8, 1.0, 1.3, 1.5, 2.0)


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, equal_nan=True)


def layer(rows: int = 7, words: int = 11, size: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Hidden states, weight and bias."""
    generator = torch.Generator().manual_seed(0)
    shapes = (rows, size), (words, size), (words,)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def words_of(rows: int = 7, words: int = 11) -> Tensor:
    return torch.randint(words, (rows,), generator=torch.Generator().manual_seed(1))


def cotangent(loss: Tensor) -> Tensor:
    return torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)


# ---------------------------------------------------------------- words split over processes


@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_words_that_are_split_over_processes(count: int, tmp_path: Any) -> None:
    torch.multiprocessing.spawn(vocabulary_split.run, (count, str(tmp_path)), nprocs=count)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.2, 1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_at_a_threshold(alpha: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 8200, generator=generator, dtype=dtype)
    x[0, 3], x[1, :8192], x[2] = -math.inf, -math.inf, 0.0
    p = structmax.entmax(x.double(), alpha)
    _, state = reference.entmax_value(x.double(), torch.zeros(3).long(), alpha, -100)
    sums = reference.entmax_sums(x, state, alpha)
    z = torch.where(p > 0, x.double() - state[:, :1], 0.0)
    slopes = torch.where(p > 0, p ** (2 - alpha), 0.0)
    close(sums, torch.stack([p.sum(-1), slopes.sum(-1), (p * z).sum(-1)], -1), 1e-8)
    close(sums[:, 0], torch.ones(3, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_the_gradient_of_a_part_of_each_row(alpha: float) -> None:
    x = torch.randn(4, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0, 20:], x[3] = -math.inf, 0.0
    target, d_value = torch.tensor([1, -(2**62), 5, -100]), torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    _, state = reference.entmax_value(x, torch.zeros(4).long(), alpha, -100)
    part, room = x[:, 18:].contiguous(), structmax.Simplex.room
    tensors, fields = (part, state, target, d_value), {"alpha": alpha, "ignored": -100}
    want = structmax.entmax(x, alpha)[:, 18:] * d_value[:, None]
    want[0, 1] -= 1.0
    want[2, 5] -= 0.5
    want[3] = 0.0
    for backend in ("numba", "reference"):
        (got,) = ask(room, "entmax_part_gradient", tensors, 1, backend, **fields)
        close(got, want, 1e-12)


# ---------------------------------------------------------------- a linear layer without its scores


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_layer_and_its_loss(alpha: float, reduction: str) -> None:
    for smoothing, block, biased in itertools.product((0.0, 0.2), (None, 1, 3, 100), (True, False)):
        tensors, target = layer(), words_of()
        target[[1, 4]] = 5
        given = tensors if biased else tensors[:2]
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": 5}
        wanted = structmax.entmax_loss(F.linear(*given), target, alpha, **options)
        bias = tensors[2] if biased else None
        loss = structmax.linear_entmax_loss(tensors[0], tensors[1], target, alpha, bias=bias, block=block, **options)
        close(loss, wanted, 1e-12)
        gradients = torch.autograd.grad(loss, given, cotangent(loss), retain_graph=True)
        for ours, theirs in zip(gradients, torch.autograd.grad(wanted, given, cotangent(wanted)), strict=True):
            close(ours, theirs, 1e-12)
        # nothing has been spent
        for again, first in zip(torch.autograd.grad(loss, given, cotangent(loss)), gradients, strict=True):
            close(again, first, 0.0)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_support_of_a_part_of_each_row(alpha: float, dtype: torch.dtype) -> None:
    x = 3 * torch.randn(6, 40, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x[0, 20:], x[3], x[4], x[5, 30] = -math.inf, 0.0, -math.inf, math.nan
    _, state = reference.entmax_value(x, torch.zeros(6).long(), alpha, -100)
    part, p = x[:, 18:].contiguous(), structmax.entmax(x, alpha)[:, 18:]
    for backend, most in itertools.product(("numba", "reference"), (1, 3, 30)):
        fields = {"alpha": alpha, "most": most}
        found, index, listed = ask(structmax.Simplex.room, "entmax_support", (part, state), 1, backend, **fields)
        assert found.tolist() == [*(p[:5] > 0).sum(1).tolist(), 22]
        for row, count in enumerate(found.clamp_max(most).tolist()):
            wanted = range(22) if row == 5 else (p[row] > 0).nonzero().squeeze(1).tolist()
            assert index[row, :count].tolist() == list(wanted)[:count]
            close(listed[row, :count], p[row, wanted][:count], 1e-6 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_listed_words(alpha: float, smoothing: float, monkeypatch: Any) -> None:
    """All rows, some of them, and none: it is the same."""
    tensors, target = layer(12, 60), words_of(12, 60)
    tensors = [(4 * tensor).detach().requires_grad_() for tensor in tensors]
    hidden, weight, bias = tensors
    target[3] = -100
    with torch.no_grad():
        # rows whose words are all alike
        hidden[5:7] *= 0.001
        bias *= 0.01

    def gradients(most: int) -> tuple[Tensor, ...]:
        monkeypatch.setattr(structmax.losses.linear, "FEW", most)
        options: dict[str, Any] = {"label_smoothing": smoothing, "block": 5, "reduction": "none"}
        loss = structmax.linear_entmax_loss(hidden, weight, target, alpha, bias=bias, **options)
        # a row without a cotangent, and all rows that are numbers
        return torch.autograd.grad(loss, tensors, cotangent(loss) * (torch.arange(12) != 7))

    counts = (structmax.entmax(F.linear(*tensors), alpha) > 0).sum(1)
    assert counts[5:7].min() > 20 > 8 >= counts[:5].max()
    none, some, every = gradients(0), gradients(8), gradients(60)
    for one, two, three in zip(none, some, every, strict=True):
        close(two, one, 1e-12)
        close(three, one, 1e-12)
    # a row that is no number is no other's matter
    with torch.no_grad():
        hidden[9, 0] = math.nan
    for most in (0, 8, 60):
        assert torch.equal(gradients(most)[0].isnan().all(1), torch.arange(12) == 9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_gradients_of_listed_words_in_half_precision(dtype: torch.dtype) -> None:
    """The probability of the target is nearly 1: what is left of it is no less exact than that of another word."""
    small = 2.0**-9
    hidden = torch.full((1, 20), -4.0, dtype=dtype)
    hidden[0, 0], hidden[0, 1] = 1, small
    hidden.requires_grad_()
    loss = structmax.linear_entmax_loss(hidden, torch.eye(20, dtype=dtype), torch.tensor([0]), 2.0)
    (d_hidden,) = torch.autograd.grad(loss, hidden)
    close(d_hidden[0, :2].double(), torch.tensor([-small / 2, small / 2], dtype=torch.float64), 1e-6)


@pytest.mark.parametrize("words", [16, 40, 64])
@pytest.mark.parametrize(("alpha", "smoothing"), [(0.9, 0.0), (1.0, 0.0), (1.5, 0.0), (1.5, 0.1), (2.0, 0.0)])
def test_rows_that_count_nothing_do_no_harm(words: int, alpha: float, smoothing: float) -> None:
    """Ignored, and no numbers; all words of the other rows have a probability, more than are listed or not."""
    tensors, target = layer(6, words), words_of(6, words)
    hidden, weight, bias = tensors
    with torch.no_grad():
        weight *= 0.001
        bias *= 0.001
    options: dict[str, Any] = {"alpha": alpha, "label_smoothing": smoothing}
    plain = structmax.entmax_loss(F.linear(*tensors), target, **options, reduction="none")
    wanted = torch.autograd.grad(plain[[0, 1, 3, 4, 5]].mean(), tensors)
    target[2] = -100
    with torch.no_grad():
        hidden[2] = math.nan
    loss = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, **options)
    for ours, theirs in zip(torch.autograd.grad(loss, tensors), wanted, strict=True):
        close(ours, theirs, 1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_where_no_word_is_allowed_there_is_no_gradient(alpha: float) -> None:
    (hidden, weight, bias), target = layer(), words_of()
    with torch.no_grad():
        bias.fill_(-math.inf)
    loss = structmax.linear_entmax_loss(hidden, weight, target, alpha, bias=bias)
    assert loss == math.inf
    for gradient in torch.autograd.grad(loss, (hidden, weight, bias)):
        assert torch.equal(gradient, torch.zeros_like(gradient))
    # the target alone is forbidden
    target[:] = 0
    with torch.no_grad():
        bias[0], bias[1:] = -math.inf, 0
    loss = structmax.linear_entmax_loss(hidden, weight, target, alpha, bias=bias, reduction="sum")
    plain = structmax.entmax_loss(F.linear(hidden, weight, bias), target, alpha, reduction="sum")
    tensors = hidden, weight, bias
    for ours, theirs in zip(torch.autograd.grad(loss, tensors), torch.autograd.grad(plain, tensors), strict=True):
        close(ours, theirs, 1e-12)


def test_only_weights_of_listed_words_are_read() -> None:
    """A vocabulary of which hardly anything is reached: nothing of its size times the rows' is multiplied backward."""
    tensors, target = layer(64, 4000, 8), words_of(64, 4000)
    tensors = [(4 * tensor).detach().requires_grad_() for tensor in tensors]
    loss = structmax.linear_entmax_loss(tensors[0], tensors[1], target, bias=tensors[2], block=16)
    with Largest() as held:
        gradients = torch.autograd.grad(loss, tensors)
    # the gradient of the weights
    assert held.elements == tensors[1].numel()
    wanted = torch.autograd.grad(structmax.entmax15_loss(F.linear(*tensors), target), tensors)
    for ours, theirs in zip(gradients, wanted, strict=True):
        close(ours, theirs, 1e-13)


def test_alpha_one_is_cross_entropy() -> None:
    (hidden, weight, bias), target = layer(), words_of()
    loss = structmax.linear_entmax_loss(hidden, weight, target, 1.0, bias=bias, label_smoothing=0.1)
    close(loss, F.cross_entropy(F.linear(hidden, weight, bias), target, label_smoothing=0.1), 1e-12)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_derivatives(reduction: str) -> None:
    hidden, weight, bias = layer(5, 6, 3)
    target = torch.tensor([0, 5, -100, 2, 2])
    for alpha, smoothing in itertools.product((1.0, 1.5), (0.0, 0.3)):
        options = {"alpha": alpha, "reduction": reduction, "label_smoothing": smoothing, "block": 2}

        def loss(h: Tensor, w: Tensor, b: Tensor, options: Any = options) -> Tensor:
            return structmax.linear_entmax_loss(h, w, target, bias=b, **options)

        assert gradcheck(loss, (hidden, weight, bias))


def test_only_the_gradients_that_are_wanted() -> None:
    (hidden, weight, bias), target = layer(), words_of()
    for reduction in ("mean", "none"):
        for kept in (hidden, weight, bias):
            given = [tensor if tensor is kept else tensor.detach() for tensor in (hidden, weight, bias)]
            loss = structmax.linear_entmax_loss(given[0], given[1], target, bias=given[2], reduction=reduction).sum()
            wanted = structmax.entmax_loss(F.linear(*given), target, reduction=reduction).sum()
            close(torch.autograd.grad(loss, kept)[0], torch.autograd.grad(wanted, kept)[0], 1e-12)
        with torch.no_grad():
            quiet = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, reduction=reduction)
        assert not quiet.requires_grad


def test_shapes_and_empty_batches() -> None:
    (hidden, weight, _), target = layer(6), words_of(6)
    folded = structmax.linear_entmax_loss(hidden.reshape(2, 3, 4), weight, target.reshape(2, 3), reduction="none")
    close(folded.flatten(), structmax.linear_entmax_loss(hidden, weight, target, reduction="none"), 0.0)
    assert folded.shape == (2, 3)
    one = structmax.linear_entmax_loss(hidden[0], weight, target[0])
    close(one, structmax.entmax_loss(F.linear(hidden[0], weight), target[0]), 1e-12)
    for reduction, wanted in (("sum", 0.0), ("mean", math.nan)):
        loss = structmax.linear_entmax_loss(hidden[:0], weight, target[:0], reduction=reduction)
        close(loss, torch.tensor(wanted, dtype=torch.float64), 0.0)
        close(torch.autograd.grad(loss, weight)[0], torch.zeros_like(weight), 0.0)
    ignored = structmax.linear_entmax_loss(hidden, weight, torch.full_like(target, -100))
    assert ignored.isnan()
    close(torch.autograd.grad(ignored, weight)[0], torch.zeros_like(weight), 0.0)


def test_forbidden_words_by_their_bias() -> None:
    (hidden, weight, bias), target = layer(), words_of().clamp_min(2)
    forbidden = torch.where(torch.arange(11) < 2, -math.inf, bias.detach())
    loss = structmax.linear_entmax_loss(hidden, weight, target, bias=forbidden)
    close(loss, structmax.linear_entmax_loss(hidden, weight[2:], target - 2, bias=forbidden[2:]), 1e-12)
    assert torch.autograd.grad(loss, weight)[0][:2].eq(0).all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_half_precision_sums_in_float32(reduction: str) -> None:
    """Over 64 blocks a sum in bfloat16 would be off by far more than its rounding."""
    tensors, target = layer(256, 8, 4, torch.bfloat16), words_of(256, 8)
    hidden, weight, bias = tensors
    loss = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, block=4, reduction=reduction)
    assert loss.dtype == torch.float32
    gradients = torch.autograd.grad(loss.sum(), tensors)
    assert all(gradient.dtype == torch.bfloat16 for gradient in gradients)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    # rounded scores, as any layer in half precision makes them
    rounded = F.linear(hidden, weight, bias).double().detach()
    scores = F.linear(*exact)
    scores = scores + (rounded - scores).detach()
    wanted = structmax.entmax_loss(scores, target, reduction=reduction)
    close(loss.double(), wanted, 1e-5)
    for ours, theirs in zip(gradients, torch.autograd.grad(wanted.sum(), exact), strict=True):
        close(ours.double(), theirs, 2**-7)


def test_autocast() -> None:
    tensors, target = layer(dtype=torch.float32), words_of()
    hidden, weight, bias = tensors
    with torch.autocast("cpu", torch.bfloat16):
        loss = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, label_smoothing=0.1)
        mixed = structmax.linear_entmax_loss(hidden.bfloat16(), weight, target, bias=bias, label_smoothing=0.1)
    close(mixed, loss, 0.0)
    narrow = [tensor.bfloat16() for tensor in tensors]
    close(loss, structmax.linear_entmax_loss(*narrow[:2], target, bias=narrow[2], label_smoothing=0.1), 0.0)
    for gradient, tensor in zip(torch.autograd.grad(loss, tensors), tensors, strict=True):
        assert gradient.dtype == tensor.dtype == torch.float32


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that is made, beside the views of what there is."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_scores_are_never_in_memory(reduction: str) -> None:
    rows, words, size = 256, 512, 8
    tensors, target = layer(rows, words, size, torch.float32), words_of(rows, words)
    hidden, weight, bias = tensors
    with Largest() as held:
        loss = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, label_smoothing=0.1, reduction=reduction)
        loss.sum().backward()
    # a sixteenth of the scores: more than the hidden states and the weight
    assert held.elements == rows * words // 16 > weight.numel() > hidden.numel()
    with Largest() as plain:
        structmax.entmax_loss(F.linear(*tensors), target).backward()
    assert plain.elements == rows * words


def test_the_default_block() -> None:
    block = functools.partial(structmax.losses.linear._default_block, on_gpu=False)
    # scores as large as the hidden states, where that is many rows
    assert block(8192, 4096, 16000) == 8192 * 4096 // 16000
    # a sixteenth, up to enough for a product
    assert block(8192, 4096, 128000) == 512
    assert block(65536, 512, 128000) == 1024
    assert block(1, 4, 100) == block(0, 4, 100) == 1
    # fewer scores than that keep no GPU busy
    assert block(50_000, 5, 256, on_gpu=True) == 2**16
    assert block(65536, 512, 128000, on_gpu=True) == 1024


# ---------------------------------------------------------------- a layer of few inputs


@pytest.mark.parametrize(("rows", "words", "size"), [(1, 64, 1), (7, 65, 4), (1700, 90, 5), (40, 300, 32)])
@pytest.mark.parametrize("backend", ["auto", "numba", "reference"])
def test_a_layer_of_few_inputs(rows: int, words: int, size: int, backend: str) -> None:
    tensors, target = layer(rows, words, size), words_of(rows, words)
    tensors[2].data[[0, 3]] = -math.inf
    target[::5] = -100
    target[rows // 2] = 3
    hidden, weight, bias = tensors
    options: dict[str, Any] = {"alpha": 1.0, "reduction": "none", "backend": backend}
    loss = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, **options)
    # with a block that is given it goes another way
    wanted = structmax.linear_entmax_loss(hidden, weight, target, bias=bias, block=max(1, rows), **options)
    close(loss, wanted, 1e-12)
    assert loss[rows // 2] == math.inf
    gradients = torch.autograd.grad(loss, tensors, cotangent(loss))
    for ours, theirs in zip(gradients, torch.autograd.grad(wanted, tensors, cotangent(wanted)), strict=True):
        close(ours, theirs, 1e-11)
    finite = loss.isfinite()
    plain = F.cross_entropy(F.linear(*tensors), target, reduction="none")
    close(loss[finite], plain[finite], 1e-12)


def test_few_inputs_in_any_dtype_and_on_any_number_of_threads() -> None:
    target, threads = words_of(2000, 100), torch.get_num_threads()
    for dtype, tolerance in ((torch.float32, 2e-4), (torch.bfloat16, 2**-6), (torch.float16, 2**-8)):
        tensors = layer(2000, 100, 3, dtype)
        hidden, weight, bias = tensors
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            loss = structmax.linear_entmax_loss(hidden, weight, target, 1.0, bias=bias)
            found.append(torch.autograd.grad(loss, tensors))
        torch.set_num_threads(threads)
        exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
        wanted = F.cross_entropy(F.linear(*exact), target)
        close(loss.double(), wanted, 1e-5)
        assert loss.dtype == torch.float32
        for one, two, theirs in zip(*found, torch.autograd.grad(wanted, exact), strict=True):
            assert one.dtype == dtype
            close(one, two, 0.0)
            close(one.double() / theirs.abs().max(), theirs / theirs.abs().max(), tolerance)


def test_few_inputs_that_are_no_numbers() -> None:
    tensors, target = layer(5, 64, 3), words_of(5, 64)
    hidden, weight, bias = tensors
    hidden.data[1, 0] = math.nan
    hidden.data[3, 1] = math.inf
    loss = structmax.linear_entmax_loss(hidden, weight, target, 1.0, bias=bias, reduction="none")
    assert loss.isnan().tolist() == [False, True, False, True, False]
    (d_hidden,) = torch.autograd.grad(loss.sum(), hidden)
    assert d_hidden.isnan().all(-1).tolist() == [False, True, False, True, False]
    nothing = structmax.linear_entmax_loss(hidden[:1], weight, target[:1], 1.0, bias=torch.full_like(bias, -math.inf))
    assert nothing == math.inf
    for gradient in torch.autograd.grad(nothing, (hidden, weight)):
        close(gradient, torch.zeros_like(gradient), 0.0)
    # any number of words: whole vectors of them, or not
    for words in (79, 80):
        endless, against = torch.full((1, 3), math.inf, requires_grad=True), -torch.ones(words, 3)
        loss = structmax.linear_entmax_loss(endless, against, torch.tensor([0]), 1.0)
        assert loss == math.inf
        assert torch.equal(torch.autograd.grad(loss, endless)[0], torch.zeros(1, 3))
    # one word is no number, all others are forbidden
    against = torch.ones(80, 3)
    against[7, 0] = math.nan
    forbidden = torch.full((80,), -math.inf, requires_grad=True)
    loss = structmax.linear_entmax_loss(torch.ones(1, 3), against, torch.tensor([0]), 1.0, bias=forbidden)
    assert loss.isnan()
    assert torch.autograd.grad(loss, forbidden)[0].isnan().all()


def test_few_inputs_leave_no_scores_in_memory() -> None:
    rows, words = 4096, 256
    tensors, target = layer(rows, words, 5, torch.float32), words_of(rows, words)
    with Largest() as held:
        structmax.linear_entmax_loss(tensors[0], tensors[1], target, 1.0, bias=tensors[2]).backward()
    assert held.elements <= tensors[0].numel()
    assert gradcheck(
        lambda h, w, b: structmax.linear_entmax_loss(h, w, words_of(6, 70), 1.0, bias=b), tuple(layer(6, 70, 2))
    )


def test_module() -> None:
    (hidden, weight, bias), target = layer(), words_of()
    module = structmax.nn.LinearEntmaxLoss(2.0, label_smoothing=0.1, block=2)
    wanted = structmax.entmax_loss(F.linear(hidden, weight, bias), target, 2.0, label_smoothing=0.1)
    close(module(hidden, weight, target, bias), wanted, 1e-12)
    assert "alpha=2.0" in repr(module)


def test_what_is_refused() -> None:
    (hidden, weight, bias), target = layer(), words_of()
    loss = functools.partial(structmax.linear_entmax_loss, hidden, weight, target)
    (gradient,) = torch.autograd.grad(loss(bias=bias), hidden, create_graph=True)
    with pytest.raises(NotImplementedError, match="A linear layer with its entmax loss has first derivatives only"):
        gradient.sum().backward()
    with pytest.raises(NotImplementedError, match="A linear layer with its entmax loss has no rule for torch"):
        torch.func.grad(lambda h: structmax.linear_entmax_loss(h, weight.detach(), target))(hidden.detach())
    with pytest.raises(TypeError, match="`alpha` should be a number, but is a tensor"):
        loss(torch.tensor(1.5))
    with pytest.raises(ValueError, match="`alpha` should be at most 2 where words are split"):
        loss(2.5)
    with pytest.raises(ValueError, match="`reduction` should be one of 'mean', 'sum', 'none', but is 'max'"):
        loss(reduction="max")
    with pytest.raises(ValueError, match="`label_smoothing` should be between 0 and 1"):
        loss(label_smoothing=2.0)
    with pytest.raises(ValueError, match="`block` should be a whole number ≥ 1, but is 0"):
        loss(block=0)
    with pytest.raises(ValueError, match=r"`bias` should have shape \(11,\), but has \(3,\)"):
        loss(bias=bias[:3])
    with pytest.raises(TypeError, match=r"`bias` should have the dtype of `hidden`, torch\.float64, but"):
        loss(bias=bias.float())
    with pytest.raises(ValueError, match=r"shapes \(…, d\) and \(n, d\), but have \(7, 4\) and \(4, 11\)"):
        structmax.linear_entmax_loss(hidden, weight.T, target)
    with pytest.raises(ValueError, match="`weight` should have at least one word"):
        structmax.linear_entmax_loss(hidden, weight[:0], target)
    with pytest.raises(ValueError, match="`target` should lie between 0 and 10"):
        structmax.linear_entmax_loss(hidden, weight, target + 11)
    with pytest.raises(TypeError, match="`target` should hold integer classes here"):
        structmax.linear_entmax_loss(hidden, weight, torch.ones(7, 11))

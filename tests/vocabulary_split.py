"""What each process of a group runs: losses of a vocabulary that is split are those of one process.

Every process knows the whole scores, gives its own words to the loss, and compares with `entmax_loss` of all of them.
"""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import structmax

WORDS, HIDDEN, IGNORED = 13, 5, 3
# uneven, and one process has no words
SPLITS = {2: ((9, 4), (13, 0)), 3: ((6, 0, 7), (1, 10, 2))}
ALPHAS = (0.8, 1.0, 1.3, 1.5, 2.0)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def run(rank: int, count: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
    try:
        for check in (losses, layers, precision, placements, traffic, refusals):
            check(rank, count)
    finally:
        distributed.destroy_process_group()


def instances(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scores (2, 6, WORDS) and targets, some IGNORED: ties, forbidden words, a row far from zero, one with a NaN."""
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.randn(2, 6, WORDS, generator=generator, dtype=torch.float64)
    target = torch.randint(WORDS, (2, 6), generator=generator)
    x[0, 1] = x[0, 1].round()
    x[0, 2] = 0.0
    # words of whole processes are forbidden
    x[0, 3, :6], x[0, 4, 6:] = -math.inf, -math.inf
    target[0, 3], target[0, 4] = 7, 2
    x[0, 5] = x[0, 5] + 512
    # the target leads by far, or is far behind
    x[1, 0, target[1, 0]], x[1, 1, target[1, 1]] = 20.0, -20.0
    target[1, 2] = target[0, 0] = IGNORED
    x[1, 2, 4] = math.nan
    return x.to(dtype), target


def own(x: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
    """This process's words, along the last dimension."""
    return x.split(sizes, -1)[rank].detach().clone().requires_grad_()


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, equal_nan=True)


def cotangent(loss: Tensor) -> Tensor:
    return torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)


def settings() -> list[dict[str, Any]]:
    """Every α, reduction and smoothing, though not all of their combinations."""
    every = itertools.product(ALPHAS, (("mean", 0.0), ("mean", 0.1), ("sum", 0.1), ("none", 0.0)))
    return [{"alpha": a, "reduction": r, "label_smoothing": s, "ignore_index": IGNORED} for a, (r, s) in every]


def losses(rank: int, count: int) -> None:
    for dtype, sizes, options in itertools.product(TOLERANCE, SPLITS[count], settings()):
        scores, target = instances(dtype)
        if options["label_smoothing"]:
            # a mean over forbidden words is −inf
            scores = scores.clamp_min(-30)
        whole, mine = scores.clone().requires_grad_(), own(scores, sizes, rank)
        wanted = structmax.entmax_loss(whole, target, **options)
        loss = structmax.entmax_loss(mine, target, group=distributed.group.WORLD, **options)
        close(loss, wanted, TOLERANCE[dtype])
        (d_whole,) = torch.autograd.grad(wanted, whole, cotangent(wanted))
        (d_mine,) = torch.autograd.grad(loss, mine, cotangent(loss))
        close(d_mine, d_whole.split(sizes, -1)[rank], TOLERANCE[dtype])
    broken_rows(rank, count)
    other_dimensions(rank, count)


def broken_rows(rank: int, count: int) -> None:
    """A NaN and +inf stay in their rows; nothing feasible, or a forbidden target, costs +inf."""
    scores, target = instances(torch.float64)
    scores[0, 1, 12], scores[0, 2, 0], scores[0, 3], scores[1, 4, 0] = math.nan, math.inf, -math.inf, -math.inf
    target[0, 1:3], target[1, 4] = 1, 0
    for alpha, sizes in itertools.product(ALPHAS, SPLITS[count]):
        mine = own(scores, sizes, rank)
        loss = structmax.entmax_loss(
            mine, target, alpha, reduction="none", ignore_index=IGNORED, group=distributed.group.WORLD
        )
        close(loss, structmax.entmax_loss(scores, target, alpha, reduction="none", ignore_index=IGNORED), 1e-12)
        assert loss[0].isnan().tolist() == [False, True, True, False, False, False]
        assert loss[0, 3] == loss[1, 4] == math.inf
        (gradient,) = torch.autograd.grad(loss[0, 3] + loss[1].sum(), mine)
        assert gradient.isfinite().all()
        close(gradient[0], torch.zeros_like(gradient[0]), 0.0)


def other_dimensions(rank: int, count: int) -> None:
    scores, target = instances(torch.float64)
    sizes, options = SPLITS[count][0], {"ignore_index": IGNORED, "group": distributed.group.WORLD}
    wanted = structmax.entmax_loss(scores, target, ignore_index=IGNORED)
    close(structmax.entmax_loss(own(scores, sizes, rank).movedim(-1, 0), target, dim=0, **options), wanted, 1e-12)
    one = structmax.entmax_loss(own(scores[0, 1], sizes, rank), target[0, 1], **options)
    close(one, structmax.entmax_loss(scores[0, 1], target[0, 1]), 1e-12)
    none = structmax.entmax_loss(own(scores[:0], sizes, rank), target[:0], reduction="sum", **options)
    close(none, torch.zeros((), dtype=torch.float64), 0.0)


def layer(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, weights, bias and targets. Scores are near 1, so that float32 has seven digits after the point."""
    generator = torch.Generator().manual_seed(1)
    hidden, weight, bias = (
        (0.5 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
        for shape in ((2, 7, HIDDEN), (WORDS, HIDDEN), (WORDS,))
    )
    target = torch.randint(WORDS, (2, 7), generator=generator)
    target[0, 2] = target[1, 6] = IGNORED
    return hidden, weight, bias, target


def layers(rank: int, count: int) -> None:
    every = itertools.product(TOLERANCE, SPLITS[count], (1.0, 1.5), ("mean", "sum", "none"), (0.0, 0.1))
    for dtype, sizes, alpha, reduction, smoothing in every:
        options = {"alpha": alpha, "reduction": reduction, "label_smoothing": smoothing, "ignore_index": IGNORED}
        hidden, weight, bias, target = layer(dtype)
        whole = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        wanted = structmax.entmax_loss(F.linear(*whole), target, **options)
        d_hidden, d_weight, d_bias = torch.autograd.grad(wanted, whole, cotangent(wanted))
        mine = [hidden.clone().requires_grad_(), own(weight.T, sizes, rank), own(bias, sizes, rank)]
        # by default the block is the same for all, whatever the number of their words
        block = None if alpha == 1 else 5
        loss = structmax.linear_entmax_loss(
            mine[0], mine[1].T, target, bias=mine[2], block=block, group=distributed.group.WORLD, **options
        )
        close(loss, wanted, TOLERANCE[dtype])
        gradients = torch.autograd.grad(loss, mine, cotangent(loss))
        close(gradients[0], d_hidden, TOLERANCE[dtype])
        close(gradients[1], d_weight.T.split(sizes, -1)[rank], TOLERANCE[dtype])
        close(gradients[2], d_bias.split(sizes)[rank], TOLERANCE[dtype])


def precision(rank: int, count: int) -> None:
    """Long rows, in half precision too, with as many words on one process as on all others."""
    generator = torch.Generator().manual_seed(2)
    scores, target = torch.randn(4, 3000, generator=generator), torch.randint(3000, (4,), generator=generator)
    sizes = (3000 - 100 * (count - 1), *(100,) * (count - 1))
    for alpha, dtype in itertools.product((1.0, 1.5, 2.0), (torch.float32, torch.bfloat16)):
        x = (3 * scores).to(dtype)
        mine = own(x, sizes, rank)
        loss = structmax.entmax_loss(mine, target, alpha, reduction="none", group=distributed.group.WORLD)
        assert loss.dtype == dtype
        exact = x.double().requires_grad_()
        wanted = structmax.entmax_loss(exact, target, alpha, reduction="none")
        # rounding at the end alone
        close(loss.double(), wanted, 1e-6 if dtype == torch.float32 else 2**-8)
        (gradient,) = torch.autograd.grad(loss.sum(), mine)
        (d_exact,) = torch.autograd.grad(wanted.sum(), exact)
        close(gradient.double(), d_exact.split(sizes, -1)[rank], 1e-6 if dtype == torch.float32 else 2**-8)


def placements(rank: int, count: int) -> None:
    """DTensors that are split along their words, also into fewer slices than there are processes."""
    mesh = init_device_mesh("cpu", (count,))
    for words in (WORDS, 2):
        scores, target = instances(torch.float64)[0][..., :words].clone(), torch.zeros(2, 6, dtype=torch.int64)
        target[1, 2] = -100
        whole = scores.clone().requires_grad_()
        split = distribute_tensor(scores, mesh, [Shard(2)]).requires_grad_()
        wanted = structmax.entmax15_loss(whole, target)
        loss = structmax.entmax15_loss(split, target)
        assert isinstance(loss, DTensor)
        close(loss.full_tensor(), wanted, 1e-12)
        loss.backward()
        wanted.backward()
        assert split.grad.placements == (Shard(2),)
        close(split.grad.full_tensor(), whole.grad, 1e-12)
    hidden, weight, bias, target = layer(torch.float64)
    target[target == IGNORED] = -100
    whole = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
    wanted = structmax.entmax_loss(F.linear(*whole), target)
    wanted.backward()
    for place_hidden in (False, True):
        mine = [hidden.clone(), distribute_tensor(weight, mesh, [Shard(0)]), distribute_tensor(bias, mesh, [Shard(0)])]
        if place_hidden:
            mine[0] = distribute_tensor(hidden, mesh, [Replicate()])
        mine = [tensor.requires_grad_() for tensor in mine]
        loss = structmax.linear_entmax_loss(mine[0], mine[1], target, bias=mine[2], block=3)
        # a DTensor where the hidden states are one
        assert isinstance(loss, DTensor) == place_hidden
        close(loss.full_tensor() if place_hidden else loss, wanted, 1e-12)
        loss.backward()
        for ours, theirs in zip(mine, whole, strict=True):
            grad = ours.grad.full_tensor() if isinstance(ours.grad, DTensor) else ours.grad
            close(grad, theirs.grad, 1e-12)


def traffic(rank: int, count: int) -> None:
    """A few numbers per row and round: never the scores."""
    sent: list[int] = []
    reduce = distributed.all_reduce
    generator = torch.Generator().manual_seed(3)
    scores, target = 3 * torch.randn(8, 600, generator=generator), torch.randint(600, (8,), generator=generator)
    mine = own(scores, (600 - 50 * (count - 1), *(50,) * (count - 1)), rank)

    def counted(tensor: Tensor, *arguments: Any, **named: Any) -> Any:
        sent.append(tensor.numel())
        return reduce(tensor, *arguments, **named)

    distributed.all_reduce = counted
    try:
        for alpha, rounds in ((1.0, 1), (1.25, 8), (1.5, 8), (2.0, 8)):
            sent.clear()
            loss = structmax.entmax_loss(mine, target, alpha, group=distributed.group.WORLD)
            assert sent[:2] == [2 * 8, 4 * 8]
            assert set(sent[2:]) <= {3 * 8}
            assert len(sent) <= 1 + rounds
            forward = len(sent)
            loss.backward()
            assert len(sent) == forward
    finally:
        distributed.all_reduce = reduce


def refusals(rank: int, count: int) -> None:
    world = distributed.group.WORLD
    x, target = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="`alpha` should be at most 2 where words are split"):
        structmax.entmax_loss(x, target, 2.5, group=world)
    with pytest.raises(ValueError, match="`alpha` should be at most 2 where words are split"):
        structmax.linear_entmax_loss(x, torch.zeros(2, 4), target, 2.5, group=world)
    with pytest.raises(ValueError, match="`weight` should be None where the classes are split"):
        structmax.entmax_loss(x, target, weight=torch.ones(4), group=world)
    with pytest.raises(TypeError, match="`target` should hold integer classes here"):
        structmax.entmax_loss(x, torch.ones(3, 4), group=world)
    with pytest.raises(ValueError, match=f"`target` should lie between 0 and {4 * count - 1} or be ignore_index=-100"):
        structmax.entmax_loss(x, target + 4 * count, group=world)
    with pytest.raises(ValueError, match=r"should have the same rows, each its own words of them, but have \[1, 2"):
        structmax.entmax_loss(x[:1].repeat(rank + 1, 1), target[: rank + 1], group=world)
    with pytest.raises(ValueError, match="should have at least one word between them"):
        structmax.entmax_loss(x[:, :0], target, group=world)
    mesh = init_device_mesh("cpu", (count,))
    with pytest.raises(ValueError, match=r"`scores` as a DTensor should be split along its words .* \[Shard\(1\)\]"):
        structmax.entmax_loss(distribute_tensor(x, mesh, [Replicate()]), target)
    with pytest.raises(ValueError, match=r"`hidden` as a DTensor should be the same on all processes"):
        structmax.linear_entmax_loss(distribute_tensor(x, mesh, [Shard(0)]), torch.zeros(2, 4), target)
    first = distributed.new_group([0])
    if rank:
        with pytest.raises(ValueError, match="`group` should be a group of processes that this one belongs to"):
            structmax.entmax_loss(x, target, group=first)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(structmax.entmax_loss(x, target, group=world), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="split over processes has first derivatives only"):
        gradient.sum().backward()

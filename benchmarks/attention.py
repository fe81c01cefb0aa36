"""Times entmax attention and the memory it takes: `python benchmarks/attention.py`, `--tokens 2048 8192`.

A step is the output and the gradients of queries, keys and values; all contenders take turns, and their kernels are
compiled before. Scores are random, with a standard deviation of 1 times the sharpness: the larger it is, the fewer keys
have a weight. Yet any block of keys then has one that some query reads. With several topics, each run of 64 tokens has
one, drawn at random, and reads the tokens of its own topic alone. `blocks` is the share of blocks of 64 queries and 64
keys that have any weight, of those a causal mask leaves. `error` is that of the output and of the worst gradient,
relative to the largest number, against float64 on the first tokens.
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.measure import peak_mib, take_turns
from benchmarks.run import DTYPES, RESULTS, Stamp, save, show_fields

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
# instances, heads, numbers of a head, tokens, dtype
SIZES = {"cuda": (4, 16, 64, [2048, 8192], "bfloat16"), "cpu": (1, 2, 16, [128], "float32")}
BUDGET_MS = 10000.0
BLOCK = 64
# How much larger than the rest of queries and keys what those of a topic have in common is.
APART = 2.0
# tokens that are compared with float64
JUDGED = 1024


def keeping_scores(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The weights of all pairs in memory at once."""
    may = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return structmax.entmax15(query @ key.mT * query.shape[-1] ** -0.5, mask=may) @ value


CONTENDERS: dict[str, Attention] = {
    "scaled_dot_product_attention": partial(F.scaled_dot_product_attention, is_causal=True),
    "entmax_attention": partial(structmax.entmax_attention, is_causal=True),
    "entmax_attention, sparsemax": partial(structmax.entmax_attention, is_causal=True, alpha=2.0),
    "entmax_attention, alpha 1.3": partial(structmax.entmax_attention, is_causal=True, alpha=1.3),
    "entmax15, scores kept": keeping_scores,
}
# what a contender should have computed
TRUE: dict[str, Attention] = {
    "scaled_dot_product_attention": CONTENDERS["scaled_dot_product_attention"],
    "entmax15, scores kept": CONTENDERS["entmax_attention"],
}


@dataclass(frozen=True)
class Row:
    """A contender's step, in milliseconds and times the first contender's, what it holds, and how far it is off."""

    shape: str
    dtype: str
    sharpness: float
    topics: int
    blocks: float
    attention: str
    step_ms: float
    ratio: float
    peak_mib: float | None
    error: float
    gradient_error: float
    rounds: int


def inputs(
    shape: tuple[int, ...], sharpness: float, topics: int, dtype: torch.dtype, device: str
) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    query, key, value = (torch.randn(shape, device=device) for _ in range(3))
    query = sharpness * query
    if topics > 1:
        of_topics = torch.randn(topics, shape[-1], device=device)
        runs = torch.randint(topics, (-(-shape[-2] // BLOCK),), device=device)
        common = APART * of_topics[runs.repeat_interleave(BLOCK)[: shape[-2]]]
        query, key = query + common, key + common
    return tuple(t.to(dtype).requires_grad_() for t in (query, key, value))


def cotangent(query: Tensor) -> Tensor:
    """Of the output, which is shaped like the queries."""
    return torch.ones_like(query.detach()).cumsum(-1) / query.shape[-1]


def step(attention: Attention, d_out: Tensor, *tensors: Tensor) -> list[Tensor]:
    out = attention(*tensors)
    return [out.detach(), *torch.autograd.grad(out, tensors, d_out)]


def live_share(query: Tensor, key: Tensor) -> float:
    """The share of blocks below the diagonal with a weight, of one head."""
    x = (query[0, 0].detach() @ key[0, 0].detach().mT).float() * query.shape[-1] ** -0.5
    weights = structmax.entmax15(x, mask=torch.ones_like(x, dtype=torch.bool).tril())
    blocks = F.max_pool2d(weights[None, None], BLOCK, ceil_mode=True)[0, 0]
    below = torch.ones_like(blocks, dtype=torch.bool).tril()
    return float((blocks[below] > 0).float().mean())


def errors(name: str, tensors: tuple[Tensor, ...]) -> list[float]:
    """Of the output, and of the worst gradient, on the first tokens."""
    few = tuple(t[:1, :2, :JUDGED].detach().requires_grad_() for t in tensors)
    wide = tuple(t.detach().double().requires_grad_() for t in few)
    got = step(CONTENDERS[name], cotangent(few[0]), *few)
    want = step(TRUE.get(name, CONTENDERS[name]), cotangent(wide[0]), *wide)
    worst = [float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(got, want, strict=True)]
    return [worst[0], max(worst[1:])]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(SIZES), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--size", type=int, help="numbers of a head")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--sharpness", type=float, nargs="+", default=[1.0, 4.0, 16.0, 64.0], help="of the scores")
    parser.add_argument("--topics", type=int, nargs="+", default=[1], help="of which a token reads one")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    instances, heads, size, tokens, dtype = SIZES[given.device]
    size, dtype = given.size or size, given.dtype or dtype
    stamp, rows = Stamp.now(given.device), []
    print(f"{stamp.device}, {instances} x {heads} heads of {size}, {dtype}")
    for count, sharpness, topics in itertools.product(given.tokens or tokens, given.sharpness, given.topics):
        shape = instances, heads, count, size
        tensors = inputs(shape, sharpness, topics, DTYPES[dtype], given.device)
        d_out = cotangent(tensors[0])
        calls = {name: partial(step, attention, d_out, *tensors) for name, attention in CONTENDERS.items()}
        held = {name: (call(), peak_mib(call, given.device))[1] for name, call in calls.items()}
        times = take_turns(calls, given.device, given.rounds, BUDGET_MS)
        baseline, live = median(times["scaled_dot_product_attention"]), live_share(*tensors[:2])
        for name, samples in times.items():
            middle = median(samples)
            where = "x".join(map(str, shape)), dtype, sharpness, topics, live
            measured = middle, middle / baseline, held[name], *errors(name, tensors)
            rows.append(Row(*where, name, *measured, len(samples)))
    show_fields(rows, "dtype", "rounds")
    print(f"written to {save(rows, stamp, 'attention', given.results)}")


if __name__ == "__main__":
    main()

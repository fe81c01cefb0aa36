"""Times the host around small calls on a GPU: `python benchmarks/small_calls.py`.

A call forward and backward of a few rows keeps a GPU busy for less time than its launches take, so that calls one after
the other take the time of the host. All take turns; the last column is their time over that of torch.softmax.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structmax
from benchmarks.run import device_name, show

Call = Callable[[Tensor, Tensor], Tensor]
MAPPINGS: dict[str, Call] = {
    "torch.softmax": lambda x, _: torch.softmax(x, -1),
    "softmax": lambda x, _: structmax.softmax(x),
    "sparsemax": lambda x, _: structmax.sparsemax(x),
    "entmax15": lambda x, _: structmax.entmax15(x),
    "entmax 1.3": lambda x, _: structmax.entmax(x, 1.3),
}
LOSSES: dict[str, Call] = {
    "cross_entropy": F.cross_entropy,
    "sparsemax_loss": structmax.sparsemax_loss,
    "entmax15_loss": structmax.entmax15_loss,
    "entmax_loss 1.3": lambda x, y: structmax.entmax_loss(x, y, 1.3),
}
BASELINE = "torch.softmax"
# Calls one after the other before the host waits for the GPU.
CALLS = 100


def microseconds(call: Call, x: Tensor, y: Tensor, d_p: Tensor) -> float:
    """Of one call forward and backward, on the host."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        out = call(x, y)
        torch.autograd.grad(out, x, d_p if out.dim() else None)
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * elapsed / CALLS


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--size", type=int, default=64, help="numbers of a row")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args(arguments)
    torch.manual_seed(0)
    x, d_p = torch.randn(2, given.rows, given.size, device="cuda")
    x, y = x.clone().requires_grad_(), torch.randint(given.size, (given.rows,), device="cuda")
    print(f"{device_name('cuda')}, torch {torch.__version__}, {given.rows} x {given.size}")
    calls = MAPPINGS | LOSSES
    for call in calls.values():
        microseconds(call, x, y, d_p)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            times[name].append(microseconds(call, x, y, d_p))
    baseline = median(times[BASELINE])
    lines = [[name, f"{median(t):.1f}", f"{median(t) / baseline:.2f}x"] for name, t in times.items()]
    show(["forward and backward", "host, µs", "ratio"], lines)


if __name__ == "__main__":
    main()

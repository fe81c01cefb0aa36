"""The clocks and the scales: times of contenders that take turns, and the most memory a call holds at once."""

import ctypes
import functools
import gc
import re
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)

# Larger than the second-level cache of any GPU: zeroed before a call, it leaves nothing of the inputs there.
FLUSH_BYTES = 256 * 2**20
MIB = 2**20


def take_turns(
    calls: dict[Key, Callable[[], object]], device: str, rounds: int, budget_ms: float
) -> dict[Key, list[float]]:
    """Milliseconds of each call in each round. All meet the same machine, and each round begins with another.

    A call that has used up its budget sits out the rest, so that one slow contender does not hold up the run.
    """
    samples: dict[Key, list[float]] = {key: [] for key in calls}
    order = list(calls)
    for turn in range(rounds):
        first = turn % len(order)
        for key in order[first:] + order[:first]:
            if sum(samples[key]) < budget_ms:
                samples[key].append(milliseconds(calls[key], device))
    return samples


def milliseconds(call: Callable[[], object], device: str) -> float:
    """The time of one call. What it returns is freed after the clock has stopped."""
    if device == "cpu":
        start = time.perf_counter()
        kept = call()
        elapsed = 1e3 * (time.perf_counter() - start)
        del kept
        return elapsed
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # Every contender starts from an idle queue; the flush hides the launch of the first kernel, as in training.
    torch.cuda.synchronize()
    _flush_buffer().zero_()
    begin.record()
    kept = call()
    end.record()
    end.synchronize()
    del kept
    return begin.elapsed_time(end)


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph: what is timed is the GPU alone, without the host that launches its kernels."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = call()

    def replay() -> object:
        graph.replay()
        return kept

    return replay


@functools.cache
def _flush_buffer() -> Tensor:
    return torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")


def peak_mib(call: Callable[[], object], device: str) -> float | None:
    """The most memory the call holds at once beyond what was held before it: its outputs and every temporary.

    On the CPU it is the peak of the process's resident memory, which sees torch, NumPy and Numba alike; None where the
    system does not let it be reset.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = call()
        torch.cuda.synchronize()
        del kept
        return (torch.cuda.max_memory_allocated() - held) / MIB
    gc.collect()
    if not _reset_resident_peak():
        return None
    before = _resident_mib("VmRSS")
    kept = call()
    peak = _resident_mib("VmHWM")
    del kept
    return peak - before


def _reset_resident_peak() -> bool:
    """Hands freed memory back to the system, so that the call cannot reuse it unseen, and resets the peak."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def _resident_mib(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found, f"{field} is not in /proc/self/status"
    return int(found[1]) / 1024

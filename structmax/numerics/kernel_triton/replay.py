"""A step that is repeated many times, as a CUDA graph: the host launches all of its kernels at once."""

import threading
from collections.abc import Callable
from typing import Any

import torch


class _Pools(threading.local):
    """The memory of the graphs of each GPU. A thread has its own: graphs that share memory may not run together."""

    def __init__(self) -> None:
        self.of_device: dict[int, tuple[Any, torch.cuda.CUDAGraph]] = {}


_pools = _Pools()


def recorded(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The step, whose kernels have been compiled, as a graph to be replayed; without a GPU the step itself.

    What a replay leaves is used before another step is recorded.
    """
    if device.type != "cuda":
        return step
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _pools.of_device:
        # Memory is kept from graph to graph as long as one of them lives.
        handle = torch.cuda.graph_pool_handle()
        _pools.of_device[index] = handle, _graph(lambda: torch.zeros(1, device=device), device, handle)
    return _graph(step, device, _pools.of_device[index][0]).replay


def _graph(step: Callable[[], object], device: torch.device, pool: Any) -> torch.cuda.CUDAGraph:
    graph, stream, current = torch.cuda.CUDAGraph(), torch.cuda.Stream(device), torch.cuda.current_stream(device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        # What other threads do in the meantime is theirs.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
    current.wait_stream(stream)
    return graph

"""Lists the hyperedges of a user's generator at compiled speed. The questions themselves are answered for all alike."""

import functools
from collections.abc import Callable

import numba
import numpy as np


def _list_edges(edges: Callable, *sizes: int) -> np.ndarray:
    """All that `edges(*sizes)` yields, as rows (E, 2 + T) int64."""
    try:
        return _collector(edges)(*sizes)
    except numba.core.errors.NumbaError as error:
        raise TypeError(
            f"`edges` should be loops and arithmetic that yield whole numbers, as many in each edge, but Numba cannot "
            f"compile {edges.__name__!r}: its reason is above. Try `Hypergraph(head, tails, part)` with tensors."
        ) from error


@functools.lru_cache(maxsize=32)
def _collector(edges: Callable) -> Callable:
    compiled = edges if isinstance(edges, numba.core.dispatcher.Dispatcher) else numba.njit(edges)

    @numba.njit
    def collect(*sizes):
        rows = np.empty((16, 0), dtype=np.int64)
        count = 0
        for edge in compiled(*sizes):
            if count == 0:
                rows = np.empty((16, len(edge)), dtype=np.int64)
            elif count == len(rows):
                longer = np.empty((2 * count, len(edge)), dtype=np.int64)
                longer[:count] = rows
                rows = longer
            for column in range(len(edge)):
                rows[count, column] = edge[column]
            count += 1
        return rows[:count].copy()

    return collect

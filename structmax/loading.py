"""How long first calls take: importing a compiler, compiling, reading what was compiled from disk."""

import contextlib
import gc
import time
from collections.abc import Iterator

_loading_seconds = 0.0


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Counts the seconds. The garbage collector rests: a compiler makes many objects, and each full collection walks
    all of torch, a third of the time."""
    global _loading_seconds
    before, start, active = _loading_seconds, time.perf_counter(), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if active:
            gc.enable()
        _loading_seconds = before + time.perf_counter() - start


def loading_seconds() -> float:
    """Seconds this process has spent on first calls: on importing compilers, on compiling, on reading from disk.

    Subtract them where a training step is timed.

    Examples:
        >>> import structmax
        >>> structmax.loading_seconds() >= 0
        True
    """
    return _loading_seconds

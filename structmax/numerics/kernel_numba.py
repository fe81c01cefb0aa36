"""What every Numba kernel shares: the two compile decorators and the one way to run over rows on several threads."""

import ctypes
import hashlib
import os
from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from typing import Any

import numba
import torch
from numba.core.caching import IndexDataCacheFile

# Below this many element visits per thread, waking another thread costs more than it saves.
GRAIN = 1 << 15


@cache
def _digest(folder: Path) -> str:
    files = sorted(folder.glob("kernel_numba*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


class _Index(IndexDataCacheFile):
    """Names a cached function after its signature and source, where Numba counts.

    Processes that compile at once would take the same number, and one would find what the other compiled. Here the
    worst is that an entry is lost and compiled once more. What an older source left behind is removed.
    """

    def save(self, key: Any, data: Any) -> None:
        stem = self._index_name.removesuffix(".nbi")
        known = self._load_index()
        if not known:
            for old in Path(self._cache_path).glob(f"{stem}.*.nbc"):
                old.unlink(missing_ok=True)
        digest = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()
        name = f"{stem}.{digest[:16]}.nbc"
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})


def compiled(*freedoms: str) -> Callable[[Callable], Any]:
    """A function that only compiled functions call: it is compiled for each dtype on first use, and cached on disk.

    `freedoms` are the LLVM fast-math flags the function may take: "contract" (fused multiply-add), "reassoc" (sums in
    any order, hence vectorised), "nnan" and "nsz" (together they let a maximum vectorise). Divisions by zero follow
    IEEE.

    Python must not call it: there is no way in, and the process would crash. What it calls is a `kernel`.

    A compiled function may call compiled functions of its own folder and of this one, and no others: Numba renews a
    cached function only when its own file changes, so a digest of both folders is added to what it compares.
    """
    # Without a way in from Python, which takes as long to compile as a small function itself.
    return _compiler(freedoms, no_cpython_wrapper=True)


def kernel(*freedoms: str) -> Callable[[Callable], Any]:
    """Like `compiled`, for Python to call, most often by `over_rows`; it leaves the interpreter's lock."""
    return _compiler(freedoms, nogil=True)


def _compiler(freedoms: tuple[str, ...], **options: bool) -> Callable[[Callable], Any]:
    settings: dict[str, Any] = {**options, "error_model": "numpy", "fastmath": set(freedoms), "no_cfunc_wrapper": True}

    def compile_lazily(function: Callable) -> Any:
        try:
            dispatcher = numba.njit(function, cache=True, **settings)
        except RuntimeError:
            # Neither the package's folder nor the user's cache folder can be written: compile anew in each process.
            return numba.njit(function, **settings)
        index = dispatcher._cache._cache_file
        folders = Path(function.__code__.co_filename).parent, Path(__file__).parent
        stamp = (index._source_stamp, *map(_digest, folders))
        dispatcher._cache._cache_file = _Index(index._cache_path, index._index_name.removesuffix(".nbi"), stamp)
        return dispatcher

    return compile_lazily


class _Pool:
    """Threads that help with whatever slices are waiting. They never block a caller, who can do all slices alone."""

    # A thread that starts late or loses its core leaves its share to the others.
    slices_per_thread = 4

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple] = SimpleQueue()
        self.size = 0
        self.growth = Lock()

    def help(self, threads: int, call: tuple) -> None:
        if self.size < threads - 1:
            self._grow(threads - 1)
        for _ in range(threads - 1):
            self.calls.put(call)
        _drain(*call)

    def _grow(self, size: int) -> None:
        with self.growth:
            while self.size < size:
                Thread(target=self._serve, name=f"structmax-{self.size}", daemon=True).start()
                self.size += 1

    def _serve(self) -> None:
        while True:
            # No local name may hold the call: a thread at rest would keep its tensors alive.
            _drain(*self.calls.get())


class _TorchThreads:
    """The OpenMP threads torch runs its own operators on, where torch is built with GNU OpenMP.

    After an operator they spin for some milliseconds, waiting for the next: threads of ours would have to share the
    cores with them, and gain nothing. A parallel region of their runtime is given to them instead. They take slices
    under the interpreter's lock, and leave it inside a kernel.
    """

    # They are awake already.
    slices_per_thread = 1

    def __init__(self, parallel: Any) -> None:
        self.parallel = parallel
        self.calls: dict[int, tuple] = {}
        self.keys = count()
        self.known: set[int] = set()
        self.entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._serve)

    def help(self, threads: int, call: tuple) -> None:
        # 0 would arrive as None
        key = next(self.keys) + 1
        self.calls[key] = call
        self.parallel(self.entry, ctypes.c_void_p(key), threads, 0)
        del self.calls[key]

    def _serve(self, key: int) -> None:
        thread = get_ident()
        if thread not in self.known:
            # Held once more than it is given back: the interpreter keeps its state for this thread, and need not make
            # it anew in each call, which would take as long as the rest.
            ctypes.pythonapi.PyGILState_Ensure()
            self.known.add(thread)
        _drain(*self.calls[key])


def _helpers() -> _Pool | _TorchThreads:
    parallel = getattr(ctypes.CDLL(None), "GOMP_parallel", None) if os.name == "posix" else None
    return _TorchThreads(parallel) if parallel is not None and torch.backends.openmp.is_available() else _Pool()


_threads = _helpers()


def _renew_after_fork() -> None:
    # A forked child inherits no threads, and GNU OpenMP would wait for them: it gets a pool of its own.
    global _threads
    _threads = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


def _drain(slices: deque[tuple[int, int]], results: SimpleQueue, kernel: Callable[..., None], args: tuple) -> None:
    while True:
        try:
            start, stop = slices.popleft()
        except IndexError:
            return
        try:
            kernel(start, stop, *args)
            results.put(None)
        except BaseException as error:
            results.put(error)


def over_rows(kernel: Callable[..., None], rows: int, work: int, *args: Any) -> None:
    """Call `kernel(start, stop, *args)` on slices that cover range(rows), on up to torch.get_num_threads() threads.

    `work` is about the number of element visits in all; when it is small, the calling thread does everything. The
    caller takes slices like any other thread and waits only for slices that are already running, so calls may come
    from many threads at once, from inside a kernel, or after a fork. The first exception of a slice is raised.
    """
    if "no_cpython_wrapper" in getattr(kernel, "targetoptions", ()):
        raise TypeError(f"{kernel.__name__} is for compiled code alone; make it a @kernel to run it over rows")
    threads = min(torch.get_num_threads(), rows, work // GRAIN)
    if threads < 2:
        kernel(0, rows, *args)
        return
    helpers = _threads
    parts = min(rows, threads * helpers.slices_per_thread)
    slices = deque((rows * i // parts, rows * (i + 1) // parts) for i in range(parts))
    results: SimpleQueue[BaseException | None] = SimpleQueue()
    helpers.help(threads, (slices, results, kernel, args))
    errors = [results.get() for _ in range(parts)]
    for error in errors:
        if error is not None:
            raise error

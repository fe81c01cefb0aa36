"""The one way to run a kernel over rows: on several threads, in slices between which Ctrl-C is heard."""

import atexit
import ctypes
import os
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import Any, NamedTuple

import torch

# Below this many element visits per thread, waking another thread costs more than it saves.
GRAIN = 1 << 15
# Slices of more element visits, some milliseconds, are cut between rows: a signal waits until a slice ends.
SPAN = 1 << 22

# omp_pause_hard of omp.h
PAUSE_HARD = 2


class _Call(NamedTuple):
    """The slices to compute, shared by several threads: each slice gives a result, None or an exception."""

    slices: deque[tuple[int, int]]
    results: SimpleQueue[BaseException | None]
    kernel: Callable[..., None]
    args: tuple


def _help(call: _Call) -> None:
    """What other threads do. Python interrupts only its main thread, so none of their slices is lost."""
    while True:
        try:
            start, stop = call.slices.popleft()
        except IndexError:
            return
        try:
            call.kernel(start, stop, *call.args)
            call.results.put(None)
        except BaseException as error:
            call.results.put(error)


def _work(call: _Call) -> int:
    """What the caller does, who may be interrupted anywhere; returns how many slices it did."""
    done = 0
    try:
        while call.slices:
            try:
                start, stop = call.slices.popleft()
            except IndexError:
                break
            call.kernel(start, stop, *call.args)
            done += 1
    except BaseException:
        # the rest is not needed
        call.slices.clear()
        raise
    return done


class _Pool:
    """Threads that help with whatever slices are waiting. They never block a caller, who can do all slices alone."""

    # A thread that starts late or loses its core leaves its share to the others.
    slices_per_thread = 4

    def __init__(self) -> None:
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.threads: list[Thread] = []
        self.growth = Lock()

    def run(self, threads: int, call: _Call) -> int:
        if len(self.threads) < threads - 1:
            self._grow(threads - 1)
        for _ in range(threads - 1):
            self.calls.put(call)
        return _work(call)

    def _grow(self, size: int) -> None:
        with self.growth:
            if not self.threads:
                atexit.register(self._end)
            while len(self.threads) < size:
                thread = Thread(target=self._serve, name=f"structmax-{len(self.threads)}", daemon=True)
                thread.start()
                self.threads.append(thread)

    def _serve(self) -> None:
        while self._help_with_next():
            pass

    def _help_with_next(self) -> bool:
        # A local name of this function alone holds the call: a thread at rest would keep its tensors alive.
        call = self.calls.get()
        if call is not None:
            _help(call)
        return call is not None

    def _end(self) -> None:
        # A thread that frees the tensors of its last call while Python ends would abort the process.
        for _ in self.threads:
            self.calls.put(None)
        for thread in self.threads:
            thread.join()


class _TorchThreads:
    """The OpenMP threads torch runs its own operators on, where torch is built with GNU OpenMP.

    After an operator they spin for some milliseconds, waiting for the next: threads of ours would have to share the
    cores with them, and gain nothing. A parallel region of their runtime is given to them instead. They take slices
    under the interpreter's lock, and leave it inside a kernel.

    The caller opens the region, works outside of it, as ordinary Python, and closes it. Inside, in a callback from C,
    an interrupt could not be raised there and would be lost.
    """

    # They are awake already.
    slices_per_thread = 1

    def __init__(self, runtime: ctypes.CDLL) -> None:
        callback = ctypes.CFUNCTYPE(None, ctypes.py_object)
        self.open, self.close = runtime.GOMP_parallel_start, runtime.GOMP_parallel_end
        self.open.argtypes = (callback, ctypes.py_object, ctypes.c_uint)
        self.open.restype = self.close.restype = None
        self.pause = getattr(runtime, "omp_pause_resource_all", None)
        self.known = local()
        self.entry = callback(self._serve)

    def run(self, threads: int, call: _Call) -> int:
        # Python looks for signals after a call has returned, at the start of a function and where a loop repeats:
        # not between `try` and `open`, and not between `finally` and `close`. So what is opened is closed, once.
        close = self.close
        try:
            self.open(self.entry, call, threads)
            return _work(call)
        finally:
            close()

    def dismiss(self) -> bool:
        """Ends the threads that wait for the calling thread's next region; False inside of one."""
        return self.pause is not None and self.pause(PAUSE_HARD) == 0

    def _serve(self, call: _Call) -> None:
        if not hasattr(self.known, "state"):
            # Held once more than it is given back: the interpreter keeps its state for this thread, and need not make
            # it again in each call, which would take as long as the rest.
            self.known.state = ctypes.pythonapi.PyGILState_Ensure()
        _help(call)


def _helpers() -> _Pool | _TorchThreads:
    if os.name == "posix" and torch.backends.openmp.is_available():
        runtime = ctypes.CDLL(None)
        if hasattr(runtime, "GOMP_parallel_start") and not hasattr(runtime, "__kmpc_fork_call"):
            return _TorchThreads(runtime)
    return _Pool()


_threads = _helpers()


def _before_fork() -> None:
    # A forked child inherits no threads, and GNU OpenMP would wait for them for ever, in a kernel or in torch itself.
    # They are stopped before; child and parent create new ones when they next need them.
    global _dismissed
    _dismissed = isinstance(_threads, _TorchThreads) and _threads.dismiss()


def _after_fork() -> None:
    global _threads
    if not _dismissed:
        _threads = _Pool()


_dismissed = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def over_rows(kernel: Callable[..., None], rows: int, work: int, *args: Any) -> None:
    """Call `kernel(start, stop, *args)` on slices that cover range(rows), on up to torch.get_num_threads() threads.

    `work` is about the number of element visits in all; when it is small, the calling thread does everything. The
    caller takes slices like any other thread and waits only for slices that are already running, so calls may come
    from many threads at once, from inside a kernel, or after a fork. The first exception of a slice is raised, as is
    what a signal handler raises in the caller, at the end of a slice; the slices that are left are dropped then.
    """
    if "no_cpython_wrapper" in getattr(kernel, "targetoptions", ()):
        raise TypeError(f"{kernel.__name__} is for compiled code only; make it a @kernel to run it over rows")
    # Small calls are asked nothing: each look at the number of threads takes longer than it seems.
    threads = min(torch.get_num_threads(), rows, work // GRAIN) if work >= 2 * GRAIN else 1
    if threads < 2 and work <= SPAN:
        kernel(0, rows, *args)
        return
    helpers = _threads
    parts = min(rows, max(threads * helpers.slices_per_thread, work // SPAN, 1))
    slices = deque((rows * i // parts, rows * (i + 1) // parts) for i in range(parts))
    call = _Call(slices, SimpleQueue(), kernel, args)
    done = _work(call) if threads < 2 else helpers.run(threads, call)
    errors = [call.results.get() for _ in range(parts - done)]
    for error in errors:
        if error is not None:
            raise error

"""Processes that do one piece of work after the other, each told by a pipe of its own.

They share nothing: one that ends, or is ended, holds nothing that another waits for.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from structmax.training import Interrupted, RunError
from structmax.training.interruption import Interruption

# in seconds, between two looks at the signals that came in
PATIENCE = 0.2


@dataclass(frozen=True)
class Worker:
    """A process, and our end of the pipe."""

    process: SpawnProcess
    pipe: connection.Connection


def each(work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], count: int) -> Iterator[tuple[int, Any]]:
    """The results of work(*piece) as they come, each with the place of its piece.

    A signal is handed on to the processes: those that train save where they are.

    Args:
        work: a function of a module.
        pieces: its arguments.
        count: of processes, with an even share of the threads each.

    Raises:
        Interrupted: by Ctrl-C or termination, when all processes have ended.
        RunError: a process was killed.
    """
    waiting = list(enumerate(pieces))[::-1]
    with Interruption() as interruption, _started(min(count, len(pieces))) as idle:
        busy: dict[connection.Connection, tuple[Worker, int]] = {}
        while waiting or busy:
            while waiting and idle:
                worker, (place, piece) = idle.pop(), waiting.pop()
                worker.pipe.send((work, piece))
                busy[worker.pipe] = worker, place
            ready = connection.wait(list(busy), PATIENCE)
            if interruption.number:
                raise Interrupted(interruption.number)
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                worker, place = busy.pop(pipe)
                try:
                    result = pipe.recv()
                except EOFError:
                    reason = f"A process was killed, perhaps for want of memory. Try fewer --jobs than {count}."
                    raise RunError(reason) from None
                idle.append(worker)
                yield place, result


@contextmanager
def _started(count: int) -> Iterator[list[Worker]]:
    """So many workers; in the end those at work are told to stop, and all are waited for."""
    spawn = multiprocessing.get_context("spawn")
    threads = max(torch.get_num_threads() // count, 1)
    workers = []
    try:
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs, threads))
            process.start()
            theirs.close()
            workers.append(Worker(process, ours))
        yield list(workers)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def _serve(pipe: connection.Connection, threads: int) -> None:
    """Works until the pipe is closed, or a signal ends a run."""
    # Ctrl-C in a terminal reaches all its processes. Who trains hears it; others are told by the first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    try:
        while True:
            work, piece = pipe.recv()
            pipe.send(work(*piece))
    except (EOFError, Interrupted):
        return

"""Processes that do one piece of work after the other, each controlled by its own pipe.

They share nothing: one that ends, or is ended, holds nothing that another waits for.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any

import torch

from structmax.training import Interrupted, RunError
from structmax.training.interruption import Interruption

# in seconds, between two looks at the signals that came in
PATIENCE = 0.2


def each(work: Callable[..., Any], pieces: Sequence[tuple[Any, ...]], count: int) -> Iterator[tuple[int, Any]]:
    """The results of work(*piece) as they come, each with the place of its piece.

    A signal is passed on to the processes: those that train save their state.

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
        busy: dict[connection.Connection, int] = {}
        while waiting or busy:
            while waiting and idle:
                pipe, (place, piece) = idle.pop(), waiting.pop()
                pipe.send((work, piece))
                busy[pipe] = place
            ready = connection.wait(list(busy), PATIENCE)
            if interruption.number:
                raise Interrupted(interruption.number)
            for pipe in [pipe for pipe in busy if pipe in ready]:
                try:
                    result = pipe.recv()
                except EOFError:
                    reason = f"A process was killed, perhaps because memory ran out. Try fewer --jobs than {count}."
                    raise RunError(reason) from None
                idle.append(pipe)
                yield busy.pop(pipe), result


@contextmanager
def _started(count: int) -> Iterator[list[connection.Connection]]:
    """Pipes to so many processes; in the end all are told to stop, and waited for."""
    spawn = multiprocessing.get_context("spawn")
    threads = max(torch.get_num_threads() // count, 1)
    pipes, processes = [], []
    try:
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(theirs, threads))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield pipes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _serve(pipe: connection.Connection, threads: int) -> None:
    """Works until the pipe is closed, or a signal ends a run."""
    # Ctrl-C in a terminal reaches all its processes. A training run handles it; the others are stopped by the first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    try:
        while True:
            work, piece = pipe.recv()
            pipe.send(work(*piece))
    except (EOFError, Interrupted):
        return

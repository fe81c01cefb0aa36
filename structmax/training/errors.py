"""The ways a run can end early, each with a message for the user."""

import difflib
import signal
from collections.abc import Iterable
from os import PathLike


def nearest(given: object, known: Iterable[object]) -> str:
    """A question that names the known word most like the one given; nothing if none is.

    Examples:
        >>> nearest("score-function", ["score_function", "spigot"])
        ' Did you mean score_function?'
        >>> nearest("x", ["spigot"])
        ''
    """
    found = difflib.get_close_matches(str(given), [str(word) for word in known], n=1)
    return f" Did you mean {found[0]}?" if found else ""


class RunError(Exception):
    """An error that ends a run and whose message explains it: the command line prints it without a traceback."""


class DataError(RunError, ValueError):
    """A data file is not as it should be.

    Args:
        path: path of the file.
        line: number of the faulty line, from 1; None if it is not a single line.
        reason: what should be there, what is, and what to try.

    Examples:
        >>> str(DataError("train.txt", 3, "should have 2 columns, but has 1"))
        'train.txt:3: should have 2 columns, but has 1'
    """

    def __init__(self, path: str | PathLike[str], line: int | None, reason: str) -> None:
        super().__init__(path, line, reason)
        self.path, self.line, self.reason = path, line, reason

    def __str__(self) -> str:
        where = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return f"{where}: {self.reason}"


class Diverged(RunError, ArithmeticError):
    """The loss or a parameter is not finite: `loss` is None if the loss itself was finite."""

    def __init__(self, step: int, loss: float | None = None) -> None:
        super().__init__(step, loss)
        self.step, self.loss = step, loss

    def __str__(self) -> str:
        loss = f"The loss should be finite, but is {self.loss}"
        return (
            f"{'Parameters should be finite, but are not' if self.loss is None else loss} at step {self.step}. "
            "Try a lower learning rate, a warm-up, gradient clipping (clip = 1), or computing without bf16."
        )


class Interrupted(Exception):
    """A signal stopped the run; its folder has everything needed to resume it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def __str__(self) -> str:
        return f"Stopped by {signal.Signals(self.number).name}; the run is saved and can be resumed."

"""What the command line prints, and its exit status. Of several processes, only the first prints."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from structmax.training import Interrupted, RunError

IS_FIRST = os.environ.get("RANK", "0") == "0"
# a file is as wide as its lines
WIDTH = None if sys.stdout.isatty() else 160
# what people named is printed as they did, brackets and colons too
console = Console(quiet=not IS_FIRST, width=WIDTH, markup=False, emoji=False, highlight=False)
complaints = Console(stderr=True, quiet=not IS_FIRST, markup=False, emoji=False, highlight=False)


def say(text: str) -> None:
    """A line as it is: paths stay whole."""
    console.print(text, soft_wrap=True)


def complain(text: str) -> None:
    complaints.print(text, soft_wrap=True)


def number(value: Any) -> str:
    """A number of a table: short, and of the same precision as its neighbours."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else f"{value:.3g}"


def table(*heads: str) -> Table:
    """The first column is words, the others are figures. In a narrow terminal they are folded, never cut."""
    drawn = Table(header_style="bold", box=None, pad_edge=False)
    for column, head in enumerate(heads):
        drawn.add_column(head, justify="right" if column else "left", overflow="fold")
    return drawn


@contextmanager
def spoken(how_to_go_on: str = "") -> Iterator[None]:
    """Errors that explain themselves, as a sentence and an exit status."""
    try:
        yield
    except Interrupted as stopped:
        complain(f"{stopped}\n{how_to_go_on}")
        raise typer.Exit(128 + stopped.number) from None
    except KeyboardInterrupt:
        complain(f"Stopped at once.\n{how_to_go_on}".rstrip())
        raise typer.Exit(128 + signal.SIGINT) from None
    except RunError as error:
        complain(str(error))
        raise typer.Exit(1) from None

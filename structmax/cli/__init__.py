"""The command line: `structmax …`. What it prints with and draws with comes with the extra `recipes`."""

import importlib.util
import io
import sys


def main() -> None:
    """`structmax list | run | compare | plot | report | explore | info | bench`."""
    missing = [package for package in ("typer", "rich", "matplotlib") if importlib.util.find_spec(package) is None]
    if missing:
        sys.exit(
            f"The command line needs {' and '.join(missing)}, not found here. Try: pip install 'structmax[recipes]'"
        )
    from structmax.cli.app import app

    # a path may hold bytes that are no letters, and a terminal may not know all letters
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    app()

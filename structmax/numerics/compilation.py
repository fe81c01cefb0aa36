"""The message that a terminal shows while a kernel is compiled."""

import sys
from typing import Any

# The structure and the dtype of the last question, which the kernels do not know.
asked: tuple[str, Any] | None = None
_said: set[str] = set()


def announce(function: str, kept: str) -> None:
    """Prints once for each structure and dtype that it is compiled, if the output is a terminal.

    Args:
        function: the name of the compiled function, for what no structure asked for.
        kept: where the result is kept, in words.
    """
    what = f"{_last(asked[0])} for {_last(asked[1])}" if asked else function
    if what not in _said and sys.stderr is not None and sys.stderr.isatty():
        _said.add(what)
        print(f"structmax: compiling {what}, once; {kept}", file=sys.stderr, flush=True)


def _last(name: Any) -> str:
    """Of a dotted name, LinearChain or float32."""
    return str(name).rsplit(".", 1)[-1].split("#")[0]

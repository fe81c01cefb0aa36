"""What is said on a terminal when a kernel is compiled, so that nobody waits in silence."""

import sys
from typing import Any

# The room and the dtype of the last question; `backends` knows, the kernels do not.
asked: tuple[str, Any] | None = None
_said: set[str] = set()


def announce(function: str, kept: str) -> None:
    """Says once for each structure and dtype that it is compiled, where somebody watches.

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

"""`structmax explore`: the page of structmax.explore, until Ctrl-C."""

import time
import webbrowser

import typer
from rich.progress import Progress

from structmax.cli.speech import console, say
from structmax.explore.kinds import KINDS
from structmax.explore.server import Server
from structmax.explore.warming import warm


def serve(port: int, show: bool) -> None:
    """Compiles what the page asks for, and answers it."""
    try:
        server = Server(port)
    except OSError as error:
        raise typer.BadParameter(f"--port should be free, but {port} is not: {error.strerror}. Try --port 0.") from None
    with server:
        _warm()
        say(f"Explore: {server.url}\nOnly this machine can open it. Ctrl-C ends it.")
        if show:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("Ended.")


def _warm() -> None:
    """With a bar: the first start compiles kernels, later ones load them."""
    say("Preparing kernels: some minutes the first time, seconds later.")
    start = time.perf_counter()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(KINDS))
        for name, kind in KINDS.items():
            progress.update(bar, description=kind.title)
            warm(name)
            progress.advance(bar)
    say(f"Ready after {time.perf_counter() - start:.1f} s.")

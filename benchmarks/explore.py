"""How long the page of `structmax explore` takes from a drag to its picture, in Chromium, and the server alone.

    python benchmarks/explore.py
    python benchmarks/explore.py --words 12 --picture docs/pictures/explore.webp

Moves of a drag over a dependency tree are timed by the page itself: from the pointer's event to the frame in which the
answer is drawn. In a steady drag a move comes with every frame, and waits until the page has drawn those before.
`server` is the request alone, from a client without a browser, and `cpu` what the process used for
it, which a busy machine does not lengthen.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from chromium import Browser

from structmax.explore.server import Server
from structmax.explore.warming import warm

SENTENCE = ["a", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "today", "and", "tomorrow"]
CELL = "document.querySelector('#scores [role=slider]')"
# Seconds between the moves of a steady drag.
FRAME = 0.016
READY = "document.getElementById('answers').ariaBusy === 'false'"


def drags(server: Server, words: list[str], count: int) -> dict[str, list[float]]:
    """Milliseconds of each move, made when the page rests, and of each picture of a drag that does not pause."""
    with opened(f"{server.url}#kind=dependencies&rows={'+'.join(words)}") as browser:
        browser.run(
            "window.taken = []; new MutationObserver(() => taken.push(Number(latency.dataset.milliseconds)))"
            ".observe(latency, { attributes: true, attributeFilter: ['data-milliseconds'] })"
        )
        x, y = browser.middle(CELL)
        found = {}
        for name, rests in (("a move to its picture", True), ("in a steady drag", False)):
            browser.mouse("mousePressed", x, y)
            for move in range(1, count + 1):
                browser.mouse("mouseMoved", x + 4 + 8 * move, y)
                browser.until(READY) if rests else time.sleep(FRAME)
            browser.mouse("mouseReleased", x + 8 * count, y)
            browser.until(READY)
            found[name] = browser.run("taken.splice(0)")
        assert not browser.messages, browser.messages
        return found


@contextmanager
def opened(url: str) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile), 1280, 1180) as browser:
        browser.open(url)
        browser.until(READY)
        yield browser


def requests(server: Server, words: list[str], count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each request, by the clock and of the process."""
    connection = HTTPConnection("127.0.0.1", server.server_port)
    wall, cpu = [], []
    for seed in range(count):
        body = json.dumps({"kind": "dependencies", "rows": words, "seed": seed})
        start = time.perf_counter(), time.process_time()
        connection.request("POST", "/answer", body, {"Content-Type": "application/json"})
        connection.getresponse().read()
        wall.append(1e3 * (time.perf_counter() - start[0]))
        cpu.append(1e3 * (time.process_time() - start[1]))
    connection.close()
    return wall, cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=10)
    parser.add_argument("--moves", type=int, default=100)
    parser.add_argument("--picture", type=Path, help="draw the page as it opens into this file instead")
    given = parser.parse_args()
    warm("dependencies")
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if given.picture:
            with opened(server.url) as browser:
                browser.picture(given.picture)
        else:
            words = SENTENCE[: given.words]
            wall, cpu = requests(server, words, given.moves)
            lines = {**drags(server, words, given.moves), "server": wall, "cpu of the server": cpu}
            print(f"milliseconds, a dependency tree over {len(words)} words, {given.moves} times")
            for name, taken in lines.items():
                tenths = statistics.quantiles(taken, n=10)
                print(f"{name:<24}median {statistics.median(taken):6.1f}   9 of 10 within {tenths[-1]:6.1f}")
        server.shutdown()


if __name__ == "__main__":
    main()

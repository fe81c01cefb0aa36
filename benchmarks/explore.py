"""How long the page of `structmax explore` takes from a drag to its picture, in Chromium, and the server alone.

    python benchmarks/explore.py
    python benchmarks/explore.py --words 12 --picture docs/pictures/explore.webp

Every move of a drag over a dependency tree is timed by the page itself: from the pointer's event to the frame in which
the answer is drawn. `server` is the request alone, from a client without a browser, and `cpu` what the process used for
it, which a busy machine does not lengthen.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from chromium import Browser

from structmax.explore.server import Server
from structmax.explore.warming import warm

SENTENCE = ["a", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "today", "and", "tomorrow"]
CELL = "document.querySelector('#scores [role=slider]')"
READY = "document.getElementById('answers').ariaBusy === 'false'"


def drags(server: Server, words: list[str], count: int, picture: Path | None) -> list[float]:
    """Milliseconds of each move."""
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile), 1280, 1180) as browser:
        browser.open(f"{server.url}#kind=dependencies&rows={'+'.join(words)}" if words else server.url)
        browser.until(READY)
        if picture:
            browser.picture(picture)
        x, y = browser.middle(CELL)
        browser.mouse("mousePressed", x, y)
        taken = []
        for move in range(1, count + 1):
            browser.run("document.getElementById('latency').dataset.milliseconds = ''")
            browser.mouse("mouseMoved", x + 8 * move, y)
            browser.until("document.getElementById('latency').dataset.milliseconds")
            taken.append(float(browser.run("document.getElementById('latency').dataset.milliseconds")))
            browser.until(READY)
        browser.mouse("mouseReleased", x + 8 * count, y)
        assert not browser.messages, browser.messages
        return taken


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
            drags(server, [], 0, given.picture)
        else:
            words = SENTENCE[: given.words]
            wall, cpu = requests(server, words, given.moves)
            lines = {
                "drag to picture": drags(server, words, given.moves, None),
                "server": wall,
                "cpu of the server": cpu,
            }
            print(f"milliseconds, a dependency tree over {len(words)} words, {given.moves} times")
            for name, taken in lines.items():
                tenths = statistics.quantiles(taken, n=10)
                print(f"{name:<20}median {statistics.median(taken):6.1f}   9 of 10 within {tenths[-1]:6.1f}")
        server.shutdown()


if __name__ == "__main__":
    main()

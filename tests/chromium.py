"""A Chromium without a window, led over a pair of pipes: clicks, keys, drags, and what the page says."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

PATH = shutil.which("chromium")
in_browser = pytest.mark.skipif(PATH is None, reason="no chromium on PATH: apt-get install chromium")
# Seconds without a word of the browser.
PATIENCE = 120
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio")


class Browser:
    """One page. `messages` has what came on its console, and what went wrong in it."""

    def __init__(self, profile: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        # the browser reads its pipe as number 3 and writes to number 4
        reads, self.writes = os.pipe()
        self.reads, writes = os.pipe()
        ends = {3: fcntl.fcntl(reads, fcntl.F_DUPFD, 10), 4: fcntl.fcntl(writes, fcntl.F_DUPFD, 10)}

        def connect() -> None:
            for number, end in ends.items():
                os.dup2(end, number)

        self.process = subprocess.Popen(
            [PATH or "chromium", *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=connect,
            start_new_session=True,
        )
        for end in (reads, writes, *ends.values()):
            os.close(end)
        self.buffer, self.count, self.session = b"", 0, None
        self.messages: list[str] = []
        self.loads = 0
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)

    def call(self, method: str, **arguments: Any) -> Any:
        self.count += 1
        message = {"id": self.count, "method": method, "params": arguments}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            assert select.select([self.reads], [], [], PATIENCE)[0], "the browser does not answer"
            got = os.read(self.reads, 2**16)
            assert got, "the browser has ended"
            self.buffer += got
        line, _, self.buffer = self.buffer.partition(b"\0")
        answer = json.loads(line)
        if answer.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.messages.append(json.dumps(answer["params"]))
        self.loads += answer.get("method") == "Page.loadEventFired"
        return answer

    def open(self, url: str) -> None:
        """Goes to a page, and waits until its files are there."""
        before = self.loads
        self.call("Page.navigate", url=url)
        while self.loads == before:
            self._next()

    def run(self, script: str) -> Any:
        """The value of a script, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, condition: str, looks: int = 3000) -> None:
        """Waits until a condition holds on the page, looking a hundred times a second."""
        held = self.run(
            f"new Promise((done) => {{ let left = {looks}; const look = () => {{ let is = false; "
            f"try {{ is = Boolean({condition}) }} catch {{}} "
            "is || !left-- ? done(is) : setTimeout(look, 10) }; look() })"
        )
        assert held, f"never true on the page: {condition}"

    def press(self, key: str) -> None:
        code = {"Enter": 13, " ": 32, "ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def middle(self, script: str) -> tuple[float, float]:
        """Where on the screen the middle of an element is."""
        x, y = self.run(
            f"(() => {{ const e = {script}; e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2] })()"
        )
        return x, y

    def mouse(self, kind: str, x: float, y: float) -> None:
        held = 0 if kind == "mouseReleased" else 1
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=held, clickCount=1)

    def drag(self, script: str, right: float, moves: int = 4) -> None:
        """Drags an element to the right by that many pixels, in several moves."""
        x, y = self.middle(script)
        self.mouse("mousePressed", x, y)
        for move in range(1, moves + 1):
            self.mouse("mouseMoved", x + right * move / moves, y)
        self.mouse("mouseReleased", x + right, y)

    def click(self, script: str) -> None:
        x, y = self.middle(script)
        self.mouse("mousePressed", x, y)
        self.mouse("mouseReleased", x, y)

    def picture(self, path: Path) -> None:
        """What is in the window, as PNG or WebP."""
        kind = {"format": path.suffix[1:]} | ({"quality": 80} if path.suffix == ".webp" else {})
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **kind)["data"]))

"""Ctrl-C and termination, handled when a step is finished."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

HEARD = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, the first signal of a kind is recorded in `number`; the second has its usual effect."""

    number: int = 0

    def __enter__(self) -> "Interruption":
        self._before: dict[int, Any] = {}
        # Python handles signals in the main thread only
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in HEARD}
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        signal.signal(number, self._before[number])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

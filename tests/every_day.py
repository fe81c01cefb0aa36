"""Which of many similar tests run every day."""

from collections.abc import Iterable
from typing import Any

import pytest


def a_few_every_day(names: Iterable[str], *few: str) -> list[Any]:
    """Parameters of a test: these few, and the others marked as thorough."""
    listed = list(names)
    assert set(few) <= set(listed), few
    return [pytest.param(name, marks=[] if name in few else [pytest.mark.thorough]) for name in listed]

"""That every kernel is compiled for a GPU is checked at the end of each session: see `compiled` in conftest.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(p, COUNT: tl.constexpr):
    value = tl.load(p)
    for _ in range(COUNT):
        value = {step}
    tl.store(p, value)
"""


@pytest.mark.parametrize(("step", "compiles"), [("value + 1.0", True), ("value.to(tl.float64)", False)])
def test_what_the_compiler_refuses_is_said(tmp_path, monkeypatch, step, compiles):
    (tmp_path / "strange.py").write_text(KERNEL.format(step=step))
    launch = ["strange", "kernel", ["*fp32", "constexpr"], [None, 3], 1]
    (tmp_path / "launches").write_text(json.dumps(launch))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    program = [sys.executable, str(Path(__file__).parent / "launched.py"), str(tmp_path / "launches")]
    ran = subprocess.run(program, capture_output=True, text=True)
    assert (ran.returncode == 0) == compiles
    assert ("strange.kernel does not compile" in ran.stderr) != compiles

"""Times structmax and its peers side by side: `python benchmarks/run.py --help`.

Each case is first held against the reference and is not timed if it differs. Then all contenders take turns on the same
inputs. Rows are appended to `results/<device>-<family>.csv`; README.md says what their columns mean.
"""

import argparse
import csv
import functools
import importlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

# Run as a script from a plain checkout, this finds structmax and the files of this folder without an installation.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import peers
from benchmarks.cases import BARS, Bar, Case, Inputs, cases, spoken
from benchmarks.measure import captured, peak_mib, take_turns
from benchmarks.verify import complaints

RESULTS = Path(__file__).resolve().parent / "results"
OURS = "structmax"
CPU_THREADS = 2
# A contender slower than this many milliseconds per call is measured once; every other as often as the rounds allow.
BUDGET_MS = 500.0
# A median above this many times its minimum was taken on a machine busy with something else.
STEADY = 1.5
DTYPES = {spoken(dtype): dtype for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}


@dataclass(frozen=True)
class Stamp:
    """When, where and with what a row was measured."""

    date: str
    device: str
    threads: int
    # The processes that ran or waited for a core in the minute before.
    load: float
    python: str
    torch: str
    numba: str
    triton: str

    @staticmethod
    def now(device: str) -> "Stamp":
        return Stamp(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            device=device_name(device),
            threads=torch.get_num_threads(),
            load=round(os.getloadavg()[0], 1),
            python=platform.python_version(),
            torch=torch.__version__,
            numba=_version("numba"),
            triton=_version("triton"),
        )


@dataclass(frozen=True)
class Row:
    """One contender at one case. Times are medians of the rounds, followed by the fastest."""

    case: str
    task: str
    shape: str
    dtype: str
    contender: str
    forward_ms: float
    forward_min_ms: float
    forward_ratio: float
    forward_backward_ms: float
    forward_backward_min_ms: float
    forward_backward_ratio: float
    peak_mib: float | None
    rounds: int


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"CPU {found[1] if found else platform.machine()}"


def _version(package: str) -> str:
    try:
        return importlib.import_module(package).__version__
    except ImportError:
        return "absent"


# ---------------------------------------------------------------- one case


class VerificationError(Exception):
    """Ours differs from the reference: there is nothing to time."""


def time_case(
    case: Case, device: str, contenders: dict[str, peers.Call], rounds: int, graphs: bool = False
) -> list[Row]:
    """The rows of a case, the baseline first and ours last."""
    inputs = Inputs.of(case, device)
    if wrong := complaints(case, device, inputs):
        raise VerificationError("; ".join(wrong))
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    peak: dict[str, float | None] = {}
    for name, call in (contenders | {OURS: case.ours(device)}).items():
        both = functools.partial(_both, call, inputs)
        try:
            # The first call compiles, and may leave buffers behind that later calls use again.
            both()
        except RuntimeError as error:
            if name in (OURS, peers.BASELINE):
                raise
            print(f"{case.name} without {name}: {error}")
            continue
        peak[name] = peak_mib(both, device)
        calls |= {(name, "forward"): functools.partial(_forward, call, inputs), (name, "both"): both}
    if graphs:
        calls = {key: captured(call) for key, call in calls.items()}
    times = take_turns(calls, device, rounds, BUDGET_MS)

    def ratio(name: str, what: str) -> float:
        # Paired by round: what disturbs the machine for a while disturbs both.
        pairs = zip(times[name, what], times[peers.BASELINE, what], strict=False)
        return median(mine / baseline for mine, baseline in pairs)

    return [
        Row(
            case=case.name,
            task=case.task,
            shape="x".join(map(str, case.shape)),
            dtype=spoken(case.dtype),
            contender=name,
            forward_ms=median(times[name, "forward"]),
            forward_min_ms=min(times[name, "forward"]),
            forward_ratio=ratio(name, "forward"),
            forward_backward_ms=median(times[name, "both"]),
            forward_backward_min_ms=min(times[name, "both"]),
            forward_backward_ratio=ratio(name, "both"),
            peak_mib=held,
            rounds=len(times[name, "both"]),
        )
        for name, held in peak.items()
    ]


def _forward(call: peers.Call, inputs: Inputs) -> Tensor:
    with torch.no_grad():
        return call(inputs.scores, inputs.target)


def _both(call: peers.Call, inputs: Inputs) -> tuple[Tensor, Tensor]:
    out = call(inputs.scores, inputs.target)
    return out, inputs.gradient(out)


# ---------------------------------------------------------------- what is written and shown


def save(rows: Sequence[Any], stamp: Stamp, family: str, folder: Path) -> Path:
    """Appends the rows, each with its stamp, to the file of the device and the family."""
    folder.mkdir(parents=True, exist_ok=True)
    device = re.sub(r"[^a-z0-9]+", "-", stamp.device.lower()).strip("-")
    path = folder / f"{device}-{family}.csv"
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for kind in (Stamp, type(rows[0])) for field in fields(kind)])
        if fresh:
            writer.writeheader()
        for row in rows:
            measured = {
                key: f"{value:.4g}" if isinstance(value, float) else value for key, value in asdict(row).items()
            }
            writer.writerow(asdict(stamp) | measured)
    return path


def show(header: Iterable[str], lines: list[list[str]]) -> None:
    """A table: drawn by rich on a terminal where it is installed, in plain columns otherwise."""
    header = list(header)
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        from rich.console import Console
        from rich.table import Table

        table = Table(*header)
        for line in lines:
            table.add_row(*line)
        Console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in [header, *lines]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def show_fields(rows: Sequence[Any], *without: str) -> None:
    """A table of all fields of the rows, but for some."""
    columns = [field.name for field in fields(rows[0]) if field.name not in without]
    show(columns, [[_spoken(getattr(row, name)) for name in columns] for row in rows])


def _spoken(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def show_rows(rows: list[Row]) -> None:
    def times(middle: float, fastest: float, ratio: float) -> list[str]:
        return [f"{middle:.3f}", f"{fastest:.3f}", f"{ratio:.2f}x"]

    show(
        ["case", "contender", "forward ms", "min", "ratio", "f+b ms", "min", "ratio", "peak MiB", "rounds"],
        [
            [
                row.case,
                row.contender,
                *times(row.forward_ms, row.forward_min_ms, row.forward_ratio),
                *times(row.forward_backward_ms, row.forward_backward_min_ms, row.forward_backward_ratio),
                "-" if row.peak_mib is None else f"{row.peak_mib:.1f}",
                str(row.rounds),
            ]
            for row in rows
        ],
    )


def verdict(bar: Bar, case: Case, rows: list[Row]) -> list[str]:
    """What the bar's case measured, by medians and by minima, and whether that clears it.

    On a disturbed machine neither is evidence: there a median lies far above its minimum, and no verdict is given.
    """
    found = {row.contender: row for row in rows if row.case == case.name}
    if OURS not in found:
        return ["-", "-", "not measured"]
    ours, baseline = found[OURS], found[peers.BASELINE]
    if bar.unit == "ms":
        middle, fastest = ours.forward_backward_ms, ours.forward_backward_min_ms
    else:
        middle = ours.forward_backward_ratio
        fastest = ours.forward_backward_min_ms / baseline.forward_backward_min_ms
    steady = all(row.forward_backward_ms <= STEADY * row.forward_backward_min_ms for row in (ours, baseline))
    said = ("met" if middle <= bar.limit else "missed") if steady else "machine unsteady"
    return [f"{middle:.2f}", f"{fastest:.2f}", said]


def show_bars(bars: Iterable[Bar], rows: list[Row]) -> None:
    units = {"ms": "ms", "ratio": f"x {peers.BASELINE}"}
    show(
        ["bar (f+b)", "limit", "median", "min", "verdict"],
        [
            [case.name, f"<= {bar.limit} {units[bar.unit]}", *verdict(bar, case, rows)]
            for bar in bars
            for case in bar.cases()
        ],
    )


# ---------------------------------------------------------------- the command


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time structmax and its peers side by side.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="a task, or a pattern of case names")
    parser.add_argument("--dtype", choices=DTYPES, help="one dtype in place of the device's usual ones")
    parser.add_argument("--rounds", type=int, default=25, help="how often each contender is timed")
    parser.add_argument("--graphs", action="store_true", help="time CUDA graphs: the GPU without the host's launches")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--bars", action="store_true", help="print each bar with what was measured")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder that receives the rows")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Returns the number of cases that were refused for being wrong."""
    options = parse(arguments)
    chosen = cases(options.device, options.only, (DTYPES[options.dtype],) if options.dtype else None)
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if options.device == "cpu":
        torch.set_num_threads(CPU_THREADS)
    stamp = Stamp.now(options.device)
    print("  ".join(f"{key}: {value}" for key, value in asdict(stamp).items()))
    if stamp.load > 1:
        print(f"others keep this machine busy (load {stamp.load}): neither times nor ratios are evidence")
    found = peers.find()
    for peer, reason in found.missing.items():
        print(f"without {peer}: {reason}")
    rows: list[Row] = []
    refused = 0
    for case in chosen:
        try:
            measured = time_case(case, options.device, found.calls[case.task], options.rounds, options.graphs)
        except VerificationError as wrong:
            refused += 1
            print(f"{case.name} is not timed: {wrong}")
            continue
        show_rows(measured)
        save(measured, stamp, case.family + ("-graphs" if options.graphs else ""), options.results)
        rows += measured
    if options.bars:
        show_bars([bar for bar in BARS if bar.device == options.device], rows)
    return refused


if __name__ == "__main__":
    sys.exit(min(main(), 1))

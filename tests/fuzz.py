"""Asks random structures everything, and judges the answers by enumeration.

    python tests/fuzz.py --instances 100000 --seed 1 --jobs 2       # prints what is wrong; exit status 1 if anything is
    python tests/fuzz.py --seed 1 --instance 42                     # that trial alone

An instance is one element of a batch, asked all questions its structure answers. Trials, batches of them, run in worker
processes, so that a crash is one more failure and not the end.
"""

import argparse
import collections
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
# what a worker does before a fresh one starts: it has to load torch and the kernels first
CHUNK = 250
# a first call compiles, on a busy machine for minutes
PATIENCE = 900


def command(*arguments: object) -> list[str]:
    return [sys.executable, str(HERE), *map(str, arguments)]


def work(seed: int, start: int, stop: int, only: str | None) -> None:
    """The worker: says which trial it begins, and then how that went."""
    import torch
    from fuzzing.run import trial

    torch.set_num_threads(1)
    for index in range(start, stop):
        print(json.dumps({"begin": index}), flush=True)
        begun = time.perf_counter()
        done = trial(seed, index, only)
        failures = [vars(failure) | {"structure": done.name, "trial": str(done)} for failure in done.failures]
        seconds = time.perf_counter() - begun
        line = {"done": index, "count": done.count, "name": done.name, "seconds": seconds, "failures": failures}
        print(json.dumps(line), flush=True)


class Fuzzer:
    """Hands chunks of trials to workers until enough instances are judged."""

    def __init__(self, seed: int, instances: int, only: str | None = None, seconds: float = math.inf) -> None:
        self.seed, self.instances, self.only = seed, instances, only
        self.lock = threading.Lock()
        self.next, self.judged, self.trials = 0, 0, 0
        self.kinds: collections.Counter[tuple[str, ...]] = collections.Counter()
        self.found: list[str] = []
        self.times: collections.Counter[str] = collections.Counter()
        self.end = time.monotonic() + seconds

    def run(self, jobs: int) -> None:
        threads = [threading.Thread(target=self.hand_out) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def hand_out(self) -> None:
        while True:
            with self.lock:
                if self.judged >= self.instances or time.monotonic() > self.end:
                    return
                start, self.next = self.next, self.next + CHUNK
            stop = start + CHUNK
            while start < stop:
                start = self.chunk(start, stop)

    def chunk(self, start: int, stop: int) -> int:
        """Runs trials in a worker; returns where to go on: past the end, or past the trial that crashed."""
        only = ["--only", self.only] if self.only else []
        arguments = command("--seed", self.seed, "--worker", start, stop, *only)
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            watch = threading.Timer(PATIENCE, process.kill)
            watch.start()
            at = start
            errors: list[str] = []
            reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
            reader.start()
            for line in process.stdout:
                said = json.loads(line)
                at = said.get("begin", at)
                if "done" in said:
                    watch.cancel()
                    watch = threading.Timer(PATIENCE, process.kill)
                    watch.start()
                    with self.lock:
                        self.note(said)
                    at = said["done"] + 1
            watch.cancel()
            reader.join()
            status = process.wait()
        if status == 0:
            return stop
        with self.lock:
            said = " ".join(errors)[-400:]
            failure = {"question": "worker", "reason": f"ended with status {status}", "instance": -1, "detail": said}
            self.fail(failure | {"structure": "?", "trial": "", "index": at})
        return at + 1

    def note(self, said: dict[str, Any]) -> None:
        self.judged += said["count"]
        self.trials += 1
        self.times[said["name"]] += said["seconds"]
        for failure in said["failures"]:
            self.fail(failure | {"index": said["done"]})

    def fail(self, failure: dict[str, Any]) -> None:
        """Keeps a failure, and says so at once if it is the first of its kind."""
        kind = failure["structure"], failure["question"], failure["reason"]
        self.kinds[kind] += 1
        if self.kinds[kind] > 1:
            return
        only = f" --only {self.only}" if self.only else ""
        lines = [
            f"{': '.join(kind)}, instance {failure['instance']}: {failure['detail']}",
            f"    {failure['trial']}",
            f"    python tests/fuzz.py --seed {self.seed}{only} --instance {failure['index']}",
        ]
        self.found.append("\n".join(lines))
        print(self.found[-1], flush=True)

    def summary(self) -> str:
        """How much was judged, and how often each kind of failure was met."""
        seconds = ", ".join(f"{name} {spent:.0f}" for name, spent in self.times.most_common())
        counts = [f"{count} times {': '.join(kind)}" for kind, count in self.kinds.most_common()]
        total = self.kinds.total()
        counts.append(f"{self.judged} instances in {self.trials} trials, {total} failures; seconds: {seconds}")
        return "\n".join(counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one structure, by its name")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long")
    parser.add_argument("--instance", type=int, help="this trial alone, in this process")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.seed, *given.worker, given.only)
        return 0
    if given.instance is not None:
        from fuzzing.run import trial

        done = trial(given.seed, given.instance, given.only)
        print(done)
        for failure in done.failures:
            print(failure)
        return bool(done.failures)
    fuzzer = Fuzzer(given.seed, given.instances, given.only, given.seconds)
    fuzzer.run(given.jobs)
    print(fuzzer.summary())
    return bool(fuzzer.found)


if __name__ == "__main__":
    sys.exit(main())

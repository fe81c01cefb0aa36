"""What the first call of each kernel costs on the CPU: compiled, and found on disk.

    python benchmarks/first_calls.py
    python benchmarks/first_calls.py --only 'SpanningTree.*' --slowest

Each is asked in a process of its own, for float32, with an empty cache and then once more. Seconds are those of the
process, which a busy machine lengthens a little; the import of Numba is in them, and in `kept` it is most of them.
`functions` says how many were compiled. `--slowest` names those that took longest, without what they call.
"""

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile

import torch

import structmax
from structmax import backends

# No first call of these should take longer, in seconds.
BAR = 8.0
QUESTIONS = ("argmax", "topk", "log_partition_and_marginals", "marginals_jvp", "sample", "project", "sparsemap")
OTHERS = {
    structmax.Simplex.room: ("entmax", "entmax_pullback", "entmax_value", "entmax_gradient"),
    "structmax.structures.proximal": ("prox_tv", "prox_owl", "prox_oscar", "group_mean"),
}
CHILD = """
import collections, json, sys, time, torch
from numba.core import event
from structmax.problem import call
from structmax.warm_up import _examples, _parts

room, name = sys.argv[1:]
torch.set_num_threads(1)
own, begun, inside = collections.Counter(), [], [0.0]


class Timer(event.Listener):
    def on_start(self, event):
        begun.append(time.process_time())
        inside.append(0.0)

    def on_end(self, event):
        whole = time.process_time() - begun.pop()
        own[event.data["dispatcher"].py_func.__name__] += whole - inside.pop()
        inside[-1] += whole


event.register("numba:compile", Timer())
_, tensors, fields = next(e for e in _examples(room, torch.zeros(1, 4)) if e[0] == name)
start = time.process_time()
call(room, name, tensors, fields, _parts(name, tensors), "numba")
print(json.dumps([time.process_time() - start, own.most_common()]))
"""


def kernels() -> list[tuple[str, str]]:
    """Room and name of what is hot."""
    public = [getattr(structmax, name) for name in structmax.__all__ if name != "AbstractStructure"]
    rooms = [it.room for it in public if isinstance(it, type) and issubclass(it, structmax.AbstractStructure)]
    asked = [(room, name) for room in rooms for name in QUESTIONS]
    asked = [pair for pair in asked if backends.explain(*pair, "cpu")["numba"] is None]
    return asked + [(room, name) for room, names in OTHERS.items() for name in names]


def first_call(room: str, name: str, cache: str) -> tuple[float, list[tuple[str, float]]]:
    """Seconds, and those of each function compiled for it."""
    command = [sys.executable, "-c", CHILD, room, name]
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    seconds, own = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    return seconds, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, as LinearChain.topk")
    parser.add_argument("--slowest", action="store_true", help="name the functions that took longest")
    chosen = parser.parse_args()
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}\n{'':44} {'cold':>6} {'kept':>6} functions")
    for room, name in kernels():
        title = f"{room.rsplit('.', 1)[-1]}.{name}"
        if not any(fnmatch.fnmatch(title, pattern) for pattern in chosen.only):
            continue
        with tempfile.TemporaryDirectory() as cache:
            cold, own = first_call(room, name, cache)
            kept, again = first_call(room, name, cache)
        assert not again, f"{title} was not found on disk: {again}"
        missed = f"  above {BAR:g} s" if cold > BAR else ""
        print(f"{title:44} {cold:6.1f} {kept:6.1f} {len(own):9}{missed}", flush=True)
        for function, seconds in own[:6] if chosen.slowest else ():
            print(f"    {function:40} {seconds:6.2f}")


if __name__ == "__main__":
    main()

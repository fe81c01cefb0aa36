"""Kernels from several Python threads at once, with any number of torch threads, and after a fork."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import structmax
from structmax.numerics import kernel_numba, rows

# processes of their own
pytestmark = pytest.mark.thorough

CALLS = {
    "sparsemax": structmax.sparsemax,
    "entmax15": structmax.entmax15,
    "entmax": lambda x: structmax.entmax(x, 1.3),
    "softmax": structmax.softmax,
    "fusedmax": lambda x: structmax.fusedmax(x, 0.1),
    "oscarmax": lambda x: structmax.oscarmax(x, 0.01),
    "loss": lambda x: structmax.entmax15_loss(x, torch.zeros(len(x), dtype=torch.int64), reduction="none"),
}


def forward_backward(call, x):
    leaf = x.clone().requires_grad_()
    out = call(leaf)
    out.square().sum().backward()
    return out.detach(), leaf.grad


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CALLS)
def test_the_same_with_one_and_with_many_threads(name, threads):
    x = torch.randn(500, 300, generator=torch.Generator().manual_seed(0))
    threads(1)
    one = forward_backward(CALLS[name], x)
    threads(5)
    many = forward_backward(CALLS[name], x)
    for a, b in zip(one, many, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("pool", [False, True], ids=["threads of torch", "pool"])
def test_many_python_threads_at_once(threads, pool, monkeypatch):
    threads(2)
    if pool:
        monkeypatch.setattr(rows, "_threads", rows._Pool())
    x = torch.randn(300, 400, generator=torch.Generator().manual_seed(0))
    want = {name: forward_backward(call, x) for name, call in CALLS.items()}
    wrong = []

    def work():
        for _ in range(5):
            for name, call in CALLS.items():
                got = forward_backward(call, x)
                if not all(torch.equal(a, b) for a, b in zip(got, want[name], strict=True)):
                    wrong.append(name)

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=120)
    assert not any(worker.is_alive() for worker in workers)
    assert wrong == []


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.randn(300, 400, generator=torch.Generator().manual_seed(index))
        return structmax.sparsemax(x).sum()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_forked_workers_of_a_data_loader(threads):
    threads(2)
    # The parent's pool is running when the workers are forked.
    structmax.sparsemax(torch.randn(300, 400))
    loader = torch.utils.data.DataLoader(Rows(), num_workers=2, multiprocessing_context="fork", timeout=60)
    for total in loader:
        torch.testing.assert_close(total, torch.tensor([300.0]))


FORKED = """
import os, sys, torch

torch.set_num_threads(2)
import structmax

x, chain = (torch.randn(300, 20, 4), torch.randn(4, 4)), structmax.LinearChain()
if sys.argv[1] == "kernels":
    structmax.marginals(x, chain)
else:
    torch.ones(1000, 1000).exp()
child = os.fork()
total = structmax.marginals(x, chain).unary.sum() if sys.argv[2] == "kernels" else torch.ones(300, 20, 100).sum() / 100
assert abs(float(total) - 6000) < 0.1, total
if not child:
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("before", ["kernels", "torch"])
@pytest.mark.parametrize("after", ["kernels", "torch"])
def test_a_forked_child_uses_threads_again(before, after):
    if not isinstance(rows._threads, rows._TorchThreads):
        pytest.skip("torch is not built with GNU OpenMP")
    run = subprocess.run([sys.executable, "-c", FORKED, before, after], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "0", run.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_inside_a_region_has_threads_of_its_own(threads):
    threads(2)
    # each has a slice
    children, both = [], threading.Barrier(2)

    def fork(start, stop):
        both.wait(timeout=60)
        if threading.current_thread() is threading.main_thread():
            children.append(os.fork())
            if not children[0]:
                os._exit(0 if isinstance(rows._threads, rows._Pool) else 1)

    rows.over_rows(fork, 2, 2 * rows.GRAIN)
    assert os.waitpid(children[0], 0)[1] == 0


def test_a_process_with_idle_workers_exits():
    code = (
        "import torch, structmax; torch.set_num_threads(4); structmax.sparsemax(torch.randn(900, 900)); print('done')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "done"


LATE = """
import time
from collections import deque
from queue import SimpleQueue
from structmax.numerics import rows


def kernel(start, stop):
    time.sleep(0.5)
    print("done")


pool = rows._Pool()
pool._grow(2)
pool.calls.put(rows._Call(deque([(0, 1)]), SimpleQueue(), kernel, ()))
"""


def test_a_process_ends_after_its_workers():
    run = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "done"


def test_what_has_no_way_in_from_python_is_refused():
    inner = kernel_numba.compiled()(lambda start, stop: None)
    with pytest.raises(TypeError, match="is for compiled code only; make it a @kernel"):
        kernel_numba.over_rows(inner, 1, 1)


INTERRUPTED = """
import random, signal, sys, torch, structmax
from structmax.numerics import rows

if sys.argv[1] == "pool":
    rows._threads = rows._Pool()
torch.set_num_threads(2)
x = torch.randn(256, 500)
want = structmax.sparsemax(x)
chance = random.Random(0)
raised = caught = lost = 0


def interrupt(number, frame):
    global raised
    raised += 1
    signal.default_int_handler(number, frame)


signal.signal(signal.SIGALRM, interrupt)
while raised < 300:
    before = raised
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))
        while raised == before:
            structmax.sparsemax(x)
        lost += 1
    except KeyboardInterrupt:
        caught += 1
print(caught, lost, torch.equal(structmax.sparsemax(x), want))
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers that send signals")
@pytest.mark.parametrize("helpers", ["threads of torch", "pool"])
def test_no_interrupt_is_lost_and_nobody_waits_for_an_interrupted_slice(helpers):
    # Threads that spin while they wait would make this slow where the cores are busy.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-c", INTERRUPTED, helpers]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert run.returncode == 0, run.stderr
    assert "ignored" not in run.stderr
    assert run.stdout.split() == ["300", "0", "True"]


@pytest.mark.parametrize("helpers", [rows._helpers, rows._Pool])
@pytest.mark.parametrize("failing", [0, 1], ids=["the caller", "the other thread"])
def test_an_exception_of_any_thread_is_raised_by_the_caller(helpers, failing, threads, monkeypatch):
    threads(2)
    monkeypatch.setattr(rows, "_threads", helpers())
    caller, both = threading.get_ident(), threading.Barrier(2)

    def kernel(start, stop):
        both.wait(timeout=60)
        if (threading.get_ident() == caller) == (failing == 0):
            raise ArithmeticError("of a slice")

    with pytest.raises(ArithmeticError, match="of a slice"):
        rows.over_rows(kernel, 2, 2 * rows.GRAIN)


def test_a_long_call_hears_a_signal_between_its_slices(threads):
    threads(1)
    begun = []

    def kernel(start, stop):
        begun.append((start, stop))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rows.over_rows(kernel, 10, 5 * rows.SPAN)
    assert begun == [(0, 2)]

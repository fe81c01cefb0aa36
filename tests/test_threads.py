"""Kernels from several Python threads at once, with any number of torch threads, and after a fork."""

import os
import subprocess
import sys
import threading

import pytest
import torch

import structmax
from structmax.numerics import kernel_numba

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
        monkeypatch.setattr(kernel_numba, "_threads", kernel_numba._Pool())
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


def test_a_process_with_idle_workers_exits():
    code = (
        "import torch, structmax; torch.set_num_threads(4); structmax.sparsemax(torch.randn(900, 900)); print('done')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "done"


def test_what_has_no_way_in_from_python_is_refused():
    inner = kernel_numba.compiled()(lambda start, stop: None)
    with pytest.raises(TypeError, match="is for compiled code alone; make it a @kernel"):
        kernel_numba.over_rows(inner, 1, 1)

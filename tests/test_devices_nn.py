"""On a GPU modules and recipes give what they give on the CPU, and an interrupted run goes on."""

import math
import signal
from typing import get_args

import pytest
import torch
from torch import Tensor

import structmax
from structmax import incremental, nn
from structmax.recipes import bits, listops, ssvae
from structmax.recipes import signal as game
from structmax.recipes.models import latent
from structmax.training import Interrupted, RunFolder, Watcher, run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

B, N, D, H = 3, 6, 4, 5
LENGTHS = torch.tensor([6, 1, 4])


def trees(device):
    scores = torch.randn(B, N, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    return scores, structmax.BinaryTree(LENGTHS.to(device))


def merges(parser, x):
    drawn = parser.derive(x, LENGTHS.to(x.device), incremental.greedy)
    return *drawn, *parser(x, drawn)


def heads(x):
    scores = torch.randn(B, N + 1, N + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(x.device)
    return structmax.argmax(scores, structmax.SpanningTree(LENGTHS.to(x.device), single_root=True))


# a module of sizes D and H, and what is asked of it, from inputs (B, N, D)
MODULES = {
    "binary tree": (nn.BinaryTreeLSTM, lambda m, x: m(x, structmax.argmax(*trees(x.device)))),
    "relaxed tree": (nn.BinaryTreeLSTM, lambda m, x: m(x, structmax.marginals(*trees(x.device)), relaxed=True)),
    "pyramid": (nn.PyramidTreeLSTM, lambda m, x: m(x, LENGTHS.to(x.device), choose=incremental.greedy)),
    "spinn": (nn.Spinn, lambda m, x: m(x, LENGTHS.to(x.device))),
    "merges": (nn.MergeParser, merges),
    "child sum": (nn.ChildSumTreeLSTM, lambda m, x: m(x, heads(x))),
    "tree gcn": (nn.TreeGCN, lambda m, x: m(x, heads(x))),
}


def tensors(out) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [t for t in out if t is not None]


@pytest.mark.parametrize("name", MODULES)
def test_modules_agree_with_the_cpu(name):
    make, ask = MODULES[name]
    torch.manual_seed(0)
    module, x = make(D, H).double(), torch.randn(B, N, D, dtype=torch.float64)
    answers = []
    for device in ("cpu", "cuda"):
        module.to(device).zero_grad()
        leaf = x.to(device, copy=True).requires_grad_()
        out = tensors(ask(module, leaf))
        assert all(t.device.type == device for t in out)
        sum((t**2).sum() for t in out if t.requires_grad).backward()
        gradients = (leaf.grad, *(p.grad for p in module.parameters() if p.grad is not None))
        answers.append([t.detach().cpu() for t in (*out, *gradients)])
    for here, there in zip(*answers, strict=True):
        torch.testing.assert_close(there, here, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("encoder", get_args(listops.Name))
def test_encoders_agree_with_the_cpu(encoder):
    found = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        config = listops.Config(encoder=encoder, train_size=100, longest=12, size=8, curriculum=0, batch_size=50)
        task = listops.Recipe(config, torch.device(device))
        with torch.no_grad():
            found[device] = task.evaluate("valid")
        for loss, _ in task.updates(task.batches(0)[0], torch.Generator(device).manual_seed(0)):
            loss.backward()
            assert loss.isfinite()
    # float32: a tie may be broken another way
    assert found["cuda"] == pytest.approx(found["cpu"], abs=5e-3)


@pytest.mark.parametrize("estimator", get_args(latent.Name))
@pytest.mark.parametrize("recipe", [ssvae, bits, game], ids=["ssvae", "bits", "signal"])
def test_latent_variables_learn(recipe, estimator):
    if estimator in recipe.Config.refused:
        return
    few = {"bits": 4} if recipe is bits else {"warm_start": 0} if recipe is ssvae else {"symbols": 9}
    task = recipe.Recipe(recipe.Config(estimator=estimator, hidden=8, **few), torch.device("cuda"))
    for loss, metrics in task.updates(task.batches(0)[0], torch.Generator("cuda").manual_seed(0)):
        loss.backward()
        assert loss.isfinite()
        assert all(value.is_cuda for value in metrics.values())
    task.model.eval()
    with torch.no_grad():
        assert all(map(math.isfinite, task.evaluate("valid").values()))
        task.drawings()


def test_an_interrupted_run_goes_on(tmp_path):
    class Stop(Watcher):
        def steps(self, place, batches, means):
            if place.step == 3:
                signal.raise_signal(signal.SIGINT)

    config = listops.Config(encoder="ppo", train_size=200, longest=10, size=8, epochs=2, curriculum=1, device="cuda")
    run(listops.Recipe, config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(listops.Recipe, config, tmp_path / "parts", Stop())
    run(listops.Recipe, config, tmp_path / "parts")
    ours, theirs = (RunFolder(tmp_path / name).load("last.pt")["model"] for name in ("whole", "parts"))
    for name in ours:
        # sums on a GPU come in any order
        torch.testing.assert_close(theirs[name], ours[name], atol=1e-5, rtol=0)

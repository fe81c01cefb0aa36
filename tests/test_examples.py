"""The examples run, and say what they should."""

import runpy
from pathlib import Path

import pytest
import torch
from test_training import torchrun

# whole scripts
pytestmark = pytest.mark.thorough

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_a_recursion_of_ones_own(capsys):
    runpy.run_path(str(EXAMPLES / "rna.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "foldings of" in said
    assert "drawn, p =" in said


def test_pieces_on_two_processes_make_the_steps_of_one_large_batch(tmp_path):
    script = EXAMPLES / "accumulate.py"
    ran = torchrun(script, tmp_path)
    assert ran.returncode == 0, ran.stderr

    example = runpy.run_path(str(script))
    torch.manual_seed(0)
    tagger, losses = example["Tagger"](), []
    optimiser = torch.optim.Adam(tagger.parameters(), 0.05)
    for step in range(example["STEPS"]):
        words, tags, mask = example["sentences"](step)
        loss = tagger(words, tags, mask) / mask.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())

    assert [float(loss) for loss in ran.stdout.split()] == pytest.approx(losses, abs=2e-6)
    for name, weights in torch.load(tmp_path / "2.pt").items():
        torch.testing.assert_close(weights, tagger.state_dict()[name], atol=1e-6, rtol=0)

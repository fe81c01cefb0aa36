"""The CRF's best tags in operators of torch alone: as `CRF.argmax`, exported, and run where there is no structmax."""

import shutil
import subprocess
import sys

import pytest
import torch

import structmax
from structmax.nn import CRF, CRFDecoder

SIZES = {0: torch.export.Dim("batch"), 1: torch.export.Dim("steps", min=2)}


def model(tags=4, **options):
    torch.manual_seed(0)
    return CRF(tags, batch_first=True, **options)


def draw(batch=3, steps=6, tags=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(batch, steps, tags, generator=generator)
    return emissions, torch.rand(batch, steps, generator=generator) > 0.3


@pytest.mark.parametrize("seed", range(8))
def test_answers_what_the_crf_answers(seed):
    crf, (emissions, mask) = model(), draw(seed=seed)
    assert torch.equal(CRFDecoder(crf)(emissions, mask), crf.argmax(emissions, mask))


def test_any_batch_and_order_of_dimensions():
    torch.manual_seed(0)
    crf, emissions = CRF(4), torch.randn(6, 2, 3, 4, dtype=torch.float64)
    mask = torch.rand(6, 2, 3) > 0.3
    decoder = CRFDecoder(crf.double())
    assert torch.equal(decoder(emissions, mask), crf.argmax(emissions, mask))
    assert decoder(emissions[:, :0], mask[:, :0]).shape == (6, 0, 3)
    one = decoder(emissions[:1], mask[:1])
    assert torch.equal(one, crf.argmax(emissions[:1], mask[:1]))


def test_what_is_forbidden_or_impossible():
    labels = ["O", "B-x", "I-x"]
    crf = model(3, constraints=structmax.tag_constraints(labels))
    emissions, mask = draw(batch=5, tags=3)
    emissions[0, 2] = -torch.inf
    mask[0, 2], mask[1] = True, False
    got = CRFDecoder(crf)(emissions, mask)
    assert torch.equal(got, crf.argmax(emissions, mask))
    assert (got[:2] == -1).all()
    assert (got[2:] >= 0).equal(mask[2:])


def test_half_precision_is_computed_in_float32():
    crf, (emissions, mask) = model(), draw()
    half = emissions.bfloat16()
    assert torch.equal(CRFDecoder(crf)(half, mask), CRFDecoder(crf)(half.float(), mask))


def test_exports_operators_of_torch_alone():
    crf, (emissions, mask) = model(constraints=structmax.tag_constraints(["O", "B-x", "I-x", "B-y"])), draw()
    program = torch.export.export(CRFDecoder(crf), (emissions, mask), dynamic_shapes=(SIZES, SIZES))
    graphs = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    named = {str(node.target) for graph in graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert named
    assert not any("structmax" in name for name in named)
    more, other = draw(batch=5, steps=9, seed=2)
    assert torch.equal(program.module()(more, other), crf.argmax(more, other))


RUN = """
import sys, torch
package, inputs, answer = sys.argv[1:]
run = torch._inductor.aoti_load_package(package)
torch.save(run(*torch.load(inputs)), answer)
assert "structmax" not in sys.modules and "numba" not in sys.modules
"""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor compiles by g++")
def test_a_package_runs_in_a_process_without_structmax(tmp_path):
    crf, (emissions, mask) = model(), draw()
    program = torch.export.export(CRFDecoder(crf), (emissions, mask), dynamic_shapes=(SIZES, SIZES))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "tagger.pt2"))
    more = draw(batch=5, steps=17, seed=3)
    torch.save(more, tmp_path / "inputs.pt")
    paths = [package, str(tmp_path / "inputs.pt"), str(tmp_path / "answer.pt")]
    subprocess.run([sys.executable, "-c", RUN, *paths], check=True, cwd=tmp_path)
    assert torch.equal(torch.load(tmp_path / "answer.pt"), crf.argmax(*more))


def test_a_layer_is_asked_for():
    with pytest.raises(TypeError, match=r"`crf` should be a `structmax\.nn\.CRF`"):
        CRFDecoder(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_sentence_without_a_batch(batch_first):
    crf = CRF(4, batch_first=batch_first)
    emissions, mask = torch.randn(5, 4), torch.tensor([False, True, True, False, True])
    assert torch.equal(CRFDecoder(crf)(emissions, mask), crf.argmax(emissions, mask))


def test_asks_for_a_mask_and_steps():
    decoder = CRFDecoder(CRF(4, batch_first=True))
    with pytest.raises(TypeError, match="`mask` should be a torch tensor, but is None"):
        decoder(torch.randn(2, 5, 4), None)
    with pytest.raises(ValueError, match="`unary` should have shape"):
        decoder(torch.randn(2, 0, 4), torch.ones(2, 0, dtype=torch.bool))

"""On a GPU every question of every structure gives what it gives on the CPU, draws by the same noise included."""

import pytest
import torch
from cases import CASES

import structmax
from structmax.contract import AbstractStructure
from structmax.testing import same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

OMEGA = structmax.omega.LocalL2(1.0)
# Each takes scores, a structure and a member, and returns a tensor or parts.
QUESTIONS = {
    "log_partition": lambda x, s, y: structmax.log_partition(x, s),
    "marginals": lambda x, s, y: structmax.marginals(x, s),
    "argmax": lambda x, s, y: structmax.argmax(x, s),
    "topk": lambda x, s, y: structmax.topk(x, s, 3).values,
    "max_marginals": lambda x, s, y: structmax.max_marginals(x, s),
    "minimum_bayes_risk": lambda x, s, y: structmax.minimum_bayes_risk(x, s),
    "entropy": lambda x, s, y: structmax.entropy(x, s),
    "log_prob": lambda x, s, y: structmax.log_prob(x, s, y),
    "log_count": lambda x, s, y: structmax.log_count(x, s),
    "smoothed": lambda x, s, y: structmax.smoothed(x, s, OMEGA),
    "smoothed_marginals": lambda x, s, y: structmax.smoothed_marginals(x, s, OMEGA),
    "smoothed_log_prob": lambda x, s, y: structmax.smoothed_log_prob(x, s, y, OMEGA),
    "sparse_marginals": lambda x, s, y: structmax.sparse_marginals(x, s),
}


def tensors_of(structure: AbstractStructure, out) -> list[torch.Tensor]:
    if isinstance(out, dict):
        out = out.values()
    return [out] if isinstance(out, torch.Tensor) else [t for t in out if t is not None]


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_gpu_agrees_with_the_cpu(case, question):
    scores = case.scores()
    best = structmax.argmax(case.parts(scores), case.structure)
    _skip_unless_answered(lambda: QUESTIONS[question](case.parts(scores), case.structure, best))
    answers = []
    for device in ("cpu", "cuda"):
        leaves = tuple(t.to(device).requires_grad_() for t in scores)
        y = structmax.argmax(case.parts(leaves), case.structure) if device == "cpu" else _to(best, device)
        out = tensors_of(case.structure, QUESTIONS[question](case.parts(leaves), case.structure, y))
        assert all(t.device.type == device for t in out)
        smooth = [t.masked_fill(t.isinf(), 0.0) for t in out if t.requires_grad]
        total = sum(((t**2).sum() for t in smooth), torch.zeros((), device=device))
        gradients = torch.autograd.grad(total, leaves, allow_unused=True) if smooth else ()
        answers.append([t.detach().cpu() for t in (*out, *(g for g in gradients if g is not None))])
    for here, there in zip(*answers, strict=True):
        same(question, there, here, 1e-9)


def _skip_unless_answered(ask):
    """What is refused on the CPU may be refused on a GPU; nothing else."""
    try:
        ask()
    except structmax.Refusal as refusal:
        pytest.skip(str(refusal))


def _to(parts, device):
    if isinstance(parts, torch.Tensor):
        return parts.to(device)
    if isinstance(parts, dict):
        return {name: t.to(device) for name, t in parts.items()}
    return type(parts)(*(None if t is None else t.to(device) for t in parts))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_draws_on_a_gpu_are_members(case):
    _skip_unless_answered(lambda: structmax.sample(case.parts(case.scores()), case.structure))
    scores = tuple(t.cuda() for t in case.scores())
    members, feasible = case.members(case.scores()), case.scores_of_members(case.scores()).isfinite().any(-1)
    drawn = case.flat(structmax.sample(case.parts(scores), case.structure, (20,))).cpu()
    found = (drawn.unsqueeze(-2) == members).all(-1).sum(-1)
    assert bool((found == feasible).all())
    few = structmax.sample_without_replacement(case.parts(scores), case.structure, 2)
    assert few.log_probs.device.type == "cuda"


CAPTURED = {
    **{
        name: (structmax.ProjectiveTree(single_root=True), (2, 5, 5), name)
        for name in ("smoothed", "topk", "max_marginals")
    },
    "smoothed, one of many": (structmax.Simplex(), (2, 5), "smoothed"),
    "sample, one of many": (structmax.Simplex(), (2, 5), "sample"),
}


@pytest.mark.parametrize(("structure", "shape", "question"), CAPTURED.values(), ids=CAPTURED)
def test_calls_are_captured_in_a_graph(structure, shape, question):
    """Nothing is copied from the host when a call of the same sizes is made again."""
    questions = QUESTIONS | {"sample": lambda x, s, y: structmax.sample(x, s, (3,))}
    x = torch.randn(shape, device="cuda")
    wanted, graph = questions[question](x, structure, None), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = questions[question](x, structure, None)
    graph.replay()
    assert found.shape == wanted.shape
    if question != "sample":
        torch.testing.assert_close(found, wanted)

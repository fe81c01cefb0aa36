"""What objects print: shapes and outcomes in a line or two, never whole tensors."""

import inspect
from typing import Any

import pytest
import torch

import structmax
from structmax import FactorGraph, LinearChain, SpanningTree, estimators, factors, nn
from structmax.factors import Budget, Factor, Imply, Variables, Xor

torch.manual_seed(0)
CHAIN = LinearChain(torch.tensor([5, 3, 2, 1]))
SCORES = torch.randn(4, 5, 3), torch.randn(3, 3)
X = Variables("x", (2, 2))
LINES = FactorGraph(*(Xor(line) for line in (X[0], X[1], X[:, 0], X[:, 1])))
THETA = {"x": torch.tensor([[2.0, 1.5], [1.0, 0.8]])}
WORDS = torch.randn(2, 6, 8)

SAID = {
    "TopK": (
        lambda: structmax.topk(SCORES, CHAIN, 2),
        "TopK(parts: unary (2, 4, 5, 3), pairwise (2, 4, 3, 3); values: (2, 4); torch.float32, cpu)",
    ),
    "TopK of vectors": (
        lambda: structmax.topk(torch.tensor([0.5, 2.0, -1.0]).double(), structmax.Simplex(), 2),
        "TopK(parts: (2, 3); values: (2,) from 0.5 to 2; torch.float64, cpu)",
    ),
    "Drawn": (
        lambda: structmax.sample_without_replacement(SCORES, CHAIN, 3),
        "Drawn(parts: unary (3, 4, 5, 3), pairwise (3, 4, 3, 3); log_probs: (3, 4); torch.float32, cpu)",
    ),
    "MostProbable": (
        lambda: structmax.smoothed_topk(SCORES, CHAIN, structmax.omega.LocalL2(), 1),
        "MostProbable(parts: unary (1, 4, 5, 3), pairwise (1, 4, 3, 3); log_probs: (1, 4); torch.float32, cpu)",
    ),
    "SparseMAP": (
        lambda: structmax.sparsemap(torch.zeros(2, 3), structmax.Simplex()),
        "SparseMAP(marginals: (2, 3); probabilities: (3, 2); value: (2,) from -0.1667 to -0.1667; "
        "counts: (2,) from 3 to 3; iterations: (2,)",
    ),
    "TopKSparseMAP": (
        lambda: structmax.topk_sparsemap(torch.tensor([1.0, -0.2, 0.1]), structmax.Bits(), 3),
        "TopKSparseMAP(marginals: (3,) from 0.2333 to 1; parts: (3, 3); probabilities: (3,) from 0.2333 to 0.4333; "
        "exact: False; torch.float32, cpu)",
    ),
    "Relaxed": (lambda: structmax.sparsemap(THETA, LINES), "Relaxed(marginals: x (2, 2); value: "),
    "Relaxed, converged": (lambda: structmax.sparsemap(THETA, LINES), "converged: True; gap: 0; "),
    "Beliefs": (lambda: structmax.belief_propagation(THETA, LINES), "Beliefs(marginals: x (2, 2); log_partition: "),
    "Best": (
        lambda: LINES.search(THETA),
        "Best(parts: x (2, 2); value: 2.8; exact: True; converged: True; upper_bound: 2.8; relaxed: x (2, 2); ",
    ),
    "Expectation": (
        lambda: structmax.expect(lambda z, _: z[:, 0], torch.zeros(2), structmax.Simplex(), estimators.Enumerate()),
        "Expectation(value: 0.5; evaluations: 2; torch.float32, cpu)",
    ),
    "EntropicMatching": (
        lambda: structmax.sinkhorn(torch.zeros(2, 3, 3)),
        "EntropicMatching(marginals: (2, 3, 3); value: (2,) from 6.296 to 6.296; iterations: ",
    ),
    "Barycentre": (
        lambda: structmax.soft_dtw_barycentre(torch.zeros(3, 6, 2)),
        "Barycentre(series: (6, 2); value: ",
    ),
    "Diagnosis": (lambda: structmax.diagnose(torch.zeros(2)), "range: 0 to 0\nno problem found"),
    "Problem": (
        lambda: structmax.Problem.of(SCORES, CHAIN),
        "Problem(LinearChain(lengths=tensor([5, 3, 2, 1])); unary (4, 5, 3), pairwise (4, 3, 3), torch.float32, cpu; "
        "batch (4,); backend auto)",
    ),
    "Problem, blank": (lambda: structmax.Problem.of(SCORES, CHAIN).blank, "; no scores; batch (4,)"),
    "Distribution": (
        lambda: structmax.Distribution(SCORES, LinearChain()),
        "Distribution(LinearChain(), batch_shape=(4,))",
    ),
    "Policy": (
        lambda: structmax.incremental.Policy(torch.zeros(4, 5, 2)),
        "Policy(scores: (4, 5, 2); lengths: None; torch.float32, cpu)",
    ),
    "Attended": (
        lambda: nn.Attention(8, 2)(WORDS),
        "Attended(output: (2, 6, 8); weights: (2, 2, 6, 6); torch.float32, cpu)",
    ),
    "structure": (lambda: SpanningTree(single_root=True), "SpanningTree(single_root=True)"),
    "long lengths": (
        lambda: LinearChain(torch.arange(1, 65)),
        "LinearChain(lengths=tensor of shape (64,) from 1 to 64)",
    ),
    "Hypergraph": (
        lambda: structmax.Hypergraph(torch.tensor([0, 1, 1]), torch.tensor([-1, 0, 0])),
        "Hypergraph(2 nodes, 3 edges, 3 parts)",
    ),
    "FactorGraph": (
        lambda: FactorGraph(
            Factor(LinearChain(), tag := Variables("tag", (3, 2)), Variables("step", (2, 2), free=True)),
            Budget(tag[:, 0], at_most=1),
            Budget(tag[:, 1], at_most=1),
        ),
        "FactorGraph(tag (3, 2), step (2, 2) free; 1 × LinearChain, 2 × Budget)",
    ),
    "no factors": (lambda: FactorGraph(X), "FactorGraph(x (2, 2); no factors)"),
    "masked": (lambda: LINES.masked({"x": torch.ones(2, 2).bool()}), "FactorGraph(x (2, 2); 4 × Xor; masked)"),
    "Imply": (lambda: Imply(X[0], ~X[1, 1]), "Imply(x[0, 0], x[0, 1], ~x[1, 1])"),
    "XorOut": (lambda: factors.XorOut(X[0], X[1, 1]), "XorOut(x[0, 0], x[0, 1], x[1, 1])"),
    "Budget": (
        lambda: Budget(Variables("word", (20,)), at_most=5),
        "Budget(word[0], word[1], word[2], word[3], … (20 of word), at_most=5)",
    ),
    "Factor": (lambda: Factor(structmax.Subset(1), X[0]), "Factor(Subset(k=1), x (2,))"),
    "Pair": (
        lambda: factors.Pair(X[0, 0], X[1, 1], score=Variables("bond", (), free=True)),
        "Pair(x[0, 0], x[1, 1], bond)",
    ),
    "Variables": (lambda: Variables("bond", (2,), free=True), "Variables('bond', (2,), free=True)"),
}


@pytest.mark.parametrize("name", SAID)
def test_objects_say_what_they_are_in_a_line_or_two(name: str) -> None:
    make, said = SAID[name]
    printed = repr(make())
    assert said in printed
    assert len(printed) < 300
    assert name == "Diagnosis" or "\n" not in printed


def test_outlines_need_no_values() -> None:
    seen = []

    def best(x: torch.Tensor) -> torch.Tensor:
        found = structmax.topk(x, structmax.Simplex(), 2)
        seen.append(repr(found))
        return found.values

    torch.vmap(best)(torch.randn(3, 4))
    assert seen == ["TopK(parts: (2, 4); values: (2,); torch.float32, cpu)"]
    assert repr(structmax.TopK(torch.zeros(2, 0), torch.zeros(0))).startswith("TopK(parts: (2, 0); values: (0,)")
    # of which torch knows no minimum
    assert repr(structmax.TopK(torch.zeros(3).to(torch.float8_e4m3fn), torch.zeros(1))).startswith(
        "TopK(parts: (3,) from"
    )
    assert "from 2 to 2" in repr(LinearChain(torch.full((9,), 2, dtype=torch.uint16)))
    meta = torch.zeros(3, device="meta")
    assert repr(LinearChain(meta.long())) == "LinearChain(lengths=tensor of shape (3,))"
    assert repr(structmax.TopK(meta, meta)) == "TopK(parts: (3,); values: (3,); torch.float32, meta)"


def test_results_are_still_tuples() -> None:
    parts, values = structmax.topk(torch.tensor([0.5, 2.0]), structmax.Simplex(), 1)
    assert parts.tolist() == [[0.0, 1.0]]
    assert values.tolist() == [2.0]


# what every module is made with, but for those that need nothing
MADE_WITH: dict[str, dict[str, Any]] = {
    "CRF": {"num_tags": 3, "batch_first": True, "ignore_index": -1, "omega": structmax.omega.LocalL2()},
    "Attention": {"size": 8, "heads": 2, "mapping": "entmax15", "dropout": 0.1},
    "Biaffine": {"input_size": 4, "hidden_size": 5, "labels": 3, "dropout": 0.2},
    "BinaryTreeLSTM": {"input_size": 4, "hidden_size": 7},
    "CRFDecoder": {"crf": nn.CRF(3)},
    "ChildSumTreeLSTM": {"input_size": 4, "hidden_size": 7},
    "FenchelYoungLoss": {"omega": structmax.omega.SquaredNorm(2.0), "reduction": "sum"},
    "MergeParser": {"input_size": 4, "hidden_size": 7},
    "Pairs": {"structure": structmax.Matching},
    "ProxOWL": {"weights": torch.ones(3)},
    "PyramidTreeLSTM": {"input_size": 4, "hidden_size": 7},
    "SinkhornAttention": {"size": 8, "heads": 2, "temperature": 0.25, "dropout": 0.1},
    "SoftDTWLoss": {"temperature": 0.25, "normalise": True, "band": 3, "cost": torch.cdist, "reduction": "sum"},
    "Spinn": {"input_size": 4, "hidden_size": 7, "tracker_size": 9},
    "Steps": {"reach": 3},
    "StructuredAttention": {"size": 8, "layout": nn.Steps(4), "answer": structmax.sparse_marginals, "heads": 2},
    "TopKSparsemax": {"k": 3},
    "TreeGCN": {"size": 8, "layers": 2, "gated": False},
    "Trees": {"size": 8, "structure": SpanningTree},
    "Entmax15Loss": {"weight": torch.ones(3), "reduction": "sum", "label_smoothing": 0.1},
}


@pytest.mark.parametrize("name", nn.__all__)
def test_modules_print_their_settings(name: str) -> None:
    module = getattr(nn, name)
    given = {
        setting: parameter.default
        for setting, parameter in inspect.signature(module).parameters.items()
        if parameter.default not in (inspect.Parameter.empty, None)
    } | MADE_WITH.get(name, {})
    printed = repr(module(**given))
    for setting, value in given.items():
        if setting == "weight" or isinstance(value, torch.Tensor):
            assert f"{setting}={tuple(value.shape)}" in printed
        elif setting == "mapping":
            assert "(mapping): Entmax15(dim=-1)" in printed
        elif isinstance(value, bool):
            assert f"{setting}={value}" in printed
        elif value is not structmax.squared_distance and not (setting == "dropout" and value == 0.0):
            assert getattr(value, "__name__", str(value)) in printed

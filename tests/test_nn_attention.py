"""Attention of every kind, and the modules of losses over structures: each equals an independent computation."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import structmax
from structmax import nn as snn

LENGTHS = torch.tensor([5, 1, 3])


def normal(*shape: int, seed: int = 0, requires_grad: bool = False) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_(requires_grad)


def made(module: Callable[..., nn.Module], *args: Any, **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    layer = module(*args, **settings).double()
    nn.init.normal_(layer.in_proj_bias)
    return layer


def close(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def by_hand(layer: nn.Module, query: Tensor, key: Tensor, weights_of: Callable[[int, Tensor], Tensor]) -> Tensor:
    """The output of one instance (Q, size), head by head; `weights_of` a head's scores."""
    (wq, wk, wv), (bq, bk, bv) = layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3)
    d, read = layer.size // layer.heads, []
    for head in range(layer.heads):
        at = slice(head * d, (head + 1) * d)
        q, k, v = query @ wq[at].T + bq[at], key @ wk[at].T + bk[at], key @ wv[at].T + bv[at]
        read.append(weights_of(head, q @ k.T / math.sqrt(d)) @ v)
    return torch.cat(read, -1) @ layer.out_proj.weight.T + layer.out_proj.bias


# ---------------------------------------------------------------- attention with a mapping


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_with_softmax_it_is_multihead_attention(causal: bool, short: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True).double()
    nn.init.normal_(theirs.in_proj_bias)
    ours = snn.Attention(8, heads=2).double()
    ours.load_state_dict(theirs.state_dict())
    x = normal(3, 5, 8, requires_grad=True)
    padding = torch.arange(5) >= LENGTHS[:, None] if short else None
    later = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    output, weights = theirs(x, x, x, key_padding_mask=padding, attn_mask=later, average_attn_weights=False)
    found = ours(x, lengths=LENGTHS if short else None, causal=causal)
    real = slice(None) if padding is None else ~padding
    close(found.output[real], output[real])
    close(found.weights.transpose(1, 2)[real], weights.transpose(1, 2)[real])
    cotangent = normal(3, 5, 8, seed=1) if padding is None else normal(3, 5, 8, seed=1) * ~padding[..., None]
    slopes = torch.autograd.grad(output, [x, *theirs.parameters()], cotangent)
    close(torch.autograd.grad(found.output, [x, *ours.parameters()], cotangent), slopes)


def test_it_starts_as_multihead_attention_does() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(64, 4).state_dict()
    ours = snn.Attention(64, heads=4).state_dict()
    assert {name: t.shape for name, t in ours.items()} == {name: t.shape for name, t in theirs.items()}
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor.std(), theirs[name].std(), rtol=0.05, atol=0)


def test_it_reads_another_sequence() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(8, 4, batch_first=True).double()
    ours = snn.Attention(8, heads=4).double()
    ours.load_state_dict(theirs.state_dict())
    query, key, value = normal(3, 4, 8), normal(3, 5, 8, seed=1), normal(3, 5, 8, seed=2)
    padding = torch.arange(5) >= LENGTHS[:, None]
    close(ours(query, key, value, lengths=LENGTHS).output, theirs(query, key, value, key_padding_mask=padding)[0])
    close(ours(query, key).output, theirs(query, key, key)[0])


ALPHA = torch.tensor([1.2, 2.0], dtype=torch.float64)
MAPPINGS = [
    (snn.Sparsemax(), lambda head, s: structmax.sparsemax(s)),
    (snn.Entmax(nn.Parameter(ALPHA)), lambda head, s: structmax.entmax(s, float(ALPHA[head]))),
    (snn.Fusedmax(0.1), lambda head, s: structmax.fusedmax(s, 0.1)),
    (snn.Oscarmax(0.1), lambda head, s: structmax.oscarmax(s, 0.1)),
    (snn.Csparsemax(0.0, 0.6), lambda head, s: structmax.csparsemax(s, 0.0, 0.6)),
    (snn.TopKSparsemax(2), lambda head, s: structmax.topk_sparsemax(s, 2)),
]


@pytest.mark.parametrize(("mapping", "function"), MAPPINGS, ids=lambda m: type(m).__name__)
def test_any_mapping(mapping: nn.Module, function: Callable[[int, Tensor], Tensor]) -> None:
    layer = made(snn.Attention, 6, heads=2, mapping=mapping)
    x = normal(3, 5, 6) * 2
    lengths = LENGTHS.clamp_min(2)
    found = layer(x, lengths=lengths)
    for b, n in enumerate(lengths.tolist()):
        close(found.output[b, :n], by_hand(layer, x[b, :n], x[b, :n], function))
        assert not found.weights[b, ..., n:].any()


def test_an_alpha_for_each_head_is_trained() -> None:
    layer = snn.Attention(6, heads=2, mapping=snn.Entmax(nn.Parameter(torch.full((2,), 1.5))))
    layer(normal(3, 5, 6).float()).output.square().sum().backward()
    assert layer.mapping.alpha.grad.shape == (2,)
    assert layer.mapping.alpha.grad.all()


def test_masks() -> None:
    layer, x = made(snn.Attention, 6, heads=2), normal(3, 5, 6)
    mask = normal(3, 5, 5, seed=3) > 0
    mask[1, 2] = False
    found = layer(x, mask=mask, lengths=LENGTHS)
    may = mask & (torch.arange(5) < LENGTHS[:, None, None])
    assert torch.equal(found.weights > 0, may[:, None].expand(3, 2, 5, 5))
    # a query that may read nothing
    assert torch.equal(found.output[1, 2], layer.out_proj.bias)
    assert torch.equal(
        layer(x, mask=torch.arange(5) < 3).weights, layer(x, mask=torch.arange(5).expand(5, 5) < 3).weights
    )
    found.output.sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def everything() -> list:
    tree = snn.Trees(6, lambda lengths: structmax.SpanningTree(lengths, single_root=True))
    flat = snn.Trees(6, lambda lengths: structmax.ProjectiveTree(lengths, single_root=False))
    rows = [
        ("softmax", lambda: made(snn.Attention, 6, heads=2)),
        ("sparsemax", lambda: made(snn.Attention, 6, heads=2, mapping=snn.Sparsemax())),
        ("segments", lambda: made(snn.StructuredAttention, 6, snn.Segments(), heads=2)),
        ("spanning trees", lambda: made(snn.StructuredAttention, 6, tree, heads=2)),
        ("steps", lambda: made(snn.StructuredAttention, 6, snn.Steps(), heads=2)),
        ("projective trees", lambda: made(snn.StructuredAttention, 6, flat)),
        (
            "matching",
            lambda: made(snn.StructuredAttention, 6, snn.Pairs(structmax.Matching), structmax.sparse_marginals),
        ),
        ("alignment", lambda: made(snn.StructuredAttention, 6, snn.Pairs(structmax.MonotoneAlignment), heads=3)),
        ("subset", lambda: made(snn.StructuredAttention, 6, snn.Pairs(lambda q, k: structmax.Subset(at_most=2)))),
        ("sinkhorn", lambda: made(snn.SinkhornAttention, 6, heads=2)),
    ]
    return [pytest.param(row[1], id=row[0]) for row in rows]


@pytest.mark.parametrize("make", everything())
def test_padding_changes_nothing(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), normal(3, 5, 6)
    padding = torch.arange(5)[:, None] >= LENGTHS[:, None, None]
    junk = x.masked_fill(padding, torch.nan).requires_grad_()
    found = layer(junk, lengths=LENGTHS)
    assert found.output.isfinite().all()
    for b, n in enumerate(LENGTHS.tolist()):
        alone = layer(x[b, :n])
        close(found.output[b, :n], alone.output)
        size = alone.weights.shape[-1]
        close(found.weights[b, :, :n, :size], alone.weights)
        assert not found.weights[b, :, :, size:].any()
    (found.output * normal(3, 5, 6, seed=1)).masked_fill(padding, 0.0).sum().backward()
    assert junk.grad is not None
    assert not junk.grad.masked_select(padding.expand_as(junk)).any()
    assert junk.grad.isfinite().all()


@pytest.mark.parametrize("make", everything())
def test_batch_shapes(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), normal(2, 3, 5, 6)
    lengths = torch.stack([LENGTHS, LENGTHS + 0])
    found, flat = layer(x, lengths=lengths), layer(x.flatten(0, 1), lengths=lengths.flatten())
    for wide, narrow in zip(found, flat, strict=True):
        close(wide.flatten(0, 1), narrow)
    alone = layer(x[0, 0])
    close(alone.output, found.output[0, 0])
    assert alone.weights.shape == found.weights.shape[2:]
    assert layer(x[:0, 0]).output.shape == (0, 5, 6)


@pytest.mark.parametrize("make", everything())
def test_gradients(make: Callable[[], nn.Module]) -> None:
    layer = make()
    names = [name for name, _ in layer.named_parameters()]

    def output(x: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, parameters, (x,), {"lengths": LENGTHS})[0]

    inputs = (normal(3, 5, 6, requires_grad=True), *layer.parameters())
    assert torch.autograd.gradcheck(output, inputs, fast_mode=True)


@pytest.mark.parametrize("make", everything())
def test_travels_and_half_precision(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), normal(3, 5, 6)
    again = copy.deepcopy(layer)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x).output, layer(x).output)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(x.float(), lengths=LENGTHS).output.dtype == torch.bfloat16


@pytest.mark.parametrize("make", everything()[1:5])
def test_compiles(make: Callable[[], nn.Module]) -> None:
    layer, x = make(), normal(3, 5, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    close(compiled(x, lengths=LENGTHS).output, layer(x, lengths=LENGTHS).output)


# ---------------------------------------------------------------- attention with a structure


def test_segments_are_marginals_of_a_chain() -> None:
    layer = made(snn.StructuredAttention, 6, snn.Segments(), heads=2)
    nn.init.normal_(layer.layout.pairwise)
    query, key = normal(2, 6), normal(4, 6, seed=1)

    def selected(_: int, scores: Tensor) -> Tensor:
        tags = torch.cartesian_prod(*[torch.arange(2)] * 4)
        steps = layer.layout.pairwise[tags[:, :-1], tags[:, 1:]].sum(-1)
        return (scores @ tags.double().T + steps).softmax(-1) @ tags.double()

    close(layer(query, key).output, by_hand(layer, query, key, selected))


@pytest.mark.parametrize("reach", [1, 2])
def test_steps_are_marginals_of_a_chain(reach: int) -> None:
    layer = made(snn.StructuredAttention, 6, snn.Steps(reach), heads=2)
    nn.init.normal_(layer.layout.steps)
    nn.init.normal_(layer.layout.ends)
    query, key = normal(3, 6), normal(4, 6, seed=1)

    def read(_: int, scores: Tensor) -> Tensor:
        labels = torch.cartesian_prod(*[torch.arange(4)] * 3)
        steps = layer.layout.steps[labels.diff(dim=-1).clamp(-reach, reach) + reach].sum(-1)
        first, last = layer.layout.ends
        ends = first * (labels[:, 0] == 0) + last * (labels[:, -1] == 3)
        p = (scores[torch.arange(3), labels].sum(-1) + steps + ends).softmax(-1)
        return torch.einsum("y, ynk -> nk", p, nn.functional.one_hot(labels, 4).double())

    close(layer(query, key).output, by_hand(layer, query, key, read))


def test_steps_end_at_the_last_key_of_each_instance() -> None:
    layer = made(snn.StructuredAttention, 6, snn.Steps(), structmax.argmax)
    layer.layout.ends.data.fill_(100.0)
    x, y, counts = normal(3, 4, 6), normal(3, 5, 6, seed=1), torch.tensor([4, 2, 3])
    weights = layer(x, y, query_lengths=counts, lengths=torch.tensor([2, 5, 4])).weights
    assert weights.sum((1, 2, 3)).tolist() == [4, 2, 3]
    assert [weights[b, 0, 0].argmax() for b in range(3)] == [0, 0, 0]
    assert [weights[b, 0, n - 1].argmax() for b, n in enumerate(counts.tolist())] == [1, 4, 3]


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_queries_that_are_padding_select_no_segments(lengths: Tensor | None) -> None:
    layer = made(snn.StructuredAttention, 6, snn.Segments(), heads=2)
    x, y, counts = normal(3, 4, 6), normal(3, 5, 6, seed=1), torch.tensor([4, 2, 0])
    found = layer(x, y, query_lengths=counts, lengths=lengths).weights
    inside = torch.arange(4) < counts.unsqueeze(-1)
    close(found, torch.where(inside[:, None, :, None], layer(x, y, lengths=lengths).weights, 0.0))


@pytest.mark.parametrize("kind", [structmax.SpanningTree, structmax.ProjectiveTree])
def test_trees_are_marginals_of_arcs(kind: type) -> None:
    layer = made(snn.StructuredAttention, 6, snn.Trees(6, lambda lengths: kind(lengths, single_root=True)), heads=2)
    x = normal(4, 6)

    def heads(_: int, scores: Tensor) -> Tensor:
        every = kind(single_root=True).enumerate(torch.zeros(5, 5, dtype=torch.float64))
        arcs = torch.cat([torch.zeros(5, 1, dtype=torch.float64), scores.T], 1)
        p = (every * arcs).sum((-1, -2)).softmax(0)
        return (p[:, None, None] * every).sum(0)[:, 1:].T

    found = layer(x)
    close(found.output, by_hand(layer, x, torch.cat([layer.layout.root[None], x]), heads))
    close(found.weights.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    # words are queries and keys alike
    for which in ("lengths", "query_lengths"):
        close(layer(x, **{which: torch.tensor(2)}).weights.sum((0, 2)), 2 * torch.tensor([1.0, 1, 0, 0]).double())


@pytest.mark.parametrize(
    "answer",
    [
        structmax.sparse_marginals,
        structmax.estimators.StraightThrough(),
        structmax.estimators.Spigot(),
        structmax.estimators.PerturbAndMAP(),
        structmax.estimators.Relaxation(structmax.omega.SquaredNorm(0.5)),
    ],
    ids=lambda answer: getattr(answer, "__name__", repr(answer)),
)
def test_answers(answer: Any) -> None:
    layer = made(snn.StructuredAttention, 6, snn.Pairs(structmax.Matching), answer)
    x, y = normal(3, 4, 6, requires_grad=True), normal(3, 5, 6, seed=1)
    found = layer(x, y, query_lengths=torch.tensor([4, 2, 1]), lengths=LENGTHS)
    close(found.weights.sum((-1, -2)).squeeze(1), torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    found.output.sum().backward()
    assert x.grad is not None
    assert x.grad.any()


def test_a_sum_over_matchings_is_refused_by_name() -> None:
    layer = snn.StructuredAttention(6, snn.Pairs(structmax.Matching))
    with pytest.raises(structmax.Refusal, match=r"permanent.*Try `sinkhorn`"):
        layer(torch.randn(2, 4, 6))


def test_a_layout_of_ones_own() -> None:
    class Best(snn.Pairs):
        """The best key of each query."""

        def __init__(self) -> None:
            super().__init__(lambda queries, keys: structmax.Simplex())

    layer = snn.StructuredAttention(6, Best(), structmax.estimators.StraightThrough(structmax.omega.Entropy()))
    weights = layer(torch.randn(2, 5, 6), lengths=torch.tensor([5, 2])).weights
    assert weights.sum(-1).squeeze(1).tolist() == [[1.0] * 5, [1.0, 1.0, 0.0, 0.0, 0.0]]


# ---------------------------------------------------------------- sinkhorn


def test_sinkhorn_attention() -> None:
    layer = made(snn.SinkhornAttention, 6, heads=2, temperature=0.5)
    x, y, rows = normal(3, 4, 6), normal(3, 5, 6, seed=1), torch.tensor([4, 2, 3])
    found = layer(x, y, query_lengths=rows, lengths=LENGTHS)

    def balanced(_: int, scores: Tensor) -> Tensor:
        return structmax.sinkhorn(scores, temperature=0.5).marginals

    for b, (n, m) in enumerate(zip(rows.tolist(), LENGTHS.tolist(), strict=True)):
        close(found.output[b, :n], by_hand(layer, x[b, :n], y[b, :m], balanced))
        given, received = found.weights[b].sum(-1)[:, :n], found.weights[b].sum(-2)[:, :m]
        shorter, longer = (given, received) if n <= m else (received, given)
        torch.testing.assert_close(shorter, torch.ones_like(shorter), rtol=1e-8, atol=1e-8)
        assert (longer < 1 + 1e-8).all()


# ---------------------------------------------------------------- losses


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    "settings", [{"temperature": 0.5}, {"omega": structmax.omega.LocalL2(0.3)}, {"band": 4}], ids=str
)
def test_soft_dtw_loss(normalise: bool, settings: dict) -> None:
    x, y, n = normal(3, 5, 2), normal(3, 4, 2, seed=1), torch.tensor([4, 2, 3])
    function = structmax.soft_dtw_divergence if normalise else structmax.soft_dtw
    wanted = function(x, y, x_lengths=LENGTHS, y_lengths=n, **settings)
    for reduction, value in (("none", wanted), ("sum", wanted.sum()), ("mean", wanted.mean())):
        layer = snn.SoftDTWLoss(normalise=normalise, reduction=reduction, **settings)
        assert torch.equal(layer(x, y, LENGTHS, n), value)
    assert torch.equal(snn.SoftDTWLoss(normalise=normalise, **settings)(x, x), function(x, x, **settings).mean())


CHAIN = structmax.LinearChain(LENGTHS)
LOSSES = [
    (snn.CRFLoss, structmax.crf_loss, {}),
    (snn.CRFLoss, structmax.crf_loss, {"reduction": "sum"}),
    (snn.PerceptronLoss, structmax.perceptron_loss, {"reduction": "none"}),
    (snn.SVMLoss, structmax.svm_loss, {}),
    (snn.SoftmaxMarginLoss, structmax.softmax_margin_loss, {"reduction": "sum"}),
    (snn.SparseMAPLoss, structmax.sparsemap_loss, {"temperature": 0.5}),
    (snn.MarginSparseMAPLoss, structmax.margin_sparsemap_loss, {"temperature": 2.0}),
    (snn.FenchelYoungLoss, structmax.fenchel_young, {"omega": structmax.omega.LocalL2(0.5)}),
    (
        snn.PerturbedLoss,
        structmax.perturbed_loss,
        {"samples": 2, "temperature": 0.5, "noise": structmax.noise.Gumbel()},
    ),
]


@pytest.mark.parametrize(("module", "function", "settings"), LOSSES)
def test_loss_equals_its_function(module: type[nn.Module], function: Callable[..., Tensor], settings: dict) -> None:
    scores = (normal(3, 5, 4), normal(4, 4, seed=1))
    target = CHAIN.encode(torch.tensor([[0, 1, 2, 3, 0], [1, -1, -1, -1, -1], [2, 2, 1, -1, -1]]), scores)
    layer = module(**settings)
    more: list[dict] = [{}]
    if issubclass(module, snn.structured_losses.MarginLoss):
        more.append({"cost": tuple(normal(*t.shape, seed=2) for t in target[:2])})
    if module is snn.CRFLoss:
        more.append({"known": tuple(t > 0 for t in target[:2])})
    for same in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        for extra in more:
            torch.manual_seed(0)
            found = same(scores, CHAIN, target, **extra)
            torch.manual_seed(0)
            assert torch.equal(found, function(scores, CHAIN, target, **settings, **extra))


def test_perturbed_loss_takes_a_generator() -> None:
    first, again = (
        snn.PerturbedLoss()(normal(6, 4), structmax.Simplex(), torch.eye(4).double()[:1].expand(6, 4), generator=g)
        for g in (torch.Generator().manual_seed(3), torch.Generator().manual_seed(3))
    )
    assert torch.equal(first, again)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (snn.SoftDTWLoss(0.1), "SoftDTWLoss(temperature=0.1, normalise=False, band=None, reduction='mean')"),
        (
            snn.SoftDTWLoss(omega=structmax.omega.LocalL2(2.0), normalise=True),
            "SoftDTWLoss(omega=LocalL2(temperature=2.0), normalise=True, band=None, reduction='mean')",
        ),
        (snn.CRFLoss("sum"), "CRFLoss(reduction='sum')"),
        (snn.SparseMAPLoss(0.5), "SparseMAPLoss(temperature=0.5, reduction='mean')"),
    ],
)
def test_repr(module: nn.Module, text: str) -> None:
    assert repr(module) == text


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax", "normmax", "fusedmax", "oscarmax"])
def test_a_mapping_by_its_name(name: str) -> None:
    layer, x = snn.Attention(6, heads=2, mapping=name), torch.randn(3, 5, 6)
    lengths = torch.tensor([5, 2, 3])
    output, weights = layer(x, lengths=lengths)
    assert output.shape == x.shape
    assert (weights[1, ..., 2:] == 0).all()
    torch.testing.assert_close(weights[1, :, :2].sum(-1), torch.ones(2, 2))


@pytest.mark.parametrize(
    "layer",
    [
        snn.Attention(6, heads=2, mapping="sparsemax", dropout=0.5),
        snn.StructuredAttention(6, snn.Pairs(structmax.Matching), structmax.sparse_marginals, dropout=0.5),
        snn.SinkhornAttention(6, dropout=0.5),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_dropout_leaves_weights_out_of_training_alone(layer: nn.Module) -> None:
    x = torch.randn(4, 5, 6)
    whole = layer.eval()(x)
    torch.manual_seed(0)
    output, weights = layer.train()(x)
    torch.testing.assert_close(weights, whole.weights)
    assert not torch.allclose(output, whole.output)
    # what is kept is doubled, so that the mean over many draws is the output without dropout
    with torch.no_grad():
        mean = torch.stack([layer(x).output for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, whole.output, atol=0.08, rtol=0)


def test_errors() -> None:
    layer = snn.Attention(6, heads=2)
    x = torch.randn(3, 5, 6)
    with pytest.raises(ValueError, match=r"`mapping` should be one of 'softmax', .*, but is 'entmax2'"):
        snn.Attention(6, mapping="entmax2")
    with pytest.raises(ValueError, match=r"`dropout` should be between 0 and 1, but is 1\.5"):
        snn.Attention(6, dropout=1.5)
    with pytest.raises(ValueError, match=r"`mapping` should be one of .*, but is None"):
        snn.Attention(6, mapping=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`heads` should divide `size` = 6, but is 4"):
        snn.Attention(6, heads=4)
    with pytest.raises(ValueError, match="`heads` should be a whole number ≥ 1, but is 0"):
        snn.Attention(6, heads=0)
    with pytest.raises(ValueError, match="`size` should be a whole number ≥ 1, but is 0"):
        snn.Attention(0)
    with pytest.raises(
        ValueError, match=r"`key` should have a batch that broadcasts with \(3,\), .* has shape \(2, 5, 6\)"
    ):
        layer(x, x[:2])
    with pytest.raises(
        ValueError, match=r"`value` should have a row for each of the 5 keys, but has shape \(3, 4, 6\)"
    ):
        layer(x, x, x[:, 1:])
    with pytest.raises(ValueError, match=r"`key` should have shape \(…, N, 6\) with N ≥ 1, but has \(3, 5, 4\)"):
        layer(x, torch.randn(3, 5, 4))
    with pytest.raises(ValueError, match=r"`query` should have shape .* but has \(3, 0, 6\)"):
        layer(x[:, :0])
    with pytest.raises(TypeError, match="`query` should be floating point"):
        layer(x.long())
    with pytest.raises(ValueError, match="`lengths` should be between 0 and 5"):
        layer(x, lengths=LENGTHS + 1)
    with pytest.raises(ValueError, match=r"`lengths` should broadcast to the batch shape \(3,\)"):
        layer(x, lengths=LENGTHS[:2])
    with pytest.raises(ValueError, match=r"`mask` should broadcast to shape \(3, 5, 5\), but has \(5, 4\)"):
        layer(x, mask=torch.ones(5, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"but has \(3, 5\)\. For keys that are padding try mask\[:, None\]"):
        layer(x, mask=torch.ones(3, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match=r"`key` should be floating point, .* give them by name: lengths=…"):
        layer(x, LENGTHS)
    with pytest.raises(TypeError, match="`mask` should be a bool tensor"):
        layer(x, mask=torch.ones(5, 5))
    with pytest.raises(TypeError, match=r"`layout` should relate .* Try Pairs\(Matching\)"):
        snn.StructuredAttention(6, structmax.Matching())
    trees = snn.StructuredAttention(6, snn.Trees(6, lambda n: structmax.SpanningTree(n, single_root=True)))
    with pytest.raises(ValueError, match=r"`key` should be left out with Trees, .* 4 keys for 5 queries"):
        trees(x, x[:, 1:])
    with pytest.raises(ValueError, match="`size` of Trees should be 6, as of the attention, but is 4"):
        snn.StructuredAttention(6, snn.Trees(4, structmax.SpanningTree))(x)
    with pytest.raises(ValueError, match="`size` should be a whole number ≥ 1, but is 0"):
        snn.Trees(0, structmax.SpanningTree)
    for layout in (snn.Pairs, lambda structure: snn.Trees(6, structure)):
        with pytest.raises(
            TypeError, match=r"`structure` should be a function from lengths .* is Matching\(.* Try the class"
        ):
            layout(structmax.Matching())
    with pytest.raises(TypeError, match=r"`answer` should be .* but is a class. Try Spigot\(\)"):
        snn.StructuredAttention(6, snn.Segments(), structmax.estimators.Spigot)
    with pytest.raises(ValueError, match="`temperature` should be > 0"):
        snn.SinkhornAttention(6, temperature=0.0)
    with pytest.raises(ValueError, match="`reduction` should be one of"):
        snn.SoftDTWLoss(reduction="average")(x, x)

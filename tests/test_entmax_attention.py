"""`entmax_attention` beside torch's function and a plain computation, and in models of transformers."""

import pytest
import torch
from torch.autograd import gradcheck

import structmax
from structmax.testing import same

sdpa = torch.nn.functional.scaled_dot_product_attention


def draw(heads=4, kept=4, queries=5, keys=6, size=3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, heads, queries, size), (2, kept, keys, size), (2, kept, keys, size + 1)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def plain(q, k, v, may, alpha, scale=None):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return structmax.entmax(scores.masked_fill(~may, -torch.inf), alpha, backend="reference") @ v


def mask(seed=0):
    may = torch.rand(2, 1, 5, 6, generator=torch.Generator().manual_seed(seed)) > 0.4
    may[..., 0] = True
    return may


def test_alpha_one_is_torchs_function():
    q, k, v = draw()
    for options in ({}, {"attn_mask": mask()}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": mask().double()}):
        same("attention", structmax.entmax_attention(q, k, v, **options, alpha=1.0), sdpa(q, k, v, **options))
    q, k, v = draw(kept=2)
    got = structmax.entmax_attention(q, k, v, enable_gqa=True, alpha=1.0)
    same("grouped queries", got, sdpa(q, k, v, enable_gqa=True))


@pytest.mark.parametrize("alpha", [1.5, 2.0, torch.tensor([1.1, 1.5, 1.9, 2.0], dtype=torch.float64)])
def test_equals_a_plain_computation(alpha):
    q, k, v = draw()
    by_head = alpha.reshape(4, 1, 1) if isinstance(alpha, torch.Tensor) else alpha
    got = structmax.entmax_attention(q, k, v, mask(), alpha=alpha)
    same("masked", got, plain(q, k, v, mask(), by_head))
    causal = torch.ones(5, 6, dtype=torch.bool).tril()
    got = structmax.entmax_attention(q, k, v, is_causal=True, alpha=alpha, scale=2.0)
    same("causal", got, plain(q, k, v, causal, by_head, 2.0))


def test_gradients_also_for_alpha():
    q, k, v = (t[:1].requires_grad_() for t in draw(2, 1, 3, 3, 2))
    alpha = torch.tensor([1.3, 1.7], dtype=torch.float64, requires_grad=True)

    def ask(q, k, v, alpha):
        return structmax.entmax_attention(q, k, v, is_causal=True, enable_gqa=True, alpha=alpha)

    assert gradcheck(ask, (q, k, v, alpha))


def test_a_query_without_keys_reads_nothing():
    q, k, v = (t.requires_grad_() for t in draw())
    may = mask()
    may[0, 0, 2] = False
    out = structmax.entmax_attention(q, k, v, may)
    assert (out[0, :, 2] == 0).all()
    out.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_dropout_keeps_the_mean():
    q, k, v = draw(dtype=torch.float32)
    torch.manual_seed(0)
    drawn = torch.stack([structmax.entmax_attention(q, k, v, dropout_p=0.3) for _ in range(4000)])
    torch.testing.assert_close(drawn.mean(0), structmax.entmax_attention(q, k, v), atol=0.1, rtol=0)
    assert drawn.std(0).max() > 0.1


def test_compiles_whole_and_takes_half_precision():
    q, k, v = draw(dtype=torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(structmax.entmax_attention, fullgraph=True, backend="aot_eager")
    same("compiled", compiled(q, k, v, is_causal=True), structmax.entmax_attention(q, k, v, is_causal=True), 1e-6)
    half = [t.bfloat16() for t in (q, k, v)]
    out = structmax.entmax_attention(*half)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), structmax.entmax_attention(q, k, v), atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda q, k, v: structmax.entmax_attention(q, k[..., :2], v), ValueError, "`key` should have .* with D = 3"),
        (lambda q, k, v: structmax.entmax_attention(q.long(), k, v), TypeError, "`query` should be floating point"),
        (lambda q, k, v: structmax.entmax_attention(q.tolist(), k, v), TypeError, "`query` should be .* tensor"),
        (lambda q, k, v: structmax.entmax_attention(q, k, v.long()), TypeError, "`value` should be floating point"),
        (
            lambda q, k, v: structmax.entmax_attention(q, k, v, mask(), is_causal=True),
            ValueError,
            "`is_causal` should be False where `attn_mask` is given",
        ),
        (
            lambda q, k, v: structmax.entmax_attention(q, k[:, :3], v[:, :3], enable_gqa=True),
            ValueError,
            "should divide the 4 of `query`, but are 3",
        ),
        (
            lambda q, k, v: structmax.entmax_attention(q, k, v[..., :4, :]),
            ValueError,
            "`value` should have shape .* a value for each of the 6 keys, but has",
        ),
        (lambda q, k, v: structmax.entmax_attention(q, k, v.float()), TypeError, "`value` should have the dtype of"),
        (lambda q, k, v: structmax.entmax_attention(q, k.float(), v), TypeError, "`key` should have the dtype of"),
        (
            lambda q, k, v: structmax.entmax_attention(q, k, v, torch.zeros(7)),
            ValueError,
            "Scores and `attn_mask` should broadcast with one another, but are .*Try a mask",
        ),
        (
            lambda q, k, v: structmax.entmax_attention(q, k, v, [[True]]),
            TypeError,
            "`attn_mask` should be a torch tensor, but is a list",
        ),
        (lambda q, k, v: structmax.entmax_attention(q, k, v, alpha=0.0), ValueError, "`alpha` should be"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(*draw())


def test_shapes_alone_are_enough_for_its_shape():
    q, k, v = (t.to("meta") for t in draw(kept=2))
    out = structmax.entmax_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (out.shape, out.device.type) == ((2, 4, 5, 4), "meta")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mask_of_numbers_may_be_wider_than_the_queries(dtype):
    q, k, v = (t.to(dtype) for t in draw())
    added = torch.zeros(5, 6).masked_fill(torch.arange(6) > 2, -torch.inf)
    out = structmax.entmax_attention(q, k, v, added)
    assert out.dtype == dtype
    same("out", out.double(), structmax.entmax_attention(q, k, v, added.isfinite()).double(), 1e-2)


def test_without_heads_grouping_changes_nothing():
    q, k, v = (t[0, 0] for t in draw())
    same("out", structmax.entmax_attention(q, k, v, enable_gqa=True), structmax.entmax_attention(q, k, v))


def test_a_query_has_two_dimensions():
    _, k, v = draw()
    with pytest.raises(ValueError, match=r"`query` should have shape \(…, H, N, D\), but has \(\)"):
        structmax.entmax_attention(torch.tensor(1.0), k, v)

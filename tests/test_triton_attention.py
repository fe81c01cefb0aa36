"""Attention without scores in Triton, against the reference in float64: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

import structmax
from structmax.mappings import attention_rules
from structmax.mappings.attention_rules import is_fused, tile
from structmax.structures.simplex import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def draw(heads=2, shared=2, queries=40, keys=50, size=16, dtype=torch.float32, spread=2.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, heads, queries, size), (2, shared, keys, size), (2, shared, keys, size)
    q, k, v = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes)
    return spread * q, k, v


def both(q, k, v, alpha=1.5, **options):
    """Output and gradients of the kernel and of the scores in float64."""
    answers = []
    for backend, dtype in (("triton", q.dtype), ("reference", torch.float64)):
        inputs = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        if isinstance(alpha, torch.Tensor):
            inputs.append(alpha.detach().to(DEVICE, torch.promote_types(dtype, torch.float32)).requires_grad_())
        by_head = inputs[3] if len(inputs) > 3 else alpha
        out = structmax.entmax_attention(*inputs[:3], **options, alpha=by_head, backend=backend)
        d_out = torch.linspace(-1, 1, out.numel(), device=DEVICE, dtype=out.dtype).reshape(out.shape)
        answers.append([out, *torch.autograd.grad(out, inputs, d_out)])
    return answers


def compare(q, k, v, tolerance=2e-5, **options):
    for got, want in zip(*both(q, k, v, **options), strict=True):
        torch.testing.assert_close(
            got.double(), want, atol=tolerance * max(1.0, float(want.detach().abs().max())), rtol=0
        )


def may_read(seed=0):
    may = torch.rand(2, 1, 40, 50, generator=torch.Generator().manual_seed(seed)) > 0.4
    # a query that may read nothing
    may[1, 0, 7] = False
    return may.to(DEVICE)


CASES = {
    "alphas": {"alpha": torch.tensor([1.0, 1.7])},
    "entmax15": {},
    "sparsemax": {"alpha": 2.0},
    "near softmax": {"alpha": 1.05},
    "causal": {"is_causal": True, "alpha": torch.tensor([1.3, 2.0])},
    "scaled": {"scale": 0.7},
    "masked": {"attn_mask": may_read()},
    "padded": {
        "attn_mask": torch.arange(50, device=DEVICE) < torch.tensor([50, 13], device=DEVICE).reshape(2, 1, 1, 1)
    },
    "added": {"attn_mask": torch.linspace(-2, 2, 2000, device=DEVICE).reshape(40, 50)},
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_scores(case):
    compare(*draw(), **CASES[case])


@pytest.mark.parametrize("size", [1, 5, 32, 80, 200])
def test_heads_of_any_size(size):
    compare(*draw(queries=20, keys=33, size=size))


# Shared memory of a program: Hopper, Ada, Turing.
LARGE, SMALL, SMALLEST = 232_448, 101_376, 65_536


@pytest.mark.parametrize(
    ("size", "dtype", "tiles"),
    [
        (64, torch.float16, [(64, 64), (64, 64), (64, 64)]),
        (100, torch.bfloat16, [(64, 64), (64, 32), (32, 32)]),
        (256, torch.float16, [(64, 32), (16, 16), (16, 16)]),
        (64, torch.float32, [(32, 32), (32, 32), (32, 32)]),
        (128, torch.float32, [(32, 32), (16, 16), (16, 16)]),
        (256, torch.float32, [(16, 16), None, None]),
    ],
)
def test_blocks_fit_the_shared_memory(size, dtype, tiles):
    assert [tile(size, dtype, shared) for shared in (LARGE, SMALL, SMALLEST)] == tiles


@pytest.mark.parametrize("size", [128, 200])
def test_blocks_of_small_gpus(monkeypatch, size):
    q, k, v = draw(heads=1, shared=1, size=size)
    monkeypatch.setattr(attention_rules, "shared_memory", lambda _: SMALL)
    assert is_fused(q, k, v, None, 0.0, False, None, False, 1.5, "triton") == (size == 128)
    compare(q, k, v)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 70), (33, 1), (31, 65)])
def test_any_number_of_tokens(queries, keys):
    compare(*draw(queries=queries, keys=keys))


@pytest.mark.parametrize("alpha", [1.5, torch.tensor([1.2, 1.4, 1.6, 1.8])], ids=["one", "each"])
def test_heads_that_share_keys(alpha):
    compare(*draw(heads=4, shared=2), enable_gqa=True, is_causal=True, alpha=alpha)


# Triton's interpreter multiplies no bfloat16.
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16][: 1 + torch.cuda.is_available()])
def test_half_precision(dtype):
    digits = torch.finfo(dtype).eps
    compare(*draw(dtype=dtype), tolerance=8 * digits)


def test_half_precision_holds_small_cotangents_of_many_keys():
    """Those of scores are not made smaller first, by p̂^(α−1) where α is general."""
    kept, answers = draw(queries=3, keys=1024, spread=0.0, dtype=torch.float16), []
    for backend, dtype in (("triton", torch.float16), ("reference", torch.float64)):
        q, k, v = (t.to(dtype).requires_grad_() for t in kept)
        alpha = torch.tensor([2.0, 1.9], device=DEVICE, dtype=torch.promote_types(dtype, torch.float32))
        out = structmax.entmax_attention(q, k, v, alpha=alpha, backend=backend)
        answers.append(torch.autograd.grad(out, q, torch.full_like(out, 1e-4))[0].double())
    torch.testing.assert_close(*answers, atol=0.02 * float(answers[1].abs().max()), rtol=0)


def test_blocks_without_weights_are_dropped():
    q, k, v = draw(queries=64, keys=256, spread=0.0)
    # the first queries read the first keys, the last the last
    k = torch.where(torch.arange(256, device=DEVICE).reshape(-1, 1) < 128, 3.0, -3.0) + 0.1 * k
    q = torch.where(torch.arange(64, device=DEVICE).reshape(-1, 1) < 32, 3.0, -3.0).expand_as(q).contiguous()
    fields = {"alpha": 1.5, "scale": 0.25, "causal": False, "queries": 32, "keys": 32, "rows": 128}
    *_, live = kernel_triton.attention(q, k, v, **fields, tiles=2 * 2 * 8)
    want = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]], dtype=torch.uint8, device=DEVICE)
    assert (live.reshape(2, 2, 2, 8) <= want).all()
    assert (live.reshape(2, 2, 2, 8).sum(-1) > 0).all()
    compare(q, k, v, scale=0.25)


def test_what_is_kept_is_that_of_the_reference():
    q, k, v = draw()
    fields = {"alpha": 1.3, "scale": 0.3, "causal": True, "queries": 16, "keys": 32, "rows": 80, "tiles": 2 * 3 * 2}
    got, want = (module.attention(q, k, v, **fields) for module in (kernel_triton, reference))
    for a, b in zip(got[:4], want[:4], strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=1e-5, rtol=0)


def test_heads_may_be_more_than_the_second_dimension_of_a_grid(monkeypatch):
    grids = []
    monkeypatch.setattr(kernel_triton, "launch", lambda kernel, grid, *rest: grids.append(grid))
    q = torch.ones(40000, 2, 1, 1, device=DEVICE)
    fields = {"alpha": 1.5, "scale": 1.0, "causal": False, "queries": 32, "keys": 32, "rows": 2}
    out, *kept = kernel_triton.attention(q, q, q, **fields, tiles=2)
    kernel_triton.attention_pullback(q, q, q, out, *kept, **fields)
    assert all(size < 1 << 16 for grid in grids for size in grid[1:])


def test_a_query_without_keys_reads_nothing():
    out = structmax.entmax_attention(*draw(), may_read(), backend="triton")
    assert (out[1, :, 7] == 0).all()


def test_nan_stays_in_its_head():
    q, k, v = draw()
    k[0, 1, 3, 0] = math.nan
    out = structmax.entmax_attention(q, k, v, backend="triton")
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()
    assert out[1].isfinite().all()


def test_an_alpha_that_nobody_looked_at_is_nan_outside_its_range():
    alpha = torch.tensor([2.5, 1.5], device=DEVICE)
    out = structmax.entmax_attention(*draw(), alpha=alpha, backend="triton")
    assert out[:, 0].isnan().all()
    assert out[:, 1].isfinite().all()


def test_second_derivatives_are_refused_in_words():
    q, k, v = (t.requires_grad_() for t in draw(queries=3, keys=4, size=2))
    (d_q,) = torch.autograd.grad(structmax.entmax_attention(q, k, v, backend="triton").sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match=r'has first derivatives only. Try backend="reference"'):
        d_q.sum().backward()


def test_compiles_whole():
    q, k, v = draw(queries=8, keys=8, size=4)
    torch._dynamo.reset()

    def loss(q, k, v):
        return structmax.entmax_attention(q, k, v, is_causal=True, backend="triton").square().sum()

    want = torch.func.grad(loss)(*(t.double() for t in (q, k, v)))
    q.requires_grad_()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(q, k, v).backward()
    torch.testing.assert_close(q.grad.double(), want, atol=1e-4, rtol=1e-4)


def test_autocast_narrows_what_is_multiplied():
    q, k, v = draw(queries=5, keys=6)
    with torch.autocast(DEVICE, torch.float16):
        out = structmax.entmax_attention(q, k, v, backend="triton")
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), structmax.entmax_attention(q, k, v, backend="reference"), atol=2e-2, rtol=0)


@pytest.mark.parametrize(
    ("change", "fused"),
    [
        ({}, True),
        ({"alpha": 1.0}, False),
        ({"alpha": 2.1}, False),
        ({"dropout_p": 0.1}, False),
        ({"backend": "reference"}, False),
        ({"scale": torch.tensor(0.5)}, False),
        ({"alpha": torch.tensor([1.2, 1.5])}, True),
        ({"alpha": torch.tensor([1, 2])}, False),
        ({"alpha": torch.tensor([1.2, 1.5], device="meta")}, False),
        ({"alpha": "1.5"}, False),
        ({"mask": torch.ones(40, 50, dtype=torch.bool)}, True),
        ({"mask": torch.ones(40, 50, dtype=torch.bool, device="meta")}, False),
        ({"mask": torch.ones(3, 50, dtype=torch.bool)}, False),
        ({"mask": torch.ones(1, 50, dtype=torch.bool), "is_causal": True}, False),
        ({"value": torch.ones(2, 2, 50, 17)}, False),
        ({"key": torch.ones(2, 1, 50, 16), "value": torch.ones(2, 1, 50, 16)}, False),
    ],
)
def test_what_keeps_no_scores(change, fused):
    q, k, v = (t.cpu() for t in draw())
    usual = {"mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    usual |= {"alpha": 1.5, "backend": "triton"}
    if torch.cuda.is_available():
        pytest.skip("the tensors are on the CPU")
    assert is_fused(**({"query": q, "key": k, "value": v} | usual | change)) is fused

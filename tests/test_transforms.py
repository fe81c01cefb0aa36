"""Every question and mapping under compile, export, torch.func, autocast, no_grad and inference_mode."""

import pytest
import torch

import structmax

# transforms of every mapping
pytestmark = pytest.mark.thorough

SIMPLEX = structmax.Simplex()
TARGET = torch.tensor([1, 0, 3])

# Each takes scores (3, 4) and returns one tensor.
CALLS = {
    "log_partition": lambda x: structmax.log_partition(x, SIMPLEX),
    "marginals": lambda x: structmax.marginals(x, SIMPLEX),
    "entropy": lambda x: structmax.entropy(x, SIMPLEX),
    "cross_entropy": lambda x: structmax.cross_entropy(x, x.flip(-1), SIMPLEX),
    "kl_divergence": lambda x: structmax.kl_divergence(x, x.flip(-1), SIMPLEX),
    "log_prob": lambda x: structmax.log_prob(x, SIMPLEX, structmax.argmax(x, SIMPLEX)),
    "smoothed by entropy": lambda x: structmax.smoothed_marginals(x, SIMPLEX, structmax.omega.Entropy(0.5)),
    "smoothed locally": lambda x: structmax.smoothed(x, SIMPLEX, structmax.omega.LocalTsallis(1.5, 0.5)),
    "argmax": lambda x: structmax.argmax(x, SIMPLEX) * x,
    "topk": lambda x: structmax.topk(x, SIMPLEX, 2).values,
    "max_marginals": lambda x: structmax.max_marginals(x, SIMPLEX) * x,
    "minimum_bayes_risk": lambda x: structmax.minimum_bayes_risk(x, SIMPLEX) * x,
    "softmax": structmax.softmax,
    "sparsemax": structmax.sparsemax,
    "entmax15": lambda x: structmax.entmax15(x, dim=0),
    "entmax": lambda x: structmax.entmax(x, 1.3),
    "entmax of tensor alpha": lambda x: structmax.entmax(x, 1.2 + 0.1 * x[:, :1].sigmoid()),
    "topk_sparsemax": lambda x: structmax.topk_sparsemax(x, 2),
    "smoothed_max": lambda x: structmax.smoothed_max(x, 1.5),
    "normmax": structmax.normmax,
    "budget": lambda x: structmax.budget(x, 2.0),
    "csparsemax": lambda x: structmax.csparsemax(x, 0.05, 0.6),
    "csoftmax": lambda x: structmax.csoftmax(x, 0.05, 0.6),
    "fusedmax": lambda x: structmax.fusedmax(x, 0.1),
    "oscarmax": lambda x: structmax.oscarmax(x, 0.1),
    "prox_tv": lambda x: structmax.prox_tv(x, 0.1),
    "prox_owl": lambda x: structmax.prox_owl(x, torch.tensor([0.3, 0.2, 0.1, 0.0], dtype=x.dtype)),
}
LOSSES = {
    "sparsemax_loss": lambda x: structmax.sparsemax_loss(x, TARGET),
    "entmax15_loss": lambda x: structmax.entmax15_loss(x, TARGET, label_smoothing=0.1),
    "entmax_loss": lambda x: structmax.entmax_loss(x, x.softmax(-1).detach(), 1.3),
    "normmax_loss": lambda x: structmax.normmax_loss(x, TARGET),
}
EVERY = {**CALLS, **LOSSES}


def scores(dtype=torch.float64) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=dtype)


def square_sum(call):
    return lambda x: (call(x) ** 2).sum()


def plain_gradient(call, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(square_sum(call)(leaf), leaf)[0]


@pytest.fixture(params=EVERY, ids=lambda name: name.replace(" ", "_"))
def call(request):
    return EVERY[request.param]


def test_torch_func(call):
    x = scores()
    want = plain_gradient(call, x)
    total = square_sum(call)
    close = torch.testing.assert_close
    close(torch.func.grad(total)(x), want)
    close(torch.func.jacrev(total)(x), want)
    close(torch.func.jacfwd(total)(x), want)
    tangent = scores().flip(0)
    close(torch.func.jvp(total, (x,), (tangent,))[1], (want * tangent).sum())
    close(torch.func.hessian(total)(x), torch.func.jacrev(torch.func.jacrev(total))(x))


@pytest.mark.parametrize("name", CALLS, ids=lambda name: name.replace(" ", "_"))
def test_vmap(name):
    x = torch.stack([scores(), scores().flip(0), 2 * scores()], 1)
    got = torch.func.vmap(CALLS[name], in_dims=1)(x)
    torch.testing.assert_close(got, torch.stack([CALLS[name](x[:, i]) for i in range(3)]))
    gradients = torch.func.vmap(torch.func.grad(square_sum(CALLS[name])), in_dims=1)(x)
    torch.testing.assert_close(gradients, torch.stack([plain_gradient(CALLS[name], x[:, i]) for i in range(3)]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(call, dynamic):
    torch._dynamo.reset()
    x = scores()
    # aot_eager traces forward and backward as any backend does, and leaves out code generation.
    compiled = torch.compile(square_sum(call), fullgraph=True, dynamic=dynamic, backend="aot_eager")
    torch.testing.assert_close(compiled(x), square_sum(call)(x))
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf), leaf)[0], plain_gradient(call, x))


def test_compile_with_the_default_backend():
    torch._dynamo.reset()
    x = scores(torch.float32)

    def attention(x):
        return structmax.sparsemax(x @ x.T, mask=torch.ones(3, 3, dtype=torch.bool).tril()) @ x

    compiled = torch.compile(attention, fullgraph=True)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(compiled(x), attention(x))
    torch.testing.assert_close(torch.autograd.grad(compiled(leaf).sum(), leaf)[0], plain_sum_gradient(attention, x))


def plain_sum_gradient(call, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(call(leaf).sum(), leaf)[0]


def test_compile_samples_with_the_same_chance():
    torch._dynamo.reset()

    def draw(x):
        return structmax.sample(x, SIMPLEX, (5,))

    x = scores()
    torch.manual_seed(3)
    want = draw(x)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.compile(draw, fullgraph=True, backend="aot_eager")(x), want)


class Wrapped(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def test_export(call):
    x = scores()
    program = torch.export.export(Wrapped(call), (x,))
    torch.testing.assert_close(program.module()(x + 0.5), call(x + 0.5))


def test_export_with_a_dynamic_batch():
    x = scores()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(Wrapped(structmax.sparsemax), (x,), dynamic_shapes=({0: batch},))
    longer = torch.cat([x, x])
    torch.testing.assert_close(program.module()(longer), structmax.sparsemax(longer))


def test_no_grad_and_inference_mode(call):
    x = scores().requires_grad_()
    want = call(x).detach()
    with torch.no_grad():
        quiet = call(x)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, want)
    with torch.inference_mode():
        torch.testing.assert_close(call(scores()).clone(), want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_half_precision_in_and_out(call, dtype):
    x = scores(torch.float32)
    weight = torch.eye(4, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        half = x @ weight
        assert half.dtype == dtype
        out = call(half)
    wide = call((x.to(dtype)).double())
    torch.testing.assert_close(out.double(), wide, atol=3e-2, rtol=3e-2)
    out.float().sum().backward()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_sample_under_vmap_draws_independently():
    x = scores().expand(64, 3, 4)
    draws = torch.func.vmap(lambda x: structmax.sample(x, SIMPLEX), randomness="different")(x)
    assert draws.shape == (64, 3, 4)
    assert draws.std(0).max() > 0.1


def test_make_fx_records_the_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: structmax.sparsemax(x))(scores())
    assert "structmax.call" in graph.code
    torch.testing.assert_close(graph(scores() + 1), structmax.sparsemax(scores() + 1))


def test_forward_mode_of_alpha_in_a_fully_masked_row():
    x = scores().index_fill(0, torch.tensor([1]), -torch.inf)
    alpha = torch.tensor([1.2, 1.5, 2.5], dtype=x.dtype)
    pushed = torch.func.jvp(lambda alpha: structmax.entmax(x, alpha), (alpha,), (torch.ones_like(alpha),))[1]
    assert pushed.isfinite().all()
    assert (pushed[1] == 0).all()

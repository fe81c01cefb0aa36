"""Checks and times the simplex's Triton kernels on a GPU. Usage: python benchmarks/_device_simplex.py check|time|variants"""

import math, sys, types, time, itertools

for name in ("structmax", "structmax.structures", "structmax.structures.simplex"):
    m = types.ModuleType(name)
    m.__path__ = [name.replace(".", "/")]
    sys.modules[name] = m
sys.path.insert(0, ".")
import torch, torch.nn.functional as F
from triton.testing import do_bench
import structmax.structures.simplex.reference as R, structmax.structures.simplex.kernel_triton as K

dev = "cuda"
f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
torch.manual_seed(0)
inf = math.inf


def cases(n, dt):
    r = lambda b: torch.randn(b, n, device=dev, dtype=f64)
    rows = [
        r(6),
        r(2) * 10,
        r(1) * 1e-3,
        r(1) + 1e4,
        r(1) * 30 - 1e4,
        r(1) * 0,
        torch.randint(0, 3, (2, n), device=dev).to(f64),
        r(1) * 0 - inf,
    ]
    if n > 2:
        y = r(3)
        y[torch.rand(3, n, device=dev) < 0.5] = -inf
        rows.append(y)
        for top in (0.5, 5):
            y = r(1) * 0
            y[0, n // 2] = top
            rows.append(y)
    return torch.cat(rows).to(dt)


def check(n, dt, alpha):
    x = cases(n, dt)
    B = x.shape[0]
    a64 = alpha
    name = alpha
    if alpha == "t":
        alpha = (
            torch.tensor([0.3, 1, 1.0001, 1.25, 1.5, 1.9, 2, 2.5, 4, 10], device=dev)
            .to(f64 if dt == f64 else f32)
            .repeat(3)[:B]
        )
        a64 = alpha.double()
    big = lambda a: a.double()
    p = K.entmax(x, alpha)
    P = R.entmax(big(x), a64)
    v = torch.randn(B, n, device=dev).to(dt)
    g = K.entmax_pullback(p, v, alpha)
    G = R.entmax_pullback(big(p).cpu(), big(v).cpu(), a64.cpu() if isinstance(a64, torch.Tensor) else a64).to(dev)
    t = torch.randint(-1, n, (B,), device=dev)
    val, st = K.entmax_value(x, t, alpha)
    VAL, ST = R.entmax_value(big(x), t, a64)
    d = torch.randn(B, device=dev).to(st.dtype)
    d[0] = 0
    gr = K.entmax_gradient(x, st, t, d, alpha)
    GR = R.entmax_gradient(big(x), ST, t, big(d), a64)
    fin = VAL.isfinite()
    feas = (x > -inf).any(-1)
    flags = [
        bool((val.double()[~fin] == VAL[~fin]).all()),
        bool((gr[0] == 0).all() & (p[~feas] == 0).all() & (gr[~feas] == 0).all() & (p[x == -inf] == 0).all()),
        not bool(p.isnan().any() | gr.isnan().any() | val.isnan().any()),
    ]
    y = x[:5].clone()
    y[1, n // 2] = math.nan
    y[3, n - 1] = inf
    if not isinstance(alpha, torch.Tensor):
        q = K.entmax(y, alpha)
        w = K.entmax_value(y, t[:5], alpha)
        flags.append(
            bool(
                q[1].isnan().all()
                & q[3].isnan().all()
                & (q[0] == p[0]).all()
                & (q[4] == p[4]).all()
                & w[0][1].isnan()
                & w[0][3].isnan()
            )
        )
        flags.append(bool(K.entmax_gradient(y, w[1], t[:5], d[:5] + 1, alpha)[1].isnan().any()))
    return (
        (p - P).abs().max().item(),
        (p.double().sum(-1) - 1).abs()[feas].max().item(),
        ((g - G).abs() / (1 + G.abs())).max().item(),
        ((val.double() - VAL).abs() / VAL.abs().clamp_min(1))[fin].max().item(),
        (gr - GR).abs().max().item(),
        flags,
    )


DTYPES = (f32, f64, bf16)


SIZES = (1, 7, 64, 130, 1000, 5000, 32000, 128000)
def run_checks():
    print("check: dtype n alpha | p sum pullback value gradient flags")
    for dt in DTYPES:
        for n in SIZES:
            for alpha in (1.0, 1.5, 2.0, 1.3, 1.0001, 0.5, 3.0, "t"):
                if (
                    (alpha in (3.0, "t") and n > 32000)
                    or (dt == bf16 and n not in (64, 32000))
                    or (dt == f64 and n not in (7, 130, 5000, 32000))
                ):
                    continue
                try:
                    r = check(n, dt, alpha)
                except Exception as ex:
                    print("FAIL", dt, n, alpha, repr(ex)[:600], flush=True)
                    continue
                lim = {f32: 2.1e-7, f64: 1e-12, bf16: 4e-3}[dt]
                bad = (
                    r[0] > lim or r[1] > lim * 5 or not all(r[-1]) or r[3] > lim * 3 or r[4] > lim * 3 or (alpha not in (3.0, "t") and r[2] > lim * 5)
                )
                if bad:
                    print(
                        "BAD " if bad else "ok  ",
                        str(dt)[6:],
                        n,
                        alpha,
                        " ".join(f"{a:.1e}" for a in r[:5]),
                        [int(a) for a in r[-1]],
                        flush=True,
                    )
    print("checks done", flush=True)


class Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        p = K.entmax(x, alpha)
        ctx.save_for_backward(p)
        ctx.alpha = alpha
        return p

    @staticmethod
    def backward(ctx, v):
        return K.entmax_pullback(ctx.saved_tensors[0], v, ctx.alpha), None


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t, alpha):
        v, s = K.entmax_value(x, t, alpha)
        ctx.save_for_backward(x, s, t)
        ctx.alpha = alpha
        return v

    @staticmethod
    def backward(ctx, d):
        x, s, t = ctx.saved_tensors
        return K.entmax_gradient(x, s, t, d.contiguous(), ctx.alpha), None, None


bench = lambda f: do_bench(f, warmup=15, rep=60, return_mode="median")
SHAPES = ((4096, 1000), (65536, 64), (8192, 32000), (2048, 128000))


def times(alphas=(1.5, 2.0)):
    print("time ms: shape dtype alpha | fwd pull f+b | softmax fwd f+b | value grad loss f+b | CE f+b")
    for (B, n), dt in itertools.product(SHAPES, (f32, bf16)):
        x = torch.randn(B, n, device=dev).to(dt).requires_grad_()
        v = torch.randn(B, n, device=dev).to(dt)
        t = torch.randint(0, n, (B,), device=dev)

        def fb(f, cot):
            def go():
                x.grad = None
                f().backward(cot)

            return bench(go)

        d = torch.ones(B, device=dev)
        sf = bench(lambda: torch.softmax(x.detach(), -1))
        sfb = fb(lambda: torch.softmax(x, -1), v)
        ce = fb(lambda: F.cross_entropy(x, t, reduction="none"), d.to(dt))
        for alpha in alphas:
            xd = x.detach()
            p = K.entmax(xd, alpha)
            val, st = K.entmax_value(xd, t, alpha)
            row = (
                bench(lambda: K.entmax(xd, alpha)),
                bench(lambda: K.entmax_pullback(p, v, alpha)),
                fb(lambda: Entmax.apply(x, alpha), v),
                sf,
                sfb,
                bench(lambda: K.entmax_value(xd, t, alpha)),
                bench(lambda: K.entmax_gradient(xd, st, t, d, alpha)),
                fb(lambda: Loss.apply(x, t, alpha), d),
                ce,
            )
            print(
                f"{B}x{n} {str(dt)[6:]} {alpha} | {row[0]:.3f} {row[1]:.3f} {row[2]:.3f} | {row[3]:.3f} {row[4]:.3f} | {row[5]:.3f} {row[6]:.3f} {row[7]:.3f} | {row[8]:.3f}",
                flush=True,
            )


DRY = None
SOLVE = ((1024, 4, 3), (1024, 4, 2), (1024, 4, 4), (1024, 8, 3), (512, 4, 3), (512, 2, 3), (512, 4, 4), (1024, 2, 3), (256, 2, 3))
PULL = ((4096, 16, 1), (4096, 32, 1), (8192, 32, 1), (2048, 16, 1), (8192, 16, 1), (2048, 8, 1), (4096, 16, 3))
def variants():
    global bench
    jobs = [("solve", s, dt, c) for s in SHAPES[2:] + ((32768, 4096), (16384, 8192)) for dt in (f32, bf16) for c in SOLVE]
    jobs += [("pull", s, dt, c) for s in SHAPES[2:] + ((16384, 8192),) for dt in (f32, bf16) for c in PULL]
    jobs += [("rows", s, dt, c) for s in ((65536, 2048), (32768, 4096), (16384, 8192)) for dt in (f32, bf16) for c in (512, 1024, 2048)]
    if DRY is not None:
        jobs = jobs[DRY::14]; bench = lambda f: (f(), 0.0)[1]
    for what, (B, n), dt, c in jobs:
        B = B if DRY is None else 16
        x = torch.randn(B, n, device=dev).to(dt); v = torch.randn(B, n, device=dev).to(dt); t = torch.randint(0, n, (B,), device=dev); out = []
        tol = 2.0**-20; y = torch.empty_like(x); val = torch.empty(B, device=dev); st = torch.empty(B, 2, device=dev)
        try:
            for kind, e in (("entmax15", .5), ("sparsemax", 1.)):
                if what == "solve":
                    fs = [lambda: K._launch(K._solve_streamed, B, c[1], (x, None, y, None), n, (e,), (kind, False, False, False, tol, c[0], c[2])),
                          lambda: K._launch(K._solve_streamed, B, c[1], (x, t, val, st), n, (e,), (kind, True, True, False, tol, c[0], c[2]))]
                elif what == "pull":
                    p = K.entmax(x, e + 1)
                    fs = [lambda: K._launch(K._pull_streamed, B, c[1], (p, v, None, y), n, (e,), (kind, False, False, c[0], c[2]))]
                else:
                    p = K.entmax(x, e + 1); rows, block, warps = K._tile(n, c)
                    fs = [lambda: K._launch(K._solve_rows, K.triton.cdiv(B, rows), warps, (x, None, None, y, None), n, (B, e), (kind, False, False, False, False, False, tol, 60, rows, block)),
                          lambda: K._launch(K._pull_rows, K.triton.cdiv(B, rows), warps, (p, v, None, y), n, (B, e), (kind, False, False, rows, block))]
                out += [bench(f) for f in fs]
        except Exception as ex: out = [repr(ex)[:200]]
        if DRY is None: print(f"{what} {B}x{n} {str(dt)[6:]} {c} | " + " ".join(f"{a:.4f}" if isinstance(a, float) else a for a in out), flush=True)

def graphs():
    """GPU time of forward and backward launches alone, by replaying a graph of both."""
    def timed(f):
        for _ in range(3): f()
        torch.cuda.synchronize(); g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g): f()
        return bench(g.replay)
    for (B, n), dt in itertools.product(SHAPES[:2], (f32, bf16)):
        x = torch.randn(B, n, device=dev).to(dt); v = torch.randn(B, n, device=dev).to(dt); t = torch.randint(0, n, (B,), device=dev); d = torch.ones(B, device=dev)
        soft = timed(lambda: torch._softmax_backward_data(v, torch._softmax(x, -1, False), -1, dt))
        xr = x.clone().requires_grad_()
        def ce(): return torch.autograd.grad(F.cross_entropy(xr, t, reduction="none"), xr, d.to(dt))
        ce_t = timed(ce)
        for alpha in (1.5, 2.0):
            a = timed(lambda: K.entmax_pullback(K.entmax(x, alpha), v, alpha))
            def loss(): val, st = K.entmax_value(x, t, alpha); return K.entmax_gradient(x, st, t, d, alpha)
            print(f"graph {B}x{n} {str(dt)[6:]} {alpha} | f+b {a:.4f} softmax {soft:.4f} ratio {a / soft:.2f} | loss {timed(loss):.4f} CE {ce_t:.4f}", flush=True)

def host():
    x = torch.randn(64, 64, device=dev); v = torch.randn_like(x); t = torch.zeros(64, dtype=torch.long, device=dev)
    for name, f in (("entmax", lambda: K.entmax(x, 1.5)), ("pull", lambda: K.entmax_pullback(x, v, 1.5)), ("value", lambda: K.entmax_value(x, t, 1.5)), ("empty_like", lambda: torch.empty_like(x)), ("softmax", lambda: torch.softmax(x, -1))):
        for _ in range(20): f()
        torch.cuda.synchronize(); t0 = time.perf_counter()
        for _ in range(1000): f()
        t1 = time.perf_counter(); torch.cuda.synchronize(); print(f"host {name} {(t1 - t0) * 1e3:.1f} us", flush=True)

if __name__ == "__main__":
    t0 = time.time()
    for a in sys.argv[1:]:
        if a.startswith("dry"):
            DRY = int(a[3:])
            a = "variants"
        if a.startswith("check:"):
            dtype, *sizes = a[6:].split(","); DTYPES = (getattr(torch, dtype),); SIZES = tuple(map(int, sizes)); a = "check"
        {"check": run_checks, "time": times, "variants": variants, "host": host, "graphs": graphs}[a]()
        print(f"[{a} {time.time() - t0:.0f}s]", flush=True)

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
    G = R.entmax_pullback(big(p), big(v), a64)
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


def run_checks(sizes=(1, 7, 64, 130, 1000, 5000, 32000, 128000)):
    print("check: dtype n alpha | p sum pullback value gradient flags")
    for dt in DTYPES:
        for n in sizes:
            for alpha in (1.0, 1.5, 2.0, 1.3, 1.0001, 0.5, 3.0, "t"):
                if (
                    (alpha in (3.0, "t") and n > 5000)
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
                    r[0] > lim or r[1] > lim * 5 or not all(r[-1]) or r[3] > lim * 3 or r[4] > lim * 3 or r[2] > lim * 5
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
LANE_VARIANTS = (
    (2048, 8, 1),
    (2048, 8, 2),
    (2048, 8, 3),
    (4096, 8, 1),
    (4096, 16, 1),
    (4096, 16, 2),
    (2048, 4, 1),
    (1024, 4, 1),
    (1024, 4, 3),
    (8192, 16, 1),
)
TILE_VARIANTS = ((512, 1), (1024, 1), (2048, 1), (1024, 2), (2048, 2), (2048, 4), (4096, 4), (4096, 8))


def variants():
    global bench
    jobs = [("lanes", s, dt, c) for s in SHAPES[2:] for dt in (f32, bf16) for c in LANE_VARIANTS]
    jobs += [("tile", s, dt, c) for s in SHAPES[:2] + ((16384, 4096),) for dt in (f32, bf16) for c in TILE_VARIANTS]
    if DRY is not None:
        jobs = [j for j in jobs if hash(str(j[3]) + str(j[2])) is not None][DRY::14]
        bench = lambda f: (f(), 0.0)[1]
    for what, (B, n), dt, c in jobs:
        B = B if DRY is None else 16
        x = torch.randn(B, n, device=dev).to(dt)
        v = torch.randn(B, n, device=dev).to(dt)
        t = torch.randint(0, n, (B,), device=dev)
        out = []
        if what == "lanes":
            K._lanes = lambda n: {"LANES": c[0], "STAGES": c[2], "num_warps": c[1]}
        else:

            def tile(n):
                b = K.triton.next_power_of_2(n)
                rows = max(1, c[0] // b)
                return {"ROWS": rows, "BLOCK": b, "num_warps": max(1, c[1] * rows * b // c[0])}

            K._tile = tile
        try:
            for alpha in (1.5, 2.0):
                p = K.entmax(x, alpha)
                val, st = K.entmax_value(x, t, alpha)
                d = torch.ones_like(val)
                fs = [
                    lambda: K.entmax(x, alpha),
                    lambda: K.entmax_pullback(p, v, alpha),
                    lambda: K.entmax_value(x, t, alpha),
                ]
                if what == "tile":
                    fs.append(lambda: K.entmax_gradient(x, st, t, d, alpha))
                out += [bench(f) for f in fs]
        except Exception as ex:
            out = [repr(ex)[:100]]
        if DRY is None:
            print(
                f"{what} {B}x{n} {str(dt)[6:]} {c} | "
                + " ".join(f"{a:.4f}" if isinstance(a, float) else a for a in out),
                flush=True,
            )


if __name__ == "__main__":
    t0 = time.time()
    for a in sys.argv[1:]:
        if a.startswith("dry"):
            DRY = int(a[3:])
            a = "variants"
        if a.startswith("check:"):
            DTYPES = (getattr(torch, a[6:]),)
            a = "check"
        {"check": run_checks, "time": times, "variants": variants}[a]()
        print(f"[{a} {time.time() - t0:.0f}s]", flush=True)

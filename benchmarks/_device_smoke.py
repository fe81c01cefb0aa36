import sys, time, torch, structmax
sys.path.insert(0,"tests")
import test_transforms as T
T.TARGET = T.TARGET.cuda()
bad=0
for name, call in T.EVERY.items():
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        x = T.scores(torch.float32).to(dtype)
        try:
            def run(x):
                leaf=x.clone().requires_grad_(); out=call(leaf); (out.float()**2).sum().backward(); return out.detach(), leaf.grad
            dev=run(x.cuda())
            T.TARGET=T.TARGET.cpu(); cpu=run(x.double()); T.TARGET=T.TARGET.cuda()
            tol={torch.float64:1e-9,torch.float32:2e-5,torch.bfloat16:6e-2}[dtype]
            for a,b in zip(dev,cpu):
                d=(a.double().cpu()-b).abs().max().item()
                if not d<=tol*max(1,b.abs().max().item()): bad+=1; print("DIFF",name,dtype,d)
        except Exception as e:
            bad+=1; T.TARGET=T.TARGET.cuda(); print("FAIL",name,dtype,repr(e)[:200])
print("smoke bad:",bad)
print(structmax.which(torch.zeros(3,device="cuda"), structmax.Simplex()))
cf=torch.compile(lambda x: structmax.entmax15(x@x.T), fullgraph=True)
x=torch.randn(64,64,device="cuda",requires_grad=True); g=torch.autograd.grad(cf(x).square().sum(),x)[0]; g2=torch.autograd.grad(structmax.entmax15(x@x.T).square().sum(),x)[0]; print("compile cuda", (g-g2).abs().max().item())
# graph capture and host cost
def host(f,n=300):
    for _ in range(30): f()
    torch.cuda.synchronize(); t=time.perf_counter()
    for _ in range(n): f()
    e=time.perf_counter()-t; torch.cuda.synchronize(); return e/n*1e6
x=torch.randn(8,8,device="cuda",requires_grad=True); v=torch.ones(8,8,device="cuda"); t=torch.zeros(8,dtype=torch.int64,device="cuda")
F=torch.nn.functional
for _ in range(2):
    print("host us softmax f %.1f f+b %.1f | sparsemax f %.1f f+b %.1f | ce f+b %.1f | loss f+b %.1f" % (host(lambda: torch.softmax(x,-1)), host(lambda: torch.autograd.grad(torch.softmax(x,-1),x,v)), host(lambda: structmax.sparsemax(x)), host(lambda: torch.autograd.grad(structmax.sparsemax(x),x,v)), host(lambda: torch.autograd.grad(F.cross_entropy(x,t),x)), host(lambda: torch.autograd.grad(structmax.entmax15_loss(x,t),x))))
import cProfile,pstats
pr=cProfile.Profile(); pr.enable()
for _ in range(500): torch.autograd.grad(structmax.entmax15_loss(x,t),x)
pr.disable(); pstats.Stats(pr).sort_stats("tottime").print_stats(18)

"""A dynamic program of your own: which bases of an RNA strand pair up?

A secondary structure pairs some bases of a strand so that no two pairs cross. Its recursion (Nussinov and Jacobson
1980) is not in the library. Listed as hyperedges it needs ten lines, and every question is answered: the best folding,
the k best, the probability of each pair, draws, entropies, smoothed foldings, all with gradients.
"""

import math

import torch
from torch import Tensor

import structmax

PAIRS = {"AU": 2.0, "UA": 2.0, "GC": 3.0, "CG": 3.0, "GU": 1.0, "UG": 1.0}


def foldings(n, loop):
    """Node width · (n + 1) + i is the strand of that width from i: its first base is free or pairs with a later one."""
    for width in range(n + 1):
        for i in range(n - width + 1):
            j = i + width
            here = width * (n + 1) + i
            if width == 0:
                yield here, -1, -1, -1
                continue
            # base i stays alone
            yield here, -1, (width - 1) * (n + 1) + i + 1, -1
            # base i pairs with base k: what is inside, and what follows
            for k in range(i + 1 + loop, j):
                yield here, i * n + k, (k - i - 1) * (n + 1) + i + 1, (j - k - 1) * (n + 1) + k + 1


def scores_of(strand: str) -> Tensor:
    """The bond of each pair of bases, −inf where there is none: (n²,)."""
    return torch.tensor([[PAIRS.get(a + b, -math.inf) for b in strand] for a in strand]).flatten()


def brackets(parts: Tensor, n: int) -> str:
    drawn = ["."] * n
    for i, j in parts.reshape(n, n).nonzero().tolist():
        drawn[i], drawn[j] = "(", ")"
    return "".join(drawn)


def main() -> None:
    strand = "GGGAAAUCCCUUCGGGAAACC"
    n = len(strand)
    structure = structmax.Hypergraph.from_function(foldings, n, 3)
    scores = scores_of(strand).requires_grad_()

    print(f"{math.exp(structmax.log_count(scores, structure)):.0f} foldings of")
    print(f"  {strand}")
    best, values = structmax.topk(scores, structure, 3)
    for value, parts in zip(values.tolist(), best, strict=True):
        print(f"  {brackets(parts, n)}  score {value:g}")

    probable = structmax.marginals(scores, structure).reshape(n, n)
    paired = probable.sum(0) + probable.sum(1)
    print(f"  {''.join(str(int(9.99 * p)) for p in paired.tolist())}  tenths of the probability to be paired")
    print(f"entropy {structmax.entropy(scores, structure).item():.2f} nats")

    drawn = structmax.sample_without_replacement(scores, structure, 3, generator=torch.Generator().manual_seed(0))
    for log_p, parts in zip(drawn.log_probs.tolist(), drawn.parts, strict=True):
        print(f"  {brackets(parts, n)}  drawn, p = {math.exp(log_p):.4f}")

    # The expected folding under a sparse walk: pairs that are out of the question have exactly no weight.
    sparse = structmax.smoothed_marginals(scores, structure, structmax.omega.LocalL2())
    print(f"{int((sparse > 0).sum())} pairs have weight under L2, {int((probable > 0).sum())} under the entropy")

    # And all of it trains: the gradient of the entropy with respect to every bond.
    structmax.entropy(scores, structure).backward()
    assert scores.grad is not None
    i, j = divmod(int(scores.grad.abs().argmax()), n)
    print(f"the bond that matters most for the entropy: {strand[i]}{i}-{strand[j]}{j}")


if __name__ == "__main__":
    main()

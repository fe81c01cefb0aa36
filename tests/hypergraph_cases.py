"""Small random hypergraphs with all their derivations listed: the judge of the engines."""

import itertools
import math

import numpy as np
import torch

from structmax.recursion.edges import Hyperedges


class Case:
    """A random hypergraph whose every edge has a part of its own, and maybe one that is shared; three instances."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        rng = np.random.default_rng(seed)
        while True:
            nodes, arity = int(rng.integers(4, 9)), int(rng.integers(1, 4))
            # the first two nodes can be derived, others may have no edge
            head = np.repeat(np.arange(nodes), [rng.integers(1 if v < 2 else 0, 4) for v in range(nodes)])
            low = np.maximum(-1, head - 5)
            tails = np.stack(
                [np.where(rng.random(len(head)) < 0.7, rng.integers(low, head), -1) for _ in range(arity)], 1
            )
            order = rng.permutation(len(head))
            own = np.arange(len(head))
            shared = np.where(rng.random(len(head)) < 0.5, len(head) + rng.integers(3, size=len(head)), -1)
            edges = (head, tails, np.stack([shared, own], 1))
            self.edges = Hyperedges.of(*(torch.from_numpy(t[order]) for t in edges), nodes)
            self.goal = torch.tensor([nodes - 1, nodes - 2, nodes - 1])
            sizes = self.sizes()
            if min(sizes) >= 1 and 3 <= max(sizes) <= 150:
                break
        self.size = len(head) + 3
        # small integers over 2: ties, exactly
        x = rng.normal(size=(3, self.size)) if seed % 3 else rng.integers(-2, 3, size=(3, self.size)) / 2
        x[rng.random(x.shape) < 0.08] = -math.inf
        self.x = torch.from_numpy(x).to(dtype)
        self.graph = {"goal": self.goal, **self.edges._asdict()}
        self.members = [self.derivations(int(v)) for v in self.goal]

    def sizes(self) -> list[int]:
        """How many derivations each goal has."""
        first, tails, _ = (t.tolist() for t in self.edges)
        ways = [0] * (len(first) - 1)
        for v in range(len(ways)):
            for e in range(first[v], first[v + 1]):
                ways[v] += math.prod(ways[tail] for tail in tails[e] if tail >= 0)
        return [ways[v] for v in self.goal.tolist()]

    def derivations(self, v: int) -> list[list[tuple[int, int]]]:
        """Each as its (node, edge) pairs, depth-first."""
        first, tails, _ = (t.tolist() for t in self.edges)
        found = []
        for e in range(first[v], first[v + 1]):
            below = [self.derivations(tail) for tail in tails[e] if tail >= 0]
            found += [[(v, e), *itertools.chain(*choice)] for choice in itertools.product(*below)]
        return found

    def counts(self, derivation: list[tuple[int, int]]) -> torch.Tensor:
        out = torch.zeros(self.size, dtype=torch.float64)
        for _, e in derivation:
            for part in self.edges.parts[e].tolist():
                if part >= 0:
                    out[part] += 1
        return out

    def table(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The parts (n, P) and scores (n,) of all derivations of instance b."""
        parts = torch.stack([self.counts(d) for d in self.members[b]])
        x = self.x[b].double()
        return parts, torch.where(parts > 0, parts * x, 0.0).sum(1)

    def walk(self, b: int, alpha: float, gamma: float) -> tuple[float, np.ndarray]:
        """The smoothed value of the goal and q of each edge."""
        first, tails, parts = (t.tolist() for t in self.edges)
        x = self.x[b].double().tolist()
        value, q = [], np.zeros(len(tails), dtype=np.longdouble)
        for v in range(len(first) - 1):
            edges = range(first[v], first[v + 1])
            s = [sum(x[p] for p in parts[e] if p >= 0) + sum(value[t] for t in tails[e] if t >= 0) for e in edges]
            p, best = entmax(np.array(s, dtype=np.longdouble), alpha, gamma)
            q[first[v] : first[v + 1]] = p
            value.append(best)
        return float(value[int(self.goal[b])]), q


def entmax(s: np.ndarray, alpha: float, gamma: float) -> tuple[np.ndarray, float]:
    """argmax and max over p of ⟨p, s⟩ − γ Ω_α(p), by bisection in extended precision."""
    inside = s > -math.inf
    if not inside.any():
        return np.zeros_like(s), -math.inf
    z = (s[inside] - s[inside].max()) / np.longdouble(gamma)
    e = np.longdouble(alpha) - 1

    def of(tau):
        return np.exp(z - tau) if e == 0 else np.where(1 + e * (z - tau) > 0, np.abs(1 + e * (z - tau)) ** (1 / e), 0)

    low, high = np.longdouble(0), np.longdouble(1 / e if e > 0 else 1e6)
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (middle, high) if of(middle).sum() >= 1 else (low, middle)
    p = np.zeros_like(s)
    p[inside] = of(low) / of(low).sum()
    on = p > 0
    omega = (p[on] * np.log(p[on])).sum() if e == 0 else ((p[on] ** alpha - p[on]) / (alpha * e)).sum()
    return p, (p[on] * s[on]).sum() - gamma * omega

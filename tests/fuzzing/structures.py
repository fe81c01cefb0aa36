"""Random structures of every class, with all their options, small enough to enumerate."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

import structmax
from structmax.contract import AbstractStructure

Shape = tuple[int, ...]
# how many members an instance may have
MOST = 260


@dataclass(frozen=True)
class Subject:
    """A structure for one batch, and the shapes of the scores it is asked about; None where a tensor is left out."""

    structure: AbstractStructure
    shapes: tuple[Shape | None, ...]


def lengths(rng: np.random.Generator, batch: Shape, most: int, least: int = 0) -> torch.Tensor | None:
    """None, one for all, or one for each instance; the extremes are frequent."""
    kind = rng.random()
    if kind < 0.3:
        return None
    shape = () if kind < 0.4 else batch
    drawn = rng.integers(least, most + 1, shape)
    ends = rng.choice([least, most], shape)
    return torch.as_tensor(np.where(rng.random(shape) < 0.4, ends, drawn), dtype=torch.int64)


def simplex(rng: np.random.Generator, batch: Shape) -> Subject:
    return Subject(structmax.Simplex(), ((*batch, int(rng.integers(1, 9))),))


def bits(rng: np.random.Generator, batch: Shape) -> Subject:
    n = int(rng.integers(1, 7))
    return Subject(structmax.Bits(lengths(rng, batch, n)), ((*batch, n),))


def subset(rng: np.random.Generator, batch: Shape) -> Subject:
    n = int(rng.integers(1, 8))
    size = int(rng.integers(0, n + 2))
    given = {"k": size} if rng.random() < 0.5 else {"at_most": size}
    return Subject(structmax.Subset(**given, lengths=lengths(rng, batch, n)), ((*batch, n),))


def _matrix(rng: np.random.Generator, batch: Shape, n: int, c: int) -> Shape:
    """A matrix of transitions for all, for each instance, or for each position."""
    return [(c, c), (*batch, c, c), (*batch, n - 1, c, c)][rng.integers(3)]


def linear_chain(rng: np.random.Generator, batch: Shape) -> Subject:
    c = int(rng.integers(1, 5))
    n = int(rng.integers(1, {1: 6, 2: 7, 3: 5, 4: 4}[c] + 1))
    ends = [[None, (c,), (*batch, c)][rng.choice(3, p=[0.6, 0.2, 0.2])] for _ in range(2)]
    options = {"lengths": lengths(rng, batch, n)}
    if rng.random() < 0.25:
        options = {"keep": torch.as_tensor(rng.random((*batch, n)) < 0.6)}
    return Subject(structmax.LinearChain(**options), ((*batch, n, c), _matrix(rng, batch, n, c), *ends))


def budget_chain(rng: np.random.Generator, batch: Shape) -> Subject:
    chain = linear_chain(rng, batch)
    n, c = chain.shapes[0][-2:]
    size = int(rng.integers(0, n + 2))
    given = {"k": size} if rng.random() < 0.5 else {"at_most": size}
    options = {"lengths": chain.structure.lengths, "keep": chain.structure.keep, "label": int(rng.integers(c))}
    return Subject(structmax.BudgetChain(**given, **options), chain.shapes)


def head_automaton(rng: np.random.Generator, batch: Shape) -> Subject:
    n = int(rng.integers(1, 7))
    return Subject(structmax.HeadAutomaton(lengths(rng, batch, n)), ((*batch, n), (*batch, n + 1, n + 1)))


def labelled_tree(rng: np.random.Generator, batch: Shape) -> Subject:
    c = int(rng.integers(1, 4))
    n = int(rng.integers(1, {1: 6, 2: 7, 3: 5}[c] + 1))
    given = lengths(rng, batch, n)
    shape = batch if given is not None or rng.random() < 0.5 else ()
    # below a node that comes before it, or a root
    parents = torch.as_tensor(rng.integers(-1, np.maximum(np.arange(n), 0), (*shape, n)), dtype=torch.int64)
    matrix = [(c, c), (*batch, c, c), (*batch, n, c, c)][rng.integers(3)]
    return Subject(structmax.LabelledTree(parents, given), ((*batch, n, c), matrix))


def semi_markov(rng: np.random.Generator, batch: Shape) -> Subject:
    c = int(rng.integers(1, 4))
    n = int(rng.integers(1, {1: 6, 2: 5, 3: 4}[c] + 1))
    width = int(rng.integers(1, n + 2))
    pairwise = _matrix(rng, batch, n, c) if rng.random() < 0.75 else (*batch, n - 1, width, c, c)
    shapes = (*batch, n, width, c), pairwise
    return Subject(structmax.SemiMarkov(lengths(rng, batch, n)), shapes)


def ctc(rng: np.random.Generator, batch: Shape) -> Subject:
    v = int(rng.integers(2, 5))
    t = int(rng.integers(1, {2: 6, 3: 5, 4: 4}[v] + 1))
    count, blank = int(rng.integers(0, 4)), int(rng.integers(v))
    symbols = [s for s in range(v) if s != blank]
    shared = rng.random() < 0.3
    labels = torch.as_tensor(rng.choice(symbols, (count,) if shared else (*batch, count)), dtype=torch.int64)
    given = lengths(rng, batch, count)
    if given is not None and not shared and rng.random() < 0.5:
        labels = torch.where(torch.arange(count) < given.unsqueeze(-1), labels, -100)
    return Subject(structmax.CTC(labels, lengths(rng, batch, t), given, blank=blank), ((*batch, t, v),))


def binary_tree(rng: np.random.Generator, batch: Shape) -> Subject:
    labelled = bool(rng.random() < 0.4)
    c = int(rng.integers(1, 3))
    n = int(rng.integers(1, (4 if c == 2 else 6) if labelled else 7))
    event = (n, n, c) if labelled else (n, n)
    return Subject(structmax.BinaryTree(lengths(rng, batch, n), labelled=labelled), ((*batch, *event),))


def shift_reduce(rng: np.random.Generator, batch: Shape) -> Subject:
    n = int(rng.integers(1, 7))
    return Subject(structmax.ShiftReduce(lengths(rng, batch, n)), ((*batch, 2 * n - 1, 2),))


def alignment(rng: np.random.Generator, batch: Shape) -> Subject:
    kind = rng.choice(["warping", "gaps", "local"])
    most = {"warping": 5, "gaps": 4, "local": 3}[kind]
    n, m = (int(size) for size in rng.integers(rng.random() > 0.1, most + 1, 2))
    if kind == "warping" and n + m > 9:
        n -= 1
    band = None if rng.random() < 0.6 else int(rng.integers(0, 4))
    structure = structmax.MonotoneAlignment(
        lengths(rng, batch, n), lengths(rng, batch, m), gaps=kind != "warping", local=kind == "local", band=band
    )
    if kind == "warping":
        return Subject(structure, ((*batch, n, m),))
    delete = [(), (*batch, n, m + 1), (*batch, 1, 1), (n, 1), (1, m + 1)][rng.integers(5)]
    insert = [(), (*batch, n + 1, m), (*batch, 1, 1), (n + 1, 1), (1, m)][rng.integers(5)]
    return Subject(structure, ((*batch, n, m), delete, insert))


def jump_alignment(rng: np.random.Generator, batch: Shape) -> Subject:
    n, m = (int(size) for size in rng.integers(1, 5, 2))
    k = int(rng.integers(1, 4))
    structure = structmax.JumpAlignment(lengths(rng, batch, n), lengths(rng, batch, m))
    step = [(k, 1, 1), (k, n, m), (*batch, k, n, m), (*batch, k, 1, m)][rng.integers(4)]
    down = [None, (), (*batch, n, m), (n, 1)][rng.integers(4)]
    return Subject(structure, ((*batch, n, m), step, down))


def _pairs(rng: np.random.Generator, batch: Shape, kind: type) -> Subject:
    n, m = (int(size) for size in rng.integers(rng.random() > 0.1, 5, 2))
    structure = kind(lengths(rng, batch, n), lengths(rng, batch, m), partial=bool(rng.random() < 0.4))
    return Subject(structure, ((*batch, n, m),))


def matching(rng: np.random.Generator, batch: Shape) -> Subject:
    return _pairs(rng, batch, structmax.Matching)


def small_matching(rng: np.random.Generator, batch: Shape) -> Subject:
    return _pairs(rng, batch, structmax.SmallMatching)


def _arcs(rng: np.random.Generator, batch: Shape, kind: type) -> Subject:
    labelled = bool(rng.random() < 0.3)
    words = int(rng.integers(0 if rng.random() < 0.1 else 1, 4 if labelled else 5))
    directed, single_root = bool(rng.random() < 0.7), bool(rng.random() < 0.5)
    given = lengths(rng, batch, words + (not directed))
    structure = kind(given, single_root=single_root, labelled=labelled, directed=directed)
    return Subject(structure, ((*batch, words + 1, words + 1, int(rng.integers(1, 3)))[: len(batch) + 2 + labelled],))


def spanning_tree(rng: np.random.Generator, batch: Shape) -> Subject:
    return _arcs(rng, batch, structmax.SpanningTree)


def projective_tree(rng: np.random.Generator, batch: Shape) -> Subject:
    return _arcs(rng, batch, structmax.ProjectiveTree)


def bilexical_tree(rng: np.random.Generator, batch: Shape) -> Subject:
    n = int(rng.integers(1, 5))
    head = [None, (*batch, n, n, n)][rng.integers(2)]
    structure = structmax.BilexicalTree(lengths(rng, batch, n))
    return Subject(structure, ((*batch, n + 1, n + 1), (*batch, n, n), head))


def second_order_tree(rng: np.random.Generator, batch: Shape) -> Subject:
    words = int(rng.integers(1, 5))
    pair = (*batch, words + 1, words + 1, words + 1)
    siblings, grandparents = ([None, pair][rng.integers(2)] for _ in range(2))
    structure = structmax.SecondOrderTree(lengths(rng, batch, words), single_root=bool(rng.random() < 0.5))
    return Subject(structure, (pair[:-1], siblings, grandparents))


def pcfg(rng: np.random.Generator, batch: Shape) -> Subject:
    n, k, t = [(1, 2, 2), (2, 2, 2), (3, 2, 2), (3, 1, 3), (4, 1, 2), (4, 2, 1), (2, 3, 1)][rng.integers(7)]
    s = k + t
    rules = [(k, s, s), (*batch, k, s, s)][rng.integers(2)]
    roots = [(k,), (*batch, k)][rng.integers(2)]
    spans = [None, (*batch, n, n, k)][rng.integers(2)]
    return Subject(structmax.PCFG(lengths(rng, batch, n)), ((*batch, n, t), rules, roots, spans))


def lattice(rng: np.random.Generator, batch: Shape) -> Subject:
    nodes = int(rng.integers(1, 6))
    order = rng.permutation(nodes)
    pairs = [pair for pair in itertools.combinations(range(nodes), 2) for _ in range(rng.integers(0, 3))]
    pairs = [pairs[i] for i in rng.permutation(len(pairs))][:10]
    edges = torch.as_tensor(order[np.array(pairs, dtype=np.int64).reshape(-1, 2)])
    source, sink = (int(order[0]), int(order[-1])) if rng.random() < 0.8 else map(int, rng.integers(nodes, size=2))
    if not len(edges):
        edges = torch.zeros(0, 2, dtype=torch.int64)
    return Subject(structmax.Lattice(edges, source, sink), ((*batch, len(edges)),))


def hypergraph(rng: np.random.Generator, batch: Shape) -> Subject:
    """Edges with a part of their own and maybe shared ones; derivations with the same parts are drawn again."""
    while True:
        nodes, arity = int(rng.integers(2, 8)), int(rng.integers(1, 4))
        head = np.repeat(np.arange(nodes), [rng.integers(1 if v in (0, nodes - 1) else 0, 4) for v in range(nodes)])
        tails = np.stack([np.where(rng.random(len(head)) < 0.7, rng.integers(-1, head), -1) for _ in range(arity)], 1)
        own = np.arange(len(head))
        shared = np.where(rng.random(len(head)) < 0.4, len(head) + rng.integers(3, size=len(head)), -1)
        parts = np.stack([own, shared], 1) if rng.random() < 0.7 else own[:, None]
        ways = _ways(head, tails, nodes)
        derivable = np.flatnonzero(ways)
        if max(ways) > MOST:
            continue
        order = rng.permutation(len(head))
        goal = int(derivable[-1]) if rng.random() < 0.5 else torch.as_tensor(rng.choice(derivable, batch))
        size = len(head) + 3 + int(rng.integers(2))
        edges = [torch.as_tensor(t[order]) for t in (head, tails, parts)]
        every = [structmax.Hypergraph(*edges, int(v)).enumerate(torch.zeros(size)) for v in derivable]
        if all(len(rows.unique(dim=0)) == len(rows) for rows in every):
            return Subject(structmax.Hypergraph(*edges, goal), ((*batch, size),))


def _ways(head: np.ndarray, tails: np.ndarray, nodes: int) -> list[int]:
    """How many derivations each node has."""
    ways: list[int] = []
    for v in range(nodes):
        ways.append(sum(math.prod(ways[t] for t in row if t >= 0) for row in tails[head == v].tolist()))
    return ways


MAKERS: dict[str, Callable[[np.random.Generator, Shape], Subject]] = {
    "Simplex": simplex,
    "Bits": bits,
    "Subset": subset,
    "LinearChain": linear_chain,
    "SemiMarkov": semi_markov,
    "CTC": ctc,
    "BinaryTree": binary_tree,
    "ShiftReduce": shift_reduce,
    "BudgetChain": budget_chain,
    "HeadAutomaton": head_automaton,
    "LabelledTree": labelled_tree,
    "MonotoneAlignment": alignment,
    "JumpAlignment": jump_alignment,
    "Matching": matching,
    "SmallMatching": small_matching,
    "SpanningTree": spanning_tree,
    "ProjectiveTree": projective_tree,
    "BilexicalTree": bilexical_tree,
    "SecondOrderTree": second_order_tree,
    "PCFG": pcfg,
    "Lattice": lattice,
    "Hypergraph": hypergraph,
}

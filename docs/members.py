"""A member of each structure, for the pages of the reference: drawings as `structmax.plots.structures` takes them."""

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

import structmax

Drawing = dict[str, Any]
WORDS = ["the", "cat", "saw", "a", "bird"]


def _all(structure: structmax.AbstractStructure, size: int, title: str) -> Drawing:
    """Every member over a few items, a row each."""
    members = structure.enumerate(torch.zeros(size))
    return _matrix(members, title, columns=[f"item {k}" for k in range(size)], rows=[""] * len(members))


def _matrix(weights: Tensor, title: str, rows: list[str], columns: list[str]) -> Drawing:
    return {
        "kind": "matrix",
        "title": title,
        "weights": [[round(weight, 3) for weight in row] for row in weights.tolist()],
        "rows": rows,
        "columns": columns,
    }


def simplex() -> Drawing:
    return _all(structmax.Simplex(), 4, "The four members of the simplex over four items")


def bits() -> Drawing:
    return _all(structmax.Bits(), 3, "The eight members over three items")


def subset() -> Drawing:
    return _all(structmax.Subset(2), 4, "The six pairs out of four items")


def linear_chain() -> Drawing:
    tags = ["DET", "NOUN", "VERB", "DET", "NOUN"]
    return {"kind": "sequence", "title": "A label for each word", "tokens": WORDS, "tags": {"labels": tags}}


def budget_chain() -> Drawing:
    tokens = ["it", "rained", "very", "hard", "all", "day", "long"]
    unary = torch.stack([torch.zeros(7), torch.tensor([1.0, 3.0, 0.0, 2.0, 1.0, 1.5, 0.0])], -1)
    structure = structmax.BudgetChain(3)
    labels = structure.decode(structmax.argmax((unary, torch.zeros(2, 2)), structure)).tolist()
    tags = [("", "on")[label] for label in labels]
    return {"kind": "sequence", "title": "Three of seven words are taken", "tokens": tokens, "tags": {"labels": tags}}


def semi_markov() -> Drawing:
    labels = structmax.SemiMarkov().labels_per_position(
        structmax.SemiMarkov().encode(
            torch.tensor([[0, 2, 1], [2, 3, 0], [5, 1, 1]] + [[-1] * 3] * 3),
            (torch.zeros(6, 3, 2), torch.zeros(2, 2)),
        )
    )
    return {
        "kind": "sequence",
        "title": "Three segments: New York, is in the, USA",
        "tokens": ["New", "York", "is", "in", "the", "USA"],
        "tags": {"segments": [("other", "PLACE")[label] for label in labels.tolist()]},
    }


def ctc() -> Drawing:
    structure = structmax.CTC(torch.tensor([1, 2]))
    scores = torch.zeros(6, 3)
    scores[[0, 1, 2, 3, 4, 5], [0, 1, 1, 0, 2, 2]] = 1.0
    best = structmax.argmax(scores, structure)
    frames = [f"frame {t}" for t in range(6)]
    return _matrix(best.T, "Six frames that say: h i", rows=["blank", "h", "i"], columns=frames)


def monotone_alignment() -> Drawing:
    x, y = torch.tensor([0.0, 1.0, 3.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0, 1.0])
    best = structmax.argmax(-(x[:, None] - y).square(), structmax.MonotoneAlignment())
    names = [[f"{name}{k}" for k in range(len(values))] for name, values in (("x", x), ("y", y))]
    return _matrix(best, "A path from the first corner to the last", rows=names[0], columns=names[1])


def jump_alignment() -> Drawing:
    scores = torch.zeros(4, 6)
    scores[[0, 0, 1, 3, 3, 3], range(6)] = 1.0
    best = structmax.argmax((scores, torch.zeros(3, 1, 1)), structmax.JumpAlignment()).cell
    frames = [f"frame {t}" for t in range(6)]
    return _matrix(best, "A row for each frame, in order; one is left out", rows=["a", "b", "c", "d"], columns=frames)


def matching() -> Drawing:
    scores = torch.tensor([[3.0, 2.0, 0.0, 1.0], [3.0, 0.0, 1.0, 1.0], [2.0, 2.0, 0.0, 3.0]])
    best = structmax.argmax(scores, structmax.Matching())
    rows, columns = ["Ada", "Ben", "Cleo"], [f"desk {k}" for k in range(4)]
    return _matrix(best, "A desk for everyone", rows=rows, columns=columns)


def small_matching() -> Drawing:
    scores = torch.tensor([[3.0, 2.0, 0.0, 1.0], [3.0, 0.0, 1.0, 1.0], [2.0, 2.0, 0.0, 3.0]])
    structure = structmax.SmallMatching()
    best = structure.decode(structmax.argmax(scores, structure)).tolist()
    drawing = _matrix(
        structmax.marginals(scores, structure),
        "How probable each pair is; the best matching is framed",
        rows=["Ada", "Ben", "Cleo"],
        columns=[f"desk {k}" for k in range(4)],
    )
    return drawing | {"gold": [[row, column] for row, column in enumerate(best)]}


def _arcs(tokens: list[str], heads: list[int], structure: structmax.AbstractStructure, title: str) -> Drawing:
    scores = torch.zeros(len(tokens) + 1, len(tokens) + 1)
    scores[heads, range(1, len(tokens) + 1)] = 1.0
    return _best_arcs(tokens, scores, structure, title)


def _best_arcs(tokens: list[str], scores: Any, structure: structmax.AbstractStructure, title: str) -> Drawing:
    best = structure.decode(structmax.argmax(scores, structure)).tolist()
    arcs = [[head, modifier] for modifier, head in enumerate(best, 1)]
    return {"kind": "arcs", "title": title, "tokens": tokens, "arcs": {"tree": arcs}}


def projective_tree() -> Drawing:
    structure = structmax.ProjectiveTree(single_root=True)
    return _arcs(WORDS, [2, 3, 0, 5, 3], structure, "A dependency tree without crossing arcs")


def second_order_tree() -> Drawing:
    structure = structmax.SecondOrderTree(single_root=True)
    arc, sibling, grandparent = torch.zeros(6, 6), torch.zeros(6, 6, 6), torch.zeros(6, 6, 6)
    parts = structure.encode(torch.tensor([2, 3, 0, 3, 3]), (arc, sibling, grandparent))
    title = "The dependency tree whose siblings and grandparents score best"
    return _best_arcs(WORDS, (arc, parts.sibling, parts.grandparent), structure, title)


def spanning_tree() -> Drawing:
    tokens = ["a", "hearing", "is", "held", "on", "it", "today"]
    structure = structmax.SpanningTree(single_root=True)
    return _arcs(tokens, [2, 4, 4, 0, 2, 5, 4], structure, "A dependency tree whose arcs may cross")


def labelled_tree() -> Drawing:
    heads, roles = torch.tensor([2, 3, 0, 5, 3]), ["det", "subject", "root", "det", "object"]
    structure = structmax.LabelledTree(heads - 1)
    best = structmax.argmax((torch.eye(5), torch.zeros(5, 5)), structure)
    labels = [roles[label] for label in structure.decode(best).tolist()]
    arcs = [[head, word, label] for word, (head, label) in enumerate(zip(heads.tolist(), labels, strict=True), 1)]
    return {"kind": "arcs", "title": "A label for each word of a given tree", "tokens": WORDS, "arcs": {"tree": arcs}}


def head_automaton() -> Drawing:
    tokens = ["gave", "the", "child", "a", "book", "yesterday"]
    arc, sibling = torch.tensor([-1.0, 2.0, -1.0, 2.0, 1.0]), torch.zeros(6, 6)
    structure = structmax.HeadAutomaton()
    path = structure.decode(structmax.argmax((arc, sibling), structure)).tolist()
    # The head is the first word, and candidates are those after it.
    arcs = [[1, candidate + 2] for candidate in path if 0 <= candidate < len(arc)]
    return {
        "kind": "arcs",
        "title": "The dependents of gave on its right",
        "tokens": tokens,
        "arcs": {"automaton": arcs},
    }


def _tree(spans: Tensor, tokens: list[str], title: str) -> Drawing:
    inner = [[i, j] for i, j in spans.tolist() if i < j]
    return {"kind": "trees", "title": title, "tokens": tokens, "trees": {"tree": inner}}


def binary_tree() -> Drawing:
    scores, structure = torch.zeros(5, 5), structmax.BinaryTree()
    scores[[0, 3, 2], [1, 4, 4]] = 1.0
    spans = structure.decode(structmax.argmax(scores, structure))
    return _tree(spans, WORDS, "A bracketing: ((the cat) (saw (a bird)))")


def bilexical_tree() -> Drawing:
    structure = structmax.BilexicalTree()
    arc, span = torch.zeros(6, 6), torch.zeros(5, 5)
    arc[[2, 3, 0, 5, 3], range(1, 6)] = 1.0
    span[2, 4] = 1.0
    best = structmax.argmax((arc, span), structure)
    heads, _ = structure.decode(best)
    # the widest span of each word's: what becomes a dependent with it
    widest = {h: (i, j) for i, j, h in sorted(best.head.nonzero().tolist(), key=lambda row: row[1] - row[0])}
    said = [" ".join(WORDS[i : j + 1]) for i, j in (widest[m] for m in range(5))]
    arcs = [[head, m, label] for m, (head, label) in enumerate(zip(heads.tolist(), said, strict=True), 1)]
    title = "((the cat) (saw (a bird))): each arc says with which span its word becomes a dependent"
    return {"kind": "arcs", "title": title, "tokens": WORDS, "arcs": {"tree": arcs}}


def pcfg() -> Drawing:
    # S, NP and VP are nonterminals; D, N and V stand over single words.
    rules = torch.full((3, 6, 6), -torch.inf)
    rules[[0, 1, 2], [1, 3, 5], [2, 4, 1]] = 0.0
    terms = torch.full((5, 3), -torch.inf)
    terms[range(5), [0, 1, 2, 0, 1]] = 0.0
    structure = structmax.PCFG()
    best = structmax.argmax((terms, rules, torch.tensor([0.0, -torch.inf, -torch.inf])), structure)
    spans = torch.tensor([node[:2] for node in structure.decode(best)])
    return _tree(spans, WORDS, "The one parse with S → NP VP, NP → D N, VP → V NP")


def low_rank_pcfg() -> Drawing:
    # The ranks make NP of D N, VP of V NP, and S of NP VP.
    heads, left, right = (torch.full(shape, -torch.inf) for shape in ((3, 3), (3, 6), (3, 6)))
    heads[[1, 2, 0], [0, 1, 2]] = left[[0, 1, 2], [3, 5, 1]] = right[[0, 1, 2], [4, 1, 2]] = 0.0
    terms = torch.full((5, 3), -torch.inf)
    terms[range(5), [0, 1, 2, 0, 1]] = 0.0
    structure = structmax.LowRankPCFG()
    best = structmax.argmax((terms, torch.tensor([0.0, -torch.inf, -torch.inf]), heads, left, right), structure)
    spans = torch.tensor([node[:2] for node in structure.decode(best)])
    return _tree(spans, WORDS, "A parse whose rules are of three ranks: NP → D N, VP → V NP, S → NP VP")


def shift_reduce() -> Drawing:
    actions = structmax.ShiftReduce().encode(torch.tensor([0, 0, 1, 0, 0, 0, 1, 1, 1]))
    spans = structmax.BinaryTree().decode(structmax.ShiftReduce().to_spans(actions))
    title = "Built by shift, shift, reduce, shift, shift, shift, reduce, reduce, reduce"
    return _tree(spans, WORDS, title)


def hypergraph() -> Drawing:
    """A derivation of the bracketings that the page lists as a hypergraph."""
    node: dict[tuple[int, int], int] = {}
    head, tails = [], []
    for width in range(1, 5):
        for i in range(5 - width):
            node[i, i + width] = len(node)
            below = [(node[i, k], node[k, i + width]) for k in range(i + 1, i + width)] or [(-1, -1)]
            head += [node[i, i + width]] * len(below)
            tails += below
    built = {number: span for span, number in node.items()}
    structure = structmax.Hypergraph(torch.tensor(head), torch.tensor(tails))
    used = structure.decode(structmax.argmax(torch.zeros(len(head)), structure))
    spans = torch.tensor([[built[head[edge]][0], built[head[edge]][1] - 1] for edge in used])
    return _tree(spans, list("abcd"), "A derivation: each node is built from the two below it")


def lattice() -> Drawing:
    edges = [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [2, 4], [3, 4]]
    structure = structmax.Lattice(torch.tensor(edges), source=0, sink=4)
    scores = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    path = structure.decode(structmax.argmax(scores, structure)).tolist()
    # Nodes are drawn as words, which count from 1.
    every = [[i + 1, j + 1] for i, j in edges]
    return {
        "kind": "arcs",
        "title": "A graph, and a path from node 0 to node 4",
        "tokens": list("01234"),
        "arcs": {"graph": every, "path": [every[edge] for edge in path if edge >= 0]},
    }


def factor_graph() -> Drawing:
    cell = structmax.factors.Variables("cell", (4, 6))
    across = [structmax.factors.AtMostOne(cell[i, j], cell[i, j + 1]) for i, j in product(range(4), range(5))]
    down = [structmax.factors.AtMostOne(cell[i, j], cell[i + 1, j]) for i, j in product(range(3), range(6))]
    scores = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    best = structmax.argmax({"cell": scores}, structmax.FactorGraph(*across, *down))["cell"]
    title = "The best cells of which no two are neighbours"
    return _matrix(best, title, rows=[f"row {k}" for k in range(4)], columns=[f"column {k}" for k in range(6)])


MEMBERS: dict[str, Callable[[], Drawing]] = {
    draw.__name__.replace("_", "-"): draw
    for draw in (
        bilexical_tree,
        binary_tree,
        bits,
        budget_chain,
        ctc,
        factor_graph,
        head_automaton,
        hypergraph,
        jump_alignment,
        labelled_tree,
        lattice,
        linear_chain,
        low_rank_pcfg,
        matching,
        monotone_alignment,
        pcfg,
        projective_tree,
        second_order_tree,
        semi_markov,
        shift_reduce,
        simplex,
        small_matching,
        spanning_tree,
        subset,
    )
}

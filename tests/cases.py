"""The one table of structures. A new structure gets every law, and its kernels every comparison, by one row here."""

import torch

import structmax
from structmax.factors import Budget, Dense, Factor, Imply, OrOut, Pair, Variables, Xor
from structmax.testing import Case


def normal(*shape: int):
    return lambda generator, dtype: torch.randn(*shape, generator=generator, dtype=dtype)


def normals(*shapes: tuple[int, ...]):
    return lambda generator, dtype: tuple(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)


def binary_trees(n: int):
    """A hypergraph of our own: bracketings of n leaves, part i · n + j for the span from i to j; two goals."""
    node = {}
    head, tails, part = [], [], []
    for width in range(1, n + 1):
        for i in range(n - width + 1):
            node[i, i + width] = len(node)
            below = [(node[i, k], node[k, i + width]) for k in range(i + 1, i + width)] or [(-1, -1)]
            head += [node[i, i + width]] * len(below)
            tails += below
            part += [i * n + i + width - 1] * len(below)
    goal = torch.tensor([node[0, n], node[0, n - 1]])
    return structmax.Hypergraph(torch.tensor(head), torch.tensor(tails), torch.tensor(part), goal)


def graph_of_lines():
    """Rows and columns of a square: the matchings."""
    x = Variables("x", (3, 3))
    return structmax.FactorGraph(*(Xor(line) for i in range(3) for line in (x[i], x[:, i])))


def graph_of_logic():
    """Outputs, a budget, pairs with scores, and a variable by itself; padding behind the first instance."""
    word, bond, alone = Variables("word", (4,)), Variables("bond", (2,), free=True), Variables("alone", ())
    both = Pair(word[:2], ~word[torch.tensor([1, 3])], score=bond)
    graph = structmax.FactorGraph(OrOut(word[0], word[1], word[2]), Budget(word, at_most=2), both, alone)
    return graph.masked({"word": torch.tensor([[True, True, True, False], [True] * 4])})


def graph_of_structures():
    """A chain with lengths and a table, which share the tags, and a rule between them."""
    tag, step, kind = Variables("tag", (3, 2)), Variables("step", (2, 2), free=True), Variables("kind", (2,))
    table = Dense(tag[0], kind, score=Variables("table", (2, 2), free=True))
    return structmax.FactorGraph(
        Factor(structmax.LinearChain(torch.tensor([3, 2])), tag, step), table, Imply(kind[0], tag[1, 1])
    )


def by_name(**shapes: tuple[int, ...]):
    return lambda generator, dtype: {
        name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()
    }


LATTICE = torch.tensor([[0, 1], [4, 3], [0, 4], [1, 4], [1, 3], [0, 3], [3, 2], [4, 2], [3, 2]])

CASES = {
    "simplex": Case(structmax.Simplex(), normal(3, 5)),
    "simplex of one": Case(structmax.Simplex(), normal(2, 1)),
    "simplex in two batch dimensions": Case(structmax.Simplex(), normal(2, 3, 4)),
    "hypergraph": Case(binary_trees(4), normal(2, 16)),
    "lattice": Case(structmax.Lattice(LATTICE, source=0, sink=2), normal(3, 9)),
    "lattice of one node": Case(structmax.Lattice(LATTICE, source=3, sink=3), normal(2, 9)),
    "projective tree": Case(structmax.ProjectiveTree(torch.tensor([4, 1]), single_root=True), normal(2, 5, 5)),
    "projective tree, roots": Case(structmax.ProjectiveTree(torch.tensor([0, 3]), single_root=False), normal(2, 4, 4)),
    "projective tree, full": Case(structmax.ProjectiveTree(single_root=False), normal(2, 3, 3)),
    "projective tree, labelled": Case(
        structmax.ProjectiveTree(torch.tensor([2, 1]), single_root=True, labelled=True), normal(2, 3, 3, 2)
    ),
    "second-order tree, siblings": Case(
        structmax.SecondOrderTree(torch.tensor([4, 2]), single_root=True), normals((2, 5, 5), (2, 5, 5, 5))
    ),
    "second-order tree, siblings and roots": Case(
        structmax.SecondOrderTree(torch.tensor([[0], [3]]), single_root=False), normals((2, 1, 4, 4), (2, 1, 4, 4, 4))
    ),
    "second-order tree, grandparents": Case(
        structmax.SecondOrderTree(torch.tensor([3, 1]), single_root=True),
        normals((2, 4, 4), (2, 0, 0, 0), (2, 4, 4, 4)),
    ),
    "second-order tree, grandparents and roots": Case(
        structmax.SecondOrderTree(single_root=False), normals((2, 4, 4), (2, 0, 0, 0), (2, 4, 4, 4))
    ),
    "second-order tree, both": Case(
        structmax.SecondOrderTree(torch.tensor([4, 3]), single_root=True),
        normals((2, 5, 5), (2, 5, 5, 5), (2, 5, 5, 5)),
    ),
    "second-order tree, both and roots": Case(
        structmax.SecondOrderTree(torch.tensor([3, 2]), single_root=False),
        normals((2, 4, 4), (2, 4, 4, 4), (2, 4, 4, 4)),
    ),
    "second-order tree of arcs alone": Case(structmax.SecondOrderTree(single_root=False), normals((2, 4, 4))),
    "spanning tree": Case(structmax.SpanningTree(torch.tensor([3, 1]), single_root=True), normal(2, 4, 4)),
    "spanning tree, roots": Case(structmax.SpanningTree(torch.tensor([0, 3, 2]), single_root=False), normal(3, 4, 4)),
    "spanning tree, full": Case(structmax.SpanningTree(single_root=True), normal(1, 5, 5)),
    "spanning tree, labelled": Case(
        structmax.SpanningTree(torch.tensor([2, 1]), single_root=False, labelled=True), normal(2, 3, 3, 2)
    ),
    "spanning tree, undirected": Case(structmax.SpanningTree(torch.tensor([4, 1, 3]), directed=False), normal(3, 4, 4)),
    "spanning tree, undirected and labelled": Case(
        structmax.SpanningTree(torch.tensor([3, 2]), directed=False, labelled=True), normal(2, 3, 3, 2)
    ),
    "spanning tree, undirected with one root edge": Case(
        structmax.SpanningTree(torch.tensor([4, 1, 3]), directed=False, single_root=True), normal(3, 4, 4)
    ),
    "spanning tree, undirected and labelled with one root edge": Case(
        structmax.SpanningTree(torch.tensor([3, 0]), directed=False, single_root=True, labelled=True),
        normal(2, 3, 3, 2),
    ),
    "projective tree, undirected": Case(
        structmax.ProjectiveTree(torch.tensor([4, 0, 3]), directed=False), normal(3, 4, 4)
    ),
    "projective tree, undirected with one root edge": Case(
        structmax.ProjectiveTree(torch.tensor([4, 1, 3]), directed=False, single_root=True), normal(3, 4, 4)
    ),
    "projective tree, undirected and labelled": Case(
        structmax.ProjectiveTree(torch.tensor([3, 2]), directed=False, labelled=True), normal(2, 3, 3, 2)
    ),
    "linear chain": Case(structmax.LinearChain(torch.tensor([3, 1, 0])), normals((3, 3, 2), (3, 2, 2))),
    "linear chain, one matrix for all": Case(structmax.LinearChain(), normals((2, 3, 3), (3, 3))),
    "linear chain, a matrix for each position": Case(
        structmax.LinearChain(torch.tensor([[3], [2]])), normals((2, 1, 3, 2), (2, 1, 2, 2, 2))
    ),
    "linear chain with start and end": Case(
        structmax.LinearChain(torch.tensor([3, 2])), normals((2, 3, 2), (2, 2), (2,), (2, 2))
    ),
    "linear chain with gaps": Case(
        structmax.LinearChain(keep=torch.tensor([[True, False, True, True], [False, True, False, True]])),
        normals((2, 4, 2), (2, 3, 2, 2)),
    ),
    "linear chain of one label": Case(structmax.LinearChain(torch.tensor([3, 1])), normals((2, 3, 1), (1, 1))),
    "linear chain of one position": Case(structmax.LinearChain(), normals((2, 1, 3), (2, 0, 3, 3))),
    "budget chain": Case(structmax.BudgetChain(2, lengths=torch.tensor([4, 2, 3])), normals((3, 4, 2), (3, 2, 2))),
    "budget chain of at most": Case(
        structmax.BudgetChain(at_most=1, label=0, lengths=torch.tensor([[3], [0]])),
        normals((2, 1, 3, 3), (2, 1, 2, 3, 3)),
    ),
    "budget chain with start and end": Case(
        structmax.BudgetChain(1, keep=torch.tensor([True, False, True, True])), normals((2, 4, 2), (2, 2), (2,), (2, 2))
    ),
    "budget chain of one label": Case(
        structmax.BudgetChain(at_most=2, label=0, lengths=torch.tensor([1, 2])), normals((2, 3, 1), (1, 1))
    ),
    "budget chain of none": Case(structmax.BudgetChain(0), normals((2, 3, 2), (2, 2))),
    "labelled tree": Case(
        structmax.LabelledTree(torch.tensor([[1, -1, 1, 0], [-1, 0, -1, 7], [9, 9, 9, 9]]), torch.tensor([4, 3, 0])),
        normals((3, 4, 2), (3, 2, 2)),
    ),
    "labelled tree, a matrix for each node": Case(
        structmax.LabelledTree(torch.tensor([2, 0, -1])), normals((2, 1, 3, 2), (2, 1, 3, 2, 2))
    ),
    "labelled tree, a star and one matrix for all": Case(
        structmax.LabelledTree(torch.tensor([3, 3, 3, -1]), torch.tensor([4])), normals((1, 4, 2), (2, 2))
    ),
    "labelled tree of one label": Case(
        structmax.LabelledTree(torch.tensor([[-1, -1], [-1, 0]]), torch.tensor([1, 2])), normals((2, 2, 1), (1, 1))
    ),
    "semi-Markov": Case(structmax.SemiMarkov(torch.tensor([3, 1, 0])), normals((3, 3, 2, 2), (3, 2, 2))),
    "semi-Markov, one matrix for all": Case(structmax.SemiMarkov(), normals((2, 3, 3, 2), (2, 2))),
    "semi-Markov, a matrix for each position": Case(
        structmax.SemiMarkov(torch.tensor([4, 2])), normals((2, 4, 2, 2), (2, 3, 2, 2))
    ),
    "semi-Markov, a matrix for each position and width": Case(
        structmax.SemiMarkov(torch.tensor([3, 2, 0])), normals((3, 3, 2, 2), (3, 2, 2, 2, 2))
    ),
    "semi-Markov of one position, with widths": Case(structmax.SemiMarkov(), normals((2, 1, 2, 2), (2, 0, 2, 2, 2))),
    "semi-Markov of one label": Case(structmax.SemiMarkov(torch.tensor([4, 3])), normals((2, 4, 3, 1), (1, 1))),
    "ctc": Case(
        structmax.CTC(torch.tensor([[1, 2], [1, 1], [2, -1]]), torch.tensor([4, 4, 3]), torch.tensor([2, 2, 1])),
        normal(3, 4, 3),
    ),
    "ctc, blank last": Case(structmax.CTC(torch.tensor([0, 1]), blank=2), normal(2, 3, 3)),
    "ctc without labels": Case(
        structmax.CTC(torch.zeros(2, 0, dtype=torch.int64), torch.tensor([3, 0])), normal(2, 3, 2)
    ),
    "ctc, no frame to spare": Case(
        structmax.CTC(torch.tensor([[0, 1], [1, 1]]), torch.tensor([2, 3]), blank=2), normal(2, 3, 3)
    ),
    "binary tree": Case(structmax.BinaryTree(torch.tensor([4, 1, 2])), normal(3, 4, 4)),
    "binary tree, full": Case(structmax.BinaryTree(), normal(2, 5, 5)),
    "binary tree, labelled": Case(structmax.BinaryTree(torch.tensor([3, 0, 2]), labelled=True), normal(3, 3, 3, 2)),
    "binary tree of one label": Case(structmax.BinaryTree(torch.tensor([3, 4]), labelled=True), normal(2, 4, 4, 1)),
    "bilexical tree": Case(
        structmax.BilexicalTree(torch.tensor([3, 1, 0])), normals((3, 4, 4), (3, 3, 3), (3, 3, 3, 3))
    ),
    "bilexical tree, full, without heads": Case(structmax.BilexicalTree(), normals((2, 4, 4), (2, 3, 3))),
    "bilexical tree of one word": Case(structmax.BilexicalTree(), normals((2, 2, 2), (2, 1, 1), (2, 1, 1, 1))),
    "shift-reduce": Case(structmax.ShiftReduce(torch.tensor([4, 1, 0])), normal(3, 7, 2)),
    "shift-reduce, full": Case(structmax.ShiftReduce(), normal(2, 9, 2)),
    "shift-reduce of one leaf": Case(structmax.ShiftReduce(), normal(2, 1, 2)),
    "alignment": Case(structmax.MonotoneAlignment(torch.tensor([3, 1, 0]), torch.tensor([2, 3, 0])), normal(3, 3, 3)),
    "alignment in a band": Case(structmax.MonotoneAlignment(torch.tensor([[4], [3]]), band=1), normal(2, 1, 4, 4)),
    "alignment with gaps": Case(
        structmax.MonotoneAlignment(torch.tensor([2, 0, 1]), torch.tensor([2, 2, 1]), gaps=True),
        normals((3, 2, 2), (3, 2, 3), (3, 3, 2)),
    ),
    "alignment with one gap score": Case(
        structmax.MonotoneAlignment(gaps=True, band=1), normals((2, 3, 2), (), (2, 1, 1))
    ),
    "local alignment": Case(
        structmax.MonotoneAlignment(torch.tensor([3, 0]), gaps=True, local=True), normals((2, 3, 2), (1, 3), (2, 4, 2))
    ),
    "local alignment in a band": Case(
        structmax.MonotoneAlignment(columns=torch.tensor([3, 2]), gaps=True, local=True, band=1),
        normals((2, 2, 3), (), ()),
    ),
    "jump alignment": Case(
        structmax.JumpAlignment(torch.tensor([3, 2, 0, 1]), torch.tensor([3, 4, 0, 3])),
        normals((4, 3, 4), (4, 3, 3, 4)),
    ),
    "jump alignment with one score for each jump": Case(structmax.JumpAlignment(), normals((2, 3, 4), (2, 1, 1))),
    "jump alignment that may go down": Case(
        structmax.JumpAlignment(torch.tensor([3, 2]), torch.tensor([2, 3])), normals((2, 3, 3), (3, 1, 3), (2, 1, 1))
    ),
    "jump alignment of one cell": Case(structmax.JumpAlignment(), normals((2, 1, 1), (2, 1, 1, 1))),
    "matching": Case(structmax.Matching(torch.tensor([3, 2, 0]), torch.tensor([3, 4, 2])), normal(3, 3, 4)),
    "matching, square": Case(structmax.Matching(), normal(2, 4, 4)),
    "matching, tall": Case(structmax.Matching(), normal(1, 2, 4, 2)),
    "matching, partial": Case(
        structmax.Matching(torch.tensor([3, 3]), torch.tensor([3, 1]), partial=True), normal(2, 3, 4)
    ),
    "small matching": Case(structmax.SmallMatching(torch.tensor([3, 2, 0]), torch.tensor([3, 1, 2])), normal(3, 3, 4)),
    "small matching, tall": Case(structmax.SmallMatching(), normal(2, 1, 3, 2)),
    "small matching, partial": Case(
        structmax.SmallMatching(torch.tensor([3, 2]), torch.tensor([2, 3]), partial=True), normal(2, 3, 3)
    ),
    "pcfg": Case(structmax.PCFG(torch.tensor([3, 2, 0])), normals((3, 3, 1), (3, 2, 3, 3), (3, 2), (3, 3, 3, 2))),
    "pcfg, one grammar for all, without spans": Case(
        structmax.PCFG(torch.tensor([4, 3])), normals((2, 4, 2), (1, 3, 3), (1,))
    ),
    "low-rank pcfg": Case(
        structmax.LowRankPCFG(torch.tensor([3, 2, 0])),
        normals((3, 3, 1), (3, 2), (3, 2, 2), (3, 2, 3), (3, 2, 3), (3, 3, 3, 2), (3, 3, 3, 2)),
    ),
    "low-rank pcfg, one grammar for all, without spans": Case(
        structmax.LowRankPCFG(torch.tensor([4, 2])), normals((2, 4, 1), (1,), (1, 2), (2, 2), (2, 2))
    ),
    "bits": Case(structmax.Bits(), normal(3, 5)),
    "bits with lengths": Case(structmax.Bits(torch.tensor([3, 0, 1])), normal(3, 4)),
    "subset": Case(structmax.Subset(2), normal(3, 5)),
    "subset with lengths": Case(structmax.Subset(2, lengths=torch.tensor([4, 2, 3])), normal(3, 4)),
    "subset of one": Case(structmax.Subset(1), normal(2, 1)),
    "subset of at most": Case(structmax.Subset(at_most=2), normal(2, 2, 4)),
    "subset of at most, with lengths": Case(structmax.Subset(at_most=3, lengths=torch.tensor([5, 2, 0])), normal(3, 5)),
    "subset of none": Case(structmax.Subset(0), normal(2, 3)),
    "head automaton": Case(structmax.HeadAutomaton(torch.tensor([3, 1, 0])), normals((3, 3), (3, 4, 4))),
    "head automaton, full": Case(structmax.HeadAutomaton(), normals((2, 1, 3), (2, 1, 4, 4))),
    "head automaton of one candidate": Case(structmax.HeadAutomaton(), normals((2, 1), (2, 2, 2))),
    "factor graph of lines": Case(graph_of_lines(), by_name(x=(2, 3, 3))),
    "factor graph of logic": Case(graph_of_logic(), by_name(bond=(2,), word=(2, 4), alone=(2,))),
    "factor graph of structures": Case(
        graph_of_structures(), by_name(tag=(2, 3, 2), kind=(2, 2), step=(2, 2), table=(1, 2, 2))
    ),
}

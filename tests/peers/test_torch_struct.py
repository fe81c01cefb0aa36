"""Against torch-struct 0.5, its conventions converted: the same values, marginals, best structures, entropies.

Left out is what that release answers wrongly or not at all: lengths of semi-Markov chains, alignments, tree
cross-entropies, counts of grammars. Our own enumeration judges those.
"""

import warnings

import pytest
import torch
from torch import Tensor

import structmax
from structmax.testing import same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch_struct = pytest.importorskip("torch_struct")

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = range(5)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def edges_of(unary: Tensor, pairwise: Tensor) -> Tensor:
    """(B, N, C) and (B, N − 1, C, C) as edges (B, N − 1, next, previous), the first unary folded into the first."""
    first = torch.zeros_like(pairwise)
    first[:, 0] = unary[:, 0, :, None]
    return (pairwise + first + unary[:, 1:, None, :]).mT


def agree(ours: structmax.Distribution, theirs, inputs: tuple[Tensor, ...], to_ours) -> None:
    """Values, entropies, and the gradients of both for the same inputs."""
    log_z = structmax.log_partition(ours.scores, ours.structure)
    same("log_partition", log_z, theirs.partition)
    marginals = structmax.marginals(ours.scores, ours.structure)
    for a, b in zip(ours.structure.tensors(marginals), to_ours(theirs.marginals), strict=True):
        same("marginals", a, b)
    same("entropy", ours.entropy(), theirs.entropy)
    for question, peer in ((log_z, theirs.partition), (ours.entropy(), theirs.entropy)):
        got = torch.autograd.grad(question.sum(), inputs, retain_graph=True)
        want = torch.autograd.grad(peer.sum(), inputs, retain_graph=True)
        for a, b in zip(got, want, strict=True):
            same("gradient", a, b)
    best = structmax.topk(ours.scores, ours.structure, 3)
    # theirs pads with about −1e5 where there are fewer
    found = best.values > -torch.inf
    same("k-max 3", best.values[found], theirs.kmax(3)[found], 1e-9)
    same("value of the best", best.values[0], theirs.max)
    for a, b in zip(ours.structure.tensors(ours.mode), to_ours(theirs.argmax), strict=True):
        same("argmax", a, b)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 2, 3])])
def test_linear_chain(seed, lengths):
    unary, pairwise = normal(seed, 3, 4, 3), normal(seed + 50, 3, 3, 3, 3)
    ours = structmax.Distribution((unary, pairwise), structmax.LinearChain(lengths))
    theirs = torch_struct.LinearChainCRF(edges_of(unary, pairwise), lengths=lengths)

    def to_ours(edges: Tensor) -> tuple[Tensor, Tensor]:
        return torch.cat([edges[:, :1].sum(-2), edges.sum(-1)], 1), edges.mT

    agree(ours, theirs, (unary, pairwise), to_ours)
    other = normal(seed + 90, 3, 4, 3), normal(seed + 99, 3, 3, 3, 3)
    q = structmax.Distribution(other, structmax.LinearChain(lengths))
    peer_q = torch_struct.LinearChainCRF(edges_of(*other), lengths=lengths)
    same("kl", torch.distributions.kl_divergence(ours, q), theirs.kl(peer_q))
    cross = structmax.cross_entropy(ours.scores, q.scores, ours.structure)
    same("cross_entropy", cross, theirs.cross_entropy(peer_q))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 2])])
def test_projective_tree(seed, single_root, lengths):
    arcs = normal(seed, 2, 5, 5)
    words = arcs[:, 1:, 1:] * (1 - torch.eye(4, dtype=arcs.dtype)) + torch.diag_embed(arcs[:, 0, 1:])
    ours = structmax.Distribution(arcs, structmax.ProjectiveTree(lengths, single_root=single_root))
    theirs = torch_struct.DependencyCRF(words, lengths=lengths, multiroot=not single_root)

    def to_ours(parts: Tensor) -> tuple[Tensor]:
        roots = parts.diagonal(dim1=1, dim2=2)
        full = torch.zeros(2, 5, 5, dtype=parts.dtype)
        full[:, 1:, 1:] = parts - torch.diag_embed(roots)
        full[:, 0, 1:] = roots
        return (full,)

    agree(ours, theirs, (arcs,), to_ours)


@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 2])])
def test_labelled_projective_tree(single_root, lengths):
    words = normal(0, 2, 3, 3, 2)
    arcs = structmax.ProjectiveTree.from_root_on_diagonal(words, labelled=True)
    structure = structmax.ProjectiveTree(lengths, single_root=single_root, labelled=True)
    ours = structmax.Distribution(arcs, structure)
    theirs = torch_struct.DependencyCRF(words, lengths=lengths, multiroot=not single_root)
    agree(ours, theirs, (words,), lambda parts: (structure.from_root_on_diagonal(parts, labelled=True),))
    back = structure.to_root_on_diagonal(structmax.marginals(arcs, structure), labelled=True)
    same("marginals", back, theirs.marginals)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 3])])
def test_binary_tree(seed, lengths):
    spans = normal(seed, 2, 4, 4, 2)
    ours = structmax.Distribution(spans, structmax.BinaryTree(lengths, labelled=True))
    theirs = torch_struct.TreeCRF(spans, lengths=lengths)
    agree(ours, theirs, (spans,), lambda parts: (parts,))
    q = normal(seed + 90, 2, 4, 4, 2)
    peer_q = torch_struct.TreeCRF(q, lengths=lengths)
    same("kl", structmax.kl_divergence(spans, q, ours.structure), theirs.kl(peer_q))


@pytest.mark.parametrize("seed", SEEDS)
def test_semi_markov_without_lengths(seed):
    B, N, W, C = 2, 4, 2, 3
    segment, pairwise = normal(seed, B, N, W, C), normal(seed + 50, C, C)
    # theirs: edges between N + 1 boundaries, (n, width, next, previous); a start label that is none is label 0
    edges = torch.full((B, N, W + 1, C, C), -1e9, dtype=segment.dtype)
    for n in range(N):
        for w in range(1, W + 1):
            before = pairwise.T if n else torch.where(torch.arange(C) == 0, 0.0, -1e9).expand(C, C)
            edges[:, n, w] = segment[:, n, w - 1, :, None] + before
    theirs = torch_struct.SemiMarkovCRF(edges)
    ours = structmax.log_partition((segment, pairwise), structmax.SemiMarkov())
    same("log_partition", ours, theirs.partition, 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_semi_markov_with_a_score_for_width_and_both_labels(seed):
    B, N, W, C = 2, 4, 2, 3
    # theirs: widths from 1 at their own index, so that slot 0 is dead; [next, previous]
    edges = torch.full((B, N, W + 1, C, C), -1e9, dtype=torch.float64)
    edges[:, :, 1:] = normal(seed, B, N, W, C, C).detach()
    # the first segment follows label 0 alone, else it would be counted for each label before it
    edges[:, 0, :, :, 1:] = -1e9
    edges.requires_grad_()
    theirs = torch_struct.SemiMarkovCRF(edges).partition
    segment = torch.cat([edges[:, :1, 1:, :, 0], torch.zeros(B, N - 1, W, C, dtype=edges.dtype)], 1)
    pairwise = edges[:, 1:, 1:].mT
    ours = structmax.log_partition((segment, pairwise), structmax.SemiMarkov())
    same("log_partition", ours, theirs, 1e-9)
    got, want = (torch.autograd.grad(value.sum(), edges)[0] for value in (ours, theirs))
    same("marginals", got, want, 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_grammar(seed):
    B, N, T, K = 2, 4, 2, 3
    terms, rules, roots = normal(seed, B, N, T), normal(seed + 1, B, K, K + T, K + T), normal(seed + 2, B, K)
    ours = structmax.log_partition((terms, rules, roots), structmax.PCFG())
    theirs = torch_struct.SentCFG((terms, rules, roots)).partition
    same("log_partition", ours, theirs)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), (terms, rules, roots)),
        torch.autograd.grad(theirs.sum(), (terms, rules, roots)),
        strict=True,
    ):
        same("gradient", a, b)


class Recurrent(torch.nn.Module):
    """Theirs: tokens (rows, N) and a tuple of states (rows, H) to logits (rows, N, C)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = torch.nn.Embedding(4, 5), torch.nn.GRUCell(5, 5), torch.nn.Linear(5, 4)

    def forward(self, tokens, states):
        (state,), logits = states, []
        for one in tokens.unbind(1):
            state = self.cell(self.embed(one), state)
            logits.append(self.out(state))
        return torch.stack(logits, 1), (state,)


@pytest.mark.parametrize("seed", SEEDS)
def test_autoregressive(seed):
    """Greedy, by a beam, and the log-probabilities of what it finds."""
    torch.manual_seed(seed)
    network, first = Recurrent().double(), normal(seed, 3, 5).detach()

    def step(actions, state):
        logits, (state,) = network(actions.unsqueeze(1), (state,))
        return logits.squeeze(1), state

    ours = structmax.incremental.Autoregressive(step, torch.zeros(3, dtype=torch.long), first, 4)
    theirs = torch_struct.Autoregressive(network, (first,), 4, 4)
    path, value, _ = theirs.greedy_max()
    greedy = ours.greedy()
    assert torch.equal(path.argmax(-1), greedy.actions)
    same("greedy", greedy.log_probs, value)
    beam = ours.beam(3)
    assert torch.equal(theirs.beam_topk(3).argmax(-1), beam.actions)
    same("log_prob", theirs.log_prob(beam.actions, sparse=True), beam.log_probs)
    drawn = theirs.sample((5,)).argmax(-1)
    same("log_prob of draws", ours.log_prob(drawn), theirs.log_prob(drawn, sparse=True))

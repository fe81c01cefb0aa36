"""Projective trees beyond the laws: counts, what people see, messages, padding, long and wide scores, the noise."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import structmax
from structmax import ProjectiveTree

ROOTS = pytest.mark.parametrize("single_root", [True, False])


def count(n: int, single_root: bool) -> int:
    """How many projective trees there are: 1, 2, 7, 30, 143 … with a single root, else 1, 3, 12, 55, 273 …"""
    return math.comb(3 * n - 2, n - 1) // n if single_root else math.comb(3 * n, n) // (2 * n + 1)


def usable(size: int, lengths: Tensor) -> Tensor:
    """Which arcs an instance can use: (B, size, size)."""
    node = torch.arange(size)
    inside = node <= lengths[:, None]
    return inside[:, :, None] & inside[:, None, :] & (node > 0) & (node[:, None] != node)


@ROOTS
def test_there_are_as_many_members_as_the_closed_form_says(single_root):
    structure = ProjectiveTree(single_root=single_root)
    for n in range(1, 6):
        assert len(structure.enumerate(torch.zeros(n + 1, n + 1))) == count(n, single_root)


@ROOTS
def test_edges_without_directions_do_not_cross(single_root):
    """By another definition: all sets of n − 1 edges that join n nodes and of which no two cross."""
    structure = ProjectiveTree(directed=False, single_root=single_root)
    for n in range(1, 6):
        found = []
        for edges in itertools.combinations(itertools.combinations(range(n), 2), n - 1):
            crossing = any(i < k < j < end for i, j in edges for k, end in edges)
            if not crossing and joins(edges, n) and (not single_root or sum(i == 0 for i, _ in edges) == min(1, n - 1)):
                found.append(edges)
        members = structure.enumerate(torch.zeros(n, n))
        assert {tuple(map(tuple, member.nonzero().tolist())) for member in members} == set(found)
        assert len(members) == (count(n - 1, single_root) if n > 1 else 1)


def joins(edges: tuple[tuple[int, int], ...], n: int) -> bool:
    """Whether all n nodes can be reached from node 0."""
    reached = {0}
    for _ in range(n):
        reached |= {end for edge in edges if reached & set(edge) for end in edge}
    return len(reached) == n


@ROOTS
@pytest.mark.parametrize("kind", [ProjectiveTree, structmax.SpanningTree])
def test_symmetric_scores_of_both_directions_as_synjax_has_them(kind, single_root):
    """There scores are the mean of both triangles, and trees are symmetric matrices."""
    scores = torch.randn(5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = (scores + scores.T) / 2
    members = kind(single_root=single_root).enumerate(scores)
    probabilities = (members * mean).sum((1, 2)).softmax(0)
    want = torch.einsum("m,mij->ij", probabilities, members + members.mT)
    structure = kind(directed=False, single_root=single_root)
    mu = structmax.marginals(mean, structure)
    torch.testing.assert_close(mu + mu.T, want)
    torch.testing.assert_close(structmax.log_partition(mean, structure), (members * mean).sum((1, 2)).logsumexp(0))
    best = members[probabilities.argmax()]
    parts = structmax.argmax(mean, structure)
    assert torch.equal(parts + parts.T, best + best.T)


@ROOTS
@pytest.mark.parametrize("shift", [0.0, 1e5])
def test_log_partition_of_equal_scores_is_the_closed_form(single_root, shift):
    lengths = torch.tensor([1, 2, 3, 17, 40, 60])
    scores = torch.full((6, 61, 61), shift, dtype=torch.float64)
    got = structmax.log_partition(scores, ProjectiveTree(lengths, single_root=single_root)) - shift * lengths
    want = [math.log(count(n, single_root)) for n in lengths.tolist()]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.float64), rtol=1e-11, atol=1e-9 if shift else 1e-12)


@ROOTS
def test_float32_is_right_on_300_words(single_root):
    scores = torch.randn(2, 301, 301, generator=torch.Generator().manual_seed(0), dtype=torch.float64).float()
    structure = ProjectiveTree(torch.tensor([300, 211]), single_root=single_root)
    exact, rounded = scores.double().requires_grad_(), scores.clone().requires_grad_()
    want, got = structmax.log_partition(exact, structure), structmax.log_partition(rounded, structure)
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=0.0)
    want.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(rounded.grad.double(), exact.grad, rtol=1e-4, atol=1e-6)
    # one head for each word
    heads = torch.where(torch.arange(301) > 0, 1.0, 0.0) * (torch.arange(301) <= structure.lengths[:, None])
    torch.testing.assert_close(exact.grad.sum(1), heads.double(), rtol=0.0, atol=1e-12)


# The chart is linear up to about the second scale, and logarithmic above.
@ROOTS
@pytest.mark.parametrize("scale", [1.0, 8.0, 60.0, 1e3])
@pytest.mark.parametrize(("labels", "directed"), [(0, True), (3, True), (3, False)])
def test_kernels_equal_the_reference_whatever_padding_holds(single_root, scale, labels, directed):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([9, 12, 5, 0, 1])
    shape = (5, 13, 13, labels) if labels else (5, 13, 13)
    scores = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.rand(shape, generator=generator) < 0.2, -math.inf)
    tangent = torch.randn(shape, generator=generator, dtype=torch.float64)
    used = usable(13, lengths) if directed else usable(13, lengths - 1).triu()
    used = used[..., None].expand(shape) if labels else used
    junk = torch.where(used, scores, math.nan)
    structure = ProjectiveTree(lengths, single_root=single_root, labelled=labels > 0, directed=directed)
    answers = []
    for theta, backend in ((junk, "numba"), (scores, "reference")):
        leaf = theta.clone().requires_grad_()
        value = structmax.log_partition(leaf, structure, backend=backend)
        marginals = structmax.marginals(leaf, structure, backend=backend)
        cotangent = torch.where(used & (scores > -math.inf), tangent, 0.0)
        (pulled,) = torch.autograd.grad(marginals, leaf, cotangent)
        best = structmax.argmax(theta, structure, backend=backend)
        generator = torch.Generator().manual_seed(5)
        drawn = structmax.sample(theta, structure, (6,), generator=generator, backend=backend)
        answers.append((value.detach(), marginals.detach(), pulled, best, drawn))
    for got, want in zip(*answers, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    _, marginals, pulled, best, drawn = answers[0]
    for parts in (marginals, pulled, best, drawn):
        assert not parts.masked_fill(used, 0.0).any()


@ROOTS
def test_a_label_takes_its_share_of_the_arc(single_root):
    scores = torch.randn(2, 6, 6, 4, dtype=torch.float64)
    labelled = ProjectiveTree(single_root=single_root, labelled=True)
    plain = ProjectiveTree(single_root=single_root)
    summed = scores.logsumexp(-1)
    torch.testing.assert_close(structmax.log_partition(scores, labelled), structmax.log_partition(summed, plain))
    want = structmax.marginals(summed, plain).unsqueeze(-1) * scores.softmax(-1)
    torch.testing.assert_close(structmax.marginals(scores, labelled), want)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_instance_breaks_no_other(broken):
    scores = torch.randn(3, 5, 5)
    structure = ProjectiveTree(single_root=True)
    sound = structmax.log_partition(scores, structure), structmax.marginals(scores, structure)
    scores[1, 2, 4] = broken
    got = structmax.log_partition(scores, structure), structmax.marginals(scores, structure)
    for a, b in zip(got, sound, strict=True):
        torch.testing.assert_close(a[[0, 2]], b[[0, 2]], rtol=0.0, atol=0.0)
    used = usable(5, torch.tensor([4]))[0]
    assert got[0][1].isnan()
    assert bool(got[1][1][used].isnan().all())
    assert not bool(got[1][1][~used].any())


@ROOTS
def test_noise_suffices_for_every_tree(single_root):
    structure = ProjectiveTree(single_root=single_root, labelled=True)
    scores = torch.zeros(1, 4, 4, 2)
    noise = torch.rand(1, 20000, structure.noise_size(scores), generator=torch.Generator().manual_seed(0))
    room = pytest.importorskip("structmax.structures.projective_tree.kernel_numba")
    drawn = room.sample(scores, noise=noise, lengths=torch.tensor([3]), single_root=single_root, directed=True)
    assert len(drawn.flatten(2)[0].unique(dim=0)) == 2**3 * count(3, single_root)


def test_heads_and_back():
    structure = ProjectiveTree(torch.tensor([3, 1]), single_root=True)
    heads = torch.tensor([[2, 0, 2], [0, -1, -1]])
    parts = structure.encode(heads)
    assert parts.shape == (2, 4, 4)
    assert parts[0, 2, 1] == parts[0, 0, 2] == parts[0, 2, 3] == 1
    assert parts.sum() == 4
    assert torch.equal(structure.decode(parts), heads)
    drawn = structmax.sample(torch.randn(2, 4, 4), structure, (5,))
    assert torch.equal(structure.encode(structure.decode(drawn)), drawn)


def test_edges_and_back():
    structure = ProjectiveTree(torch.tensor([4, 2]), directed=False, labelled=True)
    drawn = structmax.sample(torch.randn(2, 4, 4, 3), structure, (5,))
    edges, labels = structure.decode(drawn)
    assert edges.shape == (5, 2, 3, 2)
    assert (edges[:, 1, 1:] == -1).all()
    assert torch.equal(structure.encode(edges, labels, 3), drawn)


def test_heads_and_labels_and_back():
    structure = ProjectiveTree(single_root=False, labelled=True)
    drawn = structmax.sample(torch.randn(2, 4, 4, 3), structure, (5,))
    heads, labels = structure.decode(drawn)
    assert heads.shape == labels.shape == (5, 2, 3)
    assert torch.equal(structure.encode(heads, labels, 3), drawn)
    with pytest.raises(ValueError, match=r"`encode` of labelled trees should be given heads, labels and how many"):
        structure.encode(heads)


def test_nothing_is_decoded_where_nothing_is_feasible():
    structure = ProjectiveTree(single_root=True)
    best = structmax.argmax(torch.full((3, 3), -math.inf), structure)
    assert torch.equal(structure.decode(best), torch.tensor([-1, -1]))


@pytest.mark.parametrize(
    ("scores", "fields", "message"),
    [
        (
            torch.zeros(4, 4, 2),
            {},
            r"labelled=False should have shape \(…, N \+ 1, N \+ 1\).*\(4, 4, 2\)\. Try labelled=True",
        ),
        (torch.zeros(4, 4), {"labelled": True}, r"\(…, N \+ 1, N \+ 1, L\).*\(4, 4\)\. Try labelled=False"),
        (torch.zeros(3, 4), {}, r"\(3, 4\)"),
        (
            torch.zeros(2, 4, 4),
            {"lengths": torch.tensor([3, 4])},
            r"between 0 and 3, the number of words without the root",
        ),
        (
            torch.zeros(2, 4, 4),
            {"lengths": torch.tensor([3, 3, 3])},
            r"`lengths` should broadcast to the batch shape \(2,\)",
        ),
        (
            torch.zeros(2, 4, 4),
            {"directed": False, "lengths": torch.tensor([3, 5])},
            r"between 0 and 4, the number of nodes",
        ),
        (torch.zeros(3, 4), {"directed": False}, r"should have shape \(…, N, N\), a row for each node.*\(3, 4\)"),
    ],
)
def test_messages_about_scores(scores, fields, message):
    with pytest.raises(ValueError, match=message):
        structmax.argmax(scores, ProjectiveTree(single_root=True, **fields))


def test_messages_about_types():
    with pytest.raises(TypeError, match=r"should be one tensor .* but are a tuple"):
        structmax.argmax((torch.zeros(4, 4), torch.zeros(4, 4)), ProjectiveTree(single_root=True))
    with pytest.raises(TypeError, match=r"`single_root` should be True .* but is None"):
        ProjectiveTree(single_root=None)
    with pytest.raises(TypeError, match="single_root"):
        ProjectiveTree()


def test_a_masked_arc_has_no_share_however_unlikely_others_are():
    """Its weight, exp(−700) at least in linear numbers, counts for more where all trees are far below the best arcs."""
    arc = torch.tensor(
        [
            [0.0, 205.9, -1446.3, 1369.2],
            [0.0, 0.0, -608.6, -1e30],
            [0.0, -58.4, 0.0, -340.7],
            [0.0, -1062.5, 358.8, 0.0],
        ],
        dtype=torch.float64,
    )
    structure = ProjectiveTree(single_root=True)
    assert structmax.marginals(arc, structure)[1, 3] == 0
    assert structmax.entropy(arc, structure) < 1e-9

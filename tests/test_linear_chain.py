"""The linear chain beyond the laws: labels, masks, tags, sizes nobody can enumerate, and numbers at their limits."""

import itertools
import math
import re

import pytest
import torch

import structmax
from structmax import LinearChain
from structmax.structures.linear_chain import kernel_numba
from structmax.testing import same

inf = math.inf


def slow_log_partition(unary, pairwise, length):
    """log Z of one instance, one position after the other; what grows is kept apart, for the digits of the rest."""
    value = unary.new_zeros(())
    if length == 0:
        return value
    a = unary[0]
    for t in range(1, length):
        peak = a.detach().max()
        value = value + peak
        a = (a.unsqueeze(1) - peak + (pairwise if pairwise.dim() == 2 else pairwise[t - 1])).logsumexp(0) + unary[t]
    return value + a.logsumexp(0)


def slow_answers(unary, pairwise, lengths, tangent=None):
    """Value, marginals and, for a tangent, their derivative, in float64."""
    answers = []
    tangent = tangent or (unary, pairwise)
    for u, w, t_u, t_w, length in zip(unary.double(), pairwise.double(), *tangent, lengths.tolist(), strict=True):
        leaves = u.clone().requires_grad_(), w.clone().requires_grad_()
        value = slow_log_partition(*leaves, length)
        mu = torch.autograd.grad(value, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
        moved = sum((m * t.double()).sum() for m, t in zip(mu, (t_u, t_w), strict=True))
        d_mu = torch.autograd.grad(moved, leaves, allow_unused=True, materialize_grads=True) if length else mu
        answers.append((value.detach(), *(m.detach() for m in mu), *d_mu))
    return tuple(torch.stack(column) for column in zip(*answers, strict=True))


def draw(B, N, C, *, each, scale=1.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (B, N, C), (B, N - 1, C, C) if each else (B, C, C)
    unary, pairwise = (scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)
    lengths = torch.randint(1, N + 1, (B,), generator=generator)
    lengths[0] = N
    return unary, pairwise, lengths


# ---------------------------------------------------------------- kernels against a plain recursion


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 3e-5)])
@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("N", "C"), [(2, 1), (7, 2), (9, 16), (6, 17), (70, 5), (5, 67)])
def test_kernels_equal_a_plain_recursion(N, C, each, scale, dtype, tolerance):
    """The larger scale is out of the scaled domain for float32."""
    unary, pairwise, lengths = draw(3, N, C, each=each, scale=scale, dtype=dtype)
    tangent = draw(3, N, C, each=each, dtype=dtype, seed=1)[:2]
    value, *mu = kernel_numba.log_partition_and_marginals(unary, pairwise, lengths=lengths)
    d_mu = kernel_numba.marginals_jvp(unary, pairwise, *tangent, lengths=lengths)
    want = slow_answers(unary, pairwise, lengths, tangent)
    names = "value", "unary", "pairwise", "derivative of unary", "derivative of pairwise"
    for name, got, expected in zip(names, (value, *mu, *d_mu), want, strict=True):
        # the rounding of a score of size `scale` is part of the answer
        same(name, got.double(), expected, tolerance * scale)
    same("value alone", kernel_numba.log_partition(unary, pairwise, lengths=lengths), value, 0.0)


@pytest.mark.parametrize("each", [False, True])
def test_a_long_chain_in_float32(each):
    unary, pairwise, lengths = draw(1, 100_000 if not each else 20_000, 8, each=each, dtype=torch.float32)
    got = kernel_numba.log_partition_and_marginals(unary, pairwise, lengths=lengths)
    want = kernel_numba.log_partition_and_marginals(unary.double(), pairwise.double(), lengths=lengths)
    for name, a, b in zip(("value", "unary", "pairwise"), got, want, strict=True):
        same(name, a.double(), b, 1e-5)
    torch.testing.assert_close(want[2].sum(), torch.tensor(float(lengths) - 1, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_what_is_rare_at_first_may_be_all_in_the_end(seed, dtype):
    """Left to right, and only the last label may end: α of the mass that counts is far below the smallest number."""
    N, C = 400, 6
    generator = torch.Generator().manual_seed(seed)
    unary = 4 * torch.randn(1, N, C, generator=generator, dtype=dtype)
    pairwise = torch.full((1, C, C), -inf, dtype=dtype)
    for c in range(C):
        pairwise[0, c, c] = 3.0 - c
        pairwise[0, c, min(c + 1, C - 1)] = -9.0
    unary[:, 0, 1:] = -inf
    unary[:, -1, :-1] = -inf
    lengths = torch.tensor([N])
    value, *mu = kernel_numba.log_partition_and_marginals(unary, pairwise, lengths=lengths)
    # autograd's judge has no gradient at −inf
    want = slow_answers(unary.clamp_min(-1e6), pairwise.clamp_min(-1e6), lengths)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    for got, expected in zip((value, *mu), want[:3], strict=True):
        same("left to right", got.double(), expected, tolerance)


def test_a_steep_way_to_the_best_label_is_found():
    """Label 5 is worth everything, and is reached through five steps that cost e^17 each."""
    N, C = 60, 6
    pairwise = torch.full((1, C, C), -inf)
    pairwise[0, 0, 0] = pairwise[0, 5, 5] = 0.0
    for c in range(5):
        pairwise[0, c, c + 1] = -17.0
    unary = torch.zeros(1, N, C)
    unary[:, 0, 1:] = -inf
    unary[..., 5] = 10.0
    value, mu, _ = kernel_numba.log_partition_and_marginals(unary, pairwise, lengths=torch.tensor([N]))
    want, want_mu, _ = kernel_numba.log_partition_and_marginals(
        unary.double(), pairwise.double(), lengths=torch.tensor([N])
    )
    same("value", value.double(), want, 1e-6)
    same("unary", mu.double(), want_mu, 1e-5)
    assert mu[0, -1, 5] > 0.99


# ---------------------------------------------------------------- broken and padded scores


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("junk", [math.nan, inf, -inf])
def test_padding_holds_anything(each, junk, scale):
    unary, pairwise, lengths = draw(4, 5, 3, each=each, scale=scale)
    lengths[1:] = torch.tensor([0, 1, 3])
    chain = LinearChain(lengths)
    noise = torch.rand(4, 2, 5, dtype=torch.float64)
    spoilt_unary, spoilt_pairwise = unary.clone(), pairwise.clone()
    for b, length in enumerate(lengths.tolist()):
        spoilt_unary[b, length:] = junk
        if each:
            spoilt_pairwise[b, max(length - 1, 0) :] = junk
        elif length < 2:
            spoilt_pairwise[b] = junk

    def answers(*scores):
        fields = {"lengths": lengths}
        yield from kernel_numba.log_partition_and_marginals(*scores, **fields)
        yield from kernel_numba.marginals_jvp(*scores, *scores, **fields)
        yield from kernel_numba.argmax(*scores, **fields)
        yield from kernel_numba.sample(*scores, noise=noise, **fields)

    for got, want in zip(answers(spoilt_unary, spoilt_pairwise), answers(unary, pairwise), strict=True):
        same("with junk in the padding", got, want, 0.0)
    leaf = spoilt_unary.clone().requires_grad_()
    structmax.log_partition((leaf, spoilt_pairwise), chain).sum().backward()
    assert not leaf.grad[1].any()
    assert leaf.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("bad", [math.nan, inf])
@pytest.mark.parametrize("where", ["unary", "pairwise"])
def test_a_broken_score_breaks_its_instance_alone(where, bad, each, scale):
    unary, pairwise, _ = draw(3, 4, 3, each=each, scale=scale)
    lengths = torch.tensor([4, 4, 3])
    sound = unary.clone(), pairwise.clone()
    (unary if where == "unary" else pairwise)[1].view(-1)[-1] = bad
    noise = torch.rand(3, 2, 4, dtype=torch.float64)
    calls = {
        "log_partition": {},
        "log_partition_and_marginals": {},
        "argmax": {},
        "sample": {"noise": noise},
    }
    for name, extra in calls.items():
        got, want = (
            getattr(kernel_numba, name)(*scores, lengths=lengths, **extra) for scores in ((unary, pairwise), sound)
        )
        for a, b in zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]:
            assert a[1].isnan().all(), name
            same(name, a[[0, 2]], b[[0, 2]], 0.0)
    d_mu = kernel_numba.marginals_jvp(unary, pairwise, *sound, lengths=lengths)
    assert all(d[1].isnan().all() and d[[0, 2]].isfinite().all() for d in d_mu)


def test_a_tangent_does_not_count_where_a_part_is_forbidden():
    for scale in (1.0, 1e3):
        unary, pairwise, lengths = draw(2, 4, 3, each=False, scale=scale)
        unary[:, 1, 0] = -inf
        pairwise[:, 2, 1] = -inf
        wild = torch.ones_like(unary), torch.ones_like(pairwise)
        wild[0][:, 1, 0] = math.nan
        wild[1][:, 2, 1] = inf
        calm = torch.ones_like(unary), torch.ones_like(pairwise)
        got = kernel_numba.marginals_jvp(unary, pairwise, *wild, lengths=lengths)
        want = kernel_numba.marginals_jvp(unary, pairwise, *calm, lengths=lengths)
        for a, b in zip(got, want, strict=True):
            same("marginals_jvp", a, b)


# ---------------------------------------------------------------- single structures


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("C", [2, 19])
def test_argmax_is_best_and_one_under_ties(C, each):
    unary, pairwise, lengths = draw(3, 6, C, each=each)
    unary, pairwise = unary.round(), pairwise.round()
    chain = LinearChain(lengths)
    best = structmax.argmax((unary, pairwise), chain)
    top = structmax.topk((unary, pairwise), chain, 1)
    score = (best.unary * unary).sum((-1, -2)) + (best.pairwise * pairwise).flatten(1).sum(-1)
    same("score", score, top.values[0])
    labels = chain.decode(best)
    again = chain.encode(labels, (unary, pairwise))
    same("unary", again.unary, best.unary, 0.0)
    same("pairwise", again.pairwise, best.pairwise, 0.0)
    tied = structmax.argmax((torch.zeros_like(unary), torch.zeros_like(pairwise)), chain)
    assert set(chain.decode(tied).unique().tolist()) <= {-1, 0}


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("each", [False, True])
def test_backends_draw_the_same(each, scale):
    unary, pairwise, lengths = draw(3, 5, 4, each=each, scale=scale)
    unary[:, 2, 1] = -inf
    chain = LinearChain(lengths)
    drawn = [
        structmax.sample(
            (unary, pairwise), chain, (50,), generator=torch.Generator().manual_seed(3), backend=backend
        ).unary
        for backend in ("numba", "reference")
    ]
    same("sample", drawn[0], drawn[1], 0.0)


def test_the_first_number_chooses_the_last_label():
    unary, lengths = torch.zeros(1, 3, 4), torch.tensor([3])
    noise = torch.tensor([[[0.1, 0.3, 0.8]]])
    drawn = kernel_numba.sample(unary, torch.zeros(1, 4, 4), noise=noise, lengths=lengths)
    assert LinearChain().decode(drawn)[0, 0].tolist() == [3, 1, 0]


# ---------------------------------------------------------------- shapes, masks, labels


def test_every_sequence_counts_once():
    lengths = torch.tensor([0, 1, 5])
    count = structmax.log_count((torch.zeros(3, 5, 4), torch.zeros(4, 4)), LinearChain(lengths))
    torch.testing.assert_close(count.double(), lengths.double() * math.log(4))


@pytest.mark.parametrize("each", [False, True])
def test_keep_is_the_chain_of_what_is_kept(each):
    unary, pairwise, _ = draw(4, 5, 3, each=each)
    keep = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    chain = LinearChain(keep=keep)
    start, end = torch.randn(3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    scores = LinearChain.Parts(unary, pairwise, start, end)
    value, mu, best = (ask(scores, chain) for ask in (structmax.log_partition, structmax.marginals, structmax.argmax))
    labels = chain.decode(best)
    assert torch.equal(labels >= 0, keep)
    for b in range(4):
        kept = keep[b].nonzero().flatten()
        if len(kept) == 0:
            assert value[b] == 0
            assert not mu.unary[b].any()
            continue
        matrices = pairwise[b, kept[1:] - 1] if each else pairwise[b]
        small = LinearChain.Parts(unary[b, kept], matrices, start, end[b])
        same("value", value[b], structmax.log_partition(small, LinearChain()))
        of_small = structmax.marginals(small, LinearChain())
        same("unary", mu.unary[b, kept], of_small.unary)
        same("pairwise", mu.pairwise[b, kept[1:] - 1] if each else mu.pairwise[b], of_small.pairwise)
        assert mu.unary[b].sum() == pytest.approx(len(kept))
        assert torch.equal(labels[b, kept], LinearChain().decode(structmax.argmax(small, LinearChain())))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_labels_to_parts_and_back(masked, each):
    unary, pairwise, lengths = draw(2, 5, 3, each=each)
    keep = torch.tensor([[True, False, True, False, True], [False, True, True, False, False]])
    chain = LinearChain(keep=keep) if masked else LinearChain(lengths)
    draws = structmax.sample((unary, pairwise), chain, (7,), generator=torch.Generator().manual_seed(0))
    labels = chain.decode(draws)
    assert labels.shape == (7, 2, 5)
    assert labels.dtype == torch.int64
    parts = chain.encode(labels, (unary, pairwise))
    same("unary", parts.unary, draws.unary, 0.0)
    same("pairwise", parts.pairwise, draws.pairwise, 0.0)


def test_start_and_end_have_gradients():
    unary, pairwise, lengths = draw(3, 4, 3, each=False)
    start, end = (torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    chain = LinearChain(lengths)
    structmax.log_partition(LinearChain.Parts(unary, pairwise, start, end), chain).sum().backward()
    mu = structmax.marginals((unary, pairwise), chain).unary
    same("start", start.grad, mu[:, 0].sum(0))
    same("end", end.grad, mu[torch.arange(3), lengths - 1].sum(0))


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        (torch.zeros(4, 3), TypeError, "`scores` of a LinearChain should be (unary, pairwise) or Parts"),
        ((torch.zeros(3), torch.zeros(3, 3)), ValueError, "`unary` should have shape (…, N, C) with N, C ≥ 1"),
        (
            (torch.zeros(2, 5, 3), torch.zeros(2, 5, 3, 3)),
            ValueError,
            "`pairwise` should have shape (3, 3), (2, 3, 3) or (2, 4, 3, 3) to match `unary` (2, 5, 3), "
            "but has (2, 5, 3, 3). Did you include a start transition?",
        ),
        (
            (torch.zeros(4, 3), torch.zeros(3, 3), torch.zeros(2)),
            ValueError,
            "`start` should have shape (3,) to match `unary` (4, 3), but has (2,).",
        ),
        (
            (torch.zeros(4, 3), torch.zeros(3, 3).double()),
            TypeError,
            "`pairwise` should have the dtype of `unary`, torch.float32, but has torch.float64.",
        ),
    ],
)
def test_scores_that_do_not_fit(scores, error, message):
    with pytest.raises(error, match=re.escape(message)):
        structmax.log_partition(scores, LinearChain())


def test_masks_that_do_not_fit():
    scores = torch.zeros(2, 4, 3), torch.zeros(3, 3)
    with pytest.raises(ValueError, match="`lengths` should be between 0 and 4"):
        structmax.log_partition(scores, LinearChain(torch.tensor([4, 5])))
    with pytest.raises(ValueError, match="`keep` should broadcast to shape"):
        structmax.log_partition(scores, LinearChain(keep=torch.ones(2, 3).bool()))
    with pytest.raises(TypeError, match="`keep` should be a bool tensor"):
        structmax.log_partition(scores, LinearChain(keep=torch.ones(2, 4)))
    with pytest.raises(ValueError, match="Either `lengths` or `keep`"):
        LinearChain(torch.tensor([1]), torch.ones(1, 4).bool())


# ---------------------------------------------------------------- tags

# Labels of two types as letters, and the texts each scheme may write with them.
SCHEMES = {
    "IOB1": ({"O": "O", "I-a": "I", "B-a": "B", "I-b": "J", "B-b": "C"}, r"(O|I(I|B)*|J(J|C)*)*"),
    "IOB2": ({"O": "O", "I-a": "I", "B-a": "B", "I-b": "J", "B-b": "C"}, r"(O|BI*|CJ*)*"),
    "IOBES": ({"O": "O", "B-a": "B", "I-a": "I", "E-a": "E", "S-a": "S", "B-b": "C", "E-b": "F"}, r"(O|S|BI*E|CF)*"),
    "BILOU": ({"O": "O", "B-a": "B", "I-a": "I", "L-a": "E", "U-a": "S", "B-b": "C", "L-b": "F"}, r"(O|S|BI*E|CF)*"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_tag_constraints_allow_what_the_scheme_can_write(scheme):
    letters, valid = SCHEMES[scheme]
    labels = list(letters)
    N = 4
    constraints = structmax.tag_constraints(labels, scheme)
    scores = LinearChain.Parts(torch.zeros(N, len(labels)), *constraints)
    right = [
        sequence
        for sequence in itertools.product(range(len(labels)), repeat=N)
        if re.fullmatch(valid, "".join(letters[labels[c]] for c in sequence))
    ]
    count = structmax.log_partition(scores, LinearChain()).exp()
    torch.testing.assert_close(count, torch.tensor(float(len(right))))
    parts = LinearChain().encode(torch.tensor(right), scores)
    unary, pairwise = LinearChain().tensors(scores)
    score = torch.where(parts.unary > 0, unary, 0.0).sum((-1, -2))
    score = score + torch.where(parts.pairwise > 0, pairwise, 0.0).sum((-1, -2))
    assert not score.any()


def test_schemes_have_their_other_names():
    for name, other, labels in (("IOB2", "BIO", ["O", "B-X", "I-X"]), ("IOBES", "BIOES", ["O", "B-X", "E-X", "S-X"])):
        constraints = zip(*(structmax.tag_constraints(labels, scheme) for scheme in (name, other)), strict=True)
        assert all(torch.equal(one, same) for one, same in constraints)


def test_tags_that_do_not_fit():
    with pytest.raises(
        ValueError, match=r"`labels` of IOB2 should be O or one of I-X, B-X with a type X, but 'S-PER'.*IOBES"
    ):
        structmax.tag_constraints(["O", "S-PER"])
    with pytest.raises(ValueError, match="`scheme` should be one of"):
        structmax.tag_constraints(["O"], "IO")


def test_draws_beside_masks_of_different_size_have_no_forbidden_part():
    """Where −1e30 is in every structure, rounding leaves −1e9 for the largest weight, and not 0."""
    inf = torch.inf
    unary = torch.tensor(
        [[-1e30, -1e4, -1e4, -1e300], [-1e9, -inf, -1e9, -inf], [-1e4, -1e4, -1e9, -1e9], [-1.2, -1.6, -1e9, -1e9]],
        dtype=torch.float64,
    )
    pairwise = torch.tensor(
        [[-1e30, -inf, -1e30, -1e30], [-0.5, 0.3, -1e9, 0.5], [-0.2, -1e30, -1e30, -inf], [-1e15, -inf, 0.8, -inf]],
        dtype=torch.float64,
    )
    draws = structmax.sample((unary, pairwise), LinearChain(), (200,), generator=torch.Generator().manual_seed(0))
    assert not bool((pairwise.isneginf() & (draws.pairwise > 0)).any())
    assert not bool((unary.isneginf() & (draws.unary > 0)).any())


@pytest.mark.parametrize("batch", [(1,), (3,), (2, 2)])
@pytest.mark.parametrize(
    "question", [structmax.log_partition, lambda *a: structmax.marginals(*a).unary.square().sum(-1)]
)
def test_one_matrix_for_all_instances_gets_the_sum_of_their_gradients(question, batch):
    """At a first call, at later ones of a known form, and to the second order."""
    unary, matrix = torch.randn(*batch, 4, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
    weights = torch.randn(batch, dtype=torch.float64)

    def gradients(pairwise, leaf):
        answer = question((leaves[0], pairwise), structmax.LinearChain()).reshape(*batch, -1).sum(-1)
        first = torch.autograd.grad((answer * weights).sum(), (leaves[0], leaf), create_graph=True)
        return *first, *torch.autograd.grad(sum(t.square().sum() for t in first), (leaves[0], leaf))

    leaves = unary.requires_grad_(), matrix.requires_grad_()
    each = gradients(leaves[1].expand(*batch, 3, 3).clone(), leaves[1])
    for _ in range(2):
        for one, other in zip(gradients(leaves[1], leaves[1]), each, strict=True):
            torch.testing.assert_close(one, other)

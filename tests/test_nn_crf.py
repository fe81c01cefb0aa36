"""The conditional random field against sums over all tag sequences, for masks of any pattern and unknown tags."""

import copy
import itertools
import math
import pickle

import pytest
import torch

import structmax
from structmax.nn import CRF
from structmax.testing import same

inf = math.inf
C = 3
PATTERNS = torch.tensor(
    [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [0, 1, 0, 0, 1],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0],
    ]
).bool()


def model(seed=0, **options):
    torch.manual_seed(seed)
    crf = CRF(C, batch_first=True, **options).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf


def draw(batch=6, N=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(batch, N, C, dtype=torch.float64, generator=generator)
    return emissions, torch.randint(C, (batch, N), generator=generator)


def score(crf, emissions, positions, tags):
    """The definition, one term after the other."""
    if not positions:
        return emissions.new_zeros(())
    total = crf.start_transitions[tags[0]] + crf.end_transitions[tags[-1]]
    for n, tag in zip(positions, tags, strict=True):
        total = total + emissions[n, tag]
    for before, after in itertools.pairwise(tags):
        total = total + crf.transitions[before, after]
    return total


def every_sequence(crf, emissions, keep):
    """The kept positions of one instance, all its tag sequences, and their log-probabilities."""
    positions = keep.nonzero().flatten().tolist()
    every = list(itertools.product(range(C), repeat=len(positions)))
    return positions, every, torch.stack([score(crf, emissions, positions, tags) for tags in every]).log_softmax(0)


def by_enumeration(crf, emissions, tags, keep, unknown=None):
    rows = []
    for e, t, k in zip(emissions, tags, keep, strict=True):
        positions, every, log_probs = every_sequence(crf, e, k)
        wanted = t[positions].tolist()
        agree = [all(w in (tag, unknown) for w, tag in zip(wanted, y, strict=True)) for y in every]
        rows.append(log_probs[torch.tensor(agree)].logsumexp(0))
    return torch.stack(rows)


def gradients(crf, value, emissions):
    return torch.autograd.grad(value, [emissions, *crf.parameters()])


def test_likelihood_and_gradients_under_any_mask():
    crf, (emissions, tags) = model(), draw()
    emissions.requires_grad_()
    ours, judge = crf(emissions, tags, PATTERNS, "none"), by_enumeration(crf, emissions, tags, PATTERNS)
    same("log-likelihood", ours, judge)
    assert ours[-1] == 0
    weights = torch.arange(1.0, 7.0, dtype=torch.float64)
    got, want = (gradients(crf, (weights * value).sum(), emissions) for value in (ours, judge))
    for name, a, b in zip(("emissions", "start", "end", "transitions"), got, want, strict=True):
        same(name, a, b)


@pytest.mark.parametrize("ignore_index", [None, -100])
def test_gradcheck(ignore_index):
    crf, (emissions, tags) = model(ignore_index=ignore_index), draw()
    tags[0, 2] = 1 if ignore_index is None else -100
    names = [name for name, _ in crf.named_parameters()]

    def likelihood(e, *parameters):
        values = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(crf, values, (e, tags, PATTERNS, "none"))

    inputs = tuple(t.detach().requires_grad_() for t in (emissions, *crf.parameters()))
    assert torch.autograd.gradcheck(likelihood, inputs)
    assert torch.autograd.gradgradcheck(likelihood, inputs)


def test_reductions():
    crf, (emissions, tags) = model(), draw()
    each = crf(emissions, tags, PATTERNS, "none")
    same("sum", crf(emissions, tags, PATTERNS), each.sum())
    same("mean", crf(emissions, tags, PATTERNS, "mean"), each.mean())
    same("token mean", crf(emissions, tags, PATTERNS, "token_mean"), each.sum() / PATTERNS.sum())
    assert crf(emissions, tags, PATTERNS & False, "token_mean") == 0


def test_unknown_tags_are_summed_over():
    crf, (emissions, tags) = model(ignore_index=-100), draw()
    tags[:, 2] = tags[0, 3] = -100
    judge = by_enumeration(crf, emissions, tags, PATTERNS, unknown=-100)
    same("log-likelihood", crf(emissions, tags, PATTERNS, "none"), judge)
    known = (PATTERNS & (tags != -100)).sum()
    same("token mean", crf(emissions, tags, PATTERNS, "token_mean"), judge.sum() / known)
    nothing = torch.full_like(tags, -100)
    same("nothing known", crf(emissions, nothing, PATTERNS, "none"), torch.zeros(6, dtype=torch.float64))


def test_without_unknown_tags_both_ways_agree():
    (emissions, tags), plain, partial = draw(), model(), model(ignore_index=-100)
    same("log-likelihood", plain(emissions, tags, PATTERNS, "none"), partial(emissions, tags, PATTERNS, "none"))


def test_an_unknown_tag_is_not_a_step_left_out():
    crf, (emissions, tags) = model(ignore_index=-100), draw(batch=1)
    unknown = tags.index_fill(1, torch.tensor(2), -100)
    keep = torch.tensor([[True, True, False, True, True]])
    assert not torch.isclose(crf(emissions, unknown), crf(emissions, tags, keep))


@pytest.mark.parametrize("junk", [math.nan, inf, -inf])
@pytest.mark.parametrize("ignore_index", [None, -100])
def test_steps_left_out_hold_anything(junk, ignore_index):
    crf, (emissions, tags) = model(ignore_index=ignore_index), draw()
    spoilt = emissions.masked_fill(~PATTERNS.unsqueeze(-1), junk).requires_grad_()
    wrong = tags.masked_fill(~PATTERNS, -7)
    value = crf(spoilt, wrong, PATTERNS)
    assert value == crf(emissions, tags, PATTERNS)
    for gradient in gradients(crf, value, spoilt):
        assert gradient.isfinite().all()
    (d_emissions,) = torch.autograd.grad(crf(spoilt, wrong, PATTERNS), spoilt)
    assert (d_emissions[~PATTERNS] == 0).all()
    assert crf.decode(spoilt, PATTERNS) == crf.decode(emissions, PATTERNS)


def test_questions():
    crf, (emissions, _) = model(), draw()
    best, marginals = crf.argmax(emissions, PATTERNS), crf.marginals(emissions, PATTERNS)
    lists, (tags, log_probs) = crf.decode(emissions, PATTERNS), crf.topk(emissions, 4, PATTERNS)
    for b, keep in enumerate(PATTERNS):
        positions, every, judge = every_sequence(crf, emissions[b], keep)
        order = judge.argsort(descending=True)
        assert lists[b] == list(every[order[0]])
        assert best[b][keep].tolist() == lists[b]
        assert (best[b][~keep] == -1).all()
        want = marginals.new_zeros(5, C)
        for y, log_prob in zip(every, judge, strict=True):
            for n, tag in zip(positions, y, strict=True):
                want[n, tag] += log_prob.exp().detach()
        same("marginals", marginals[b], want)
        for rank in range(4):
            if rank < len(every):
                assert tags[rank, b][keep].tolist() == list(every[order[rank]])
                same("log-probability", log_probs[rank, b], judge[order[rank]])
            else:
                assert log_probs[rank, b] == -inf
                assert (tags[rank, b] == -1).all()


def test_draws_follow_the_distribution():
    crf, (emissions, _) = model(), draw()
    drawn = crf.sample(emissions, PATTERNS, (4000,), generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (4000, 6, 5)
    assert (drawn[:, ~PATTERNS] == -1).all()
    frequencies = (drawn.unsqueeze(-1) == torch.arange(C)).double().mean(0)
    torch.testing.assert_close(frequencies, crf.marginals(emissions, PATTERNS).detach(), atol=0.03, rtol=0)


def test_any_other_question():
    crf, (emissions, _) = model(), draw()
    entropy = structmax.entropy(*crf.scores(emissions, PATTERNS))
    for b, keep in enumerate(PATTERNS):
        log_probs = every_sequence(crf, emissions[b], keep)[2]
        same("entropy", entropy[b], -(log_probs.exp() * log_probs).sum())


def test_time_first_is_the_default():
    crf, (emissions, tags) = model(), draw()
    sideways = CRF(C).double()
    sideways.load_state_dict(crf.state_dict())
    e, t, m = emissions.transpose(0, 1), tags.T, PATTERNS.T
    same("log-likelihood", sideways(e, t, m, "none"), crf(emissions, tags, PATTERNS, "none"))
    assert sideways.decode(e, m) == crf.decode(emissions, PATTERNS)
    assert torch.equal(sideways.argmax(e, m).T, crf.argmax(emissions, PATTERNS))
    same("marginals", sideways.marginals(e, m).transpose(0, 1), crf.marginals(emissions, PATTERNS))
    assert torch.equal(sideways.topk(e, 2, m).tags.transpose(1, 2), crf.topk(emissions, 2, PATTERNS).tags)
    ours, theirs = (
        layer.sample(scores, mask, (3, 2), generator=torch.Generator().manual_seed(5))
        for layer, scores, mask in ((sideways, e, m), (crf, emissions, PATTERNS))
    )
    assert torch.equal(ours.transpose(2, 3), theirs)


@pytest.mark.parametrize("batch_first", [True, False])
def test_any_batch(batch_first):
    plain, (emissions, tags) = model(), draw()
    crf = CRF(C, batch_first).double()
    crf.load_state_dict(plain.state_dict())
    want, paths = plain(emissions, tags, PATTERNS, "none"), plain.decode(emissions, PATTERNS)
    e, t, m = (x.unflatten(0, (2, 3)) for x in (emissions, tags, PATTERNS))
    given = (e, t, m) if batch_first else (e.movedim(2, 0), t.movedim(2, 0), m.movedim(2, 0))
    same("two batch dimensions", crf(*given, "none"), want.unflatten(0, (2, 3)))
    assert crf.decode(given[0], given[2]) == [paths[:3], paths[3:]]
    same("no batch", crf(emissions[2], tags[2], PATTERNS[2], "none"), want[2])
    assert crf.decode(emissions[2], PATTERNS[2]) == paths[2]
    empty = (emissions[:0], tags[:0]) if batch_first else (emissions[:0].transpose(0, 1), tags[:0].T)
    assert crf(*empty, reduction="none").shape == (0,)
    assert crf(*empty) == 0
    assert crf.decode(empty[0]) == []


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_masks_of_tokenisers(dtype):
    crf, (emissions, tags) = model(), draw()
    assert crf(emissions, tags.int(), PATTERNS.to(dtype)) == crf(emissions, tags, PATTERNS)


def test_length_one():
    crf, (emissions, tags) = model(), draw(N=1)
    theta = emissions[:, 0] + crf.start_transitions + crf.end_transitions
    same("log-likelihood", crf(emissions, tags, None, "none"), theta.log_softmax(-1).gather(1, tags).squeeze(1))


LABELS = ["O", "B-PER", "I-PER"]


def test_constraints_forbid():
    rules = structmax.tag_constraints(LABELS)
    crf, (emissions, tags) = model(constraints=rules), draw()
    emissions[..., 2] += 5
    free = model()
    assert free.decode(emissions)[0][0] == 2
    assert list(crf.state_dict()) == list(free.state_dict())
    for path in (*crf.decode(emissions, PATTERNS), *crf.topk(emissions, 3).tags.flatten(0, 1).tolist()):
        assert all((before, after) != (0, 2) for before, after in itertools.pairwise([0, *path]))
    broken, fine = torch.tensor([[0, 2, 2, 2, 2]]), torch.tensor([[0, 1, 2, 2, 2]])
    assert crf(emissions[:1], broken) == -inf
    assert crf(emissions[:1], fine).isfinite()
    crf(emissions, torch.ones_like(tags), PATTERNS).backward()
    assert all(parameter.grad.isfinite().all() for parameter in crf.parameters())


def test_where_nothing_is_allowed():
    crf, (emissions, tags) = model(), draw()
    emissions[0, 1] = -inf
    emissions.requires_grad_()
    value = crf(emissions, tags, reduction="none")
    assert value[0] == -inf
    assert value[1:].isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(crf, value[1:].sum(), emissions))
    assert crf.decode(emissions)[0] == []
    assert (crf.topk(emissions, 2).log_probs[:, 0] == -inf).all()


def test_half_precision_emissions_meet_full_precision_parameters():
    crf, (emissions, tags) = model().float(), draw()
    half = emissions.bfloat16().requires_grad_()
    value = crf(half, tags, PATTERNS)
    assert value.dtype == torch.float32
    same("log-likelihood", value, crf(half.float(), tags, PATTERNS), 0.0)
    value.backward()
    assert half.grad.dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        same("under autocast", crf(half, tags, PATTERNS), value, 0.0)


@pytest.mark.parametrize("ignore_index", [None, -100])
def test_compiles_whole(ignore_index):
    crf, (emissions, tags) = model(ignore_index=ignore_index), draw()
    emissions.requires_grad_()
    compiled = torch.compile(crf, fullgraph=True, backend="aot_eager")
    value, want = compiled(emissions, tags, PATTERNS), crf(emissions, tags, PATTERNS)
    same("log-likelihood", value, want)
    for a, b in zip(gradients(crf, value, emissions), gradients(crf, want, emissions), strict=True):
        same("gradient", a, b)
    decoded = torch.compile(crf.argmax, fullgraph=True, backend="aot_eager")(emissions, PATTERNS)
    assert torch.equal(decoded, crf.argmax(emissions, PATTERNS))


class Tagger(torch.nn.Module):
    def __init__(self, crf):
        super().__init__()
        self.crf = crf

    def forward(self, emissions, mask):
        return self.crf.argmax(emissions, mask)


def test_exports_for_any_size():
    crf, (emissions, tags) = model(), draw()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("steps", min=3)}
    likelihood = torch.export.export(crf, (emissions, tags, PATTERNS), dynamic_shapes=(sizes,) * 3).module()
    tagger = torch.export.export(Tagger(crf), (emissions, PATTERNS), dynamic_shapes=(sizes,) * 2).module()
    more, others = draw(batch=3, N=7, seed=2)
    mask = torch.rand(3, 7) > 0.4
    same("log-likelihood", likelihood(more, others, mask), crf(more, others, mask))
    assert torch.equal(tagger(more, mask), crf.argmax(more, mask))


def test_travels_and_says_what_it_is():
    crf, (emissions, tags) = CRF(C, ignore_index=-100, constraints=structmax.tag_constraints(LABELS)), draw()
    assert repr(crf) == "CRF(num_tags=3, batch_first=False, ignore_index=-100, constrained)"
    for copied in (copy.deepcopy(crf), pickle.loads(pickle.dumps(crf))):
        assert torch.equal(copied(emissions.float(), tags), crf(emissions.float(), tags))
    assert all((parameter >= -0.1).all() and (parameter <= 0.1).all() for parameter in crf.parameters())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda crf, e, t: CRF(0), ValueError, "`num_tags` should be a whole number ≥ 1, but is 0"),
        (lambda crf, e, t: crf(e[..., :2], t), ValueError, r"shape \(…, N, C\) with C = 3 tags, but have \(6, 5, 2\)"),
        (lambda crf, e, t: CRF(4)(e, t), ValueError, r"shape \(N, …, C\) with C = 4 tags, but have \(6, 5, 3\)"),
        (lambda crf, e, t: crf(t, t), TypeError, "`emissions` should be floating point"),
        (lambda crf, e, t: crf(e, t[:2]), ValueError, r"`tags` should have the shape .* \(6, 5\), but has \(2, 5\)"),
        (lambda crf, e, t: crf(e, t.double()), TypeError, "`tags` should be an integer tensor, but is torch.float64"),
        (lambda crf, e, t: crf(e, t, PATTERNS[:1]), ValueError, r"`mask` should have the shape .* but has \(1, 5\)"),
        (
            lambda crf, e, t: crf(e, t, PATTERNS.double()),
            TypeError,
            "`mask` should be a bool tensor, True where",
        ),
        (lambda crf, e, t: crf(e, t, [True]), TypeError, "`mask` should be a bool tensor, .* but is a list"),
        (
            lambda crf, e, t: crf(e, t, reduction="max"),
            ValueError,
            "`reduction` should be one of 'none', 'sum'",
        ),
        (
            lambda crf, e, t: crf(e, t - 100),
            ValueError,
            r"To leave such steps out, try `mask=tags != -",
        ),
        (lambda crf, e, t: crf(e, t + 3), ValueError, r"between 0 and 2 at every step that is kept, but hold \d\.$"),
        (
            lambda crf, e, t: CRF(4, constraints=structmax.tag_constraints(LABELS)),
            ValueError,
            r"`constraints.pairwise` should have shape \(4, 4\) for 4 tags, but has \(3, 3\)",
        ),
        (
            lambda crf, e, t: CRF(3, constraints=LABELS),
            TypeError,
            r"`constraints` should be those of `structmax.tag_constraints`, .* Try structmax.tag_constraints\(labels\)",
        ),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call(model(), *draw())

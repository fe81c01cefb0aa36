"""Hidden Markov and semi-Markov models against sums over all their paths, and expectation maximisation by gradients."""

import itertools
import math

import pytest
import torch

import structmax
from structmax import hidden_markov, hidden_semi_markov
from structmax.testing import same

STATES, SYMBOLS, WIDEST = 3, 4, 3


def simplex(*shape, seed=0):
    """Log-probabilities, normalised over the last dimension."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).log_softmax(-1)


def model(seed=0):
    """Initial, transition, duration, and a table of emissions."""
    shapes = (STATES,), (STATES, STATES), (STATES, WIDEST), (STATES, SYMBOLS)
    return [simplex(*shape, seed=seed + k) for k, shape in enumerate(shapes)]


def observed(*shape, seed=0):
    return torch.randint(SYMBOLS, shape, generator=torch.Generator().manual_seed(seed))


def markov_paths(initial, transition, emission):
    """Every path of states and its log-probability with the observations."""
    for path in itertools.product(range(STATES), repeat=len(emission)):
        score = initial[path[0]] + sum(emission[n, c] for n, c in enumerate(path))
        yield path, score + sum(transition[i, j] for i, j in itertools.pairwise(path))


def segmentations(n):
    """Every list of (width, state) that fills n positions."""
    if n == 0:
        yield []
    for width, state in itertools.product(range(1, min(n, WIDEST) + 1), range(STATES)):
        for rest in segmentations(n - width):
            yield [(width, state), *rest]


def semi_markov_paths(initial, transition, duration, emission):
    """Every state of every position, the segments, and the log-probability of both with the observations."""
    for segments in segmentations(len(emission)):
        path = [state for width, state in segments for _ in range(width)]
        score = initial[path[0]] + sum(duration[state, width - 1] for width, state in segments)
        score = score + sum(emission[n, c] for n, c in enumerate(path))
        yield path, segments, score + sum(transition[i, j] for (_, i), (_, j) in itertools.pairwise(segments))


def test_markov_answers_are_sums_over_paths():
    initial, transition, _, table = model()
    lengths = torch.tensor([4, 1, 3])
    emission = table[:, observed(3, 4)].permute(1, 2, 0)
    p = hidden_markov(initial, transition, emission, lengths)
    assert isinstance(p, structmax.Distribution)
    for b, length in enumerate(lengths.tolist()):
        paths, scores = zip(*markov_paths(initial, transition, emission[b, :length]), strict=True)
        scores = torch.stack(scores)
        same("log-likelihood", p.log_partition[b], scores.logsumexp(0))
        weights = scores.softmax(0)
        places = torch.nn.functional.one_hot(torch.tensor(paths), STATES).double()
        same("posterior", p.mean.unary[b, :length], (weights[:, None, None] * places).sum(0))
        moves = torch.einsum("k,kni,knj->ij", weights, places[:, :-1], places[:, 1:])
        same("transitions", p.mean.pairwise[b], moves)
        same("entropy", p.entropy()[b], -(weights * weights.log()).sum())
        assert p.structure.decode(p.mode)[b, :length].tolist() == list(paths[int(scores.argmax())])
        assert (p.mean.unary[b, length:] == 0).all()


def test_semi_markov_answers_are_sums_over_segmentations():
    initial, transition, duration, table = model()
    lengths = torch.tensor([4, 1, 3])
    emission = table[:, observed(3, 4)].permute(1, 2, 0).clone().requires_grad_()
    p = hidden_semi_markov(initial, transition, duration, emission, lengths)
    (posterior,) = torch.autograd.grad(p.log_partition.sum(), emission)
    for b, length in enumerate(lengths.tolist()):
        given = initial, transition, duration, emission[b, :length].detach()
        paths, segments, scores = zip(*semi_markov_paths(*given), strict=True)
        scores = torch.stack(scores)
        same("log-likelihood", p.log_partition[b].detach(), scores.logsumexp(0))
        places = torch.nn.functional.one_hot(torch.tensor(paths), STATES).double()
        same("posterior of positions", posterior[b, :length], (scores.softmax(0)[:, None, None] * places).sum(0))
        assert (posterior[b, length:] == 0).all()
        found = [row[1:] for row in p.structure.decode(p.mode)[b].tolist() if row[0] >= 0]
        # two orders of the same segments of one state are equally good
        known = [[list(segment) for segment in each] for each in segments]
        same("the best", scores[known.index(found)], scores.max())


def test_a_segment_for_each_step_is_a_markov_model():
    initial, transition, _, table = model()
    emission = table[:, observed(2, 5)].permute(1, 2, 0)
    always_one = torch.zeros(STATES, 1, dtype=torch.float64)
    want = hidden_markov(initial, transition, emission).log_partition
    same("duration 1", hidden_semi_markov(initial, transition, always_one, emission).log_partition, want)
    # staying w − 1 times is a duration of w, whose weights leave out that the last state is left
    leave = transition.clone().fill_diagonal_(-torch.inf)
    lasting = transition.diagonal().unsqueeze(-1) * torch.arange(5)
    same("geometric", hidden_semi_markov(initial, leave, lasting, emission).log_partition, want)


def test_parameters_for_each_instance():
    batch = 2
    initial, transition, duration = simplex(batch, 3), simplex(batch, 3, 3), simplex(batch, 3, 2)
    emission = simplex(batch, 4, 3)
    by_position = transition.unsqueeze(1).expand(batch, 3, 3, 3)
    hmm, hsmm = (
        hidden_markov(initial, transition, emission),
        hidden_semi_markov(initial, transition, duration, emission),
    )
    same("by position", hidden_markov(initial, by_position, emission).log_partition, hmm.log_partition)
    for b in range(batch):
        given = initial[b], transition[b], emission[b]
        same("HMM", hmm.log_partition[b], hidden_markov(*given).log_partition)
        alone = hidden_semi_markov(initial[b], transition[b], duration[b], emission[b])
        same("HSMM", hsmm.log_partition[b], alone.log_partition)


def test_what_is_forbidden_has_no_probability_and_no_nan():
    initial, transition, duration, table = (t.clone() for t in model())
    initial[0] = transition[1, 1] = duration[2, 0] = table[0, 1] = -torch.inf
    parameters = [t.requires_grad_() for t in (initial, transition, duration, table)]
    seen = torch.tensor([[1, 0, 1, 2]])

    def emission():
        return table[:, seen].permute(1, 2, 0)

    for p in (
        hidden_markov(initial, transition, emission()),
        hidden_semi_markov(initial, transition, duration, emission()),
    ):
        assert p.log_partition.isfinite().all()
        used = torch.autograd.grad(p.log_partition.sum() + p.entropy().sum(), parameters, allow_unused=True)
        for forbidden, gradient in zip(parameters, used, strict=True):
            if gradient is not None:
                assert gradient.isfinite().all()
                assert (gradient[forbidden.isinf()] == 0).all()
    impossible = hidden_semi_markov(initial, transition, torch.full_like(duration, -torch.inf), emission())
    assert impossible.log_partition.item() == -math.inf
    assert not any(t.any() for t in impossible.mean)


def test_sums_of_emissions_forget_what_came_before():
    # A difference of running sums would lose the last digits, or be NaN.
    emission = torch.tensor([[-1e8, -torch.inf], [-torch.inf, -1.0], [-0.25, -3.0], [-0.5, -0.25]])
    initial, transition, duration = torch.zeros(2), torch.zeros(2, 2), torch.zeros(2, 2)
    segment = hidden_semi_markov(initial, transition, duration, emission).scores.segment
    assert segment[2, :, 0].tolist() == [-0.25, -0.75]
    assert segment[1, :, 1].tolist() == [-1.0, -4.0]


def test_second_derivatives():
    initial, transition, duration, table = (t.requires_grad_() for t in model())
    seen = observed(2, 3)

    def log_likelihood(initial, transition, duration, table):
        emission = table[:, seen].permute(1, 2, 0)
        return hidden_semi_markov(initial, transition, duration, emission, torch.tensor([3, 2])).log_partition

    given = initial, transition, duration, table
    assert torch.autograd.gradcheck(log_likelihood, given)
    assert torch.autograd.gradgradcheck(log_likelihood, given)


@pytest.mark.parametrize("semi", [False, True])
def test_normalised_gradients_never_make_the_observations_less_likely(semi):
    initial, transition, duration, table = model(seed=5)
    parameters = [initial, transition, *([duration] if semi else []), table]
    seen, lengths = observed(4, 6), torch.tensor([6, 5, 2, 6])
    likelihoods = []
    for _ in range(8):
        parameters = [t.detach().requires_grad_() for t in parameters]
        *rest, table = parameters
        emission = table[:, seen].permute(1, 2, 0)
        likelihood = (hidden_semi_markov if semi else hidden_markov)(*rest, emission, lengths).log_partition.sum()
        counts = torch.autograd.grad(likelihood, parameters)
        likelihoods.append(likelihood.item())
        # all but the durations of segments: as many starts as instances, as many emissions as observations
        same("starts", counts[0].sum(), torch.tensor(4.0).double())
        same("emissions", counts[-1].sum(), lengths.sum().double())
        parameters = [(count / count.sum(-1, keepdim=True)).log() for count in counts]
    assert all(later > before for before, later in itertools.pairwise(likelihoods))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"emission": torch.zeros(3)}, ValueError, r"`emission` should have shape \(…, N, C\).*but has \(3,\)"),
        ({"emission": torch.zeros(4, 3).long()}, TypeError, r"`emission` should be floating point"),
        ({"initial": torch.zeros(2)}, ValueError, r"`initial` should have shape \(3,\) to match `emission` \(4, 3\)"),
        ({"initial": [0.0, 0.0, 0.0]}, TypeError, r"`initial` should be a torch tensor"),
        ({"transition": torch.zeros(2, 2)}, ValueError, r"shape \(3, 3\) or \(3, 3, 3\) to match `emission`"),
        ({"transition": torch.zeros(3, 3).double()}, TypeError, r"dtype of `emission`, torch.float32"),
        ({"duration": torch.zeros(2, 2)}, ValueError, r"`duration` should have shape \(3, 2\) to match"),
        ({"duration": torch.zeros(3)}, ValueError, r"`duration` should have shape \(3, 1\) to match"),
        ({"duration": torch.zeros(3, 0)}, ValueError, r"`duration` should have at least one width, but.*\(3, 0\)"),
        ({"lengths": torch.tensor(5)}, ValueError, r"between 0 and 4, the number of positions"),
    ],
)
def test_messages(change, error, message):
    given = {
        "initial": torch.zeros(3),
        "transition": torch.zeros(3, 3),
        "duration": torch.zeros(3, 2),
        "emission": torch.zeros(4, 3),
    } | change
    with pytest.raises(error, match=message):
        hidden_semi_markov(**given)
    del given["duration"]
    if "duration" not in change:
        with pytest.raises(error, match=message):
            hidden_markov(**given)

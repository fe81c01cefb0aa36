"""The compiled engine for ordered hypergraphs against explicit derivations of small random ones."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from cases import CASES
from hypergraph_cases import Case
from scipy import stats

import structmax
from structmax import rooms
from structmax.problem import Problem
from structmax.recursion import kernel_numba as engine
from structmax.recursion import reference, reference_noisy, reference_walks
from structmax.recursion.edges import Hyperedges

# between them: one to three tails, 1 to 120 members, members that use a part six times, instances without a member
SEEDS = (0, 1, 2, 4, 6, 9, 16, 18, 22, 27, 31, 33)
WALKS = [(1.0, 1.0), (1.0, 0.3), (1.5, 1.0), (2.0, 0.7), (1.3, 2.0), (1.8, 0.5), (2.5, 1.0), (4.0, 2.0), (0.5, 1.0)]


def close(found, wanted, tolerance=1e-12):
    torch.testing.assert_close(
        found.double(), torch.as_tensor(wanted, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


def tolerance_of(dtype):
    return 1e-12 if dtype == torch.float64 else 3e-6


def expected_parts(case, b, q):
    parts, _ = case.table(b)
    p = torch.tensor([float(np.prod([q[e] for _, e in d])) for d in case.members[b]], dtype=torch.float64)
    return (p[:, None] * parts).sum(0)


@pytest.fixture(params=SEEDS)
def case(request):
    return Case(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", SEEDS)
def test_log_partition_and_marginals(seed, dtype):
    case = Case(seed, dtype)
    value, marginals = engine.log_partition_and_marginals(case.x, **case.graph)
    assert value.dtype == marginals.dtype == dtype
    assert torch.equal(value, engine.log_partition(case.x, **case.graph))
    for b in range(len(case.x)):
        parts, scores = case.table(b)
        p = scores.softmax(0) if scores.max() > -math.inf else torch.zeros_like(scores)
        close(value[b], scores.logsumexp(0), tolerance_of(dtype))
        close(marginals[b], p @ parts, tolerance_of(dtype))


def test_marginals_jvp_is_the_covariance(case):
    tangent = torch.randn(case.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jvp = engine.marginals_jvp(case.x, torch.where(case.x == -math.inf, math.nan, tangent), **case.graph)
    for b in range(len(case.x)):
        parts, scores = case.table(b)
        p = scores.softmax(0) if scores.max() > -math.inf else torch.zeros_like(scores)
        centred = parts - p @ parts
        close(jvp[b], (p * (centred @ tangent[b])) @ centred)


def test_argmax_takes_the_first_of_equal_edges(case):
    parts = engine.argmax(case.x, **case.graph)
    best = engine.topk(case.x, k=1, **case.graph)
    assert torch.equal(parts, best[1][:, 0])
    for b in range(len(case.x)):
        table, scores = case.table(b)
        # derivations are listed in the order of edges
        close(parts[b], table[scores.argmax()] if scores.max() > -math.inf else torch.zeros(case.size))


@pytest.mark.parametrize("k", [1, 4, 200])
def test_topk_lists_the_best(case, k):
    values, parts = engine.topk(case.x, k=k, **case.graph)
    for b in range(len(case.x)):
        table, scores = case.table(b)
        found = scores > -math.inf
        table, scores = table[found], scores[found]
        order = scores.argsort(descending=True, stable=True)[:k]
        close(values[b, : len(order)], scores[order])
        assert bool((values[b, len(order) :] == -math.inf).all())
        assert not parts[b, len(order) :].any()
        x = torch.where(case.x[b] > -math.inf, case.x[b], 0.0)
        close(parts[b, : len(order)] @ x, scores[order])
        wanted = Counter(tuple(row) for row in table.tolist())
        assert not Counter(tuple(row) for row in parts[b, : len(order)].tolist()) - wanted


def test_max_marginals(case):
    best = engine.max_marginals(case.x, **case.graph)
    for b in range(len(case.x)):
        parts, scores = case.table(b)
        close(best[b], torch.where(parts > 0, scores[:, None], -math.inf).amax(0))


@pytest.mark.parametrize(("alpha", "gamma"), WALKS)
def test_smoothed_values_and_marginals(case, alpha, gamma):
    value = engine.smoothed(case.x, alpha=alpha, gamma=gamma, **case.graph)
    marginals = engine.smoothed_and_marginals(case.x, alpha=alpha, gamma=gamma, **case.graph)[1]
    for b in range(len(case.x)):
        wanted, q = case.walk(b, alpha, gamma)
        close(value[b], wanted)
        close(marginals[b], expected_parts(case, b, q) if wanted > -math.inf else torch.zeros(case.size))


@pytest.mark.parametrize(("alpha", "gamma"), WALKS)
def test_smoothed_log_prob(case, alpha, gamma):
    for b in range(len(case.x)):
        parts, _ = case.table(b)
        value, q = case.walk(b, alpha, gamma)
        repeated = Counter(tuple(row) for row in parts.tolist())
        for y, derivation in zip(parts, case.members[b], strict=True):
            if repeated[tuple(y.tolist())] > 1:
                continue
            x, graph = case.x[b : b + 1], case.graph | {"goal": case.goal[b : b + 1]}
            p = np.prod([q[e] for _, e in derivation])
            found = engine.smoothed_log_prob(x, y[None], alpha=alpha, gamma=gamma, **graph)
            close(found[0], float(np.log(p)) if value > -math.inf and p > 0 else -math.inf)
            # a part more or less is no member
            for part in range(case.size):
                other = y.clone()
                other[part] = 1 - other[part].clamp_max(1)
                if tuple(other.tolist()) not in repeated:
                    assert engine.smoothed_log_prob(x, other[None], alpha=alpha, gamma=gamma, **graph) == -math.inf


@pytest.mark.parametrize("k", [1, 4, 200])
@pytest.mark.parametrize(("alpha", "gamma"), WALKS)
def test_smoothed_topk_lists_the_most_probable(case, alpha, gamma, k):
    log_probs, parts = engine.smoothed_topk(case.x, k=k, alpha=alpha, gamma=gamma, **case.graph)
    for b in range(len(case.x)):
        table, _ = case.table(b)
        value, q = case.walk(b, alpha, gamma)
        listed = [float(np.prod([q[e] for _, e in d])) if value > -math.inf else 0.0 for d in case.members[b]]
        p = torch.tensor(listed, dtype=torch.float64)
        best = p[p > 0].sort(descending=True).values[:k]
        close(log_probs[b, : len(best)], best.log())
        assert bool((log_probs[b, len(best) :] == -math.inf).all())
        assert not parts[b, len(best) :].any()
        # as often as derivations with these parts and this probability, and no more often
        for row, log_prob in zip(parts[b, : len(best)], log_probs[b], strict=False):
            alike = (table == row).all(1)
            assert bool(((p[alike].log() - log_prob).abs() < 1e-9).any())
            assert int((parts[b, : len(best)] == row).all(1).sum()) <= int(alike.sum())


@pytest.mark.parametrize(("alpha", "gamma"), WALKS)
def test_smoothed_derivatives(alpha, gamma):
    """Central differences, away from the kinks where an edge enters the support."""
    for seed in (1, 4, 10, 14, 18):
        case = Case(seed)
        fields = {"alpha": alpha, "gamma": gamma} | case.graph
        tangent = torch.randn(case.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        step = 3e-7
        moved = [case.x + sign * step * tangent for sign in (1, -1)]
        marginals = engine.smoothed_and_marginals(case.x, **fields)[1]
        values = [engine.smoothed(x, **fields) for x in moved]
        feasible = values[0] > -math.inf
        slope = torch.where(feasible, (values[0] - values[1]) / (2 * step), 0.0)
        close(slope, (marginals * tangent).sum(1), 1e-7)
        jvp = engine.smoothed_marginals_jvp(case.x, tangent, **fields)
        change = [engine.smoothed_and_marginals(x, **fields)[1] for x in moved]
        close(jvp, (change[0] - change[1]) / (2 * step), 2e-6)
        noise = torch.rand(len(case.x), 1, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        y = engine.smoothed_sample(case.x, noise, **fields)[:, 0]
        weight = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        gradient = engine.smoothed_log_prob_pullback(case.x, y, weight, **fields)
        logs = [engine.smoothed_log_prob(x, y, **fields) for x in moved]
        slope = torch.where(logs[0] > -math.inf, (logs[0] - logs[1]) / (2 * step), 0.0) * weight
        close((gradient * tangent).sum(1), slope, 2e-6)


def test_given(case):
    rng = np.random.default_rng(len(case.members[0]))
    required = torch.zeros_like(case.x)
    for b in range(len(case.x)):
        parts, _ = case.table(b)
        once = parts.amax(0) == 1
        wanted = (parts[rng.integers(len(parts))] > 0) & once & torch.from_numpy(rng.random(case.size) < 0.5)
        required[b, wanted] = 1
    tangent = torch.randn(case.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value, marginals = engine.given_log_partition_and_marginals(case.x, required, **case.graph)
    assert torch.equal(value, engine.given_log_partition(case.x, required, **case.graph))
    jvp = engine.given_marginals_jvp(case.x, required, tangent, **case.graph)
    for b in range(len(case.x)):
        parts, scores = case.table(b)
        scores = torch.where(((parts > 0) >= (required[b] > 0)).all(1), scores, -math.inf)
        p = scores.softmax(0) if scores.max() > -math.inf else torch.zeros_like(scores)
        close(value[b], scores.logsumexp(0))
        close(marginals[b], p @ parts)
        centred = parts - p @ parts
        close(jvp[b], (p * (centred @ tangent[b])) @ centred)


def noise_of(case, draws, seed=0):
    longest = max(len(d) for members in case.members for d in members)
    shape = (len(case.x), draws, longest)
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, 1.0), (1.5, 1.0), (2.0, 0.7)])
def test_samples_follow_the_noise_rule(case, alpha, gamma):
    first = case.edges.first.tolist()
    noise = noise_of(case, 20)
    drawn = engine.smoothed_sample(case.x, noise, alpha=alpha, gamma=gamma, **case.graph)
    if alpha == 1:
        assert torch.equal(drawn, engine.sample(case.x, noise, **case.graph))
    for b in range(len(case.x)):
        value, q = case.walk(b, alpha, gamma)
        for s in range(20):
            uniform = iter(noise[b, s].tolist())
            left = [int(case.goal[b])] if value > -math.inf else []
            derivation = []
            while left:
                v = left.pop()
                edges = list(range(first[v], first[v + 1]))
                u = next(uniform) if len(edges) > 1 else 0.0
                e = next(e for e, mass in zip(edges, np.cumsum(q[edges]), strict=True) if mass > u and q[e] > 0)
                derivation.append((v, e))
                left += [t for t in case.edges.tails[e].tolist()[::-1] if t >= 0]
            assert torch.equal(drawn[b, s], case.counts(derivation))


def test_samples_without_replacement_are_all_members_once(case):
    noise = noise_of(case, 160)
    parts, log_prob = engine.sample_without_replacement(case.x, noise, **case.graph)
    for b in range(len(case.x)):
        table, scores = case.table(b)
        found = scores > -math.inf
        n = int(found.sum())
        wanted = Counter(tuple(row) for row in table[found].tolist())
        assert Counter(tuple(row) for row in parts[b, :n].tolist()) == wanted
        assert not parts[b, n:].any()
        assert bool((log_prob[b, n:] == -math.inf).all())
        x = torch.where(case.x[b] > -math.inf, case.x[b], 0.0)
        close(log_prob[b, :n], parts[b, :n] @ x - scores.logsumexp(0))


def test_samples_without_replacement_have_the_right_order():
    """The first two draws: p₁ · p₂ / (1 − p₁), seeded χ²."""
    case = Case(18)
    draws = 20000
    parts, scores = case.table(0)
    index = {tuple(row): i for i, row in enumerate(parts.tolist())}
    assert len(index) == len(parts)
    p = scores.softmax(0).numpy()
    longest = max(map(len, case.members[0]))
    noise = torch.rand(draws, 2, longest, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    graph = case.graph | {"goal": case.goal[:1].expand(draws).contiguous()}
    drawn, _ = engine.sample_without_replacement(case.x[:1].expand(draws, -1).contiguous(), noise, **graph)
    pairs = Counter((index[tuple(a)], index[tuple(b)]) for a, b in drawn.tolist())
    likely = {(i, j): draws * p[i] * p[j] / (1 - p[i]) for i in range(len(p)) for j in range(len(p)) if i != j}
    assert set(pairs) <= set(likely)
    common = [pair for pair, n in likely.items() if n >= 5]
    rest = draws - sum(likely[pair] for pair in common)
    observed = [pairs[pair] for pair in common] + [draws - sum(pairs[pair] for pair in common)]
    assert stats.chisquare(observed, [likely[pair] for pair in common] + [rest]).pvalue > 1e-3


def test_extreme_scores_lose_no_member():
    """Probabilities far below the smallest number are still drawn, in order, and have a log-probability."""
    edges = Hyperedges.of(torch.tensor([0, 0, 0]), torch.full((3, 1), -1), torch.tensor([[0], [1], [2]]), 1)
    graph = {"goal": torch.zeros(1, dtype=torch.int64), **edges._asdict()}
    x = torch.tensor([[0.0, 3000.0, -3000.0]], dtype=torch.float64)
    parts, log_prob = engine.sample_without_replacement(x, torch.full((1, 4, 1), 0.5, dtype=torch.float64), **graph)
    assert parts[0].argmax(-1).tolist()[:3] == [1, 0, 2]
    close(log_prob, [[0.0, -3000.0, -6000.0, -math.inf]])
    log_prob, parts = engine.smoothed_topk(x, k=4, alpha=1.0, gamma=1.0, **graph)
    assert parts[0].argmax(-1).tolist()[:3] == [1, 0, 2]
    close(log_prob, [[0.0, -3000.0, -6000.0, -math.inf]])
    for y, wanted in zip(torch.eye(3, dtype=torch.float64), (-3000.0, 0.0, -6000.0), strict=True):
        close(engine.smoothed_log_prob(x, y[None], alpha=1.0, gamma=1.0, **graph), [wanted])
        one = torch.ones(1, dtype=torch.float64)
        gradient = engine.smoothed_log_prob_pullback(x, y[None], one, alpha=1.0, gamma=1.0, **graph)
        close(gradient, y[None] - torch.eye(3, dtype=torch.float64)[1])


QUESTIONS = {
    "log_partition": {},
    "log_partition_and_marginals": {},
    "marginals_jvp": {"tangent": ()},
    "argmax": {},
    "topk": {"k": 3},
    "max_marginals": {},
    "sample": {"noise": (2, 30)},
    "sample_without_replacement": {"noise": (2, 30)},
    "smoothed": {"alpha": 1.5, "gamma": 1.0},
    "smoothed_and_marginals": {"alpha": 1.5, "gamma": 1.0},
    "smoothed_marginals_jvp": {"tangent": (), "alpha": 1.5, "gamma": 1.0},
    "smoothed_sample": {"noise": (2, 30), "alpha": 1.5, "gamma": 1.0},
    "smoothed_topk": {"k": 3, "alpha": 1.5, "gamma": 1.0},
    "smoothed_log_prob": {"y": (), "alpha": 1.5, "gamma": 1.0},
    "smoothed_log_prob_pullback": {"y": (), "d_value": 0, "alpha": 1.5, "gamma": 1.0},
    "noisy_walk": {"gumbel": (), "gamma": 0.7},
    "noisy_walk_pullback": {"d_parts": (), "gumbel": (), "gamma": 0.7},
    "given_log_partition": {"required": ()},
    "given_log_partition_and_marginals": {"required": ()},
    "given_marginals_jvp": {"required": (), "tangent": ()},
}


def ask(name, x, graph, module=engine):
    """Any question, with tensors of the right shape where it wants some."""
    generator = torch.Generator().manual_seed(0)
    fields = {}
    for field, shape in QUESTIONS[name].items():
        if field == "noise":
            fields[field] = torch.rand(len(x), *shape, dtype=x.dtype, generator=generator)
        elif field == "gumbel":
            fields[field] = torch.randn(len(x), len(graph["tails"]), dtype=x.dtype, generator=generator)
        elif field in ("tangent", "d_parts"):
            fields[field] = torch.randn(x.shape, dtype=x.dtype, generator=generator)
        elif field == "y":
            fields[field] = engine.argmax(x.nan_to_num(posinf=0.0, neginf=-math.inf), **graph)
        elif field in ("required", "d_value"):
            fields[field] = torch.zeros_like(x) if field == "required" else torch.ones(len(x), dtype=x.dtype)
        else:
            fields[field] = shape
    answer = getattr(module, name)(x, **fields, **graph)
    return answer if isinstance(answer, tuple) else (answer,)


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_broken_scores_stay_in_their_instance(name, broken):
    case = Case(18)
    clean = ask(name, case.x, case.graph)
    # the last node is no tail: its parts are padding for the instance with an earlier goal
    own = case.edges.parts[case.edges.first[-2] :, 1].long()
    x = case.x.clone()
    x[1, own] = broken
    assert all(torch.equal(found, wanted) for found, wanted in zip(ask(name, x, case.graph), clean, strict=True))
    x = case.x.clone()
    x[0, own[0]] = broken
    for found, wanted in zip(ask(name, x, case.graph), clean, strict=True):
        assert bool(found[0].isnan().all())
        assert torch.equal(found[1:], wanted[1:])


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("seed", [4, 10, 14, 20])
def test_agrees_with_torch(name, seed):
    case = Case(seed)
    twin = reference_walks if "sample" in name else reference_noisy if "noisy" in name else reference
    for found, wanted in zip(ask(name, case.x, case.graph), ask(name, case.x, case.graph, twin), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_instances(name):
    case = Case(0)
    for found in ask(name, case.x[:0], case.graph | {"goal": case.goal[:0]}):
        assert len(found) == 0


@pytest.mark.parametrize("name", ["sample", "sample_without_replacement"])
def test_too_little_noise_is_refused(name):
    case = Case(18)
    with pytest.raises(ValueError, match="a number for each decision"):
        getattr(engine, name)(case.x, torch.zeros(len(case.x), 1, 1, dtype=torch.float64), **case.graph)


def test_log_probabilities_beyond_the_dtype():
    """A draw without replacement may end with a member of probability exp(−6e38): −inf in float32."""
    tails, parts = torch.tensor([[-1], [-1], [0], [0]]), torch.tensor([[0], [1], [2], [3]])
    edges = Hyperedges.of(torch.tensor([0, 0, 1, 1]), tails, parts, 2)
    x, noise = torch.tensor([[-3e38, 0.0, -3e38, 0.0]]), torch.zeros(1, 4, 2)
    for module in (reference_walks, engine):
        logs = module.sample_without_replacement(x, goal=torch.tensor([1]), noise=noise, **edges._asdict())[1]
        torch.testing.assert_close(logs, torch.tensor([[0.0, -3e38, -3e38, -math.inf]]))


def listed(case):
    """The module that lists the edges of a structure, if these depend on sizes alone."""
    room = rooms.holder(case.structure.room, "reference")
    # it asks whether some instance has more items than places
    of_values = getattr(room, "EDGES_OF_VALUES", False) or isinstance(case.structure, structmax.SmallMatching)
    return room if hasattr(room, "recursion") and not of_values else None


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items() if listed(case)])
def test_goals_are_found_where_the_scores_are(case):
    """Values on a GPU are not waited for: nothing can be read of a tensor on "meta"."""
    problem = Problem.of(case.parts(case.scores()), case.structure)
    scores, fields = [t.to("meta") for t in problem.scores], {k: t.to("meta") for k, t in problem.fields.items()}
    assert listed(case).recursion(*scores, **fields, **problem.shared).goal.device.type == "meta"

"""Recipes with discrete latent variables: every estimator trains, and the unbiased ones have the right gradient."""

import functools
import gzip
import math
import struct
import sys
from signal import SIGINT, raise_signal
from typing import get_args

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence
from torch.nn import functional

import structmax
from structmax.plots import structures
from structmax.recipes import bits, signal, ssvae
from structmax.recipes.data import images
from structmax.recipes.models import latent
from structmax.training import DataError, Interrupted, RunError, RunFolder, Watcher, run

CPU = torch.device("cpu")
TINY = {
    ssvae: {"hidden": 6, "size": 2, "labelled": 40, "warm_start": 1, "valid_size": 1300},
    bits: {"bits": 3, "hidden": 6, "features": 2, "valid_size": 1300, "importance_samples": 4},
    signal: {"symbols": 5, "game_size": 4, "hidden": 6, "embedding": 3, "valid_size": 1300},
}
RECIPES = [pytest.param(recipe, id=recipe.__name__.rpartition(".")[-1]) for recipe in TINY]
UNBIASED = [
    "score_function",
    "running_mean",
    "self_critical",
    "nvil",
    "leave_one_out",
    "sum_and_sample",
    "rebar",
]


def made(recipe, estimator, **settings):
    """The task of a tiny model, the same for all estimators; None where the estimator is refused."""
    given = TINY[recipe] | settings
    if estimator in recipe.Config.refused:
        with pytest.raises(ValueError, match=f"cannot be {estimator} here: .* try "):
            recipe.Config(estimator=estimator, **given)
        return None
    torch.manual_seed(0)
    return recipe.Recipe(recipe.Config(estimator=estimator, **given), CPU)


@pytest.mark.parametrize("estimator", get_args(latent.Name))
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_estimator_trains(recipe, estimator, monkeypatch):
    monkeypatch.setattr(signal, "GAMES", {"valid": 50, "test": 60})
    task = made(recipe, estimator)
    if task is None:
        return
    optimiser, generator = task.optimiser(), torch.Generator().manual_seed(0)
    touched = set()
    for indices in [*task.batches(0)[:1], *task.batches(1)[:2]]:
        ((loss, metrics),) = task.updates(indices, generator)
        assert loss.isfinite()
        optimiser.zero_grad()
        loss.backward()
        touched |= {name for name, p in task.model.named_parameters() if p.grad is not None and p.grad.any()}
        optimiser.step()
    assert touched == {name for name, _ in task.model.named_parameters()}
    expected = {"self_critical": 2, "leave_one_out": 2, "sum_and_sample": 2, "vimco": 2, "rebar": 3}
    if estimator in latent.SPARSE:
        assert 1 <= metrics["calls"] <= 33
    elif estimator != "dense":
        assert metrics["calls"] == expected.get(estimator, 1)
    task.model.eval()
    with torch.no_grad():
        before = task.state()
        evaluated = [task.evaluate(split) for split in ("valid", "test")]
        drawn = task.drawings()
    for found in evaluated:
        assert all(map(math.isfinite, found.values()))
        assert task.best in found
        # of the estimator as it trains, though draws are single ones here
        assert found["calls"] == metrics["calls"] or estimator in latent.SUMMED
    # an evaluation is no step
    assert task.state() == before
    assert all("<image" in structures.svg(drawing) for drawing in drawn)


@pytest.mark.parametrize("recipe", RECIPES)
def test_half_precision(recipe, monkeypatch):
    monkeypatch.setattr(signal, "GAMES", {"test": 50})
    task = made(recipe, "topk_sparsemax", bf16=True)
    generator = torch.Generator().manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        ((loss, _),) = task.updates(task.batches(1)[0], generator)
        loss.backward()
        with torch.no_grad():
            found = task.evaluate("test")
    assert all(map(math.isfinite, found.values()))


@functools.cache
def slopes(recipe, estimator):
    """Gradients of the encoder's last layer and of all others, from several independent batches: (batches, P) both."""
    task = made(recipe, estimator)
    is_drawn = recipe is ssvae or estimator != "dense"
    named = dict(task.model.named_parameters())
    with torch.no_grad():
        # what is drawn should matter, and no structure should be so rare that none of the draws has it
        for name, p in named.items():
            p.mul_(1 if name.startswith("scores") else 3)
    names = [name for name in named if not name.startswith("latent")]
    last = [name for name in names if name.startswith("scores")][-2:]
    # a few images, many times
    copies = 1 if not is_drawn else 15 if recipe is bits else 60
    rows, generator = torch.arange(len(task.train))[-20:].repeat(copies), torch.Generator().manual_seed(3)
    drawn = []
    for _ in range(40 if is_drawn else 2):
        cost = task.cost(*given(task, rows), generator)[0].mean()
        found = torch.autograd.grad(cost, [named[name] for name in names])
        drawn.append({name: slope.flatten() for name, slope in zip(names, found, strict=True)})
    return [
        torch.stack([torch.cat([draw[name] for name in chosen]) for draw in drawn])
        for chosen in (last, [name for name in names if name not in last])
    ]


def given(task, rows):
    """The same images each time, as `cost` takes them."""
    if isinstance(task, signal.Recipe):
        return (task.train.shades((rows.unsqueeze(-1) + torch.arange(4)) % len(task.train)),)
    return (task.train.at(rows) if isinstance(task, bits.Recipe) else (task.train.shades(rows) > 0.5).float(),)


@pytest.mark.parametrize("estimator", UNBIASED)
@pytest.mark.parametrize("recipe", RECIPES)
def test_unbiased_gradients_are_those_of_the_sum(recipe, estimator):
    """On the recipe's own model, averaged over draws, within 5 standard errors."""
    for exact, drawn in zip(slopes(recipe, "dense"), slopes(recipe, estimator), strict=True):
        # each component, and the length along the right gradient
        unit = exact.mean(0) / exact.mean(0).norm()
        exact, drawn = (torch.cat([each, (each @ unit).unsqueeze(-1)], -1) for each in (exact, drawn))
        off = (exact.mean(0) - drawn.mean(0)).abs()
        # ssvae draws h with every estimator
        error = (exact.var(0) / len(exact) + drawn.var(0) / len(drawn)).sqrt()
        assert (off <= 5 * error + 1e-5 * exact.abs().max()).all()
        # a gradient of 0 would not pass
        assert exact[:, -1].mean() > 6 * error[-1]


@pytest.mark.parametrize("estimator", ["dense", "vimco"])
def test_the_bound_of_an_image_with_a_class(estimator):
    """Against torch's distributions; VIMCO needs the weight of the draw of h itself."""
    task = made(ssvae, estimator)
    model, x = task.model, (task.train.shades(slice(4)) > 0.5).float()
    y, index = functional.one_hot(torch.tensor([3, 0, 9]), 10).float(), torch.tensor([2, 0, 2])
    found = model.log_joint(x, torch.Generator().manual_seed(0))(y, index)
    mean, log_scale = model.read(model.read_image(x[index]) + model.read_class(y)).chunk(2, -1)
    q, p = Normal(mean, log_scale.exp()), Normal(torch.zeros_like(mean), 1.0)
    h = mean + log_scale.exp() * torch.randn(mean.shape, generator=torch.Generator().manual_seed(0))
    apart = kl_divergence(q, p) if estimator == "dense" else q.log_prob(h) - p.log_prob(h)
    pixels = Bernoulli(logits=model.write(torch.cat([h, y], -1))).log_prob(x[index])
    classes = Categorical(logits=torch.zeros(10)).log_prob(y.argmax(-1))
    torch.testing.assert_close(found, pixels.sum(-1) - apart.sum(-1) + classes)


def test_the_bound_of_an_image_by_all_codes():
    task = made(bits, "dense")
    data, generator = task.train.at(slice(2)), torch.Generator()
    every, model = structmax.Bits().enumerate(torch.zeros(3)), task.model
    log_q = Bernoulli(logits=model.scores(data.shades()).unsqueeze(1)).log_prob(every).sum(-1)
    levels = Categorical(logits=model.level(model.features(every))).log_prob(data.pixels.long().unsqueeze(1)).sum(-1)
    bound = (log_q.exp() * (levels + math.log(1 / 8) - log_q)).sum(-1)
    torch.testing.assert_close(task.cost(data, generator)[0], -bound, rtol=1e-5, atol=1e-4)


def test_levels_begin_with_their_frequencies_and_neighbours_alike():
    task = made(bits, "gumbel")
    level, data = task.model.level, task.train
    # one more of each, so that none is impossible
    counts = torch.bincount(data.pixels.flatten(), minlength=data.levels) + 1
    torch.testing.assert_close(level(torch.zeros(2)).softmax(-1), counts / counts.sum())
    apart = torch.cdist(level.weight, level.weight)
    assert apart.diagonal(1).max() < apart.diagonal(4).min()


@pytest.mark.parametrize("entropy", [0.0, 0.1, 1.0])
def test_what_two_agents_minimise(entropy):
    task = made(signal, "dense", entropy=entropy)
    (games,) = given(task, torch.arange(6))
    q = Categorical(logits=task.model.scores(games[:, 0]))
    every = torch.eye(5).repeat(6, 1)
    heard = task.model.log_probs(task.model.see(games), every, torch.arange(6).repeat_interleave(5))[:, 0].view(6, 5)
    wanted = -(q.probs * heard).sum(-1) - entropy * q.entropy()
    torch.testing.assert_close(task.cost(games, torch.Generator())[0], wanted)


@pytest.mark.parametrize("weight", [1.0, 0.15])
def test_vimco_has_the_gradient_of_its_own_bound(weight):
    """Of the mean over all pairs of draws of log ½ Σ p(x, y) / q(y)ʷ."""
    task = made(bits, "vimco", bits=2)
    data, model, count = task.train.at(slice(1)), task.model, 4000
    y, log_joint = structmax.Bits().enumerate(torch.zeros(2)), model.log_joint(data.pixels.long())
    scores = model.scores(data.shades()).detach().requires_grad_()
    log_q = (y * scores - functional.softplus(scores)).sum(-1)
    log_weight = log_joint(y, torch.zeros(4, dtype=torch.long)) - weight * log_q
    pairs = torch.logaddexp(log_weight.unsqueeze(0), log_weight.unsqueeze(1)) - math.log(2)
    exact = -(log_q.exp().outer(log_q.exp()) * pairs).sum()
    (right,) = torch.autograd.grad(exact, scores)
    many = scores.detach().expand(count, -1).clone().requires_grad_()
    pixels = data.shades().expand(count, -1)
    joint = model.log_joint(data.pixels.long().expand(count, -1))
    cost, calls = model.latent(joint, many, pixels, torch.Generator().manual_seed(0), weight)
    (found,) = torch.autograd.grad(cost.sum(), many)
    assert calls == 2
    for each, wanted in ((cost.detach(), exact), (found, right.squeeze(0))):
        assert ((each.mean(0) - wanted).abs() < 5 * each.std(0) / math.sqrt(count)).all()
    assert (right.abs() > 5 * found.std(0) / math.sqrt(count)).any()


@pytest.mark.parametrize("estimator", ["dense", "score_function", "topk_sparsemax", "sparsemap", "sparsemap_budget"])
def test_importance_samples_have_the_mean_of_the_likelihood(estimator, monkeypatch):
    """With the sum over the support, where q is sparse, and in several chunks."""
    # no support is all there is, nor do samples matter little
    task = made(bits, estimator, k=3 if estimator == "topk_sparsemax" else 0)
    data, count = task.train.at(slice(3)), 500
    x, shades, model = data.pixels.long(), data.shades(), task.model.eval()
    every = structmax.Bits().enumerate(torch.zeros(3))
    index = torch.arange(3).repeat_interleave(8)
    monkeypatch.setattr(bits, "AT_ONCE", 2 * count * x.numel() * model.level.in_features)
    with torch.no_grad():
        exact = model.log_joint(x)(every.repeat(3, 1), index).view(3, 8).logsumexp(-1)
        generator = torch.Generator().manual_seed(0)
        found = model.log_likelihood(x.repeat(count, 1), shades.repeat(count, 1), 5, generator).view(count, 3)
    ratio = (found - exact).exp()
    if estimator == "dense":
        torch.testing.assert_close(ratio, torch.ones(count, 3), atol=1e-4, rtol=1e-4)
        return
    assert (ratio.std(0) > 0.01).any()
    assert ((ratio.mean(0) - 1).abs() < 5 * ratio.std(0) / math.sqrt(count) + 1e-4).all()
    # a lower bound on average
    assert ((found - exact).mean(0) < 0).any()


def test_messages_are_answered_in_their_own_games():
    model = made(signal, "dense").model
    seen, y, index = torch.randn(3, 4, 3), torch.randn(6, 5), torch.tensor([2, 0, 2, 2, 0, 2])
    wanted = torch.stack([seen[game] @ model.hear(message) for game, message in zip(index, y, strict=True)])
    torch.testing.assert_close(model.log_probs(seen, y, index), wanted.log_softmax(-1))


def test_games_have_the_right_image_once():
    task = made(signal, "dense", game_size=300)
    data = task.train.at(slice(5))
    games = task.games(data, torch.arange(5), torch.Generator().manual_seed(0))
    alike = (games == data.shades().unsqueeze(1)).all(-1)
    assert alike.sum(-1).tolist() == [1] * 5
    assert alike[:, 0].all()


def test_a_receiver_that_hears_nothing_wins_no_game(monkeypatch):
    task = made(signal, "dense")
    monkeypatch.setattr(signal, "GAMES", {"valid": 50})
    with torch.no_grad():
        assert 0 < task.evaluate("valid")["success"] < 1
        task.model.hear.weight.zero_()
        assert task.evaluate("valid")["success"] == 0


def test_a_game_needs_several_images(tmp_path):
    given = {name: path for name, path in files(tmp_path).items() if "images" in name}
    with pytest.raises(RunError, match="A game needs several images, but one of the parts of the data has 1"):
        signal.Recipe(signal.Config(**given, valid_size=1), CPU)


def test_too_many_codes_to_sum():
    with pytest.raises(
        ValueError, match=r"`bits` should be at most 12 .* of dense, but is 32\. Try another .* sparsemap"
    ):
        bits.Config(estimator="dense")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"estimator": "gumbel", "samples": 2}, "`samples` should be given with score_function, .*, but .* is gumbel"),
        ({"estimator": "sparsemax", "k": 2}, "`k` should be given with sum_and_sample, topk_sparsemax, but"),
        ({"estimator": "sparsemax", "temperature": 0.1}, "`temperature` should be given with gumbel, .*, rebar, but"),
        ({"estimator": "dense", "cooling": 0.0}, "`cooling` should be given with gumbel, .*, but .* is dense"),
        ({"warm_start": 3, "epochs": 3}, "`warm_start` should be less than `epochs`, 3, but is 3: unlabelled images"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings, reason):
    with pytest.raises(ValueError, match=reason):
        ssvae.Config(**settings)


def test_codes_of_many_bits_are_found_among_others_in_half_precision():
    code = (torch.rand(600, generator=torch.Generator().manual_seed(0)) < 0.6).float()
    support = latent.Support(code.view(1, 1, 600), torch.ones(1, 1), torch.zeros(1, 1))
    other = torch.cat([1 - code[:1], code[1:]])
    with torch.autocast("cpu", torch.bfloat16):
        found = bits._is_among(torch.stack([code, other]).unsqueeze(1), support)
    assert found.tolist() == [[True], [False]]


@pytest.mark.parametrize("estimator", ["leave_one_out", "vimco"])
def test_draws_are_compared_with_others(estimator):
    with pytest.raises(ValueError, match=f"at least 2 for {estimator}, which compares draws, but is 1"):
        ssvae.Config(estimator=estimator, samples=1)


def test_the_temperature_falls_to_half_and_goes_on_from_a_checkpoint():
    task = made(ssvae, "gumbel", temperature=2.0, cooling=0.1)
    (indices, *_), generator = task.batches(1), torch.Generator()
    assert task.model.latent.temperature == 2.0
    next(task.updates(indices, generator))
    assert task.model.latent.temperature == pytest.approx(2.0 * math.exp(-0.1))
    again = made(ssvae, "gumbel", temperature=2.0, cooling=0.1)
    again.load_state(task.state())
    assert again.model.latent.temperature == task.model.latent.temperature
    for _ in range(7):
        next(again.updates(indices, generator))
    assert again.model.latent.temperature == 1.0


def test_a_running_mean_goes_on_from_a_checkpoint():
    task, again = made(ssvae, "running_mean"), made(ssvae, "running_mean")
    next(task.updates(task.batches(1)[0], torch.Generator()))
    again.load_state(task.state())
    assert vars(again.model.latent.running) == vars(task.model.latent.running)


def test_an_interrupted_run_goes_on_with_what_its_baseline_knows(tmp_path):
    class Stop(Watcher):
        def steps(self, place, batches, means):
            if place.step == 3:
                raise_signal(SIGINT)

    config = bits.Config(estimator="nvil", epochs=2, batch_size=40, device="cpu", **TINY[bits])
    run(bits.Recipe, config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(bits.Recipe, config, tmp_path / "parts", Stop())
    run(bits.Recipe, config, tmp_path / "parts")
    ours, theirs = (RunFolder(tmp_path / name).load("last.pt") for name in ("whole", "parts"))
    torch.testing.assert_close(theirs["model"], ours["model"], atol=0, rtol=0)
    assert theirs["processes"][0]["task"] == ours["processes"][0]["task"]


# ---------------------------------------------------------------- images


def idx(values, *sizes):
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + bytes(values)


@pytest.mark.parametrize(("suffix", "packed"), [("", bytes), (".gz", gzip.compress)])
def test_idx_files(tmp_path, suffix, packed):
    path, labels = tmp_path / f"images{suffix}", tmp_path / f"labels{suffix}"
    path.write_bytes(packed(idx(range(12), 2, 3, 2)))
    labels.write_bytes(packed(idx([7, 0], 2)))
    found = images.read(path, labels)
    assert found.pixels.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert (found.height, found.width, found.levels) == (3, 2, 256)
    assert found.labels.tolist() == [7, 0]
    assert images.read(path).labels.tolist() == [-1, -1]
    assert found.drawable(torch.linspace(0, 1, 6)) == [[0, 51], [102, 153], [204, 255]]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            idx([7, 0], 2),
            "should be an idx file of images and begin with the bytes 00 00 08 03, but begins with 00 00 08 01",
        ),
        (b"", "but begins with none, and has 0 bytes"),
        (idx([], 2, 3, 2)[:9], "and has 9 bytes"),
        (idx(range(11), 2, 3, 2), "should have 28 bytes for 2 by 3 by 2 values, but has 27"),
        (idx(range(13), 2, 3, 2), "should have 28 bytes for 2 by 3 by 2 values, but has 29"),
        (idx([], 0, 3, 2), "should have images, but has 0 by 3 by 2 pixels"),
    ],
)
def test_wrong_idx_files_are_named(tmp_path, content, reason):
    path = tmp_path / "wrong"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"wrong: .*{reason}"):
        images.read(path)


def test_wrong_files_of_labels_are_named(tmp_path):
    path, labels = tmp_path / "images", tmp_path / "labels"
    path.write_bytes(idx(range(12), 2, 3, 2))
    labels.write_bytes(idx([1, 2, 3], 3))
    with pytest.raises(DataError, match=r"labels: should have a label for each of the 2 images of .*images, but has 3"):
        images.read(path, labels)
    with pytest.raises(DataError, match=r"none: there is no such file"):
        images.read(path, tmp_path / "none")
    packed = tmp_path / "images.gz"
    packed.write_bytes(b"none")
    with pytest.raises(DataError, match=r"images\.gz: should be a file of images, but cannot be read"):
        images.read(packed)


def files(tmp_path, count=30, test=(8, 2, 2), labels=None):
    """Settings with files of 2 by 2 pixels in them."""
    paths = {name: tmp_path / name for name in ("train_images", "train_labels", "test_images", "test_labels")}
    paths["train_images"].write_bytes(idx([i % 256 for i in range(4 * count)], count, 2, 2))
    paths["test_images"].write_bytes(idx([0] * math.prod(test), *test))
    paths["train_labels"].write_bytes(idx(labels or [i % 10 for i in range(count)], count))
    paths["test_labels"].write_bytes(idx([3] * test[0], test[0]))
    return {name: str(path) for name, path in paths.items()}


def test_files_are_split_as_the_settings_say(tmp_path):
    given = files(tmp_path)
    task = ssvae.Recipe(ssvae.Config(**given, valid_size=10, labelled=6, hidden=4), CPU)
    assert [len(split) for split in (task.train, *task.held_out.values())] == [20, 10, 8]
    assert task.unlabelled == 14
    every = torch.cat([task.train.pixels, task.held_out["valid"].pixels])
    assert len(every.unique(dim=0)) == 30
    assert torch.cat(task.batches(task.config.warm_start)).sort().values.tolist() == list(range(6, 20))
    assert torch.cat(task.batches(0)).sort().values.tolist() == list(range(6))


def test_settings_that_do_not_fit_the_data(tmp_path):
    given = files(tmp_path, test=(8, 2, 3))
    with pytest.raises(DataError, match=r"test_images: should be of 2 by 2 pixels, as those of .*, but are of 2 by 3"):
        ssvae.Recipe(ssvae.Config(**given, valid_size=10), CPU)
    given = files(tmp_path)
    with pytest.raises(RunError, match="`valid_size` should leave some of the 30 images to train on, but is 30"):
        ssvae.Recipe(ssvae.Config(**given, valid_size=30), CPU)
    with pytest.raises(RunError, match=r"`labelled` should leave some of the 20 training images .* but is 20"):
        ssvae.Recipe(ssvae.Config(**given, valid_size=10, labelled=20), CPU)
    with pytest.raises(ValueError, match="given together, but `test_labels` is missing"):
        ssvae.Config(**given | {"test_labels": ""})
    with pytest.raises(ValueError, match="`train_images` and `test_images` should be given together"):
        ssvae.Config(train_images="x")
    with pytest.raises(RunError, match="Labels should be from 0 to 9, but one is 10"):
        ssvae.Recipe(ssvae.Config(**files(tmp_path, labels=[10] * 30), valid_size=10, labelled=5), CPU)


def test_digits_need_a_package(monkeypatch):
    assert len(images.digits()) == 1797
    assert int(images.digits().pixels.max()) == 16
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(RunError, match=r"need the package scikit-learn. Try pip install structmax\[recipes\]"):
        images.digits()


def test_evaluations_gather_costs_and_calls_of_batches_of_any_size():
    tally = latent.Tally()
    tally.add(torch.tensor([1.0, 2.0, 3.0]), 2.0)
    tally.add(torch.tensor([6.0]), 10.0)
    assert (tally.cost, tally.calls) == (3.0, 4.0)

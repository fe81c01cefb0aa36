"""Pairs of sentences, the made-up language, and that every attention and output of the recipe learns from them."""

import gzip
import itertools
import unicodedata
from typing import get_type_hints

import pytest
import torch
from every_day import a_few_every_day

import structmax
from structmax.plots import structures
from structmax.recipes import translate as recipe
from structmax.recipes.data import made_up_language, parallel
from structmax.recipes.models.translator import Translator
from structmax.training import DataError, RunError, RunFolder, run

CPU = torch.device("cpu")
ATTENTIONS = get_type_hints(recipe.Config)["attention"].__args__
OUTPUTS = get_type_hints(recipe.Config)["output"].__args__
BOUNDED = [name for name in ATTENTIONS if name.startswith("c")]


def config(**settings):
    given = {"size": 8, "train_size": 40, "epochs": 1, "batch_size": 20, "device": "cpu", "longest": 12}
    return recipe.Config(**given | settings)


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch):
    monkeypatch.setattr(recipe, "HELD_OUT", 20)


def task_of(**settings):
    torch.manual_seed(0)
    return recipe.Recipe(config(**settings), CPU)


# ---------------------------------------------------------------- files


def written(path, content):
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return str(path)


def test_pairs_of_one_file_and_of_two(tmp_path):
    one = written(tmp_path / "both.tsv", "Ein Hund.\tA dog.\nZwei, Hunde\tTwo dogs\n")
    german = written(tmp_path / "a.de.gz", "Ein Hund.\nZwei, Hunde\n")
    english = written(tmp_path / "a.en", "A dog.\nTwo dogs\n")
    pairs = parallel.read(one)
    assert pairs == parallel.read(f"{german},{english}") == parallel.read(f"{german}, {english}")
    assert pairs[0] == parallel.Pair(("Ein", "Hund", "."), ("A", "dog", "."), "A dog.")
    assert pairs[1].source == ("Zwei", ",", "Hunde")
    assert parallel.read(one, lower_case=True)[0] == parallel.Pair(("ein", "hund", "."), ("a", "dog", "."), "a dog.")
    # a comma may be part of a name
    assert parallel.read(written(tmp_path / "a,b.tsv", "x\ty\n")) == [parallel.Pair(("x",), ("y",), "y")]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("", None, "should have sentences and their translations, but is empty"),
        ("a\tb\na b\n", 2, "should be a sentence, a tab and its translation, but has 0 tabs"),
        ("a\tb\tc\n", 1, "but has 2 tabs"),
        ("a\tb\n\tb\n", 2, "but one is empty. Try leaving this line out"),
        ("a\t \n", 1, "but one is empty"),
    ],
)
def test_a_file_of_pairs_that_is_none_is_refused(tmp_path, content, line, reason):
    path = written(tmp_path / "pairs.tsv", content)
    with pytest.raises(DataError) as raised:
        parallel.read(path)
    assert (str(raised.value.path), raised.value.line) == (path, line)
    assert reason in raised.value.reason


@pytest.mark.parametrize(
    ("source", "target", "faulty", "line", "reason"),
    [
        ("a\nb\n", "x\n", "target", 1, "should have as many lines as"),
        ("", "x\n", "source", None, "but ends after 0"),
        ("a\nb\n", "x\n\n", "target", 2, "but one is empty. Try leaving this line out of both files"),
        ("\nb\n", "x\ny\n", "source", 1, "but one is empty"),
    ],
)
def test_two_files_that_are_not_parallel_are_refused(tmp_path, source, target, faulty, line, reason):
    paths = {"source": written(tmp_path / "source", source), "target": written(tmp_path / "target", target)}
    with pytest.raises(DataError) as raised:
        parallel.read(",".join(paths.values()))
    assert (str(raised.value.path), raised.value.line) == (paths[faulty], line)
    assert reason in raised.value.reason


def test_a_file_that_is_not_there_is_refused(tmp_path):
    there = written(tmp_path / "there", "a\n")
    with pytest.raises(DataError, match=r"gone: there is no such file"):
        parallel.read(f"{there},{tmp_path / 'gone'}")


def test_a_run_over_files(tmp_path):
    two = "Ein Hund singt.\tA dog sings.\nEine Katze singt.\tA cat sings.\n"
    many, few = written(tmp_path / "many.tsv", two * 60), written(tmp_path / "few.tsv", two)
    given = config(train_file=many, valid_file=few, test_file=few, lower_case=True, epochs=8, learning_rate=0.03)
    summary = run(recipe.Recipe, given, tmp_path / "run")
    assert summary["test"]["bleu"] == pytest.approx(100)
    assert set(summary["test"]) == {"loss", "accuracy", "attended", "bleu"}
    assert summary["seconds_per_epoch"] > 0
    drawings = RunFolder(tmp_path / "run").read("structures.json")
    assert drawings[0]["rows"] == ["a", "dog", "sings", ".", "<end>"]
    assert drawings[0]["note"] == "translated as: a dog sings."


def test_files_come_together(tmp_path):
    file = written(tmp_path / "pairs.tsv", "a\tb\n")
    with pytest.raises(ValueError, match=r"`valid_file` and `test_file` are missing\. Try all or none"):
        config(train_file=file)
    long = written(tmp_path / "long.tsv", "a b c\tb\n")
    with pytest.raises(RunError, match="should have sentences of at most 2 words, but has none"):
        recipe.Recipe(config(train_file=long, valid_file=file, test_file=file, longest=2), CPU)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(RunError, match=r"pip install structmax\[recipes\]"):
        recipe.Recipe(config(), CPU)


# ---------------------------------------------------------------- the made-up language


def translated(source):
    """What a sentence means, word by word from the left, by the rules of the language alone."""
    m, words, late = made_up_language, [], []
    source = [word for word in source if word not in m.particles]
    while source:
        word = source.pop(0)
        if word in m.adjectives:
            words += [m.article, m.target_nouns[m.nouns.index(source.pop(0))]]
            words += [m.target_adjectives[m.adjectives.index(word)]]
        elif word in m.nouns:
            words += [m.article, m.target_nouns[m.nouns.index(word)]]
        elif word in m.long:
            words += [m.halves[2 * m.long.index(word)], m.halves[2 * m.long.index(word) + 1]]
        elif word in m.first:
            words += [m.compounds[m.first.index(word) * m.SECOND + m.second.index(source.pop(0))]]
        elif word in m.verbs:
            late += [m.target_verbs[m.verbs.index(word)]]
        else:
            words += [m.target_others[m.others.index(word)]]
    return tuple(words + late)


def test_sentences_of_the_made_up_language():
    pairs = made_up_language.generate(500, seed=0)
    assert all(pair.target == translated(pair.source) for pair in pairs)
    assert all(pair.written == " ".join(pair.target) for pair in pairs)
    assert len({pair.source for pair in pairs}) == 500
    assert pairs == made_up_language.generate(500, seed=0)
    assert not {p.source for p in pairs} & {p.source for p in made_up_language.generate(100, 0, without=pairs)}
    # a word of the target stands for words that are never apart from it, but for articles; particles are left out
    together = {}
    for pair in pairs:
        assert {t for t, _ in pair.links} == {t for t, w in enumerate(pair.target) if w != made_up_language.article}
        left_out = {s for s, w in enumerate(pair.source) if w in made_up_language.particles}
        assert {s for _, s in pair.links} == set(range(len(pair.source))) - left_out
        for t in range(len(pair.target)):
            linked = tuple(pair.source[s] for t_linked, s in pair.links if t_linked == t)
            assert together.setdefault(pair.target[t], linked) == linked


def test_words_of_the_two_languages_differ():
    words = [*itertools.chain(*made_up_language.SOURCE, *made_up_language.TARGET)]
    assert len(set(words)) == len(words)


def test_batches_know_the_links():
    pairs = made_up_language.generate(30, seed=0)
    vocabularies = (parallel.vocabulary([getattr(p, side) for p in pairs], 1) for side in ("source", "target"))
    source, target = vocabularies
    batch = parallel.Corpus(pairs, source, target, CPU).batch(torch.tensor([7, 3, 20]))
    for row, index in enumerate([7, 3, 20]):
        pair = pairs[index]
        assert sorted(map(tuple, batch.gold[row].nonzero().tolist())) == sorted(pair.links)
        assert [target.words[w] for w in batch.target[row, : batch.target_lengths[row]]] == [*pair.target, "<end>"]
    assert batch.before[:, 0].tolist() == [0, 0, 0]
    assert torch.equal(batch.before[:, 1:], batch.target[:, :-1])
    assert torch.equal(batch.inside, batch.target != 0)


def test_agreement_with_links():
    pairs = [parallel.Pair(("a", "b", "c"), ("x", "y"), "x y", ((0, 0), (0, 1)))]
    numbers = parallel.vocabulary([["a", "b", "c", "x", "y"]], 1)
    batch = parallel.Corpus(pairs, numbers, numbers, CPU).batch(torch.tensor([0]))
    # three words and their ends; y stands for nothing
    weights = torch.tensor([[[0.5, 0.0, 0.4, 0.1], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]])
    found = {name: float(a / b) for name, (a, b) in recipe.agreement(weights, batch).items()}
    assert found == pytest.approx({"attended": 5 / 12, "aligned": 1.0, "on_links": 0.5, "link_f1": 2 * 1 / (3 + 2)})


# ---------------------------------------------------------------- the model


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("output", a_few_every_day(OUTPUTS, "softmax", "entmax15"))
def test_every_choice_learns(attention, output):
    task = task_of(attention=attention, output=output, beam=2, learning_rate=0.01)
    optimiser = task.optimiser()
    losses = []
    for indices in [*task.batches(0), *task.batches(0)]:
        ((loss, _),) = task.updates(indices, torch.Generator())
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in task.model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    task.model.eval()
    with torch.no_grad():
        # at first some scores are too alike for a zero
        task.model.fit *= 4
        found = task.evaluate("valid")
        drawn = task.drawings()
    assert all(0 <= found[name] <= 1 for name in ("accuracy", "attended", "aligned", "on_links", "link_f1"))
    # a bounded softmax has zeros where nothing is left
    assert attention == "csoftmax" or (found["attended"] == 1) == (attention == "softmax")
    assert 0 <= found["bleu"] <= 100
    assert len(drawn) == 8
    assert all(structures.svg(drawing).count('class="gold"') == len(drawing["gold"]) > 0 for drawing in drawn)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_steps_one_by_one_are_those_at_once(attention):
    task = task_of(attention=attention, fertility=1.0)
    batch = task.train.batch(torch.arange(6))
    task.model.eval()
    memory, state = task.model.encode(batch.source, batch.source_lengths)
    scores, weights, last = task.model(batch.before, memory, state)
    for step in range(batch.target.shape[1]):
        score, weight, state = task.model(batch.before[:, step : step + 1], memory, state)
        torch.testing.assert_close(score[:, 0], scores[:, step])
        torch.testing.assert_close(weight[:, 0], weights[:, step])
    torch.testing.assert_close(state.left, last.left)
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))
    assert not weights[~memory.inside.unsqueeze(1).expand_as(weights)].any()


@pytest.mark.parametrize("attention", BOUNDED)
def test_words_receive_no_more_than_their_fertility(attention):
    task = task_of(attention=attention, fertility=0.3)
    batch = task.train.batch(torch.arange(6))
    memory, state = task.model.encode(batch.source, batch.source_lengths)
    weights = task.model(batch.before, memory, state)[1]
    received = weights.sum(1)
    # three in ten of every word, and the rest at the end
    is_end = torch.arange(received.shape[1]) == batch.source_lengths.unsqueeze(-1) - 1
    assert (received[~is_end] <= 0.3 + 1e-5).all()
    assert received[~is_end].max() > 0.29
    torch.testing.assert_close(received.sum(-1), torch.full((6,), float(batch.target.shape[1])))


def test_exhaustion_is_for_words_that_may_still_receive():
    scores = torch.zeros(1, 2, 3)
    inside, left = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0.5, 2.0, torch.inf]])
    attention, _ = recipe.attention(config(attention="csparsemax", exhaustion=0.2))
    weights, after = attention(scores, inside, left)
    # scores 0.1, 0.4, and 0 for the end, with no bound in reach: sparsemax of these
    torch.testing.assert_close(weights[0, 0], structmax.sparsemax(torch.tensor([0.1, 0.4, 0.0])))
    torch.testing.assert_close(after[0, :2], left[0, :2] - weights[0, :, :2].sum(0))


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_wide_beam_finds_the_best_translation(output):
    mapping, _ = recipe.OUTPUTS[output]
    torch.manual_seed(1)
    model = Translator(6, 5, 6, *recipe.attention(config(attention="entmax15")), 1.0, 0.0).eval()
    # so that the words differ
    model.output.weight.data *= 6
    source, lengths = torch.tensor([[2, 3, 4], [5, 2, 0]]), torch.tensor([3, 2])
    end, longest = 2, 3
    with torch.no_grad():
        memory, state = model.encode(source, lengths)

        def log_probability(row, words):
            here = torch.tensor([row])
            scores = model(torch.tensor([[0, *words[:-1]]]), memory.at(here), state.at(here))[0][0]
            scores[:, :2] = -torch.inf
            return mapping(scores).log()[range(len(words)), list(words)].sum().item() / len(words)

        ended = [(*words, end) for n in range(longest) for words in itertools.product([3, 4], repeat=n)]
        possible = ended + list(itertools.product([3, 4], repeat=longest))
        wide = model.translate(source, lengths, end, longest, 40, mapping).tolist()
        greedy = model.translate(source, lengths, end, longest, 1, mapping).tolist()
        for row in range(2):
            best = max(possible, key=lambda words, row=row: log_probability(row, words))
            assert tuple(wide[row][: len(best)]) == best
            first = max([2, 3, 4], key=lambda word, row=row: log_probability(row, (word,)))
            assert greedy[row][0] == first


def test_training_sees_every_sentence_once():
    task = task_of(train_size=70)
    assert sorted(torch.cat(list(task.batches(0))).tolist()) == list(range(70))


def test_a_loss_is_a_mean_over_sentences():
    task = task_of(dropout=0.0)
    indices = torch.arange(5)
    ((together, _),) = task.updates(indices, torch.Generator())
    alone = [next(task.updates(indices[k : k + 1], torch.Generator()))[0] for k in range(5)]
    torch.testing.assert_close(together, torch.stack(alone).mean())


@pytest.mark.thorough
def test_sparse_attention_finds_the_words(tmp_path):
    summary = run(recipe.Recipe, config(size=64, train_size=2000, epochs=8, longest=30), tmp_path / "run")
    assert summary["test"]["aligned"] > 0.8


def test_a_translation_that_is_right_is_written_as_its_reference():
    for line in ("„Guten Morgen”, sagte er (leise)…", "¿Qué? ¡Sí!", "cafe\u0301 au lait"):
        assert parallel.joined(parallel.words(line)) == unicodedata.normalize("NFC", line)

"""Columns of words and tags, the generated sentences, and that every loss of the recipe learns from them."""

import gzip
import itertools
from typing import get_args

import pytest
import torch
from every_day import a_few_every_day

import structmax
from structmax.plots import structures
from structmax.recipes import tag as recipe
from structmax.recipes.data import columns, names, text
from structmax.recipes.data.columns import Sentence
from structmax.training import DataError

CPU = torch.device("cpu")


def written(tmp_path, content, name="file.conll"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def rows(*tags):
    return "\n".join(f"w{place} x {tag}" for place, tag in enumerate(tags, 1))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        # IOB2
        ("B-X I-X I-X O B-Y B-Y I-Y", "B-X I-X E-X O S-Y B-Y E-Y"),
        # IOB1
        ("I-X I-X B-X I-Y O I-Y", "B-X E-X S-X S-Y O S-Y"),
        # an I without a B begins a span
        ("O I-X B-X I-Y I-Y", "O S-X S-X B-Y E-Y"),
        # IOBES
        ("B-X I-X E-X S-Y O", "B-X I-X E-X S-Y O"),
        ("O O", "O O"),
        # types with a hyphen
        ("B-creative-work I-creative-work", "B-creative-work E-creative-work"),
    ],
)
def test_every_scheme_becomes_iobes(tmp_path, given, wanted):
    (sentence,) = columns.read(written(tmp_path, rows(*given.split())))
    assert sentence.tags == tuple(wanted.split())
    assert columns.fault(sentence.tags) is None


def test_columns_of_a_file(tmp_path):
    content = "-DOCSTART- -X- O\n\nNew York\tNNP\tB-LOC\n's\tPOS\tO\n\t\n\n#tag O\r\nEU  NNP  I-ORG\n"
    first, second = columns.read(written(tmp_path, content))
    assert first == Sentence(("New York", "'s"), ("S-LOC", "O"))
    assert second == Sentence(("#tag", "EU"), ("O", "S-ORG"))
    packed = tmp_path / "file.gz"
    packed.write_bytes(gzip.compress(content.encode()))
    assert columns.read(packed) == [first, second]
    assert columns.labels([first, second])[:5] == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("\n", None, "should have sentences, but has none"),
        ("-DOCSTART- O\n", None, "should have sentences, but has none"),
        ("a O\n\nb\n", 3, "should have a word and a tag, with a tab or a space between them, but is 'b'"),
        ("a\tO\nb\t\n", 2, "should have a word and a tag"),
        ("\tO\n", 1, "should have a word and a tag"),
        ("a O\nb NN\n", 2, "the tag should be O, or B-, I-, E- or S- and a type such as B-PER, but is 'NN'"),
        ("a B-\n", 1, "the tag should be O"),
        ("a U-PER\n", 1, "the tag should be O"),
        (rows("S-X", "E-X"), 2, "but after S-X comes E-X"),
        (rows("I-X", "E-X"), 1, "but after the beginning comes I-X"),
        (rows("B-X", "E-Y"), 2, "but after B-X comes E-Y"),
        (rows("S-X", "B-X"), 2, "but after B-X comes the end"),
    ],
)
def test_columns_that_are_none_are_refused(tmp_path, content, line, reason):
    path = written(tmp_path, content)
    with pytest.raises(DataError) as raised:
        columns.read(path)
    assert (raised.value.path, raised.value.line) == (path, line)
    assert reason in raised.value.reason


def test_faults_are_what_the_constraints_forbid():
    labels = columns.labels([Sentence(("a", "b"), ("S-X", "S-Y"))])
    pairwise, start, end = structmax.tag_constraints(labels, "IOBES")
    for y in itertools.product(range(len(labels)), repeat=3):
        allowed = start[y[0]] + pairwise[y[0], y[1]] + pairwise[y[1], y[2]] + end[y[2]]
        assert (columns.fault([labels[tag] for tag in y]) is None) == (allowed == 0)


def runs(sentence):
    """Spans that stand side by side, together."""
    found = []
    for place, tag in enumerate(sentence.tags):
        if tag[0] in "BS":
            beside = bool(found) and found[-1][-1][1] == place - 1
            found = found if beside else [*found, []]
            found[-1].append((place, place, tag[2:]))
        elif tag != "O":
            first, _, kind = found[-1][-1]
            found[-1][-1] = (first, place, kind)
    return found


def test_cues_settle_the_types_of_generated_names():
    of_cue = [{cue: kind for kind, cues in names.CUES.items() for cue in cues[side]} for side in (0, 1)]
    found = names.generate(500, seed=0, unsettled=0.0)
    sizes = {1: 0, 2: 0}
    for words, beside in ((sentence.words, beside) for sentence in found for beside in runs(sentence)):
        (first, _, opening), (_, last, closing) = beside[0], beside[-1]
        cues = {(side, of_cue[side].get(words[place])) for side, place in ((0, first - 1), (1, last + 1))}
        told = {cue for cue in cues if cue[1] is not None}
        if len(beside) == 2:
            assert told == {(0, opening), (1, closing)}
            assert opening != closing
        else:
            assert told in ({(0, opening)}, {(1, opening)})
        sizes[len(beside)] += 1
    assert min(sizes.values()) > 300


def test_words_alone_do_not_settle_the_types():
    found = names.generate(500, seed=0)
    assert found == names.generate(500, seed=0)
    assert found != names.generate(500, seed=1)
    kinds = {}
    for sentence in found:
        assert columns.fault(sentence.tags) is None
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            kinds.setdefault(word, set()).add(tag[2:])
            # a name is a word with a capital that is nowhere else
            assert tag == "O" or word.istitle()
    types = [found for found in kinds.values() if found != {""}]
    assert all("" not in found for found in types)
    assert sum(len(found) > 1 for found in types) > 200


def trained(steps=2, **settings):
    """A recipe after a few steps, and the parameters that have learnt."""
    config = recipe.Config(train_size=40, size=6, word_size=6, character_size=4, batch_size=20, **settings)
    torch.manual_seed(0)
    task = recipe.Recipe(config, CPU)
    optimiser, generator = task.optimiser(), torch.Generator().manual_seed(0)
    touched = set()
    for indices in task.batches(0)[:steps]:
        for loss, metrics in task.updates(indices, generator):
            assert loss.isfinite()
            assert metrics["loss"] == loss
            optimiser.zero_grad()
            loss.backward()
            touched |= {name for name, p in task.model.named_parameters() if p.grad is not None and p.grad.any()}
            optimiser.step()
    task.model.eval()
    return task, touched


@pytest.fixture
def few(monkeypatch):
    """Few held-out sentences."""
    monkeypatch.setattr(recipe, "VALID", 20)
    monkeypatch.setattr(recipe, "TEST", 10)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("loss", get_args(recipe.Loss))
def test_every_loss_learns_all_its_parameters(loss):
    pytest.importorskip("seqeval")
    task, touched = trained(loss=loss)
    assert touched == {name for name, _ in task.model.named_parameters()}
    with torch.no_grad():
        found, drawn = task.evaluate("valid"), task.drawings()
    assert all(0 <= found[name] <= 1 for name in ("f1", "precision", "recall", "accuracy", "broken"))
    assert loss == "cross_entropy" or found["broken"] == 0
    assert found["loss"] >= 0
    assert 0 < len(drawn) <= recipe.DRAWN
    assert all(structures.svg(drawing).startswith("<svg") for drawing in drawn)
    if loss in ("perceptron", "svm"):
        assert all(len(tags) == 1 for drawing in drawn for tags in drawing["tags"]["weights"])


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("loss", a_few_every_day(get_args(recipe.Loss), "crf", "cross_entropy"))
def test_a_loss_is_a_mean_over_sentences(loss):
    task, _ = trained(loss=loss, steps=0)
    data = task.data["train"]
    with torch.no_grad():
        together = data.batch(torch.arange(4))
        alone = [data.batch(torch.tensor([k])) for k in range(4)]
        losses = [task.model.loss_of(task.model(batch), batch) for batch in alone]
        torch.testing.assert_close(task.model.loss_of(task.model(together), together), torch.stack(losses).mean())


@pytest.mark.usefixtures("few")
def test_metrics_of_known_tags():
    pytest.importorskip("seqeval")
    task, _ = trained(steps=0)
    words = ("a", "b", "c", "d")
    gold = [("B-PER", "E-PER", "O", "S-LOC"), ("S-ORG", "O", "O", "O")]
    found = [("B-PER", "E-LOC", "O", "S-LOC"), ("S-ORG", "S-ORG", "O", "O")]
    index = {label: number for number, label in enumerate(task.labels)}
    sentences = [Sentence(words, tags) for tags in gold]
    task.data["valid"] = recipe.Data(sentences, text.Vocabulary([]), text.Vocabulary([]), task.labels, CPU)
    task.model.best = lambda scores, batch: torch.tensor([[index[tag] for tag in tags] for tags in found])
    with torch.no_grad():
        metrics = task.evaluate("valid")
    # found: S-LOC, S-ORG and a wrong S-ORG; a span whose tags do not fit together is none
    assert metrics["precision"] == pytest.approx(2 / 3)
    assert metrics["recall"] == pytest.approx(2 / 3)
    assert metrics["f1"] == pytest.approx(2 / 3)
    assert metrics["accuracy"] == pytest.approx(6 / 8)
    assert metrics["broken"] == 0.5


def test_nothing_found_is_no_error():
    pytest.importorskip("seqeval")
    nothing = {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    assert recipe.span_scores([["S-X", "O"]], [["O", "O"]]) == nothing
    assert recipe.span_scores([["O"]], [["O"]]) == nothing


@pytest.mark.usefixtures("few")
def test_drawings_show_words_that_keep_several_tags_first():
    task, _ = trained(steps=0, loss="crf")
    with torch.no_grad():
        drawn = task.drawings()
    counts = [sum(len(tags) > 1 for tags in drawing["tags"]["weights"]) for drawing in drawn]
    assert counts == sorted(counts, reverse=True)
    assert drawn[0]["note"].startswith(f"{counts[0]} of ")


def test_files_and_vectors(tmp_path):
    train = written(tmp_path, "Anna B-PER\nMay I-PER\nsaw O\n7 O\n", "train")
    valid = written(tmp_path, "Berlin B-LOC\nsaw O\nZz9 B-PER\n", "valid")
    vectors = written(tmp_path, "anna 1 2\nberlin 3 4\nparis 5 6\n", "vectors")
    config = recipe.Config(
        train_file=str(train), valid_file=str(valid), test_file=str(valid), vectors=str(vectors), size=4
    )
    task = recipe.Recipe(config, CPU)
    assert task.labels == ["O", *(f"{prefix}-{kind}" for kind in ("LOC", "PER") for prefix in "BIES")]
    batch = task.data["valid"].batch(torch.tensor([0]))
    berlin, saw, unknown = batch.words[0].tolist()
    # a word that is not trained on has a vector if the file has it
    assert task.model.words.words.weight[berlin].tolist() == [3, 4]
    assert saw == task.data["train"].batch(torch.tensor([0])).words[0, 2]
    assert unknown == text.Vocabulary.UNKNOWN
    assert len(set(batch.spellings[0].tolist())) == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"train_file": "a"}, "should be given together, but `valid_file` and `test_file` are missing"),
        ({"train_file": "a", "test_file": "b"}, "should be given together, but `valid_file` is missing"),
        ({"test_file": "b"}, "but `train_file` and `valid_file` are missing"),
        ({"character_size": 5}, "`character_size` should be an even number, but is 5"),
    ],
)
def test_settings_that_do_not_go_together(settings, reason):
    with pytest.raises(ValueError, match=reason):
        recipe.Config(**settings)

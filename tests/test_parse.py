"""The grammar, and that a parser learns from its trees or from a treebank by every loss."""

import itertools
from typing import get_args

import pytest
import torch
from every_day import a_few_every_day

import structmax
from structmax.plots import structures
from structmax.recipes import parse as recipe
from structmax.recipes.data import grammar, text, treebank
from structmax.recipes.models.parser import ArcLabels
from structmax.training import DataError, RunFolder, run

CPU = torch.device("cpu")
SMALL = {"size": 8, "word_size": 8, "tag_size": 4, "character_size": 4, "hidden_size": 8, "layers": 1, "train_size": 60}


def crosses(heads):
    """Whether arcs cross, those of the root included."""
    ends = [tuple(sorted(arc)) for arc in enumerate(heads, 1)]
    return any(a < c < b < d for (a, b), (c, d) in itertools.permutations(ends, 2))


# ---------------------------------------------------------------- the grammar


def test_words_settle_what_they_belong_to():
    kind_of = {noun: kind for kind, nouns in grammar.NOUNS.items() for noun in nouns}
    met = set()
    for s in grammar.generate(2000, seed=0):
        assert s.heads.count(0) == 1
        assert s.tags[s.heads.index(0)] == "VERB"
        for word, tag, head, label in zip(s.words, s.tags, s.heads, s.labels, strict=True):
            owner, owner_tag = (s.words[head - 1], s.tags[head - 1]) if head else ("", "")
            met.add(label)
            if label == "acl:relcl":
                assert word in grammar.DOES[kind_of[owner]]
            elif label == "conj":
                assert kind_of[word] == kind_of[owner]
            elif word in (*grammar.TOOLS, *grammar.EVENTS):
                assert (label, owner_tag) == ("obl", "VERB")
            elif word in grammar.EITHER:
                assert (label, owner_tag) in {("obl", "VERB"), ("nmod", "NOUN")}
            elif word in (*grammar.HAS["person"], *grammar.HAS["animal"]):
                assert word in grammar.HAS[kind_of[owner]]
            elif tag == "PUNCT":
                assert s.heads[head - 1] == 0
    assert met == {
        *("acl:relcl", "advmod", "amod", "case", "cc", "ccomp", "conj", "det", "mark", "nmod", "nsubj", "obj", "obl"),
        *("punct", "root"),
    }


def test_arcs_cross_where_a_clause_comes_late():
    found = grammar.generate(1000, seed=0)
    crossing = [s for s in found if crosses(s.heads)]
    assert 50 < len(crossing) < 150
    assert all(s.words[s.heads.index(0)] in grammar.ARRIVES for s in crossing)


def test_generated_sentences_differ():
    found = grammar.generate(1000, seed=0)
    assert found == grammar.generate(1000, seed=0)
    assert found != grammar.generate(1000, seed=1)
    others = grammar.generate(1000, seed=0, without=found)
    assert len({s.words for s in [*found, *others]}) == 2000


# ---------------------------------------------------------------- the parser


def test_labels_are_those_of_a_form_over_all_arcs():
    """Chosen arcs have the scores that a biaffine form with the same weights gives all arcs."""
    torch.manual_seed(0)
    chosen, every = ArcLabels(5, 4, 3), structmax.nn.Biaffine(5, 4, labels=3)
    every.load_state_dict(chosen.state_dict())
    words, heads = torch.randn(2, 4, 5), torch.tensor([[2, 0, 4, 1], [0, 1, -1, -1]])
    wanted = every(words)[torch.arange(2)[:, None], heads.clamp_min(0), torch.arange(1, 5)]
    torch.testing.assert_close(chosen(words, heads), wanted)


def test_what_training_has_not_shown_is_unknown():
    train, (other,) = grammar.generate(50, seed=0), grammar.generate(1, seed=3)
    unseen = type(other)(("Zyx", *other.words[1:]), ("SYM", *other.tags[1:]), other.heads, ("odd", *other.labels[1:]))
    known = treebank.Vocabularies.of(train, [unseen])
    batch = treebank.Treebank([unseen], known, CPU).batch(torch.tensor([0]))
    assert [int(t[0, 0]) for t in (batch.words, batch.tags, batch.labels)] == [text.Vocabulary.UNKNOWN] * 3
    assert known.spellings.words[int(batch.spellings[0, 0])] == "Zyx"


def trained(steps=2, **settings):
    """A recipe after a few steps."""
    torch.manual_seed(0)
    task = recipe.Recipe(recipe.Config(**{**SMALL, "batch_size": 20, **settings}), CPU)
    optimiser, generator = task.optimiser(), torch.Generator().manual_seed(0)
    touched = set()
    for indices in task.batches(0)[:steps]:
        for loss, metrics in task.updates(indices, generator):
            assert loss.isfinite()
            assert all(value.isfinite() and not value.requires_grad for value in metrics.values())
            optimiser.zero_grad()
            loss.backward()
            touched |= {name for name, p in task.model.named_parameters() if p.grad is not None and p.grad.any()}
            optimiser.step()
    task.model.eval()
    return task, touched


def judged(task):
    task.held_out = {
        name: treebank.Treebank(data.sentences[:30], task.known, CPU) for name, data in task.held_out.items()
    }
    with torch.no_grad():
        return task.evaluate("valid"), task.drawings()


CHOICES = [
    f"{loss}-{tree}"
    for loss, tree in itertools.product(get_args(recipe.Loss), ("projective", "spanning"))
    if (loss, tree) != ("smoothed", "spanning")
]


@pytest.mark.parametrize("choice", a_few_every_day(CHOICES, "crf-spanning", "margin_sparsemap-spanning"))
def test_every_loss_learns_all_parameters(choice):
    loss, tree = choice.split("-")
    task, touched = trained(loss=loss, tree=tree)
    assert touched == {name for name, _ in task.model.named_parameters()}
    found, drawn = judged(task)
    assert 0 <= found["las"] <= found["uas"] <= 1
    assert 0 <= found["las_words"] <= found["uas_words"] <= 1
    assert found["support"] >= 1
    # the losses are those of training
    assert set(found) | {"loss", "arc_loss", "label_loss"} == set(recipe.Recipe.meanings)
    names = [set(drawing["arcs"]) for drawing in drawn]
    assert {"gold", "best"} in names
    assert {"gold", "sparsemap"} in names
    assert all(structures.svg(drawing).startswith("<svg") for drawing in drawn)


@pytest.mark.parametrize("settings", [{"single_root": False}, {"character_size": 0}, {"tag_size": 0, "layers": 2}])
def test_other_settings(settings):
    task, touched = trained(steps=1, **settings)
    assert touched == {name for name, _ in task.model.named_parameters()}
    assert judged(task)[0]["support"] >= 1


@pytest.mark.parametrize("loss", ["sparsemap", "margin_sparsemap"])
def test_the_loss_that_counts_trees_is_that_of_the_library(loss):
    torch.manual_seed(0)
    trees, temperature = structmax.SpanningTree(torch.tensor([5, 3]), single_root=True), 0.5
    target = trees.encode(torch.tensor([[2, 0, 2, 3, 4], [0, 1, 2, -1, -1]]))
    arcs = torch.randn(2, 6, 6, requires_grad=True)
    config = recipe.Config(loss=loss, temperature=temperature)
    ours, metrics = recipe.arc_loss(config, arcs, trees, target)
    theirs = getattr(structmax, f"{loss}_loss")(arcs, trees, target, temperature=temperature)
    torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=0)
    (ours_gradient,) = torch.autograd.grad(ours, arcs)
    torch.testing.assert_close(ours_gradient, torch.autograd.grad(theirs, arcs)[0], atol=0.05, rtol=0)
    assert metrics["support"] >= 1


def test_attachment_is_counted_word_by_word():
    """With the right arcs given, but for the first word of each sentence, which hangs on the root."""
    task, _ = trained(steps=0, single_root=False)
    wrong = counted = words = wrong_words = 0
    for s in task.held_out["test"].sentences:
        wrong += s.heads[0] != 0
        counted += len(s)
        words += len(s) - s.tags.count("PUNCT")
        wrong_words += s.heads[0] != 0 and s.tags[0] != "PUNCT"

    def knowing(batch):
        heads = batch.heads.clone()
        heads[:, 0] = 0
        return torch.zeros(*heads.shape, task.model.words.output_size), 9 * task.trees(batch.lengths).encode(heads)

    task.model.parsed = knowing
    with torch.no_grad():
        found = task.evaluate("test")
    assert found["uas"] == pytest.approx(1 - wrong / counted)
    assert found["uas_words"] == pytest.approx(1 - wrong_words / words)
    # no other tree is near
    assert found["support"] == found["one_tree"] == 1


def test_a_tree_with_crossing_arcs_has_its_nearest_without():
    """Training on projective trees takes those that share the most arcs, so that no loss is below 0."""
    (bird,) = grammar.generate(1, seed=5)
    assert crosses(bird.heads)
    task, _ = trained(steps=0, loss="perceptron", tree="projective")
    task.train = treebank.Treebank([bird], task.known, CPU)

    def knowing(batch):
        trees = structmax.SpanningTree(batch.lengths, single_root=True)
        return torch.zeros(*batch.heads.shape, task.model.words.output_size), trees.encode(batch.heads)

    task.model.parsed = knowing
    ((_, metrics),) = task.updates(torch.tensor([0]), torch.Generator())
    assert metrics["arc_loss"] == 0


@pytest.mark.thorough
def test_it_learns_the_grammar_and_becomes_sure(tmp_path):
    config = recipe.Config(train_size=500, size=40, layers=1, epochs=5, learning_rate=5e-3, device="cpu")
    summary = run(recipe.Recipe, config, tmp_path / "run")
    support = [row["valid/support"] for row in RunFolder(tmp_path / "run").rows]
    assert summary["test"]["uas"] > 0.9
    assert support[-1] < support[0] / 2


# ---------------------------------------------------------------- what is refused


def written(path, sentences):
    rows = (
        "\n".join(
            f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t_"
            for i, (word, tag, head, label) in enumerate(zip(s.words, s.tags, s.heads, s.labels, strict=True), 1)
        )
        for s in sentences
    )
    path.write_text("\n\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def test_a_treebank_in_files(tmp_path):
    pytest.importorskip("conllu")
    found = grammar.generate(30, seed=0)
    parts = {"train_file": found[:20], "valid_file": found[20:25], "test_file": found[25:]}
    files = {name: written(tmp_path / name, sentences) for name, sentences in parts.items()}
    task, _ = trained(**files)
    assert [s.heads for s in task.train.sentences] == [s.heads for s in found[:20]]
    assert [s.words for s in task.held_out["test"].sentences] == [s.words for s in found[25:]]
    assert 0 <= task.evaluate("test")["las"] <= 1
    (tmp_path / "valid_file").write_text("1\tword\n")
    with pytest.raises(DataError, match=r"valid_file:1: should have 10 columns"):
        recipe.Recipe(recipe.Config(**SMALL, **files), CPU)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"train_file": "a", "test_file": "b"}, "should be given together, but `valid_file` is missing"),
        ({"loss": "smoothed", "tree": "spanning"}, "spanning trees have no such recursion"),
        ({"character_size": 3}, "`character_size` should be even, but is 3"),
        ({"dropout": 1.0}, "`dropout` should be at most 0.9"),
        ({"temperature": 0.0}, "`temperature` should be at least 0.001"),
    ],
)
def test_settings_that_do_not_fit(settings, reason):
    with pytest.raises(ValueError, match=reason):
        recipe.Config(**settings)

"""The recipe of inference: its data, its alignments, and that every choice trains."""

import lzma
from typing import get_args, get_type_hints

import pytest
import torch
from every_day import a_few_every_day

from structmax.plots import structures
from structmax.recipes import nli as recipe
from structmax.recipes.data import entailment, text, word_families
from structmax.recipes.models.entailment import ALIGNMENTS, MODELS, Aligned
from structmax.training import DataError, RunError

CPU = torch.device("cpu")
ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


def written(tmp_path, content, name="pairs.tsv"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


# ---------------------------------------------------------------- generated pairs


def by_the_lexicon(pair):
    """The answer and the counterparts, from the words alone."""
    family = {w: f for f in word_families.LEXICON for w in (f.general, *(w for sense in f.senses for w in sense))}
    spoken_of = {family[word]: place for place, word in enumerate(pair.premise)}
    follows, excluded = True, False
    for word in pair.hypothesis:
        if family[word] not in spoken_of:
            follows = False
            continue
        known = pair.premise[spoken_of[family[word]]]
        same = any({word, known} <= set(sense) for sense in family[word].senses)
        if word == family[word].general or same:
            continue
        follows = False
        excluded |= known != family[word].general
    label = CONTRADICTION if excluded else ENTAILMENT if follows else NEUTRAL
    return label, tuple(spoken_of.get(family[word], -1) for word in pair.hypothesis)


def test_generated_pairs_have_the_answer_and_the_alignment_of_their_words():
    pairs = word_families.generate(600, seed=3, longest=8)
    for pair in pairs:
        assert (pair.label, pair.origins) == by_the_lexicon(pair)
        assert 3 <= len(pair.hypothesis) <= len(pair.premise) <= 8
    assert [sum(pair.label == label for pair in pairs) for label in range(3)] == [200] * 3
    assert len(set(pairs)) == 600
    assert pairs == word_families.generate(600, seed=3, longest=8) != word_families.generate(600, seed=4, longest=8)


def test_neutral_pairs_are_of_both_kinds():
    pairs = [pair for pair in word_families.generate(600, seed=0, longest=8) if pair.label == NEUTRAL]
    unrelated = sum(-1 in pair.origins for pair in pairs)
    assert 100 < unrelated < 190


def test_words_are_in_one_family_each():
    words = [w for f in word_families.LEXICON for w in (f.general, *(w for sense in f.senses for w in sense))]
    assert len(words) == len(set(words))


# ---------------------------------------------------------------- files


def test_a_file_of_sick(tmp_path):
    content = SICK + "1\tA dog runs\tThe man's dog isn't here.\t4.5\tCONTRADICTION\n\n2\tA\tB\t1\tNEUTRAL\n"
    first, second = entailment.read(written(tmp_path, content))
    hypothesis = ("the", "man", "'s", "dog", "is", "n't", "here", ".")
    assert first == entailment.Pair(("a", "dog", "runs"), hypothesis, CONTRADICTION, (-1,) * 8)
    assert second.label == NEUTRAL
    packed = tmp_path / "pairs.tsv.xz"
    packed.write_bytes(lzma.compress(content.encode()))
    assert entailment.read(packed) == [first, second]


def test_a_file_of_snli_without_the_pairs_that_have_no_label(tmp_path):
    content = "gold_label\tx\tsentence1\tsentence2\n-\t\ta\tb\nentailment\t\tc d\te\n"
    assert entailment.read(written(tmp_path, content)) == [entailment.Pair(("c", "d"), ("e",), ENTAILMENT, (-1,))]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("", 1, "should name a column sentence_A or sentence1 or premise"),
        ("premise\tlabel\n", 1, "should name a column sentence_B or sentence2 or hypothesis, but has premise, label"),
        (
            "premise\thypothesis\n",
            1,
            "should name a column entailment_judgment or entailment_label or gold_label or label",
        ),
        (SICK, None, "should have labelled pairs of sentences, but has none"),
        (SICK + "1\ta\tb\n", 2, "should have 5 columns with tabs between, as the first line has, but has 3"),
        (
            SICK + "1\ta\tb\t1\tNEUTRAL\n2\ta\tb\t1\tMAYBE\n",
            3,
            "the label should be entailment, neutral, contradiction",
        ),
        (SICK + "1\t\tb\t1\tNEUTRAL\n", 2, "the premise should have words, but is empty"),
        (SICK + "1\ta\t \t1\tNEUTRAL\n", 2, "the hypothesis should have words, but is empty"),
    ],
)
def test_a_file_that_is_none_is_refused(content, line, reason, tmp_path):
    path = written(tmp_path, content)
    with pytest.raises(DataError) as raised:
        entailment.read(path)
    assert (raised.value.path, raised.value.line) == (path, line)
    assert reason in raised.value.reason


def pairs_file(tmp_path, count, name="train.tsv"):
    """Pairs that differ, with the words a0 … and b0 …"""
    rows = [f"{i}\ta{i} dog\tb{i} cat\t1\t{entailment.LABELS[i % 3].upper()}\n" for i in range(count)]
    return str(written(tmp_path, SICK + "".join(rows), name))


def test_tenths_of_the_training_file_are_held_out_where_there_are_no_other_files(tmp_path):
    train, other = pairs_file(tmp_path, 40), pairs_file(tmp_path, 12, "other.tsv")
    alone = recipe.from_files(recipe.Config(train_file=train))
    assert [len(alone[split]) for split in ("train", "valid", "test")] == [32, 4, 4]
    assert len({pair for pairs in alone.values() for pair in pairs}) == 40
    tested = recipe.from_files(recipe.Config(train_file=train, test_file=other))
    assert [len(tested[split]) for split in ("train", "valid", "test")] == [36, 4, 12]
    whole = recipe.from_files(recipe.Config(train_file=train, valid_file=other, test_file=other))
    assert len(whole["train"]) == 40


def test_a_premise_that_is_held_out_is_in_no_pair_to_train_on(tmp_path):
    rows = "".join(f"p{k // 3}\th{k}\tneutral\n" for k in range(90))
    path = written(tmp_path, f"premise\thypothesis\tlabel\n{rows}", "pairs.tsv")
    splits = recipe.from_files(recipe.Config(train_file=str(path)))
    premises = {split: {pair.premise for pair in pairs} for split, pairs in splits.items()}
    assert [len(pairs) for pairs in splits.values()] == [72, 9, 9]
    assert not premises["train"] & (premises["valid"] | premises["test"])


def test_held_out_pairs_are_not_made_again_to_train_on():
    with pytest.raises(RunError, match="`seed` should not be 1000002"):
        recipe.generated(recipe.Config(seed=recipe.TEST_SEED))


def test_files_that_are_missing_are_asked_for(tmp_path):
    with pytest.raises(RunError, match=r"at least 10 premises.*has 9. Try --valid-file"):
        recipe.Recipe(recipe.Config(train_file=pairs_file(tmp_path, 9)), CPU)
    with pytest.raises(RunError, match="need a `train_file`"):
        recipe.Recipe(recipe.Config(test_file=pairs_file(tmp_path, 9)), CPU)


def test_vectors_of_words(tmp_path):
    train, test = pairs_file(tmp_path, 40), pairs_file(tmp_path, 60, "test.tsv")
    vectors = written(tmp_path, "dog 1 2 3\na55 4 5 6\nother 7 8 9\n", "vectors.txt")
    task = recipe.Recipe(recipe.Config(train_file=train, test_file=test, vectors=str(vectors), size=4), CPU)
    weight = task.model.words.words.weight
    assert weight[task.vocabulary.numbers(["dog", "a55"])].tolist() == [[1, 2, 3], [4, 5, 6]]
    without = recipe.Recipe(recipe.Config(train_file=train, test_file=test, size=4), CPU)
    assert without.vocabulary.numbers(["a55"]) == [text.Vocabulary.UNKNOWN]


# ---------------------------------------------------------------- models


def test_every_choice_has_its_module():
    choices = get_type_hints(recipe.Config)
    assert set(ALIGNMENTS) == set(get_args(choices["alignment"]))
    assert set(MODELS) == set(get_args(choices["model"]))


def some_pairs(count=6):
    pairs = word_families.generate(count, seed=0, longest=8)
    vocabulary = text.Vocabulary.of(words for pair in pairs for words in (pair.premise, pair.hypothesis))
    return entailment.Pairs(pairs, vocabulary, CPU), len(vocabulary)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_padding_never_matters(model, alignment):
    """A pair has the same answer, alignment and gradients alone and among longer ones, whatever stands past its end."""
    torch.manual_seed(0)
    data, words = some_pairs()
    network = MODELS[model](words, 5, ALIGNMENTS[alignment](), 0.0).double()
    for parameter in network.alignment.parameters():
        torch.nn.init.normal_(parameter)
    batch = data.batch(torch.arange(6))
    assert len(batch.lengths.unique()) > 3
    padding = torch.arange(batch.sentences.shape[-1]) >= batch.lengths.unsqueeze(-1)
    together = network(batch.sentences.masked_fill(padding, words - 1), batch.lengths)
    weights = torch.randn(6, 3, dtype=torch.float64)
    gradients = torch.autograd.grad((together.logits * weights).sum(), list(network.parameters()))
    sums = [torch.zeros_like(gradient) for gradient in gradients]
    for row in range(6):
        one = data.batch(torch.tensor([row]))
        alone = network(one.sentences, one.lengths)
        torch.testing.assert_close(together.logits[row], alone.logits[0])
        n, m = one.lengths.tolist()
        for ours, theirs in zip(together.aligned, alone.aligned, strict=True):
            torch.testing.assert_close(ours[row, :n, :m], theirs[0, :n, :m])
            assert ours[row].count_nonzero() == ours[row, :n, :m].count_nonzero()
        found = torch.autograd.grad((alone.logits[0] * weights[row]).sum(), list(network.parameters()))
        sums = [total + gradient for total, gradient in zip(sums, found, strict=True)]
    for ours, theirs in zip(gradients, sums, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_words_read_the_other_sentence(name):
    torch.manual_seed(0)
    rows, columns = torch.tensor([5, 3]), torch.tensor([4, 5])
    of_premise, of_hypothesis = ALIGNMENTS[name]()(2 * torch.randn(2, 5, 5), rows, columns)
    for b, (n, m) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
        matched = name in ("matching", "sinkhorn")
        read, read_too = of_premise[b, :n, :m].sum(-1), of_hypothesis[b, :n, :m].sum(-2)
        # a matching leaves words of the longer sentence alone
        for sums, short in ((read, n <= m), (read_too, m <= n)):
            assert (sums <= 1 + 1e-5).all()
            assert torch.allclose(sums, torch.ones(())) == (short or not matched)
    dense = (of_premise[0, :5, :4] > 0).all()
    assert dense == (name in ("softmax", "sinkhorn"))


def test_a_sequence_prefers_the_steps_it_has_learnt():
    module = ALIGNMENTS["sequential"]()
    # to the next word
    module.of_premise.steps.data[3] = 50.0
    of_premise, of_hypothesis = module(torch.zeros(1, 4, 4), torch.tensor([4]), torch.tensor([4]))
    torch.testing.assert_close(of_premise[0], torch.eye(4))
    torch.testing.assert_close(of_hypothesis[0], torch.full((4, 4), 0.25))


# ---------------------------------------------------------------- the recipe


def trained(**settings):
    """A recipe after two steps, and the names of the parameters that learnt."""
    torch.manual_seed(0)
    task = recipe.Recipe(recipe.Config(train_size=120, size=6, batch_size=60, **settings), CPU)
    optimiser, generator = task.optimiser(), torch.Generator().manual_seed(0)
    touched = set()
    for indices in task.batches(0):
        ((loss, metrics),) = task.updates(indices, generator)
        assert loss.isfinite()
        assert 0 <= metrics["accuracy"] <= 1
        optimiser.zero_grad()
        loss.backward()
        touched |= {name for name, p in task.model.named_parameters() if p.grad is not None and p.grad.any()}
        optimiser.step()
    return task, touched


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("alignment", a_few_every_day(ALIGNMENTS, "softmax", "matching", "sequential"))
def test_every_choice_trains_and_draws(model, alignment):
    task, touched = trained(model=model, alignment=alignment)
    assert touched == {name for name, _ in task.model.named_parameters()}
    task.model.eval()
    with torch.no_grad():
        measured = task.evaluate("valid")
        drawn = task.drawings()
    assert set(measured) == {"loss", "accuracy", "nonzero", "aligned"}
    assert all(0 <= measured[name] <= 1 for name in ("accuracy", "nonzero", "aligned"))
    assert (measured["nonzero"] == 1) == (alignment in ("softmax", "sinkhorn"))
    assert len(drawn) == 8
    for drawing in drawn:
        assert structures.svg(drawing).count('class="gold"') == len(drawing["gold"]) > 0


def test_files_train_and_draw(tmp_path):
    path = pairs_file(tmp_path, 30)
    task, _ = trained(train_file=path, valid_file=path)
    with torch.no_grad():
        assert set(task.evaluate("test")) == {"loss", "accuracy", "nonzero"}
        assert not any(drawing["gold"] for drawing in task.drawings())


def test_measures_of_alignments_by_hand():
    pair = entailment.Pair(("a", "b", "c"), ("x", "y"), NEUTRAL, (1, -1))
    batch = entailment.Pairs([pair], text.Vocabulary("abcxy"), CPU).batch(torch.tensor([0]))
    assert batch.gold.nonzero().tolist() == [[0, 1, 0]]
    weights = torch.tensor([[[0.5, 0.5, 0], [0.7, 0.3, 0], [0, 0, 0]]])
    assert recipe.nonzero(Aligned(weights, weights), batch).tolist() == [8, 12]
    # both read the other most: b among its row, x among its column
    assert recipe.found(Aligned(weights, weights), batch).tolist() == [2, 2]
    assert recipe.found(Aligned(weights.roll(1, -1), weights), batch).tolist() == [1, 2]
    # who reads nothing finds nothing
    assert recipe.found(Aligned(0 * weights, 0 * weights), batch).tolist() == [0, 2]

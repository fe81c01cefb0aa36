"""Sentences with classes from a generator and from files, and that every kind of tree of the recipe learns."""

import lzma
from typing import get_args

import pytest
import torch
from every_day import a_few_every_day

import structmax
from structmax.plots import structures
from structmax.recipes import sentiment as recipe
from structmax.recipes.data import sentiment
from structmax.recipes.models import dependency_encoders as encoders
from structmax.training import DataError, RunError

CPU = torch.device("cpu")
FORMATS = {
    "lines": "1 it works\n0\tit fails\n",
    "brackets": "(3 (2 it) (4 works))\n(1 (2 it) (1 fails))\n(2 it)\n",
    "columns": "# instance 1\n1\tit\tit\tPRP\t1\n2\tworks\twork\tVBZ\t1\n\n"
    "# instance 2\n1\tit\tit\tPRP\t0\n2\tfails\tfail\tVBZ\t0\n",
    "treebank": "# label = 1\n1\tit\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tworks\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    "# label = 0\n1\tit\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tfails\t_\tVERB\t_\t_\t0\troot\t_\t_\n",
}


def judged(example):
    """The class of a generated sentence, by its tree alone: a word says its opposite if a negator hangs on it."""
    praised = blamed = 0
    for place, word in enumerate(example.words, 1):
        stem, _, gender = word.partition(".")
        hanging = [other for other, head in zip(example.words, example.heads, strict=True) if head == place]
        if stem in sentiment.PRAISE + sentiment.BLAME:
            assert hanging in ([], [f"not.{gender}"])
            if (stem in sentiment.PRAISE) != bool(hanging):
                praised += 1
            else:
                blamed += 1
    return "positive" if praised > blamed else "negative"


def test_the_tree_tells_the_class_of_a_generated_sentence():
    found = sentiment.generate(2000, seed=0)
    assert all(judged(example) == example.label for example in found)
    assert len({example.words for example in found}) == 2000
    assert found == sentiment.generate(2000, seed=0)
    assert not {e.words for e in found} & {e.words for e in sentiment.generate(100, seed=0, without=found)}
    # and its words do not
    positive = [e for e in found if e.label == "positive"]
    praised = sum(w.startswith(sentiment.PRAISE) for e in positive for w in e.words) / (3 * len(positive))
    assert 0.45 < praised < 0.55
    heads = torch.nn.utils.rnn.pad_sequence([torch.tensor(e.heads) for e in found], batch_first=True)
    trees = structmax.SpanningTree(torch.tensor([len(e.heads) for e in found]), single_root=True)
    arcs = trees.encode(heads)
    torch.testing.assert_close(structmax.argmax(arcs, trees), arcs)


@pytest.mark.parametrize("form", FORMATS)
def test_files(form, tmp_path):
    if form == "treebank":
        pytest.importorskip("conllu")
    path = tmp_path / "file.xz"
    path.write_bytes(lzma.compress(FORMATS[form].encode()))
    first, second = sentiment.read(path)
    assert (first.words, second.words) == (("it", "works"), ("it", "fails"))
    assert (first.label, second.label) == (("positive", "negative") if form == "brackets" else ("1", "0"))
    assert first.heads == ((2, 0) if form == "treebank" else ())


def test_five_classes_and_other_encodings(tmp_path):
    path = tmp_path / "trees.txt"
    path.write_text(FORMATS["brackets"])
    assert [e.label for e in sentiment.read(path, classes=5)] == ["3", "1", "2"]
    path.write_bytes("1 café\n".encode("latin-1"))
    assert sentiment.read(path, encoding="latin-1")[0].words == ("café",)
    with pytest.raises(DataError, match="not UTF-8 text"):
        sentiment.read(path)


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("\n", None, "should have sentences with a class, but is empty"),
        ("1 it works\n0\n", 2, "should be a class and words, but has only '0'"),
        ("(3 (2 it) (4 works)\n", 1, "brackets do not match"),
        ("(3 it)\n) 3 it (\n", 2, "brackets do not match"),
        ("(3 it)\n(3 (2 it)) (4 works)\n", 2, "should be one tree, but something follows it"),
        ("(3 it)\n(7 it)\n", 2, "a class should be a digit from 0 to 4, but one is '7'"),
        ("(2 it)\n", None, "but all are left out"),
        ("# instance 1\n1\tit\tit\tPRP\n", 2, "with tabs between, but has 4 columns"),
        ("# instance 1\n2\tit\tit\tPRP\t1\n", 2, "this word should have the number 1, but has 2"),
        ("# instance 1\n1\tit\tit\tPRP\t1\n2\tis\tbe\tVB\t0\n", 3, "the class should be 1, as before, but is 0"),
        ("# instance 1\n\n", 1, "should begin a sentence, but no words follow"),
        (FORMATS["treebank"].replace("# label = 0\n", ""), 5, "with one comment `# label = x`, but it has 0"),
        (FORMATS["treebank"].replace("label = 1", "label = 1\n# label = 1"), 1, "but it has 2"),
        (FORMATS["treebank"].replace("2\tnsubj", "9\tnsubj", 1), 2, "the head should be another word"),
    ],
)
def test_a_file_that_is_malformed_is_refused(content, line, reason, tmp_path):
    pytest.importorskip("conllu")
    path = tmp_path / "file.txt"
    path.write_text(content)
    with pytest.raises(DataError) as raised:
        sentiment.read(path)
    assert (raised.value.path, raised.value.line) == (path, line)
    assert reason in raised.value.reason


def trained(steps=2, **settings):
    """A recipe after a few steps, and the names of the parameters that got a gradient."""
    settings = {"composer": "gcn" if settings.get("tree") in ("marginals", "gumbel") else "tree_lstm"} | settings
    config = recipe.Config(**({"train_size": 60, "size": 8, "batch_size": 20} | settings))
    torch.manual_seed(0)
    task = recipe.Recipe(config, CPU)
    optimiser, generator = task.optimiser(), torch.Generator().manual_seed(0)
    touched = set()
    for indices in task.batches(0)[:steps]:
        for loss, metrics in task.updates(indices, generator):
            assert loss.isfinite()
            assert 0 <= metrics["accuracy"] <= 1
            optimiser.zero_grad()
            loss.backward()
            touched |= {name for name, p in task.model.named_parameters() if p.grad is not None and p.grad.any()}
            optimiser.step()
    for split in ("valid", "test"):
        # fewer are evaluated faster
        task.data[split] = sentiment.Sentences(task.data[split].examples[:40], task.vocabulary, task.labels, CPU)
    task.model.eval()
    return task, touched


FLAT = "flat tree_lstm"
EVERY_DAY = ["none tree_lstm", "given gcn", "sparsemap gcn", "sparse_marginalisation tree_lstm"]
PAIRS = [
    f"{tree} {composer}"
    for tree in get_args(recipe.Tree)
    for composer in ("tree_lstm", "gcn")
    if not (composer == "tree_lstm" and tree in ("marginals", "gumbel"))
    and not (composer == "gcn" and tree in ("none", "structured_attention"))
]


@pytest.mark.parametrize("pair", a_few_every_day(PAIRS, *EVERY_DAY))
def test_every_tree_learns_all_its_parameters(pair):
    tree, composer = pair.split()
    task, touched = trained(tree=tree, composer=composer)
    # nothing hangs on a word in a flat tree
    idle = {f"encoder.composer.lstm.{name}.weight" for name in ("subtrees", "forget")} if pair == FLAT else set()
    assert touched == {name for name, _ in task.model.named_parameters()} - idle
    with torch.no_grad():
        found = task.evaluate("valid")
        drawn = task.drawings()
    assert 0 <= found["accuracy"] <= 1
    assert ("attachment" in found) == (tree != "none")
    assert ("trees" in found) == tree.startswith("sparse")
    assert found.get("trees", 1.0) >= 1
    if tree == "given":
        assert found["attachment"] == found["undirected"] == 1
    assert len(drawn) == 8
    assert all(structures.svg(drawing).startswith("<svg") for drawing in drawn)


@pytest.mark.parametrize("tree", ["marginals", "gumbel"])
def test_soft_arcs_have_no_order_for_a_tree_lstm(tree):
    with pytest.raises(ValueError, match="`composer` should be gcn with the soft arcs"):
        recipe.Config(tree=tree)


def test_held_out_files_come_with_one_to_train_on():
    with pytest.raises(ValueError, match="`train_file` should be given with `test_file`"):
        recipe.Config(test_file="test.txt")


def test_agreement():
    batch = sentiment.Batch(
        torch.zeros(2, 3).long(),
        torch.tensor([3, 2]),
        torch.tensor([[2, 0, 2], [-1, -1, 0]]),
        *torch.zeros(2, 2).long(),
    )
    # the first word is the head of the second, the third hangs on the second
    found = recipe.agreement(torch.tensor([[0, 1, 2], [0, 1, -1]]), batch)
    assert found["attachment"].tolist() == [1, 3]
    assert found["undirected"].tolist() == [2, 3]


def test_a_part_of_the_training_file_is_held_out(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("".join(f"{k % 2} word{k} here\n" for k in range(40)))
    splits = recipe.read(recipe.Config(train_file=str(path)))
    assert {split: len(examples) for split, examples in splits.items()} == {"train": 32, "valid": 4, "test": 4}
    assert len({e.words for examples in splits.values() for e in examples}) == 40
    task, _ = trained(train_file=str(path), tree="flat")
    with torch.no_grad():
        assert set(task.evaluate("test")) == {"accuracy"}
        assert structures.svg(task.drawings()[0]).startswith("<svg")
    with pytest.raises(RunError, match="should have heads for --tree given"):
        recipe.read(recipe.Config(train_file=str(path), tree="given"))
    other = tmp_path / "test.txt"
    other.write_text("7 word1\n")
    with pytest.raises(DataError, match="classes should be those of the training file, 0, 1, but one is '7'"):
        recipe.read(recipe.Config(train_file=str(path), test_file=str(other)))
    path.write_text("1 it works\n")
    with pytest.raises(RunError, match="too few to part"):
        recipe.read(recipe.Config(train_file=str(path)))


def test_word_vectors(tmp_path):
    path, vectors = tmp_path / "train.txt", tmp_path / "vectors.txt"
    path.write_text(10 * "1 It works\n0 it fails\n")
    vectors.write_text("it 1 2 3\nworks 4 5 6\n")
    task, touched = trained(train_file=str(path), vectors=str(vectors), tuned=False, tree="flat")
    torch.testing.assert_close(task.model.words.weight[task.vocabulary.index["it"]], torch.tensor([1.0, 2.0, 3.0]))
    assert "words.weight" not in touched
    task, touched = trained(train_file=str(path), vectors=str(vectors), tree="flat")
    assert "words.weight" in touched


@pytest.mark.parametrize("tree", ["sparse_marginalisation", "sparse_likelihood"])
def test_trees_are_judged_one_by_one(tree):
    task, _ = trained(tree=tree, steps=0)
    batch = task.data["valid"].batch(torch.arange(5))
    encoded = task.model(batch)
    assert len(encoded.states) > 5
    torch.testing.assert_close(torch.zeros(5).index_add(0, encoded.sentence, encoded.weights), torch.ones(5))
    task.data["train"] = task.data["valid"]
    ((loss, _),) = task.updates(torch.arange(5), torch.Generator())
    wanted = 0.0
    for row in range(5):
        mine = encoded.sentence == row
        log_probs = task.model.classifier(encoded.states[mine]).log_softmax(-1)[:, batch.labels[row]]
        weights = encoded.weights[mine]
        wanted -= weights @ log_probs if tree == "sparse_marginalisation" else (weights @ log_probs.exp()).log()
    torch.testing.assert_close(loss, wanted / 5)


def test_a_loss_that_is_far_from_the_others_keeps_its_digits():
    encoded = encoders.Encoded(torch.zeros(3, 1), torch.tensor([0, 0, 1]), torch.tensor([0.5, 0.5, 1.0]), None)
    found = recipe.log_of_mean(encoded, torch.tensor([200.0, 300.0, 1.0]), 2)
    torch.testing.assert_close(found, torch.tensor([200.0 + torch.tensor(2.0).log(), 1.0]))


def test_padding_changes_nothing():
    lengths, words = torch.tensor([4, 2]), torch.randn(2, 4, 5)
    for encoder in (
        encoders.WithoutTree(5, 6),
        encoders.StructuredAttention(5, 6, lambda n: structmax.SpanningTree(n, single_root=True)),
        encoders.FixedTree(encoders.TreeLSTM(5, 6), "left_to_right"),
        encoders.FixedTree(encoders.Convolution(5, 6), "flat"),
    ):
        alone = encoder(words[1:, :2], lengths[1:]).states
        torch.testing.assert_close(encoder(words, lengths).states[1:], alone)


def test_a_class_that_is_held_out_alone_is_known(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("".join(f"{k} so{k}\n" for k in range(30)), encoding="utf-8")
    task = recipe.Recipe(recipe.Config(tree="none", train_file=str(path)), CPU)
    assert len(task.labels) == 30


def test_treebanks_are_utf8_and_classes_have_one_digit(tmp_path):
    path = tmp_path / "file"
    path.write_text("1\tso\tso\tADV\t_\t_\t0\troot\t_\t_\n", encoding="utf-8")
    with pytest.raises(DataError, match="CoNLL-U files should be UTF-8, but `encoding` is latin1"):
        sentiment.read(path, encoding="latin1")
    path.write_text("(12 (2 It) (4 works))\n", encoding="utf-8")
    with pytest.raises(DataError, match="a class should be a digit from 0 to 4, but one is '12'"):
        sentiment.read(path)

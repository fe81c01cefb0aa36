"""Generated sentences and their graphs, the parts of the recipe, and that every choice of it learns."""

import itertools
from collections import Counter
from typing import get_args

import pytest
import torch
from every_day import a_few_every_day

import structmax
from structmax.plots import structures
from structmax.recipes import joint as recipe
from structmax.recipes.data import conllu, scenes, semantic_graphs
from structmax.recipes.models import semantics
from structmax.training import DataError, RunError

CPU = torch.device("cpu")


def sentence(words, heads, graph):
    blank = ("_",) * len(heads)
    return conllu.Sentence(tuple(words.split()), blank, heads, blank, graph)


# ---------------------------------------------------------------- generated sentences


def agents(s):
    """Who does what, worked out from the tree alone."""
    labels = dict(enumerate(s.labels, 1))
    heads = dict(enumerate(s.heads, 1))
    below = {v: [m for m in heads if heads[m] == v] for v in range(len(s) + 1)}

    def child(verb, label):
        return next((m for m in below[verb] if labels[m] == label), None)

    def agent(verb):
        subject = child(verb, "nsubj")
        if labels[verb] == "acl" and s.tags[subject - 1] == "PRON":
            return heads[verb]
        if subject is not None:
            return subject
        if labels[verb] == "conj":
            return agent(heads[verb])
        # an infinitive: the object of its verb if that tells somebody something
        above = heads[verb]
        tells = s.words[above - 1].removesuffix("s") in scenes.TELLS
        return child(above, "obj") if tells else agent(above)

    return {(agent(m), m) for m in heads if s.tags[m - 1] == "VERB"}


def test_graphs_follow_from_trees():
    for s in scenes.generate(500, seed=0):
        said = {(m, head) for m, arcs in enumerate(s.graph, 1) for head, label in arcs if label == "agent"}
        assert said == agents(s)
        assert sum(head == 0 for arcs in s.graph for head, _ in arcs) == 1


def test_generated_sentences_are_different_trees():
    found = scenes.generate(1000, seed=0)
    assert len({s.words for s in found}) == 1000
    assert found == scenes.generate(1000, seed=0)
    assert found != scenes.generate(1000, seed=1)
    assert max(len(s) for s in found) == 24
    assert not {s.words for s in found} & {s.words for s in scenes.generate(200, seed=0, without=found)}
    for s in found:
        tree = structmax.SpanningTree(torch.tensor([len(s)]), single_root=True)
        tree.encode(torch.tensor([s.heads]))
    # many arcs of graphs are not in the tree
    beyond = Counter(head == s.heads[m] for s in found for m, arcs in enumerate(s.graph) for head, _ in arcs)
    assert 0.15 < beyond[False] / beyond.total() < 0.3


def test_kinds_of_words_decide_the_tree():
    """Sentences that differ only in the choice of words of the same kind and number have the same tree."""
    verbs = {
        verb: kind
        for kind, verbs in enumerate((scenes.RESTS, scenes.ACTS, scenes.WANTS, scenes.TELLS))
        for verb in verbs
    }
    trees = {}
    for s in scenes.generate(4000, seed=0):
        kinds = []
        for word, tag in zip(s.words, s.tags, strict=True):
            known = verbs.get(word, verbs.get(word.removesuffix("s")))
            named = word if tag in ("PRON", "PART", "CCONJ", "ADP") else tag
            kinds.append((named, known, tag in ("NOUN", "VERB") and word.endswith("s")))
        assert trees.setdefault(tuple(kinds), s.heads) == s.heads
    assert len(trees) < 4000


def test_the_main_verb_decides_the_class():
    s = sentence("cats who sleep badly sing well", (5, 3, 1, 3, 0, 5), ((),) * 6)
    tagged = conllu.Sentence(s.words, ("NOUN", "PRON", "VERB", "ADV", "VERB", "ADV"), s.heads, s.labels)
    assert scenes.is_good(tagged) is True
    assert scenes.is_good(conllu.Sentence(s.words[:5], tagged.tags[:5], s.heads[:5], s.labels[:5])) is None


# ---------------------------------------------------------------- graphs


def test_graphs_as_tensors():
    first = sentence("a b c", (2, 0, 2), (((2, "x"), (3, "y")), ((0, "top"),), ()))
    second = sentence("d", (0,), (((0, "never seen"),),))
    known = semantic_graphs.labels([first])
    graphs = semantic_graphs.Graphs([first, second], known, CPU).at(torch.tensor([1, 0]), 3)
    assert graphs.shape == (2, 4, 3)
    assert graphs[0].nonzero().tolist() == [[0, 0]]
    assert graphs[0, 0, 0] == known.UNKNOWN
    found = {(h, m + 1, known.words[graphs[1, h, m]]) for h, m in graphs[1].nonzero().tolist()}
    assert found == {(2, 1, "x"), (3, 1, "y"), (0, 2, "top")}
    few = semantic_graphs.Graphs([first], known, CPU, most_heads=1).at(torch.tensor([0]), 3)
    assert few.nonzero().tolist() == [[0, 0, 1], [0, 2, 0]]
    none = semantic_graphs.Graphs([sentence("a", (0,), ())], known, CPU).at(torch.tensor([0]), 1)
    assert not none.any()


@pytest.mark.parametrize(("N", "most_heads"), [(1, 1), (2, 1), (3, 2), (3, 4)])
def test_the_best_graph_is_the_best_of_all(N, most_heads):
    graph = semantics.constraints(N, most_heads)
    inside = (torch.arange(N + 1).unsqueeze(-1) != torch.arange(1, N + 1)).unsqueeze(0)
    scores = torch.randn(20, N + 1, N, generator=torch.Generator().manual_seed(N)).double() - 0.5
    found = structmax.argmax({"arc": scores}, graph.masked({"arc": inside}))["arc"]
    places = inside[0].nonzero().tolist()
    every = []
    for on in itertools.product((0.0, 1.0), repeat=len(places)):
        arcs = torch.zeros(N + 1, N).double()
        for (h, m), value in zip(places, on, strict=True):
            arcs[h, m] = value
        if arcs[0].any() and arcs.sum(0).max() <= most_heads:
            every.append(arcs)
    best = torch.einsum("bhm,khm->bk", scores, torch.stack(every)).amax(1)
    torch.testing.assert_close((scores * found).sum((1, 2)), best)


def test_agreement_counts_arcs():
    parser = semantics.GraphParser(4, 4, 5, 2)
    gold = sentence("a b c", (2, 0, 2), (((2, "x"), (3, "x")), ((0, "top"),), ()))
    known = semantic_graphs.labels([gold])
    batch = recipe.Corpus(
        [gold], semantic_graphs.Graphs([gold], known, CPU), [0], recipe.treebank.Vocabularies.of([gold]), CPU
    ).batch(torch.tensor([0]))
    found = torch.zeros_like(batch.graph)
    # right and in the tree; right and beyond it, but for its label; in the tree and wrong
    found[0, 0, 1], found[0, 3, 0], found[0, 2, 2] = known.index["top"], known.index["top"], known.index["x"]
    counts = {name: value.tolist() for name, value in parser.agreement(found, batch).items()}
    assert counts == {"score": [1, 3, 3], "unlabelled": [2, 3, 3], "beyond": [0, 1, 1]}
    perfect = parser.agreement(batch.graph, batch)
    assert all(right == found == wanted for right, found, wanted in perfect.values())


# ---------------------------------------------------------------- the recipe


def trained(steps=2, **settings):
    """A recipe after a few steps of each kind."""
    config = recipe.Config(
        **{
            "train_size": 40,
            "tree_size": 40,
            "batch_size": 8,
            "size": 8,
            "word_size": 8,
            "hidden": 8,
            "pretrain": 1,
            "rehearse": False,
        }
        | {"dropout": 0.0, "word_dropout": 0.0}
        | settings
    )
    torch.manual_seed(0)
    task = recipe.Recipe(config, CPU)
    optimiser, generator = task.optimiser(), torch.Generator().manual_seed(0)
    touched = {}
    for epoch in (0, 1):
        touched[epoch] = set()
        for indices in task.batches(epoch)[:steps]:
            for loss, _ in task.updates(indices, generator):
                assert loss.isfinite()
                optimiser.zero_grad()
                loss.backward()
                touched[epoch] |= {n for n, p in task.model.named_parameters() if p.grad is not None and p.grad.any()}
                optimiser.step()
    return task, touched


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch):
    monkeypatch.setattr(recipe, "HELD_OUT", 12)


def parts(names):
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("task", ["semantic", "sentiment"])
@pytest.mark.parametrize(
    "method", a_few_every_day(get_args(recipe.Method), "pipeline", "spigot", "structured_attention")
)
def test_every_method_learns(method, task):
    made, touched = trained(method=method, task=task)
    assert parts(touched[0]) == {"parser"}
    through = set() if method == "pipeline" else {"parser"}
    assert parts(touched[1]) == {"reader", "head_words", "end"} | through
    everything = {name for name, _ in made.model.named_parameters()}
    assert touched[0] | touched[1] == everything
    made.model.eval()
    with torch.no_grad():
        found, drawn = made.evaluate("test"), made.drawings()
    assert set(found) == ({"score", "unlabelled", "beyond", "uas"} if task == "semantic" else {"score", "uas"})
    assert all(0 <= value <= 1 for value in found.values())
    assert len(drawn) == (10 if task == "semantic" else 5)
    assert all(structures.svg(drawing).startswith("<svg") for drawing in drawn)


@pytest.mark.parametrize("settings", [{"projection": "simplices"}, {"tree_loss": "margin"}, {"rehearse": True}])
def test_other_choices(settings):
    task, touched = trained(**settings)
    assert "parser" in parts(touched[1])
    if "rehearse" in settings:
        kinds = [bool((batch >= len(task.train)).all()) for batch in task.batches(1)]
        assert kinds == [False, True] * 5


def test_the_parser_is_slower_once_the_task_uses_its_trees():
    task = recipe.Recipe(recipe.Config(train_size=4, tree_size=4, size=4, hidden=4, parser_rate=0.25), CPU)
    parser, rest = task.optimiser().param_groups
    assert [task.rate(parser, epoch) for epoch in (0, 3, 4, 9)] == [1, 1, 0.25, 0.25]
    assert [task.rate(rest, epoch) for epoch in (0, 3, 4, 9)] == [1] * 4
    by_rate = [{id(p) for p in group["params"]} for group in (parser, rest)]
    assert by_rate[0] == {id(p) for p in task.model.parser.parameters()}
    assert by_rate[0] | by_rate[1] == {id(p) for p in task.model.parameters()}
    assert not by_rate[0] & by_rate[1]


def test_no_sentence_is_trained_on_and_tested():
    for task in ("semantic", "sentiment"):
        data = recipe.generated(recipe.Config(task=task, train_size=300, tree_size=600))
        held_out = {s.words for name in ("valid", "test") for s in data.splits[name].sentences}
        assert len(held_out) == 24
        assert not held_out & {s.words for s in [*data.splits["train"].sentences, *data.trees]}


LINES = """1\tshe\tshe\tPRON\t_\t_\t2\tnsubj\t2:nsubj|3:nsubj\t_
2\thopes\thope\tVERB\t_\t_\t0\troot\t0:root\t_
3\tswimming\tswim\tVERB\t_\t_\t2\txcomp\t2:xcomp\t_

"""


def files(tmp_path, lines=LINES):
    paths = {f"{name}_file": tmp_path / f"{name}.conllu" for name in ("train", "valid", "test")}
    for path in paths.values():
        path.write_text(lines)
    return {name: str(path) for name, path in paths.items()}


def test_files(tmp_path):
    task, _ = trained(**files(tmp_path))
    assert len(task.train) == len(task.trees) == 1
    assert task.labels[2:] == ["nsubj", "root", "xcomp"]
    with torch.no_grad():
        assert task.evaluate("test")["uas"] <= 1


def test_long_sentences_are_not_drawn(tmp_path):
    lines = [f"{k}\tso\tso\tADV\t_\t_\t{k - 1}\tdep\t{k - 1}:dep\t_\n" for k in range(1, 31)]
    task, _ = trained(steps=0, **files(tmp_path, "".join(lines)))
    assert task.drawings() == []


def test_files_that_are_missing(tmp_path):
    given = files(tmp_path)
    del given["test_file"]
    with pytest.raises(ValueError, match="should be given together, but `test_file` is missing"):
        recipe.Config(**given)


def test_files_without_graphs(tmp_path):
    bare = LINES.replace("2:nsubj|3:nsubj", "_").replace("0:root", "_").replace("2:xcomp", "_")
    with pytest.raises(DataError, match=r"train\.conllu: should have graphs in the column DEPS, but has none"):
        recipe.Recipe(recipe.Config(**files(tmp_path, bare)), CPU)


def with_classes(tmp_path, trees=2):
    given = files(tmp_path, "good it works\nbad it fails\n")
    tree_file = tmp_path / "trees.conllu"
    tree_file.write_text(trees * LINES)
    return given | {"task": "sentiment", "tree_file": str(tree_file)}


def test_files_with_classes(tmp_path):
    given = with_classes(tmp_path, trees=11)
    task, _ = trained(**given)
    assert [len(task.train), len(task.trees), len(task.parsed["test"])] == [2, 9, 2]
    assert task.train.classes.tolist() == [1, 0]
    with torch.no_grad():
        assert set(task.evaluate("test")) == {"score", "uas"}
        assert len(task.drawings()) == 5


def test_wrong_files_with_classes(tmp_path):
    given = with_classes(tmp_path)
    with pytest.raises(RunError, match=r"there should be trees to teach the parser. Give --tree-file"):
        recipe.Recipe(recipe.Config(**given | {"tree_file": ""}), CPU)
    (tmp_path / "test.conllu").write_text("odd it works\n")
    with pytest.raises(DataError, match=r"test\.conllu: classes should be among bad, good, but one is odd"):
        recipe.Recipe(recipe.Config(**given), CPU)
    with pytest.raises(DataError, match=r"trees\.conllu: should have at least 2 trees, .* but has 1"):
        recipe.Recipe(recipe.Config(**with_classes(tmp_path, trees=1)), CPU)


def test_settings_that_would_train_nothing_are_refused():
    with pytest.raises(ValueError, match="`pretrain` should be less than `epochs`, 3, but is 4"):
        recipe.Config(epochs=3)
    with pytest.raises(ValueError, match="`train_file` should be given with `tree_file`"):
        recipe.Config(tree_file="trees.conllu")


def test_graphs_without_a_root_teach_nothing(tmp_path):
    rootless = LINES.replace("0:root", "_")
    task, _ = trained(steps=0, **files(tmp_path, f"{LINES}\n{rootless}"))
    assert len(task.train) == 1
    assert len(task.held_out["valid"]) == 2
    with pytest.raises(DataError, match="should have graphs with a word below the root, but has none"):
        trained(steps=0, **files(tmp_path, rootless))

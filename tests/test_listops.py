"""The ListOps data, and that every encoder of the recipe learns from it."""

import gzip
import lzma
import signal
from typing import get_args

import pytest
import torch
from every_day import a_few_every_day

import structmax
from structmax.plots import structures
from structmax.recipes import listops as recipe
from structmax.recipes.data import listops, text
from structmax.training import DataError, Interrupted, RunError, RunFolder, Watcher, run

CPU = torch.device("cpu")


def evaluated(tokens):
    """The value of an expression, by a stack."""
    stack = [[]]
    for token in tokens:
        if token < 10:
            stack[-1].append(token)
        elif listops.TOKENS[token] == "]":
            operator, *values = stack.pop()
            stack[-1].append(listops.apply(operator, values))
        else:
            stack.append([listops.TOKENS[token]])
    ((value,),) = stack
    return value


def numbers(text):
    return tuple(listops.INDEX[word] for word in text.split())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[MIN 2 9 [MAX 4 7 ] 1 ]", 1),
        ("[SM 6 5 9 0 ]", 0),
        ("[MED 1 9 5 ]", 5),
        ("[MED 1 2 ]", 1),
        ("[MED 9 3 4 8 ]", 6),
    ],
)
def test_values(text, value):
    assert evaluated(numbers(text)) == value


def test_generated_expressions():
    found = listops.generate(3000, seed=0, longest=40)
    assert all(evaluated(e.tokens) == e.value for e in found)
    assert len({e.tokens for e in found}) == 3000
    assert max(len(e.tokens) for e in found) == 40
    assert found == listops.generate(3000, seed=0, longest=40)
    assert found != listops.generate(3000, seed=1, longest=40)
    without = listops.generate(100, seed=0, longest=40, without=found)
    assert not {e.tokens for e in found} & {e.tokens for e in without}


@pytest.mark.thorough
def test_lengths_are_those_of_the_published_data():
    # its mean is 42.8, its median 16, a tenth is longer than 106
    lengths = torch.tensor([float(len(e.tokens)) for e in listops.generate(90_000, seed=0)])
    assert 41 < lengths.mean() < 44
    assert lengths.median() == 16
    assert 102 < lengths.quantile(0.9) < 110


def test_gold_trees_take_arguments_from_the_left():
    tokens = numbers("[MAX 2 [MIN 4 7 ] 0 ]")
    inner = [(2, 3), (2, 4), (2, 5)]
    assert sorted(listops.spans(tokens)) == sorted([(0, 1), *inner, (0, 5), (0, 6), (0, 7)])
    data = listops.ListOps([listops.Expression(tokens, 4), listops.Expression((3,), 3)], CPU)
    batch = data.batch(torch.tensor([1, 0]))
    assert batch.lengths.tolist() == [1, 8]
    assert batch.values.tolist() == [3, 4]
    # they are trees: a Tree-LSTM takes them, and a parser could find them
    structmax.nn.BinaryTreeLSTM(2, 2)(torch.zeros(2, 8, 2), batch.gold)
    parts = structmax.argmax(batch.gold, structmax.BinaryTree(batch.lengths))
    torch.testing.assert_close(parts, batch.gold)


def test_batches_have_all_that_is_short_enough_once():
    data = listops.ListOps(listops.generate(500, seed=0, longest=30), CPU)
    batches = text.by_length(data.lengths, 16, torch.Generator().manual_seed(0), 20)
    assert torch.cat(batches).sort().values.tolist() == (data.lengths <= 20).nonzero().squeeze(-1).tolist()
    spread = torch.tensor([float(data.lengths[b].max() - data.lengths[b].min()) for b in batches])
    assert spread.mean() < 3


@pytest.mark.parametrize(("suffix", "opened"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_published_files(tmp_path, suffix, opened):
    path = tmp_path / f"test.tsv{suffix}"
    with opened(path, "wt") as file:
        file.write("9\t( ( ( [MAX 2 ) 9 ) ] )\n3\t3\n")
    assert listops.read(path) == [listops.Expression(numbers("[MAX 2 9 ]"), 9), listops.Expression((3,), 3)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("9 ( [MAX 2 ) ] )", "has no tab"),
        ("11\t( [MAX 2 ) ] )", "should be a digit, but is '11'"),
        ("9\t( ( [AVG 2 ) ] )", r"unknown token '\[AVG'"),
        ("9\t( ( [MAX 2 ) 9 )", "brackets do not match"),
        ("9\t2 ]", "brackets do not match"),
        ("9\t2 9", "not exactly one expression"),
        ("9\t[MAX ]", "brackets do not match"),
        ("9\t", "brackets do not match"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, reason):
    path = tmp_path / "bad.tsv"
    path.write_text(f"3\t3\n{line}\n")
    with pytest.raises(DataError, match=rf"bad\.tsv:2: .*{reason}"):
        listops.read(path)


def test_bad_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.tsv: there is no such file"):
        listops.read(tmp_path / "none.tsv")
    path = tmp_path / "binary.tsv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"binary\.tsv: not UTF-8"):
        listops.read(path)
    with pytest.raises(DataError, match=r"should be a file of expressions, but cannot be read \(.*Is a directory"):
        listops.read(tmp_path)


@pytest.mark.parametrize("name", ["none.gz", "cut.gz", "none.xz"])
def test_bad_archives_are_named(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"3\t3\n")[:-9] if name == "cut.gz" else b"3\t3\n")
    with pytest.raises(DataError, match=rf"{name}: should be a file of expressions, but cannot be read"):
        listops.read(path)


def test_files_without_a_fitting_expression(tmp_path):
    path = tmp_path / "few.tsv"
    path.write_text("")
    with pytest.raises(DataError, match=r"few\.tsv: should have expressions, but none of its 0 lines is one"):
        listops.read(path)
    path.write_text("9\t[MAX 2 9 ]\n")
    with pytest.raises(DataError, match=r"should have expressions of at most 3 tokens, but none of its 1 lines is one"):
        listops.read(path, longest=3)


def test_more_expressions_than_there_are():
    with pytest.raises(RunError, match=r"401 different expressions of at most 4 tokens, but only 400 were found"):
        listops.generate(401, seed=0, longest=4)


def test_no_validation_on_what_a_file_trains_on(tmp_path):
    path = tmp_path / "train.tsv"
    lines = [(e, " ".join(listops.TOKENS[t] for t in e.tokens)) for e in listops.generate(500, recipe.VALID_SEED, 12)]
    path.write_text("".join(f"{e.value}\t{text}\n" for e, text in lines))
    task = recipe.Recipe(recipe.Config(train_file=str(path), longest=12, size=8, encoder="lstm"), CPU)
    assert len(task.train) == 500
    assert not set(task.train.expressions) & set(task.held_out["valid"].expressions)


def trained(steps=3, size=8, **settings):
    """A recipe after a few steps."""
    config = recipe.Config(train_size=200, longest=12, size=size, batch_size=40, curriculum=0, **settings)
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
    return task, touched


@pytest.mark.parametrize("encoder", a_few_every_day(get_args(recipe.Name), "lstm", "sparse_marginalisation", "ppo"))
def test_every_encoder_learns_all_its_parameters(encoder):
    task, touched = trained(encoder=encoder)
    assert touched == {name for name, _ in task.model.named_parameters()}
    task.model.eval()
    with torch.no_grad():
        found = task.evaluate("valid")
        drawn = task.drawings()
    assert 0 <= found["accuracy"] <= 1
    for agreement in ("f1", "brackets"):
        assert (agreement in found) == (encoder != "lstm")
        assert found.get(agreement, 1.0) == 1.0 if encoder in ("lstm", "gold") else 0 <= found[agreement] <= 1
    assert all(structures.svg(drawing).startswith("<svg") for drawing in drawn)
    # what is no bracket of the grammar is never wrong, and its brackets are those of its own tree
    assert any(drawing["brackets"] for drawing in drawn)
    assert all(span in drawing["trees"]["gold"] for drawing in drawn for span in drawing["brackets"])


@pytest.mark.parametrize("encoder", ["gold", "sparse_marginalisation"])
def test_an_expression_counts_once(encoder):
    """However many trees it has, which differ in number, and in the loss at first by next to nothing."""
    task, _ = trained(encoder=encoder, steps=0)
    batch = task.batches(0)[0]
    ((loss, reported),) = task.updates(batch, torch.Generator())
    torch.testing.assert_close(reported["loss"], loss, atol=1e-3, rtol=0)
    values = task.train.batch(batch).values
    task.model.classifier[-1].bias.data[3] = 100.0
    ((_, reported),) = task.updates(batch, torch.Generator())
    torch.testing.assert_close(reported["accuracy"], (values == 3).float().mean())


def test_the_parser_of_ppo_is_kept_after_its_epochs():
    task, _ = trained(encoder="ppo", steps=0, policy_epochs=2)
    once, later = task.batches(1), task.batches(2)
    assert max(int(indices.max()) for indices in once) < len(task.train)
    # every expression still comes once
    assert torch.equal(torch.cat(later).sort().values, len(task.train) + torch.arange(len(task.train)))
    ((loss, metrics),) = task.updates(later[0], torch.Generator())
    loss.backward()
    assert 0 <= metrics["accuracy"] <= 1
    for name, p in task.model.named_parameters():
        assert (p.grad is None or not p.grad.any()) == name.startswith(recipe.CHOOSING["ppo"]), name
    # it is the tree that is used, once trained
    task.model.eval()
    batch = task.train.batch(later[0] - len(task.train))
    expected = torch.nn.functional.cross_entropy(task.model.classifier(task.model.encoder(batch).root), batch.values)
    torch.testing.assert_close(loss, expected)


def test_the_parser_of_ppo_learns_to_the_end_by_default():
    task, _ = trained(encoder="ppo", steps=0)
    assert max(int(indices.max()) for indices in task.batches(50)) < len(task.train)


@pytest.mark.thorough
@pytest.mark.parametrize("baseline", get_args(recipe.Baseline))
def test_every_baseline(baseline):
    task, touched = trained(encoder="rl_spinn", baseline=baseline)
    assert touched == {name for name, _ in task.model.named_parameters()}
    again, _ = trained(encoder="rl_spinn", baseline=baseline, steps=0)
    again.load_state(task.state())
    assert again.state() == task.state()


@pytest.mark.thorough
@pytest.mark.parametrize(("encoder", "baseline"), [("ppo", "none"), ("gumbel", "none"), ("rl_spinn", "running_mean")])
def test_an_interrupted_run_goes_on_with_the_same_numbers(tmp_path, encoder, baseline):
    class Stop(Watcher):
        def steps(self, place, batches, means):
            if place.step == 3:
                signal.raise_signal(signal.SIGINT)

    config = recipe.Config(
        encoder=encoder, baseline=baseline, train_size=200, longest=10, size=8, epochs=2, curriculum=1, device="cpu"
    )
    whole = run(recipe.Recipe, config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(recipe.Recipe, config, tmp_path / "parts", Stop())
    parts = run(recipe.Recipe, config, tmp_path / "parts")
    assert whole["test"] == parts["test"]
    ours, theirs = (RunFolder(tmp_path / name).load("last.pt")["model"] for name in ("whole", "parts"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_odd_sizes():
    assert trained(encoder="spigot", steps=1, size=7)


def test_f1_counts_spans_that_trees_could_miss():
    task, _ = trained(encoder="gold", steps=0)
    right = task.model.encoder.forward

    def upside_down(sentences):
        """Right-branching trees."""
        root, spans = right(sentences)
        N = spans.shape[-1]
        inside = torch.arange(N) < sentences.lengths.unsqueeze(-1)
        last = torch.arange(N) == sentences.lengths.unsqueeze(-1) - 1
        return root, torch.maximum(
            torch.diag_embed(inside.float()), (inside.unsqueeze(-1) & last.unsqueeze(-2)).float()
        )

    task.model.encoder.forward = upside_down
    data = task.held_out["valid"]
    shared = wanted = 0
    for e in data.expressions:
        n = len(e.tokens)
        gold = set(listops.spans(e.tokens)) - {(0, n - 1)}
        shared += len(gold & {(i, n - 1) for i in range(1, n - 1)})
        wanted += len(gold)
    with torch.no_grad():
        assert task.evaluate("valid")["f1"] == pytest.approx(shared / wanted)


def test_brackets_do_not_ask_how_arguments_are_taken():
    # ( [MAX ( ( [MIN ( 4 ( 7 ] ) ) ) ( 0 ] ) ) ), arguments from the right
    tokens = numbers("[MAX [MIN 4 7 ] 0 ]")
    batch = listops.ListOps([listops.Expression(tokens, 4)], CPU).batch(torch.tensor([0]))
    assert batch.brackets().nonzero().tolist() == [[0, 1, 4]]
    spans = torch.eye(7).unsqueeze(0)
    for i, j in [(0, 6), (1, 6), (1, 4), (2, 4), (3, 4), (5, 6)]:
        spans[0, i, j] = 1.0
    # of the grammar's five other spans it has but the bracket
    agreed = recipe.agreement(spans, batch)
    assert agreed["f1"].tolist() == [1, 5]
    assert agreed["brackets"].tolist() == [1, 1]
    # a chain has none
    chain = torch.eye(7).unsqueeze(0)
    chain[0, :, 6] = 1.0
    assert recipe.agreement(chain, batch)["brackets"].tolist() == [0, 1]


def test_a_curriculum_begins_with_short_expressions():
    config = recipe.Config(train_size=300, longest=20, size=4, curriculum=4, begin=6)
    task = recipe.Recipe(config, CPU)
    longest = [int(task.train.lengths[torch.cat(list(task.batches(epoch)))].max()) for epoch in range(6)]
    assert longest[0] == 6
    assert longest == sorted(longest)
    assert longest[4:] == [20, 20]


def test_each_epoch_of_a_curriculum_adds_as_many_expressions(tmp_path):
    path = tmp_path / "train.tsv"
    # lengths 4, 5, 6, 7, 8 and 28
    path.write_text("".join(f"9\t[MAX 9 {' '.join(['1'] * count)} ]\n" for count in (1, 2, 3, 4, 5, 25)))
    config = recipe.Config(train_file=str(path), longest=100, size=4, curriculum=4, begin=5)
    task = recipe.Recipe(config, CPU)
    assert [sum(map(len, task.batches(epoch))) for epoch in range(6)] == [2, 3, 4, 5, 6, 6]


def test_a_curriculum_of_long_expressions_begins_with_the_shortest(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("9\t[MAX 2 9 1 1 1 1 1 1 1 1 ]\n9\t[MAX 2 9 1 1 1 1 1 1 1 1 1 1 ]\n")
    task = recipe.Recipe(recipe.Config(train_file=str(path), size=4, begin=6), CPU)
    assert [len(batch) for batch in task.batches(0)] == [1]

"""Readers of text, the numbers of words, and the network that reads them."""

import gzip

import pytest
import torch

from structmax.recipes.data import conllu, text
from structmax.recipes.models.words import Words
from structmax.training import DataError

ROW = "{}\t{}\tx\tNOUN\tx\t_\t{}\tdep\t{}\t_"


def sentence(*heads, graph=None):
    graph = graph or ["_"] * len(heads)
    return "\n".join(
        ROW.format(i, f"w{i}", head, arcs) for i, (head, arcs) in enumerate(zip(heads, graph, strict=True), 1)
    )


def written(tmp_path, content, name="file.conllu"):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return path


def test_sentences_of_a_treebank(tmp_path):
    pytest.importorskip("conllu")
    several = "1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_"
    empty = "2.1\tgone\t_\t_\t_\t_\t_\t_\t1:dep\t_"
    words = sentence(2, 0, graph=["2:a|2.1:b", "0:root"])
    path = written(tmp_path, f"# sent_id = 1\n{several}\n{words}\n{empty}\n\n\n{sentence(0)}\n")
    first, second = conllu.read(path)
    assert first.words == ("w1", "w2")
    assert first.heads == (2, 0)
    assert first.labels == ("dep", "dep")
    assert first.graph == (((2, "a"),), ((0, "root"),))
    assert (len(second), second.tags, second.graph) == (1, ("NOUN",), ((),))
    packed = tmp_path / "file.conllu.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert conllu.read(packed) == [first, second]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("\n", None, "should have sentences, but has none"),
        ("a\tb\n", 1, "should have 10 columns with tabs between, but has 2"),
        (sentence(0) + "\n\n" + ROW.format("x", "w", 0, "_"), 3, "should begin a CoNLL-U sentence"),
        (sentence(2, 0).replace("2\tw2", "3\tw2"), 2, "should have the number 2, but has 3"),
        (sentence(0, 5), 2, "the head should be another word, 1 to 2, or 0 for the root, but is 5"),
        (sentence(0, 2), 2, "the head should be another word"),
        (sentence("_", 1), 1, "the head should be another word, 1 to 2, or 0 for the root, but is None"),
        (sentence(2, 1, 0), 1, "the heads should lead to the root, but go in a circle"),
        (sentence(0, graph=["7:x"]), 1, "heads of the graph should be words, 0 to 1, but one is 7"),
        (sentence(0, graph=["seven"]), 1, "the graph should be head:label|head:label …, but is 'seven'"),
    ],
)
def test_a_treebank_that_is_none_is_refused(content, line, reason, tmp_path):
    pytest.importorskip("conllu")
    path = written(tmp_path, content)
    with pytest.raises(DataError) as raised:
        conllu.read(path)
    assert (raised.value.path, raised.value.line) == (path, line)
    assert reason in raised.value.reason


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no such file"):
        list(text.lines(tmp_path / "none", "words"))
    with pytest.raises(DataError, match="should be a file of words, but cannot be read"):
        list(text.lines(tmp_path, "words"))
    with pytest.raises(DataError, match="should be a file of words, but cannot be read"):
        list(text.lines(written(tmp_path, "words", "plain.gz"), "words"))
    latin = tmp_path / "latin"
    latin.write_bytes("é".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8 text"):
        list(text.lines(latin, "words"))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "marked"
    path.write_bytes("é".encode("utf-8-sig"))
    assert list(text.lines(path, "words")) == [(1, "é")]
    assert list(text.lines(path, "words", "utf8")) == [(1, "é")]


def test_words_with_spaces_have_no_vectors(tmp_path):
    path = written(tmp_path, "the 1 2\n. . . 3 4\n. 5 6\n", "vectors.txt")
    assert text.vectors(path, text.Vocabulary(["the", "."]))[2:].tolist() == [[1, 2], [5, 6]]


def test_vectors_of_words(tmp_path):
    vocabulary = text.Vocabulary(["The", "cat", "rare"])
    path = written(tmp_path, "3 2\nthe 1 2\ncat 3 4\ndog 5 6\n", "vectors.txt")
    table = text.vectors(path, vocabulary)
    assert table[2:4].tolist() == [[1, 2], [3, 4]]
    assert table[0].tolist() == [0, 0]
    assert table[4].abs().sum() > 0
    # its own spelling comes before that in lower case, wherever it stands
    path = written(tmp_path, "The 7 8\nthe 1 2\n", "own.txt")
    assert text.vectors(path, vocabulary)[2].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("the 1 2\ncat 3\n", 2, "should have 2 numbers after the word, but has 1"),
        ("the 1 2\ncat 3 x\n", 2, "should be a word and numbers"),
        ("dog 1 2\n", None, "has none of them"),
    ],
)
def test_vectors_that_are_none_are_refused(content, line, reason, tmp_path):
    with pytest.raises(DataError, match=reason) as raised:
        text.vectors(written(tmp_path, content), text.Vocabulary(["the", "cat"]))
    assert raised.value.line == line


def test_characters_of_words():
    vocabulary = text.Vocabulary(["ab", "b"])
    known, table = vocabulary.characters()
    assert known.words[2:] == ["b", "a"]
    assert table.tolist() == [[0, 0], [1, 0], [3, 2], [2, 0]]


def test_batches_have_every_row_once_and_keep_lengths_together():
    lengths = torch.arange(100) % 10
    batches = text.by_length(lengths, 10, torch.Generator().manual_seed(0))
    assert sorted(torch.cat(batches).tolist()) == list(range(100))
    assert max(int(lengths[b].max() - lengths[b].min()) for b in batches) <= 1
    short = text.by_length(lengths, 10, torch.Generator().manual_seed(0), longest=4)
    assert int(lengths[torch.cat(short)].max()) == 4


def test_padding_changes_no_vector_of_a_word():
    torch.manual_seed(0)
    vocabulary = text.Vocabulary(["a", "bc", "def"])
    words = Words(len(vocabulary), 6, 4, characters=vocabulary.characters()[1], character_size=4, tags=3, tag_size=2)
    given, tags = torch.tensor([[2, 3, 4], [4, 2, 0]]), torch.tensor([[0, 1, 2], [1, 1, 0]])
    both = words(given, torch.tensor([3, 2]), given, tags)
    alone = words(given[1:, :2], torch.tensor([2]), given[1:, :2], tags[1:, :2])
    assert both.shape == (2, 3, words.output_size)
    torch.testing.assert_close(both[1:, :2], alone)
    both.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in words.parameters())

"""Structures of a user's own: classes of one name, and recursions that point outside of what there is."""

import dataclasses
import gc
import importlib
import logging
import re
import textwrap
import warnings

import coins
import pytest
import torch

import structmax
from structmax import backends, rooms, testing
from structmax.recursion import Hyperedges, Recursion, checks


def coin(weight):
    """A class made in a function: all of them have one module and one qualified name."""

    class Coin(coins.Coin):
        @staticmethod
        def log_partition(x):
            return coins.Coin.log_partition(x) + weight

    return Coin


def ask(scores, structure):
    return structmax.log_partition(scores, structure)


@pytest.mark.parametrize(
    "asking",
    [ask, torch.func.vmap(ask, (0, None)), torch.compile(ask, backend="eager")],
    ids=["eager", "vmap", "compile"],
)
def test_classes_of_one_name_keep_their_own_answers(asking):
    scores = torch.zeros(3, 2)
    first, second = coin(1.0)(), coin(2.0)()
    for structure, weight in ((first, 1.0), (second, 2.0), (first, 1.0)):
        torch.testing.assert_close(asking(scores, structure), torch.full((3,), 2.0).log() + weight)


def test_a_second_class_of_one_name_is_spoken_of_by_its_name():
    _first, second = coin(1.0), coin(2.0)
    with pytest.raises(structmax.Refusal, match=r"^Coin does not support `sample`"):
        structmax.sample(torch.zeros(2), second())


def test_classes_nobody_holds_are_let_go():
    def rooms():
        gc.collect()
        return sum("coin.<locals>" in room for room in structmax.AbstractStructure.registry)

    before = rooms()
    for _ in range(3):
        ask(torch.zeros(1, 2), coin(1.0)())
    assert rooms() == before


def listing(head, tails, parts, nodes, goal):
    """A structure whose recursion lists these edges, with a goal that may depend on lengths."""

    @dataclasses.dataclass(frozen=True)
    class Mine(structmax.AbstractStructure):
        lengths: torch.Tensor
        event_dim = 1
        per_instance = ("lengths",)

        def check(self, scores):
            pass

        def enumerate(self, scores):
            raise NotImplementedError

        decode = encode = enumerate

        @staticmethod
        def recursion(x, lengths):
            columns = torch.tensor(head), torch.tensor(tails).unsqueeze(1), torch.tensor(parts).unsqueeze(1)
            return Recursion(Hyperedges.of(*columns, nodes), goal(lengths))

    return Mine


@pytest.mark.parametrize(
    ("head", "tails", "parts", "nodes", "goal", "says"),
    [
        (
            [0, 1],
            [-1, 0],
            [0, 1],
            2,
            lambda n: n,
            "`goal` should be between 0 and 1, the last of 2 nodes, but lie between 9 and 9.",
        ),
        ([0, 1], [-1, 0], [0, 1], 2, lambda n: n - 10, "but lie between -1 and -1."),
        (
            [0, 1],
            [-1, 0],
            [0, 1],
            2,
            lambda n: n[:1].expand(3),
            "`goal` should have shape (2,), one node for each instance, but has (3,).",
        ),
        (
            [0, 1],
            [-1, 0],
            [0, 7],
            2,
            lambda n: n - 8,
            "`parts` should be between −1 and 2, for 3 scores, but an edge of node 1 has 7.",
        ),
        (
            [0, 1],
            [-1, 0],
            [0, -2],
            2,
            lambda n: n - 8,
            "`parts` should be between −1, for none, and 2147483646, but edge 1 has -2.",
        ),
        ([0, 1], [-1, 0], [0, 2**32], 2, lambda n: n - 8, "but edge 1 has 4294967296."),
        (
            [0, 1],
            [-1, -5],
            [0, 1],
            2,
            lambda n: n - 8,
            "`tails` should be between −1, for none, and 2147483646, but edge 1 has -5.",
        ),
        (
            [0, 1],
            [-1, 1],
            [0, 1],
            2,
            lambda n: n - 8,
            "`tails` should come before `head` in the order of the nodes, but edge 1",
        ),
        (
            [0, 5],
            [-1, 0],
            [0, 1],
            2,
            lambda n: n - 9,
            "`head` should be between 0 and 1, the last of 2 nodes, but edge 1 has 5.",
        ),
        (
            [0, -1],
            [-1, -1],
            [0, 1],
            2,
            lambda n: n - 9,
            "`head` should be between 0 and 1, the last of 2 nodes, but edge 1 has -1.",
        ),
        (
            [0, 1],
            [-1, 5],
            [0, 1],
            2,
            lambda n: n - 9,
            "`tails` should come before `head` in the order of the nodes, but edge 1 builds node 1 from [5].",
        ),
        (
            [0, 1],
            [-1, 0, 0],
            [0, 1],
            2,
            lambda n: n - 9,
            "`tails` should have shape (E,) or (E, …) with one row for each edge, E = 2, but has (3, 1).",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_a_recursion_that_points_outside_is_refused(head, tails, parts, nodes, goal, says, backend):
    structure = listing(head, tails, parts, nodes, goal)(torch.tensor([9, 9]))
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        structmax.log_partition(torch.zeros(2, 3), structure, backend=backend)
    assert str(caught.value).startswith("In the `recursion` of Mine, ")


def test_edges_that_do_not_compile_are_refused():
    def letters(n):
        for _ in range(n):
            yield "a", 0, 0

    says = "`edges` should be loops and arithmetic that yield whole numbers, as many in each edge, but Numba cannot"
    with pytest.raises(TypeError, match=re.escape(says) + " compile 'letters'"):
        structmax.Hypergraph.from_function(letters, 3)


EDGES = Hyperedges.of(torch.tensor([0, 1]), torch.tensor([-1, 0]), torch.tensor([0, 1]), 2)
GOAL = torch.tensor([1, 1])


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            Recursion(Hyperedges(torch.tensor([0, 1]), torch.tensor([[-1]]), torch.tensor([[0]])), GOAL),
            TypeError,
            "`first` should be an int32 tensor, but is torch.int64. Try Hyperedges.of.",
        ),
        (
            Recursion(Hyperedges(EDGES.first + 1, EDGES.tails, EDGES.parts), GOAL),
            ValueError,
            "heads should be nodes between 0 and 1, with each of the 2 edges at one of them",
        ),
        (
            Recursion(EDGES._replace(parts=EDGES.parts.to("meta")), GOAL),
            ValueError,
            "`parts` should be on the CPU, like all edges, but is on meta.",
        ),
        (Recursion(tuple(EDGES), GOAL), TypeError, "the edges should be Hyperedges, but are tuple. Try Hyperedges.of."),
        (Recursion(EDGES, GOAL.float()), TypeError, "`goal` should be an integer tensor, but is torch.float32."),
        (Recursion(EDGES, [1, 1]), TypeError, "`goal` should be an integer tensor, but is a list."),
    ],
)
@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_a_recursion_of_another_form_is_refused(answer, kind, says, backend):
    @dataclasses.dataclass(frozen=True)
    class Mine(listing([0], [-1], [0], 1, None)):
        recursion = staticmethod(lambda x, lengths: answer)

    with pytest.raises(kind, match=re.escape(f"In the `recursion` of Mine, {says}")):
        structmax.log_partition(torch.zeros(2, 3), Mine(torch.tensor([0, 0])), backend=backend)


def test_edges_are_looked_at_once(monkeypatch):
    seen = []
    monkeypatch.setattr(checks, "hyperedges", lambda *_, **columns: seen.append(columns))
    monkeypatch.setattr(checks, "grouped_hyperedges", lambda *columns: seen.append(columns))
    edges = Hyperedges.of(torch.tensor([0, 1]), torch.tensor([-1, 0]), torch.tensor([0, 1]), 2)

    @dataclasses.dataclass(frozen=True)
    class Mine(listing([0], [-1], [0], 1, None)):
        recursion = staticmethod(lambda x, lengths: Recursion(edges, GOAL))

    for backend in ("numba", "reference"):
        structmax.log_partition(torch.zeros(2, 3), Mine(torch.tensor([0, 0])), backend=backend)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"part": torch.tensor([0, -2])}, "`part` should be between −1, for none, and 2147483646, but edge 1 has -2."),
        ({"part": torch.tensor([[0, 0], [1, 2**31]])}, "but edge 1 has 2147483648."),
        ({"part": torch.tensor([0, 2**32 + 1])}, "but edge 1 has 4294967297."),
        (
            {"tails": torch.tensor([-1, -7])},
            "`tails` should be between −1, for none, and 2147483646, but edge 1 has -7.",
        ),
        ({"tails": torch.tensor([-(2**32), 0])}, "but edge 0 has -4294967296."),
        ({"head": torch.tensor([0, 2**31])}, "`head` should be between 0 and 2147483646, but edge 1 has 2147483648."),
        ({"head": torch.tensor([-1, 1])}, "`head` should be between 0 and 2147483646, but edge 0 has -1."),
        (
            {"head": torch.tensor([0])},
            "`tails` should have shape (E,) or (E, …) with one row for each of at least one edge, E = 1, but has (2,).",
        ),
        ({"goal": torch.tensor([2])}, "`goal` should be a node, between 0 and 1"),
    ],
)
def test_a_hypergraph_with_ids_out_of_range_is_refused(fields, says):
    edges = {"head": torch.tensor([0, 1]), "tails": torch.tensor([-1, 0])}
    with pytest.raises(ValueError, match=re.escape(says)):
        structmax.Hypergraph(**(edges | fields))


@pytest.mark.parametrize(
    ("head", "tails", "goal", "says"),
    [
        ([1, 2], [0, 1], None, "but node 2 cannot: no edge builds node 0, on which it depends."),
        ([0, 1, 3], [-1, 0, 1], 2, "but node 2 cannot: no edge builds it."),
        ([0, 1, 3, 4], [-1, 0, 1, 2], [3, 4, 1], "but node 4 cannot: no edge builds node 2, on which it depends."),
        ([0, 2, 2], [[-1, -1], [0, 1], [1, 0]], None, "but node 2 cannot: no edge builds node 1, on which it depends."),
    ],
)
def test_a_hypergraph_whose_goal_cannot_be_derived_is_refused(head, tails, goal, says):
    goal = goal if goal is None else torch.tensor(goal)
    with pytest.raises(ValueError, match=r"`goal` should be a node that can be derived.*Try edges without") as raised:
        structmax.Hypergraph(torch.tensor(head), torch.tensor(tails), goal=goal)
    assert says in str(raised.value)


def test_a_hypergraph_may_have_other_nodes_that_cannot_be_derived():
    head, tails, goal = torch.tensor([0, 1, 3, 4]), torch.tensor([-1, 0, 1, 2]), torch.tensor([1, 3])
    paths = structmax.Hypergraph(head, tails, goal=goal)
    x = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    assert structmax.log_partition(x, paths).tolist() == [3.0, 7.0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"source": -1}, "`source` should be a whole number ≥ 0, but is -1."),
        ({"sink": -1}, "`sink` should be a whole number ≥ 0, but is -1."),
        ({"edges": torch.tensor([[0, 1], [-1, 1]])}, "`edges` should be between nodes 0, 1, …, but hold -1."),
    ],
)
def test_a_lattice_with_negative_nodes_is_refused(fields, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        structmax.Lattice(**({"edges": torch.tensor([[0, 1]]), "source": 0, "sink": 1} | fields))


def test_a_hypergraph_of_bytes_is_one_of_integers():
    columns = torch.tensor([0, 1]), torch.tensor([[-1], [0]]), torch.tensor([0, 1])
    bytes_ = tuple(t.to(torch.int8) for t in columns)
    x = torch.randn(2)
    for hypergraph in (
        structmax.Hypergraph(*columns),
        structmax.Hypergraph(*bytes_, goal=torch.tensor(1).to(torch.uint8)),
    ):
        torch.testing.assert_close(structmax.log_partition(x, hypergraph, backend="reference"), x.sum())


# ---------------------------------------------------------------- random numbers


def bits_by_recursion(noise_size=None):
    """Any subset of n: at each node one takes the item or leaves it."""

    @dataclasses.dataclass(frozen=True)
    class Mine(structmax.AbstractStructure):
        size: torch.Tensor | None = None
        event_dim = 1
        per_instance = ("size",)

        def check(self, scores):
            pass

        def enumerate(self, scores):
            raise NotImplementedError

        decode = encode = enumerate

        @staticmethod
        def recursion(x, size=None):
            n = x.shape[1]
            head, tails = torch.arange(1, n + 1).repeat_interleave(2), torch.arange(n).repeat_interleave(2)
            parts = torch.stack([torch.arange(n), torch.full((n,), -1)], 1).flatten()
            none = torch.tensor([-1])
            columns = torch.cat([none + 1, head]), torch.cat([none, tails]), torch.cat([none, parts])
            return Recursion(Hyperedges.of(*columns, n + 1), torch.full((len(x),), n) if size is None else size)

    if noise_size is not None:
        Mine.noise_size = lambda self, scores: noise_size
    return Mine


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_as_many_numbers_are_drawn_as_there_are_choices(backend):
    scores, generator = torch.zeros(4), torch.Generator().manual_seed(0)
    drawn = structmax.sample(scores, bits_by_recursion()(), (2000,), generator=generator, backend=backend)
    torch.testing.assert_close(torch.corrcoef(drawn.T), torch.eye(4), atol=0.1, rtol=0.0)
    every = structmax.sample_without_replacement(scores, bits_by_recursion()(), 17, backend=backend)
    assert len(every.parts.unique(dim=0)) == 16


def test_numbers_are_counted_inside_transforms():
    drawn = torch.func.vmap(lambda x: structmax.sample(x, bits_by_recursion()()), randomness="different")
    assert drawn(torch.zeros(50, 4)).unique(dim=0).shape[0] > 8
    mapped = torch.func.vmap(lambda x, n: structmax.sample(x, bits_by_recursion()(n)), randomness="different")
    with pytest.raises(ValueError, match=r"^Mine should have a method `noise_size\(scores\)` when a transform maps"):
        mapped(torch.zeros(2, 4), torch.tensor([4, 3]))


@pytest.mark.parametrize("backend", ["numba", "reference"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda *args, **kwargs: structmax.sample(*args, (3,), **kwargs),
        lambda *args, **kwargs: structmax.sample_without_replacement(*args, 3, **kwargs),
        lambda *args, **kwargs: structmax.smoothed_sample(*args, structmax.omega.LocalL2(), **kwargs),
    ],
)
@pytest.mark.parametrize("size", [0, 3])
def test_too_few_numbers_are_refused(ask, backend, size):
    says = (
        "`noise_size` of Mine should be the largest number of choices a derivation can have, "
        f"but with {size} the numbers ran out. Try leaving `noise_size` out: it is then counted."
    )
    with pytest.raises(ValueError, match=re.escape(says)):
        ask(torch.zeros(2, 4), bits_by_recursion(size)(), backend=backend)


# ---------------------------------------------------------------- names that are taken


@pytest.mark.parametrize("name", structmax.contract.EXTRAS)
def test_a_field_that_a_question_has_is_refused(name):
    own = dataclasses.make_dataclass("Mine", [(name, float)], bases=(coins.Coin,), frozen=True)(1.0)
    says = f"The field `{name}` of Mine should have another name, such as `own_{name}`: functions get `k`, `noise`, "
    with pytest.raises(ValueError, match=re.escape(says)):
        structmax.log_partition(torch.zeros(2), own)


# ---------------------------------------------------------------- who answers


def test_which_names_the_file_that_answers():
    answers = structmax.which((torch.zeros(3, 2), torch.zeros(2, 2)), structmax.LinearChain())
    assert answers["marginals"] == "numba (linear_chain/kernel_numba)"
    assert answers["topk"] == "numba (recursion/kernel_numba)"
    answers = structmax.which(torch.zeros(2), coins.Coin())
    assert answers["argmax"] == "reference (Coin; numba: coins has no kernel_numba.py)"
    assert answers["marginals"] == "reference (Coin, by autograd; numba: coins has no kernel_numba.py)"
    assert answers["sparsemap"] == "reference (numerics/active_set; numba: coins has no kernel_numba.py)"


def answers_on_cuda(structure, name):
    backend = backends.choose(structure.room, name, "cuda", "auto")
    return backend, rooms.found(structure.room, name, backend).home


@pytest.mark.parametrize(
    ("structure", "name", "answer"),
    [
        # structures by recursion that have no kernel of their own for CUDA, a user's among them
        (structmax.Hypergraph, "marginals", ("triton", "recursion/kernel_triton")),
        (structmax.Lattice, "topk", ("triton", "recursion/kernel_triton")),
        (structmax.SmallMatching, "log_partition", ("triton", "recursion/kernel_triton")),
        # kernels of their own, also for what has no function of that name
        (structmax.Subset, "argmax", ("triton", "subset/kernel_triton")),
        (structmax.Bits, "marginals", ("triton", "bits/kernel_triton")),
        # what their references say is fastest in torch
        (structmax.Subset, "project", ("reference", "subset/reference")),
        (structmax.Bits, "given_log_partition_and_marginals", ("reference", "bits/reference")),
        (structmax.Simplex, "sample", ("reference", "simplex/reference")),
        (structmax.Simplex, "marginals", ("triton", "simplex/kernel_triton")),
        # edges that are new for each batch
        (structmax.CTC, "given_log_partition", ("numba", "recursion/kernel_numba")),
        # what has a function in the reference, but is faster on the host
        (structmax.Subset, "topk", ("numba", "subset/kernel_numba")),
        # what the engine does not have
        (structmax.Lattice, "sample_without_replacement", ("numba", "recursion/kernel_numba")),
    ],
)
def test_who_answers_on_a_gpu(structure, name, answer):
    pytest.importorskip("triton")
    assert answers_on_cuda(structure, name) == answer


def test_a_users_recursion_is_answered_on_a_gpu():
    pytest.importorskip("triton")
    mine = bits_by_recursion()
    assert answers_on_cuda(mine, "log_partition_and_marginals") == ("triton", "recursion/kernel_triton")

    class Mine(mine):
        marginals = staticmethod(lambda x, size=None: x)

    # its own, not one made of the engine's functions
    assert answers_on_cuda(Mine, "marginals") == ("reference", Mine.__qualname__)


def test_what_a_kernel_refuses_an_engine_answers(tmp_path, monkeypatch, caplog):
    pytest.importorskip("triton")
    folder = tmp_path / "narrow_room"
    folder.mkdir()
    reference = "from structmax.structures.bits.reference import recursion\n"
    kernel = """
        def refuses(name, tensors, fields):
            return "too many scores" if tensors[0].shape[1] > 2 else None

        def log_partition(x, lengths):
            return x.sum(1)
    """
    room = """
        import dataclasses
        import structmax

        @dataclasses.dataclass(frozen=True)
        class Room(structmax.Bits):
            pass
    """
    for name, text in (("__init__", room), ("reference", reference), ("kernel_triton", kernel)):
        (folder / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(tmp_path))
    structure = importlib.import_module("narrow_room").Room()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with caplog.at_level(logging.INFO, "structmax"):
        for n in (2, 3, 2, 3):
            x = torch.full((1, n), 0.5, device=device)
            wanted = x.sum(1) if n == 2 else torch.nn.functional.softplus(x).sum(1)
            torch.testing.assert_close(structmax.log_partition(x, structure, backend="triton"), wanted)
    said = "Room.log_partition runs on recursion/kernel_triton: narrow_room/kernel_triton refuses, too many scores"
    assert [record.message for record in caplog.records].count(said) == 1


@pytest.mark.parametrize(
    ("structure", "name", "few", "many"),
    [
        (structmax.LinearChain, "sparsemap", [(2, 3, 4), (2, 2, 4, 4)], [(2000, 3, 4), (2000, 2, 4, 4)]),
        (structmax.LinearChain, "smoothed", [(8, 90, 20), (8, 89, 20, 20)], [(8, 90, 40), (8, 89, 40, 40)]),
        (structmax.SemiMarkov, "sparsemap", [(2, 3, 2, 4), (2, 4, 4)], [(2000, 3, 2, 4), (2000, 4, 4)]),
        (structmax.Matching, "sparsemap", [(2, 3, 3)], [(2000, 16, 16)]),
        (structmax.SpanningTree, "sparsemap", [(8, 9, 9)], [(17, 9, 9)]),
        # searched by the engine of recursions
        (structmax.ShiftReduce, "sparsemap", [(64, 3, 2)], [(65, 3, 2)]),
    ],
)
def test_few_instances_are_left_to_the_host(structure, name, few, many, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    room, parts = structure.room, len(few)

    def reason(shapes, backend):
        plan = backends.plan(room, name, "cuda", parts, backend)
        assert plan.backend == "triton"
        # the engine of recursions looks at the settings of smoothing, too
        return plan.refuses(name, [torch.empty(shape, device="meta") for shape in shapes], {"alpha": 2.0})

    said = reason(few, "auto")
    assert "on the CPU" in said
    plan = backends.plan(room, name, "cuda", parts, "auto")
    after = backends._after(plan, "cuda", said)
    while after.backend == "triton":
        # another search, or an engine, which leaves them to the host as well
        assert after.refuses(name, [torch.empty(shape, device="meta") for shape in few], {"alpha": 2.0}) == said
        after = backends._after(after, "cuda", said)
    assert (after.backend, after.fetches) == ("numba", True)
    assert reason(many, "auto") is None
    # what the host does cannot be recorded
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert reason(few, "auto") is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    # a single core does fewer
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert reason([(100, *shape[1:]) for shape in many], "auto") is None
    # who asks for Triton gets it
    forced = backends._plan(room, name, "cuda", parts, "triton", "triton", 0)
    given = [torch.empty(shape, device="meta") for shape in few]
    assert forced.refuses is None or forced.refuses(name, given, {"alpha": 2.0}) is None


def test_what_is_intractable_is_said_once():
    answers = structmax.which(torch.zeros(2, 2), structmax.Matching())
    refused = [answer for answer in answers.values() if answer.startswith("refused")]
    assert refused[0].startswith("refused: the partition function of matchings is a permanent")
    assert len(refused) > 1
    assert set(refused[1:]) == {"refused, as `log_partition` is"}


ROOM = """
import dataclasses, torch, structmax, coins

@dataclasses.dataclass(frozen=True)
class Coin(coins.Coin):
    pass
"""
REFERENCE = "from coins import Coin\nargmax, log_partition = Coin.argmax, Coin.log_partition\n"
KERNEL = """
from structmax.contract import returns
from structmax.check import whole

def argmaks(x):
    return x

def _helper(x):
    return x

def turn(x):
    return x

def refuses(name, tensors, fields):
    return None

@returns("parts")
def entmax(x):
    return x
"""


def test_functions_that_answer_nothing_are_noticed_once(tmp_path, monkeypatch):
    folder = tmp_path / "misspelt_room"
    folder.mkdir()
    for name, text in (("__init__", ROOM), ("reference", REFERENCE), ("kernel_numba", KERNEL)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    structure = importlib.import_module("misspelt_room").Coin()
    with pytest.warns(UserWarning, match="is not a known question") as caught:
        structmax.argmax(torch.zeros(2), structure)
    assert [str(warning.message) for warning in caught] == [
        "`argmaks` in misspelt_room/kernel_numba is not a known question. Is it meant to be `argmax`?",
        "`turn` in misspelt_room/kernel_numba is not a known question. Is it a helper? Then begin its name with `_`.",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        structmax.log_partition(torch.zeros(2), structure)


def test_a_kernel_file_that_does_not_import_is_an_error(tmp_path, monkeypatch):
    folder = tmp_path / "broken_room"
    folder.mkdir()
    broken = "import not_there\n"
    for name, text in (("__init__", ROOM), ("reference", REFERENCE), ("kernel_numba", broken)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    structure = importlib.import_module("broken_room").Coin()
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        structmax.argmax(torch.zeros(2), structure)


def test_a_misspelt_method_of_a_single_file_is_noticed():
    @dataclasses.dataclass(frozen=True)
    class Mine(coins.Coin):
        @staticmethod
        def smpl(x, noise):
            return x

        @classmethod
        def fair(cls):
            return cls()

        def heads(self):
            return 1

    with pytest.warns(UserWarning, match=r"`smpl` in .*Mine is not a known question. Is it meant to be `sample`\?"):
        structmax.argmax(torch.zeros(2), Mine())


def test_our_own_rooms_answer_questions_alone():
    structures = [getattr(structmax, name) for name in structmax.__all__ if name != "AbstractStructure"]
    rooms = [it.room for it in structures if isinstance(it, type) and issubclass(it, structmax.AbstractStructure)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for room in (*rooms, "structmax.structures.proximal", "structmax.structures.capped_simplex"):
            for backend in ("numba", "reference"):
                structmax.backends.remembered(room).clear()
                structmax.backends.function(room, "argmax", backend)


def test_the_laws_ask_for_padding_to_be_told(monkeypatch):
    monkeypatch.setattr(structmax.Bits, "exists", lambda self, tensors: None)
    bits = structmax.Bits(torch.tensor([2, 1]))
    case = testing.Case(bits, lambda g, dtype: torch.randn(2, 2, generator=g, dtype=dtype))
    with pytest.raises(AssertionError, match=r"\(`exists` of the structure should say what is padding\)"):
        testing.law_target_padding(case, "numba")


# ---------------------------------------------------------------- an Ω of one's own


class Gini(structmax.omega.AbstractOmega):
    """½‖p‖² on the simplex, in plain torch: sparsemax is where its maximum is attained."""

    def value(self, problem):
        (x,), (p,) = problem.scores, self.point(problem)
        return (torch.where(p > 0, x, 0.0) * p).sum(-1) - p.square().sum(-1) / 2

    def point(self, problem):
        return (structmax.sparsemax(problem.scores[0]),)

    def at(self, problem, parts):
        return parts[0].square().sum(-1) / 2


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_an_omega_of_ones_own_serves_everywhere_at_once(batch):
    x = torch.randn(*batch, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    simplex, known, own = structmax.Simplex(), structmax.omega.SquaredNorm(), Gini()
    target, weight = structmax.argmax(-x, simplex), torch.arange(4.0, dtype=torch.float64)
    asked = {
        "fenchel_young": lambda omega: structmax.fenchel_young(x, simplex, target, omega),
        "smoothed": lambda omega: structmax.smoothed(x, simplex, omega),
        "smoothed_marginals": lambda omega: structmax.smoothed_marginals(x, simplex, omega) @ weight,
        "straight through": lambda omega: (
            structmax.surrogate(x, simplex, structmax.estimators.StraightThrough(omega)) @ weight
        ),
        "relaxation": lambda omega: structmax.surrogate(x, simplex, structmax.estimators.Relaxation(omega)) @ weight,
    }
    for name, ask in asked.items():
        (value, slope), (wanted, steepness) = (
            (out.detach(), torch.autograd.grad(out.sum(), x)[0]) for out in map(ask, (own, known))
        )
        torch.testing.assert_close(value, wanted, msg=lambda said, name=name: f"{name}: {said}")
        torch.testing.assert_close(slope, steepness, msg=lambda said, name=name: f"gradient of {name}: {said}")


def test_an_omega_whose_answers_have_other_shapes_is_told_so(monkeypatch):
    x = torch.zeros(2, 3)
    monkeypatch.setattr(Gini, "value", lambda self, problem: torch.zeros(()))
    with pytest.raises(ValueError, match=r"`value` of Gini should have shape \(2,\), one number .*, but has \(\)"):
        structmax.fenchel_young(x, structmax.Simplex(), x, Gini())
    monkeypatch.setattr(Gini, "point", lambda self, problem: (torch.zeros(2),))
    with pytest.raises(ValueError, match=r"`point` of Gini should have the shapes \[\(2, 3\)\] .*, but has \[\(2,\)\]"):
        structmax.smoothed_marginals(x, structmax.Simplex(), Gini())

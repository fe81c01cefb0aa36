"""Every structure of the table is held to every law, on each backend that answers."""

import pytest
import torch
from cases import CASES
from coins import Coin

import structmax
from structmax import rooms, testing
from structmax.testing import applicable, check_structure
from structmax.testing.case import variants

# One reference answers for all recursions. Its slow laws are held where recursions differ in kind; the kernels, which
# start from the same recursions, are held to all laws everywhere.
SLOW = {
    testing.law_agrees_with_reference,
    testing.law_dtypes,
    testing.law_entropies,
    testing.law_given,
    testing.law_given_gradients,
    testing.law_rounded_once,
    testing.law_target_padding,
    testing.law_gradients,
    testing.law_masks,
    testing.law_masks_in_float32,
    testing.law_sample,
    testing.law_sample_without_replacement,
    testing.law_smoothed,
    testing.law_smoothed_gradients,
    testing.law_smoothed_topk,
    testing.law_sparsemap,
    testing.law_sparsemap_gradients,
    testing.law_topk,
    testing.law_transforms,
}
REFERENCE_IN_FULL = {
    "simplex",
    "hypergraph",
    "lattice",
    "linear chain with gaps",
    "ctc, blank last",
    # these have references of their own
    "spanning tree",
    "spanning tree, labelled",
    "spanning tree, undirected",
    "matching",
    "matching, partial",
    "subset",
    "subset of at most",
    "bits",
}

# Of the first case of each structure every day, of the others thoroughly.
DERIVATIVES = {
    testing.law_given_gradients,
    testing.law_gradients,
    testing.law_project_gradients,
    testing.law_relax_gradients,
    testing.law_smoothed_gradients,
    testing.law_sparsemap_gradients,
    testing.law_transforms,
}
# What hardly depends on the options of a structure, the same.
FORM = {
    testing.law_counts,
    testing.law_entropies,
    testing.law_given_padding,
    testing.law_limits,
    testing.law_sample_without_replacement,
    testing.law_shapes,
    testing.law_target_padding,
    testing.law_vmap,
}
# float32 is compiled apart, and the laws of values show the same in float64: every day, the reference is held to these.
DTYPES = {testing.law_dtypes, testing.law_rounded_once, testing.law_masks_in_float32}
# Triton's interpreter is slow: it is held to these, of the first case of each structure that has kernels of its own, to
# the first of them every day. test_triton_engine.py has the kernels of all recursions; a GPU is held to every law.
INTERPRETED = {testing.law_argmax: True, testing.law_agrees_with_reference: False, testing.law_padding: False}
FIRST = {type(case.structure): name for name, case in reversed(CASES.items())}


def is_thorough(name, law, backend):
    is_first = FIRST[type(CASES[name].structure)] == name
    if name == "factor graph of structures":
        # two other graphs are held to every law every day
        return True
    if backend == "numba":
        return law in DTYPES or (law in DERIVATIVES | FORM and not is_first)
    if backend == "reference":
        return not is_first or (law in SLOW | DERIVATIVES and law not in DTYPES)
    return not INTERPRETED[law]


def is_held(name, law, backend):
    structure = CASES[name].structure
    if backend == "reference":
        return law not in SLOW or name in REFERENCE_IN_FULL or law in DTYPES
    if backend == "numba":
        return True
    has_kernels = rooms.holder(structure.room, "triton") is not None
    return law in INTERPRETED and FIRST[type(structure)] == name and has_kernels


PAIRS = [
    pytest.param(
        case,
        law,
        backend,
        id=f"{name}-{law.__name__}-{backend}",
        marks=[pytest.mark.thorough] if is_thorough(name, law, backend) else [],
    )
    for name, case in CASES.items()
    for law, backend in applicable(case)
    if is_held(name, law, backend)
]


@pytest.mark.parametrize(("case", "law", "backend"), PAIRS)
def test_law(case, law, backend):
    law(case, backend)


class SkewedCoin(Coin):
    @staticmethod
    def log_partition(x):
        return torch.logaddexp(x[:, 0], x[:, 1]) + 0.1


def draw(generator, dtype):
    return torch.randn(4, 2, generator=generator, dtype=dtype)


def test_a_structure_in_one_file_gets_marginals_from_its_log_partition():
    scores = torch.randn(4, 2)
    got = structmax.marginals(scores, Coin())
    torch.testing.assert_close(got, scores.softmax(-1))


def test_the_laws_catch_a_wrong_structure():
    with pytest.raises(
        AssertionError, match=r"SkewedCoin breaks law_log_partition on reference: log_partition, random"
    ):
        check_structure(SkewedCoin(), draw)


def test_the_laws_say_where_something_was_raised(monkeypatch):
    monkeypatch.setattr(testing, "LAWS", {testing.law_argmax: ("argmax",)})

    class Broken(Coin):
        @staticmethod
        def argmax(x):
            raise KeyError("heads")

    with pytest.raises(AssertionError, match=r"^Broken breaks law_argmax on reference: KeyError: 'heads'$"):
        check_structure(Broken(), draw)


def test_progress_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(testing, "LAWS", {testing.law_argmax: ("argmax",), testing.law_codec: ()})
    seen = []
    assert check_structure(Coin(), draw, seen.append) == seen == ["law_argmax on reference", "law_codec on reference"]
    check_structure(Coin(), draw)
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    check_structure(Coin(), draw)
    assert capsys.readouterr().err.split("\n") == [*seen, ""]


def draw_infeasible(generator, dtype):
    """The last instance allows nothing, and the first not everything."""
    scores = torch.randn(3, 4, generator=generator, dtype=dtype)
    scores[2], scores[0, 1] = -torch.inf, -torch.inf
    return scores


HELD_BY_A_SIMPLEX = [
    law
    for law in dict.fromkeys(law for law, _ in applicable(testing.Case(structmax.Simplex(), draw_infeasible)))
    if law not in DTYPES
]


@pytest.mark.parametrize("law", HELD_BY_A_SIMPLEX)
def test_laws_stand_instances_that_allow_nothing(law):
    case = testing.Case(structmax.Simplex(), draw_infeasible)
    assert torch.equal(case.drawn()[0], variants(case)["drawn"][0])
    law(case, "numba" if (law, "numba") in applicable(case) else "reference")


def test_refusal_names_the_question_and_every_reason():
    with pytest.raises(structmax.Refusal, match=r"Coin does not support `sample`.*numba.*reference"):
        structmax.sample(torch.zeros(2), Coin())


def test_a_structure_without_triton_kernels_is_not_interpreted(monkeypatch):
    """What answers there is the engine for any recursion, and the interpreter is slow."""
    pairs = [(testing.law_argmax, backend) for backend in ("triton", "reference")]
    monkeypatch.setattr(testing, "applicable", lambda case: pairs)
    case = CASES["lattice of one node"]
    assert check_structure(case.structure, case.make_scores) == ["law_argmax on reference"]

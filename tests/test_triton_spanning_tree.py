"""The Triton kernels of spanning trees against the reference in float64: on a GPU, or under Triton's interpreter."""

import math

import pytest
import torch

pytest.importorskip("triton")

from structmax.structures.spanning_tree import kernel_triton, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def arcs(words, *labels, seed=0):
    """Random scores: whole, with −inf, of two words less where padding is NaN, and with one NaN that counts."""
    generator = torch.Generator().manual_seed(seed)
    arc = torch.randn(4, words + 1, words + 1, *labels, generator=generator, dtype=torch.float64)
    arc[1] = arc[1].masked_fill(torch.rand(arc[1].shape, generator=generator) < 0.3, -math.inf)
    lengths = torch.tensor([words, words, words - 2, words])
    arc[2, words - 1 :], arc[2, :, words - 1 :] = math.nan, math.nan
    arc[3, 1, 2] = math.nan
    return arc, lengths


def ask(backend, name, *tensors, lengths, **fields):
    device = DEVICE if backend is kernel_triton else "cpu"
    out = getattr(backend, name)(*(t.to(device) for t in tensors), lengths=lengths.to(device), **fields)
    return tuple(t.cpu() for t in (out if isinstance(out, tuple) else (out,)))


def agree(arc, lengths, atol=1e-9, **fields):
    """All questions; the best tree by its score. The reference has no soft NaN of its own: the last instance is NaN."""
    fields = {"lengths": lengths, **fields}
    tangent = torch.randn(arc.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    value, mu = ask(kernel_triton, "log_partition_and_marginals", arc, **fields)
    torch.testing.assert_close(ask(kernel_triton, "log_partition", arc, **fields)[0], value, equal_nan=True)
    torch.testing.assert_close(
        value, ask(reference, "log_partition", arc, **fields)[0], atol=atol, rtol=1e-12, equal_nan=True
    )
    sound = ~value.isnan()
    torch.testing.assert_close(mu[sound], ask(reference, "marginals", arc, **fields)[0][sound], atol=atol, rtol=0)
    (moved,) = ask(kernel_triton, "marginals_jvp", arc, tangent, **fields)
    want = ask(reference, "marginals_jvp", arc, tangent, **fields)[0]
    torch.testing.assert_close(moved[sound], want[sound], atol=100 * atol, rtol=0)
    best = ask(kernel_triton, "argmax", arc, **fields)[0]
    want = ask(reference, "argmax", arc, **fields)[0]
    torch.testing.assert_close(best, want, equal_nan=True)
    return value, mu, moved


def cycles(arc, loss):
    """Words 1 and 2 prefer each other so much that all trees lose this; above 500 they are left to logarithms."""
    arc[:, 1, 2] += loss
    arc[:, 2, 1] += loss
    return arc


@pytest.mark.parametrize("loss", [0.0, 600.0])
@pytest.mark.parametrize("single_root", [True, False])
def test_labels_lengths_and_masks(single_root, loss):
    arc, lengths = arcs(3, 2)
    cycles(arc, loss)
    value, mu, moved = agree(arc, lengths, single_root=single_root, directed=True)
    assert value.isfinite().tolist() == [True, True, True, False]
    # NaN at all arcs of its instance, and nowhere else
    assert (mu[3].isnan() == moved[3].isnan()).all()
    assert mu[3].isnan().sum() == 2 * 9
    assert (mu[2, 2:] == 0).all()


@pytest.mark.parametrize("loss", [0.0, 600.0])
@pytest.mark.parametrize("single_root", [True, False])
def test_a_line_in_several_tiles(monkeypatch, single_root, loss):
    # two rows to a tile, in logarithms four without derivatives
    monkeypatch.setattr(kernel_triton, "ROWS", 2)
    monkeypatch.setattr(kernel_triton, "TILE", 32)
    arc, lengths = arcs(4)
    agree(cycles(arc[1:2], loss), lengths[1:2], single_root=single_root, directed=True)


@pytest.mark.parametrize("single_root", [True, False])
def test_instances_of_all_kinds_in_a_batch(single_root):
    """Those that linear numbers suffice for, those left to logarithms and those without trees or words."""
    arc = torch.randn(5, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    cycles(arc[1:2], 700.0)
    cycles(arc[3:4], 3000.0)
    arc[2, :, 1] = -math.inf
    agree(arc, torch.tensor([3, 3, 3, 3, 0]), single_root=single_root, directed=True)


def test_no_logarithms_where_numbers_suffice(monkeypatch):
    """Scores of ±100, as a network may have them, and masks are no reason for the slower kernel."""
    done = []
    launch = kernel_triton.launch
    monkeypatch.setattr(kernel_triton, "launch", lambda kernel, *rest: (done.append(rest[1]), launch(kernel, *rest)))
    arc = 100 * (2 * torch.rand(3, 9, 9, generator=torch.Generator().manual_seed(4)) - 1).to(DEVICE)
    arc[1, 2, 3:6] = -math.inf
    arc[2, 1:, 4] = -1e30
    fields = {"lengths": torch.tensor([8, 8, 8], device=DEVICE), "single_root": False, "directed": True}
    kernel_triton.log_partition(arc, **fields)
    left = done[0][7]
    assert left.tolist() == [0, 0, 0]


@pytest.mark.parametrize("single_root", [True, False])
def test_edges(single_root):
    arc, lengths = arcs(3)
    agree(arc[[0, 2]], lengths[[0, 2]] + 1, single_root=single_root, directed=False)


@pytest.mark.parametrize("mask", [-1e9, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("single_root", [True, False])
def test_a_mask_that_every_tree_needs(mask, single_root):
    """Words 1 and 2 want each other only, and the root's arcs to them are masked."""
    arc = torch.zeros(2, 4, 4, dtype=torch.float64)
    arc[0, 0, 1] = arc[0, 0, 2] = arc[0, 3, 1] = arc[0, 3, 2] = mask
    # nothing is feasible
    arc[1, :, 2] = -math.inf
    fields = {"lengths": torch.tensor([3, 3]), "single_root": single_root, "directed": True}
    value, mu = ask(kernel_triton, "log_partition_and_marginals", arc, **fields)
    want_value, want = ask(reference, "log_partition", arc, **fields)[0], ask(reference, "marginals", arc, **fields)[0]
    torch.testing.assert_close(value, want_value, atol=1e-6, rtol=1e-12)
    torch.testing.assert_close(mu, want, atol=1e-6, rtol=0)
    assert (mu[1] == 0).all()
    assert (ask(kernel_triton, "argmax", arc, **fields)[0][1] == 0).all()


def test_too_many_words_are_refused():
    wide = torch.empty(1, kernel_triton.LARGEST + 1, kernel_triton.LARGEST + 1)
    assert kernel_triton.refuses("argmax", [wide], {}) == f"a program has lanes for {kernel_triton.LARGEST} nodes"
    assert kernel_triton.refuses("argmax", [wide[:, 1:, 1:]], {}) is None

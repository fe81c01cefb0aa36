"""What the laws do not say about alignments with jumps: counts, special cases, paths there and back, messages."""

import math

import pytest
import torch

import structmax
from structmax import JumpAlignment
from structmax.testing import same


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 3), (3, 6), (4, 9), (3, 2)])
def test_one_row_at_a_time_counts_choices(n, m):
    count = structmax.log_count((torch.zeros(n, m).double(), torch.zeros(2, 1, 1).double()), JumpAlignment())
    same("log_count", count, torch.tensor(math.comb(m - 1, n - 1), dtype=torch.float64).log())


def test_one_row_at_a_time_or_down_is_time_warping():
    cell = normal(3, 4, 5).requires_grad_()
    rows, columns = torch.tensor([4, 2, 1]), torch.tensor([5, 5, 3])
    jumps, warping = JumpAlignment(rows, columns), structmax.MonotoneAlignment(rows, columns)
    free = torch.zeros(2, 1, 1, dtype=cell.dtype), torch.zeros((), dtype=cell.dtype)
    got, want = ((cell, *free), jumps), (cell, warping)
    same("log_partition", structmax.log_partition(*got), structmax.log_partition(*want))
    same("marginals", structmax.marginals(*got).cell, structmax.marginals(*want))
    assert torch.equal(structmax.argmax(*got).cell, structmax.argmax(*want))
    for question in (structmax.log_partition, structmax.entropy):
        mine, other = (torch.autograd.grad(question(*given).sum(), cell)[0] for given in (got, want))
        same("gradient", mine, other, 1e-9)


def test_steps_without_a_choice_of_their_own_are_scores_of_cells():
    cell, step = normal(2, 3, 5), normal(2, 1, 3, 5, seed=1).expand(2, 3, 3, 5)
    # every cell but those of the first column is entered by one step
    moved = cell + torch.nn.functional.pad(step[:, 0, :, 1:], (1, 0))
    same(
        "log_partition",
        structmax.log_partition((cell, step), JumpAlignment()),
        structmax.log_partition((moved, torch.zeros(3, 1, 1, dtype=cell.dtype)), JumpAlignment()),
    )


def test_a_score_for_each_jump_counts_the_jumps():
    jump = normal(3).requires_grad_()
    structure, cell = JumpAlignment(), normal(4, 6)
    value = structmax.log_partition((cell, jump[:, None, None]), structure)
    (count,) = torch.autograd.grad(value, jump)
    # five steps, which go down by three rows together
    same("steps", count.sum(), torch.tensor(5.0).double())
    same("rows", count @ torch.arange(3.0).double(), torch.tensor(3.0).double())


@pytest.mark.parametrize("down", [False, True])
def test_paths_go_there_and_back(down):
    scores = (normal(2, 3, 4), normal(3, 3, 4), *([torch.tensor(0.0).double()] if down else []))
    structure = JumpAlignment(torch.tensor([3, 2]), torch.tensor([4, 3]))
    parts = structmax.sample(scores, structure, (20,), generator=torch.Generator().manual_seed(0))
    path = structure.decode(parts)
    assert path.shape == (20, 2, 6 if down else 4, 2)
    assert path.dtype == torch.int64
    assert (path[:, :, 0] == 0).all()
    back = structure.encode(path, scores)
    kept = zip(structure.tensors(back), structure.tensors(parts), strict=True)
    assert all(torch.equal(a, b) for a, b in kept)
    assert (back.down is not None) == down


def test_a_last_cell_that_is_too_far_is_infeasible():
    scores = torch.zeros(4, 2), torch.zeros(3, 1, 1)
    assert structmax.log_partition(scores, JumpAlignment()) == -math.inf
    assert not structmax.marginals(scores, JumpAlignment()).cell.any()
    assert structmax.log_partition((*scores, torch.tensor(0.0)), JumpAlignment()) > 0


@pytest.mark.parametrize(
    ("scores", "error", "message"),
    [
        (torch.zeros(2, 3), TypeError, r"\(cell, step\) or \(cell, step, down\), but are one tensor.*zeros\(K, 1, 1\)"),
        ((torch.zeros(2, 3),), TypeError, r"but are 1 tensors"),
        ((torch.zeros(3), torch.zeros(2, 1, 1)), ValueError, r"`cell` should have shape \(…, N, M\).*but has \(3,\)"),
        ((torch.zeros(2, 0), torch.zeros(2, 1, 1)), ValueError, r"N, M ≥ 1, but has \(2, 0\)"),
        ((torch.zeros(2, 3), torch.zeros(2)), ValueError, r"a dimension K ≥ 1.*shape \(2,\).*`step\[:, None, None\]`"),
        ((torch.zeros(2, 3), torch.zeros(0, 1, 1)), ValueError, r"a dimension K ≥ 1.*shape \(0, 1, 1\)"),
        (
            (torch.zeros(2, 3), torch.zeros(2, 3, 3)),
            ValueError,
            r"`step` should broadcast to \(2, 2, 3\) to fit `cell`",
        ),
        (
            (torch.zeros(2, 3), torch.zeros(2, 1, 1), torch.zeros(3, 3)),
            ValueError,
            r"`down` should broadcast to \(2, 3\)",
        ),
        ((torch.zeros(2, 3), torch.zeros(2, 1, 1).double()), TypeError, r"dtype of `cell`, torch.float32"),
        ((torch.zeros(1, 3), torch.zeros(2, 1, 1)), ValueError, r"between 0 and 1, the number of rows"),
    ],
)
def test_messages(scores, error, message):
    with pytest.raises(error, match=message):
        structmax.log_partition(scores, JumpAlignment(torch.tensor(2)))

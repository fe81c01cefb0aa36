"""What the laws do not say about connectionist temporal classification: torch's own loss, counts, long inputs."""

import math

import pytest
import torch
from torch.nn.functional import ctc_loss

import structmax
from structmax import CTC
from structmax.testing import same


def loss_and_gradient(logits, structure, loss):
    logits = logits.clone().requires_grad_()
    value = loss(logits.log_softmax(-1), structure)
    return value.detach(), torch.autograd.grad(value[value < math.inf].sum(), logits)[0]


def of_torch(log_probs, structure):
    return ctc_loss(
        log_probs.transpose(0, 1),
        structure.labels,
        structure.lengths,
        structure.label_lengths,
        blank=structure.blank,
        reduction="none",
    )


def ours(log_probs, structure):
    return -structmax.log_partition(log_probs, structure)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("alphabet", "blank"), [(20, 0), (3, 0), (20, 7)])
def test_equals_the_loss_of_torch(dtype, tolerance, alphabet, blank):
    generator = torch.Generator().manual_seed(alphabet)
    logits = torch.randn(6, 50, 20, generator=generator, dtype=dtype)
    labels = torch.randint(1, alphabet, (6, 12), generator=generator)
    structure = CTC(
        torch.where(labels == blank, 0, labels),
        torch.tensor([50, 30, 26, 1, 1, 12]),
        torch.tensor([12, 12, 0, 0, 1, 12]),
        blank=blank,
    )
    # In float32 the loss of torch is the less accurate of the two.
    want, want_gradient = loss_and_gradient(logits.double(), structure, of_torch)
    got, gradient = (answer.double() for answer in loss_and_gradient(logits, structure, ours))
    same("loss", got, want, tolerance)
    feasible = want < math.inf
    same("gradient", gradient[feasible], want_gradient[feasible], tolerance)
    assert not gradient[~feasible].any()


@pytest.mark.parametrize(("labels", "repeats"), [([], 0), ([1], 0), ([1, 2, 1], 0), ([1, 1, 2, 2], 2), ([2, 2, 2], 2)])
def test_counts_strings(labels, repeats):
    frames = 9
    scores = torch.zeros(frames, 3, dtype=torch.float64)
    got = structmax.log_partition(scores, CTC(torch.tensor(labels, dtype=torch.int64)))
    # choose where each of the labels begins and ends, between blanks that only repeats need
    count = math.comb(frames + len(labels) - repeats, 2 * len(labels))
    same("log of the number of strings", got, torch.tensor(math.log(count), dtype=torch.float64))


def test_too_few_frames_are_infeasible():
    structure = CTC(torch.tensor([[1, 1], [1, 2], [1, 1]]), torch.tensor([2, 2, 0]))
    scores = torch.randn(3, 2, 3)
    value = structmax.log_partition(scores, structure)
    assert (value == -math.inf).tolist() == [True, False, True]
    for parts in (structmax.marginals(scores, structure), structmax.argmax(scores, structure)):
        assert not parts[[0, 2]].any()
    assert structure.decode(structmax.argmax(scores, structure)).tolist() == [[-1, -1], [1, 2], [-1, -1]]


def test_draws_are_those_of_the_reference():
    structure = CTC(torch.tensor([[1, 1, 2], [2, 1, 0]]), torch.tensor([8, 6]), torch.tensor([3, 2]))
    scores = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got, want = (
        structmax.sample(scores, structure, (50,), generator=torch.Generator().manual_seed(3), backend=backend)
        for backend in ("numba", "reference")
    )
    assert torch.equal(got, want)


def test_float32_is_accurate_on_long_inputs():
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(2, 3000, 10, generator=generator)
    structure = CTC(torch.randint(1, 10, (2, 300), generator=generator))
    same("value", *(structmax.log_partition(x, structure).double() for x in (scores, scores.double())), 1e-6)
    same("marginals", *(structmax.marginals(x, structure).double() for x in (scores, scores.double())), 1e-4)


def test_peaked_scores_that_come_too_late_do_not_hide_the_path():
    # Until the last frames blanks are better by hundreds of nats, and would leave no time for the labels.
    scores = torch.zeros(40, 3)
    scores[:, 0] = 30.0
    structure = CTC(torch.tensor([1, 2] * 19))
    same("value", *(structmax.log_partition(x, structure).double() for x in (scores, scores.double())), 1e-6)
    same("marginals", *(structmax.marginals(x, structure).double() for x in (scores, scores.double())), 1e-5)


def test_nan_stays_in_its_instance():
    structure = CTC(torch.tensor([1, 2]))
    scores = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0))
    clean = structmax.log_partition(scores, structure), structmax.marginals(scores, structure)
    scores[1, 2, 1] = math.nan
    spoilt = structmax.log_partition(scores, structure), structmax.marginals(scores, structure)
    for got, want in zip(spoilt, clean, strict=True):
        assert torch.equal(got[::2], want[::2])
        assert got[1].isnan().any()


def test_strings_go_there_and_back():
    structure = CTC(torch.tensor([1, 1]), torch.tensor([6, 4]))
    parts = structmax.sample(torch.zeros(2, 6, 3), structure, (20,), generator=torch.Generator().manual_seed(0))
    symbols = structure.decode(parts)
    assert symbols.shape == (20, 2, 6)
    assert bool((symbols[:, 1, 4:] == -1).all())
    assert torch.equal(structure.encode(symbols, 3), parts)


@pytest.mark.parametrize(
    ("structure", "error", "message"),
    [
        (CTC(torch.tensor([1.0])), TypeError, r"`labels` should be an int64 tensor"),
        (CTC(torch.tensor([[1], [1], [1]])), ValueError, r"broadcasts to the batch shape \(2,\).*has \(3, 1\)"),
        (CTC(torch.tensor([1, 0])), ValueError, r"other than the blank, 0, but hold 0.*label_lengths"),
        (CTC(torch.tensor([1, 4])), ValueError, r"from 0 to 3.*hold 4"),
        (CTC(torch.tensor([1]), blank=4), ValueError, r"`blank` should be one of the 4 symbols"),
        (CTC(torch.tensor([1]), torch.tensor(6)), ValueError, r"between 0 and 5, the number of frames"),
        (CTC(torch.tensor([1]), None, torch.tensor(2)), ValueError, r"between 0 and 1, the number of labels"),
    ],
)
def test_messages(structure, error, message):
    with pytest.raises(error, match=message):
        structmax.log_partition(torch.zeros(2, 5, 4), structure)


def test_message_for_scores():
    with pytest.raises(ValueError, match=r"shape \(…, T, V\).*scores.transpose\(0, 1\)"):
        structmax.log_partition(torch.zeros(4), CTC(torch.tensor([1])))


def test_which_parts_exist():
    """By all strings that say the labels: repeated labels, no frame to spare, too few frames."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        count, length = (int(torch.randint(high, (1,), generator=generator)) for high in (4, 6))
        labels = torch.randint(1, 3, (3,), generator=generator)
        structure = structmax.CTC(labels, torch.tensor(length), torch.tensor(count))
        members = structure.enumerate(torch.zeros(5, 3))
        assert torch.equal(structure.exists((torch.zeros(5, 3),))[0], (members > 0).any(0))


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_frames_no_string_uses_may_hold_anything(backend):
    """Two labels in two frames leave no blank; three labels do not fit."""
    scores = torch.tensor([[[0.0, 1.0, math.nan], [2.0, 3.0, math.inf]]]).expand(2, 2, 3)
    structure = CTC(torch.tensor([[0, 1, 0], [0, 1, 0]]), label_lengths=torch.tensor([2, 3]), blank=2)
    scores = torch.where(torch.tensor([[[True]], [[False]]]), scores, math.nan)
    assert structmax.log_partition(scores, structure, backend=backend).tolist() == [3.0, -math.inf]
    best = structmax.topk(scores, structure, 2, backend=backend)
    assert best.values.tolist() == [[3.0, -math.inf], [-math.inf, -math.inf]]
    want = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0] * 3] * 2])
    for question in (structmax.marginals, structmax.argmax):
        assert torch.equal(question(scores, structure, backend=backend), want)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(structmax.sample(scores, structure, generator=generator, backend=backend), want)
    assert structmax.max_marginals(scores, structure, backend=backend)[0, 0].tolist() == [3.0, -math.inf, -math.inf]

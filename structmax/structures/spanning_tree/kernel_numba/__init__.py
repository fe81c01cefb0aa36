"""Spanning trees on the CPU. Derivations: ../README.md."""

from typing import Any

import torch
from torch import Tensor

from structmax.numerics.arcs import as_arcs, from_arcs
from structmax.numerics.kernel_numba import over_rows
from structmax.structures.spanning_tree.kernel_numba.best import max_marginals as max_marginals
from structmax.structures.spanning_tree.kernel_numba.best import topk as topk
from structmax.structures.spanning_tree.kernel_numba.edmonds import argmax as argmax
from structmax.structures.spanning_tree.kernel_numba.laplacian import (
    derivatives,
    logarithmic,
    values,
    values_and_marginals,
)
from structmax.structures.spanning_tree.kernel_numba.sparse import sparsemap as sparsemap
from structmax.structures.spanning_tree.kernel_numba.trie import (
    sample_without_replacement as sample_without_replacement,
)
from structmax.structures.spanning_tree.kernel_numba.walks import sample as sample
from structmax.structures.spanning_tree.reference_given import given


def _rows(arc: Tensor) -> Any:
    """(B, N + 1, (N + 1) · labels), a view."""
    return arc.flatten(2).numpy()


def _solve(
    kernel: Any,
    arc: Tensor,
    tangent: Tensor | None,
    words: Tensor,
    single_root: bool,
    value: Tensor | None = None,
    marginals: Tensor | None = None,
    d_marginals: Tensor | None = None,
) -> None:
    """Fills the outputs that are given, by `kernel`, and by logarithms what it leaves."""
    work = len(arc) * arc.shape[1] ** 3
    exact = torch.empty(len(arc), dtype=torch.bool)
    fields = words.numpy(), bool(single_root)
    inputs = (_rows(arc),) if tangent is None else (_rows(arc), _rows(tangent))
    outputs = [] if value is None else [value.numpy()]
    outputs += [_rows(parts) for parts in (marginals, d_marginals) if parts is not None]
    over_rows(kernel, len(arc), work, *inputs, *fields, *outputs, exact.numpy())
    left = (~exact).nonzero().squeeze(1)
    if len(left):
        # Wide scores are rare: one kernel for all questions, which may answer more than was asked.
        value = arc.new_empty(len(arc)) if value is None else value
        tangent, marginals, d_marginals = (
            torch.zeros_like(arc) if parts is None else parts for parts in (tangent, marginals, d_marginals)
        )
        outputs = [value.numpy(), _rows(marginals), _rows(d_marginals)]
        over_rows(logarithmic, len(left), work, left.numpy(), _rows(arc), _rows(tangent), *fields, *outputs)


def log_partition(arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    arc, words = as_arcs(arc, lengths, directed)
    value = arc.new_empty(len(arc))
    _solve(values, arc, None, words, single_root, value)
    return value


def log_partition_and_marginals(
    arc: Tensor, *, lengths: Tensor, single_root: bool, directed: bool
) -> tuple[Tensor, Tensor]:
    arc, words = as_arcs(arc, lengths, directed)
    value, marginals = arc.new_empty(len(arc)), torch.empty_like(arc)
    _solve(values_and_marginals, arc, None, words, single_root, value, marginals)
    return value, from_arcs(marginals, directed, arc.dim() == 4)


def marginals_jvp(arc: Tensor, tangent: Tensor, *, lengths: Tensor, single_root: bool, directed: bool) -> Tensor:
    tangent, _ = as_arcs(tangent, lengths, directed)
    arc, words = as_arcs(arc, lengths, directed)
    d_marginals = torch.empty_like(arc)
    _solve(derivatives, arc, tangent, words, single_root, d_marginals=d_marginals)
    return from_arcs(d_marginals, directed, arc.dim() == 4)


given_log_partition, given_log_partition_and_marginals, given_marginals_jvp = given(
    log_partition_and_marginals, marginals_jvp
)

"""Structures among the factors: their projections by `sparsemap`, and the faces these lie on."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from structmax.contract import AbstractStructure
from structmax.factor_graph.layout import Outside, instance_fields
from structmax.questions.argmax import argmax
from structmax.questions.sparsemap import SparseMAP, sparsemap

# Of the projections, relative to the largest score of a structure.
TOLERANCE = 1e-11


def of_rows(structure: AbstractStructure, rows: np.ndarray) -> AbstractStructure:
    """The structure of some instances, from one with an entry for each instance in its fields."""
    index = torch.from_numpy(rows)
    return structure.changed({name: getattr(structure, name)[index] for name in instance_fields(structure)})


class Support:
    """The structures that one factor's projections are means of, for each instance of a batch, and the faces they span.

    Structures are lists of parts, counted in the flat vector of all part tensors: `own` are the places there of the
    factor's copies, `others` those of its free parts.

    Args:
        outside: the factor.
        rows: the size of the batch.
    """

    def __init__(self, outside: Outside, rows: int) -> None:
        self.outside = outside
        self.sizes = [math.prod(shape) for shape in outside.shapes]
        free = np.repeat(outside.free, self.sizes)
        self.own, self.others = np.flatnonzero(~free), np.flatnonzero(free)
        self.lists = torch.zeros((rows, 0, 0), dtype=torch.int32)
        self.counts = np.zeros(rows, np.int64)
        # orthonormal directions (B, r, k) of the faces, and how the free parts move along them (B, r, m)
        self.directions, self.along = np.zeros((rows, 0, len(self.own))), np.zeros((rows, 0, len(self.others)))

    def _tensors(self, own: np.ndarray, others: np.ndarray) -> tuple[Tensor, ...]:
        """Part tensors from the entries of copies (R, k) and of free parts (R, m)."""
        flat = np.empty((len(own), sum(self.sizes)))
        flat[:, self.own], flat[:, self.others] = own, others
        pieces = torch.from_numpy(flat).split(self.sizes, -1)
        return tuple(p.reshape(len(own), *shape) for p, shape in zip(pieces, self.outside.shapes, strict=True))

    def _entries(self, tensors: tuple[Tensor, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The inverse."""
        flat = torch.cat([tensor.flatten(1) for tensor in tensors], 1).numpy()
        return flat[:, self.own], flat[:, self.others]

    def project(
        self, rows: np.ndarray, eta: np.ndarray, phi: np.ndarray, structure: AbstractStructure
    ) -> tuple[np.ndarray, np.ndarray]:
        """argmin ½‖x − eta‖² − ⟨phi, ν⟩ over the hull: copies x (R, k) and free parts ν (R, m) of these rows."""
        tensors = self._tensors(eta, phi)
        start = self._former(rows, tensors, structure) if self.lists.shape[1] else None
        pairs = zip(structure.names, self.outside.free, strict=False)
        regularised = tuple(name for name, is_free in pairs if not is_free)
        scores = structure.parts(tensors)
        found = sparsemap(scores, structure, tol=TOLERANCE, start=start, regularised=regularised)
        self._remember(rows, found)
        return self._entries(structure.tensors(found.marginals))

    def _former(self, rows: np.ndarray, tensors: tuple[Tensor, ...], structure: AbstractStructure) -> SparseMAP:
        """The last supports of these rows, for `sparsemap` to start from: little has changed since."""
        nothing, index = torch.zeros(0), torch.from_numpy(rows)
        return SparseMAP(
            marginals=structure.parts(tensors),
            probabilities=nothing,
            value=nothing,
            counts=torch.from_numpy(self.counts[rows]),
            iterations=nothing,
            converged=nothing,
            gap=nothing,
            structure=structure,
            lists=self.lists[index],
        )

    def _remember(self, rows: np.ndarray, found: SparseMAP) -> None:
        K, L = (max(a, b) for a, b in zip(self.lists.shape[1:], found.lists.shape[1:], strict=True))
        filling = sum(self.sizes)

        def widened(lists: Tensor) -> Tensor:
            return torch.nn.functional.pad(lists, (0, L - lists.shape[2], 0, K - lists.shape[1]), value=filling)

        self.lists = widened(self.lists)
        self.lists[torch.from_numpy(rows)] = widened(found.lists)
        self.counts[rows] = found.counts.numpy()

    def find_faces(self, rows: np.ndarray) -> None:
        """Directions of the faces that the supports of these rows span.

        A structure of a support is no affine mixture of the others, so their differences D (k, r) have the rank r. With
        D = Q R a move x = Q q along the face is D R⁻¹ q, and the free parts, whose differences are F, move by F R⁻¹ q.
        """
        lists = self.lists[torch.from_numpy(rows)].long()
        R, K, _ = lists.shape
        members = torch.zeros(R, K, sum(self.sizes) + 1, dtype=torch.float64)
        members.scatter_add_(-1, lists, torch.ones((), dtype=torch.float64).expand(lists.shape))
        there = torch.arange(1, K) < torch.from_numpy(self.counts[rows])[:, None]
        differences = (members[:, 1:] - members[:, :1]) * there.unsqueeze(-1)
        q, triangle = torch.linalg.qr(differences[..., self.own].mT)
        # past an instance's support there are zeros
        there = there[:, : q.shape[-1]]
        triangle = triangle[..., : q.shape[-1]] + torch.diag_embed((~there).double())
        free = differences[:, : q.shape[-1], self.others]
        along = torch.linalg.solve_triangular(triangle.mT, free, upper=False) * there.unsqueeze(-1)
        more = max(0, q.shape[-1] - self.directions.shape[1])
        self.directions, self.along = (np.pad(a, ((0, 0), (0, more), (0, 0))) for a in (self.directions, self.along))
        self.directions[rows], self.along[rows] = 0.0, 0.0
        self.directions[rows, : q.shape[-1]] = (q.mT * there.unsqueeze(-1)).numpy()
        self.along[rows, : q.shape[-1]] = along.numpy()

    def complete(
        self, copies: np.ndarray, phi: np.ndarray, structure: AbstractStructure
    ) -> tuple[np.ndarray, np.ndarray]:
        """For 0/1 copies (B, k): whether they are a structure (B,), and its best free parts (B, m)."""
        # no free part outweighs a copy
        most = 1 + 2 * np.where(np.isfinite(phi), np.abs(phi), 0.0).sum(1, keepdims=True)
        scores = structure.parts(self._tensors(np.where(copies > 0, most, -most), phi))
        own, others = self._entries(structure.tensors(argmax(scores, structure)))
        met = (own == copies).all(1)
        if not own[met].any(1).all():
            # no part at all: a structure that is empty, or none
            met &= sparsemap(scores, structure).counts.numpy() > 0
        return met, others

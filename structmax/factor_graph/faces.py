"""The faces that the factors' copies lie on at a solution: all that its derivative needs. See README.md here."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from structmax.factor_graph.layout import KINDS, Layout, Outside


@dataclass(frozen=True)
class Faces:
    """How copies and own parts move, for each instance of a batch.

    Args:
        layout: the graph.
        mode, free, slope: (B, F), (B, E) and (B, E), of the factors of logic: see kernel_numba/steps.py.
        still: (B, n), variables that do not move.
        rank, across: (B, T) and (B, D), the directions of the tables' faces.
        moves: inverse (B, D) and chosen (B, T, K), how the tables' own parts move: see kernel_numba/table.py.
        spans: for each structure orthonormal directions (B, r, k), and how its free parts move along them (B, r, m).
    """

    layout: Layout
    mode: np.ndarray
    free: np.ndarray
    slope: np.ndarray
    still: np.ndarray
    rank: np.ndarray
    across: np.ndarray
    moves: tuple[np.ndarray, np.ndarray]
    spans: tuple[tuple[np.ndarray, np.ndarray], ...]

    def directions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ranks (B, O) of the faces of tables and structures, where each begins (O,), and all directions (B, D)."""
        B = len(self.mode)
        blocks = [self.across, *(span.reshape(B, span.shape[1] * span.shape[2]) for span, _ in self.spans)]
        rank = np.array([span.shape[1] for span, _ in self.spans], np.int64)
        place = np.cumsum([block.shape[1] for block in blocks], dtype=np.int64)[:-1]
        ranks = np.concatenate([self.rank, np.tile(rank, (B, 1))], 1)
        return ranks, np.concatenate([self.layout.table_room.place, place]), np.concatenate(blocks, 1)

    def pull(self, own: np.ndarray, out: np.ndarray) -> None:
        """What scores (B, m) of own parts of tables and structures are worth as scores of the copies: into (B, E)."""
        from structmax.factor_graph.kernel_numba import table

        arrays, number = self.layout.arrays, self.layout.tables.number
        if len(number):
            table.pull(arrays.start, number, self.rank, self.layout.table_room.place, self.moves, own, out)
        for outside, (span, along) in zip(self.layout.outside, self.spans, strict=True):
            weights = np.einsum("brm,bm->br", along, own[:, outside.scores])
            out[:, _copies(self.layout, outside)] = np.einsum("brk,br->bk", span, weights)

    def push(self, copies: np.ndarray, out: np.ndarray) -> None:
        """How own parts of tables and structures move with copies (B, E) that move along the faces: into (B, m)."""
        from structmax.factor_graph.kernel_numba import table

        arrays, number = self.layout.arrays, self.layout.tables.number
        if len(number):
            table.push(arrays.start, number, self.rank, self.layout.table_room.place, self.moves, copies, out)
        for outside, (span, along) in zip(self.layout.outside, self.spans, strict=True):
            weights = np.einsum("brk,bk->br", span, copies[:, _copies(self.layout, outside)])
            out[:, outside.scores] = np.einsum("brm,br->bm", along, weights)

    def product(self, d_bound: np.ndarray, d_free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The Jacobian of the solution, a symmetric matrix, times a vector (B, n) and (B, m)."""
        from structmax.factor_graph.kernel_numba import steps

        arrays = self.layout.arrays
        pairs = arrays.kind == KINDS["pair"]
        first, part = arrays.start[:-1][pairs], arrays.part[pairs]
        # own parts are linear in the copies, along a face: what they are worth there
        worth = np.zeros_like(self.slope)
        for end in (first, first + 1):
            worth[:, end] = self.slope[:, end] * d_free[:, part]
        self.pull(d_free, worth)
        goal = d_bound + summed(self.layout, worth)
        faces = self.mode, self.free, *self.directions()
        moved = steps.along_faces((*arrays, self.layout.norm), self.still, faces, goal, conjugate(self.layout))
        moved[self.still] = 0.0
        copies = arrays.sign * moved[:, arrays.variable]
        along = np.zeros_like(d_free)
        along[:, part] = sum(self.slope[:, end] * copies[:, end] for end in (first, first + 1))
        self.push(copies, along)
        return moved, along

    def packed(self) -> tuple[Tensor, Tensor]:
        """All of it as whole numbers and real ones, one row for each instance."""
        B = len(self.mode)
        ranks = np.tile(np.array([span.shape[1] for span, _ in self.spans], np.int32), (B, 1))
        whole = self.mode, self.free, self.still, self.rank, self.moves[1], ranks
        real = self.slope, self.across, self.moves[0], *itertools.chain(*self.spans)
        rows = [np.concatenate([a.reshape(B, -1 if B else 0) for a in group], 1) for group in (whole, real)]
        return torch.from_numpy(rows[0].astype(np.int32)), torch.from_numpy(rows[1].astype(np.float64))

    @staticmethod
    def unpacked(layout: Layout, whole: Tensor, real: Tensor) -> Faces:
        """The inverse."""
        arrays, room = layout.arrays, layout.table_room
        B, F, E, n, T = (
            len(whole),
            len(arrays.kind),
            len(arrays.variable),
            len(arrays.degree),
            len(layout.tables.number),
        )
        widths = [F, E, n, T, T * room.most, len(layout.outside)]
        mode, free, still, rank, chosen, ranks = _split(whole.numpy(), widths)
        events = []
        for r, outside in zip(ranks[0], layout.outside, strict=True):
            copies = _copies(layout, outside)
            events += [(int(r), copies.stop - copies.start), (int(r), len(outside.scores))]
        sizes = [E, room.size, room.size, *(r * k for r, k in events)]
        slope, across, inverse, *rest = _split(real.numpy(), sizes)
        shaped = [a.reshape(B, *event) for a, event in zip(rest, events, strict=True)]
        moves = inverse, chosen.reshape(B, T, room.most).astype(np.int64)
        spans = tuple(zip(shaped[::2], shaped[1::2], strict=True))
        kinds = mode.astype(np.int8), free.astype(np.int8), slope, still.astype(bool), rank.astype(np.int64)
        return Faces(layout, *kinds, across, moves, spans)


def _split(array: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return [np.ascontiguousarray(a) for a in np.split(array, np.cumsum(sizes[:-1]), 1)]


def _copies(layout: Layout, outside: Outside) -> slice:
    start = layout.arrays.start
    return slice(int(start[outside.number]), int(start[outside.number + 1]))


def summed(layout: Layout, copies: np.ndarray) -> np.ndarray:
    """Sums over the copies (B, E) of each variable, with the sign of the literal: (B, n)."""
    arrays = layout.arrays
    sums = torch.zeros((len(copies), len(arrays.degree)), dtype=torch.float64)
    return sums.index_add_(1, torch.from_numpy(arrays.variable), torch.from_numpy(arrays.sign * copies)).numpy()


def conjugate(layout: Layout) -> int:
    """More steps than conjugate gradients ever need."""
    return 50 + 2 * len(layout.arrays.variable)

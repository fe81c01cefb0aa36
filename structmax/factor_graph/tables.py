"""Tables among the factors: the choices that their projections are means of, and the faces these span."""

from __future__ import annotations

import numpy as np

from structmax.factor_graph.layout import Layout


class TableSupports:
    """For each instance and each table a support, kept from step to step, and directions of the face it spans.

    Args:
        layout: the graph.
        rows: the size of the batch.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        from structmax.factor_graph.kernel_numba import table

        self.kernel, self.layout = table, tuple(layout.tables)
        self.start = layout.arrays.start
        tables = layout.tables
        T = len(tables.number)
        size = self.start[tables.number + 1] - self.start[tables.number]
        # affinely independent choices, and one that is about to enter
        most = size - tables.groups + 2
        K, L = int(most.max(initial=0)), tables.states.shape[1] + 1
        space = (most - 1) * size
        self.place = np.cumsum([0, *space], dtype=np.int64)[:-1]
        self.rank = np.zeros((rows, T), np.int64)
        self.directions = np.zeros((rows, int(space.sum())))
        self.members = (
            np.zeros((rows, T, K, L), np.int32),
            np.zeros((rows, T, 2, K), np.int64),
            np.zeros((rows, T, K, K)),
            np.zeros((rows, T, 7, K)),
            np.zeros((rows, T, 4)),
            np.zeros((rows, T, 1), np.int64),
            np.zeros_like(self.directions),
        )

    def __len__(self) -> int:
        return self.rank.shape[1]

    def find_faces(self, rows: np.ndarray) -> None:
        """Directions of the faces that the supports of these rows span."""
        self.kernel.find_faces(rows, self.start, self.layout, self.members, self.rank, self.place, self.directions)

    def pull(self, free: np.ndarray, out: np.ndarray) -> None:
        """What scores (B, m) of the choices are worth as scores of the copies, along the faces: into out (B, E)."""
        self.kernel.pull(self.start, self.layout, self.members, self.rank, self.place, free, out)

    def push(self, copies: np.ndarray, out: np.ndarray) -> None:
        """How the choices move with copies (B, E) that move along the faces: added to out (B, m)."""
        self.kernel.push(self.start, self.layout, self.members, self.rank, self.place, copies, out)

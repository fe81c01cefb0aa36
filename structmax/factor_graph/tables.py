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
        room, L = layout.table_room, tables.states.shape[1] + 1
        K, self.place = room.most, room.place
        self.rank = np.zeros((rows, T), np.int64)
        self.directions = np.zeros((rows, room.size))
        self.members = (
            np.zeros((rows, T, K, L), np.int32),
            np.zeros((rows, T, 2, K), np.int64),
            np.zeros((rows, T, K, K)),
            np.zeros((rows, T, 7, K)),
            np.zeros((rows, T, 4)),
            np.zeros((rows, T, 1), np.int64),
        )
        self.moves = np.zeros_like(self.directions), np.zeros((rows, T, K), np.int64)

    def __len__(self) -> int:
        return self.rank.shape[1]

    def find_faces(self, rows: np.ndarray) -> None:
        """Directions of the faces that the supports of these rows span."""
        faces = self.rank, self.place, self.directions, self.moves
        self.kernel.find_faces(rows, self.start, self.layout, self.members, *faces)

"""The linear assignment problem: every row of a square matrix gets a column of its own, and the sum is the largest.

Rows are added one after the other along shortest augmenting paths, with a price for each row and each column that keeps
all reduced costs from becoming negative (Jonker and Volgenant 1987, "A shortest augmenting path algorithm for dense and
sparse linear assignment problems", without its preparation). That takes O(n^3) steps, n at a time in NumPy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def best_assignment(gains: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The row of each column, int64 [n], a permutation with the largest sum of gains [row, column], float64 [n, n].

    Raises ValueError for another shape, and for gains that are not finite.
    """
    if gains.ndim != 2 or gains.shape[0] != gains.shape[1]:
        raise ValueError(f"an assignment needs a square matrix of gains, not one of shape {list(gains.shape)}")
    if not np.isfinite(gains).all():
        raise ValueError("an assignment needs finite gains; some are not")
    size = len(gains)
    row_prices, column_prices = np.zeros(size), np.zeros(size + 1)
    # One column more, in which the row that is added waits.
    row_of = np.full(size + 1, -1, dtype=np.int64)
    for row in range(size):
        row_of[size] = row
        column, free = size, np.ones(size, dtype=np.bool_)
        distances, before = np.full(size, np.inf), np.full(size, size)
        while row_of[column] >= 0:
            if column < size:
                free[column] = False
            here = row_of[column]
            reduced = -gains[here] - row_prices[here] - column_prices[:size]
            nearer = free & (reduced < distances)
            distances[nearer], before[nearer] = reduced[nearer], column
            nearest = int(np.where(free, distances, np.inf).argmin())
            step = distances[nearest]
            reached = np.append(~free, True)
            row_prices[row_of[reached]] += step
            column_prices[reached] -= step
            distances[free] -= step
            column = nearest
        while column < size:
            row_of[column], column = row_of[before[column]], before[column]
    return row_of[:size]

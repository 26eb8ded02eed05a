"""The Harary graph on a ring, as Bell et al. 2020 have it: a reference for what clients find out for themselves."""

from typing import Any

import numpy as np
import numpy.typing as npt


def ring_neighbours(order: npt.NDArray[np.integer[Any]], neighbours: int) -> dict[int, tuple[int, ...]]:
    """The Harary graph on a ring: each member's neighbours, ascending.

    Half of the neighbours on each side; an odd number adds the member opposite, which an even ring has. With
    neighbours = members - 1 this is the complete graph. ValueError when no such graph exists.
    """
    members = len(order)
    if not 0 < neighbours < members or (neighbours % 2 and members % 2):
        raise ValueError(f"a ring of {members} members gives nobody {neighbours} neighbours")
    offsets = [*range(-(neighbours // 2), 0), *range(1, neighbours // 2 + 1)] + [members // 2] * (neighbours % 2)
    positions = (np.arange(members)[:, np.newaxis] + np.array(offsets)) % members
    nearby = np.sort(order[positions], axis=1).tolist()
    return dict(zip(order.tolist(), map(tuple, nearby), strict=True))

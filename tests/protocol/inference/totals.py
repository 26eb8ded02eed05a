"""What a schedule of private inference comes to for each operation."""

from collections.abc import Iterable
from typing import NamedTuple

from tacit.protocol.inference.schedule import Round


class RoundsTotal(NamedTuple):
    model_owner_bytes: int
    data_owner_bytes: int
    rounds: int


def by_operation(rounds: Iterable[Round]) -> dict[str, RoundsTotal]:
    """Sums over the rounds of every operation, in the order of their first ones."""
    costs: dict[str, RoundsTotal] = {}
    for operation, model_owner_bytes, data_owner_bytes in rounds:
        before = costs.get(operation, RoundsTotal(0, 0, 0))
        costs[operation] = RoundsTotal(before[0] + model_owner_bytes, before[1] + data_owner_bytes, before[2] + 1)
    return costs

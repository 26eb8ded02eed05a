"""Neighbour graph of pairwise masks, and thresholds of secret sharing (docs/spec/parameters.md).

Complete graph (Bonawitz et al. 2017): t exceeds the number of colluders and half of all clients; against a malicious
server, 2t > clients + colluders, so that no two disjoint sets of honest clients can each give a threshold of shares of
a different kind for one client. Regular graph (Bell et al. 2020): the smallest even k with 40 bits of security that
fails to recover less often than 2^-20. As in the authors' parameter finder, a + d (a + 2 d against a malicious server)
is at most 0.9 n: beyond that, a regular graph is hardly smaller than the complete one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tacit.secagg.keystream import Usage, keystream

_SECURITY_BITS = 40
_RECOVERY_BITS = 20
_LARGEST_LOSS = Fraction(9, 10)
_SMALLEST_REGULAR_COHORT = 20

GraphChoice = Literal["auto", "complete", "regular"]


@dataclass(frozen=True)
class GraphParameters:
    """Number of a client's neighbours, and of shares that open one of its secrets."""

    neighbours: int
    threshold: int


def choose_parameters(
    clients: int, *, colluders: int, dropouts: int, active: bool, graph: GraphChoice
) -> GraphParameters:
    """Parameters for `clients` of whom at most `colluders` work with the server and at most `dropouts` are lost.

    `auto` is the complete graph below 20 clients and against an active server, else the regular graph: an active server
    that could pick the ring would surround a victim. ValueError if there are no parameters. The threshold of the
    complete graph does not depend on dropouts: all clients beyond it may be lost."""
    if graph == "complete" or (graph == "auto" and (active or clients < _SMALLEST_REGULAR_COHORT)):
        return complete_parameters(clients, colluders=colluders, active=active)
    return regular_parameters(clients, colluders=colluders, dropouts=dropouts, active=active)


def complete_parameters(clients: int, *, colluders: int, active: bool) -> GraphParameters:
    if clients < 2:
        raise ValueError(f"an aggregation needs at least 2 clients, not {clients}")
    _check_counts(clients, colluders, 0)
    others = max(2 * clients // 3, (clients + colluders) // 2) if active else max(colluders, clients // 2)
    return GraphParameters(neighbours=clients - 1, threshold=others + 1)


def regular_parameters(clients: int, *, colluders: int, dropouts: int, active: bool) -> GraphParameters:
    """Parameters of the regular graph with the fewest neighbours; ValueError when there are none."""
    _check_counts(clients, colluders, dropouts)
    fits = colluders + (1 + active) * dropouts <= _LARGEST_LOSS * clients
    sizes = range(2, clients - 1, 2) if fits else range(0)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, clients + 1)))))
    disconnected_at_most = -(_SECURITY_BITS + 1) * math.log(2)
    lost = colluders + dropouts
    for neighbours in sizes:
        if neighbours <= lost:
            log_disconnected = (
                math.log(clients * (clients - neighbours - 1) / 2)
                + log_factorial[lost]
                + log_factorial[clients - neighbours]
                - log_factorial[clients]
                - log_factorial[lost - neighbours]
            )
            if log_disconnected >= disconnected_at_most:
                continue
        colluding = _largest_count(
            clients, colluders, neighbours, 2.0 ** -(_SECURITY_BITS + 1) / clients, log_factorial
        )
        # Survivors among the neighbours are the neighbours that did not drop out.
        survivors = neighbours - _largest_count(
            clients, dropouts, neighbours, 2.0**-_RECOVERY_BITS / clients, log_factorial
        )
        if active:
            colluding = math.ceil((colluding + neighbours - 1.25) / 2)
        if survivors > colluding:
            return GraphParameters(neighbours=neighbours, threshold=max(colluding + 1, 2))
    raise ValueError(
        f"no regular graph of {clients} clients tolerates {colluders} colluders and {dropouts} dropouts against "
        f'{"an active" if active else "a semi-honest"} server: use graph = "complete", or lower `corrupt` or `dropout`'
    )


def ring_order(members: npt.NDArray[np.integer[Any]], seed: bytes) -> npt.NDArray[np.int64]:
    """A random order of the distinct `members` [n], derived from the common 32-byte `seed`.

    Members, in ascending order, get one 64-bit keystream word each and are sorted by (word, member)."""
    ascending = np.sort(members)
    if (ascending[1:] == ascending[:-1]).any():
        raise ValueError("a member occurs twice on the ring")
    keys = np.frombuffer(keystream(seed, Usage.RING_ORDER, 8 * len(ascending)), "<u8")
    return ascending[np.argsort(keys, kind="stable")].astype(np.int64)


def _largest_count(
    population: int, marked: int, draws: int, probability: float, log_factorial: npt.NDArray[np.float64]
) -> int:
    """Smallest x with Pr[Hyp(population, marked, draws) > x] <= probability."""
    unmarked = population - marked
    counts = np.arange(max(0, draws - unmarked), min(draws, marked) + 1)
    log_mass = (
        log_factorial[marked]
        + log_factorial[unmarked]
        + log_factorial[draws]
        + log_factorial[population - draws]
        - log_factorial[population]
        - log_factorial[counts]
        - log_factorial[marked - counts]
        - log_factorial[draws - counts]
        - log_factorial[unmarked - draws + counts]
    )
    at_least = np.cumsum(np.exp(log_mass[::-1]))  # Pr[X >= counts], from the far end: the smallest terms first.
    return int(counts[-1]) - int(np.searchsorted(at_least, probability, side="right"))


def _check_counts(clients: int, colluders: int, dropouts: int) -> None:
    if not (0 <= colluders < clients and 0 <= dropouts < clients):
        raise ValueError(f"of {clients} clients {colluders} may collude and {dropouts} be lost: some must be neither")

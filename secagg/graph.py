"""Who masks with whom, and how many shares open a secret: neighbour graph and thresholds.

Complete graph (Bonawitz et al. 2017): everybody is everybody's neighbour and the threshold counts shares among all
clients, a client's own share included. Against a server that only watches, t exceeds the number of corrupt clients and
half of all clients; against one that lies, 2t > clients + corrupt, so that no two disjoint sets of honest clients can
be made to give one share of each kind for one client; t = floor(2 clients / 3) + 1 does it below a third corrupt.

Regular graph (Bell et al. 2020): a Harary graph, k/2 neighbours on each side of a random ring, shares among the k
neighbours only. The smallest even k is taken for which, with 40 bits of security and recovery failing less often than
2^-20, the following hold; a and d are the largest numbers of corrupt and of dropped clients of n:
 1. connected: n (n-k-1)/2 * (a+d)! (n-k)! / (n! (a+d-k)!) < 2^-41, or k > a+d;
 2. t1 = smallest x with Pr[Hyp(n, a, k) > x] <= 2^-41/n, the corrupt neighbours to be expected at most;
 3. t2 = largest t with Pr[Hyp(n, n-d, k) < t] <= 2^-20/n, the surviving neighbours to be expected at least;
 4. against a server that lies, t1 becomes ceil((t1 + k - 1.25)/2), so that 2t > k + corrupt neighbours;
and t2 > t1; then t = max(t1 + 1, 2). As in the authors' parameter finder, corrupt + dropout (2 dropout against a server
that lies) is at most 0.9: beyond that, a regular graph is hardly smaller than the complete one.
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
    """How many neighbours a client has, and how many shares open one of its secrets."""

    neighbours: int
    threshold: int


def choose_parameters(
    clients: int, *, corrupt: float, dropout: float, active: bool, graph: GraphChoice
) -> GraphParameters:
    """Parameters for at most the fractions `corrupt` and `dropout` of `clients`.

    `auto` is the complete graph below 20 clients and against an active server, else the regular graph: an active server
    that could pick the ring would surround a victim.
    """
    if graph == "complete" or (graph == "auto" and (active or clients < _SMALLEST_REGULAR_COHORT)):
        return complete_parameters(clients, active=active, corrupt=corrupt)
    return regular_parameters(clients, corrupt=corrupt, dropout=dropout, active=active)


def complete_parameters(clients: int, *, active: bool, corrupt: float) -> GraphParameters:
    """Parameters of the complete graph; ValueError when no threshold protects against that many corrupt clients."""
    if clients < 2:
        raise ValueError(f"an aggregation needs at least 2 clients, not {clients}")
    adversaries = math.floor(_exact(corrupt, name="corrupt") * clients)
    threshold = 2 * clients // 3 + 1 if active else max(adversaries, clients // 2) + 1
    if threshold > clients or (active and 2 * threshold <= clients + adversaries):
        raise ValueError(
            f"no threshold protects {clients} clients against {adversaries} corrupt ones"
            f"{' and an active server' if active else ''}: lower `corrupt` ({corrupt})"
        )
    return GraphParameters(neighbours=clients - 1, threshold=threshold)


def regular_parameters(clients: int, *, corrupt: float, dropout: float, active: bool) -> GraphParameters:
    """Parameters of the regular graph with the fewest neighbours; ValueError when there are none."""
    corrupt_part = _exact(corrupt, name="corrupt")
    dropout_part = _exact(dropout, name="dropout")
    adversaries = math.floor(corrupt_part * clients)
    dropped = math.floor(dropout_part * clients)
    sizes = range(2, clients - 1, 2) if corrupt_part + (1 + active) * dropout_part <= _LARGEST_LOSS else range(0)
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, clients + 1)))))
    disconnected_at_most = -(_SECURITY_BITS + 1) * math.log(2)
    lost = adversaries + dropped
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
        corrupt_neighbours = _largest_count(
            clients, adversaries, neighbours, 2.0 ** -(_SECURITY_BITS + 1) / clients, log_factorial
        )
        # Survivors among the neighbours are the neighbours that did not drop out.
        survivors = neighbours - _largest_count(
            clients, dropped, neighbours, 2.0**-_RECOVERY_BITS / clients, log_factorial
        )
        if active:
            corrupt_neighbours = math.ceil((corrupt_neighbours + neighbours - 1.25) / 2)
        if survivors > corrupt_neighbours:
            return GraphParameters(neighbours=neighbours, threshold=max(corrupt_neighbours + 1, 2))
    raise ValueError(
        f"no regular graph of {clients} clients tolerates corrupt={corrupt} and dropout={dropout} against "
        f'{"an active" if active else "a semi-honest"} server: use graph = "complete", or lower the fractions'
    )


def ring_order(members: npt.NDArray[np.integer[Any]], seed: bytes) -> npt.NDArray[np.int64]:
    """A random order of the distinct `members` [n], the same for everybody who knows the 32-byte `seed`.

    Members, in ascending order, get one 64-bit keystream word each and are sorted by (word, member).
    """
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


def _exact(fraction: float, *, name: str) -> Fraction:
    """The fraction as it is written in decimals: 0.29 of 100 clients is 29, though 0.29 * 100 < 29 in floats."""
    if not 0 <= fraction < 1:
        raise ValueError(f"`{name}` is a fraction from 0 up to, not including, 1; got {fraction}")
    return Fraction(str(float(fraction)))

"""Client sampling: the server draws the cohort of each round among the clients that are ready.

The server may lie about its draws: a client's privacy budget counts every round that it takes part in, with no
amplification by sampling. A sampled cohort keeps every client's bound, as any other does: a server with insufficient
cohorts does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import accumulate

import msgspec
import numpy as np

from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.graph import ring_order


def drawing_order(clients: int, seed: bytes, round: int) -> list[int]:
    """Random order of the roster's clients, by their indices; the first ready ones form the cohort.

    seed: 32 bytes. With the same seed a round prefers the same clients, regardless of the others."""
    key = sha256(seed + round.to_bytes(8, "little")).digest()
    return [int(index) for index in ring_order(np.arange(clients), key)]


def cohorts(most: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Fewest and most clients of a full cohort of whole groups that has at most so many clients.

    sizes: of the groups of the roster; without groups, every cohort is full."""
    if not sizes:
        return most, most
    # So many of the drawn groups always fit.
    groups = sum(total <= most for total in accumulate(sorted(sizes, reverse=True)))
    return sum(sorted(sizes)[:groups]), min(most, sum(sizes))


def check_cohorts(terms: Proposal, sizes: Sequence[int], smallest_cohort: int) -> None:
    """ValueError unless a round is possible with every cohort of terms.clients that may be drawn.

    sizes: of the groups of the roster, if it has any."""
    least = max(smallest_cohort, terms.smallest_group)
    fewest, _ = cohorts(terms.clients, sizes)
    if fewest < least:
        whole = " in whole groups" if fewest < terms.clients else ""
        beside = f", beside {terms.colluders} that may collude" if terms.secure and terms.colluders else ""
        raise ValueError(f"{fewest}{whole} are too few{beside}: a round needs {least}")
    terms.check_dropouts(grouped=bool(sizes))
    terms.check_groups(sizes, fewest, smallest_cohort)


def least_cohort(terms: Proposal, participants: int, sizes: Sequence[int], smallest_cohort: int) -> int | None:
    """The smallest cohort that permits rounds; None if not even all participants suffice."""
    choices = (msgspec.structs.replace(terms, clients=clients) for clients in range(1, participants + 1))
    return next((one.clients for one in _possible(choices, sizes, smallest_cohort)), None)


def most_colluders(terms: Proposal, sizes: Sequence[int], smallest_cohort: int) -> int | None:
    """The most colluders, fewer than those of these terms, that permit rounds; None if no number does."""
    fewer = (msgspec.structs.replace(terms, colluders=colluders) for colluders in reversed(range(terms.colluders)))
    return next((one.colluders for one in _possible(fewer, sizes, smallest_cohort)), None)


def _possible(choices: Iterator[Proposal], sizes: Sequence[int], smallest_cohort: int) -> Iterator[Proposal]:
    for terms in choices:
        try:
            check_cohorts(terms, sizes, smallest_cohort)
        except ValueError:
            continue
        yield terms

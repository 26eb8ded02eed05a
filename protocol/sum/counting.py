"""The first stage of a round whose clients see to min_contributors: who contributes to what is counted before.

Stage one is a secure sum of zeros and ones (secagg/counting.py) by the cohort of the round. From it the server derives
the limits, a bitmap over the coordinates (most significant bit first): those that have at least min_contributors, plus
as many as may still be lost. The survivors of stage one, or those of them that are left, are the cohort of stage two,
the secure sum of the updates, in which a client sends nothing at a coordinate outside of the limits. Not more may be
lost in stage two than were counted in: below that nobody opens its sum.

The limits are bound into the masks of stage two, so that a server that tells clients different limits gets noise. That
they are those of the counts nobody can check: a lying server may say that all is well. Coordinated masks need no such
word of the server.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.counting import COUNTING_RING, CountPacking
from tacit.secagg.ring import Words

COUNTING: Final = b"counting"
"""The purpose of stage one, as it enters its context."""


def packing(configuration: Configuration) -> CountPacking:
    """How counts of this configuration are packed."""
    return CountPacking(configuration.clients, sum(configuration.tensor_sizes))


def limits_bytes(configuration: Configuration) -> int:
    """Length of the limits."""
    return -(-sum(configuration.tensor_sizes) // 8)


def counting_agreement(agreement: Agreement, configuration: Configuration) -> Agreement:
    """The agreement of stage one, from that of a round in one stage."""
    return replace(agreement, ring=COUNTING_RING, length=packing(configuration).length, purpose=COUNTING)


def second_agreement(agreement: Agreement, configuration: Configuration, *, counted: int, limits: bytes) -> Agreement:
    """The agreement of stage two, from that of a round in one stage with the cohort of stage two.

    counted: how many vectors the sum of stage one holds; limits: their digest.
    """
    left = max(agreement.fewest_survivors, counted - spare(configuration, counted))
    # Nobody trains any more.
    return replace(agreement, purpose=limits, fewest_survivors=left, train_seconds=configuration.phase_seconds)


def spare(configuration: Configuration, counted: int) -> int:
    """How many of those counted may be lost in stage two."""
    return counted - configuration.fewest_survivors(counted)


def derive_limits(total: Words, configuration: Configuration, *, counted: int) -> bytes:
    """The limits that follow from the sum of stage one. ValueError if that is none of honest contributions."""
    counts = packing(configuration).decode(total, contributors=counted)
    return np.packbits(counts >= configuration.min_contributors + spare(configuration, counted)).tobytes()


def check_second_cohort(configuration: Configuration, cohort: tuple[str, ...], survivors: tuple[str, ...]) -> None:
    """Refuse a cohort of stage two that is not within stage one, or lacks more than may be lost."""
    if not set(cohort) <= set(survivors):
        raise RemoteProtocolError(Code.MEMBERS, "the second stage has clients whose contributions were not counted")
    if len(cohort) < len(survivors) - spare(configuration, len(survivors)):
        raise RemoteProtocolError(
            Code.THRESHOLD,
            f"{len(cohort)} of the {len(survivors)} clients that were counted are left; not more than "
            f"{spare(configuration, len(survivors))} may be lost",
        )

"""Who holds whose shares, and who masks with whom, once it is known who advertised keys.

Three graphs, one interface. Complete: everybody, a client holding a share of its own secrets too. Ring (semi-honest,
regular): a Harary graph on an order of the members that follows from the transcript, so that nobody picks it. Chosen
(active, regular; Bell et al. 2020, malicious variant): each client names its holders in its signed advert, before it
has seen anybody's keys, because a server that could pick them would surround a victim with its own clients; masks then
run along every choice, in both directions.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.sum.agreement import Agreement
from tacit.secagg.graph import ring_order


@dataclass(frozen=True)
class Neighbourhood:
    """The relations of one member, each in rising order."""

    holders: tuple[int, ...]
    """Who holds shares of its secrets."""
    owners: tuple[int, ...]
    """Whose shares it holds."""
    peers: tuple[int, ...]
    """With whom it shares a pairwise mask."""

    def known(self, member: int) -> tuple[int, ...]:
        """Everybody whose keys the member needs, itself included."""
        return tuple(sorted({member, *self.holders, *self.owners, *self.peers}))


class Graph:
    """The neighbourhoods among those who advertised.

    advertised: in rising order, with a quick `in`. choices: in an active regular graph the holders that members named:
    of all members on the server, of the included ones on a client; otherwise empty.
    """

    def __init__(
        self,
        agreement: Agreement,
        advertised: Collection[int],
        adverts_digest: bytes,
        choices: Mapping[int, tuple[int, ...]],
    ) -> None:
        self._agreement = agreement
        self._advertised = advertised
        self._digest = adverts_digest
        self._choices = choices

    def of(self, member: int) -> Neighbourhood:
        """The neighbourhood of a member who advertised."""
        if not self._agreement.regular:
            everybody = tuple(self._advertised)
            return Neighbourhood(everybody, everybody, _without(everybody, member))
        if not self._agreement.active:
            around = self._around(member)
            return Neighbourhood(around, around, around)
        holders = tuple(holder for holder in self._choices[member] if holder in self._advertised)
        owners = self._owners(member)
        return Neighbourhood(holders, owners, tuple(sorted({*holders, *owners})))

    def _around(self, member: int) -> tuple[int, ...]:
        order, place = self._ring
        neighbours = self._agreement.parameters.neighbours
        if neighbours >= order.size - 1:
            return _without(tuple(self._advertised), member)
        half = np.arange(1, neighbours // 2 + 1)
        steps = np.concatenate((half, -half))
        return tuple(sorted(order[(place[member] + steps) % order.size].tolist()))

    @cached_property
    def _ring(self) -> tuple[np.ndarray, np.ndarray]:
        seed = digest(Label.RING_SEED, self._agreement.context, self._digest)
        order = ring_order(np.array(tuple(self._advertised), np.int64), seed)
        place = np.zeros(self._agreement.size, np.int64)
        place[order] = np.arange(order.size)
        return order, place

    def _owners(self, holder: int) -> tuple[int, ...]:
        holders, owners = self._choices_by_holder
        low, high = np.searchsorted(holders, (holder, holder + 1))
        return tuple(owners[low:high].tolist())

    @cached_property
    def _choices_by_holder(self) -> tuple[np.ndarray, np.ndarray]:
        """Every choice as a holder and its owner: holders rising, and owners rising for each of them."""
        choosers = sorted(self._choices)
        holders = np.array([self._choices[owner] for owner in choosers], np.int64)
        owners = np.repeat(np.array(choosers, np.int64), holders.shape[1])
        order = np.argsort(holders, axis=None, kind="stable")
        return holders.ravel()[order], owners[order]


def choose_holders(agreement: Agreement, member: int, entropy: Entropy) -> bytes:
    """A uniform choice of holders among the others, as the bytes of an advert; empty if the graph needs none."""
    if not (agreement.regular and agreement.active):
        return b""
    others = np.delete(np.arange(agreement.size), member)
    chosen = ring_order(others, entropy(32))[: agreement.parameters.neighbours]
    return np.sort(chosen).astype("<u2").tobytes()


def read_choices(agreement: Agreement, member: int, choices: bytes) -> tuple[int, ...]:
    """The holders that a member named; refuses any other number, order, or a member that cannot hold."""
    expected = 2 * agreement.parameters.neighbours if agreement.regular and agreement.active else 0
    if len(choices) != expected:
        raise RemoteProtocolError(Code.MEMBERS, f"an advert names holders in {expected} bytes, not {len(choices)}")
    holders = struct.unpack(f"<{len(choices) // 2}H", choices)
    if holders and (list(holders) != sorted(set(holders)) or holders[-1] >= agreement.size or member in holders):
        raise RemoteProtocolError(
            Code.MEMBERS, "an advert names holders out of order, twice, outside the cohort, or itself"
        )
    return holders


def _without(members: tuple[int, ...], member: int) -> tuple[int, ...]:
    return tuple(other for other in members if other != member)

"""Machines of one exchange, a secure sum or an attempt at a group key, together with their links.

In a federation these machines are inside of others, which own the links. Alone, a machine needs its own links.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Machine, Output, Send, Trigger
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.group_key.agreement import KeyAgreement
from tacit.protocol.group_key.holder import GroupKeyMember
from tacit.protocol.group_key.keeper import GroupKeyRelay
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import sum_client, sum_server
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.states import SumTrigger


def hear(machine: Machine[Any], link: Link, frames: Sequence[Frame], now: float) -> list[Output]:
    """Feed a message to a machine; one that its link refuses counts against the sender."""
    try:
        packet = link.packet(frames)
    except RemoteProtocolError as error:
        return machine.reject(link.peer, error, now)
    return machine.receive(link.peer, packet, now)


class LinkedMachine:
    """A machine of an exchange with its links: its inputs and outputs are frames instead of messages."""

    def __init__(self, machine: Machine[Any], own: str, peers: Iterable[str], *, session: bytes, round: int) -> None:
        self.machine = machine
        self._links = {peer: Link(own, peer, session, Traffic(), MESSAGES) for peer in peers}
        self._round = round

    @property
    def state(self) -> Any:
        return self.machine.state

    @property
    def next_deadline(self) -> float | None:
        return self.machine.next_deadline

    def start(self, now: float) -> list[Output]:
        return self._linked(self.machine.trigger(Trigger.START, now))

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> list[Output]:
        return self._linked(hear(self.machine, self._links[sender], frames, now))

    def contribute(self, vector: npt.NDArray[Any], now: float) -> list[Output]:
        """Give the client of a sum its vector, as ring words."""
        return self._linked(self.machine.trigger(SumTrigger.CONTRIBUTE, now, vector))

    def drop(self, member: str, now: float) -> list[Output]:
        """Report to the server that the link to a member is lost for good."""
        return self._linked(self.machine.trigger(Trigger.DROP, now, member, Code.LEFT, "its link was lost"))

    def expire(self, now: float) -> list[Output]:
        """Let a deadline that has passed take effect."""
        return self._linked(self.machine.expire(now))

    def _linked(self, outputs: Iterable[Output]) -> list[Output]:
        return [
            self._links[output.to].transmit(output.message, round=self._round, payload=output.payload)
            if isinstance(output, Send)
            else output
            for output in outputs
        ]


def linked_sum_client(agreement: Agreement, name: str, *, signing: SigningKey, entropy: Entropy) -> LinkedMachine:
    """Make a client of a secure sum, with its link to the server."""
    machine = sum_client(agreement, name, signing=signing, entropy=entropy)
    return LinkedMachine(machine, name, [agreement.server], session=agreement.session, round=agreement.round)


def linked_sum_server(agreement: Agreement, *, now: float) -> LinkedMachine:
    """Make the server of a secure sum, with its links to the clients."""
    machine = sum_server(agreement, now)
    return LinkedMachine(machine, agreement.server, agreement.cohort, session=agreement.session, round=agreement.round)


def linked_key_member(agreement: KeyAgreement, name: str, *, signing: SigningKey, entropy: Entropy) -> LinkedMachine:
    """Make a member of an attempt at a group key, with its link to the server."""
    machine = GroupKeyMember(agreement, name, signing=signing, entropy=entropy)
    return LinkedMachine(machine, name, [agreement.server], session=agreement.session, round=0)


def linked_key_relay(agreement: KeyAgreement, *, now: float) -> LinkedMachine:
    """Make the server of an attempt at a group key, with its links to the members."""
    machine = GroupKeyRelay(agreement, now)
    return LinkedMachine(machine, agreement.server, agreement.members, session=agreement.session, round=0)

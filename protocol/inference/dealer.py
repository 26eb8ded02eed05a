"""The dealer in one session of private inference: it serves both owners, and learns which randomness they order.

It waits for both owners, then compares their descriptions of the session and every pair of orders. If they differ it
deals nothing: mismatched randomness would silently turn results into noise. It keeps no randomness and no key beyond
the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Heard, Machine, Output, Row, Send, Step, Table, Transmit, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.primitives import KEY_BYTES
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.exchange import check_number
from tacit.protocol.inference.material import chunks, material_key
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    DealerHello,
    DealerWelcome,
    DealingOver,
    OrderRandomness,
    Randomness,
)
from tacit.protocol.inference.results import Deal, InferenceEnded, KeysDealt
from tacit.protocol.inference.states import DealerState, InferenceTrigger, ending, over

MOST_ORDERS: Final = 64
"""Largest lead in orders of one owner over the other. An owner may order all stages of a pass at once, one by one."""


class InferenceDealer(Machine[DealerState], outputs=Transmit | KeysDealt | Deal | InferenceEnded):
    """The dealer, towards the server of the roster and one data owner.

    session: from both owners' envelopes; patience: seconds to wait for one owner while the other is waiting.
    """

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        data_owner: str,
        session: bytes,
        entropy: Entropy,
        patience: float,
        now: float,
    ) -> None:
        super().__init__(DEALER_TABLE, DealerState.AWAIT_OWNERS)
        self.own = name
        self.owners = (roster.server.name, data_owner)
        self.session = session
        self.deadline = now + patience
        self.traffic = Traffic()
        self._roster = roster
        self._entropy = entropy
        self._patience = patience
        self._links = {owner: Link(name, owner, session, self.traffic, INFERENCE_MESSAGES) for owner in self.owners}
        self._hellos: dict[str, DealerHello] = {}
        self._orders: dict[str, deque[OrderRandomness]] = {owner: deque() for owner in self.owners}
        self._ordered = dict.fromkeys(self.owners, 0)
        self._closed: set[str] = set()

    @property
    def over(self) -> bool:
        return self.state in (DealerState.CLOSED, DealerState.ABORTED)

    def awaits(self, owner: str) -> bool:
        """Whether this owner is the only one missing."""
        return self.state is DealerState.AWAIT_OWNERS and owner not in self._hellos

    def feed(self, sender: str, frames: Sequence[Frame], now: float) -> list[Output]:
        try:
            packet = decode(frames, INFERENCE_MESSAGES)
        except RemoteProtocolError as error:
            return self.reject(sender, error, now)
        return self.hear(sender, packet, now)

    def hear(self, sender: str, packet: Packet, now: float) -> list[Output]:
        try:
            check_number(self._links[sender].accept(packet), 0)
        except RemoteProtocolError as error:
            return self.reject(sender, error, now)
        return self.receive(sender, packet, now)

    def deliver(self, owner: str, number: int, data: Frame, now: float) -> list[Output]:
        """Send an owner the corrections of a request, 8 bytes a word."""
        return self.trigger(InferenceTrigger.DELIVER, now, owner, number, data)

    def drop(self, owner: str, detail: str, now: float) -> list[Output]:
        """The link to an owner is lost."""
        if owner in self._closed:
            return []
        return self.trigger(Trigger.DROP, now, owner, detail)

    def give_up(self, error: RemoteProtocolError, now: float) -> list[Output]:
        """End the session because the dealer cannot serve an order."""
        return self.reject(self.own, error, now)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        return (self._links[send.to].transmit(send.message, round=0, payload=send.payload),)

    def on_hello(self, heard: Heard[DealerHello], now: float) -> Step[DealerState]:
        message = heard.message
        model_owner, data_owner = self.owners
        expected = data_owner if heard.sender == model_owner else model_owner
        if message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "it holds another roster: give all parties the same file")
        if message.peer != expected:
            raise RemoteProtocolError(
                Code.MEMBERS, f"it comes for a session with {message.peer!r}, which is one with {expected!r}"
            )
        if heard.sender in self._hellos:
            raise RemoteProtocolError(Code.UNEXPECTED, "it says hello a second time in one session")
        hellos = {**self._hellos, heard.sender: message}
        if len({hello.terms for hello in hellos.values()}) > 1:
            raise RemoteProtocolError(Code.POLICY, "it comes with other terms than the other owner")
        complete = len(hellos) == len(self.owners)
        contributions = [self._entropy(KEY_BYTES) for _ in self.owners] if complete else []

        def commit() -> list[Output]:
            self._hellos = hellos
            return self._welcome(contributions) if complete else []

        return Step(DealerState.SERVING if complete else DealerState.AWAIT_OWNERS, (), commit)

    def on_order(self, heard: Heard[OrderRandomness], now: float) -> Step[DealerState]:
        message = heard.message
        if heard.sender in self._closed or message.first != self._ordered[heard.sender]:
            raise RemoteProtocolError(
                Code.SEQUENCE,
                f"it orders request {message.first} where {self._ordered[heard.sender]} is next: every number serves "
                "once",
            )
        (other,) = (owner for owner in self.owners if owner != heard.sender)
        waiting = self._orders[other]
        if waiting and waiting[0] != message:
            raise RemoteProtocolError(Code.POLICY, f"it orders other material than {other!r}")
        if not waiting and len(self._orders[heard.sender]) == MOST_ORDERS:
            raise RemoteProtocolError(Code.UNEXPECTED, f"it is {MOST_ORDERS} orders ahead of {other!r}")

        deal = (Deal(message.first, message.count, message.requests),) if waiting else ()

        def commit() -> None:
            self._ordered[heard.sender] += message.count
            if waiting:
                waiting.popleft()
            else:
                self._orders[heard.sender].append(message)
            self._wait(now)

        return Step(DealerState.SERVING, deal, commit)

    def on_deliver(self, owner: str, number: int, data: Frame, now: float) -> Step[DealerState]:
        return Step(
            DealerState.SERVING,
            tuple(Send(owner, Randomness(number=number, chunk=chunk), piece) for chunk, piece in chunks(data)),
        )

    def on_over(self, heard: Heard[DealingOver], now: float) -> Step[DealerState]:
        closed = {*self._closed, heard.sender}
        complete = len(closed) == len(self.owners)

        def commit() -> None:
            self._closed = closed
            if complete:
                self._forget()

        outputs = (InferenceEnded(None, "both owners are done"),) if complete else ()
        return Step(DealerState.CLOSED if complete else DealerState.SERVING, outputs, commit)

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[DealerState]:
        message = heard.message
        # The other owner may expect nothing from its peer any more, but it waits for correlated randomness.
        return self._failed(
            RemoteProtocolError(message.code, message.detail, culprit=message.culprit or heard.sender),
            told=heard.sender,
        )

    def on_expire(self, now: float) -> Step[DealerState]:
        if self.state is DealerState.AWAIT_OWNERS:
            late = next(owner for owner in self.owners if owner not in self._hellos)
        else:
            late = next(owner for owner in self.owners if not self._orders[owner])
        detail = f"no word from {late} for {self._patience:g} s, while the other owner waits for it"
        return self._failed(RemoteProtocolError(Code.TIMEOUT, detail, culprit=late))

    def on_drop(self, owner: str, detail: str, now: float) -> Step[DealerState]:
        return self._failed(RemoteProtocolError(Code.LEFT, detail, culprit=owner), told=owner)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[DealerState]:
        return Step(self.state) if self.over else self._failed(error)

    def _welcome(self, contributions: Sequence[bytes]) -> list[Output]:
        """Let both owners begin; give the shell the keys of their streams."""
        keys = [
            material_key(
                session=self.session,
                terms=self._hellos[owner].terms,
                owner=owner,
                owner_contribution=self._hellos[owner].contribution,
                contribution=contribution,
            )
            for owner, contribution in zip(self.owners, contributions, strict=True)
        ]
        self._hellos = {}
        return [
            KeysDealt(self.owners, (keys[0], keys[1])),
            *(
                Send(owner, DealerWelcome(contribution=contribution))
                for owner, contribution in zip(self.owners, contributions, strict=True)
            ),
        ]

    def _wait(self, now: float) -> None:
        self.deadline = now + self._patience if any(self._orders.values()) else None

    def _failed(self, error: RemoteProtocolError, *, told: str = "") -> Step[DealerState]:
        culprit = error.culprit or self.own
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=culprit)
        # An absent owner does not know of this session yet, or never will: anyone could have named it to the dealer.
        come = self.owners if self.state is DealerState.SERVING else {*self._hellos, culprit}
        sends = tuple(
            Send(owner, abort) for owner in self.owners if owner in come and owner != told and owner not in self._closed
        )
        ended = InferenceEnded(error.code, error.detail, culprit)
        return Step(DealerState.ABORTED, (*sends, ended), self._forget)

    def _forget(self) -> None:
        self._hellos = {}
        for orders in self._orders.values():
            orders.clear()


DEALER_TABLE: Final[Table[DealerState]] = {
    (DealerState.AWAIT_OWNERS, DealerHello): Row(
        InferenceDealer.on_hello, (DealerState.AWAIT_OWNERS, DealerState.SERVING)
    ),
    (DealerState.SERVING, OrderRandomness): Row(InferenceDealer.on_order, (DealerState.SERVING,)),
    (DealerState.SERVING, InferenceTrigger.DELIVER): Row(InferenceDealer.on_deliver, (DealerState.SERVING,)),
    (DealerState.SERVING, DealingOver): Row(InferenceDealer.on_over, (DealerState.SERVING, DealerState.CLOSED)),
    **ending(InferenceDealer, DealerState.ABORTED, own=(), awaiting=(DealerState.AWAIT_OWNERS, DealerState.SERVING)),
    **over((DealerState.CLOSED,), (InferenceTrigger.DELIVER,)),
    **over((DealerState.ABORTED,), (DealerHello, OrderRandomness, DealingOver, InferenceTrigger.DELIVER)),
}

"""Byte strings of known length in chunks, and an owner's exchange with the dealer: key, requests, corrections.

Only expected chunks are kept, and the buffer grows with the data received: a peer that announces much and sends little
takes no memory.

Free words of the correlated randomness are drawn from a keystream that the owner and the dealer share. Its key is
derived from a fresh contribution of each, so that neither a snapshot nor a reconnection can bring a used one back.
Requests may be sent ahead of need; answers arrive in the order of their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Entropy, Heard, Output, Row, Step, Table, Transmit, Trigger
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.primitives import KEY_BYTES, derive, framed
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.exchange import ExchangeSide, check_number
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    DealerHello,
    DealerWelcome,
    DealingOver,
    OrderRandomness,
    Randomness,
)
from tacit.protocol.inference.results import Agreed, InferenceEnded, MaterialArrived, MaterialKey
from tacit.protocol.inference.states import InferenceLabel, InferenceTrigger, MaterialState, ending, over


class Arrivals:
    """Byte strings due from one sender, in order: pairs of an index and a length in bytes.

    name: noun for one of them in error messages.
    """

    def __init__(self, name: str, due: Iterable[tuple[int, int]] = ()) -> None:
        self._name = name
        self._due = deque((index, size) for index, size in due if size)
        self._arrived = bytearray()

    def expect(self, due: Iterable[tuple[int, int]]) -> None:
        """Append to the expected byte strings."""
        self._due.extend((index, size) for index, size in due if size)

    @property
    def next(self) -> int | None:
        return self._due[0][0] if self._due else None

    def check(self, index: int, chunk: int, payload: Frame | None) -> None:
        """Refuse anything but the next chunk in its full length."""
        if not self._due:
            raise RemoteProtocolError(Code.UNEXPECTED, f"{self._name} {index} came where nothing is due")
        due, size = self._due[0]
        expected_chunk = len(self._arrived) // CHUNK_BYTES
        if (index, chunk) != (due, expected_chunk):
            raise RemoteProtocolError(
                Code.UNEXPECTED,
                f"chunk {chunk} of {self._name} {index} came where chunk {expected_chunk} of {due} was due",
            )
        expected = min(CHUNK_BYTES, size - len(self._arrived))
        actual = 0 if payload is None else len(payload)
        if actual != expected:
            raise RemoteProtocolError(
                Code.VECTOR, f"chunk {chunk} of {self._name} {index} has {actual} bytes; {expected} are due"
            )

    def ends_with(self, payload: Frame | None) -> bool:
        """Whether this chunk, which `check` admitted, is the last one due."""
        return len(self._due) == 1 and len(self._arrived) + len(payload or b"") == self._due[0][1]

    def take(self, payload: Frame | None) -> tuple[int, bytearray] | None:
        """Store the chunk that `check` admitted; return index and data once the byte string is complete."""
        self._arrived += payload or b""
        index, size = self._due[0]
        if len(self._arrived) < size:
            return None
        whole, self._arrived = self._arrived, bytearray()
        self._due.popleft()
        return index, whole

    def forget(self) -> None:
        self._due.clear()
        self._arrived = bytearray()


def chunks(data: Frame) -> Iterator[tuple[int, Frame]]:
    """Split a byte string into numbered chunks."""
    view = memoryview(data).cast("B")
    for start in range(0, len(view), CHUNK_BYTES):
        yield start // CHUNK_BYTES, view[start : start + CHUNK_BYTES]


def material_key(*, session: bytes, terms: bytes, owner: str, owner_contribution: bytes, contribution: bytes) -> bytes:
    """Derive the 32-byte key of an owner's preprocessing streams in one session, shared with the dealer.

    terms: digest of the encoded terms; contribution: the dealer's.
    """
    info = framed(InferenceLabel.MATERIAL, terms, owner.encode())
    return derive(owner_contribution + contribution, InferenceLabel.MATERIAL, salt=session, info=info)


def request_key(key: bytes, number: int) -> bytes:
    """Derive the 32-byte key of one request's stream from an owner's preprocessing key; it reveals no other key."""
    return derive(key, InferenceLabel.REQUEST, salt=b"", info=number.to_bytes(8, "big"))


class MaterialOwner(
    ExchangeSide[MaterialState],
    outputs=Transmit | MaterialKey | MaterialArrived | InferenceEnded,
):
    """One owner in one session. dealer: its name in the roster; patience: seconds to wait for anything due."""

    def __init__(
        self, name: str, roster: Roster, *, dealer: str, agreed: Agreed, entropy: Entropy, patience: float
    ) -> None:
        super().__init__(
            MATERIAL_TABLE,
            MaterialState.READY,
            ends=(MaterialState.CLOSED, MaterialState.ABORTED),
            link=Link(name, dealer, agreed.session, Traffic(), INFERENCE_MESSAGES),
            patience=patience,
        )
        self._roster = roster
        self._agreed = agreed
        self._entropy = entropy
        self._ordered = 0

    @property
    def waiting(self) -> bool:
        ordered = isinstance(self.data, Arrivals) and self.data.next is not None
        return ordered or self.state is MaterialState.AWAIT_WELCOME

    def start(self, now: float) -> list[Output]:
        """Come to the dealer."""
        return self.trigger(Trigger.START, now)

    def order(self, requests: bytes, count: int, corrections: Sequence[tuple[int, int]], now: float) -> list[Output]:
        """Order `count` requests. corrections: number and bytes of each request corrected at this owner."""
        return [] if self.over else self.trigger(InferenceTrigger.ORDER, now, requests, count, corrections)

    def finish(self, now: float) -> list[Output]:
        """Order nothing more."""
        return [] if self.over else self.trigger(Trigger.FINISH, now)

    def drop(self, detail: str, now: float) -> list[Output]:
        return [] if self.state is MaterialState.READY else super().drop(detail, now)

    def give_up(self, error: RemoteProtocolError, now: float) -> list[Output]:
        return [] if self.state is MaterialState.READY else super().give_up(error, now)

    def on_start(self, now: float) -> Step[MaterialState]:
        contribution, agreed = self._entropy(KEY_BYTES), self._agreed
        hello = DealerHello(roster=self._roster.hash, peer=agreed.peer, terms=agreed.digest, contribution=contribution)
        return Step(MaterialState.AWAIT_WELCOME, (self._send(hello),), data=contribution)

    def on_welcome(self, heard: Heard[DealerWelcome], now: float) -> Step[MaterialState]:
        key = material_key(
            session=self._agreed.session,
            terms=self._agreed.digest,
            owner=self.own,
            owner_contribution=self.at(bytes),
            contribution=heard.message.contribution,
        )
        return Step(MaterialState.SERVED, (MaterialKey(key),), data=Arrivals("the material of request"))

    def on_order(
        self, requests: bytes, count: int, corrections: Sequence[tuple[int, int]], now: float
    ) -> Step[MaterialState]:
        order = OrderRandomness(first=self._ordered, count=count, requests=requests)

        def commit() -> None:
            self._ordered += count
            self.at(Arrivals).expect(corrections)

        return Step(MaterialState.SERVED, (self._send(order),), commit)

    def on_material(self, heard: Heard[Randomness], now: float) -> Step[MaterialState]:
        arrivals = self.at(Arrivals)
        arrivals.check(heard.message.number, heard.message.chunk, heard.payload)

        def commit() -> list[Output]:
            complete = arrivals.take(heard.payload)
            return [] if complete is None else [MaterialArrived(*complete)]

        return Step(MaterialState.SERVED, (), commit)

    def on_finish(self, now: float) -> Step[MaterialState]:
        return self._ended(None, "no more material is wanted", "", self._send(DealingOver()))

    def _accept(self, packet: Packet) -> bool:
        # Ignore late messages of an earlier session.
        if packet.envelope.session != self._agreed.session:
            return False
        check_number(self._link.accept(packet), 0)
        return True


MATERIAL_TABLE: Final[Table[MaterialState]] = {
    (MaterialState.READY, Trigger.START): Row(MaterialOwner.on_start, (MaterialState.AWAIT_WELCOME,)),
    (MaterialState.AWAIT_WELCOME, DealerWelcome): Row(MaterialOwner.on_welcome, (MaterialState.SERVED,)),
    (MaterialState.SERVED, InferenceTrigger.ORDER): Row(MaterialOwner.on_order, (MaterialState.SERVED,)),
    (MaterialState.SERVED, Randomness): Row(MaterialOwner.on_material, (MaterialState.SERVED,)),
    (MaterialState.SERVED, Trigger.FINISH): Row(MaterialOwner.on_finish, (MaterialState.CLOSED,)),
    **ending(
        MaterialOwner, MaterialState.ABORTED, own=(), awaiting=(MaterialState.AWAIT_WELCOME, MaterialState.SERVED)
    ),
    **over((MaterialState.CLOSED,), (Randomness,)),
    **over((MaterialState.ABORTED,), (DealerWelcome, Randomness)),
}

"""Fault injection: malicious clients and a malicious server, each to be detected by the rule that it breaks.

A malicious client changes or withholds a message before it is signed and numbered for the link, so that only the lie
itself can be detected. A lie without an occasion does not happen; one that happens is in the client's own log.

A malicious server has clients compute the same twice, from the same model but for one unit in the last place of one
parameter, and omits one client the second time: the difference of the two sums is that client's update. It ignores the
roster's groups, and tries to omit one client before it omits groups. Only an audit starts it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
from msgspec import structs

from tacit.parties.runs.events import ClientCheated
from tacit.protocol.core.codec import Packet, encode_structure
from tacit.protocol.core.machine import Machine, Output, Send
from tacit.protocol.core.primitives import KEY_BYTES, SigningKey, digest
from tacit.protocol.core.roster import Roster, encode_members
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import ClientPart
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.session.server_session import Model
from tacit.protocol.sum.agreement import Agreement, complaint_signed
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import MaskedInput, ShareKeys, UnmaskRequest, VectorChunk
from tacit.protocol.sum.states import SumLabel


class Cheat:
    """One lie in one round. It has no state."""

    name: ClassVar[str]
    about: ClassVar[str]
    """A verb phrase about the client."""

    def say(self, part: ClientPart, send: Send, signing: SigningKey) -> Send | None:
        """Replace a message of this client's sum; None drops it. Returns it unchanged where it does not lie."""
        return send

    def hear(self, part: ClientPart, packet: Packet) -> Packet:
        """Replace a received message, so that the client's sum continues as if it had not lied."""
        return packet


class RandomWords(Cheat):
    """Send random noise as the vector."""

    name = "words"
    about = "sent random words in the place of its vector"

    def say(self, part: ClientPart, send: Send, signing: SigningKey) -> Send | None:
        if send.payload is None:
            return send
        agreement, chunk = part.agreement, send.message.chunk if isinstance(send.message, VectorChunk) else 0
        span, ring = agreement.chunk_span(chunk), agreement.ring
        words = np.frombuffer(os.urandom((span.stop - span.start) * ring.word.itemsize), ring.word).copy()
        ring.reduce_into(words)
        return structs.replace(send, payload=ring.pack(words))


class WrongCommitment(Cheat):
    """Share another seed than the one committed to."""

    name = "commitment"
    about = "committed to another secret than it shared"

    def say(self, part: ClientPart, send: Send, signing: SigningKey) -> Send | None:
        if not isinstance(send.message, ShareKeys):
            return send
        other = digest(SumLabel.SEED, part.agreement.context, os.urandom(KEY_BYTES))
        return structs.replace(send, message=structs.replace(send.message, seed_commitment=other))


class FalseComplaint(Cheat):
    """Complain about a neighbour's valid shares."""

    name = "complaint"
    about = "complained of shares that were right"

    def say(self, part: ClientPart, send: Send, signing: SigningKey) -> Send | None:
        if not isinstance(send.message, MaskedInput) or not isinstance(part, AggregationClient) or part.data.disputed:
            return send
        agreement, holder = part.agreement, part.member
        owner = min(owner for owner in part.data.held if owner != holder)
        signed = complaint_signed(part.data.sharing, owner=owner, holder=holder)
        said = MaskedInput(
            complaints=encode_members((owner,), agreement.size),
            signatures=signing.sign(SumLabel.SIGN_COMPLAINT, *signed) if agreement.active else b"",
        )
        return structs.replace(send, message=said)

    def hear(self, part: ClientPart, packet: Packet) -> Packet:
        """Ignore the answer: the complaint was false."""
        if packet.kind is not UnmaskRequest or not isinstance(part, AggregationClient) or part.data.disputed:
            return packet
        request = structs.replace(packet.parse(), answered=encode_members((), part.agreement.size), answers=b"")
        return replace(packet, body=encode_structure(request))


class StalledUpload(Cheat):
    """Stop in the middle of a vector of several chunks."""

    name = "upload"
    about = "announced its vector and sent the first chunk of it only"

    def say(self, part: ClientPart, send: Send, signing: SigningKey) -> Send | None:
        return None if isinstance(send.message, VectorChunk) and send.message.chunk else send


CHEATS: Final[Mapping[str, Cheat]] = {
    cheat.name: cheat for cheat in (RandomWords(), WrongCommitment(), FalseComplaint(), StalledUpload())
}


class CheatingClient(TrainingClient):
    """A client that lies in some rounds; cheats: by round."""

    def __init__(self, *given: Any, cheats: Mapping[int, Sequence[Cheat]], **named: Any) -> None:
        super().__init__(*given, **named)
        self._cheats = cheats
        self._told = set[tuple[int, str]]()

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        if (part := self.sum) is not None:
            for cheat in self._cheats.get(self.round, ()):
                packet = cheat.hear(part, packet)
        return super().receive(sender, packet, now)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        if self.sum is None or part is not self.sum:
            return super().pass_on(part, send)
        reports, said = list[Output](), send
        for cheat in self._cheats.get(self.round, ()):
            lie = cheat.say(self.sum, said, self._signing)
            if lie is not said and (self.round, cheat.name) not in self._told:
                self._told.add((self.round, cheat.name))
                reports.append(ClientCheated(round=self.round, how=cheat.name, detail=f"it {cheat.about}"))
            if lie is None:
                return reports
            said = lie
        return [*reports, *super().pass_on(part, said)]


def schedule(roster: Roster) -> tuple[tuple[str, ...], ...]:
    """Return each round's omitted clients: none, then each client; with groups none, the first client, each group."""
    alone = tuple((name,) for name in roster.clients)
    return ((), *alone[:1], *roster.groups) if roster.groups else ((), *alone)


class SubtractingServer(TrainingServer):
    """Ignores the sums; repeats its schedule."""

    def __init__(self, roster: Roster, configuration: Configuration, model: bytes, **given: Any) -> None:
        super().__init__(roster, configuration, model, **given)
        self._first = np.frombuffer(model, "<f4")

    def next_round(self, model: bytes, now: float, *, unusable: str = "") -> list[Output]:
        values = self._first.copy()
        if self.round % 2:
            values[0] = np.nextafter(values[0], np.float32(np.inf))
        return super().next_round(values.tobytes(), now, unusable=unusable)

    def _gathered(self, there: Sequence[str]) -> tuple[str, ...]:
        parts = schedule(self._roster)
        out = parts[self.round % len(parts)]
        if not out:
            return super()._gathered(there)
        return tuple(name for name in self._roster.clients if name in there and name not in out)

    def _agreement(self, cohort: tuple[str, ...], round: int, model: Model) -> Agreement:
        return replace(super()._agreement(cohort, round, model), groups=())

"""What one of our clients does to a live server, and what the specification says of the server then.

The others are honest, and complete the round in any case.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tacit.protocol.core.errors import Code
from tacit.protocol.core.members import encode_members
from tacit.protocol.core.messages import Abort, Fetch, Message
from tacit.protocol.core.primitives import SIGNATURE_BYTES
from tacit.protocol.session.messages import Hello
from tacit.protocol.sum.messages import AdvertiseKeys, ConfirmSurvivors, MaskedInput, ShareKeys, UnmaskShares
from tacit.simulate.conformance.peer.client_cases import PICKLE
from tacit.simulate.conformance.peer.script import (
    Case,
    Lie,
    RoundKnowledge,
    Saying,
    altered,
    enveloped,
    flipped,
    instead,
)

STAYS: Final = "sees a round through"
OTHERS: Final = "the others finish"
FLOOD: Final = 1_000
"""Messages."""


HONEST: Final = Case(
    "honest", "two honest rounds, the model to move by the mean of the updates", "all finish, the model is right"
)
STRANGER: Final = Case("stranger", "connects with a key that is not in the roster", "not admitted")


def refused(code: Code, others: str = OTHERS) -> str:
    """The verdict on a server that refuses a client."""
    return f"is out with {code.name}, {others}"


def _forged(kind: type[Message]) -> Lie:
    return altered(kind, lambda stage, message: {"signature": flipped(message.signature, -1)})


def _short_vector(stage: RoundKnowledge, said: Saying) -> list[Saying]:
    """The last byte of a raw frame is missing, whether the vector comes at once or in chunks."""
    return [said if said.payload is None else replace(said, payload=bytes(said.payload)[:-1])]


def _complaint_of(stage: RoundKnowledge, owner: int) -> dict[str, bytes]:
    return {"complaints": encode_members((owner,), stage.size), "signatures": bytes(SIGNATURE_BYTES)}


_NO_SESSION: Final = b"\x07" * 32

SERVER_CASES: Final = (
    HONEST,
    STRANGER,
    Case("other-roster", "holds another roster", refused(Code.ROSTER),
         altered(Hello, lambda stage, _: {"roster": bytes(32)}), True),
    Case("replayed-hello", "says hello again in the middle of a round", f"{STAYS}, {OTHERS}", joins=True),
    Case("pickled-hello", "sends a pickle for the body of hello", refused(Code.MALFORMED),
         instead(Hello, lambda stage, said: [replace(said, body=PICKLE)]), True),
    Case("old-version", "writes version 0", refused(Code.VERSION), enveloped(AdvertiseKeys, version=0)),
    Case("sequence", "leaves out a number", refused(Code.SEQUENCE), enveloped(AdvertiseKeys, sequence=2**20)),
    Case("replay", "sends the very same message twice", refused(Code.SEQUENCE),
         instead(AdvertiseKeys, lambda stage, said: [replace(said, times=2)])),
    Case("other-session", "writes another session", refused(Code.SESSION),
         enveloped(AdvertiseKeys, session=_NO_SESSION)),
    Case("other-sender", "writes another member's name", refused(Code.SENDER),
         enveloped(AdvertiseKeys, sender="somebody-else")),
    Case("future-round", "writes a round that has not begun", refused(Code.SESSION),
         instead(AdvertiseKeys, lambda stage, said: [replace(said, round=said.round + 1)])),
    Case("unknown-type", "writes a type that does not exist", refused(Code.MALFORMED),
         enveloped(AdvertiseKeys, type="advertise-nothing")),
    Case("malformed-body", "sends a pickle for a body", refused(Code.MALFORMED),
         instead(AdvertiseKeys, lambda stage, said: [replace(said, body=PICKLE)])),
    Case("chunk-again", "asks for a chunk of the model twice", refused(Code.UNEXPECTED),
         instead(Fetch, lambda stage, said: [said, said])),
    Case("out-of-turn", "opens shares before there are any", refused(Code.UNEXPECTED),
         instead(AdvertiseKeys, lambda stage, said: [
             replace(said, message=UnmaskShares(owners=b"", shares=b""))])),
    Case("duplicate-advert", "advertises twice, correctly numbered", f"{STAYS}, {OTHERS}",
         instead(AdvertiseKeys, lambda stage, said: [said, said])),
    Case("flood", f"advertises {FLOOD:,} times, correctly numbered", f"{STAYS}, {OTHERS}",
         instead(AdvertiseKeys, lambda stage, said: [said] * FLOOD)),
    Case("small-order-key", "advertises a key of small order", refused(Code.KEYS),
         altered(AdvertiseKeys, lambda stage, message: {"mask_key": bytes(32)})),
    Case("forged-advert", "forges the signature of its keys", refused(Code.SIGNATURE), _forged(AdvertiseKeys)),
    Case("other-holders", "shares with nobody", refused(Code.MEMBERS),
         altered(ShareKeys, lambda stage, message: {"holders": bytes(len(message.holders))})),
    Case("cut-shares", "cuts its packets short", refused(Code.SHARES),
         altered(ShareKeys, lambda stage, message: {"packets": message.packets[:-1]})),
    Case("forged-shares", "forges the signature of a packet", refused(Code.SIGNATURE),
         altered(ShareKeys, lambda stage, message: {"signatures": flipped(message.signatures, -1)})),
    Case("silence", "says nothing where its shares are due", refused(Code.TIMEOUT),
         instead(ShareKeys, lambda stage, said: [])),
    Case("short-vector", "sends a vector of another length", refused(Code.VECTOR), _short_vector),
    Case("forged-complaint", "complains, and forges its signature of that", refused(Code.SIGNATURE),
         altered(MaskedInput, lambda stage, message: _complaint_of(stage, (stage.liar + 1) % stage.size))),
    Case("own-complaint", "complains of itself", refused(Code.MEMBERS),
         altered(MaskedInput, lambda stage, message: _complaint_of(stage, stage.liar))),
    Case("leaves", "leaves where its vector is due", f"{STAYS}, {OTHERS}",
         instead(MaskedInput, lambda stage, said: [
             Saying(Abort(code=Code.LOCAL, detail="it leaves", culprit=""), said.round)])),
    Case("forged-confirmation", "forges its signature of the survivors", refused(Code.SIGNATURE),
         _forged(ConfirmSurvivors)),
    Case("bad-share", "opens a share that is not the one committed to", refused(Code.SHARES),
         altered(UnmaskShares, lambda stage, message: {"shares": flipped(message.shares, 0)})),
    Case("other-owners", "opens no shares", refused(Code.SHARES),
         altered(UnmaskShares, lambda stage, message: {"owners": bytes(len(message.owners)), "shares": b""})),
)  # fmt: skip
"""All but the first two have one liar."""

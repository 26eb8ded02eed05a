"""Transcripts of sessions of private inference in which one party is told something wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tacit.protocol.core.codec import Envelope, encode
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import digest
from tacit.protocol.core.rate_limit import HELLO_SECONDS, HELLOS
from tacit.protocol.inference.audit import AuditPicked, commitment_of
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.messages import (
    INFERENCE_VERSION,
    AgreeTerms,
    AuditCoin,
    AuditCommitment,
    AuditKeys,
    DealerHello,
    DealerWelcome,
    DealingOver,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Opening,
    OrderRandomness,
    PassStarted,
    Randomness,
    StartPass,
)
from tacit.protocol.inference.schedule import Sizes, weight_bytes
from tacit.protocol.inference.states import InferenceLabel
from tacit.protocol.sum.states import VERSION
from tests.vectors_corpus.inference import SESSION, encoded_terms
from tests.vectors_corpus.inference_play import DATA_OWNER, DEALER, MODEL_OWNER, InferencePlay, session_of
from tests.vectors_corpus.inference_sessions import HALF, ONE, WEIGHTS, WITH_DATA_OWNER, join, mask, order, small_terms
from tests.vectors_corpus.play import Parcel, Play
from tests.vectors_corpus.primitives import drawn

TERMS: Final = encoded_terms(**ONE)
AGREED: Final = digest(InferenceLabel.INFERENCE_TERMS, TERMS)
OTHER: Final = drawn("other")


class Part(InferencePlay):
    """What some parties are told; who speaks to them is not played."""

    def __init__(self, about: str, party: str, *names: str, served: bool = True) -> None:
        super().__init__(about, *(names or [DATA_OWNER]), terms=small_terms() if served else None)
        self.party = party
        self.members = self.roster.hash
        self._greetings = 0

    def tell(
        self,
        message: Message,
        code: str | None = None,
        *,
        session: bytes = NO_SESSION,
        sender: str = DATA_OWNER,
        calls_itself: str = "",
        party: str = "",
        payload: bytes | None = None,
        behind: bytes = b"",
        **changes: Any,
    ) -> None:
        """The party gets this message from this sender, and ends its session with this code, if there is one.

        behind: bytes after the body; changes: fields of the envelope.
        """
        fields: dict[str, Any] = {
            "session": session,
            "round": 0,
            "sender": calls_itself or sender,
            "sequence": 0,
            "type": message.TYPE,
        }
        head, body, *rest = encode(message, Envelope(**(fields | {"version": INFERENCE_VERSION} | changes)), payload)
        party = party or self.party
        # Whoever limits hellos answers these as well.
        self._greetings += isinstance(message, InferenceHello | DealerHello) or code in ("VERSION", "MALFORMED")
        self.now = float(max(0, self._greetings - HELLOS) * HELLO_SECONDS)
        before = len(self.ended())
        frames = tuple(map(bytes, (head, bytes(body) + behind, *rest)))
        self.give(Parcel(len(self.parcels), sender, party, frames, self.kinds))
        codes = [ended[1] for ended in self.ended()[before:]]
        if codes != ([code] if code else []):
            raise ValueError(f"{self.about}: {message} {codes}")

    def agree(self, session: bytes, *, images: int = 1, batch: int = 1, terms: bytes = AGREED, **more: Any) -> None:
        self.tell(InferenceHello(roster=self.members))
        self.tell(AgreeTerms(terms=terms, images=images, batch=batch), session=session, **more)


def names_of(count: int) -> list[str]:
    return [f"{DATA_OWNER}-{number}" for number in range(count)]


def inference_hello_bad_form() -> Play:
    part = Part("Wrong hellos to a model owner, and what it ignores from who has no session.", MODEL_OWNER)
    hello = InferenceHello(roster=part.members)
    part.tell(AgreeTerms(terms=AGREED, images=1, batch=1))
    part.tell(AgreeTerms(terms=AGREED, images=1, batch=1), "VERSION", version=VERSION)
    part.tell(InferenceHello(roster=OTHER), "ROSTER")
    part.tell(hello, "MALFORMED", behind=b"\0")
    part.tell(hello, "SESSION", session=SESSION)
    part.tell(hello, "SESSION", round=1)
    part.tell(hello, "SEQUENCE", sequence=1)
    part.tell(hello, "SENDER", calls_itself=MODEL_OWNER)
    part.tell(hello, "MEMBERS", sender=DEALER + "-2")
    return part


def agree_terms_bad_number() -> Play:
    faults: tuple[tuple[str, dict[str, Any]], ...] = (
        ("POLICY", {"terms": OTHER}), ("POLICY", {"images": 4}), ("POLICY", {"images": 3, "batch": 3}),
        ("POLICY", {"batch": 2}),
    )  # fmt: skip
    part = Part("Agreements to other terms than were offered, or for more, or twice the same.", MODEL_OWNER)
    for number, (code, changes) in enumerate(faults):
        part.agree(session_of(number=number), code=code, **changes)
    session = session_of(number=len(faults))
    part.agree(session)
    part.tell(AgreeTerms(terms=AGREED, images=1, batch=1), "SEQUENCE", session=session)
    return part


def inference_terms_bad_policy() -> Play:
    images = {"images": 3, "batch": 2}
    faults: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("POLICY", {"bits": 13}, {}), ("MODEL", {"weights": OTHER}, {}),
        ("POLICY", {"audited": HALF}, {}), ("MODEL", {"side": 2}, {}), ("POLICY", images, {"most_images": 2}),
        ("POLICY", images, {"most_batch": 1}),
    )  # fmt: skip
    names = names_of(len(faults))
    part = Part("Terms that a data owner does not accept.", "", *names, served=False)
    for name, (code, request, terms) in zip(names, faults, strict=True):
        join(part, name, **request)
        message = InferenceTerms(roster=part.members, terms=encoded_terms(**ONE | terms))
        part.tell(message, code, party=name, sender=MODEL_OWNER, session=SESSION)
    return part


def inference_terms_bad_form() -> Play:
    names = names_of(3)
    part = Part(
        "Terms that nobody accepts; what is of a former session is ignored before them.", "", *names, served=False
    )
    for name in names:
        join(part, name)
    message = InferenceTerms(roster=part.members, terms=TERMS)
    wrong: tuple[tuple[str, Message, dict[str, Any]], ...] = (
        ("ROSTER", InferenceTerms(roster=OTHER, terms=TERMS), {}),
        ("MALFORMED", InferenceTerms(roster=part.members, terms=TERMS + b"\0"), {}),
        ("SESSION", message, {"round": 1}),
    )
    part.tell(message, party=names[0], sender=MODEL_OWNER, session=OTHER, sequence=1)
    for name, (code, changed, changes) in zip(names, wrong, strict=True):
        part.tell(changed, code, party=name, sender=MODEL_OWNER, session=SESSION, **changes)
    return part


def masked_weights_bad_order() -> Play:
    names = names_of(3)
    part = Part("Masked weights that are not due, or not as long as they must be.", "", *names, served=False)
    wrong = (("UNEXPECTED", 1, bytes(24)), ("VECTOR", 0, bytes(7)), ("VECTOR", 0, None))
    for name, (code, layer, payload) in zip(names, wrong, strict=True):
        _agreed(part, name)
        message = MaskedWeights(layer=layer, chunk=0)
        part.tell(message, code, party=name, sender=MODEL_OWNER, session=SESSION, sequence=1, payload=payload)
    return part


def _agreed(part: Part, name: str, audited: int = 0) -> None:
    join(part, name, audited=audited)
    terms = encoded_terms(**ONE, audited=audited)
    part.tell(InferenceTerms(roster=part.members, terms=terms), party=name, sender=MODEL_OWNER, session=SESSION)


def pass_started_bad_model() -> Play:
    part = Part("The model owner begins a pass with another model.", DATA_OWNER, served=False)
    _weights(part, DATA_OWNER)
    part.act(DATA_OWNER, "ask", at=0.0)
    part.tell(PassStarted(weights=OTHER), "MODEL", sender=MODEL_OWNER, session=SESSION, sequence=7, round=1)
    return part


def _weights(part: Part, name: str, audited: int = 0) -> None:
    _agreed(part, name, audited)
    for layer, size in enumerate(weight_bytes(Sizes(**ONE))):
        message = MaskedWeights(layer=layer, chunk=0)
        part.tell(message, party=name, sender=MODEL_OWNER, session=SESSION, sequence=1 + layer, payload=bytes(size))


def audit_bad_order() -> Play:
    """The first three sessions have an audit, the last has none."""
    names = names_of(4)
    part = Part(
        "A pass that begins without its audit; a coin that was not committed to; too few keys; an audit that the terms "
        "do not have.",
        "", *names, served=False,
    )  # fmt: skip
    coin, numbers = drawn("coin of the model owner"), list(range(6, 38))
    committed = AuditCommitment(commitment=commitment_of(coin))
    for name, code in zip(names, ("UNEXPECTED", "SECRET", "VECTOR", "UNEXPECTED"), strict=True):
        said: dict[str, Any] = {"party": name, "sender": MODEL_OWNER, "session": SESSION, "round": 1}
        _weights(part, name, 0 if name == names[-1] else HALF)
        part.act(name, "ask", at=0.0)
        if name == names[0]:
            part.tell(PassStarted(weights=WEIGHTS), code, sequence=7, **said)
            continue
        part.tell(committed, code if name == names[-1] else "", sequence=7, **said)
        if name == names[-1]:
            continue
        part.act(name, "audit", contribution=drawn(f"coin of {name}"), numbers=numbers)
        contribution = OTHER if name == names[1] else coin
        part.tell(AuditCoin(contribution=contribution), code if name == names[1] else "", sequence=8, **said)
        if name == names[2]:
            picked = [output.numbers for _, output in part.outputs if isinstance(output, AuditPicked)][-1]
            part.act(name, "reveal", keys=[drawn(f"key of {number}") for number in picked])
            part.tell(AuditKeys(), code, sequence=9, payload=bytes(32 * len(picked) - 32), **said)
    return part


def opening_bad_round() -> Play:
    part = Part("The data owner opens what depends on an opening that it cannot have.", MODEL_OWNER)
    session = _computing(part)
    part.tell(Opening(step=0, chunk=0), session=session, sequence=2, round=1, payload=bytes(5))
    part.tell(Opening(step=1, chunk=0), session=session, sequence=3, round=1, payload=bytes(6))
    part.tell(Opening(step=2, chunk=0), "UNEXPECTED", session=session, sequence=4, round=1, payload=bytes(8))
    return part


def start_pass_bad_model() -> Play:
    part = Part("The data owner asks for another model than was agreed on.", MODEL_OWNER)
    _masked(part)
    part.tell(StartPass(weights=OTHER), "MODEL", session=session_of(), sequence=1, round=1)
    return part


def _masked(part: Part) -> None:
    part.agree(session_of())
    mask(part)


def _computing(part: Part) -> bytes:
    _masked(part)
    session = session_of()
    part.tell(StartPass(weights=WEIGHTS), session=session, sequence=1, round=1)
    part.act(WITH_DATA_OWNER, "begin", weights=WEIGHTS, at=0.0)
    return session


def material_bad_number() -> Play:
    faults: tuple[tuple[str, Message, dict[str, Any]], ...] = (
        ("UNEXPECTED", Randomness(number=1, chunk=0), {"payload": bytes(8)}),
        ("VECTOR", Randomness(number=2, chunk=0), {"payload": bytes(16)}),
        ("SESSION", Randomness(number=2, chunk=0), {"payload": bytes(8), "round": 1}),
    )
    names = names_of(len(faults))
    part = Part("Material that is not due, and what else a dealer may do wrong.", "", *names, served=False)
    for name, (code, message, changes) in zip(names, faults, strict=True):
        _agreed(part, name)
        part.come_to_dealer(name, name)
        told: dict[str, Any] = {"party": name, "sender": DEALER, "session": SESSION}
        if name == names[0]:
            part.tell(DealerWelcome(contribution=OTHER), **told | {"session": OTHER})
        part.tell(DealerWelcome(contribution=OTHER), **told)
        order(part, name, b"requests", 3, (2, 8), data_owner=name)
        part.tell(message, code, sequence=1, **told, **changes)
    return part


def hello_of(part: Part, owner: str, **changes: Any) -> DealerHello:
    """What an owner says to the dealer; changes: other fields."""
    peer = MODEL_OWNER if owner == DATA_OWNER else DATA_OWNER
    fields: dict[str, Any] = {"roster": part.members, "peer": peer, "terms": AGREED}
    return DealerHello(**fields | {"contribution": drawn(f"{owner} entropy")} | changes)


def material_hello_bad_form() -> Play:
    part = Part(
        "Wrong hellos to a dealer, each in a session of its own; what is of none, or of a former one, is ignored where "
        "it can be read.",
        DEALER
    )  # fmt: skip
    hello = hello_of(part, DATA_OWNER)
    part.tell(DealingOver(), session=OTHER)
    for sender in (DATA_OWNER, MODEL_OWNER):
        part.tell(hello_of(part, sender), "VERSION", session=OTHER, sender=sender, version=VERSION)
    part.tell(hello, session=OTHER, sender=DEALER + "-2", version=VERSION)
    alone: tuple[tuple[str, DealerHello, dict[str, Any]], ...] = (
        ("ROSTER", hello_of(part, DATA_OWNER, roster=OTHER), {}),
        ("MEMBERS", hello_of(part, DATA_OWNER, peer=DATA_OWNER), {}),
        ("SESSION", hello, {"round": 1}),
        ("MALFORMED", hello, {"behind": b"\0"}),
    )
    for number, (code, message, changes) in enumerate(alone):
        part.tell(message, code, session=drawn(f"session {number}"), **changes)
    for session, code, sender, terms in (("4", "UNEXPECTED", DATA_OWNER, AGREED), ("5", "POLICY", MODEL_OWNER, OTHER)):
        part.tell(hello, session=drawn(session))
        second = hello_of(part, sender, terms=terms)
        part.tell(second, code, session=drawn(session), sender=sender, sequence=int(sender == DATA_OWNER))
    part.tell(hello, session=SESSION)
    part.tell(hello_of(part, MODEL_OWNER), session=OTHER, sender=MODEL_OWNER)
    part.tell(hello, "SESSION", session=drawn("6"))
    part.tell(DealingOver(), "VERSION", session=drawn("6"), version=VERSION)
    return part


def order_material_bad_number() -> Play:
    part = Part("Wrong orders: a number again, other material, one after the last, too many ahead.", DEALER)

    def order(first: int, requests: bytes = b"r") -> OrderRandomness:
        return OrderRandomness(first=first, count=2, requests=requests)

    ahead = [order(2 * place) for place in range(MOST_ORDERS + 1)]
    faults: tuple[tuple[str, list[Message], Message, str], ...] = (
        ("SEQUENCE", [order(0)], order(0), DATA_OWNER),
        ("POLICY", [order(0)], order(0, b"o"), MODEL_OWNER),
        ("SEQUENCE", [DealingOver()], order(0), DATA_OWNER),
        ("UNEXPECTED", [*ahead[:-1]], ahead[-1], DATA_OWNER),
    )
    for number, (code, before, wrong, sender) in enumerate(faults):
        session = drawn(f"session {number}")
        for owner in (DATA_OWNER, MODEL_OWNER):
            part.tell(hello_of(part, owner), session=session, sender=owner)
        for sequence, each in enumerate(before, 1):
            part.tell(each, session=session, sequence=sequence)
        sequence = 1 + (len(before) if sender == DATA_OWNER else 0)
        part.tell(wrong, code, session=session, sender=sender, sequence=sequence)
    return part


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    inference_hello_bad_form, agree_terms_bad_number, inference_terms_bad_policy, inference_terms_bad_form,
    masked_weights_bad_order, pass_started_bad_model, opening_bad_round, start_pass_bad_model, material_bad_number,
    material_hello_bad_form, order_material_bad_number, audit_bad_order,
)  # fmt: skip

"""Vectors of private inference in which somebody breaks a rule, each as the part of the party that gets the message.

Where a session ends early, a file shows several faults, each in a session of its own: a model owner and a dealer have a
new one after each, and data owners are so many that each gets one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tacit.protocol.core.codec import VERSION, Envelope, encode
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.core.rate_limit import HELLO_SECONDS, HELLOS
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.messages import (
    INFERENCE_VERSION,
    AgreeTerms,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Material,
    MaterialHello,
    MaterialOver,
    MaterialWelcome,
    Opening,
    OrderMaterial,
    PassStarted,
    StartPass,
)
from tacit.protocol.inference.schedule import Sizes, weight_bytes
from tests.vectors_corpus.inference import SESSION, encoded_terms
from tests.vectors_corpus.inference_sessions import (
    DATA_OWNER,
    DEALER,
    MODEL_OWNER,
    ONE,
    WEIGHTS,
    data_owner,
    dealer,
    model_owner,
    roster,
)
from tests.vectors_corpus.play import Play
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.script import Script

TERMS: Final = encoded_terms(**ONE)
AGREED: Final = digest(Label.INFERENCE_TERMS, TERMS)
OTHER: Final = drawn("other")


class Part(Play):
    """What one party is told; who speaks to it is not played."""

    def __init__(self, about: str, party: str, **played: Any) -> None:
        super().__init__("private inference", "session", about)
        self.party = party
        self._greetings = 0
        names = [owner["name"] for owner in played.get("data_owners", ())] or [DATA_OWNER]
        self.roster = bytes.fromhex(self.do("begin inference", roster=roster(*names), **played))

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
    ) -> Any:
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
        self._greetings += isinstance(message, InferenceHello | MaterialHello) or code in ("VERSION", "MALFORMED")
        self.now = float(max(0, self._greetings - HELLOS) * HELLO_SECONDS)
        done = self.act(
            party, "receive", party=party, sender=sender, frames=[head, bytes(body) + behind, *rest], **self.at()
        )
        codes = [event["code"] for event in done["events"] if event["event"] == "ended"]
        if codes != ([code] if code else []):
            raise ValueError(f"{self.about}: {done}")
        return done

    def agree(self, session: bytes, *, images: int = 1, batch: int = 1, terms: bytes = AGREED, **more: Any) -> None:
        """A data owner's hello and agreement."""
        self.tell(InferenceHello(roster=self.roster))
        self.tell(AgreeTerms(terms=terms, images=images, batch=batch), session=session, **more)


def session_of(number: int, sessions: int) -> bytes:
    """What a model owner that can draw for so many calls its session of this number."""
    return drawn("model-owner entropy", 64 * sessions)[32 * number :][:32]


def names_of(count: int) -> list[str]:
    """So many data owners."""
    return [f"{DATA_OWNER}-{number}" for number in range(count)]


def inference_hello_bad_form() -> Script:
    part = Part("Wrong hellos to a model owner, and what it ignores from who has no session.", MODEL_OWNER,
                model_owner=model_owner(2))  # fmt: skip
    hello = InferenceHello(roster=part.roster)
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


def agree_terms_bad_number() -> Script:
    faults: tuple[tuple[str, dict[str, Any]], ...] = (
        ("POLICY", {"terms": OTHER}), ("POLICY", {"images": 4}), ("POLICY", {"images": 3, "batch": 3}),
        ("POLICY", {"batch": 2}),
    )  # fmt: skip
    part = Part("Agreements to other terms than were offered, or for more, or twice the same.", MODEL_OWNER,
                model_owner=model_owner(len(faults) + 1))  # fmt: skip
    for number, (code, changes) in enumerate(faults):
        part.agree(session_of(number, len(faults) + 1), code=code, **changes)
    session = session_of(len(faults), len(faults) + 1)
    part.agree(session)
    part.tell(AgreeTerms(terms=AGREED, images=1, batch=1), "SEQUENCE", session=session)
    return part


def inference_terms_bad_policy() -> Script:
    images = {"images": 3, "batch": 2}
    faults: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("POLICY", {"bits": 13}, {}), ("MODEL", {"weights": OTHER}, {}),
        ("MODEL", {"side": 2}, {}), ("POLICY", images, {"most_images": 2}), ("POLICY", images, {"most_batch": 1}),
    )  # fmt: skip
    names = names_of(len(faults))
    played = [data_owner(name, **wish) for name, (_, wish, _) in zip(names, faults, strict=True)]
    part = Part("Terms that a data owner does not accept.", "", data_owners=played)
    for name, (code, _, terms) in zip(names, faults, strict=True):
        part.act(name, "hello", party=name)
        message = InferenceTerms(roster=part.roster, terms=encoded_terms(**ONE | terms))
        part.tell(message, code, party=name, sender=MODEL_OWNER, session=SESSION)
    return part


def inference_terms_bad_form() -> Script:
    names = names_of(3)
    part = Part("Terms that nobody accepts; what is of a former session is ignored before them.", "",
                data_owners=[data_owner(name) for name in names])  # fmt: skip
    for name in names:
        part.act(name, "hello", party=name)
    message = InferenceTerms(roster=part.roster, terms=TERMS)
    wrong: tuple[tuple[str, Message, dict[str, Any]], ...] = (
        ("ROSTER", InferenceTerms(roster=OTHER, terms=TERMS), {}),
        ("MALFORMED", InferenceTerms(roster=part.roster, terms=TERMS + b"\0"), {}),
        ("SESSION", message, {"round": 1}),
    )
    part.tell(message, party=names[0], sender=MODEL_OWNER, session=OTHER, sequence=1)
    for name, (code, changed, changes) in zip(names, wrong, strict=True):
        part.tell(changed, code, party=name, sender=MODEL_OWNER, session=SESSION, **changes)
    return part


def masked_weights_bad_order() -> Script:
    names = names_of(3)
    part = Part("Masked weights that are not due, or not as long as they must be.", "",
                data_owners=[data_owner(name) for name in names])  # fmt: skip
    wrong = (("UNEXPECTED", 1, bytes(24)), ("VECTOR", 0, bytes(7)), ("VECTOR", 0, None))
    for name, (code, layer, payload) in zip(names, wrong, strict=True):
        _agreed(part, name)
        message = MaskedWeights(layer=layer, chunk=0)
        part.tell(message, code, party=name, sender=MODEL_OWNER, session=SESSION, sequence=1, payload=payload)
    return part


def _agreed(part: Part, name: str) -> None:
    """A data owner agrees to terms."""
    part.act(name, "hello", party=name)
    part.tell(InferenceTerms(roster=part.roster, terms=TERMS), party=name, sender=MODEL_OWNER, session=SESSION)


def pass_started_bad_model() -> Script:
    part = Part("The model owner begins a pass with another model.", DATA_OWNER, data_owners=[data_owner()])
    _weights(part)
    part.act(DATA_OWNER, "ask", party=DATA_OWNER)
    part.tell(PassStarted(weights=OTHER), "MODEL", sender=MODEL_OWNER, session=SESSION, sequence=7, round=1)
    return part


def _weights(part: Part) -> None:
    """A data owner has all masked weights."""
    _agreed(part, DATA_OWNER)
    for layer, size in enumerate(weight_bytes(Sizes(**ONE))):
        message = MaskedWeights(layer=layer, chunk=0)
        part.tell(message, sender=MODEL_OWNER, session=SESSION, sequence=1 + layer, payload=bytes(size))


def opening_bad_round() -> Script:
    part = Part("The data owner opens what depends on an opening that it cannot have.", MODEL_OWNER,
                model_owner=model_owner())  # fmt: skip
    session = _computing(part)
    part.tell(Opening(step=0, chunk=0), session=session, sequence=2, round=1, payload=bytes(5))
    part.tell(Opening(step=1, chunk=0), session=session, sequence=3, round=1, payload=bytes(6))
    part.tell(Opening(step=2, chunk=0), "UNEXPECTED", session=session, sequence=4, round=1, payload=bytes(8))
    return part


def start_pass_bad_model() -> Script:
    part = Part("The data owner asks for another model than was agreed on.", MODEL_OWNER, model_owner=model_owner())
    _masked(part)
    part.tell(StartPass(weights=OTHER), "MODEL", session=session_of(0, 1), sequence=1, round=1)
    return part


def _masked(part: Part) -> None:
    part.agree(session_of(0, 1))
    for layer, size in enumerate(weight_bytes(Sizes(**ONE))):
        part.act(MODEL_OWNER, "mask", party=MODEL_OWNER, layer=layer, data=bytes(size))


def _computing(part: Part) -> bytes:
    """The model owner in its first pass."""
    _masked(part)
    session = session_of(0, 1)
    part.tell(StartPass(weights=WEIGHTS), session=session, sequence=1, round=1)
    part.act(MODEL_OWNER, "begin pass", party=MODEL_OWNER, weights=WEIGHTS)
    return session


def material_bad_number() -> Script:
    faults: tuple[tuple[str, Message, dict[str, Any]], ...] = (
        ("UNEXPECTED", Material(number=1, chunk=0), {"payload": bytes(8)}),
        ("VECTOR", Material(number=2, chunk=0), {"payload": bytes(16)}),
        ("SESSION", Material(number=2, chunk=0), {"payload": bytes(8), "round": 1}),
    )
    names = names_of(len(faults))
    part = Part("Material that is not due, and what else a dealer may do wrong.", "",
                data_owners=[data_owner(name) for name in names])  # fmt: skip
    for name, (code, message, changes) in zip(names, faults, strict=True):
        _agreed(part, name)
        part.act(name, "hello to dealer", party=name)
        told: dict[str, Any] = {"party": name, "sender": DEALER, "session": SESSION}
        if name == names[0]:
            part.tell(MaterialWelcome(contribution=OTHER), **told | {"session": OTHER})
        part.tell(MaterialWelcome(contribution=OTHER), **told)
        part.act(name, "order", party=name, requests=b"requests", count=3, corrections=[{"number": 2, "bytes": 8}])
        part.tell(message, code, sequence=1, **told, **changes)
    return part


def hello_of(part: Part, owner: str, **changes: Any) -> MaterialHello:
    """What an owner says to the dealer; changes: other fields."""
    peer = MODEL_OWNER if owner == DATA_OWNER else DATA_OWNER
    fields: dict[str, Any] = {"roster": part.roster, "peer": peer, "terms": AGREED}
    return MaterialHello(**fields | {"contribution": drawn(f"{owner} entropy")} | changes)


def material_hello_bad_form() -> Script:
    part = Part(
        "Wrong hellos to a dealer, each in a session of its own; what is of none, or of a former one, is ignored where "
        "it can be read.",
        DEALER, dealer=dealer(),
    )  # fmt: skip
    hello = hello_of(part, DATA_OWNER)
    part.tell(MaterialOver(), session=OTHER)
    for sender in (DATA_OWNER, MODEL_OWNER):
        part.tell(hello_of(part, sender), "VERSION", session=OTHER, sender=sender, version=VERSION)
    part.tell(hello, session=OTHER, sender=DEALER + "-2", version=VERSION)
    alone: tuple[tuple[str, MaterialHello, dict[str, Any]], ...] = (
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
    part.tell(MaterialOver(), "VERSION", session=drawn("6"), version=VERSION)
    return part


def order_material_bad_number() -> Script:
    part = Part(
        "Wrong orders: a number again, other material, one after the last, too many ahead.", DEALER, dealer=dealer(4)
    )

    def order(first: int, requests: bytes = b"r") -> OrderMaterial:
        return OrderMaterial(first=first, count=2, requests=requests)

    ahead = [order(2 * place) for place in range(MOST_ORDERS + 1)]
    faults: tuple[tuple[str, list[Message], Message, str], ...] = (
        ("SEQUENCE", [order(0)], order(0), DATA_OWNER),
        ("POLICY", [order(0)], order(0, b"o"), MODEL_OWNER),
        ("SEQUENCE", [MaterialOver()], order(0), DATA_OWNER),
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


FILES: Final[dict[str, Callable[[], Script]]] = {
    function.__name__: function
    for function in (
        inference_hello_bad_form, agree_terms_bad_number, inference_terms_bad_policy, inference_terms_bad_form,
        masked_weights_bad_order, pass_started_bad_model, opening_bad_round,
        start_pass_bad_model,
        material_bad_number, material_hello_bad_form, order_material_bad_number,
    )
}  # fmt: skip
"""File name without its ending, and what makes it."""

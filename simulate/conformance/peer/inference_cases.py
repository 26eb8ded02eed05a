"""Cases of private inference: our parties' actions against a live one, and the specified reactions.

Two of the three parties are ours, and each has a link to the third, which is under test. Each lie is told once; after
it our machines continue as if the truth had been told, until the live party ends the session or completes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgpack
from msgspec import structs

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.material import chunks
from tacit.protocol.inference.messages import (
    MOST_IMAGES,
    AgreeTerms,
    CloseInference,
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
from tacit.protocol.inference.schedule import LARGEST_PIXELS
from tacit.simulate.conformance.peer.script import (
    Case,
    Lie,
    Saying,
    altered,
    carried,
    enveloped,
    honest,
    instead,
    pickled,
    repeated,
    shortened,
)

COMPLETES: Final = "completes the session"
MODEL_OWNER, DATA_OWNER, DEALER, BOTH = "the model owner", "the data owner", "the dealer", "both"
OTHERS: Final = "others"
OTHER_SESSION: Final = b"\x07" * 32
OTHER_HASH: Final = bytes(32)

Act = Literal["", "stops", "hangs up", "begins again"]


@dataclass(frozen=True)
class Scene:
    own: str
    former: Mapping[type[Message], Saying]
    """Its latest message of every kind."""
    openings: tuple[tuple[int, int], ...]
    """Rounds of the current pass in which it opens something, and the number of bytes."""


@dataclass(frozen=True)
class InferenceCase(Case):
    at: type[Message] | None = None
    """Time of the liar's action: where a message of this kind is due; None: after its lie."""
    act: Act = ""
    """The liar's action: it falls silent, closes its link, or begins a new session."""
    witness: str = ""
    """The only one of ours whose received messages count; the other's depend on the faster of two links."""
    anyone: bool = False
    """Whether the specification leaves the culprit open."""
    together: bool = False

    @property
    def lies(self) -> bool:
        return self.lie is not honest or self.at is not None


def ends(code: Code, told: str) -> str:
    """Return the verdict on a live party that ends the session, and reports it to one of ours or to both."""
    return f"ends with {code.name}, tells {told}"


def ending(name: str, does: str, code: Code, told: str, lie: Lie = honest, **more: Any) -> InferenceCase:
    """Make a case in which the live party ends the session."""
    return InferenceCase(name, does, ends(code, told), lie, **more)


def leaving(kind: type[Message]) -> Lie:
    return instead(
        kind, lambda scene, said: [Saying(Abort(code=Code.LOCAL, detail="it leaves", culprit=scene.own), round=0)]
    )


def stray(said: Saying, **envelope: Any) -> Saying:
    """Return the same message in another session, with its own numbering."""
    return replace(said, envelope={"session": OTHER_SESSION, **envelope})


def astray(kind: type[Message], *, first: bool = False, **envelope: Any) -> Lie:
    """Send a message of this kind in another session: only there, or there first."""
    return instead(kind, lambda scene, said: [stray(said, **envelope), said][: 1 + first])


def following(number: int) -> int:
    return number + 1


def wire_faults(kind: type[Message], *, prefix: str = "", who: str = "") -> tuple[InferenceCase, ...]:
    """Make cases of faults that every party refuses in a message of this kind. who: subject, if not obvious."""
    type_ = kind.TYPE
    faults: tuple[tuple[str, str, Code, Lie], ...] = (
        ("old-version", f"writes version 0 into {type_}", Code.VERSION, enveloped(kind, version=0)),
        ("sequence", f"leaves out a number before {type_}", Code.SEQUENCE, enveloped(kind, sequence=2**20)),
        ("replay", f"sends the very same {type_} twice", Code.SEQUENCE, carried(kind, times=2)),
        ("other-sender", f"writes another name into {type_}", Code.SENDER, enveloped(kind, sender="somebody-else")),
        ("other-pass", f"writes the number of another pass into {type_}", Code.SESSION,
         carried(kind, round=lambda round: round + 7)),
        ("unknown-type", f"writes a type that does not exist in the place of {type_}", Code.MALFORMED,
         enveloped(kind, type="open-nothing")),
        ("pickled", f"sends a pickle for the body of {type_}", Code.MALFORMED, pickled(kind)),
    )  # fmt: skip
    return _refused(faults, prefix, who)


def chunk_faults(kind: type[Message], index: str, *, prefix: str, who: str = "") -> tuple[InferenceCase, ...]:
    """Make cases of faults in a chunk of data of known length; index: the field that numbers the whole."""
    type_ = kind.TYPE
    faults: tuple[tuple[str, str, Code, Lie], ...] = (
        ("short", f"sends a byte too little in {type_}", Code.VECTOR, carried(kind, payload=shortened)),
        ("long", f"sends a byte too much in {type_}", Code.VECTOR,
         carried(kind, payload=lambda payload: bytes(payload) + bytes(1))),
        ("empty", f"sends {type_} without a raw frame", Code.VECTOR, carried(kind, payload=None)),
        ("misplaced", f"numbers the {index} of {type_} one too high", Code.UNEXPECTED,
         altered(kind, **{index: following})),
        ("other-chunk", f"numbers the chunk of {type_} one too high", Code.UNEXPECTED, altered(kind, chunk=following)),
        ("again", f"sends {type_} twice, correctly numbered", Code.UNEXPECTED, repeated(kind)),
    )  # fmt: skip
    return _refused(faults, prefix, who)


def _refused(faults: Sequence[tuple[str, str, Code, Lie]], prefix: str, who: str) -> tuple[InferenceCase, ...]:
    return tuple(ending(prefix + name, f"{who} {does}".lstrip(), code, BOTH, lie) for name, does, code, lie in faults)


def _all_openings(scene: Scene, said: Saying) -> list[Saying]:
    """Return all further openings of the pass, sent without waiting for the data that they depend on."""
    message: Any = said.message
    return [
        replace(said, message=Opening(step=step, chunk=chunk), payload=piece)
        for step, size in scene.openings
        if step >= message.step
        for chunk, piece in chunks(bytes(size))
    ]


def _unasked(scene: Scene, said: Saying) -> list[Saying]:
    return [said, Saying(Randomness(number=1 << 40, chunk=0), round=0, payload=bytes(8))]


OPENING_CASES: Final = (
    *chunk_faults(Opening, "step", prefix="opening-"),
    ending("opening-early", "opens all at once, before it can know what it depends on",
            Code.UNEXPECTED, BOTH, instead(Opening, _all_openings), act="stops"),
    ending("silence", "says nothing more where an opening is due", Code.TIMEOUT, BOTH, at=Opening, act="stops"),
    ending("gone", "closes its link in the middle of a pass", Code.LEFT, DEALER, at=Opening, act="hangs up"),
    ending("leaves", "gives up in the middle of a pass", Code.LOCAL, DEALER, leaving(Opening)),
)  # fmt: skip
"""Faults of the other owner, in the rounds of a pass."""
WELCOME_CASES: Final = (
    InferenceCase("dealer-former-session", "the dealer says something of another session first", COMPLETES,
            astray(DealerWelcome, first=True)),
    *wire_faults(DealerWelcome, prefix="dealer-", who=DEALER),
    ending("dealer-twice", "the dealer welcomes twice, correctly numbered", Code.UNEXPECTED, BOTH,
            repeated(DealerWelcome)),
    ending("dealer-unasked", "the dealer sends what nobody ordered", Code.UNEXPECTED, BOTH,
            instead(DealerWelcome, _unasked)),
    ending("dealer-out-of-turn", "the dealer orders material", Code.UNEXPECTED, BOTH,
            carried(DealerWelcome, message=OrderRandomness(first=0, count=1, requests=b""))),
)  # fmt: skip
"""Faults of the dealer, before it deals anything."""


MATERIAL_CASES: Final = (
    *chunk_faults(Randomness, "number", prefix="randomness-", who=DEALER),
    ending("dealer-refuses", "the dealer gives up", Code.LOCAL, DATA_OWNER, leaving(Randomness)),
    ending("dealer-silence", "the dealer does not send what was ordered", Code.TIMEOUT, BOTH,
           at=Randomness, act="stops"),
    ending("dealer-gone", "the dealer closes its link", Code.LEFT, DATA_OWNER, at=Randomness, act="hangs up"),
)  # fmt: skip
"""Faults of the dealer, when it deals to a model owner."""
WELCOME_ENDINGS: Final = (
    ending("dealer-refuses", "the dealer gives up", Code.LOCAL, MODEL_OWNER, leaving(DealerWelcome)),
    ending("dealer-silence", "the dealer never welcomes", Code.TIMEOUT, BOTH, at=DealerWelcome, act="stops"),
    ending("dealer-gone", "the dealer closes its link", Code.LEFT, MODEL_OWNER, at=DealerWelcome, act="hangs up"),
)  # fmt: skip
"""The same to a data owner, before it deals anything."""


def offering(sizes: Mapping[str, int], **fields: Any) -> Lie:
    """Offer other sizes and other fields in the terms, consistent or not."""

    def change(scene: Scene, message: InferenceTerms) -> dict[str, bytes]:
        terms = msgpack.unpackb(message.terms)
        return {"terms": msgpack.packb({**terms, **fields, "sizes": {**terms["sizes"], **sizes}})}

    return altered(InferenceTerms, change)


def wider(scene: Scene, message: InferenceTerms) -> dict[str, bytes]:
    terms = msgpack.unpackb(message.terms)
    sizes = terms["sizes"]
    return {"terms": msgpack.packb({**terms, "sizes": {**sizes, "side": sizes["side"] + sizes["patch"]}})}


def replaced_later(scene: Scene, said: Saying) -> Sequence[Saying]:
    return altered(PassStarted, weights=OTHER_HASH)(scene, said) if said.round > 1 else [said]


DATA_OWNER_CASES: Final = (
    InferenceCase("honest", "a whole session", COMPLETES),
    ending("other-roster", "holds another roster", Code.ROSTER, MODEL_OWNER,
            altered(InferenceTerms, roster=OTHER_HASH)),
    ending("terms-trailing", "sends a byte too much in the terms", Code.MALFORMED, MODEL_OWNER,
            altered(InferenceTerms, terms=lambda terms: terms + b"\0")),
    ending("terms-uneven", "offers sizes that do not fit together", Code.MALFORMED, MODEL_OWNER,
            offering({"patch": 2, "side": 5})),
    ending("terms-huge", "offers a model beyond the limits", Code.MALFORMED, MODEL_OWNER,
            offering({"patch": 128, "side": 128, "channels": 1 + LARGEST_PIXELS // 128**2})),
    ending("terms-wider", "offers a model for larger images", Code.MODEL, MODEL_OWNER,
            altered(InferenceTerms, wider)),
    ending("terms-few", "offers to compute one image", Code.POLICY, MODEL_OWNER,
            offering({}, most_images=1, most_batch=1)),
    ending("terms-out-of-turn", "starts a pass where terms are due", Code.UNEXPECTED, MODEL_OWNER,
            carried(InferenceTerms, message=PassStarted(weights=OTHER_HASH))),
    InferenceCase("former-session", "says something of a former session before the terms", COMPLETES,
            astray(InferenceTerms, first=True, sequence=7)),
    ending("other-session", "writes another session into masked-weights", Code.SESSION, BOTH, astray(MaskedWeights)),
    *wire_faults(MaskedWeights),
    *chunk_faults(MaskedWeights, "layer", prefix="weights-"),
    ending("out-of-turn", "starts a pass where masked weights are due", Code.UNEXPECTED, BOTH,
            carried(MaskedWeights, message=PassStarted(weights=OTHER_HASH), payload=None)),
    ending("other-model", "starts a pass with another model than agreed", Code.MODEL, BOTH,
            altered(PassStarted, weights=OTHER_HASH)),
    ending("model-replaced", "starts the second pass with another model", Code.MODEL, BOTH, replaced_later),
    ending("started-twice", "starts a pass twice", Code.UNEXPECTED, BOTH, repeated(PassStarted)),
    *OPENING_CASES,
    *WELCOME_CASES,
    *WELCOME_ENDINGS,
)  # fmt: skip
"""Actions of our model owner and our dealer against a live data owner. By default our model owner's."""


def _pass_too_many(scene: Scene, said: Saying) -> list[Saying]:
    last = scene.former[StartPass]
    return [replace(last, round=last.round + 1)]


MODEL_OWNER_CASES: Final = (
    InferenceCase("honest", "a whole session of two passes", COMPLETES),
    ending("other-roster", "holds another roster", Code.ROSTER, DATA_OWNER,
            altered(InferenceHello, roster=OTHER_HASH)),
    ending("pickled-hello", "sends a pickle for the body of inference-hello", Code.MALFORMED, DATA_OWNER,
            pickled(InferenceHello)),
    ending("unreadable-hello", "writes version 0 into inference-hello", Code.VERSION, DATA_OWNER,
            enveloped(InferenceHello, version=0)),
    InferenceCase("hello-again", "says hello again in the middle of a session",
            f"{ends(Code.LEFT, DEALER)}, {COMPLETES}", at=StartPass, act="begins again"),
    ending("other-terms", "agrees to other terms than were offered", Code.POLICY, DATA_OWNER,
            altered(AgreeTerms, terms=OTHER_HASH)),
    ending("more-images", "wants more images than are offered", Code.POLICY, DATA_OWNER,
            altered(AgreeTerms, images=MOST_IMAGES)),
    ending("larger-batch", "wants more images in a pass than it has", Code.POLICY, DATA_OWNER,
            altered(AgreeTerms, lambda scene, message: {"batch": message.images + 1})),
    ending("other-session", "writes another session into start-pass", Code.SESSION, BOTH, astray(StartPass)),
    *wire_faults(StartPass),
    ending("other-model", "asks for another model than was agreed on", Code.MODEL, BOTH,
            altered(StartPass, weights=OTHER_HASH)),
    ending("pass-too-many", "asks for a pass more than was agreed on", Code.POLICY, BOTH,
            instead(CloseInference, _pass_too_many)),
    ending("out-of-turn", "opens something where no pass has begun", Code.UNEXPECTED, BOTH,
            instead(StartPass, lambda scene, said: [
                Saying(Opening(step=0, chunk=0), said.round - 1, payload=bytes(8))])),
    ending("closes-early", "closes in the middle of a pass", Code.UNEXPECTED, BOTH,
            instead(Opening, lambda scene, said: [Saying(CloseInference(), round=0)])),
    *OPENING_CASES,
    *WELCOME_CASES,
    *MATERIAL_CASES,
)  # fmt: skip
"""Actions of our data owner and our dealer against a live model owner. By default our data owner's."""


def _second(lie: Lie) -> Lie:
    return instead(OrderRandomness, lambda scene, said: lie(scene, said) if OrderRandomness in scene.former else [said])


def _far_ahead(scene: Scene, said: Saying) -> list[Saying]:
    order = said.message
    assert isinstance(order, OrderRandomness)
    later = [
        replace(said, message=structs.replace(order, first=order.first + number * order.count))
        for number in range(1, MOST_ORDERS + 2)
    ]
    return [said, *later]


def _second_session(scene: Scene, said: Saying) -> list[Saying]:
    """Open another session, which ends at once, because no peer joins it."""
    leaves = Saying(Abort(code=Code.LEFT, detail="it leaves", culprit=scene.own), round=0)
    return [stray(scene.former[DealerHello]), stray(leaves, sequence=1)]


DEALER_CASES: Final = (
    InferenceCase("honest", "what both order comes, and is right", COMPLETES),
    ending("other-roster", "holds another roster", Code.ROSTER, DATA_OWNER,
            altered(DealerHello, roster=OTHER_HASH), witness=DATA_OWNER),
    ending("other-peer", "comes for a session with somebody else", Code.MEMBERS, DATA_OWNER,
            altered(DealerHello, peer="somebody-else"), witness=DATA_OWNER),
    ending("pickled-hello", "sends a pickle for the body of dealer-hello", Code.MALFORMED, DATA_OWNER,
            pickled(DealerHello), witness=DATA_OWNER),
    ending("other-terms", "comes with other terms than the model owner", Code.POLICY, BOTH,
            altered(DealerHello, terms=OTHER_HASH), anyone=True),
    ending("hello-twice", "says hello twice", Code.UNEXPECTED, BOTH,
            instead(OrderRandomness, lambda scene, said: [scene.former[DealerHello]])),
    ending("second-session", "begins another session", Code.SESSION, BOTH, instead(OrderRandomness, _second_session)),
    InferenceCase("former-session", "orders in another session first", COMPLETES, astray(OrderRandomness, first=True)),
    *wire_faults(OrderRandomness),
    ending("out-of-turn", "closes a session of inference", Code.UNEXPECTED, BOTH,
            carried(OrderRandomness, message=CloseInference())),
    ending("number-twice", "orders a number twice", Code.SEQUENCE, BOTH, _second(altered(OrderRandomness, first=0))),
    ending("number-skipped", "leaves out a number", Code.SEQUENCE, BOTH, altered(OrderRandomness, first=following)),
    ending("other-order", "orders other material than the model owner", Code.POLICY, BOTH,
            altered(OrderRandomness, requests=lambda requests: requests + b"\0"), anyone=True),
    ending("far-ahead", f"orders {MOST_ORDERS + 2} times, which is too far ahead",
            Code.UNEXPECTED, DATA_OWNER, _second(_far_ahead), act="stops", witness=DATA_OWNER),
    ending("unreadable-order", "both order what is no request", Code.MALFORMED, BOTH,
            altered(OrderRandomness, requests=b"\xc1"), anyone=True, together=True),
    ending("miscounted-order", "both count a request too many", Code.MALFORMED, BOTH,
            _second(altered(OrderRandomness, count=following)),
            anyone=True, together=True),
    ending("order-after-over", "orders after it has said that it is done", Code.SEQUENCE, MODEL_OWNER,
            instead(OrderRandomness, lambda scene, said: [Saying(DealingOver(), round=0), said]),
            witness=MODEL_OWNER),
    ending("silence", "orders nothing, while the model owner waits", Code.TIMEOUT, BOTH,
            at=OrderRandomness, act="stops"),
    ending("gone", "closes its link", Code.LEFT, MODEL_OWNER, at=OrderRandomness, act="hangs up"),
    ending("leaves", "gives up", Code.LOCAL, MODEL_OWNER, leaving(OrderRandomness)),
)  # fmt: skip
"""Actions of our owners against a live dealer. Our data owner lies, unless the text names both."""

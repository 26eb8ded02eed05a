"""Cases of training: our server against a live client, a client of ours against a live server, and their outcomes.

Some lies of our server are true elsewhere: members signed them in another round, or for a party that received something
else. A party that checks a signature, but not its content, believes all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
from msgspec import structs

from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import BODY_LIMIT, CHUNK_BYTES, Abort, Chunk, Fetch, Message
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES
from tacit.protocol.core.roster import decode_members, encode_members, split_records
from tacit.protocol.session.messages import Hello, StartRound, Welcome
from tacit.protocol.sum.agreement import Advert, adverts_digest, sign_advert, split_adverts, survivors_signed
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    ShareKeys,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sum.sharing import BOTH_BYTES, PACKET_BYTES
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.conformance.peer.script import (
    PICKLE,
    Case,
    Lie,
    RoundKnowledge,
    Saying,
    altered,
    carried,
    enveloped,
    flipped,
    instead,
    pickled,
    repeated,
    shortened,
)


def former_adverts(stage: RoundKnowledge, message: PeerKeys) -> dict[str, Any]:
    adverts, other = _adverts(stage, message), _other(stage.liar)
    return _listed(stage, {**adverts, other: _adverts(stage, stage.former(PeerKeys))[other]})


def adverts_of_another_model(stage: RoundKnowledge, message: PeerKeys) -> dict[str, Any]:
    adverts, other = _adverts(stage, message), _other(stage.liar)
    agreement, signing = stage.agreed()
    elsewhere, keys = replace(agreement, model=flipped(agreement.model)), adverts[other]
    signed = sign_advert(
        elsewhere,
        other,
        signing[other],
        channel_key=keys.channel_key,
        mask_key=keys.mask_key,
        choices=keys.choices,
    )
    return _listed(stage, {**adverts, other: signed})


def former_shares(stage: RoundKnowledge, message: PeerShares) -> dict[str, Any]:
    former, other = stage.former(PeerShares), _other(stage.liar)
    parts = (("packets", PACKET_BYTES), ("signatures", SIGNATURE_BYTES))
    changed = {}
    for name, size in parts:
        now, before = (
            split_records(getattr(said, name), size, decode_members(said.owners, stage.size))
            for said in (message, former)
        )
        changed[name] = b"".join({**now, other: before[other]}.values())
    return changed


def former_signatures(stage: RoundKnowledge, message: UnmaskRequest) -> dict[str, Any]:
    former = stage.former(UnmaskRequest)
    return {"signers": former.signers, "signatures": former.signatures}


def signatures_of_other_survivors(stage: RoundKnowledge, message: UnmaskRequest) -> dict[str, Any]:
    """Forge the view in which all others signed that one of them did not survive."""
    agreement, signing = stage.agreed()
    survivors = encode_members([member for member in range(stage.size) if member != _other(stage.liar)], stage.size)
    sharing = agreement.sharing_digest(stage.latest(PeerKeys).digest, stage.latest(PeerShares).sharers)
    signatures = [
        key.sign(SumLabel.SIGN_SURVIVORS, *survivors_signed(sharing, member, survivors))
        for member, key in sorted(signing.items())
    ]
    return {"signers": encode_members(signing, stage.size), "signatures": b"".join(signatures)}


def _adverts(stage: RoundKnowledge, message: PeerKeys) -> dict[int, Advert]:
    return split_adverts(stage.agreed()[0], message.adverts, decode_members(message.included, stage.size))


def _listed(stage: RoundKnowledge, adverts: dict[int, Advert]) -> dict[str, Any]:
    records = b"".join(advert.record for _, advert in sorted(adverts.items()))
    return {"adverts": records, "digest": adverts_digest(stage.agreed()[0], adverts)}


TAKES_PART: Final = "takes part"
_RECORD: Final = 2 * KEY_BYTES + SIGNATURE_BYTES


def refuses_round(code: Code) -> str:
    return f"refuses {code.name}, round over"


def refuses_session(code: Code) -> str:
    return f"refuses {code.name}, session over"


def _configured(**changes: Any) -> Lie:
    def change(stage: RoundKnowledge, welcome: Welcome) -> dict[str, Any]:
        configuration = decode_structure(welcome.configuration, Configuration, limit=BODY_LIMIT)
        return {"configuration": encode_structure(structs.replace(configuration, **changes))}

    return altered(Welcome, change)


def _some(stage: RoundKnowledge, count: int, *, with_victim: bool = True) -> bytes:
    others = [member for member in range(stage.size) if member != stage.liar]
    chosen = [stage.liar, *others][:count] if with_victim else others[:count]
    return encode_members(chosen, stage.size)


def _fewer_than_threshold(stage: RoundKnowledge) -> bytes:
    return _some(stage, stage.threshold - 1)


def _peer_shares_of(members: Callable[[RoundKnowledge], bytes]) -> Lie:
    def change(stage: RoundKnowledge, message: PeerShares) -> dict[str, Any]:
        sharers = members(stage)
        kept, owners = set(decode_members(sharers, stage.size)), decode_members(message.owners, stage.size)

        def of_kept(records: bytes, size: int) -> bytes:
            return b"".join(each for owner, each in split_records(records, size, owners).items() if owner in kept)

        return {
            "sharers": sharers,
            "owners": sharers,
            "packets": of_kept(message.packets, PACKET_BYTES),
            "signatures": of_kept(message.signatures, SIGNATURE_BYTES),
        }

    return altered(PeerShares, change)


def _with_record(change: Callable[[list[bytes], int], Iterable[bytes]]) -> Lie:
    """Send adverts of another content, in the complete graph: one record per member."""

    def changed(stage: RoundKnowledge, message: PeerKeys) -> dict[str, Any]:
        records = [message.adverts[start : start + _RECORD] for start in range(0, len(message.adverts), _RECORD)]
        return {"adverts": b"".join(change(records, stage.liar))}

    return altered(PeerKeys, changed)


def _other(member: int) -> int:
    return 1 if member == 0 else 0


def _replaced(records: list[bytes], member: int, record: bytes) -> list[bytes]:
    return [*records[:member], record, *records[member + 1 :]]


def _copied_keys(records: list[bytes], victim: int) -> list[bytes]:
    giver = max(member for member in range(len(records)) if member not in (victim, _other(victim)))
    return _replaced(records, _other(victim), records[giver])


def _without_own_key(stage: RoundKnowledge, message: PeerKeys) -> dict[str, Any]:
    included = _some(stage, stage.size - 1, with_victim=False)
    start = stage.liar * _RECORD
    return {"included": included, "adverts": message.adverts[:start] + message.adverts[start + _RECORD :]}


def _nan(stage: RoundKnowledge) -> bytes:
    return np.full(stage.parameters, np.nan, "<f4").tobytes()


def _unasked(stage: RoundKnowledge, said: Saying) -> Saying:
    nobody = encode_members((), stage.size)
    request = UnmaskRequest(survivors=nobody, signers=nobody, signatures=b"", answered=nobody, answers=b"")
    return Saying(request, said.round)


def _modelled(lie: Lie) -> Lie:
    """Lie about the model. A client that continues with it fails at a later message; for others that comes too late."""

    def told(stage: RoundKnowledge, said: Saying) -> list[Saying]:
        lies = [*lie(stage, said)]
        last = isinstance(said.message, Chunk) and (said.message.chunk + 1) * CHUNK_BYTES >= 4 * stage.parameters
        return [*lies, _unasked(stage, said)] if last else lies

    return told


def _with_nan(stage: RoundKnowledge, said: Saying) -> list[Saying]:
    if isinstance(said.message, StartRound):
        return [replace(said, message=structs.replace(said.message, model=announce(_nan(stage), SumLabel.MODEL)))]
    if isinstance(said.message, Chunk):
        start = said.message.chunk * CHUNK_BYTES
        return [replace(said, payload=_nan(stage)[start : start + CHUNK_BYTES])]
    if isinstance(said.message, Abort) and said.round:
        return []  # Our machine refuses keys that are signed for a model that it does not know of.
    return [said]


def _foreign_survivors(stage: RoundKnowledge, said: Saying) -> list[Saying]:
    smaller = _peer_shares_of(lambda stage: _some(stage, stage.size - 1))(stage, said)
    foreign = encode_members({*range(stage.size)} - {_other(stage.liar)}, stage.size)
    return list(altered(Survivors, survivors=foreign)(stage, smaller[0]))


_FEWER_SURVIVORS: Final = altered(UnmaskRequest, lambda stage, _: {"survivors": _some(stage, stage.size - 1)})


def _thrice(stage: RoundKnowledge, said: Saying) -> list[Saying]:
    return [said, said, *_FEWER_SURVIVORS(stage, said)]


def _fewer_signers(stage: RoundKnowledge, message: UnmaskRequest) -> dict[str, Any]:
    signers = decode_members(message.signers, stage.size)[:-1]
    return {
        "signers": encode_members(signers, stage.size),
        "signatures": message.signatures[: SIGNATURE_BYTES * len(signers)],
    }


def _altered_shares(stage: RoundKnowledge, message: PeerShares, *, own: bool) -> dict[str, Any]:
    owner = stage.liar if own else _other(stage.liar)
    place = decode_members(message.owners, stage.size).index(owner)
    return {"packets": flipped(message.packets, (place + 1) * PACKET_BYTES - 1)}


def _complaining(change: Callable[[RoundKnowledge, PeerComplaints], Message]) -> Lie:
    """Pass on a complaint, or a replacement, before naming the survivors."""

    def lie(stage: RoundKnowledge, said: Saying) -> list[Saying]:
        assert stage.complaint is not None
        return [Saying(change(stage, stage.complaint()), said.round), said]

    return instead(Survivors, lie)


def _many_complaints(stage: RoundKnowledge, complaint: PeerComplaints) -> PeerComplaints:
    others = _some(stage, stage.size - 1, with_victim=False)
    return PeerComplaints(holders=others, signatures=complaint.signatures * (stage.size - 1))


def _answer_to_nothing(stage: RoundKnowledge, message: UnmaskRequest) -> dict[str, Any]:
    return {"answered": encode_members((_other(stage.liar),), stage.size), "answers": bytes(BOTH_BYTES)}


_SESSION: Final = bytes(32)

CLIENT_CASES: Final = (
    Case("honest", "two honest rounds", TAKES_PART),
    Case("downgrade", "proposes mode = semi-honest", refuses_session(Code.POLICY),
         _configured(mode="semi-honest"), True),
    Case("no-aggregation", "proposes mode = none", refuses_session(Code.POLICY), _configured(mode="none"), True),
    Case("no-collusion", "proposes that nobody colludes", refuses_session(Code.POLICY), _configured(colluders=0), True),
    Case("threshold-below-floor", "proposes threshold = 2", refuses_round(Code.POLICY), _configured(threshold=2), True),
    Case("other-roster", "holds another roster", refuses_session(Code.ROSTER),
         altered(Welcome, roster=bytes(32)), True),
    Case("pickled-configuration", "sends a pickle for a configuration", refuses_session(Code.MALFORMED),
         altered(Welcome, configuration=PICKLE), True),
    Case("small-cohort", "starts a round with two clients", refuses_round(Code.POLICY),
         altered(StartRound, lambda stage, _: {"cohort": _some(stage, 2)})),
    Case("not-selected", "starts a round without this client", refuses_round(Code.MEMBERS),
         altered(StartRound, lambda stage, _: {"cohort": _some(stage, stage.size - 1, with_victim=False)})),
    Case("model-length", "announces a model of another length", refuses_round(Code.MODEL),
         altered(StartRound, model=lambda model: structs.replace(model, size=model.size + 4))),
    Case("pickled-body", "sends a pickle for the body of start-round", refuses_round(Code.MALFORMED),
         pickled(StartRound)),
    Case("replayed-round", "starts the last round again", refuses_session(Code.SESSION),
         instead(StartRound, lambda stage, said: [replace(said, round=said.round - 1), said])),
    Case("round-zero", "starts a round that is not above the last", refuses_session(Code.SESSION),
         carried(StartRound, round=0)),
    Case("other-session", "writes another session into start-round", refuses_session(Code.SESSION),
         enveloped(StartRound, session=_SESSION)),
    Case("sequence", "leaves out a number", refuses_session(Code.SEQUENCE), enveloped(StartRound, sequence=2**20)),
    Case("old-version", "writes version 0", refuses_session(Code.VERSION), enveloped(StartRound, version=0)),
    Case("unknown-type", "writes a type that does not exist", refuses_session(Code.MALFORMED),
         enveloped(StartRound, type="restart-round")),
    Case("other-sender", "calls itself otherwise", refuses_session(Code.SENDER),
         enveloped(StartRound, sender="nobody")),
    Case("out-of-turn", "asks to unmask before anything was masked", refuses_round(Code.UNEXPECTED),
         instead(PeerKeys, lambda stage, said: [_unasked(stage, said), said])),
    Case("other-model", "sends another model than announced", refuses_round(Code.MODEL),
         _modelled(carried(Chunk, payload=lambda payload: flipped(bytes(payload), 0))), alone=True),
    Case("model-with-nan", "sends a model with NaN", refuses_round(Code.MODEL), _modelled(_with_nan), alone=True),
    Case("pickled-model", "sends a pickle for a model", refuses_round(Code.MODEL),
         _modelled(carried(Chunk, payload=PICKLE)), alone=True),
    Case("own-key-missing", "leaves the client's keys out of the list", refuses_round(Code.MEMBERS),
         altered(PeerKeys, _without_own_key)),
    Case("own-key-altered", "lists other keys for the client", refuses_round(Code.KEYS),
         _with_record(lambda records, own: _replaced(records, own, flipped(records[own], 0)))),
    Case("equal-keys", "lists the same keys for two members", refuses_round(Code.KEYS), _with_record(_copied_keys)),
    Case("forged-advert", "lists keys with a forged signature", refuses_round(Code.SIGNATURE),
         _with_record(lambda records, own: _replaced(records, _other(own), flipped(records[_other(own)])))),
    Case("replayed-adverts", "lists keys that another member advertised a round before", refuses_round(Code.SIGNATURE),
         altered(PeerKeys, former_adverts)),
    Case("split-models", "lists keys that another member advertised for another model", refuses_round(Code.SIGNATURE),
         altered(PeerKeys, adverts_of_another_model)),
    Case("other-digest", "sends a digest of another list", refuses_round(Code.KEYS),
         altered(PeerKeys, digest=lambda digest: flipped(digest, 0))),
    Case("few-sharers", "names fewer sharers than the threshold", refuses_round(Code.THRESHOLD),
         _peer_shares_of(_fewer_than_threshold)),
    Case("not-a-sharer", "leaves the client out of the sharers", refuses_round(Code.MEMBERS),
         _peer_shares_of(lambda stage: _some(stage, stage.size - 1, with_victim=False))),
    Case("cut-shares", "cuts the packets short", refuses_round(Code.SHARES), altered(PeerShares, packets=shortened)),
    Case("own-shares-altered", "alters the client's own packet", refuses_round(Code.SIGNATURE),
         altered(PeerShares, lambda stage, message: _altered_shares(stage, message, own=True))),
    Case("shares-altered", "alters the packet of another member", refuses_round(Code.SIGNATURE),
         altered(PeerShares, lambda stage, message: _altered_shares(stage, message, own=False))),
    Case("replayed-shares", "passes on a packet that another member made a round before",
         refuses_round(Code.SIGNATURE), altered(PeerShares, former_shares)),
    Case("complaint", "passes on the complaint of a holder", f"{TAKES_PART}, answers a complaint",
         _complaining(lambda stage, complaint: complaint)),
    Case("forged-complaint", "forges the signature of a complaint", refuses_round(Code.SIGNATURE),
         _complaining(lambda stage, complaint: structs.replace(
             complaint, signatures=flipped(complaint.signatures, -1)))),
    Case("many-complaints", "passes on complaints of more holders than may lie", refuses_round(Code.THRESHOLD),
         _complaining(_many_complaints)),
    Case("answer-to-nothing", "answers a complaint that the client did not make", refuses_round(Code.MEMBERS),
         altered(UnmaskRequest, _answer_to_nothing)),
    Case("few-survivors", "names fewer survivors than the threshold", refuses_round(Code.THRESHOLD),
         altered(Survivors, lambda stage, _: {"survivors": _fewer_than_threshold(stage)})),
    Case("not-a-survivor", "leaves the client out of the survivors", refuses_round(Code.MEMBERS),
         altered(Survivors, lambda stage, _: {"survivors": _some(stage, stage.size - 1, with_victim=False)})),
    Case("foreign-survivors", "names a survivor that is no sharer", refuses_round(Code.MEMBERS), _foreign_survivors),
    Case("both-kinds", "asks to unmask for fewer survivors than were signed", refuses_round(Code.MEMBERS),
         _FEWER_SURVIVORS),
    Case("signatures-missing", "sends fewer signatures than the threshold", refuses_round(Code.THRESHOLD),
         altered(UnmaskRequest, _fewer_signers)),
    Case("signatures-cut", "sends a signature too little", refuses_round(Code.SIGNATURE),
         altered(UnmaskRequest, signatures=lambda signatures: shortened(signatures, SIGNATURE_BYTES))),
    Case("forged-signature", "sends a signature that does not verify", refuses_round(Code.SIGNATURE),
         altered(UnmaskRequest, signatures=flipped)),
    Case("replayed-signatures", "sends what members signed a round before", refuses_round(Code.SIGNATURE),
         altered(UnmaskRequest, former_signatures)),
    Case("split-survivors", "names other survivors to the others, and sends what they signed",
         refuses_round(Code.SIGNATURE), altered(UnmaskRequest, signatures_of_other_survivors)),
    Case("asks-twice", "asks to unmask three times, last for fewer survivors", TAKES_PART,
         instead(UnmaskRequest, _thrice)),
)  # fmt: skip
"""Cases of our server. Those that need the client to join anew come early."""

STAYS: Final = "sees a round through"
OTHERS: Final = "the others finish"
FLOOD: Final = 1_000
HONEST: Final = Case(
    "honest", "two honest rounds, the model to move by the mean of the updates", "all finish, the model is right"
)
STRANGER: Final = Case("stranger", "connects with a key that is not in the roster", "not admitted")


def refused(code: Code, others: str = OTHERS) -> str:
    return f"is out with {code.name}, {others}"


def _forged(kind: type[Message]) -> Lie:
    return altered(kind, signature=flipped)


def _complaint_of(stage: RoundKnowledge, owner: int) -> dict[str, bytes]:
    return {"complaints": encode_members((owner,), stage.size), "signatures": bytes(SIGNATURE_BYTES)}


_NO_SESSION: Final = b"\x07" * 32

SERVER_CASES: Final = (
    HONEST,
    STRANGER,
    Case("other-roster", "holds another roster", refused(Code.ROSTER), altered(Hello, roster=bytes(32)), True),
    Case("replayed-hello", "says hello again in the middle of a round", f"{STAYS}, {OTHERS}", joins=True),
    Case("pickled-hello", "sends a pickle for the body of hello", refused(Code.MALFORMED), pickled(Hello), True),
    Case("old-version", "writes version 0", refused(Code.VERSION), enveloped(AdvertiseKeys, version=0)),
    Case("sequence", "leaves out a number", refused(Code.SEQUENCE), enveloped(AdvertiseKeys, sequence=2**20)),
    Case("replay", "sends the very same message twice", refused(Code.SEQUENCE), carried(AdvertiseKeys, times=2)),
    Case("other-session", "writes another session", refused(Code.SESSION),
         enveloped(AdvertiseKeys, session=_NO_SESSION)),
    Case("other-sender", "writes another member's name", refused(Code.SENDER),
         enveloped(AdvertiseKeys, sender="somebody-else")),
    Case("future-round", "writes a round that has not begun", refused(Code.SESSION),
         carried(AdvertiseKeys, round=lambda round: round + 1)),
    Case("unknown-type", "writes a type that does not exist", refused(Code.MALFORMED),
         enveloped(AdvertiseKeys, type="advertise-nothing")),
    Case("malformed-body", "sends a pickle for a body", refused(Code.MALFORMED), pickled(AdvertiseKeys)),
    Case("chunk-again", "asks for a chunk of the model twice", refused(Code.UNEXPECTED), repeated(Fetch)),
    Case("out-of-turn", "opens shares before there are any", refused(Code.UNEXPECTED),
         carried(AdvertiseKeys, message=UnmaskShares(owners=b"", shares=b""))),
    Case("duplicate-advert", "advertises twice, correctly numbered", f"{STAYS}, {OTHERS}", repeated(AdvertiseKeys)),
    Case("flood", f"advertises {FLOOD:,} times, correctly numbered", f"{STAYS}, {OTHERS}",
         repeated(AdvertiseKeys, FLOOD)),
    Case("small-order-key", "advertises a key of small order", refused(Code.KEYS),
         altered(AdvertiseKeys, mask_key=bytes(32))),
    Case("forged-advert", "forges the signature of its keys", refused(Code.SIGNATURE), _forged(AdvertiseKeys)),
    Case("other-holders", "shares with nobody", refused(Code.MEMBERS),
         altered(ShareKeys, holders=lambda holders: bytes(len(holders)))),
    Case("cut-shares", "cuts its packets short", refused(Code.SHARES), altered(ShareKeys, packets=shortened)),
    Case("forged-shares", "forges the signature of a packet", refused(Code.SIGNATURE),
         altered(ShareKeys, signatures=flipped)),
    Case("silence", "says nothing where its shares are due", refused(Code.TIMEOUT), repeated(ShareKeys, 0)),
    # The last byte of a raw frame is missing, whether the vector comes at once or in chunks.
    Case("short-vector", "sends a vector of another length", refused(Code.VECTOR),
         carried(Message, payload=lambda payload: payload if payload is None else shortened(payload))),
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
         altered(UnmaskShares, shares=lambda shares: flipped(shares, 0))),
    Case("other-owners", "opens no shares", refused(Code.SHARES),
         altered(UnmaskShares, owners=lambda owners: bytes(len(owners)), shares=b"")),
)  # fmt: skip
"""Cases of one of our clients. All but the first two have one liar; the others are honest, and complete the round in
any case."""

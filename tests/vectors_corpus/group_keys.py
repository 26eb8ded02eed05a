"""Vectors of attempts at a group key: what secrets lead to, an honest attempt, and attempts that somebody spoils."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from msgspec.structs import replace

from tacit.parties.protections.binary_weights import WeightsLabel
from tacit.parties.protections.encryption import EncryptionLabel
from tacit.protocol.core.primitives import KEY_BYTES, PRIME_25519, AgreementKey, SigningKey
from tacit.protocol.core.roster import split_records
from tacit.protocol.group_key.agreement import (
    COMMIT_BYTES,
    CONFIRMATION_BYTES,
    PACKET_BYTES,
    KeyAgreement,
    Transcript,
    commit_record,
)
from tacit.protocol.group_key.messages import ConfirmKey, KeyCommit, KeyComplaint, KeyContribution
from tacit.protocol.group_key.states import KeyLabel
from tacit.simulate.conformance.exchange import linked_key_member, linked_key_relay
from tests.vectors_corpus.faults import Reframe, body, fields, first_bit, having, instead
from tests.vectors_corpus.play import SERVER, Making, Parcel, Play, ending, faulty_part
from tests.vectors_corpus.primitives import drawn, flipped
from tests.vectors_corpus.script import Script, vectors_of

PHASE_SECONDS: Final = 10.0
CHEAT: Final = "client-1"
"""Who breaks a rule where a member does; also the member that a lying server speaks to."""
PLACE: Final = 1
EPOCH: Final = 3


def agreement_of(members: int = 3) -> KeyAgreement:
    names = tuple(f"client-{member}" for member in range(members))
    return KeyAgreement(
        session=drawn("session"), epoch=EPOCH, server=SERVER, members=names,
        signing_keys=tuple(signing(name).public for name in names), roster=drawn("roster"),
        configuration=drawn("configuration"), phase_seconds=PHASE_SECONDS,
    )  # fmt: skip


@vectors_of("group key")("Keys for each use of a group key.")
def group_keys(script: Script) -> None:
    uses = (
        (EncryptionLabel.MODEL_KEY, b"\0"),
        (EncryptionLabel.INITIAL_MODEL, b""),
        (EncryptionLabel.INITIAL_MODEL, b"public"),
    )
    for label, info in (*uses, (WeightsLabel.COORDINATED_WEIGHTS, (7).to_bytes(4, "little"))):
        given = {"key": drawn("group key"), "transcript": drawn("transcript")}
        script.do("use group key", **given, label=label.decode(), info=info)


def begun(about: str) -> Play:
    play = Play("group key", about)
    agreement = agreement_of()
    play.make(SERVER, Making(linked_key_relay, {"agreement": agreement}))
    for name in agreement.members:
        given = {"agreement": agreement, "name": name, "signing": signing(name)}
        play.make(name, Making(linked_key_member, given, drawn(f"{name} entropy", 64)))
    for name in agreement.members:
        play.act(name, "start")
    return play


def group_key_three() -> Play:
    play = begun("Three members agree on a key.")
    play.deliver()
    return ending(play, "agreed")


@cache
def honest() -> Play:
    return group_key_three()


@dataclass(frozen=True)
class Honest:
    agreement: KeyAgreement

    @classmethod
    def of(cls) -> Honest:
        """That of `honest`."""
        return cls(agreement_of())

    def said(self, kind: str, sender: str, receiver: str) -> Parcel:
        return honest().said(kind, sender, receiver)

    @property
    def transcript(self) -> Transcript:
        records = self.said("peer-key-commits", SERVER, CHEAT).message.commits
        return Transcript(self.agreement, split_records(records, COMMIT_BYTES, [0, 1, 2]))


@dataclass(frozen=True)
class KeyFault:
    """One broken rule: what is told to whom instead of the honest message of this kind, and the code for it."""

    about: str
    code: str
    kind: str
    frames: Reframe
    to: str = SERVER
    complains: bool = False
    """Whether a member thinks that it was not the server."""

    def part(self) -> Play:
        """The part of the receiver; ValueError where it does not say what it should."""
        spoilt = Honest.of()
        parcel = spoilt.said(self.kind, SERVER if self.to == CHEAT else CHEAT, self.to)
        part = faulty_part(honest(), parcel, self.frames(spoilt, parcel), self.about)
        named: dict[str, Any] = {"event": "aborted", "culprit": "client-2" if self.complains else SERVER}
        if self.to == SERVER:
            named = {"event": "failed", "culprits": [CHEAT]}
        return having(part, named | {"code": self.code})


def signing(name: str) -> SigningKey:
    return SigningKey(drawn(f"{name} signing"))


def _committing(channel_key: Callable[[Honest], bytes]) -> Reframe:
    def alter(spoilt: Honest, message: KeyCommit) -> KeyCommit:
        chosen = channel_key(spoilt)
        record = commit_record(
            spoilt.agreement, PLACE, signing(CHEAT), channel_key=chosen, contribution=drawn(f"{CHEAT} entropy", 64)[32:]
        )
        return replace(message, channel_key=chosen, signature=record[2 * KEY_BYTES :])

    return body(alter)


def _other_channel(spoilt: Honest) -> bytes:
    key: bytes = spoilt.said("key-commit", "client-0", SERVER).message.channel_key
    return key


def wrong_packets(owner: int, holders: Sequence[int]) -> bytes:
    """Contributions of another value than committed to, rightly sealed and signed."""
    name = f"client-{owner}"
    channel = AgreementKey(drawn(f"{name} entropy", 64)[:32])
    transcript = Honest.of().transcript
    return b"".join(
        transcript.packet(channel, signing(name), drawn("other contribution"), owner=owner, holder=holder)
        for holder in holders
    )


def _unsealed(owner: int, holder: int) -> bytes:
    transcript = Honest.of().transcript
    sealed = drawn("no seal", 48)
    parts = transcript.digest, owner.to_bytes(2, "little"), holder.to_bytes(2, "little"), sealed
    return sealed + signing(f"client-{owner}").sign(KeyLabel.SIGN_CONTRIBUTION, *parts)


def _wrong_confirmation(member: int) -> bytes:
    return Honest.of().transcript.confirmation(drawn("other key"), signing(f"client-{member}"), member)


def _record_instead(field: str, size: int, place: int, record: Callable[[], bytes]) -> Reframe:
    return fields(**{field: lambda old: old[: size * place] + record() + old[size * (place + 1) :]})


def _bent(field: str, size: int, place: int) -> Reframe:
    """One bit of the record at this place is another; its signature does not fit any more."""
    return fields(**{field: lambda old: flipped(old, size * place)})


def _cut(field: str) -> Reframe:
    return fields(**{field: lambda old: old[:-1]})


def _complaint(accused: int, private: bytes) -> Reframe:
    return instead(KeyComplaint(epoch=EPOCH, accused=accused, channel_private=private))


OWN_CHANNEL: Final = drawn(f"{CHEAT} entropy", 64)[:32]
FAULTS: Final[dict[str, KeyFault]] = {
    # What a member may do to the relay.
    "key_commit_bad_signature": KeyFault(
        "A signature over something else.", "SIGNATURE", "key-commit", fields(commitment=first_bit)
    ),
    "key_commit_bad_point": KeyFault(
        "A channel key that is no public key.", "KEYS", "key-commit",
        _committing(lambda _: (PRIME_25519 - 1).to_bytes(32, "little")),
    ),
    "key_commit_bad_equal": KeyFault(
        "The channel key of another member.", "KEYS", "key-commit", _committing(_other_channel)
    ),
    "key_contribution_bad_signature": KeyFault(
        "A packet that it did not sign.", "SIGNATURE", "key-contribution", _bent("packets", PACKET_BYTES, 1)
    ),
    "confirm_key_bad_signature": KeyFault(
        "A tag that it did not sign.", "SIGNATURE", "confirm-key", fields(tag=first_bit)
    ),
    "confirm_key_bad_phase": KeyFault(
        "A confirmation before the contributions are known.", "UNEXPECTED", "key-contribution",
        instead(ConfirmKey(epoch=EPOCH, tag=bytes(32), signature=bytes(64))),
    ),
    "key_contribution_bad_phase": KeyFault(
        "A contribution instead of a commitment.", "UNEXPECTED", "key-commit",
        instead(KeyContribution(epoch=EPOCH, packets=b"")),
    ),
    "key_complaint_bad_accused": KeyFault(
        "It complains of itself.", "MEMBERS", "confirm-key", _complaint(PLACE, OWN_CHANNEL)
    ),
    "key_complaint_bad_key": KeyFault(
        "It complains with a channel key that it did not commit to.", "KEYS", "confirm-key", _complaint(2, bytes(32))
    ),
    "key_complaint_bad_contribution": KeyFault(
        "It complains of a contribution that is right.", "SHARES", "confirm-key", _complaint(2, OWN_CHANNEL)
    ),
    "key_complaint_bad_confirmation": KeyFault(
        "It complains of a confirmation that is right.", "SHARES", "key-accepted", _complaint(2, OWN_CHANNEL)
    ),
    # What the server may do to a member, and what it passes on of another.
    "peer_key_commits_bad_length": KeyFault(
        "A byte less than the list has.", "SHARES", "peer-key-commits", _cut("commits"), to=CHEAT
    ),
    "peer_key_commits_bad_own": KeyFault(
        "Another commitment for the member than it sent.", "KEYS", "peer-key-commits",
        _bent("commits", COMMIT_BYTES, PLACE), to=CHEAT,
    ),
    "peer_key_commits_bad_signature": KeyFault(
        "A commitment that its member did not sign.", "SIGNATURE", "peer-key-commits",
        _bent("commits", COMMIT_BYTES, 2), to=CHEAT,
    ),
    "peer_key_commits_bad_equal": KeyFault(
        "Two members with one channel key.", "KEYS", "peer-key-commits",
        _record_instead("commits", COMMIT_BYTES, 2, lambda: commit_record(
            Honest.of().agreement, 2, signing("client-2"), channel_key=_other_channel(Honest.of()),
            contribution=drawn("client-2 entropy", 64)[32:],
        )), to=CHEAT,
    ),
    "peer_key_contributions_bad_signature": KeyFault(
        "A packet that its owner did not sign.", "SIGNATURE", "peer-key-contributions",
        _bent("packets", PACKET_BYTES, 1), to=CHEAT,
    ),
    "peer_key_contributions_bad_value": KeyFault(
        "Another contribution than committed to: the member complains of its owner.", "SECRET",
        "peer-key-contributions",
        _record_instead("packets", PACKET_BYTES, 1, lambda: wrong_packets(2, [PLACE])), to=CHEAT, complains=True,
    ),
    "peer_key_contributions_bad_sealing": KeyFault(
        "A signed packet that does not open: the member complains of its owner.", "SHARES", "peer-key-contributions",
        _record_instead("packets", PACKET_BYTES, 1, lambda: _unsealed(2, PLACE)), to=CHEAT, complains=True,
    ),
    "peer_key_confirmations_bad_own": KeyFault(
        "Another confirmation for the member than it sent.", "SECRET", "peer-key-confirmations",
        _bent("confirmations", CONFIRMATION_BYTES, PLACE), to=CHEAT,
    ),
    "peer_key_confirmations_bad_signature": KeyFault(
        "A confirmation that its member did not sign.", "SIGNATURE", "peer-key-confirmations",
        _bent("confirmations", CONFIRMATION_BYTES, 2), to=CHEAT,
    ),
    "peer_key_confirmations_bad_tag": KeyFault(
        "The confirmation of another key: the member complains of its owner.", "SECRET", "peer-key-confirmations",
        _record_instead("confirmations", CONFIRMATION_BYTES, 2, lambda: _wrong_confirmation(2)), to=CHEAT,
        complains=True,
    ),
    "peer_key_confirmations_bad_phase": KeyFault(
        "Contributions before the commitments are known.", "UNEXPECTED", "peer-key-commits",
        lambda spoilt, parcel: instead(spoilt.said("peer-key-contributions", SERVER, CHEAT).message)(spoilt, parcel),
        to=CHEAT,
    ),
}  # fmt: skip


def _spoilt(about: str, kind: str, reframe: Reframe) -> Play:
    """A whole attempt in which the cheat says something else at one place."""
    play = begun(about)

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if (parcel.sender, parcel.kind) == (CHEAT, kind):
            return reframe(Honest.of(), parcel)
        return parcel.frames

    play.deliver(change)
    return play


def key_contribution_bad_value() -> Play:
    about = "Another contribution than committed to: the others complain, and the server names who is at fault."
    spoilt = _spoilt(about, "key-contribution", fields(packets=lambda _: wrong_packets(PLACE, [0, 2])))
    return ending(spoilt, "failed", "SECRET")


def confirm_key_bad_tag() -> Play:
    wrong = _wrong_confirmation(PLACE)
    about = "The confirmation of another key: everybody complains, also its owner could, and the server names it."
    reframe = fields(tag=lambda _: wrong[:KEY_BYTES], signature=lambda _: wrong[KEY_BYTES:])
    return ending(_spoilt(about, "confirm-key", reframe), "failed", "SECRET")


def group_key_bad_silence() -> Play:
    play = begun("One member never confirms: it is named when the phase is over, and nobody has a key.")
    play.deliver(lambda parcel: None if (parcel.sender, parcel.kind) == (CHEAT, "confirm-key") else parcel.frames)
    play.expire(SERVER, PHASE_SECONDS)
    play.deliver()
    return ending(play, "failed", "TIMEOUT")


def server_key_bad_silence() -> Play:
    play = begun("The server falls silent; a member waits twice the phase, and gives up.")
    play.deliver(lambda parcel: None if parcel.receiver == "client-0" else parcel.frames)
    play.expire("client-0", 2 * PHASE_SECONDS)
    return ending(play, "aborted", "TIMEOUT")


def group_key_bad_link() -> Play:
    play = begun("A member is lost in the middle: the attempt is over.")
    play.deliver(lambda parcel: None if parcel.kind == "key-contribution" else parcel.frames)
    play.act(SERVER, "drop", member=CHEAT)
    play.deliver(lambda parcel: None if parcel.receiver == CHEAT else parcel.frames)
    return ending(play, "failed", "LEFT")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    group_key_three, key_contribution_bad_value, confirm_key_bad_tag, group_key_bad_silence, server_key_bad_silence,
    group_key_bad_link,
)  # fmt: skip

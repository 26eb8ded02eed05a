"""Transcripts of sessions with a group key or no secure aggregation, and of their faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from struct import pack
from typing import Any, Final

from msgspec.structs import replace

from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Fetch, Message
from tacit.protocol.group_key.messages import EndKey, StartKey
from tacit.protocol.session.messages import StartRound
from tacit.protocol.sum.states import SumLabel
from tests.vectors_corpus.faults import Reframe, body, envelope, fields, instead, to
from tests.vectors_corpus.play import SERVER, Parcel, Play, ending, faulty_part
from tests.vectors_corpus.primitives import flipped
from tests.vectors_corpus.session_faults import TOLD, SessionFault
from tests.vectors_corpus.sessions import CHEAT, NAMES, begun, hold_round, policy_of

ENCRYPTED: Final[dict[str, Any]] = {
    "encrypted": True, "group_key": True, "rekey_every": 1, "initial_model": "clients",
}  # fmt: skip
DRAWS: Final = 64
"""Bytes of randomness that an attempt at a group key takes."""


def keyed_model(number: int) -> bytes:
    """A model as if under the key of that number; the protocol cannot tell."""
    return pack("<6f", *(number + place / 8 for place in range(6)))


def _provide(play: Play, number: int) -> None:
    """Let the first client encrypt the model, and deliver what follows."""
    play.act(NAMES[0], "provide", epoch=number - 1, model=keyed_model(number))


def session_group_key() -> Play:
    return _encrypted(
        "Three clients agree on a key and make the first model; after a round they agree on another, one of them "
        "encrypts the model anew, and at the end all fetch the last one.",
        "semi-honest",
    )


def _encrypted(about: str, mode: str, rounds: int = 2) -> Play:
    play = begun(about, draws=rounds * (DRAWS if mode == "none" else DRAWS + 128), mode=mode, **ENCRYPTED)
    for number in range(1, rounds + 1):
        play.deliver()
        _provide(play, number)
        hold_round(play, number, plain="scalar" if mode == "none" else "")
        if number < rounds:
            play.act(SERVER, "next_round", model=keyed_model(10))
    play.act(SERVER, "finish", model=keyed_model(20))
    play.deliver()
    return ending(ending(play, "last model"), "ended")


def session_remembered() -> Play:
    play = begun(
        "A session after two rounds, whose keys are gone: nobody remembers the model after the second, the first "
        "client none at all, the second that after the first. The second round is held again.",
        draws=DRAWS, completed=2, mode="none", **ENCRYPTED,
    )  # fmt: skip
    play.deliver()
    for name in (*NAMES, NAMES[0]):
        play.act(name, "provide", epoch=0, model=b"")
        play.deliver()
    play.act(NAMES[1], "provide", epoch=0, model=keyed_model(1))
    hold_round(play, 2, plain="scalar")
    play.act(SERVER, "finish", model=keyed_model(20))
    play.deliver()
    return ending(ending(play, "last model"), "ended")


def session_not_remembered() -> Play:
    play = begun(
        "A session after a round, of which nobody remembers a model.",
        draws=DRAWS,
        completed=1,
        mode="none",
        **ENCRYPTED,
    )
    play.deliver()
    for name in (*NAMES, *NAMES):
        play.act(name, "provide", epoch=0, model=b"")
        play.deliver()
    return ending(play, "ended", "KEYS")


def session_group_key_culprit() -> Play:
    about = "A client spoils the first attempt at a key: it is barred, the others agree on another and begin a round."
    play = begun(about, clients=4, draws=2 * DRAWS, group_key=True, mode="none")

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if (parcel.sender, parcel.kind) != ("client-3", "key-commit"):
            return parcel.frames
        return parcel.saying(replace(parcel.message, signature=bytes(64)))

    play.deliver(change)
    return ending(ending(play, "key-agreement-failed", "SIGNATURE"), "train")


def session_group_key_late() -> Play:
    about = "A client does not say that it has the key, which nobody uses then: the others agree on another."
    play = begun(about, clients=4, draws=2 * DRAWS, group_key=True, mode="none")
    silent = ("client-3", "key-accepted")
    play.deliver(lambda parcel: None if (parcel.sender, parcel.kind) == silent else parcel.frames)
    play.expire(SERVER, 5.0)
    play.deliver()
    return ending(ending(play, "key-agreement-failed", "TIMEOUT"), "train")


def session_plain() -> Play:
    play = begun(
        "A round without secure aggregation: the server sees the vectors.",
        mode="none", colluders=0, draws=0, form="tensor",
    )  # fmt: skip
    hold_round(play, 1, plain="tensor")
    play.act(SERVER, "finish", model=b"")
    play.deliver()
    return ending(play, "round done")


@cache
def _honest(name: str) -> Play:
    if name.startswith("encrypted"):
        # Without secure aggregation, which has no part in this and would only make the files long.
        return _encrypted("", "none", 1 if name == "encrypted once" else 2)
    return session_plain()


def _fault(session: str, about: str, code: str, kind: str, frames: Reframe, **more: Any) -> SessionFault:
    return SessionFault(about, code, kind, frames, play=lambda: _honest(session), **more)


def _instead(message: Message, **changes: Any) -> Reframe:
    def reframe(_: Any, parcel: Parcel) -> tuple[bytes, ...]:
        head, *_ = envelope(type=message.TYPE, **changes)(None, parcel)
        return (head, encode_structure(message))

    return reframe


def _key_failed(code: str, by: str = CHEAT) -> dict[str, Any]:
    return {"event": "key-agreement-failed", "code": code, "by": [by]}


FIRST: Final = NAMES[0]
"""The client that encrypts the model."""
ROUND: Final = StartRound(cohort=b"\x07", model=announce(keyed_model(1), SumLabel.MODEL))
FAULTS: Final[dict[str, SessionFault]] = {
    # What a server may do to a client, which ends the session: outside of rounds there is nothing to save.
    "start_key_bad_epoch": _fault(
        "encrypted", "An epoch that the client took part in.", "SESSION", "start-key",
        body(lambda _, message: replace(message, epoch=0)), to=CHEAT, number=1,
    ),
    "start_key_bad_members": _fault(
        "encrypted", "A group without the client.", "MEMBERS", "start-key", fields(members=to(b"\x05")), to=CHEAT
    ),
    "start_key_bad_number": _fault(
        "encrypted", "A group that is smaller than the client accepts.", "POLICY", "start-key",
        fields(members=to(b"\x03")), to=CHEAT,
    ),
    "start_key_bad_round": _fault(
        "encrypted", "A group key in a round.", "SESSION", "start-key", envelope(round=1), to=CHEAT
    ),
    "start_key_bad_configuration": _fault(
        "plain", "A group key where the configuration has none.", "UNEXPECTED", "start-round",
        _instead(StartKey(epoch=0, members=b"\x07"), round=0), to=CHEAT,
    ),
    "end_key_bad_epoch": _fault(
        "encrypted", "The end of another epoch.", "SESSION", "peer-key-commits",
        instead(EndKey(epoch=1, code=Code.TIMEOUT, detail="", culprit="")), to=CHEAT,
    ),
    "start_round_bad_key": _fault(
        "encrypted", "A round before there is a key.", "KEYS", "start-key", _instead(ROUND, round=1), to=CHEAT,
        ends="round over",
    ),
    "start_round_bad_renewal": _fault(
        "encrypted", "A second round with a key that serves for one.", "KEYS", "start-key",
        _instead(replace(ROUND, model=announce(keyed_model(10), SumLabel.MODEL)), round=2), to=CHEAT, number=1,
        ends="round over",
    ),
    "reencrypt_model_bad_source": _fault(
        "encrypted", "A model of the server where the clients are to make the first one.", "MODEL", "reencrypt-model",
        body(lambda _, message: replace(message, source="server", model=replace(message.model, size=24))), to=FIRST,
    ),
    "reencrypt_model_bad_epoch": _fault(
        "encrypted", "A model for another key than the latest.", "MODEL", "reencrypt-model",
        body(lambda _, message: replace(message, epoch=1)), to=FIRST,
    ),
    "reencrypt_model_bad_former": _fault(
        "encrypted", "A model under a key that the client does not hold.", "KEYS", "reencrypt-model",
        body(lambda _, message: replace(message, former=7)), to=FIRST, number=1,
    ),
    "keyed_model_bad_key": _fault(
        "encrypted once", "The last model under another key.", "MODEL", "keyed-model",
        body(lambda _, message: replace(message, epoch=1)), to=CHEAT,
    ),
    "chunk_bad_last_model": _fault(
        "encrypted once", "Another last model than announced.", "MODEL", "chunk",
        lambda _, parcel: (*parcel.frames[:2], flipped(parcel.frames[2], 0)), to=CHEAT, number=1,
    ),
    # What a client may do to the server.
    "key_commit_bad_epoch": _fault(
        "encrypted", "A commitment of an epoch that has not begun.", "SESSION", "key-commit",
        body(lambda _, message: replace(message, epoch=1)), says=_key_failed("SESSION"),
    ),
    "key_commit_bad_form": _fault(
        "encrypted", "A commitment with a byte behind its body.", "MALFORMED", "key-commit",
        lambda _, parcel: (parcel.frames[0], parcel.frames[1] + b"\0"), says=_key_failed("MALFORMED"),
    ),
    "fetch_bad_last_model": _fault(
        "encrypted once", "A chunk of the last model that is not due.", "UNEXPECTED", "fetch",
        body(lambda _, message: Fetch(chunk=1)), number=1,
    ),
    # Without secure aggregation.
    "masked_input_bad_complaint": _fault(
        "plain", "A complaint where nobody shares anything.", "MEMBERS", "masked-input", fields(complaints=to(b"\x01")),
        says=TOLD,
    ),
    "welcome_bad_aggregation": _fault(
        "plain", "No secure aggregation, which the client does not accept.", "POLICY", "welcome",
        lambda _, parcel: parcel.frames, to=CHEAT, client={"policy": policy_of()},
    ),
}  # fmt: skip


def key_commit_late() -> Play:
    play = session_group_key_culprit()
    parcel = play.said("key-commit", CHEAT, SERVER, 1)
    frames = parcel.saying(replace(parcel.message, epoch=0))
    part = faulty_part(play, parcel, frames, "A commitment of the epoch before is ignored; the member is waited for.")
    if part.parcels or part.outputs:
        raise ValueError(part.events())
    return part


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    session_group_key, session_remembered, session_not_remembered, session_group_key_culprit, session_group_key_late,
    session_plain, key_commit_late,
)  # fmt: skip

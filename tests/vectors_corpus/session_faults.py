"""Transcripts of sessions in which one message breaks a rule, each as the part of the party that gets the message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from struct import pack
from typing import Any, Final

from msgspec.structs import replace

from tacit.protocol.core.messages import Fetch, Resume
from tacit.protocol.session.messages import Finish
from tacit.protocol.session.rounds import JournalEntry
from tests.vectors_corpus.faults import Reframe, body, envelope, fields, first_bit, having, instead, to
from tests.vectors_corpus.messages import encoded
from tests.vectors_corpus.play import SERVER, Parcel, Play, ending, faulty_part
from tests.vectors_corpus.primitives import drawn, flipped
from tests.vectors_corpus.sessions import (
    CHEAT,
    MODEL,
    NAMES,
    begun,
    hold_round,
    policy_of,
    session_active,
    session_not_resumed,
    session_resumed,
)

BAD_MODEL: Final = pack("<6f", 0, 1, float("nan"), 3, 4, 5)


@cache
def honest() -> Play:
    return session_active()


@cache
def poisoned() -> Play:
    play = begun("", model=BAD_MODEL)
    play.deliver()
    return play


@cache
def resumed() -> Play:
    """A session in which a client's link breaks, and somebody spoils that it goes on."""
    return session_resumed((CHEAT, "chunk"))


TOLD: Final = {"event": "told"}


@dataclass(frozen=True)
class SessionFault:
    """One broken rule: what is told to whom instead of the honest message of this kind, and the code for it."""

    about: str
    code: str
    kind: str
    frames: Reframe
    to: str = SERVER
    ends: str = "ended"
    """What is over for a client."""
    play: Callable[[], Play] = honest
    client: dict[str, Any] = field(default_factory=dict)
    """What the client has other than in the session."""
    says: dict[str, Any] = field(default_factory=dict)
    """The event, where it is another; TOLD where the server sends an abort."""
    by: str = CHEAT
    """The client that breaks the rule, where a client does."""
    number: int = 0
    """Which of the messages of this kind on that link."""

    def part(self) -> Play:
        """The part of the receiver; ValueError where it does not say what it should."""
        play = self.play()
        ends = (self.by, SERVER) if self.to == SERVER else (SERVER, self.to)
        parcel = play.said(self.kind, *ends, self.number)
        part = faulty_part(play, parcel, self.frames(None, parcel), self.about, **self.client)
        named = {"event": "message-refused", "member": self.by} if self.to == SERVER else {"event": self.ends}
        if self.says == TOLD:
            told = [one for one in part.parcels if one.receiver == self.by and one.kind == "abort"]
            if [one.message.code.name for one in told] == [self.code]:
                return part
        return having(part, (self.says or named) | {"code": self.code})


def _proposing(**changes: Any) -> Reframe:
    return fields(configuration=to(encoded(**{"clients": len(NAMES)} | changes)))


def _second_welcome(_: Any, parcel: Parcel) -> tuple[bytes, ...]:
    welcome = next(one for one in honest().parcels if (one.receiver, one.kind) == (CHEAT, "welcome"))
    return envelope(sequence=1)(None, welcome)


def _first_chunk() -> Parcel:
    return next(one for one in honest().parcels if (one.receiver, one.kind) == (CHEAT, "chunk"))


def _as_sent(_: Any, parcel: Parcel) -> tuple[bytes, ...]:
    return parcel.frames


FAULTS: Final[dict[str, SessionFault]] = {
    # What a client may do to the server.
    "hello_bad_roster": SessionFault("Another roster.", "ROSTER", "hello", fields(roster=first_bit)),
    "hello_bad_version": SessionFault("Another version.", "VERSION", "hello", envelope(version=1)),
    "hello_bad_session": SessionFault("A hello in a session.", "SESSION", "hello", envelope(session=drawn("session"))),
    "hello_bad_sender": SessionFault("A hello for another client.", "SENDER", "hello", envelope(sender="client-2")),
    "hello_bad_sequence": SessionFault("A hello that comes second.", "SEQUENCE", "hello", envelope(sequence=1)),
    "hello_bad_form": SessionFault(
        "A hello with a byte behind its body.", "MALFORMED", "hello",
        lambda _, parcel: (parcel.frames[0], parcel.frames[1] + b"\0"),
    ),
    "fetch_bad_chunk": SessionFault(
        "A chunk that is not due.", "UNEXPECTED", "fetch", body(lambda _, message: Fetch(chunk=1))
    ),
    "fetch_bad_round": SessionFault(
        "A message of a round that has not begun.", "SESSION", "fetch", envelope(round=2)
    ),
    "fetch_bad_direction": SessionFault(
        "A message that only a server sends.", "UNEXPECTED", "fetch", instead(Finish())
    ),
    "fetch_bad_received": SessionFault(
        "More messages received than were said.", "SEQUENCE", "fetch", envelope(received=3)
    ),
    "resume_bad_received": SessionFault(
        "It goes on from a message that was never said.", "SEQUENCE", "resume", envelope(received=2**31), play=resumed
    ),
    "resume_bad_sequence": SessionFault(
        "It has said fewer messages than have come.", "SEQUENCE", "resume", envelope(sequence=0), play=resumed
    ),
    "resume_bad_link": SessionFault(
        "It goes on, on the link that there is.", "SEQUENCE", "resume",
        lambda spoilt, parcel: envelope(link=parcel.packet.envelope.link - 1)(spoilt, parcel), play=resumed,
    ),
    "resume_bad_sender": SessionFault(
        "It goes on for another client.", "SENDER", "resume", envelope(sender="client-2"), play=resumed
    ),
    # What a server may do to a client.
    "resume_bad_answer": SessionFault(
        "It goes on from a message that was never said.", "SEQUENCE", "resume", envelope(received=2**31), to=CHEAT,
        play=resumed,
    ),
    "resume_bad_answer_sequence": SessionFault(
        "It goes on after a message that has not come.", "SEQUENCE", "resume", envelope(sequence=3), to=CHEAT,
        play=resumed,
    ),
    "resume_bad_answer_unasked": SessionFault(
        "It goes on where nobody asked.", "SEQUENCE", "start-round", instead(Resume()), to=CHEAT
    ),
    "resume_bad_round": SessionFault(
        "It goes on as in a round.", "SESSION", "resume", envelope(round=1), to=CHEAT, play=resumed
    ),
    "resume_bad_silence": SessionFault(
        "It speaks on a link on which it has not gone on.", "SEQUENCE", "resume",
        lambda _, parcel: envelope(sequence=2, link=parcel.packet.envelope.link)(None, _first_chunk()), to=CHEAT,
        play=resumed,
    ),
    "welcome_bad_roster": SessionFault("Another roster.", "ROSTER", "welcome", fields(roster=first_bit), to=CHEAT),
    "welcome_bad_mode": SessionFault(
        "A mode that the client does not accept.", "POLICY", "welcome", _proposing(mode="semi-honest"), to=CHEAT,
        client={"policy": policy_of()},
    ),
    "welcome_bad_clip": SessionFault(
        "A clip that the client does not accept.", "POLICY", "welcome", _proposing(clip=2.0), to=CHEAT
    ),
    "welcome_bad_width": SessionFault(
        "A ring in which the sum could wrap.", "POLICY", "welcome", _proposing(ring_bits=17), to=CHEAT
    ),
    "welcome_bad_configuration": SessionFault(
        "A configuration that is not in canonical form.", "MALFORMED", "welcome",
        fields(configuration=lambda configuration: configuration + b"\0"), to=CHEAT,
    ),
    "welcome_bad_round": SessionFault("A welcome in a round.", "SESSION", "welcome", envelope(round=1), to=CHEAT),
    "welcome_bad_repetition": SessionFault(
        "A second welcome.", "UNEXPECTED", "start-round", _second_welcome, to=CHEAT
    ),
    "start_round_bad_cohort": SessionFault(
        "A cohort that lacks the client.", "MEMBERS", "start-round", fields(cohort=to(b"\x05")), to=CHEAT,
        ends="round over",
    ),
    "start_round_bad_number": SessionFault(
        "A cohort that is smaller than the client accepts.", "POLICY", "start-round", fields(cohort=to(b"\x03")),
        to=CHEAT, ends="round over",
    ),
    "start_round_bad_bitmap": SessionFault(
        "A bit that stands for nobody.", "MEMBERS", "start-round", fields(cohort=to(b"\x0f")), to=CHEAT,
        ends="round over",
    ),
    "start_round_bad_length": SessionFault(
        "A model of another length than its tensors.", "MODEL", "start-round",
        body(lambda _, message: replace(message, model=replace(message.model, size=28))), to=CHEAT, ends="round over",
    ),
    "start_round_bad_round": SessionFault(
        "A round without a number.", "SESSION", "start-round", envelope(round=0), to=CHEAT
    ),
    "start_round_bad_session": SessionFault(
        "A message of another session.", "SESSION", "start-round", envelope(session=drawn("other")), to=CHEAT
    ),
    "start_round_bad_entry": SessionFault(
        "A round that the client entered before it was started again.", "SESSION", "start-round", _as_sent, to=CHEAT,
        ends="round over", client={"journal": (JournalEntry(session=drawn("session"), round=1),)},
    ),
    "chunk_bad_hash": SessionFault(
        "Another model than announced.", "MODEL", "chunk",
        lambda _, parcel: (*parcel.frames[:2], flipped(parcel.frames[2], 0)), to=CHEAT, ends="round over",
    ),
    "chunk_bad_length": SessionFault(
        "A model that stops short.", "MODEL", "chunk",
        lambda _, parcel: (*parcel.frames[:2], parcel.frames[2][:-4]), to=CHEAT, ends="round over",
    ),
    "chunk_bad_absence": SessionFault(
        "A chunk without its raw frame.", "MODEL", "chunk", lambda _, parcel: parcel.frames[:2], to=CHEAT,
        ends="round over",
    ),
    "chunk_bad_order": SessionFault(
        "A chunk that is not due.", "UNEXPECTED", "chunk",
        body(lambda _, message: replace(message, chunk=1)), to=CHEAT, ends="round over",
    ),
    "chunk_bad_value": SessionFault(
        "A model with a number that is not finite.", "MODEL", "chunk", _as_sent, to=CHEAT, ends="round over",
        play=poisoned,
    ),
    "end_round_bad_round": SessionFault(
        "The end of a round that has not begun.", "SESSION", "end-round", envelope(round=2), to=CHEAT
    ),
    "finish_bad_round": SessionFault("A finish in a round.", "SESSION", "finish", envelope(round=1), to=CHEAT),
}  # fmt: skip


def received_bad_round() -> Play:
    """A client never says that it has received anything: in the second round it cannot have heard of that round."""
    play = begun("A client speaks in the second round, and has not received what was said in the first.")

    def silent(parcel: Parcel) -> tuple[bytes, ...]:
        said = parcel.sender == CHEAT and parcel.kind != "hello"
        return envelope(received=0)(None, parcel) if said else parcel.frames

    hold_round(play, 1, silent)
    play.act(SERVER, "next_round", model=MODEL)
    play.deliver(silent)
    return ending(play, "message-refused", "SEQUENCE")


def start_round_bad_repetition() -> Play:
    play = session_not_resumed()
    play.about = (
        "A client was in the first round, and is greeted anew: the server starts that round again, not the next."
    )

    def again(parcel: Parcel) -> tuple[bytes, ...]:
        said = (parcel.receiver, parcel.kind) == (CHEAT, "start-round")
        return envelope(round=1)(None, parcel) if said else parcel.frames

    play.act(SERVER, "next_round", model=MODEL)
    play.deliver(again)
    return ending(ending(play, "ended", "SESSION"), "client-left")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (received_bad_round, start_round_bad_repetition)

"""What the scripts of private inference share: cases, what a lie may know, faults of the wire, and verdicts in words.

Two of the three parties are ours, and each has a link to the third, which is under test. A lie is told once; after it
our machines go on as if the truth had been told, until the live party ends the session or completes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.inference.arrivals import chunks
from tacit.protocol.inference.messages import Opening
from tacit.simulate.conformance.peer.client_cases import PICKLE
from tacit.simulate.conformance.peer.script import Case, Lie, Saying, altered, enveloped, honest, instead

COMPLETES: Final = "completes the session"
MODEL_OWNER, DATA_OWNER, DEALER, BOTH = "the model owner", "the data owner", "the dealer", "both"
OTHER_SESSION: Final = b"\x07" * 32
OTHER_HASH: Final = bytes(32)

Act = Literal["", "stops", "hangs up", "begins again"]


@dataclass(frozen=True)
class Scene:
    """What a lie may know."""

    own: str
    """Who tells it."""
    former: Mapping[type[Message], Saying]
    """What it has said before, last of every kind."""
    openings: tuple[tuple[int, int], ...]
    """Rounds of the pass that is going on in which it opens something, and how many bytes."""


@dataclass(frozen=True)
class InferenceCase(Case):
    """One script."""

    at: type[Message] | None = None
    """Where the liar acts: where a message of this kind is due; None: after its lie."""
    act: Act = ""
    """What the liar then does: says nothing more, closes its link, or begins a new session."""
    witness: str = ""
    """Only what this one of ours is told counts; what the other is told depends on which of two links was faster."""
    anyone: bool = False
    """Whether the specification leaves open who is blamed."""
    together: bool = False
    """Whether both of ours tell the lie."""

    @property
    def lies(self) -> bool:
        """Whether it is not the honest one."""
        return self.lie is not honest or self.at is not None


def ends(code: Code, told: str) -> str:
    """The verdict on a live party that ends the session, and says so to one of ours or to both."""
    return f"ends with {code.name}, tells {told}"


@dataclass
class Observed:
    """One case. roles: what our two parties are called in verdicts, by name."""

    roles: Mapping[str, str]
    case: InferenceCase
    liar: str = ""
    """Who has told the lie, once it is told."""
    aborts: dict[str, Abort] = field(default_factory=dict)
    """By whom of ours the live party has told."""
    reproach: str = ""
    """What is wrong, in other words."""
    held: bool = False
    """Whether a session came to its regular end."""

    def words(self) -> str:
        """The verdict."""
        told: dict[tuple[Code, str], list[str]] = {}
        for name, abort in self.aborts.items():
            if self.case.witness in ("", self.roles[name]):
                told.setdefault((abort.code, abort.culprit), []).append(self.roles[name])
        words = []
        for (code, culprit), roles in told.items():
            blames = "" if self.case.anyone or culprit == self.liar else f", blames {culprit or 'nobody'}"
            words.append(ends(code, BOTH if len(roles) == len(self.roles) else roles[0]) + blames)
        words += [self.reproach] if self.reproach else []
        words += [COMPLETES] if self.held else []
        if not self.liar and self.case.lies and self.held:
            words.append("it is over before the lie")
        return ", ".join(words)


def wire_faults(kind: type[Message], *, prefix: str = "", who: str = "") -> tuple[InferenceCase, ...]:
    """What everybody refuses, in the place of a message of this kind. who: subject of what is done, if not obvious."""
    type_ = kind.TYPE
    faults: tuple[tuple[str, str, Code, Lie], ...] = (
        ("old-version", f"writes version 0 into {type_}", Code.VERSION, enveloped(kind, version=0)),
        ("sequence", f"leaves out a number before {type_}", Code.SEQUENCE, enveloped(kind, sequence=2**20)),
        ("replay", f"sends the very same {type_} twice", Code.SEQUENCE,
         instead(kind, lambda scene, said: [replace(said, times=2)])),
        ("other-sender", f"writes another name into {type_}", Code.SENDER, enveloped(kind, sender="somebody-else")),
        ("other-pass", f"writes the number of another pass into {type_}", Code.SESSION,
         instead(kind, lambda scene, said: [replace(said, round=said.round + 7)])),
        ("unknown-type", f"writes a type that does not exist in the place of {type_}", Code.MALFORMED,
         enveloped(kind, type="open-nothing")),
        ("pickled", f"sends a pickle for the body of {type_}", Code.MALFORMED,
         instead(kind, lambda scene, said: [replace(said, body=PICKLE)])),
    )  # fmt: skip
    return _refused(faults, prefix, who)


def chunk_faults(kind: type[Message], index: str, *, prefix: str, who: str = "") -> tuple[InferenceCase, ...]:
    """What can be wrong with a chunk of something whose length is known; index: the field that numbers the whole."""
    type_ = kind.TYPE

    def resized(change: int) -> Lie:
        def lie(scene: Scene, said: Saying) -> Sequence[Saying]:
            data = bytes(said.payload or b"")
            return [replace(said, payload=data[:change] if change < 0 else data + bytes(change))]

        return instead(kind, lie)

    faults: tuple[tuple[str, str, Code, Lie], ...] = (
        ("short", f"sends a byte too little in {type_}", Code.VECTOR, resized(-1)),
        ("long", f"sends a byte too much in {type_}", Code.VECTOR, resized(1)),
        ("empty", f"sends {type_} without a raw frame", Code.VECTOR,
         instead(kind, lambda scene, said: [replace(said, payload=None)])),
        ("misplaced", f"numbers the {index} of {type_} one too high", Code.UNEXPECTED,
         altered(kind, lambda scene, message: {index: getattr(message, index) + 1})),
        ("other-chunk", f"numbers the chunk of {type_} one too high", Code.UNEXPECTED,
         altered(kind, lambda scene, message: {"chunk": message.chunk + 1})),
        ("again", f"sends {type_} twice, correctly numbered", Code.UNEXPECTED,
         instead(kind, lambda scene, said: [said, said])),
    )  # fmt: skip
    return _refused(faults, prefix, who)


def _refused(faults: Sequence[tuple[str, str, Code, Lie]], prefix: str, who: str) -> tuple[InferenceCase, ...]:
    """Cases that end the session for everybody in it."""
    return tuple(
        InferenceCase(prefix + name, f"{who} {does}".lstrip(), ends(code, BOTH), lie)
        for name, does, code, lie in faults
    )


def all_openings(scene: Scene, said: Saying) -> list[Saying]:
    """Everything that is to be opened in the pass from here on, without waiting for what it depends on."""
    message: Any = said.message
    return [
        replace(said, message=Opening(step=step, chunk=chunk), payload=piece)
        for step, size in scene.openings
        if step >= message.step
        for chunk, piece in chunks(bytes(size))
    ]


def leaving(kind: type[Message]) -> Lie:
    """Gives up where this is due."""
    return instead(
        kind, lambda scene, said: [Saying(Abort(code=Code.LOCAL, detail="it leaves", culprit=scene.own), round=0)]
    )


def stray(said: Saying, **envelope: Any) -> Saying:
    """The same under way in another session, whose messages are numbered for themselves."""
    return replace(said, envelope={"session": OTHER_SESSION, **envelope})

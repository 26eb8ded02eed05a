"""Transcripts: the inputs and outputs of all machines in one run, for replay in any implementation.

Machines are replayed independently: the file has every message, so that an implementation of one role needs only the
steps of its machine (docs/spec/vectors.md). A message that no step sends was forged, or changed in transit.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from tacit.protocol.adaptation.data_owner import LearningDataOwner
from tacit.protocol.adaptation.kept import NOTHING, KeptRecord, Prefix
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.states import LearningAgreed, RoundAnswered, RoundAsked, RoundKept, SumAsked, SumTold
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums
from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.machine import Ended, Entropy, Output, Transmit
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreed, KeyFailed
from tacit.protocol.group_key.events import KeyAgreementFailed
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.inference.audit import AuditAsked, AuditPicked, KeysRevealed
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.results import (
    Agreed,
    Charged,
    Deal,
    InferenceEnded,
    KeysDealt,
    MaskedLayer,
    MaterialArrived,
    MaterialKey,
    Opened,
    PassAsked,
    PassBegun,
    PassRefused,
)
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.events import ClientJoined, ClientLeft
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import (
    Accepted,
    FixedPart,
    GroupEntry,
    Journal,
    JournalEntry,
    NewModel,
    RosterChanged,
    RoundDone,
    RoundOver,
    SpendingEntry,
    Train,
)
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.events import ClientDropped, ComplaintReceived, ComplaintSent
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.simulate.conformance.exchange import (
    linked_key_member,
    linked_key_relay,
    linked_sum_client,
    linked_sum_server,
)
from tacit.simulate.conformance.notation import LONGEST, VectorError, from_hex, octets, to_hex, written

Place = Annotated[int, Meta(ge=0)]
"""Index of a message of the run."""


class TranscriptMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of the run."""

    sender: str
    receiver: str
    frames: tuple[str, ...]
    """Each in hexadecimal, or as `00*N` a long one of zeros."""


class TranscriptStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Input of one machine, and the expected outcome."""

    about: str = ""
    """Purpose of the run that begins with this step, if the file has several."""
    machine: str
    """Name of the party, followed by a slash and the peer where the party has a machine for each peer. A new machine
    replaces an earlier one of the same name."""
    do: str
    """`create`, `receive`, or a call of the role."""
    role: str = ""
    """Role of the machine that is created."""
    given: dict[str, Any] = {}
    """Settings of the created machine, beside the common ones; or arguments of the call."""
    message: Place | None = None
    """The received message."""
    now: float = 0.0
    """Seconds since the start."""
    entropy: str = ""
    """The random bytes that the machine draws in this step, in hexadecimal."""
    sends: tuple[Place, ...] = ()
    """The messages that the machine sends, in order."""
    events: tuple[dict[str, Any], ...] = ()
    """Reports to the party's shell, in order; a refusal has a `code`."""
    state: str = ""
    deadline: float | None = None
    """When `expire` must be called."""


class TranscriptFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Record of one run."""

    protocol: str
    version: int
    """Version of the wire."""
    about: str
    """Purpose of the file, in a sentence."""
    common: dict[str, Any]
    """Settings shared by all machines that have a setting of that name."""
    messages: tuple[TranscriptMessage, ...]
    steps: tuple[TranscriptStep, ...]


@dataclass(frozen=True)
class PlayedRole:
    """A kind of machine. make: its parameters are the settings; calls: methods that the party's shell calls."""

    make: Callable[..., Any]
    calls: tuple[str, ...]

    @property
    def made(self) -> Any:
        return self.make if inspect.isclass(self.make) else get_type_hints(self.make)["return"]


@dataclass(frozen=True)
class PlayedProtocol:
    kinds: Kinds
    roles: Mapping[str, PlayedRole]


def _sums(policy: OpeningPolicy, opened: int = 0, current: int = 0, survivors: tuple[str, ...] = ()) -> RoundSums:
    """Make the state shared by all sessions of a model owner: it decides which sums of its shares are disclosed."""
    return RoundSums(policy, opened, current, survivors)


def _kept(
    terms_digest: bytes = b"", last: Prefix = (0, NOTHING), before: Prefix = (0, NOTHING), uses: int = 0
) -> KeptRecord:
    """Make an owner's record of a data owner's kept images, which outlives its sessions."""
    return KeptRecord(terms_digest, last, before, uses)


_ENDS: Final = ("give_up", "drop", "expire")
_AT_DEALER: Final = {
    "owner at the dealer": PlayedRole(MaterialOwner, ("start", "order", "finish", *_ENDS)),
    "dealer": PlayedRole(InferenceDealer, ("deliver", *_ENDS)),
}
PLAYED: Final[Mapping[str, PlayedProtocol]] = {
    "secure sum": PlayedProtocol(
        MESSAGES,
        {
            "client": PlayedRole(linked_sum_client, ("start", "contribute", "expire")),
            "server": PlayedRole(linked_sum_server, ("start", "drop", "expire")),
        },
    ),
    "group key": PlayedProtocol(
        MESSAGES,
        {
            "member": PlayedRole(linked_key_member, ("start", "expire")),
            "server": PlayedRole(linked_key_relay, ("drop", "expire")),
        },
    ),
    "federation": PlayedProtocol(
        MESSAGES,
        {
            "client": PlayedRole(
                TrainingClient, ("start", "contribute", "provide", "server_lost", "server_back", "expire")
            ),
            "server": PlayedRole(
                TrainingServer, ("next_round", "finish", "change_roster", "link_lost", "link_back", "expire")
            ),
        },
    ),
    "private inference": PlayedProtocol(
        INFERENCE_MESSAGES,
        {
            "data owner": PlayedRole(InferenceDataOwner, ("start", "ask", "audit", "reveal", "give", "finish", *_ENDS)),
            "model owner": PlayedRole(InferenceModelOwner, ("mask", "audit", "reveal", "begin", "give", *_ENDS)),
            **_AT_DEALER,
        },
    ),
    "double-blind adaptation": PlayedProtocol(
        ADAPTATION_MESSAGES,
        {
            "data owner": PlayedRole(
                LearningDataOwner,
                (
                    "start",
                    "ask",
                    "audit",
                    "reveal",
                    "give",
                    "choose",
                    "begin_round",
                    "keep_round",
                    "ask_sum",
                    "finish",
                    *_ENDS,
                ),
            ),
            "model owner": PlayedRole(
                LearningModelOwner, ("mask", "audit", "reveal", "begin", "give", "begin_round", "provide", *_ENDS)
            ),
            "sums": PlayedRole(_sums, ("give_up",)),
            "kept": PlayedRole(_kept, ("add", "use")),
            **_AT_DEALER,
        },
    ),
}

EVENTS: Final[Mapping[type, tuple[str, ...]]] = {
    Summed: ("sum", "total", "survivors"),
    ClientAborted: ("aborted", "code", "culprit"),
    ServerAborted: ("aborted", "code", "culprit"),
    GroupKey: ("group key", "key", "transcript"),
    KeyAgreed: ("agreed", "transcript"),
    KeyFailed: ("failed", "code", "culprits", "remaining"),
    Accepted: ("accepted",),
    JournalEntry: ("journal", "round"),
    GroupEntry: ("journal group", "group"),
    SpendingEntry: ("journal spending", "spent"),
    FixedPart: ("fixed part",),
    Train: ("train", "round", "key.transcript"),
    Reencrypt: ("encrypt", "source", "round", "key.key", "former.key"),
    LastModel: ("last model", "model"),
    NewModel: ("new model", "model", "round"),
    RosterChanged: ("roster changed", "roster.hash"),
    RoundOver: ("round over", "round", "code"),
    RoundDone: ("round done", "round", "code", "culprit", "survivors", "total"),
    Ended: ("ended", "code"),
    Agreed: ("agreed", "digest", "images", "batch"),
    LearningAgreed: ("agreed", "digest", "images", "batch", "kept", "steps"),
    MaskedLayer: ("layer", "layer", "data"),
    PassAsked: ("pass asked", "number"),
    AuditAsked: ("audit asked",),
    AuditPicked: ("audit picked", "numbers"),
    KeysRevealed: ("keys revealed", "keys"),
    Spent: ("charged", "day", "used", "refused"),
    PassBegun: ("pass begun", "number"),
    Opened: ("opened", "step", "data"),
    PassRefused: ("pass refused", "number"),
    MaterialKey: ("material key", "key"),
    MaterialArrived: ("randomness", "number", "data"),
    KeysDealt: ("keys", "owners", "keys"),
    Deal: ("deal", "first", "count"),
    InferenceEnded: ("ended", "code", "culprit"),
    RoundAsked: ("round asked", "number", "done"),
    RoundAnswered: ("round answered", "done"),
    RoundKept: ("round kept", "number", "secret"),
    SumAsked: ("sum asked", "number"),
    SumTold: ("sum told", "number", "data"),
}
"""Event of each output, and its fields; a dotted field is named by its first part."""
REPORTS: Final[tuple[type[Event], ...]] = (
    ClientDropped,
    ComplaintReceived,
    ComplaintSent,
    MessageRefused,
    ClientJoined,
    ClientLeft,
    KeyAgreementFailed,
)
"""Events of logs that transcripts record under the same names."""


def event_of(output: Any) -> dict[str, Any] | None:
    """Return the event of an output that is no message; None for outputs outside of transcripts."""
    if isinstance(output, REPORTS):
        return {"event": output.tag, **{name: plain(getattr(output, name)) for name in reported(type(output))}}
    inner = output.entry if isinstance(output, Journal) else output.spent if isinstance(output, Charged) else output
    name, *paths = EVENTS.get(type(inner), ("",))
    return {"event": name, **{path.split(".")[0]: plain(_field(inner, path)) for path in paths}} if name else None


def reported(kind: type[Event]) -> list[str]:
    """Return the recorded fields of an event: neither those that its log adds, nor text for people."""
    return [name for name in kind.__struct_fields__ if name not in (*Event.__struct_fields__, "detail")]


def _field(output: Any, path: str) -> Any:
    return reduce(lambda value, name: None if value is None else getattr(value, name), path.split("."), output)


def plain(value: Any) -> Any:
    """Return a setting, an argument or a field of an event in the notation of transcripts."""
    if isinstance(value, Code):
        return value.name
    if isinstance(value, RemoteProtocolError):
        return {"code": value.code.name, "culprit": value.culprit}
    if isinstance(value, Agreed):
        return {"peer": value.peer, "session": to_hex(value.session), "terms": to_hex(value.digest)}
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return to_hex(msgspec.to_builtins(value, builtin_types=(bytes, bytearray, memoryview), enc_hook=_numbers))


def _numbers(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"zeros": value.size} if value.size > LONGEST and not value.any() else value.tolist()
    raise NotImplementedError(type(value).__name__)


def _agreed(value: Mapping[str, Any]) -> Agreed:
    nothing: Any = None
    return Agreed(value["peer"], value["session"], nothing, value["terms"], images=1, batch=1)


_READ: Final[Mapping[Any, Callable[[Any], Any]]] = {
    SigningKey: SigningKey,
    Agreed: _agreed,
    Frame: bytes,
    Frame | None: lambda value: value,
    RemoteProtocolError: lambda value: RemoteProtocolError(
        Code[value["code"]], "it cannot go on", culprit=value["culprit"]
    ),
}
"""Readers of types that msgspec does not support."""


class Replay:
    def __init__(self, transcript: TranscriptFile) -> None:
        protocol = PLAYED.get(transcript.protocol)
        if protocol is None:
            raise VectorError(f"no protocol {transcript.protocol!r}; known are {', '.join(PLAYED)}")
        if transcript.version != protocol.kinds.version:
            raise VectorError(
                f"version {transcript.version} of the wire; this installation has {protocol.kinds.version}"
            )
        self._transcript, self._roles = transcript, protocol.roles
        self._messages = [(message.sender, message.receiver, message.frames) for message in transcript.messages]
        self._machines: dict[str, Any] = {}
        self._role_of: dict[str, PlayedRole] = {}
        self._entropy = b""
        """Random bytes of this step that are not drawn yet."""

    def take(self, step: TranscriptStep) -> None:
        """Carry out a step. VectorError if its outcome differs, or it cannot be carried out."""
        party = step.machine.split("/")[0]
        self._entropy = bytes.fromhex(step.entropy)
        outputs = self._outputs(step)
        machine = self._machines[step.machine]
        if self._entropy:
            raise VectorError(f"{len(self._entropy)} random bytes of {len(step.entropy) // 2} were not drawn")
        sent = [(party, output.to, output.frames) for output in outputs if isinstance(output, Transmit)]
        if len(sent) != len(step.sends):
            raise VectorError(f"expected {len(step.sends)} messages, got {len(sent)}")
        for number, (sender, receiver, frames) in zip(step.sends, sent, strict=True):
            *names, due = self._messages[number]
            if names != [sender, receiver] or not same_message(frames, due):
                raise VectorError(f"it sent {receiver} another message than message {number}")
        events = [event for output in outputs if (event := event_of(output)) is not None]
        for name, expected, found in (
            ("events", list(step.events), events),
            ("state", step.state, state_of(machine)),
            ("deadline", step.deadline, deadline_of(machine)),
        ):
            if expected != found:
                raise VectorError(f"{name}: expected {expected}, got {found}")

    def _outputs(self, step: TranscriptStep) -> list[Output]:
        known: dict[str, Any] = {"now": step.now}
        if step.do == "create":
            role = self._roles.get(step.role)
            if role is None:
                raise VectorError(f"no role {step.role!r}; known are {', '.join(self._roles)}")
            self._role_of[step.machine] = role
            parameters = inspect.signature(role.make).parameters
            common = {name: value for name, value in self._transcript.common.items() if name in parameters}
            self._machines[step.machine] = self._call(role.make, common | step.given, known)
            return []
        if step.machine not in self._machines:
            raise VectorError("it is used before it is created")
        machine = self._machines[step.machine]
        if step.do == "receive":
            if step.message is None or step.message >= len(self._messages):
                raise VectorError(f"there is no message {step.message}")
            sender, _, frames = self._messages[step.message]
            return list(self._call(machine.feed, {}, known | {"sender": sender, "frames": list(map(octets, frames))}))
        if step.do not in self._role_of[step.machine].calls:
            raise VectorError(f"its role has no call {step.do!r}")
        return outputs_of(self._call(getattr(machine, step.do), step.given, known, machine))

    def _call(
        self, act: Callable[..., Any], given: Mapping[str, Any], known: Mapping[str, Any], machine: Any = None
    ) -> Any:
        hints = get_type_hints(act.__init__ if inspect.isclass(act) else act)
        if unknown := given.keys() - hints.keys():
            raise VectorError(f"it takes no {', '.join(sorted(unknown))}")
        arguments = {name: value for name, value in known.items() if name in hints}
        arguments |= {name: self._read(hints[name], value, machine) for name, value in given.items()}
        if hints.get("entropy") == Entropy:
            arguments["entropy"] = self._draw
        return act(**arguments)

    def _read(self, kind: Any, value: Any, machine: Any) -> Any:
        if kind in (RoundSums, KeptRecord | None):
            return self._machines[value]
        if kind == npt.NDArray[Any]:
            inner = getattr(machine, "machine", None)
            ring = machine.configuration.packing().ring if inner is None else inner.agreement.ring
            return np.zeros(value["zeros"], ring.word) if isinstance(value, dict) else np.array(value, ring.word)
        if kind in _READ:
            return _READ[kind](from_hex(value))
        if get_origin(kind) is Iterable:
            kind = list[get_args(kind)[0]]  # type: ignore[misc]
        return msgspec.convert(from_hex(value), kind, builtin_types=(bytes,))

    def _draw(self, length: int) -> bytes:
        drawn, self._entropy = self._entropy[:length], self._entropy[length:]
        if len(drawn) < length:
            raise VectorError(f"{length} random bytes are drawn, and {len(drawn)} are left in this step")
        return drawn


def outputs_of(result: Any) -> list[Output]:
    """Return the outputs in the result of a call: alone, last in a tuple, or none."""
    last = result[-1] if isinstance(result, tuple) else result
    return last if isinstance(last, list) else []


def state_of(machine: Any) -> str:
    return machine.state.name if hasattr(machine, "state") else ""


def deadline_of(machine: Any) -> float | None:
    """Return when `expire` must be called; None also for a machine without deadlines."""
    deadline: float | None = getattr(machine, "next_deadline", None)
    return deadline


def same_message(frames: Sequence[Frame], due: Sequence[str]) -> bool:
    """Return whether frames equal those of a transcript, except for an explanation, whose text is free."""
    found = [written(frame) for frame in frames]
    if found == list(due) or len(due) < 2:
        return found == list(due)
    bodies = [msgspec.msgpack.decode(each) for each in (frames[1], octets(due[1]))]
    both = all(isinstance(body, dict) and "detail" in body for body in bodies)
    return both and found[0] == due[0] and bodies[0] | {"detail": ""} == bodies[1] | {"detail": ""}


def replay(transcript: TranscriptFile) -> str:
    """Replay every step. Return the first one that fails, and the reason; empty if all succeed."""
    try:
        machines = Replay(transcript)
    except VectorError as error:
        return str(error)
    for number, step in enumerate(transcript.steps):
        try:
            machines.take(step)
        except Exception as error:  # A wrong transcript may break anything: it is reported, and the file fails.
            reason = str(error) if isinstance(error, VectorError) else f"{type(error).__name__}: {error}"
            return f"step {number}, {step.machine}, {step.do}: {reason}"
    return ""

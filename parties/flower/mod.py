"""The client's side in Flower: a mod between Flower's messages and the training function of an app (docs/flower.md).

    app = ClientApp(mods=[secure_sum_mod("/var/lib/tacit")])

A SuperNode starts a process for every message, so no machine survives from one message to the next. The machine's
inputs are kept in a file of its owner, and every message rebuilds the machine: it draws the same random bytes, and
receives the same inputs in the same order. Machines have no other randomness and read no clock, so the state is the
same; a hash of all outputs verifies it. The file is locked during a message, and written before an answer leaves: a
machine never answers in two ways. Its key is in Flower's Context, so that the disk never has an update in the clear.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from tacit.models.file_system import replace_file
from tacit.parties.flower.records import (
    BEGIN,
    EXAMPLES,
    FRAMES,
    GO_ON,
    MOD_FAILED,
    RECORD,
    STEP,
    WHO,
    RefusedError,
    announced,
    arrays_of,
    content_digest,
    frames_of,
    is_training,
    ours,
    taken,
    update,
)
from tacit.parties.links.keys import KeyFileError, load, sign_node
from tacit.parties.links.roster import ROSTER_FILE, RosterFileError, check_own, read_roster
from tacit.parties.session.journal import JournalEntry, JournalError, JournalFile
from tacit.protocol import ClientAborted, Contributed, PartyKeys, Policy, Roster, SumClient, SumSettings

_NOW = 0.0
_LOG: Final = getLogger("flwr")
_LOGGED: Final[set[str]] = set()
"""Folders of mods for which this process has logged a refusal. A SuperNode has a process for every message; one of a
simulation works for many nodes, and the server receives all refusals."""


@contextmanager
def _refusing(what: str = "") -> Iterator[None]:
    """Refuse with the text of a ValueError of our functions."""
    try:
        yield
    except (ValueError, msgspec.MsgspecError) as error:
        raise RefusedError(f"{what}{error}") from None


class _MachineInput(msgspec.Struct, frozen=True, array_like=True):
    """An input of a machine: a message of the server, or its vector, float64 little-endian, with a weight."""

    message: bytes
    weight: int = 0


class _SumFile(msgspec.Struct):
    settings: SumSettings
    smallest_cohort: int
    """From the client's policy."""
    drawn: list[bytes]
    happened: list[_MachineInput]
    said: bytes


@dataclass
class _ReplayedEntropy:
    """The random bytes of a machine: recorded ones first, then new ones, which are recorded."""

    drawn: list[bytes]
    used: int = 0

    def __call__(self, count: int) -> bytes:
        if self.used == len(self.drawn):
            self.drawn.append(os.urandom(count))
        self.used += 1
        return self.drawn[self.used - 1]


class ResumedSum:
    """One client in one sum. The caller holds the client's journal, and with it the lock, during its use."""

    def __init__(self, path: Path, key: bytes, kept: _SumFile, roster: Roster, keys: PartyKeys) -> None:
        self._path = path
        self._box = SecretBox(key)
        self._kept = kept
        self._hasher = hashlib.sha256()
        self._client = SumClient(
            kept.settings, roster, keys, entropy=_ReplayedEntropy(kept.drawn), smallest_cohort=kept.smallest_cohort
        )
        self.first = self._hashed(self._client.start(_NOW))
        """The first frames to the server."""
        for happened in kept.happened:
            self._feed(happened)

    @classmethod
    def begin(
        cls, path: Path, key: bytes, settings: SumSettings, roster: Roster, keys: PartyKeys, *, smallest_cohort: int
    ) -> ResumedSum:
        """Enter a sum, and discard the state of any other. key: 32 bytes. ValueError as for SumClient."""
        kept = cls(path, key, _SumFile(settings, smallest_cohort, [], [], b""), roster, keys)
        kept.save()
        return kept

    @classmethod
    def read(cls, path: Path, key: bytes | None, title: str, roster: Roster, keys: PartyKeys) -> ResumedSum:
        """Load the saved sum of this title. RefusedError if there is none."""
        if key is None or not path.exists():
            raise RefusedError(
                f"{keys.name!r} is in no secure sum: it was not asked, that is over, or its SuperNode started again"
            )
        try:
            file = msgspec.msgpack.decode(SecretBox(key).decrypt(path.read_bytes()), type=_SumFile)
        except (CryptoError, msgspec.MsgspecError):
            raise RefusedError(f"{path} is not what this client wrote in this sum: remove it") from None
        if file.settings.title != title:
            raise RefusedError(
                f"{keys.name!r} was asked to go on with the sum {title!r}, and is in {file.settings.title!r}: one "
                "client is in one run at a time"
            )
        kept = cls(path, key, file, roster, keys)
        if kept._hasher.digest() != file.said:
            raise RefusedError(f"{path}: its machine cannot be made again: it is of another version; remove it")
        return kept

    @property
    def title(self) -> str:
        return self._kept.settings.title

    @property
    def outcome(self) -> Contributed | ClientAborted | None:
        return self._client.outcome

    def hear(self, message: bytes) -> list[bytes]:
        return self._new(_MachineInput(message))

    def contribute(self, vector: npt.NDArray[np.float64], weight: int) -> list[bytes]:
        """Submit its vector. ValueError as for SumClient."""
        return self._new(_MachineInput(vector.astype("<f8").tobytes(), weight))

    def save(self) -> None:
        self._kept.said = self._hasher.digest()
        replace_file(self._path, self._box.encrypt(msgspec.msgpack.encode(self._kept)))

    def _new(self, happened: _MachineInput) -> list[bytes]:
        said = self._feed(happened)
        self._kept.happened.append(happened)
        return said

    def _feed(self, happened: _MachineInput) -> list[bytes]:
        if happened.weight:
            vector = np.frombuffer(happened.message, "<f8")
            return self._hashed(self._client.contribute(vector, _NOW, weight=happened.weight))
        return self._hashed(self._client.receive(happened.message, _NOW))

    def _hashed(self, said: list[bytes]) -> list[bytes]:
        for message in said:
            self._hasher.update(message)
        return said


def secure_sum_mod(folder: str | Path, *, policy: Policy | None = None) -> SecureSumMod:
    """The mod of a client whose `NAME.key` and `roster.toml` are in this folder.

    policy: see `[policy]` in a party file, whose defaults apply."""
    return SecureSumMod(str(folder), Policy() if policy is None else policy)


class SecureSumMod:
    """A mod of Flower. It replies with an error to a refused message, and logs the first of its process in one line."""

    def __init__(self, folder: str, policy: Policy) -> None:
        self._folder = folder
        self._policy = policy

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        """Answer a message; `call_next` trains."""
        if not is_training(message.metadata.message_type):
            return call_next(message, context)
        try:
            answer = self._answer(message, context, call_next)
        except (RefusedError, KeyFileError, RosterFileError, JournalError) as error:
            if self._folder not in _LOGGED:
                _LOGGED.add(self._folder)
                _LOG.warning("secure sum: %s", error)
            return Message(Error(MOD_FAILED, str(error)), reply_to=message)
        return Message(RecordDict({RECORD: ConfigRecord(answer)}), reply_to=message)

    def _answer(self, message: Message, context: Context, call_next: Any) -> dict[str, Any]:
        record = ours(message.content)
        if record is None:
            raise RefusedError("the server asks for a trained model in the clear: give its grid to SecureGrid")
        party = _Party(self._place(context), self._policy)
        journal = JournalFile(party.journal)
        lines = journal.open(party.keys.name)
        try:
            entered = {line.session for line in lines if isinstance(line, JournalEntry)}
            step = taken(record, STEP, str)
            if step == WHO:
                return party.introduce(record, context)
            if step == BEGIN:
                return {FRAMES: party.begin(record, context, entered, journal)}
            if step == GO_ON:
                return {FRAMES: party.go_on(record, message, context, call_next)}
            raise RefusedError(f"the server asks for the step {step!r}: update this client")
        except BaseException:
            # After any failure there is no second attempt in this sum.
            party.forget(context)
            raise
        finally:
            journal.close()

    def _place(self, context: Context) -> Path:
        try:
            return Path(self._folder.format_map(context.node_config))
        except KeyError as error:
            raise RefusedError(
                f"secure_sum_mod({self._folder!r}): the node's configuration lacks {error}; give it to the SuperNode "
                "by --node-config"
            ) from None


class _Party:
    """One client, from its folder. KeyFileError, RosterFileError or RefusedError for an invalid folder."""

    def __init__(self, folder: Path, policy: Policy) -> None:
        found = sorted(folder.glob("*.key"))
        if len(found) != 1:
            raise RefusedError(
                f"{folder.absolute()} has {len(found)} key files: the folder of a client has its own, NAME.key, alone; "
                "for a simulation `tacit keys new --simulation` makes them"
            )
        self.keys = load(found[0])
        self.roster = read_roster(folder / ROSTER_FILE)
        with _refusing():
            check_own(self.roster, self.keys, "client", where=str(folder / ROSTER_FILE))
        self.journal = folder / f"{self.keys.name}.journal"
        self.kept = folder / f"{self.keys.name}.sum"
        self._policy = policy

    def introduce(self, record: ConfigRecord, context: Context) -> dict[str, Any]:
        signature = sign_node(
            self.keys,
            roster=self.roster.hash,
            run=context.run_id,
            node=context.node_id,
            nonce=taken(record, "nonce", bytes),
        )
        return {"name": self.keys.name, "signature": signature}

    def begin(self, record: ConfigRecord, context: Context, entered: set[bytes], journal: JournalFile) -> list[bytes]:
        with _refusing("the server proposes a sum that this client does not enter: "):
            settings = msgspec.msgpack.decode(taken(record, "settings", bytes), type=SumSettings)
            settings.check(self.roster, self._policy)
            if (identity := settings.identity(self.roster)) in entered:
                raise RefusedError(f"this client was in the sum {settings.title!r} before")
            journal.write(JournalEntry(session=identity, round=1))
            smallest, key = self._policy.smallest_cohort, os.urandom(SecretBox.KEY_SIZE)
            context.state[RECORD] = ConfigRecord({"key": key})
            return ResumedSum.begin(self.kept, key, settings, self.roster, self.keys, smallest_cohort=smallest).first

    def go_on(self, record: ConfigRecord, message: Message, context: Context, call_next: Any) -> list[bytes]:
        """Answer the server's messages of the sum, and train if they include a model."""
        key = taken(context.state[RECORD], "key", bytes) if RECORD in context.state else None
        kept = ResumedSum.read(self.kept, key, taken(record, "title", str), self.roster, self.keys)
        said = [answer for frame in frames_of(record) for answer in kept.hear(frame)]
        del message.content[RECORD]
        if kept.outcome is None and message.content:
            if content_digest(message.content).hex() != announced(kept.title):
                raise RefusedError("the server sends something else to train from than it announced")
            vector, weight = _trained(message, context, call_next)
            with _refusing():
                said += kept.contribute(vector, weight)
        if kept.outcome is None:
            kept.save()
        else:
            self.forget(context)
        return said

    def forget(self, context: Context) -> None:
        """Leave a sum and remove its state."""
        self.kept.unlink(missing_ok=True)
        context.state.pop(RECORD, None)


def _trained(message: Message, context: Context, call_next: Any) -> tuple[Any, int]:
    """The app's update float64 [D], and its weight."""
    model = arrays_of(message.content)
    # Before the app receives the content, whose arrays it may change in place.
    before = type(model)({name: type(array)(array.numpy().copy()) for name, array in model.items()})
    answer = call_next(message, context)
    if answer.has_error():
        raise RefusedError(f"the app did not train: {answer.error.reason}")
    weights = [record[EXAMPLES] for record in answer.content.metric_records.values() if EXAMPLES in record]
    if len(weights) != 1 or not isinstance(weights[0], int) or weights[0] < 1:
        raise RefusedError(
            f"the app answers with the metric {EXAMPLES!r} as {weights}: one integer above 0 is its weight"
        )
    return update(before, arrays_of(answer.content)), weights[0]

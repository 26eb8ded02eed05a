"""The folder of one party on a host: its files, its status, its human-readable log, and the files opened at start.

docs/hosts.md lists the files. In a simulation all parties share the run directory: lock and status of each are
status/NAME.lock and status/NAME.json, and memory/NAME.fixed is not kept.

The lock shows whether the party runs, so the status file of a killed party does not mislead. The human-readable log has
a line for every event; the machine-readable event log has the same events. Neither has secrets, because no event has.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import msgspec

from tacit.models.file_system import FILES
from tacit.parties.adaptation.events import SumsResumed
from tacit.parties.hosting.party_file import Kind, LogConfiguration, PartyFile, check_addresses, read_party
from tacit.parties.inference.events import ImagesRead
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import KeyFileError, PartyKeys, card_line, generate, load, save
from tacit.parties.links.roster import RosterFileError, check_own, given_roster, read_roster, write_roster
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError, check_release, mark_release
from tacit.parties.runs.events import RunOpened
from tacit.parties.runs.experiment import literal
from tacit.parties.runs.results import Caution, Result
from tacit.parties.runs.state import Line, RunState
from tacit.parties.session.event_log import EventLogError, Tell
from tacit.parties.session.events import (
    ClientRoundEnded,
    CopyDetected,
    HeartbeatSent,
    RoundEnded,
    SessionEnded,
    TrafficCounted,
    WaitingChanged,
    WorkMeasured,
)
from tacit.parties.session.journal import JournalError
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.events import Event
from tacit.protocol.core.roster import Role, Roster, check_follows
from tacit.protocol.sum.states import Phase


def available_memory() -> int | None:
    """Bytes that this process may still allocate, by Linux and by its control group's limit; None if unknown."""
    found = []
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(1024 * int(line.split()[1]))
        group = Path("/sys/fs/cgroup")
        limit, used = (group.joinpath(name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        if limit.strip() != "max":
            found.append(int(limit) - int(used))
    except (OSError, ValueError):
        pass
    return min(found, default=None)


def open_many_files() -> None:
    """Raise this process's limit of descriptors to the system's, which far exceeds a shell's default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


_RUN = re.compile(r"(?P<number>[0-9]{4,})-.*")


class PartyFolder:
    """The folder of a party. OSError of `make` and `run` names the path that cannot be written.

    party: its name if it shares the folder with others, as in a simulation."""

    def __init__(self, path: Path, *, party: str = "") -> None:
        self.path = path
        self.shared = bool(party)
        """True in a simulation, where folders are not copied and nobody reads the status."""
        self._own = own = path / "state" / party if party else path
        self.status = path / "status" / f"{party}.json" if party else path / "status.json"
        self.plain_model = path / "plain-model.safetensors"
        self.salt = own / "salt"
        self.ledger = own / "ledger.json"
        self.adapters = own / "adapters.safetensors"
        self.learning = own / "learning.msgpack"
        self.openings = own / "openings.msgpack"
        self.kept = own / "kept"
        self.sum = own / "sum.msgpack"
        self.tokens = own / "tokens.json"
        self.sum_tokens = own / "sum-tokens.json"
        """Tokens for the links of a dealer's sums, beside those for correlated randomness."""
        self.spending = own / "spending.json"
        self._lock = path / "status" / f"{party}.lock" if party else path / "party.lock"

    def make(self) -> None:
        """Create missing folders. RunDirectoryError if that fails, or if it has state of another release."""
        self.check()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in ("events", "journal", "logs", *(["status"] if self.shared else ["memory"])):
                (self.path / part).mkdir(exist_ok=True)
            (self._own / "answers").mkdir(parents=True, exist_ok=True)
            if not self.shared:
                mark_release(self.path)
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path} cannot be made: {error.strerror or error}; name another folder as `directory`"
            ) from None

    def check(self) -> None:
        """Refuse state of another release. RunDirectoryError."""
        files = (
            self.status, self.plain_model, self.salt, self.ledger, self.adapters, self.learning, self.openings,
            self.sum, self.tokens, self.sum_tokens, self.spending,
        )  # fmt: skip
        folders = (self.path / name for name in ("events", "journal", "memory", "answers", "runs"))
        if any(file.exists() for file in files) or any(any(folder.glob("*")) for folder in folders):
            check_release(self.path)

    def events(self, party: str) -> Path:
        """The event log of a party; a server has one in the folder of each run."""
        return self.path / "events" / f"{party}.jsonl"

    def journal(self, party: str) -> Path:
        return self.path / "journal" / f"{party}.jsonl"

    def answers(self, images: str) -> Path:
        return self._own / "answers" / f"{images}.jsonl"

    def fixed(self, party: str) -> Path | None:
        """Fixed tensors of the last model, as a client received them; None in a shared folder, where each party would
        keep the same copy."""
        return None if self.shared else self.path / "memory" / f"{party}.fixed"

    def memory(self, party: str) -> Path:
        return self.path / "memory" / f"{party}.safetensors"

    def log(self, party: str) -> Path:
        return self.path / "logs" / f"{party}.log"

    def check_roster(self, roster: Roster) -> None:
        """Refuse a roster that is not a later version of the last one that this party adopted. ValueError."""
        path = self._taken(roster)
        if not roster.operator or not path.exists() or (held := read_roster(path)).hash == roster.hash:
            return
        try:
            check_follows(held, roster)
        except RemoteProtocolError as error:
            raise ValueError(f"{error.detail} (the last that it took up is {path}: removed, any is accepted)") from None

    def keep_roster(self, roster: Roster) -> None:
        """Persist a roster that the party adopts: only later versions of it are accepted from now on. OSError."""
        if roster.operator:
            self._taken(roster).parent.mkdir(parents=True, exist_ok=True)
            write_roster(roster, self._taken(roster), replace=True)

    def _taken(self, roster: Roster) -> Path:
        return self._own / "rosters" / f"{roster.lineage.hex()}.toml"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock as the only process of this party. RunDirectoryError if there is another."""
        try:
            release = FILES.lock(self._lock)
        except BlockingIOError:
            raise RunDirectoryError(f"{self.path} is of a party that is running already: stop it first") from None
        try:
            yield
        finally:
            release()

    def is_held(self) -> bool:
        if not self._lock.exists():
            return False
        try:
            FILES.lock(self._lock)()
        except BlockingIOError:
            return True
        return False

    def last_run(self) -> RunDirectory | None:
        runs = self._runs()
        return RunDirectory(runs[max(runs)]) if runs else None

    def new_run(self, name: str) -> RunDirectory:
        number = max(self._runs(), default=0) + 1
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
        return RunDirectory.create(self.path / "runs" / f"{number:04}-{plain}")

    def _runs(self) -> dict[int, Path]:
        found = ((_RUN.fullmatch(path.name), path) for path in (self.path / "runs").glob("*"))
        return {int(match["number"]): path for match, path in found if match is not None}


Held = TypeVar("Held")


def read_state(path: Path, kind: type[Held], *, remedy: str) -> Held | None:
    """Read state that a party persisted as MessagePack; None if the file is missing. ValueError, which names the file
    and the remedy, for other content."""
    try:
        return msgspec.msgpack.decode(FILES.read(path), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} cannot be used ({error}): {remedy}") from None


class Happened(msgspec.Struct, frozen=True):
    """An event in the status of a party."""

    time: float
    """Seconds since 1970."""
    event: str
    detail: str = ""


class Status(Result, frozen=True, kw_only=True, tag="tacit.status.1"):
    """State of a party on this host, as in its folder and in `tacit status`."""

    running: bool = False
    """Whether its process is alive; determined on reading, not written by the party."""
    name: str
    role: str
    process: int
    """Process ID, while the party runs."""
    since: float
    """Start time, in seconds since 1970."""
    session: str = ""
    """First 16 hexadecimal digits of the session's identifier; empty before the first."""
    experiment: str = ""
    address: str = ""
    """Address at which a server listens, or to which a client connects."""
    round: int = 0
    """Last round; for a data owner in inference: images with a result."""
    rounds: int = 0
    """Rounds of the whole experiment, or all images; 0 if unknown to the party."""
    learning: bool = False
    """Whether it takes part in an adaptation, so that rounds are counted."""
    serves: tuple[str, ...] = ()
    """At a dealer or a model owner: data owners with an open session."""
    phase: str = "starting"
    phase_since: float = 0.0
    waiting_for: tuple[str, ...] = ()
    absent: dict[str, str] = msgspec.field(default_factory=dict)
    """At a server: clients that are not in the present round, and the reasons."""
    alert: Happened | None = None
    """A copied folder that was detected since the start."""
    last_event: Happened | None = None
    last_error: Happened | None = None
    """Last error since a session, or a round with a sum, succeeded."""

    def view(self) -> Iterator[str]:
        """One line for each known fact; times are relative to now."""
        now, running = time.time(), self.running
        counted = "round" if self.learning else _COUNTED.get(self.role, "")
        since = f", for {_ago(now - self.phase_since)}"
        absent = "; ".join(f"{name}: {why}" for name, why in self.absent.items())
        phase = "between rounds" if self.phase == Phase.SESSION.value else self.phase.lower().replace("_", " ")
        facts = [
            ("party", f"{self.name}, {self.role}"),
            ("running", f"yes, process {self.process}, for {_ago(now - self.since)}" if running else "no"),
            ("address", self.address),
            ("experiment", self.experiment),
            ("session", self.session),
            (counted, f"{self.round} of {self.rounds}" if self.rounds else str(self.round)),
            ("phase", phase + (since if running and self.phase_since else "")),
            ("waits for", ", ".join(self.waiting_for) if running else ""),
            ("without", absent if running else ""),
            ("serves", ", ".join(self.serves) if running else ""),
        ]
        last = None if self.last_event == self.last_error else self.last_event
        for name, happened in (("ALERT", self.alert), ("last event", last), ("last error", self.last_error)):
            if happened is not None:
                facts.append((name, f"{happened.detail} ({_ago(now - happened.time)} ago)"))
        for name, value in facts:
            if name and value:
                line = f"{name:<12}{value}"
                yield Caution(line) if name in ("ALERT", "last error") else line


_COUNTED: Final = {"server": "round", "client": "round", "data-owner": "images"}


def _ago(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


class AnswersError(Exception):
    """The results of a data owner cannot be read or kept; the message names the file and the remedy."""


class StatusError(Exception):
    """The status of a party cannot be read; the message gives the reason."""


class StatusFile:
    """Keeps status.json up to date. Write errors are ignored, since nothing depends on the file. live: write at every
    event; else only in `write`."""

    def __init__(self, path: Path, status: Status, *, live: bool = True) -> None:
        self._path = path
        self._live = live
        self._state = RunState(server=status.name if status.role in ("server", "dealer") else None)
        self.status = status
        if live:
            self.write()

    def take(self, event: Event) -> Line:
        """Add one event of the party, and return it as a line for a person."""
        line = self._state.take(event)
        self._state.forget()
        if not isinstance(event, HeartbeatSent | TrafficCounted | WorkMeasured):
            self._describe(event, line)
            if self._live:
                self.write()
        return line

    def _describe(self, event: Event, line: Line) -> None:
        status, state = self.status, self._state
        party = state.parties[event.party]
        changes: dict[str, Any] = {
            "session": party.session[:16],
            "address": party.address or status.address,
            "absent": dict(state.rounds[-1].absent) if state.rounds else {},
            "waiting_for": tuple(state.waiting),
            "serves": () if status.role == "data-owner" else tuple(sorted(party.serving)),
        }
        if party.round:
            # Sums of adaptation have one more round, which delivers the last sum.
            changes["round"] = min(party.round, status.rounds or party.round)
        match event:
            case RunOpened():
                changes |= {"experiment": event.experiment, "rounds": event.rounds, "round": event.completed}
            case ImagesRead() if status.learning:
                changes["round"] = event.learned
            case ImagesRead():
                changes |= {"rounds": event.images, "round": event.answered}
            case SumsResumed():
                changes["round"] = event.round
            case RoundEnded() if event.repeated:
                changes["rounds"] = status.rounds + 1
            case RoundEnded(status="completed") | ClientRoundEnded(code=None) | SessionEnded(code=None):
                changes["last_error"] = None
        if status.role == "data-owner" and not status.learning:
            phase = "starting" if party.connected is None else "asking" if party.connected else "waiting"
        elif party.phase is not None:
            phase = party.phase.value
        else:
            phase = "listening" if party.address else "starting"
        if phase != status.phase:
            changes |= {"phase": phase, "phase_since": event.time}
        if not isinstance(event, WaitingChanged):
            happened = Happened(event.time, event.tag, line.text)
            changes["last_event"] = happened
            if line.level == "warning":
                changes["last_error"] = happened
            if isinstance(event, CopyDetected):
                changes["alert"] = happened
        self.status = msgspec.structs.replace(status, **changes)

    def write(self) -> None:
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(self.status) + b"\n")
            os.replace(temporary, self._path)
        except OSError:
            return


def read_status(folder: PartyFolder) -> Status:
    """The last state that the party wrote, and whether it is running. StatusError if it never ran, or is unreadable."""
    try:
        folder.check()
        found = msgspec.json.decode(folder.status.read_bytes(), type=Status)
        return msgspec.structs.replace(found, running=folder.is_held())
    except RunDirectoryError as error:
        raise StatusError(str(error)) from None
    except FileNotFoundError:
        raise StatusError(f"{folder.path}: this party has never been started") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise StatusError(f"{folder.status}: cannot be read: {error}") from None


_MEGABYTE = 1_000_000
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


@contextmanager
def logging_to(path: Path, chosen: LogConfiguration) -> Iterator[logging.Logger]:
    """A logger that writes into this file. OSError if it cannot be written."""
    handler = RotatingFileHandler(
        path, maxBytes=chosen.megabytes * _MEGABYTE, backupCount=chosen.files, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.Logger(f"tacit.{path.stem}", chosen.level.upper())
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        handler.close()


WRONG_INPUT: Final = (KeyFileError, RosterFileError, RunDirectoryError, ValueError)
MENDABLE: Final = (*WRONG_INPUT, EndpointError, EventLogError, JournalError, AnswersError, OSError)
"""Errors that a party's owner can fix; the message says how. Every other exception is a bug."""


@dataclass(frozen=True)
class OpenedParty(Generic[Kind]):
    file: Kind
    keys: PartyKeys
    roster: Roster
    folder: PartyFolder

    @property
    def name(self) -> str:
        return self.keys.name


def open_party(kind: type[Kind], path: Path) -> OpenedParty[Kind]:
    """Read and check the files of a party of this role. Raises WRONG_INPUT."""
    file = read_party(kind, path)
    keys, roster = load(Path(file.key)), read_roster(Path(file.roster))
    check_own(roster, keys, file.enrolled, where=file.roster)
    folder = PartyFolder(Path(file.directory))
    folder.check()
    folder.check_roster(roster)
    return OpenedParty(file, keys, roster, folder)


PARTY_FILE: Final = "party.toml"


def begin_folder(folder: Path, name: str, role: Role, *, address: str, images: str) -> str:
    """Create the folder of a server or client with its keys and its party file. Returns its card as one line.

    address: where it listens, or its server's address, with or without tcp://; images: "" for none. ValueError and
    KeyFileError for invalid or existing files, before anything is written; OSError."""
    if (path := folder / PARTY_FILE).exists():
        raise ValueError(f"{path} is there already, and is never overwritten: use another folder, or move it away")
    key, keys = "bind" if role == "server" else "connect", generate(name)
    address = address if "://" in address else f"tcp://{address}"
    check_addresses(**{key: address})
    known = images == "digits" or not images
    if not known and not (Path(images).is_dir() or Path(images).suffix == ".npz"):
        raise ValueError(
            f"images {images!r}: name a folder with a folder of images for each class, an .npz file, or "
            '"digits"; the party file takes more'
        )
    if not known and not Path(images).exists():
        raise ValueError(f"images {images!r}: no such file or folder")
    lines = {"role": role, "key": f"{name}.key", key: address}
    data = (
        {"source": "folder", "directory": os.path.abspath(images)}
        if Path(images).is_dir()
        else {"source": images if known else os.path.abspath(images)}
    )
    text = "".join(f"{name} = {literal(value, None)}\n" for name, value in lines.items())
    if images:
        text += "\n[data]\n" + "".join(f"{name} = {literal(value, None)}\n" for name, value in data.items())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _, card = save(keys, folder, role=role)
    path.write_text(f"# What more there is: tacit config --party {role}\n{text}", encoding="utf-8")
    return card_line(card)


def take_roster(file: PartyFile, given: str) -> None:
    """Install the roster of `given_roster` as the party's own. ValueError if it is not a later version of the present
    one, or if the party is not in it. Raises as `open_party` does."""
    roster, path = given_roster(given), Path(file.roster)
    check_own(roster, load(Path(file.key)), file.enrolled, where="the roster that is given")
    if path.exists() and (held := read_roster(path)).hash != roster.hash:
        try:
            check_follows(held, roster)
        except RemoteProtocolError as error:
            raise ValueError(
                f"{path}: another roster is there already, with the fingerprint {held.fingerprint}: leave out --roster "
                f"to go on with it, or move it away ({error.detail})"
            ) from None
    PartyFolder(Path(file.directory)).check_roster(roster)
    write_roster(roster, path, replace=True)


@contextmanager
def at_work(party: OpenedParty[Any], show: Tell, **known: Any) -> Iterator[Tell]:
    """Context of all work of a party: lock its folder, and pass every event to status, log and `show`; known: fields of
    its first Status. RunDirectoryError, OSError."""
    file: PartyFile = party.file
    status = Status(name=party.name, role=file.role, process=os.getpid(), since=time.time(), **known)
    party.folder.make()
    with party.folder.held(), logging_to(party.folder.log(party.name), file.log) as log:
        party.folder.keep_roster(party.roster)
        # Thousands may share a folder, and the disk.
        state, turn = StatusFile(party.folder.status, status, live=not party.folder.shared), threading.Lock()

        def tell(event: Event) -> None:
            if not event.time:
                # Events of this process, which the event log does not have.
                event = msgspec.structs.replace(event, time=time.time(), party=party.name)
            # Training reports from its own thread.
            with turn:
                line = state.take(event)
                log.log(_LEVELS[line.level], "%s: %s", event.tag, line.text)
                show(event)

        try:
            yield tell
        except BaseException as error:
            if isinstance(error, Exception):
                # An error that the owner can fix is a line, and a bug is a traceback.
                log.error("failed: %s", error, exc_info=None if isinstance(error, MENDABLE) else error)
            else:
                log.info("stopped by its owner")
            raise
        finally:
            state.write()

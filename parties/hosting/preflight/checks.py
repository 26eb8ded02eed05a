"""A check and what it finds, the order in which checks are made, and what is known of the party meanwhile.

A check is a function of the subject that returns a line where all is well, and raises where it is not; what the rest of
this program raises for its owner to mend has the remedy in it and is taken as it is. A check that goes by what others
have found names them, and is left out where one of them found something wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.opening import MENDABLE
from tacit.parties.hosting.party_file import Kind
from tacit.parties.links.keys import PartyKeys, load
from tacit.parties.links.roster import check_own, read_roster
from tacit.parties.protections.sides import TaskError
from tacit.parties.runs.experiment import Experiment
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.roster import Roster

State = Literal["ok", "warning", "untested", "absent", "wrong"]


class Finding(msgspec.Struct, frozen=True):
    """What a check found. `absent`: nothing is there to be tested against; that may change by itself."""

    check: str
    state: State
    detail: str


class NotFit(Exception):
    """Something that will be needed is missing; the message says what, and the remedy."""

    state: State = "wrong"


class Absent(NotFit):
    """The other side is not there yet."""

    state: State = "absent"


class Caution(NotFit):
    """It will work, but not as well as it should."""

    state: State = "warning"


class Untested(NotFit):
    """It cannot be found out here and now; the message says why, and how it could."""

    state: State = "untested"


class Subject(Generic[Kind]):
    """The party that is tested. What the files of its file say is read once, by the check that is about it."""

    def __init__(self, file: Kind, experiment: Experiment | None = None) -> None:
        self.file = file
        self.experiment = experiment
        self.folder = PartyFolder(Path(file.directory))
        self.model_bytes = 0
        """Of the model that the party will keep; 0 where that is not known."""

    @cached_property
    def keys(self) -> PartyKeys:
        """Its own. KeyFileError."""
        return load(Path(self.file.key))

    @cached_property
    def roster(self) -> Roster:
        """That of everybody, in which it is. RosterFileError, ValueError."""
        found = read_roster(Path(self.file.roster))
        check_own(found, self.keys, self.file.enrolled, where=self.file.roster)
        return found

    @property
    def running(self) -> bool:
        """Whether a process of this party has its folder, and its place at those whom it connects to."""
        return self.folder.is_held()


SubjectT = TypeVar("SubjectT", bound=Subject[Any])


@dataclass(frozen=True)
class Check(Generic[SubjectT]):
    """One line of a preflight."""

    name: str
    look: Callable[[SubjectT], str]
    needs: tuple[str, ...] = ()
    """Checks that come before, and must not have found anything wrong."""


def made(checks: Sequence[Check[SubjectT]], subject: SubjectT) -> Iterator[Finding]:
    """Make one check after the other."""
    passed: set[str] = set()
    for check in checks:
        lacking = [name for name in check.needs if name not in passed]
        finding = _look(check, subject) if not lacking else _left_out(check, lacking)
        if finding.state in ("ok", "warning"):
            passed.add(check.name)
        yield finding


def _look(check: Check[SubjectT], subject: SubjectT) -> Finding:
    state: State = "ok"
    try:
        said = check.look(subject)
    except NotFit as error:
        state, said = error.state, str(error)
    except RemoteProtocolError as error:
        state, said = "wrong", error.detail
    except (TaskError, *MENDABLE) as error:
        state, said = "wrong", str(error)
    return Finding(check.name, state, " ".join(said.split()))


def _left_out(check: Check[Any], lacking: Sequence[str]) -> Finding:
    return Finding(check.name, "untested", f"waits for {', '.join(lacking)}")


def writable(folder: Path) -> bool:
    """Whether a file can be made in a folder that exists; none is left there."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False

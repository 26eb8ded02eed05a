"""What a party on a host begins with: its file, its keys, the roster and its folder, each checked, and all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic

from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.log import line, logging_to, weight
from tacit.parties.hosting.party_file import Kind, read_party
from tacit.parties.hosting.party_schema import PartyFile
from tacit.parties.hosting.state import Status, StatusFile
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import KeyFileError, PartyKeys, load
from tacit.parties.links.roster import RosterFileError, check_own, read_roster
from tacit.parties.runs.directory import RunDirectoryError
from tacit.parties.session.diary import Tell
from tacit.parties.session.event_log import EventLogError
from tacit.parties.session.journal import JournalError
from tacit.protocol.core.roster import Roster

WRONG_INPUT: Final = (KeyFileError, RosterFileError, RunDirectoryError, ValueError)
"""What says that a party cannot start with what it is given."""
MENDABLE: Final = (*WRONG_INPUT, EndpointError, EventLogError, JournalError, OSError)
"""What a party's owner can mend; the message says how. Everything else is a bug."""


@dataclass(frozen=True)
class OpenedParty(Generic[Kind]):
    """A party that may start."""

    file: Kind
    keys: PartyKeys
    roster: Roster
    folder: PartyFolder

    @property
    def name(self) -> str:
        """Of the party, as its key file says."""
        return self.keys.name


def open_party(kind: type[Kind], path: Path) -> OpenedParty[Kind]:
    """Read and check the files of a party of this role. Raises WRONG_INPUT."""
    file = read_party(kind, path)
    keys, roster = load(Path(file.key)), read_roster(Path(file.roster))
    check_own(roster, keys, file.enrolled, where=file.roster)
    return OpenedParty(file, keys, roster, PartyFolder(Path(file.directory)))


@contextmanager
def at_work(party: OpenedParty[Any], status: Status, show: Tell) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Around everything that a party does: it is the only process of its folder, and every event goes into status and
    log, and to `show`. RunDirectoryError, OSError."""
    file: PartyFile = party.file
    party.folder.make()
    with party.folder.held(), logging_to(party.folder.log(party.name), file.log) as log:
        state = StatusFile(party.folder.status, status)

        def tell(event: str, fields: dict[str, Any]) -> None:
            state.take(event, fields)
            log.log(weight(event, fields), "%s", line(event, fields))
            show(event, fields)

        try:
            yield tell
        except BaseException as error:
            if isinstance(error, Exception):
                # What the owner can mend is a line, and a bug is a traceback.
                log.error("failed: %s", error, exc_info=None if isinstance(error, MENDABLE) else error)
            else:
                log.info("stopped by its owner")
            raise

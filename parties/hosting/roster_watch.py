"""The roster file of a server that runs: a later version of it is taken up between two rounds.

The file is looked at, not its owner listened to: `tacit roster` puts a new one in the place of the old one, whole. One
that cannot be taken up is told once, and the session goes on with the roster that it has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tacit.parties.links.roster import RosterFileError, read_roster
from tacit.parties.session.diary import Tell
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.roster import Roster, check_later


class RosterWatch:
    """Whose roster file may change while it runs. fits: raises ValueError for a roster that its work cannot do with."""

    def __init__(self, path: Path, own: str, fits: Callable[[Roster], None], tell: Tell) -> None:
        self._path = path
        self._own = own
        self._fits = fits
        self._tell = tell
        self._seen: tuple[int, int, int] | None = None
        """What the file looked like when it was read."""

    def newer(self, held: Roster) -> Roster | None:
        """The later version of this roster that the file has, if it has one that was not looked at before."""
        try:
            now = os.stat(self._path)
        except OSError:
            # It may be on its way.
            return None
        seen = now.st_ino, now.st_mtime_ns, now.st_size
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            found = read_roster(self._path)
            if found.hash == held.hash:
                return None
            check_later(held, found, self._own)
            self._fits(found)
        except (RosterFileError, RemoteProtocolError, ValueError) as error:
            detail = error.detail if isinstance(error, RemoteProtocolError) else str(error)
            self._tell("roster-refused", {"reason": detail})
            return None
        return found

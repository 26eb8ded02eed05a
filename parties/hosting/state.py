"""Where a party is, as it says itself: status.json in its folder, written anew at every change.

Whether it runs is seen from the lock of its folder, so that the file of a party that was killed deceives nobody.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tacit.parties.hosting.folder import PartyFolder
from tacit.protocol.core.errors import Code

ERRORS = frozenset(
    {"cannot-train", "refused", "not-connected", "not-sent", "not-finished", "link-lost", "roster-refused"}
    | {"stranger", "left"}
)
"""Events that a party's owner may want to know of when something is wrong."""
_PASSING = frozenset({"alive", "traffic", "work"})


class Happened(msgspec.Struct, frozen=True):
    """An event, as it was last told."""

    time: float
    """Seconds since 1970."""
    event: str
    detail: str = ""


class Status(msgspec.Struct, kw_only=True):
    """What a party tells of itself."""

    name: str
    role: str
    process: int
    """Its number, while the party runs."""
    since: float
    """When it started, in seconds since 1970."""
    session: str = ""
    """The first 16 hexadecimal digits of its name; empty before the first."""
    experiment: str = ""
    address: str = ""
    """Where a server listens, or what a client connects to."""
    round: int = 0
    """The last one; of a data owner that asks: images that are answered."""
    rounds: int = 0
    """Those of the whole experiment, or all images; 0 where the party is not told."""
    learning: bool = False
    """Whether it takes part in the adaptation of a model, so that rounds are counted."""
    serves: tuple[str, ...] = ()
    """Of a dealer or a model owner: the data owners whose sessions are going on."""
    phase: str = "starting"
    phase_since: float = 0.0
    waiting_for: tuple[str, ...] = ()
    last_event: Happened | None = None
    last_error: Happened | None = None


class StatusError(Exception):
    """The status of a party cannot be read; the message says why."""


class StatusFile:
    """Keeps status.json up to date. What cannot be written is left: nobody depends on it."""

    def __init__(self, path: Path, status: Status) -> None:
        self._path = path
        self._turn = threading.Lock()
        self._there: set[str] = set()
        """At a server its clients, at a client its server: whose link is not to be lost."""
        self._changing = False
        """Whether the session ends for a later version of the roster."""
        self.status = status
        self.write()

    def take(self, event: str, fields: dict[str, Any]) -> None:
        """One event of the party, from whichever of its threads."""
        if event not in _PASSING:
            with self._turn:
                self._take(event, fields)

    def _take(self, event: str, fields: dict[str, Any]) -> None:
        status, now = self.status, time.time()
        if event == "phase":
            status.phase, status.phase_since = fields["next"], now
        elif event in ("waiting", "ended"):
            status.waiting_for = tuple(fields.get("on", ()))
        elif event in ("listening", "accepted"):
            status.session = str(fields.get("session", ""))[:16]
            status.address = str(fields.get("address", status.address))
            if event == "listening" and status.phase == "starting":
                status.phase, status.phase_since = event, now
        if event in ("round", "round-done", "round-over", "update", "batch"):
            # Sums of what was learned have one round more, which tells the last sum.
            status.round = min(int(fields["round"]), status.rounds or int(fields["round"]))
        elif event == "answered":
            status.round = int(fields["images"])
        self._follow_sessions(event, fields)
        if event != "waiting":
            happened = Happened(now, event, _detail(fields))
            status.last_event = happened
            if self._is_error(event, fields):
                status.last_error = happened
        self.write()

    def _is_error(self, event: str, fields: dict[str, Any]) -> bool:
        """Whether something is wrong; not that somebody is gone who has left, or had only a look, or whose session was
        over, nor that a session ended for another one with a later version of the roster."""
        changing, there = self._changing, fields.get("peer") in self._there
        self._changing = event == "roster" or (changing and event != "ended")
        if event == "joined" or (event == "link-up" and self.status.role == "client"):
            self._there.add(str(fields.get("member") or fields.get("peer")))
        elif event == "left":
            self._there.discard(fields["member"])
        elif event == "ended":
            self._there.clear()
        if event == "link-lost":
            return there
        if event == "ended" and fields["code"] == Code.ROSTER.name and changing:
            return False
        return event in ERRORS or fields.get("code") is not None

    def _follow_sessions(self, event: str, fields: dict[str, Any]) -> None:
        """Private inference: with whom there is one, and since when it has been asking."""
        if event not in ("session", "agreed", "not-connected", "session-over"):
            return
        status, now = self.status, time.time()
        data_owner = str(fields.get("peer") or (fields.get("owners") or ("",))[-1])
        if event == "session" and status.role != "data-owner":
            status.serves = tuple(sorted({*status.serves, data_owner}))
        elif event == "session-over":
            status.serves = tuple(name for name in status.serves if name != data_owner)
        if event in ("agreed", "not-connected", "session-over") and status.role == "data-owner":
            status.phase, status.phase_since = "asking" if event == "agreed" else "waiting", now

    def write(self) -> None:
        """As it is now."""
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            temporary.write_bytes(msgspec.json.encode(self.status) + b"\n")
            os.replace(temporary, self._path)
        except OSError:
            return


def read_status(folder: PartyFolder) -> tuple[Status, bool]:
    """What the party said last, and whether it is running. StatusError if it never ran, or cannot be read."""
    try:
        return msgspec.json.decode(folder.status.read_bytes(), type=Status), folder.is_held()
    except FileNotFoundError:
        raise StatusError(f"{folder.path}: this party has never been started") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise StatusError(f"{folder.status}: cannot be read: {error}") from None


def _detail(fields: dict[str, Any]) -> str:
    """What an event says in words, with whom it is about."""
    who = next((str(fields[name]) for name in ("member", "peer", "to") if name in fields), "")
    what = next((str(fields[name]) for name in ("detail", "reason", "status") if fields.get(name)), "")
    return ": ".join(filter(None, [who, what]))

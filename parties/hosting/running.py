"""Runs a party of any role: on a host by a command, in a simulation in its own process."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from tacit.parties.hosting.folder import OpenedParty
from tacit.parties.hosting.party_file import (
    ClientFile,
    DataOwnerFile,
    DealerFile,
    ModelOwnerFile,
    PartyFile,
    ServerFile,
)
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.results import Result
from tacit.parties.session.event_log import Tell
from tacit.parties.session.shell import Hooks
from tacit.protocol.core.machine import Ended


@dataclass(frozen=True)
class PartyOutcome:
    """Outcome of a party that ended by itself."""

    ended: Ended
    result: Result | None = None
    run: RunDirectory | None = None


# By name: a wrong file is refused before torch is loaded.
ROLES: Final[dict[type[PartyFile], str]] = {
    ServerFile: "server.run_server",
    ClientFile: "client.run_client",
    DealerFile: "dealer.run_dealer",
    ModelOwnerFile: "model_owner.run_model_owner",
    DataOwnerFile: "data_owner.run_data_owner",
}
"""The coroutine of each role, by its file: it takes an opened party, `show` and `hooks`, and returns the outcome."""


async def run_party(party: OpenedParty[Any], *, show: Tell, hooks: Hooks | None = None) -> PartyOutcome:
    """Run a party until it ends or is cancelled; parties that serve others often run until cancelled.

    show: called with every event of the party. hooks: the caller's additions to the file, of the role's class; None:
    those of hosts. Raises MENDABLE (folder.py), which the party's owner can fix."""
    module, name = ROLES[type(party.file)].split(".")
    if isinstance(party.file, ModelOwnerFile | DataOwnerFile):
        return_large_pieces()
    run = getattr(import_module(f"tacit.parties.hosting.{module}"), name)
    outcome: PartyOutcome = await run(party, show=show, hooks=hooks)
    return outcome


# Parameters of glibc's mallopt(3).
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_LARGE: Final = 8 << 20


def return_large_pieces(least: int = _LARGE) -> None:
    """Return allocations of at least this many bytes to the system on release, and let all threads share one heap.

    An owner holds hundreds of megabytes of correlated randomness at a time, allocated in one thread and used in
    another. By default glibc keeps freed memory in one heap per thread. Other C libraries are left unchanged."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, least)

"""The settings of every party of a simulation, and how it is run.

A role differs from a party on a host of its own only in where its settings come from: keys and roster are made by the
supervisor, data are a share of the experiment's, and what affects the model may be seeded. Keys, shares and masks are
drawn from the operating system here as there. The work itself is in server_role.py and client_role.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys
from tacit.parties.runs.directory import RunDirectory, Seed, command_line
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.event_log import EventLogError, Tell
from tacit.parties.session.journal import JournalError
from tacit.parties.session.shell import Surroundings
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.server import TrainingServer
from tacit.simulate.federation.cheats import SubtractingServer
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.faults import Faults
from tacit.simulate.federation.recording import Recording

USER_ERRORS: Final = (EndpointError, EventLogError, JournalError, OSError, ValueError, FloatingPointError)
"""What a user can mend; the message says how. Everything else is a bug and leaves a traceback in the party's log."""


FAILED, ABORTED, SERVER_LOST = 1, 3, 4
"""Exit statuses of the processes; 0 is a session that is complete."""


@dataclass(frozen=True)
class Plan:
    """What to run, and where."""

    experiment: Experiment
    run: RunDirectory
    rounds: int
    """Rounds to run now."""
    completed: int
    """Rounds of the run that are done already."""
    split_seed: int
    """Seeds the split and the initial weights: all parties must agree on the first, and a resumed run on both."""
    repeated: int = 0
    """Rounds of those that do not count."""
    device: str = "cpu"
    verify: bool = False
    report: bool = True
    """Whether report.html is drawn, which takes a second or two."""
    record_moves: bool = False
    """Record which coordinates of the model every round moves."""
    recordings: Path | None = None
    """Where every party keeps what it received and drew; only an audit asks for that."""
    subtracts: bool = False
    """Whether the server leaves clients out of sums, to read their differences; only an audit asks for that."""
    wire: Path | None = None
    """A new file for all that passes between clients and server; only an audit asks for that."""
    ray: str | None = None
    """The address of the cluster of Ray that hosts clients; "" for one on this machine, None for none."""
    host: str = "127.0.0.1"
    """Of this machine, where the server listens."""
    faults: Faults = field(default_factory=Faults)
    unread: tuple[str, ...] = ()
    """What of the logs of a resumed run could not be read, and was moved."""
    started: float = field(default_factory=time.time)
    """When the command started, in seconds since 1970."""
    command: str = field(default_factory=command_line)
    """With which the run was started."""

    @property
    def seed(self) -> int | None:
        """Seeds training and rounding, in a run that was given no seed with the one that it drew, so that the record of
        it repeats the run. None, which draws from the operating system's randomness, where what a protection draws
        hides something: no file may tell it, unless somebody chose a seed.
        """
        chosen, hides = self.experiment.federation.seed, self.experiment.hides
        return self.split_seed if chosen is None and not hides else chosen

    @property
    def recorded_seed(self) -> Seed:
        """What the run says of its seed."""
        repeats = "everything" if self.experiment.encryption is None else "everything but keys"
        if self.seed is None:
            repeats = "split and initial weights"
        drawn = self.experiment.federation.seed is None
        return Seed(value=self.split_seed, drawn=drawn, repeats=repeats)


@dataclass(frozen=True)
class Role:
    """What every party of a run is given."""

    plan: Plan
    keys: PartyKeys
    roster: Roster
    images: Path
    """The folder where the server leaves them for the others."""

    def surroundings(self) -> Surroundings | None:
        """What is to happen around this party, if anything."""
        return self.plan.faults.of(self.keys.name)

    def recording(self) -> Recording | None:
        """What keeps what this party receives and draws, in an audit."""
        folder = self.plan.recordings
        return None if folder is None else Recording(folder, self.keys.name)

    def machine(self) -> Callable[..., TrainingClient]:
        """What makes the machine of this client."""
        return self.plan.faults.machine(self.keys.name)

    def server_machine(self) -> Callable[..., TrainingServer]:
        """What makes the machine of the server."""
        return SubtractingServer if self.plan.subtracts else TrainingServer

    def after_kill(self) -> Role | None:
        """What the same party is given when it is started again; None if it stays away."""
        faults = self.plan.faults.after_kill(self.keys.name)
        return None if faults is None else replace(self, plan=replace(self.plan, faults=faults))


def server_outcome(ended: Ended) -> dict[str, Any]:
    """How the server's session ended, for the supervisor; the status is that of the process."""
    return {"detail": ended.detail, "status": ABORTED if ended.code else 0}


def client_outcome(ended: Ended) -> dict[str, Any]:
    """How a client's session ended, for the supervisor; the status is that of the process."""
    lost = ended.code in (Code.LEFT, Code.TIMEOUT)
    return {"detail": ended.detail, "status": SERVER_LOST if lost else FAILED if ended.code else 0}


def explain(error: Exception) -> dict[str, Any]:
    """An error that the user can mend, as the supervisor wants to know it."""
    return {"detail": " ".join(str(error).split()), "status": FAILED}


def tell(control: Control) -> Tell:
    """Pass every event of a party on to the supervisor."""
    return lambda event: control.send({"event": msgspec.json.encode(event).decode()})

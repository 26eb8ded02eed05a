"""The plan of a simulated federation, and its parties as files (party_files.py).

A client's folder also has indices.npy: the indices of its training images. Draws that affect the model may be seeded;
keys, shares and masks come from the operating system here as between hosts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from tacit.models.configuration import ImagesConfiguration
from tacit.parties.hosting.folder import MENDABLE, OpenedParty
from tacit.parties.hosting.party_file import (
    ClientFile,
    Kind,
    OwnImagesConfiguration,
    ServerFile,
)
from tacit.parties.runs.directory import RunDirectory, Seed, command_line
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.shell import Hooks
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.server import TrainingServer
from tacit.simulate.federation.cheats import SubtractingServer
from tacit.simulate.federation.faults import Faults
from tacit.simulate.federation.party_files import PartyFiles, own_images
from tacit.simulate.federation.recording import Recording

USER_ERRORS: Final = (*MENDABLE, FloatingPointError)
"""Errors that a user can fix; the message says how. Any other is a bug and leaves a traceback in the party's log."""

FAILED, ABORTED, SERVER_LOST = 1, 3, 4
"""Exit statuses of the processes; 0 is a session that is complete."""


@dataclass(frozen=True)
class Plan:
    experiment: Experiment
    run: RunDirectory
    rounds: int
    completed: int
    split_seed: int
    """Seed of the split and the initial weights: all parties must agree on the first, and a resumed run on both."""
    repeated: int = 0
    """Repeated rounds that do not count."""
    device: str = "cpu"
    verify: bool = False
    step_by_step: bool = False
    """Whether each round waits until the supervisor has shown the end of the previous one."""
    report: bool = True
    """Whether to draw report.html, which takes a second or two."""
    record_moves: bool = False
    """Record which coordinates of the model every round moves."""
    recordings: Path | None = None
    """Folder for every party's recording; only an audit asks for that."""
    subtracts: bool = False
    """Whether the server omits clients from sums, to read their differences; only an audit asks for that."""
    wire: Path | None = None
    """A new file for all traffic between clients and server; only an audit asks for that."""
    ray: str | None = None
    """Address of the Ray cluster that hosts clients; "" for one on this machine, None for none."""
    host: str = "127.0.0.1"
    faults: Faults = field(default_factory=Faults)
    unread: tuple[str, ...] = ()
    """Unreadable logs of a resumed run, which were moved."""
    started: float = field(default_factory=time.time)
    command: str = field(default_factory=command_line)

    @property
    def parties(self) -> PartyFiles:
        return PartyFiles(self.run.path)

    @property
    def seed(self) -> int | None:
        """Seed of training and rounding. A run without a given seed draws and records one, so that the record repeats
        the run. None, for the operating system's randomness, where a protection's draws hide something: no file may
        reveal the seed, unless the user chose it."""
        chosen, hides = self.experiment.federation.seed, self.experiment.hides
        return self.split_seed if chosen is None and not hides else chosen

    @property
    def recorded_seed(self) -> Seed:
        repeats = "everything" if self.experiment.encryption is None else "everything but keys"
        if self.seed is None:
            repeats = "split and initial weights"
        drawn = self.experiment.federation.seed is None
        return Seed(value=self.split_seed, drawn=drawn, repeats=repeats)


@dataclass(frozen=True)
class Role:
    """A party of a run: its folder in the run directory has its key and its party file, as on its own host."""

    plan: Plan
    name: str
    images: Path
    """Folder in which the server leaves them for the others."""

    @property
    def folder(self) -> Path:
        return self.plan.parties.folder(self.name)

    @property
    def indices(self) -> Path:
        return self.folder / "indices.npy"

    def write_server(self) -> None:
        """Write the party file of the server. OSError, as `writing`."""
        experiment, device = self.plan.experiment, cast("Device", self.plan.device)
        own = None if experiment.data.factory else ImagesConfiguration(**own_images(experiment))
        common = self.plan.parties.common(self.name)
        file = ServerFile(bind=f"tcp://{self.plan.host}:*", device=device, data=own, **common)
        self.plan.parties.write(self.name, file)

    def write_client(self, address: str) -> None:
        """Write the party file of a client that connects to this address. OSError, as `writing`."""
        experiment, device = self.plan.experiment, cast("Device", self.plan.device)
        own = own_images(experiment) | ({} if experiment.data.factory else {"indices": self.indices.name})
        file = ClientFile(
            connect=address,
            device=device,
            patience=experiment.deadlines.join + experiment.deadlines.train,
            grace=experiment.deadlines.grace,
            data=OwnImagesConfiguration(**own),
            policy=experiment.policy,
            **self.plan.parties.common(self.name),
        )
        self.plan.parties.write(self.name, file)

    def opened(self, kind: type[Kind], roster: Roster) -> OpenedParty[Kind]:
        return self.plan.parties.opened(kind, self.name, roster)

    def hooks(self) -> Hooks:
        folder = self.plan.recordings
        return self.plan.faults.of(self.name) or Hooks() if folder is None else Recording(folder, self.name)

    def machine(self) -> Callable[..., TrainingClient]:
        return self.plan.faults.machine(self.name)

    def server_machine(self) -> Callable[..., TrainingServer]:
        return SubtractingServer if self.plan.subtracts else TrainingServer

    def after_kill(self) -> Role | None:
        """Return the role for a restart of the killed party; None if it does not return."""
        faults = self.plan.faults.after_kill(self.name)
        return None if faults is None else replace(self, plan=replace(self.plan, faults=faults))


def enrol(plan: Plan, names: Sequence[str]) -> None:
    """Create all parties' keys and their roster in the run directory; a resumed run has them. RunDirectoryError if they
    cannot be written."""
    server, *clients = names
    groups = zip(clients, plan.experiment.groups(), strict=True)
    plan.parties.enrol({server: "server", **dict.fromkeys(clients, "client")}, dict(groups))


Device = Literal["cpu", "cuda"]


def server_outcome(ended: Ended) -> dict[str, Any]:
    """Describe the end of the server's session for the supervisor, and set the status of the process."""
    return {"detail": ended.detail, "status": ABORTED if ended.code else 0}


def client_outcome(ended: Ended) -> dict[str, Any]:
    """Describe the end of a client's session for the supervisor, and set the status of the process."""
    lost = ended.code in (Code.LEFT, Code.TIMEOUT)
    return {"detail": ended.detail, "status": SERVER_LOST if lost else FAILED if ended.code else 0}


def explain(error: Exception) -> dict[str, Any]:
    """Describe an error that the user can fix, for the supervisor."""
    return {"detail": " ".join(str(error).split()), "status": FAILED}

"""The plan of a simulated federation, and its parties as files (party_files.py).

The folder of a client has indices.npy too: which of the training images are its own. What affects the model may be
seeded; keys, shares and masks are drawn from the operating system here as between hosts.
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
"""What a user can mend; the message says how. Everything else is a bug and leaves a traceback in the party's log."""

FAILED, ABORTED, SERVER_LOST = 1, 3, 4
"""Exit statuses of the processes; 0 is a session that is complete."""


@dataclass(frozen=True)
class Plan:
    experiment: Experiment
    run: RunDirectory
    rounds: int
    completed: int
    split_seed: int
    """Seeds the split and the initial weights: all parties must agree on the first, and a resumed run on both."""
    repeated: int = 0
    """Rounds of those that do not count."""
    device: str = "cpu"
    verify: bool = False
    step_by_step: bool = False
    """Whether no round is finished before the supervisor has shown the end of the one before."""
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
    faults: Faults = field(default_factory=Faults)
    unread: tuple[str, ...] = ()
    """What of the logs of a resumed run could not be read, and was moved."""
    started: float = field(default_factory=time.time)
    command: str = field(default_factory=command_line)

    @property
    def parties(self) -> PartyFiles:
        return PartyFiles(self.run.path)

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
        repeats = "everything" if self.experiment.encryption is None else "everything but keys"
        if self.seed is None:
            repeats = "split and initial weights"
        drawn = self.experiment.federation.seed is None
        return Seed(value=self.split_seed, drawn=drawn, repeats=repeats)


@dataclass(frozen=True)
class Role:
    """A party of a run: its folder in the run directory has its key and its party file, as on a host of its own."""

    plan: Plan
    name: str
    images: Path
    """The folder where the server leaves them for the others."""

    @property
    def folder(self) -> Path:
        return self.plan.parties.folder(self.name)

    @property
    def indices(self) -> Path:
        return self.folder / "indices.npy"

    def write_server(self) -> None:
        """Write the party file of the server. OSError, as of `writing`."""
        experiment, device = self.plan.experiment, cast("Device", self.plan.device)
        own = None if experiment.data.factory else ImagesConfiguration(**own_images(experiment))
        common = self.plan.parties.common(self.name)
        file = ServerFile(bind=f"tcp://{self.plan.host}:*", device=device, data=own, **common)
        self.plan.parties.write(self.name, file)

    def write_client(self, address: str) -> None:
        """Write the party file of a client that connects to this address. OSError, as of `writing`."""
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
        """What the same party is given when it is started again; None if it stays away."""
        faults = self.plan.faults.after_kill(self.name)
        return None if faults is None else replace(self, plan=replace(self.plan, faults=faults))


def enrol(plan: Plan, names: Sequence[str]) -> None:
    """Make keys for all parties, and their roster, in the run directory; a resumed run has them. RunDirectoryError if
    they cannot be written."""
    server, *clients = names
    groups = zip(clients, plan.experiment.groups(), strict=True)
    plan.parties.enrol({server: "server", **dict.fromkeys(clients, "client")}, dict(groups))


Device = Literal["cpu", "cuda"]


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

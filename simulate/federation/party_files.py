"""The parties of a run on this machine: their files, which are those of parties on hosts, and the process of each.

The folder parties/ of a run has roster.toml, and for each party a folder NAME with NAME.key and party.toml. It can be
copied to another host, and the party started there by hand. The processes run the same code as hosts, with hooks; here
all parties keep their state in the folder of the run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import structs

from tacit.models.configuration import ImagesConfiguration
from tacit.parties.hosting.folder import WRONG_INPUT, OpenedParty, PartyFolder
from tacit.parties.hosting.party_file import (
    DataOwnerFile,
    Kind,
    LogConfiguration,
    ModelOwnerFile,
    OfferSection,
    PartyFile,
    party_text,
    read_party,
)
from tacit.parties.hosting.running import PartyOutcome, run_party
from tacit.parties.links.keys import KeyFileError, PartyKeys, generate, load, save
from tacit.parties.links.roster import RosterFileError, read_roster, write_roster
from tacit.parties.runs.directory import RunDirectoryError, mark_release, writing
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.event_log import Tell
from tacit.parties.session.shell import Hooks
from tacit.protocol.core.roster import Member, Role, Roster
from tacit.protocol.sum.states import Phase
from tacit.simulate.federation.child import Control

DEALER: Final = "dealer"
MODEL_OWNER: Final = "model-owner"
SUMS: Final = "sums"
"""Name of the dealer's second service."""
LISTEN: Final = "tcp://127.0.0.1:*"
NOT_YET: Final = "tcp://127.0.0.1:1"
"""Placeholder for the address of a peer that does not listen yet."""
NO_SUMS_YET: Final = "tcp://127.0.0.1:2"
"""Placeholder for the dealer's sums: a party file refuses one address for both services."""
NO_QUOTA: Final = OfferSection(images_a_day=1 << 40, refused_a_day=1 << 40)
"""[policy] of a model owner without quotas."""
QUIET: Final = LogConfiguration(level="error")
"""The event logs hold everything else."""


@dataclass(frozen=True)
class PartyFiles:
    """Keys, roster and party files of a run.

    path: the folder of the run, in which all parties keep their state.
    """

    path: Path

    @property
    def roster(self) -> Path:
        return self.path / "parties" / "roster.toml"

    def folder(self, name: str) -> Path:
        """Return the folder that can be copied to another host."""
        return self.path / "parties" / name

    def file(self, name: str) -> Path:
        return self.folder(name) / "party.toml"

    def enrol(self, roles: Mapping[str, Role], groups: Mapping[str, int] | None = None) -> None:
        """Create the parties' keys and roster, unless they exist. RunDirectoryError if they cannot be written."""
        if self.roster.exists():
            return
        # Keys without a roster come from an interrupted command, and are unused.
        shutil.rmtree(self.roster.parent, ignore_errors=True)
        members: list[Member] = []
        try:
            for name, role in roles.items():
                own = generate(name)
                self.folder(name).mkdir(parents=True)
                save(own, self.folder(name), role=role)
                members.append(own.member(role, (groups or {}).get(name, 0)))
            mark_release(self.path)
            write_roster(Roster(tuple(members)), self.roster)
        except (KeyFileError, RosterFileError, OSError) as error:
            raise RunDirectoryError(
                f"{error}; make room there, or make it writable, then give the command again"
            ) from None

    def write(self, name: str, file: PartyFile) -> None:
        """Write the file of a party. OSError, as `writing`."""
        with writing(self.file(name)):
            self.folder(name).mkdir(parents=True, exist_ok=True)
            self.file(name).write_text(party_text(file), encoding="utf-8")

    def opened(self, kind: type[Kind], name: str, roster: Roster | None = None) -> OpenedParty[Kind]:
        """Open a party whose state is in the folder of the run. roster: as read before."""
        file = read_party(kind, self.file(name))
        return OpenedParty(file, load(Path(file.key)), roster or read_roster(self.roster), self.state(name))

    def keys(self, name: str) -> PartyKeys:
        return load(self.folder(name) / f"{name}.key")

    def state(self, name: str) -> PartyFolder:
        """Return the state folder of a party, within the folder of the run."""
        return PartyFolder(self.path, party=name)

    def take_state(self, name: str, left: PartyFolder) -> None:
        """Start a party from another one's training state and adapters. OSError."""
        own = self.state(name)
        for kept, mine in ((left.learning, own.learning), (left.adapters, own.adapters)):
            if kept.exists():
                mine.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(kept, mine)

    def common(self, name: str) -> dict[str, Any]:
        return {"key": f"{name}.key", "roster": f"../{self.roster.name}", "log": QUIET}


class Surrounded(Hooks):
    _around: Hooks = Hooks()

    def entering(self, round: int, phases: set[Phase]) -> None:
        self._around.entering(round, phases)

    async def moved(self, count: int) -> None:
        await self._around.moved(count)

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        self._around.heard(sender, frames)

    def entropy(self, count: int) -> bytes:
        return self._around.entropy(count)


class HeldParty(Surrounded):
    """Hooks of a party with a process of its own."""

    def told(self, outcome: PartyOutcome) -> Any:
        return {"code": outcome.ended.code.name if outcome.ended.code else None, "detail": outcome.ended.detail}


@dataclass(frozen=True)
class PartyProgram:
    """Arguments of a party's process, except the addresses of listening peers."""

    files: PartyFiles
    name: str
    file: PartyFile
    hooks: Callable[[], HeldParty]
    """Factory, pickled, and called in the process."""
    cores: frozenset[int] | None = None
    """Processor cores that it may use; None: all."""

    def placed(self, addresses: Mapping[str, str]) -> PartyFile:
        """Return the file with its peers' addresses."""
        file = self.file
        if isinstance(file, ModelOwnerFile):
            return structs.replace(file, dealer=addresses[DEALER])
        if isinstance(file, DataOwnerFile):
            learns = file.adaptation
            if learns is not None and SUMS in addresses:
                learns = structs.replace(learns, sums=addresses[SUMS])
            return structs.replace(
                file, model_owner=addresses[MODEL_OWNER], dealer=addresses[DEALER], adaptation=learns
            )
        return file


async def hold_party(control: Control, *, program: PartyProgram, addresses: dict[str, str]) -> Any:
    """Process of one party: write its file, and run it as a host does."""
    import torch

    torch.set_num_threads(1)
    if program.cores is not None:
        os.sched_setaffinity(0, program.cores)
    program.files.write(program.name, program.placed(addresses))
    party = program.files.opened(type(program.file), program.name)
    hooks = program.hooks()
    try:
        outcome = await run_party(party, show=tell(control), hooks=hooks)
    except (*WRONG_INPUT, FloatingPointError) as error:
        control.send({"refused": " ".join(str(error).split())})
        return None
    return hooks.told(outcome)


def own_images(experiment: Experiment) -> dict[str, Any]:
    """Return [data] of a party file, with the experiment's paths, which are relative to the working directory."""
    found = {name: getattr(experiment.data, name) for name in ImagesConfiguration.__struct_fields__}
    for name in ("source", "directory"):
        if found[name].endswith(".npz") or (name == "directory" and found[name]):
            found[name] = str(Path(found[name]).absolute())
    return found


def tell(control: Control) -> Tell:
    """Forward every event of a party to the supervisor."""
    return lambda event: control.send({"event": msgspec.json.encode(event).decode()})

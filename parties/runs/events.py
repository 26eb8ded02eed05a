"""Events of a run as a whole, from the server's process."""

from __future__ import annotations

from typing import ClassVar, Final

from tacit.parties.runs.classes import TestClasses
from tacit.parties.runs.directory import Hardware, Seed, machine, versions
from tacit.protocol.core.events import Event, Level


class RunOpened(Event, frozen=True, kw_only=True):
    """The server begins or resumes the run in this directory; never logged."""

    directory: str
    experiment: str
    """Name of the experiment."""
    completed: int
    rounds: int

    @property
    def text(self) -> str:
        begins = f"goes on after round {self.completed}" if self.completed else "begins"
        return f"the run in {self.directory} {begins}"


class InvocationRecorded(Event, frozen=True, kw_only=True):
    """Origin of a session of a run."""

    LEVEL: ClassVar[Level] = "debug"

    started: float
    """Start time of the command, in seconds since 1970."""
    command: str
    """The command line."""
    versions: dict[str, str]
    """Versions of Tacit, Python, and Tacit's dependencies."""
    machine: Hardware
    seed: Seed | None = None
    """Seed of the run; None between hosts, where nobody chooses any randomness."""

    @classmethod
    def now(cls, command: str, *, started: float, device: str, seed: Seed | None = None) -> InvocationRecorded:
        """Describe this process; device: the name of the GPU, or "cpu"."""
        return cls(started=started, command=command, versions=versions(), machine=machine(device), seed=seed)


class ClassesEvaluated(Event, frozen=True, kw_only=True):
    """Metrics of the last model on each class of the server's test images."""

    LEVEL: ClassVar[Level] = "debug"

    found: TestClasses


class ClientCheated(Event, frozen=True, kw_only=True):
    """A client broke a rule by fault injection."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "cheats: {detail}"

    round: int
    how: str
    detail: str


class PartyExited(Event, frozen=True, kw_only=True):
    """The process of a party ended normally; reported by the simulation that started it."""

    LEVEL: ClassVar[Level] = "debug"
    TEXT: ClassVar[str] = "{reason}"

    reason: str


class PartyFailed(Event, frozen=True, kw_only=True):
    """The process of a party failed; reported by the simulation that started it."""

    TEXT: ClassVar[str] = "{reason}"

    reason: str
    again: bool = False
    """Whether the same failure was reported for another client of this process."""

    @property
    def level(self) -> Level:
        return "debug" if self.again else "warning"


MANY_NEIGHBOURS: Final = 300
"""Neighbours of a client beyond which a round takes minutes: each signs, checks and opens a packet for each."""


class ProcessesShared(Event, frozen=True, kw_only=True):
    """Clients of a simulation share processes, in which they take turns."""

    clients: int
    workers: int
    turns: int
    """Most clients that take turns in a process."""
    reason: str
    train_seconds: float
    phase_seconds: float
    neighbours: int = 0
    """With how many others each of them masks; 0 without masks."""

    @property
    def text(self) -> str:
        where = "1 process" if self.workers == 1 else f"{self.workers} processes"
        line = (
            f"{self.clients} clients share {where} and train in turns, up to {self.turns} in each ({self.reason}): "
            f"they get {self.train_seconds:,.0f} s to train, and {self.phase_seconds:,.0f} s for a phase"
        )
        if self.neighbours >= MANY_NEIGHBOURS:
            line += (
                f"; each masks with {self.neighbours:,} others, which takes minutes in every round: "
                'aggregation.graph = "regular" takes fewer where corrupt and dropout are small'
            )
        return line

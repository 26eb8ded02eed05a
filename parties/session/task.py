"""Computation of a session, as its shells request it: a client's side of the task, and the server's.

The configuration names the scheme, and a client looks up its side by that name; the server receives its own. State is
bytes, in the form that the configuration declares. Long work runs in the thread of the party's work; a contribution may
be a coroutine instead, which runs in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import structs

from tacit.models.interruption import Proceed
from tacit.parties.protections.sides import TaskError
from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total
from tacit.secagg.ring import Words

Octets = bytes


class UnusableSumError(ValueError):
    """A sum that cannot be used, without evidence of the party at fault."""


def check_derived(said: Configuration, derived: Configuration, host: str = "server") -> None:
    """Raise TaskError, naming the field, unless a configuration is the one that follows from its task."""
    for name, value in structs.asdict(said).items():
        if value != getattr(derived, name):
            raise TaskError(
                f"the {host}'s configuration has {name} = {value}, and from its task follows {getattr(derived, name)}: "
                "it contradicts itself"
            )


@dataclass(frozen=True)
class RoundWork:
    """Input of a client's side of the task for a round."""

    configuration: Configuration
    round: int
    state: bytes = field(repr=False)
    key: GroupKey | None
    """The key that the cohort agreed on, if the configuration requires one."""
    opened: tuple[int, tuple[str, ...]]
    """The last round whose sum this client has helped to open, and its survivors."""


@dataclass(frozen=True)
class Contribution:
    words: Words = field(repr=False)
    keep: Callable[[], None] = lambda: None
    """Called if the words are still wanted, before they are sent."""


class ClientTask:
    """A client's side of a task; the default takes no part in any."""

    outside = False
    """Whether its rounds precede the run, and do not count."""
    failure = ""
    """Reason why its last work failed; for this side only."""
    unsaved = False
    """Whether `save` must write state before any further output."""

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution | Coroutine[Any, Any, Contribution]:
        """Compute this client's part of the sum. TaskError if it cannot take part."""
        raise TaskError(f"the server asks for the scheme {work.configuration.scheme}, in which this party has no part")

    def take_fixed(self, data: bytes) -> None:
        """Use these fixed tensors of the model from now on."""

    def reencrypt(self, configuration: Configuration, order: Reencrypt) -> bytes:
        """Encrypt the state under the key of the order. TaskError without encryption."""
        raise TaskError("the server asks for an encrypted model, and its task has no encryption")

    def read_last(self, configuration: Configuration, round: int, last: LastModel) -> None:
        """Read the state after the last round, if only clients can."""

    def save(self) -> None:
        """Persist this client's state for later rounds. OSError."""

    def summed(self) -> None:
        """Called when a round ended whose sum the server applied."""

    def finish(self) -> None:
        """Called when all rounds are over: the persisted state is of no further use."""


class ServerTask:
    """The server's side of a task."""

    outside = False
    fixed: Octets = b""
    """Fixed tensors of the model, which no sum changes."""
    service: Literal["", "sums"] = ""
    """Service of a party that has several."""

    @property
    def bytes(self) -> Octets:
        return b""

    def replace(self, state: Octets) -> None:
        """Replace the state by one that clients re-encrypted under another key."""

    def decode(self, words: Words, contributors: int) -> Total:
        raise NotImplementedError

    def apply(self, total: Total, vectors: Mapping[str, Words] | None = None, *, round: int = 1) -> None:
        raise NotImplementedError

    def undo(self) -> None:
        raise NotImplementedError

    def event(self, total: Total | None, ended: RoundEnded) -> Event:
        """Complete the event of a round with this task's fields; total: None if it was aborted."""
        return ended

    @property
    def finished(self) -> bool:
        return False

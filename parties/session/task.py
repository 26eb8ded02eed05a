"""What a session computes, as its shells ask for it: a client's side of the task, and the server's.

The configuration names the scheme, and a client looks its side up by that name; the server is given its own. State is
bytes, in the form that the configuration declares. Whatever takes long is asked for in the thread of the party's work;
a contribution may be a coroutine instead, which runs in the event loop.
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
    """A sum of which nothing follows that is of use; nothing shows whose fault it is."""


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
    """A round as a client's side of the task is given it."""

    configuration: Configuration
    round: int
    state: bytes = field(repr=False)
    key: GroupKey | None
    """The key that the cohort agreed on, where the configuration asks for one."""
    opened: tuple[int, tuple[str, ...]]
    """The last round whose sum this client has helped to open, and its survivors."""


@dataclass(frozen=True)
class Contribution:
    words: Words = field(repr=False)
    keep: Callable[[], None] = lambda: None
    """Called when the words are still wanted, before they leave."""


class ClientTask:
    """A client's side of a task; this one has no part in any."""

    outside = False
    """Whether its rounds are none of the run, but before it."""
    failure = ""
    """Why its last work failed; for this side only."""
    unsaved = False
    """Whether `save` has something to write before anything else leaves."""

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution | Coroutine[Any, Any, Contribution]:
        """Compute this client's part of the sum. TaskError where it cannot take part."""
        raise TaskError(f"the server asks for the scheme {work.configuration.scheme}, in which this party has no part")

    def take_fixed(self, data: bytes) -> None:
        """Use this fixed part of the model from now on."""

    def reencrypt(self, configuration: Configuration, order: Reencrypt) -> bytes:
        """The state under the key of the order. TaskError where none is encrypted."""
        raise TaskError("the server asks for an encrypted model, and its task has no encryption")

    def read_last(self, configuration: Configuration, round: int, last: LastModel) -> None:
        """The state after the last round, where only the clients can read it."""

    def save(self) -> None:
        """Persist what this client goes by in later rounds. OSError."""

    def summed(self) -> None:
        """A round has ended whose sum the server applied."""

    def finish(self) -> None:
        """All rounds are over: what was persisted for them is of no use."""


class ServerTask:
    """The server's side of a task."""

    outside = False
    fixed: Octets = b""
    """The part of a model that no sum changes."""
    service: Literal["", "sums"] = ""
    """Which service of its party it is, where that has several."""

    @property
    def bytes(self) -> Octets:
        return b""

    def replace(self, state: Octets) -> None:
        """Clients have made another state of it, under another key."""

    def decode(self, words: Words, contributors: int) -> Total:
        raise NotImplementedError

    def apply(self, total: Total, vectors: Mapping[str, Words] | None = None, *, round: int = 1) -> None:
        raise NotImplementedError

    def undo(self) -> None:
        raise NotImplementedError

    def event(self, total: Total | None, ended: RoundEnded) -> Event:
        """The event of a round, from the fields that every task has; total: None if it was aborted."""
        return ended

    @property
    def finished(self) -> bool:
        return False

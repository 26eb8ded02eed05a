"""Base of all events of a party, for its event log, its screen and its reports.

Each protocol declares its events beside its machines, and each kind of party those of its process. Together they are
one tagged union: an event is written as a JSON object whose `event` is the name of its class in kebab case. Fields are
plain values, so that no key, share or vector gets into a log.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

import msgspec

from tacit.protocol.core.machine import Output

Level = Literal["debug", "info", "warning"]


def _tag(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


class Event(Output, msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_tag):
    """An event at a party. The process that logs it fills in `time` and `party`."""

    LEVEL: ClassVar[Level] = "info"
    TEXT: ClassVar[str] = ""
    """Template of `text`, with the names of fields in braces; empty: the name of the event and its fields."""

    time: float = 0.0
    """Seconds since 1970."""
    party: str = ""
    """Party whose log contains the event."""

    @property
    def level(self) -> Level:
        """Severity for the party's owner; an event with an error code is a warning."""
        return "warning" if getattr(self, "code", None) is not None else self.LEVEL

    @property
    def text(self) -> str:
        """One line for a person, with `party` as its subject. Peers supply parts of it: print it through `shown`."""
        given = msgspec.structs.asdict(self)
        if self.TEXT:
            return self.TEXT.format(**given)
        fields = {name: value for name, value in given.items() if name not in Event.__struct_fields__}
        said = ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, "", [], (), {}))
        name = _tag(type(self).__name__).replace("-", " ")
        return f"{name}: {said}" if said else name

    @property
    def tag(self) -> str:
        return _tag(type(self).__name__)


class MessageRefused(Event, frozen=True, kw_only=True):
    """A message broke a rule of the protocol."""

    LEVEL: ClassVar[Level] = "warning"
    TEXT: ClassVar[str] = "refused a message of {member}: {detail} ({code})"

    member: str
    code: str
    detail: str

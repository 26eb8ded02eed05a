"""What every machine of a session tells the shell around it: frames to send, and that it is finished."""

from __future__ import annotations

from dataclasses import dataclass, field

from tacit.protocol.core.codec import Frame
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Phase


@dataclass(frozen=True)
class Transmit(Output):
    """Put these frames onto the link to that party."""

    to: str
    frames: list[Frame] = field(repr=False)
    phase: Phase
    """The phase that the message belongs to."""


@dataclass(frozen=True)
class Ended(Output):
    """The machine is finished; code None if all rounds are done."""

    code: Code | None
    detail: str

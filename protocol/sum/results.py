"""What a secure sum tells the party around it, beside the messages to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Result


@dataclass(frozen=True)
class Contributed(Result):
    """Output: the client has done its part; `opened`: whose sum it helped to open."""

    opened: tuple[str, ...]


@dataclass(frozen=True)
class ClientAborted(Result):
    """Output: the client gave the round up."""

    code: Code
    detail: str
    culprit: str


@dataclass(frozen=True)
class Dropped:
    """A member that is out: since which phase, why, and whether its vector is in the sum."""

    member: str
    phase: str
    code: Code
    detail: str
    included: bool


@dataclass(frozen=True)
class Summed(Result):
    """Output: the sum over the survivors, as ring words."""

    total: npt.NDArray[Any]
    survivors: tuple[str, ...]
    vectors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    """The words of every survivor, where the agreement asks for them."""


@dataclass(frozen=True)
class ServerAborted(Result):
    """Output: there is no sum, and why; `culprit` is the member at fault or empty."""

    code: Code
    detail: str
    culprit: str

"""What the machines of a federation tell the shell around them, beside the messages to send."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tacit.protocol.aggregation_results import Dropped
from tacit.protocol.agreement import Agreement
from tacit.protocol.codec import Frame
from tacit.protocol.configuration import Configuration
from tacit.protocol.errors import Code
from tacit.protocol.messages import Phase
from tacit.protocol.roster import Roster


@dataclass(frozen=True)
class Transmit:
    """Put these frames onto the link to that party."""

    to: str
    frames: list[Frame] = field(repr=False)
    phase: Phase
    """The phase that the message belongs to."""


@dataclass(frozen=True)
class Accepted:
    """The client accepted the server's configuration."""

    configuration: Configuration


@dataclass(frozen=True)
class Train:
    """Train from this model and call `contribute`; `model` is little-endian float32 bytes."""

    round: int
    model: bytes = field(repr=False)


@dataclass(frozen=True)
class RoundOver:
    """A round ended for this client; code None if the server applied its sum."""

    round: int
    code: Code | None
    detail: str


@dataclass(frozen=True)
class Ended:
    """The machine is finished; code None if all rounds were held."""

    code: Code | None
    detail: str


@dataclass(frozen=True)
class RoundDone:
    """The server's round is over. `total` is the sum in ring words, None if the round was aborted."""

    round: int
    began: float
    """The machine's time at the start of the round, in seconds."""
    cohort: tuple[str, ...]
    survivors: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    total: npt.NDArray[Any] | None
    code: Code | None
    detail: str
    culprit: str


def agree(
    *,
    session: bytes,
    round: int,
    roster: Roster,
    configuration: Configuration,
    cohort: tuple[str, ...],
    model: bytes,
    fewest_survivors: int = 0,
) -> Agreement:
    """The Agreement that follows from what a party holds. ValueError where the cohort has no parameters.

    fewest_survivors: whose sum this party's own policy allows to open; a regular graph may ask for more.
    """
    packing = configuration.packing()
    regular = configuration.regular(len(cohort))
    parameters = configuration.parameters(len(cohort))
    return Agreement(
        session=session,
        round=round,
        server=roster.server.name,
        cohort=cohort,
        signing_keys=tuple(roster.member(name).signing_public for name in cohort),
        active=configuration.active,
        regular=regular,
        parameters=parameters,
        corrupt=configuration.colluding(len(cohort)),
        fewest_survivors=max(fewest_survivors, configuration.fewest_survivors(len(cohort)) if regular else 0),
        ring=packing.ring,
        length=packing.length,
        roster=roster.hash,
        configuration=configuration.hash(),
        model=model,
        train_seconds=configuration.train_seconds,
        phase_seconds=configuration.phase_seconds,
    )

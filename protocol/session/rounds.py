"""Outputs of a federation's machines to their shell, besides the messages to send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy.typing as npt

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Output
from tacit.protocol.core.roster import Difference, Roster
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.exchange import Dropped
from tacit.protocol.sum.plain import PlainSumClient, PlainSumServer
from tacit.protocol.sum.server import AggregationServer
from tacit.secagg.plain import PlainPacking


@dataclass(frozen=True)
class Accepted(Output):
    configuration: Configuration


@dataclass(frozen=True)
class FixedPart(Output):
    """The fixed tensors have arrived, as announced: use them, and keep them for later sessions."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Train(Output):
    """Train from this state of the round, `model`, and call `contribute`.

    key: the cohort's agreed key, if the configuration requires a group key; its members are the cohort."""

    round: int
    model: bytes = field(repr=False)
    key: GroupKey | None = None


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """One line of a client's journal, before any message of the round: it entered this round, and never enters it
    again."""

    session: bytes
    round: int
    cost: float = 0.0
    """Cost of this round in the client's budget, regardless of its outcome."""


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, tag="group"):
    """One line of a client's journal: its group from now on."""

    group: bytes
    """Hash of the group, empty if the client is in none."""


class SpendingEntry(msgspec.Struct, frozen=True, kw_only=True, tag="spending"):
    """One line of a client's journal: its spending, as others or its owner state it."""

    spent: float
    by_owner: bool = False


JournalLine = JournalEntry | GroupEntry | SpendingEntry
"""Any line of a journal."""


@dataclass(frozen=True)
class Journal(Output):
    """Lines to persist before the next output is sent."""

    entry: JournalLine


@dataclass(frozen=True)
class SpendingHeld(Output):
    """Statements of clients' spending, by the signing key of each, to persist in place of lower ones."""

    statements: Mapping[bytes, bytes]


@dataclass(frozen=True)
class RosterChanged(Output):
    """The client adopts this roster, a later version of its own: persist it before the client joins the next
    session."""

    roster: Roster
    difference: Difference


@dataclass(frozen=True)
class NewModel(Output):
    """The server's model was replaced by the same one under the clients' new key; little-endian float32 bytes.

    round: the round that made the model. A session that continues an earlier one may yield the previous model."""

    model: bytes = field(repr=False)
    round: int


@dataclass(frozen=True)
class RoundOver(Output):
    """A round ended for this client; code None if the server applied its sum."""

    round: int
    code: Code | None
    detail: str


@dataclass(frozen=True)
class RoundDone(Output):
    """The server's round is over. `total` is the sum in ring words, without secure aggregation that of a PlainSum;
    None if the round was aborted."""

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
    vectors: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    """The words of every survivor, if the scheme needs them and nothing hides them."""
    lost: tuple[str, ...] = ()
    """Members of the cohort whose link or process was lost during the round."""

    @property
    def missed(self) -> bool:
        """Whether there is no sum because clients were lost: the round is repeated, and does not count."""
        return self.total is None and bool(self.lost) and not self.culprit


def agree(
    *,
    session: bytes,
    round: int,
    roster: Roster,
    configuration: Configuration,
    cohort: tuple[str, ...],
    model: bytes,
    group_key: bytes = b"",
    fewest_survivors: int = 0,
) -> Agreement:
    """The Agreement that follows from a party's inputs. ValueError if the cohort has no valid parameters.

    cohort: of whole groups. fewest_survivors: the smallest sum that this party's policy opens; a scheme that plans for
    the tolerated dropouts, as coordinated weights do, assumes that no more are lost."""
    packing = configuration.packing()
    parameters = configuration.parameters(len(cohort))
    places = {name: place for place, name in enumerate(cohort)}
    groups = roster.groups if configuration.secure else ()
    left = configuration.fewest_survivors(len(cohort)) if configuration.secure else 0
    return Agreement(
        session=session,
        round=round,
        server=roster.server.name,
        cohort=cohort,
        signing_keys=tuple(roster.member(name).signing_public for name in cohort),
        active=configuration.active,
        regular=parameters.neighbours < len(cohort) - 1,
        parameters=parameters,
        fewest_survivors=max(fewest_survivors, left),
        groups=tuple(tuple(places[name] for name in group) for group in groups if group[0] in places),
        ring=packing.ring,
        length=packing.length,
        roster=roster.hash,
        lineage=roster.lineage,
        spending=configuration.spending,
        configuration=configuration.hash(),
        model=model,
        group_key=group_key,
        plain=packing if isinstance(packing, PlainPacking) else None,
        single_vectors=configuration.single_vectors,
        train_seconds=configuration.train_seconds,
        phase_seconds=configuration.phase_seconds,
    )


ClientPart = AggregationClient | PlainSumClient
ServerPart = AggregationServer | PlainSumServer
"""Either side of a sum, masked or not."""


def sum_client(agreement: Agreement, name: str, **given: Any) -> ClientPart:
    """The client of a sum, masked or plain by the agreement; given: common arguments of both."""
    return (AggregationClient if agreement.secure else PlainSumClient)(agreement, name, **given)


def sum_server(agreement: Agreement, now: float) -> ServerPart:
    """The server of a sum, masked or plain by the agreement."""
    return (AggregationServer if agreement.secure else PlainSumServer)(agreement, now)

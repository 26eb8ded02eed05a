"""What the machines of a federation tell the shell around them, beside the messages to send."""

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
    """The part of the model that is not trained has come, as announced: to be used, and kept for later sessions."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class Train(Output):
    """Work from this state of the round, `model`, and call `contribute`.

    key: what the cohort agreed on, where the configuration asks for a group key; its members are the cohort.
    """

    round: int
    model: bytes = field(repr=False)
    key: GroupKey | None = None


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """One line of a client's journal, before anything of the round leaves: it entered this round, and never enters it
    again."""

    session: bytes
    round: int
    cost: float = 0.0
    """What this round costs of the client's budget, whatever becomes of its vector."""


class GroupEntry(msgspec.Struct, frozen=True, kw_only=True, tag="group"):
    """One line of a client's journal: the group that it is in from now on."""

    group: bytes
    """Its hash, empty where the client is in none."""


class SpendingEntry(msgspec.Struct, frozen=True, kw_only=True, tag="spending"):
    """One line of a client's journal: it has spent so much, as others know or its owner says."""

    spent: float
    by_owner: bool = False


JournalLine = JournalEntry | GroupEntry | SpendingEntry
"""Whatever stands in a journal."""


@dataclass(frozen=True)
class Journal(Output):
    """To be on the disk before the next output leaves."""

    entry: JournalLine


@dataclass(frozen=True)
class SpendingHeld(Output):
    """Statements of clients' spending, by the signing key of each, to be kept in the place of lower ones."""

    statements: Mapping[bytes, bytes]


@dataclass(frozen=True)
class RosterChanged(Output):
    """The client takes up this roster, a later version of its own: to be kept before it joins the next session."""

    roster: Roster
    difference: Difference


@dataclass(frozen=True)
class NewModel(Output):
    """The server's model was replaced by the same one under the clients' new key; little-endian float32 bytes.

    round: after which round it is the model. In a session that goes on after an earlier one it may be the one before.
    """

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
    """The words of every survivor, where the scheme needs them and nothing hides them."""
    lost: tuple[str, ...] = ()
    """Members of the cohort whose link or process was lost during the round."""

    @property
    def missed(self) -> bool:
        """Whether there is no sum because clients were lost: the round is held again, and does not count."""
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
    """The Agreement that follows from what a party holds. ValueError where the cohort has no parameters.

    cohort: of whole groups. fewest_survivors: whose sum this party's own policy allows to open; who plans for the
    tolerated dropouts, as coordinated weights do, counts on no more being lost.
    """
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
    """The client of a sum, masked or not as the agreement says; given: what both take."""
    return (AggregationClient if agreement.secure else PlainSumClient)(agreement, name, **given)


def sum_server(agreement: Agreement, now: float) -> ServerPart:
    """The server of a sum, masked or not as the agreement says."""
    return (AggregationServer if agreement.secure else PlainSumServer)(agreement, now)

"""The dealer on its own host: it deals correlated randomness and, in adaptation, sums the data owners' shares.

It persists nothing of a session of private inference. The last sum of an adaptation is persisted before anybody
receives it, so that a restarted dealer resumes from there.
"""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from tacit.models.file_system import replace_file
from tacit.models.training import resolve_device
from tacit.parties.adaptation.events import SumsResumed
from tacit.parties.adaptation.rounds import (
    RoundsTask,
    configure_rounds,
    deal_and_sum,
    roster_of_sums,
)
from tacit.parties.hosting.folder import OpenedParty, at_work, read_state
from tacit.parties.hosting.party_file import DealerFile, SummingSection
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.hosting.server import describe
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.links.tokens import TokenFile
from tacit.parties.runs.directory import command_line
from tacit.parties.runs.events import InvocationRecorded
from tacit.parties.runs.experiment import Experiment, FederationSection
from tacit.parties.session.event_log import EventFile, EventLog, Tell
from tacit.parties.session.server import ServerSettings
from tacit.parties.session.shell import Hooks
from tacit.protocol.core.machine import Ended


class DealerHooks(Hooks):
    """Points at which a simulation changes a dealer; the defaults are those of hosts."""

    def origin(self) -> InvocationRecorded:
        return InvocationRecorded.now(command_line(), started=time.time(), device="cpu")


class KeptSum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    round: Annotated[int, Meta(ge=1, le=2**31)]
    words: bytes
    """Initial state of the next round."""


async def run_dealer(party: OpenedParty[DealerFile], *, show: Tell, hooks: DealerHooks | None = None) -> PartyOutcome:
    """Deal until stopped, or deal and sum until the rounds are over.

    ValueError for an unsuitable roster, a missing device, and an invalid sum on disk; EndpointError if it cannot
    listen."""
    hooks = hooks or DealerHooks()
    file, own = party.file, party.file.adaptation
    _ = party.roster.dealer  # Raises unless there is exactly one.
    rounds = 0 if own is None else own.rounds
    with (
        at_work(party, show, rounds=rounds, learning=own is not None) as tell,
        EventFile(party.folder.events(party.name), party.name) as log,
    ):
        dealing = DealerSettings(
            address=file.bind,
            keys=party.keys,
            roster=party.roster,
            patience=file.answer,
            device=resolve_device(file.device),
            tokens=TokenFile(party.folder.tokens),
            hooks=hooks,
        )
        if own is None:
            await DealerParty(dealing, EventLog(log, tell)).run()
            return PartyOutcome(Ended(None, "it deals no more"))
        return PartyOutcome(await _deal_and_sum(party, own, dealing, log, tell, hooks))


async def _deal_and_sum(
    party: OpenedParty[DealerFile],
    own: SummingSection,
    dealing: DealerSettings,
    log: EventFile,
    tell: Tell,
    hooks: DealerHooks,
) -> Ended:
    kept = party.folder.sum
    last = read_state(kept, KeptSum, remedy="restore it, or remove it to begin with round 1")
    completed = 0 if last is None else last.round
    if completed:
        tell(SumsResumed(round=completed))
    summing, words = _summing(party, own, completed=completed), None if last is None else last.words

    log.write(describe(summing.configuration))
    log.write(hooks.origin())

    def keep(round: int, words: bytes) -> None:
        if round <= own.rounds:
            replace_file(kept, msgspec.msgpack.encode(KeptSum(round=round, words=words)))

    dealt, summed = EventLog(log, tell), EventLog(log, tell)
    return await deal_and_sum(dealing, summing, last=words, dealt=dealt, summed=summed, on_sum=keep)


def _summing(party: OpenedParty[DealerFile], own: SummingSection, *, completed: int) -> ServerSettings:
    """Settings of the server of the sums. ValueError for too few data owners, and groups that do not fit."""
    roster = roster_of_sums(party.roster)
    owners, needed = len(roster.clients), own.smallest_cohort + own.colluders
    if owners < needed:
        raise ValueError(
            f"the roster has {owners} data owners: sums of {own.smallest_cohort} beside {own.colluders} who may "
            f"collude need {needed}; add the others, or lower adaptation.smallest_cohort"
        )
    terms = Experiment(
        federation=FederationSection(clients=owners, rounds=own.rounds),
        aggregation=own.aggregation,
        deadlines=own.deadlines,
    ).terms()
    terms.check_dropouts(grouped=bool(roster.groups))
    terms.check_groups(roster.group_sizes, owners, needed)
    return ServerSettings(
        address=own.sums,
        keys=party.keys,
        roster=roster,
        configuration=configure_rounds(terms, RoundsTask(words=own.words, rounds=own.rounds)),
        # In one more round, which trains nothing, data owners receive the last sum.
        rounds=own.rounds + 1 - completed,
        completed=completed,
        smallest_cohort=needed,
        join_seconds=own.deadlines.join,
        regather_seconds=own.deadlines.join,
        grace=own.deadlines.grace,
        tokens=TokenFile(party.folder.sum_tokens),
    )

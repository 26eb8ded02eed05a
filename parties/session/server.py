"""The server process: the training server machine on a ZeroMQ socket, and the global model.

Applying a sum and evaluating the model take long and run in a thread, so that clients are still served.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from tacit.parties.links.endpoint import (
    Event,
    LinkLost,
    LinkUp,
    MessageRefused,
    NotConnectedError,
    PeerStalledError,
    Received,
)
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.links.tokens import TokenFile
from tacit.parties.session import events
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.shell import Hooks, Shell
from tacit.parties.session.spending import SpendingFile
from tacit.parties.session.task import ServerTask, UnusableSumError
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.events import Event as LoggedEvent
from tacit.protocol.core.events import MessageRefused as RefusalLogged
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.core.roster import Roster, difference
from tacit.protocol.session.events import ClientJoined, ClientLeft, RoundStarted
from tacit.protocol.session.rounds import NewModel, RoundDone, SpendingHeld
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.session.states import SessionState
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total


@dataclass(frozen=True)
class ServerSettings:
    address: str
    keys: PartyKeys
    roster: Roster
    configuration: Configuration
    rounds: int
    completed: int
    """Rounds completed in an earlier session; the first one is numbered after them."""
    smallest_cohort: int
    join_seconds: float
    grace: float
    tokens: TokenFile | None = None
    """Tokens that detect copied folders, of clients or its own; None: no detection."""
    spending: SpendingFile | None = None
    """File of clients' statements of their spending; None: not kept."""
    enough_seconds: float | None = None
    """Seconds to gather before the minimum of clients suffices; None: as long as join_seconds."""
    participants: int | None = None
    """Participating clients, from which every round samples a cohort; None: as many as a cohort has at most."""
    sampling: bytes = b""
    """Seed of client sampling; empty: the operating system's randomness."""
    resized: Callable[[Roster], tuple[Configuration, int]] | None = None
    """The configuration and the number of participants for another roster; None: unchanged."""
    regather_seconds: float = 0.0
    """Seconds to gather again once rounds have begun and too few clients are left; 0: no limit."""
    repeats: bool = False
    """Whether a round that lost its clients is repeated, under the next number, and does not count."""
    newer_roster: Callable[[Roster], Roster | None] = lambda roster: None
    """Return a later version of this roster, if any; called between rounds, and periodically before the first."""
    missing: Callable[[], Mapping[str, str]] = dict
    """Return clients that will not come, with the reason or "" if unknown; called periodically before the first
    round."""


@dataclass(frozen=True)
class Evaluation:
    """Metrics of a model on test images, or on those of the clients; None if unknown."""

    accuracy: float | None = None
    balanced_accuracy: float | None = None
    loss: float | None = None


AWAITED_SECONDS: Final = 5.0
"""Seconds in which nobody joins, after which those that are waited for are named."""

OnRound = Callable[[RoundDone, Total | None], Evaluation]

MANY_CLIENTS: Final = 100
WAITING_SECONDS: Final = 0.1
"""Least seconds between two reports of stragglers, with many clients: with a thousand every message changes the list,
and each report names them all."""


class ServerParty(Shell[TrainingServer, ServerEndpoint]):
    """Run the rounds of one session.

    on_round: called in a thread after every round with its sums, None if it was aborted, when they are applied to the
    model; its result goes into the event of the round. ValueError, after undoing the sum, aborts the round, and it is
    called again without a sum; so does any other exception, for which the sum is undone here, except OSError, which
    ends the server. make_machine: see ClientParty."""

    def __init__(
        self,
        settings: ServerSettings,
        keeper: ServerTask,
        event_log: EventLog,
        *,
        on_round: OnRound,
        hooks: Hooks | None = None,
        make_machine: Callable[..., TrainingServer] = TrainingServer,
    ) -> None:
        hooks = hooks or Hooks()
        machine = make_machine(
            settings.roster,
            settings.configuration,
            keeper.bytes,
            fixed=keeper.fixed,
            entropy=hooks.entropy,
            smallest_cohort=settings.smallest_cohort,
            join_seconds=settings.join_seconds,
            grace=settings.grace,
            now=event_log.now(),
            completed=settings.completed,
            enough_seconds=settings.enough_seconds,
            regather_seconds=settings.regather_seconds,
            participants=settings.participants,
            sampling=settings.sampling,
            held=settings.spending.held(settings.roster.lineage).items() if settings.spending else (),
        )
        super().__init__(machine, event_log, hooks)
        event_log.outside = keeper.outside
        self._settings = settings
        self._keeper = keeper
        self._waiting_for: tuple[str, ...] = ()
        self._mentioned = 0.0
        """Time of the last report."""
        self._awaited: tuple[str, ...] = ()
        self._awaited_named = math.inf
        """Time from which these are to be named."""
        self._pause = WAITING_SECONDS if len(settings.roster.clients) > MANY_CLIENTS else 0.0
        self._on_round = on_round
        self._rounds_left = settings.rounds
        self._repeated = 0
        """Rounds of this session that do not count."""
        self._gone: dict[str, str] = {}
        """Clients that left, with the reasons."""
        self._absent: dict[str, str] = {}
        """Clients excluded from this round, with the reasons, if it takes more clients than came."""
        self.successor: ServerSettings | None = None
        """Settings of the next session, with a later version of the roster."""
        self._rotated: int | None = None
        """The version of the roster in which this server has other keys."""

    async def run(self) -> Ended:
        """Listen, run the rounds, and return how the session ended. EndpointError if it cannot listen."""
        settings = self._settings
        async with await ServerEndpoint.bind(
            settings.address, keys=settings.keys, roster=settings.roster, tokens=settings.tokens
        ) as endpoint:
            # The port is known from now on, even if the system chose it.
            self._settings = replace(settings, address=endpoint.address)
            self._event_log.write(
                events.ListeningStarted(
                    address=endpoint.address, session=self._machine.session.hex(), service=self._keeper.service
                )
            )
            ended = await self._serve_until_stopped(endpoint)
        self._event_log.close(self._machine.traffic)
        if self._rotated is None:
            return ended
        detail = (
            f"version {self._rotated} of the roster has other keys of this server: start it with these, for the rest"
        )
        return Ended(Code.ROSTER, detail, final=True)

    def _may_stop(self) -> bool:
        # Stopping loses only an open round; an existing sum is applied and kept.
        return self._runner.present is None

    def _take_event(self, event: Event) -> list[Output]:
        now = self._event_log.now()
        if isinstance(event, Received):
            return self._machine.feed(event.sender, event.frames, now)
        if isinstance(event, LinkLost):
            self._machine.link_lost(event.peer, now)
        elif isinstance(event, LinkUp):
            self._machine.link_back(event.peer)
        elif isinstance(event, MessageRefused):
            error = RemoteProtocolError(Code.MALFORMED, f"a message beyond the limits: {event.reason}")
            return self._machine.reject(event.sender, error, now)
        return []

    async def _perform(self, endpoint: ServerEndpoint, outputs: Sequence[Output]) -> None:
        await super()._perform(endpoint, outputs)
        now = self._event_log.now()
        if now - self._mentioned >= self._pause and self._machine.waiting_for != self._waiting_for:
            self._mentioned, self._waiting_for = now, self._machine.waiting_for
            self._event_log.mention(events.WaitingChanged(on=list(self._waiting_for)))

    async def _perform_own(self, endpoint: ServerEndpoint, output: Output) -> None:
        if isinstance(output, Transmit):
            try:
                await endpoint.send(output.to, output.frames)
            except (NotConnectedError, PeerStalledError) as error:
                # The lost link or the deadline informs the machine.
                self._event_log.write(events.SendFailed(to=output.to, reason=str(error)))
        elif isinstance(output, SpendingHeld):
            if (spending := self._settings.spending) is not None:
                await asyncio.to_thread(spending.keep, self._settings.roster.lineage, output.statements)
        elif isinstance(output, NewModel):
            self._keeper.replace(output.model)
            # The clients' last state may be that before the last round, which is then repeated.
            settings = self._settings
            self._rounds_left = settings.completed + settings.rounds + self._repeated - output.round
        elif isinstance(output, RoundDone):
            again = self._settings.repeats and output.missed
            self._repeated += again
            self._rounds_left -= not again
            self._runner.begin(lambda proceed: self._apply(output))

    def _take_work(self, finished: asyncio.Future[tuple[str, LoggedEvent]]) -> list[Output]:
        unusable, event = finished.result()
        self._event_log.write(event)
        if self._keeper.finished:
            self._rounds_left = 0
        if self._rounds_left and (changed := self._change_roster(unusable)):
            return changed
        following = self._machine.next_round if self._rounds_left else self._machine.finish
        return following(self._keeper.bytes, self._event_log.now(), unusable=unusable)

    def _look_around(self) -> list[Output]:
        if self._machine.state is not SessionState.GATHERING:
            self._awaited = ()
            return []
        self._name_awaited(self._event_log.now())
        missing = self._settings.missing()
        if missing.keys() != self._machine.presence.missing:
            return self._machine.do_without(missing, self._event_log.now())
        return self._change_roster()

    def _name_awaited(self, now: float) -> None:
        awaited = self._machine.waiting_for
        if awaited != self._awaited:
            self._awaited, self._awaited_named = awaited, now + AWAITED_SECONDS
        elif awaited and now >= self._awaited_named:
            self._awaited_named = math.inf
            self._event_log.write(events.ClientsAwaited(on=list(awaited)))

    def _report(self, event: LoggedEvent) -> None:
        if isinstance(event, ClientLeft | RefusalLogged):
            self._gone[event.member] = event.detail
        elif isinstance(event, ClientJoined):
            self._gone.pop(event.member, None)
        elif isinstance(event, RoundStarted):
            self._absent = self._absent_from(event.cohort, event.skipped, event.undrawn)
            event = structs.replace(event, absent=self._absent, skipped={}, undrawn=[])
        super()._report(event)

    def _absent_from(self, cohort: Sequence[str], skipped: Mapping[str, str], undrawn: Sequence[str]) -> dict[str, str]:
        """Clients that could not take part in this round, with the reasons; ready clients that were not sampled are not
        among them."""
        settings, there = self._settings, self._machine.presence.there
        taking_part = {*cohort, *undrawn}
        if len(taking_part) >= (settings.participants or settings.configuration.clients):
            return {**skipped}
        missing = {name: reason for name, reason in settings.missing().items() if reason}
        known = {**dict.fromkeys(there, "its group is not complete"), **skipped, **self._gone, **missing}
        absent = (name for name in settings.roster.clients if name not in taking_part)
        return {name: known.get(name, "it has not connected") for name in absent}

    def _change_roster(self, unusable: str = "") -> list[Output]:
        settings = self._settings
        roster = settings.newer_roster(settings.roster)
        if roster is None:
            return []
        changes = difference(settings.roster, roster)
        self._event_log.write(events.RosterUpdated.between(settings.roster, roster, changes))
        if roster.server.signing_keys != settings.roster.server.signing_keys:
            # Clients are informed under the old keys; the new keys belong to another process.
            self._rotated = roster.version
            return self._machine.change_roster(roster, self._keeper.bytes, self._event_log.now(), unusable=unusable)
        # Former clients reconnect soon, and all others can wait for the next round.
        configuration, participants = settings.configuration, settings.participants
        if settings.resized is not None:
            configuration, participants = settings.resized(roster)
        self.successor = replace(
            settings,
            roster=roster,
            configuration=configuration,
            participants=participants,
            rounds=self._rounds_left,
            completed=self._machine.round,
            enough_seconds=settings.grace,
        )
        return self._machine.change_roster(roster, self._keeper.bytes, self._event_log.now(), unusable=unusable)

    def _apply(self, done: RoundDone) -> tuple[str, LoggedEvent]:
        """Apply the sum of a round, if any; returns the reason if that is impossible, and the event of the round."""
        total: Total | None = None
        unusable, code = "", done.code
        judged = Evaluation()
        if done.total is not None:
            applied = False
            try:
                total = self._keeper.decode(done.total, len(done.survivors))
                self._keeper.apply(total, done.vectors, round=done.round)
                applied = True
                judged = self._on_round(done, total)
            except OSError:
                # A disk that cannot store the model ends the server: the round would be lost at the next start.
                raise
            except UnusableSumError as error:
                total, code, unusable = None, Code.VECTOR, f"the sum is not used: {error}"
            except ValueError as error:
                total, code = None, Code.VECTOR
                unusable = f"the sum is not one of honest contributions: {error}"
            except Exception as error:  # A failed round costs the other clients no more than that round
                total, code, unusable = None, Code.VECTOR, f"the sum cannot be used: {_in_words(error)}"
                if applied:
                    self._keeper.undo()
        if total is None:
            try:
                judged = self._on_round(done, None)
            except OSError:
                raise
            except Exception as error:  # The model is unchanged, and its metrics are unknown
                unusable = unusable or f"the model cannot be evaluated: {_in_words(error)}"
        ended = events.RoundEnded(
            round=done.round,
            status="completed" if total else "aborted",
            code=code.name if code else None,
            detail=unusable or done.detail,
            culprit=done.culprit,
            cohort=list(done.cohort),
            absent=self._absent,
            repeated=bool(self._settings.repeats and done.missed),
            survivors=list(done.survivors),
            dropped=[
                events.Dropout(
                    party=dropped.member,
                    phase=dropped.phase,
                    included_in_sum=dropped.included,
                    code=dropped.code.name,
                    detail=dropped.detail,
                )
                for dropped in done.dropped
            ],
            seconds=self._event_log.now() - done.began,
            accuracy=judged.accuracy,
            balanced_accuracy=judged.balanced_accuracy,
            loss=judged.loss,
        )
        return unusable, self._keeper.event(total, ended)


def _in_words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())

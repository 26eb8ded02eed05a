"""The client process: the client's machine on a ZeroMQ link, with the work on its task beside it.

`Journal` outputs are written to disk before any later output is sent; a failing disk ends the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tacit.models.file_system import FILES, replace_file
from tacit.parties.links.client_endpoint import ClientEndpoint, CopyError
from tacit.parties.links.endpoint import Event, LinkLost, LinkUp, MessageRefused, Received
from tacit.parties.links.keys import PartyKeys
from tacit.parties.links.tokens import TokenFile
from tacit.parties.protections.sides import CraftedModelError, OtherClassesError, TaskError, TermsError
from tacit.parties.session import events
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.shell import Hooks, Shell, Work
from tacit.parties.session.spending import SpendingFile
from tacit.parties.session.task import ClientTask, Contribution, RoundWork
from tacit.protocol.core.errors import Code, ProtocolError
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.core.messages import Blob
from tacit.protocol.core.primitives import SigningKey, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import (
    Accepted,
    FixedPart,
    Journal,
    RosterChanged,
    RoundOver,
    SpendingEntry,
    SpendingHeld,
    Train,
)
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.states import SumLabel

CANNOT_TRAIN: Final = "it cannot train; its own log says why"
"""Reason sent to the server. The true reason may contain numbers of samples or losses, which leave in the secure sum
only."""
OTHER_CLASSES: Final = "its images have other classes than the task"
CRAFTED: Final = "its tripwire refuses the model; its own log says why"
_SENT_REASONS: Final[dict[type[Exception], str]] = {OtherClassesError: OTHER_CLASSES, CraftedModelError: CRAFTED}
STOPPED: Final = "its owner stopped it"


_Callback = Callable[[Any, float], list[Output]]


@dataclass(frozen=True)
class ClientSettings:
    address: str
    keys: PartyKeys
    roster: Roster
    policy: Policy
    journal: JournalFile
    patience: float
    grace: float
    connect_seconds: float | None = None
    """Seconds to try to reach the server; None: as long as its patience."""
    tokens: TokenFile | None = None
    """Tokens that detect copies of its folder; None: no detection."""
    spending: SpendingFile | None = None
    """File of other clients' statements of their spending; None: not kept."""
    spent: float | None = None
    """The owner's statement of its own spending, in the unit of Policy.cost; None: nothing."""
    fixed: Path | None = None
    """File of the model's fixed tensors for later sessions; None: not kept."""
    accepted_groups: str = ""
    """Fingerprint of a roster in which it may change its group."""
    keep_roster: Callable[[Roster], None] = lambda roster: None
    """Called with every later version of the roster that it adopts, before the session is over."""


class ClientParty(Shell[TrainingClient, ClientEndpoint]):
    """Run one client until its session ends, and hold its journal until then. JournalError if another process holds it.

    tasks: its sides of the server's tasks, by the scheme of the configuration; make_machine: factory of the machine,
    which a simulation may replace."""

    def __init__(
        self,
        settings: ClientSettings,
        tasks: Mapping[str, ClientTask],
        event_log: EventLog,
        *,
        hooks: Hooks | None = None,
        make_machine: Callable[..., TrainingClient] = TrainingClient,
    ) -> None:
        hooks = hooks or Hooks()
        machine = make_machine(
            settings.keys.name,
            settings.roster,
            signing=SigningKey(settings.keys.signing_secret),
            policy=settings.policy,
            journal=settings.journal.open(settings.keys.name),
            entropy=hooks.entropy,
            patience=settings.patience,
            grace=settings.grace,
            accepted_groups=settings.accepted_groups,
            held=settings.spending.held(settings.roster.lineage).items() if settings.spending else (),
            spent=settings.spent,
        )
        super().__init__(machine, event_log, hooks)
        self._settings = settings
        self._tasks = tasks
        self._task = ClientTask()
        """Task of the last accepted configuration."""
        self._callback: _Callback
        """Callback for the last begun work."""
        self._obstacle = ""
        """Reason why it gave up; for this side only."""
        self._refusal = ""
        """Reason of its policy to refuse the last round."""
        self._linked = False

    async def run(self) -> Ended:
        """Join, take part, and return how the session ended. EndpointError if the server cannot be reached at all."""
        settings = self._settings
        try:
            endpoint = await ClientEndpoint.connect(
                settings.address,
                keys=settings.keys,
                server=settings.roster.server,
                connect_deadline=settings.connect_seconds or settings.patience,
                context=self._hooks.context,
                tokens=settings.tokens,
            )
            async with endpoint:
                try:
                    await self._perform(endpoint, self._machine.start(self._event_log.now()))
                    ended = await self._serve(endpoint)
                except asyncio.CancelledError:
                    if self._linked and self._ended is None:
                        # Otherwise the message would be awaited, and nobody would receive it.
                        await self._perform(
                            endpoint, self._machine.give_up(STOPPED, self._event_log.now(), code=Code.LEFT)
                        )
                    raise
                except CopyError as error:
                    self._event_log.copy_found(error, settings.keys.name)
                    raise
                if ended.code in (None, Code.ROSTER) and (last := self._runner.present) is not None:
                    # Work on the last model may still be running.
                    await asyncio.wait([last])
                    self._take_work(last)
                if ended.code is None:
                    self._task.finish()
        finally:
            settings.journal.close()
            await self._runner.close()
        self._event_log.close(self._machine.traffic)
        if ended.code is Code.LEFT and endpoint.refusal is not None:
            # Not authenticated by any key, but most likely the reason.
            return replace(ended, detail=f"{ended.detail}: {endpoint.refusal}")
        if ended.code is None and (failure := self._task.failure):
            return Ended(Code.LOCAL, failure)
        if ended.code is None and self._refusal:
            return Ended(Code.POLICY, self._refusal)
        return replace(ended, detail=self._obstacle) if self._obstacle else ended

    def _take_event(self, event: Event) -> list[Output]:
        now = self._event_log.now()
        if isinstance(event, Received):
            return self._machine.feed(event.frames, now)
        if isinstance(event, LinkLost):
            self._linked = False
            self._machine.server_lost(now)
        elif isinstance(event, LinkUp):
            self._linked = True
            return self._machine.server_back()
        elif isinstance(event, MessageRefused):
            return self._machine.give_up(f"the server sent a message beyond the limits: {event.reason}", now)
        return []

    def _begin(self, work: Work, then: _Callback) -> None:
        self._callback = then
        self._runner.begin(work)

    def _take_work(self, finished: asyncio.Future[Any]) -> list[Output]:
        now = self._event_log.now()
        try:
            result = finished.result()
        except (TaskError, ArithmeticError, ValueError, ProtocolError, OSError, RuntimeError) as error:
            self._obstacle = " ".join(str(error).split()) or type(error).__name__
            self._event_log.write(events.TrainingFailed(detail=self._obstacle))
            reason = str(error) if isinstance(error, TermsError) else _SENT_REASONS.get(type(error), CANNOT_TRAIN)
            return self._machine.give_up(reason, now)
        return self._callback(result, now)

    async def _perform_own(self, endpoint: ClientEndpoint, output: Output) -> None:
        if isinstance(output, Transmit):
            if self._task.unsaved:
                # Written to disk before any output that depends on it.
                await asyncio.to_thread(self._task.save)
            await endpoint.send(output.frames)
        elif isinstance(output, Journal):
            await asyncio.to_thread(self._settings.journal.write, output.entry)
            if isinstance(output.entry, SpendingEntry):
                self._event_log.write(events.SpendingLearned(spent=output.entry.spent, by_owner=output.entry.by_owner))
        elif isinstance(output, SpendingHeld):
            if (spending := self._settings.spending) is not None:
                await asyncio.to_thread(spending.keep, self._settings.roster.lineage, output.statements)
        elif isinstance(output, FixedPart):
            self._task.take_fixed(output.data)
            if self._settings.fixed is not None:
                await asyncio.to_thread(replace_file, self._settings.fixed, output.data)
        elif isinstance(output, Train):
            self._event_log.follow(self._machine.round, self._machine.phase, self._machine.traffic)
            work = RoundWork(self._machine.configuration, output.round, output.model, output.key, self._machine.opened)
            self._begin(partial(self._task.contribute, work), partial(self._contribute, output.round))
        elif isinstance(output, Reencrypt):
            reencrypt = partial(self._task.reencrypt, self._machine.configuration, output)
            self._begin(lambda proceed: reencrypt(), partial(self._machine.provide, output.key.epoch))
        elif isinstance(output, LastModel):
            read_last = partial(self._task.read_last, self._machine.configuration, self._machine.round, output)
            self._begin(lambda proceed: read_last(), lambda result, now: [])
        elif isinstance(output, Accepted):
            chosen, session = output.configuration, self._machine.session.hex()
            self._task = self._tasks.get(chosen.scheme) or ClientTask()
            self._event_log.outside = self._task.outside
            fixed = chosen.fixed.digest.hex() if chosen.fixed.size else ""
            self._event_log.write(
                events.ConfigurationAccepted(scheme=chosen.scheme, mode=chosen.mode, session=session, fixed_part=fixed)
            )
            await asyncio.to_thread(self._look_for, chosen.fixed)
        elif isinstance(output, RosterChanged):
            await asyncio.to_thread(self._settings.keep_roster, output.roster)
            former, changes = self._settings.roster, output.difference
            self._event_log.write(events.RosterUpdated.between(former, output.roster, changes))
        elif isinstance(output, RoundOver):
            code = output.code.name if output.code else None
            self._refusal = output.detail if output.code is Code.POLICY else ""
            if code is None:
                self._task.summed()
            self._event_log.write(events.ClientRoundEnded(round=output.round, code=code, detail=output.detail))
            # It may be over before its update was made.
            self._runner.drop()

    def _look_for(self, announced: Blob) -> None:
        """Use the fixed tensors left by an earlier session, if they are the announced ones."""
        path = self._settings.fixed
        if path is None or not announced.size:
            return
        with suppress(OSError):
            data = FILES.read(path)
            if digest(SumLabel.FIXED, data) == announced.digest:
                self._task.take_fixed(data)
                self._machine.hold(announced.digest)

    def _contribute(self, round: int, contribution: Contribution, now: float) -> list[Output]:
        contribution.keep()
        return self._machine.contribute(round, contribution.words, now)

"""The client of a federation: joins, and in every round fetches the model, trains, and takes part in the secure sum.

It receives frames from the server and answers with frames to it. It does no local work: `Train` requests it from the
shell, and `contribute` brings the result. The sum begins with the round, beside the fetching and the training: its keys
and shares do not depend on the contribution, so their round trips take no extra time. A broken rule inside a round ends
that round. client_session.py has everything outside of rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy.typing as npt
from msgspec import structs

from tacit.protocol.core.blob import IncomingBlob
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import Ended, Heard, Inside, Machine, Output, Row, Send, Step, Table, Transmit, Trigger
from tacit.protocol.core.messages import Abort, Blob, Chunk, Resume
from tacit.protocol.core.roster import decode_members
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.events import GroupKeyReceived
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.group_key.states import TO_HOLDER
from tacit.protocol.session.client_session import SessionClient
from tacit.protocol.session.messages import EndRound, FetchFixed, Finish, NewRoster, StartRound, Welcome
from tacit.protocol.session.rounds import (
    Accepted,
    ClientPart,
    FixedPart,
    Journal,
    JournalEntry,
    RosterChanged,
    RoundOver,
    SpendingHeld,
    Train,
    agree,
    sum_client,
)
from tacit.protocol.session.states import CLIENT_CONTAINS, IN_SUM, NO_ROUND, SUM_TO_CLIENT, TrainingState
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.exchange import ClientAborted, Contributed
from tacit.protocol.sum.spending import SpendingSeen, held_of, state_spending
from tacit.protocol.sum.states import PHASES, Phase, SumLabel, SumTrigger


@dataclass(frozen=True)
class _Round:
    cohort: tuple[str, ...]
    model: bytes
    key: GroupKey | None
    data: bytes = field(default=b"", repr=False)
    incoming: tuple[IncomingBlob, ...] = ()


class TrainingClient(
    SessionClient,
    outputs=Transmit
    | Event
    | Journal
    | SpendingHeld
    | Accepted
    | FixedPart
    | Train
    | Reencrypt
    | LastModel
    | RoundOver
    | RosterChanged
    | Ended,
    contains=CLIENT_CONTAINS,
):
    """One client of one server, in its rounds."""

    sum: ClientPart | None
    _fixed: bytes = b""
    """Digest of the fixed tensors that this party has."""
    _model: tuple[Blob, bytes] | None = None
    """The last model that this server sent, and its announcement."""
    opened: tuple[int, tuple[str, ...]] = (0, ())
    """The last round whose sum this client has helped to open, and its survivors; 0 before the first."""

    def transitions(self) -> Table[TrainingState]:
        return TRAINING_CLIENT_TABLE

    def hold(self, fixed: bytes) -> None:
        """Record that this party has the fixed tensors of this digest from an earlier session."""
        self._fixed = fixed

    @property
    def phase(self) -> Phase:
        if self.sum is not None:
            return PHASES[self.sum.state]
        return Phase.SESSION if self.state in NO_ROUND else Phase.TRAIN

    def contribute(self, round: int, vector: npt.NDArray[Any], now: float) -> list[Output]:
        """Submit the trained update as ring words; without effect if that round is over meanwhile."""
        if self.state is not TrainingState.TRAINING or round != self.round:
            return []
        return self.trigger(SumTrigger.CONTRIBUTE, now, vector)

    def provide(self, epoch: int, model: bytes, now: float) -> list[Output]:
        """Submit the model under the key of this epoch, as `Reencrypt` requested, little-endian float32 bytes."""
        holder = self.holder
        return [] if holder is None else self.relay(holder, holder.provide(epoch, model, now), now)

    def pass_on(self, part: Machine[Any], send: Send) -> Sequence[Output]:
        if part not in (self, self.holder, self.sum):
            # The part was dropped while it sent: the round is over.
            return ()
        round = 0 if part is self.holder else self.round
        return (self._link.transmit(send.message, send.payload, round=round),)

    def on_start_round(self, heard: Heard[StartRound], now: float) -> Step[TrainingState]:
        message, round = heard.message, heard.envelope.round
        cohort = self._cohort_of(message.cohort)
        if (heard.envelope.session, round) in self._entered:
            raise RemoteProtocolError(Code.SESSION, f"this client was in round {round} of this session before")
        cost = self._policy.cost(self.configuration)
        self._policy.check_budget(spent := self._spent + cost)
        layout = self.configuration.state
        if message.model.size != layout.size:
            raise RemoteProtocolError(
                Code.MODEL, f"a model of {message.model.size} bytes; its layout has {layout.size}"
            )
        key = None if self.holder is None else self.holder.for_round(cohort)
        blobs, fixed = list[IncomingBlob](), self.configuration.fixed
        if fixed.size and fixed.digest != self._fixed:
            blobs.append(IncomingBlob(fixed, SumLabel.FIXED))
        incoming, data = IncomingBlob(message.model, SumLabel.MODEL, layout), b""
        held = self._model if self._model is not None and self._model[0] == message.model else None
        if held is not None:
            layout.check(data := held[1])
        elif incoming.complete:
            data = incoming.whole()
        else:
            blobs.append(incoming)
        part = _Round(cohort, message.model.digest, key, data, tuple(blobs))
        agreement = self._agreement(part, round)
        stated: dict[str, Any] = {}
        if agreement.secure and agreement.spending:
            others = {name: held_of(self._held, self._roster.member(name)) for name in cohort} if self._held else {}
            stated = {"spent": state_spending(self._signing, self._roster.lineage, spent), "known": others}
        begun = sum_client(agreement, self.name, signing=self._signing, entropy=self._entropy, **stated)
        fetching = self._fetched(part, round, now)
        entry = JournalEntry(session=self._link.session, round=round, cost=cost)

        def enter() -> list[Output]:
            if self.holder is not None:
                self.holder.round_begun()
            self._link.round, self._open = round, True
            self._entered.add((entry.session, entry.round))
            self._before, self._spent = self._spent, spent
            self._model, self.sum = held, begun
            return [*self.relay(begun, begun.start(now), now), *fetching.outputs]

        return structs.replace(fetching, outputs=(Journal(entry),), commit=enter)

    def on_chunk(self, heard: Heard[Chunk], now: float) -> Step[TrainingState]:
        part = self.at(_Round)
        if not part.incoming:
            raise LocalProtocolError("a chunk came of nothing that was announced")
        incoming, *others = part.incoming
        incoming = incoming.after(heard.message.chunk, heard.payload)
        if not incoming.complete:
            return self._fetched(replace(part, incoming=(incoming, *others)), self.round, now)
        data, rest = incoming.whole(), replace(part, incoming=tuple(others))
        if incoming.label is SumLabel.MODEL:

            def keep() -> None:
                self._model = incoming.announced, data

            return structs.replace(self._fetched(replace(rest, data=data), self.round, now), commit=keep)
        following = self._fetched(rest, self.round, now)

        def commit() -> None:
            self._fixed = incoming.announced.digest

        return structs.replace(following, outputs=(FixedPart(data), *following.outputs), commit=commit)

    def on_contribute(self, vector: npt.NDArray[Any], now: float) -> Step[TrainingState]:
        part, current = self.at(_Round), self.sum
        if current is None:
            raise LocalProtocolError(f"{self.name!r} contributes to no sum")
        current.check_vector(vector)
        return Step(
            TrainingState.AGGREGATING,
            commit=lambda: self.relay(current, current.contribute(vector, now), now),
            data=part,
        )

    def on_contributed(self, contributed: Contributed, now: float) -> Step[TrainingState]:
        agreement = self._agreement(self.at(_Round), self.round)
        # Without masks a client finishes while others still train.
        others = 0.0 if agreement.secure else agreement.train_seconds + agreement.input_seconds
        opened = self.round, contributed.opened

        def commit() -> None:
            self.opened = opened

        return Step(TrainingState.AWAIT_ROUND, (), commit, deadline=now + others + self._patience)

    def on_sum_aborted(self, aborted: ClientAborted, now: float) -> Step[TrainingState]:
        return self._over(aborted.code, aborted.detail, now)

    def on_key(self, key: GroupKey, now: float) -> Step[TrainingState]:
        report = GroupKeyReceived(epoch=key.epoch, members=list(key.members))
        return Step(TrainingState.AWAIT_ROUND, (report,))

    def on_key_aborted(self, aborted: ClientAborted, now: float) -> Step[TrainingState]:
        return self._end(RemoteProtocolError(aborted.code, aborted.detail, culprit=aborted.culprit))

    def on_end_round(self, heard: Heard[EndRound], now: float) -> Step[TrainingState]:
        return self._over(heard.message.code, heard.message.detail, now)

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[TrainingState]:
        if self.state is TrainingState.AWAIT_WELCOME or not error.round:
            return self._end(error)
        over = self._over(error.code, error.detail, now)
        abort = Abort(code=error.code, detail=error.detail, culprit=error.culprit or sender)
        never_begun = (RoundOver(error.round, error.code, error.detail),) if error.round > self.round else ()

        def commit() -> list[Output]:
            over.commit()
            self._link.round = error.round
            return [self._link.transmit(abort)]

        return structs.replace(over, outputs=over.outputs + never_begun, commit=commit)

    def _cohort_of(self, bitmap: bytes) -> tuple[str, ...]:
        """The clients in a bitmap; refuses a cohort without this one, with a part of a group, or below its policy."""
        clients = self._roster.clients
        cohort = tuple(clients[index] for index in decode_members(bitmap, len(clients)))
        if self.name not in cohort:
            raise RemoteProtocolError(
                Code.MEMBERS, "this client was not selected for the round that it is asked to join"
            )
        self._roster.check_whole(cohort)
        self._policy.check_cohort(self.configuration, len(cohort))
        return cohort

    def _fetched(self, part: _Round, round: int, now: float) -> Step[TrainingState]:
        if not part.incoming:
            return Step(TrainingState.TRAINING, (Train(round, part.data, part.key),), data=replace(part, data=b""))
        incoming = part.incoming[0]
        sends = tuple(
            Send(self._server, FetchFixed(chunk=fetch.chunk) if incoming.label is SumLabel.FIXED else fetch)
            for fetch in incoming.requests
        )
        deadline = now + 2 * self.configuration.phase_seconds
        return Step(TrainingState.FETCHING_MODEL, sends, data=part, deadline=deadline)

    def _agreement(self, part: _Round, round: int) -> Agreement:
        return agree(
            session=self._link.session,
            round=round,
            roster=self._roster,
            configuration=self.configuration,
            cohort=part.cohort,
            model=part.model,
            group_key=part.key.transcript if part.key else b"",
            fewest_survivors=self._policy.smallest_cohort,
        )


def _client_table() -> Table[TrainingState]:
    s = TrainingState
    table: dict[Any, Any] = {
        (s.OFFLINE, Trigger.START): Row(TrainingClient.on_start, (s.AWAIT_WELCOME,)),
        (s.AWAIT_WELCOME, Welcome): Row(TrainingClient.on_welcome, (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, StartRound): Row(TrainingClient.on_start_round, (s.FETCHING_MODEL, s.TRAINING)),
        (s.AWAIT_ROUND, EndRound): Row(TrainingClient.on_end_round, (s.AWAIT_ROUND,)),
        **{(s.AWAIT_ROUND, kind): Inside("holder") for kind in TO_HOLDER},
        (s.AWAIT_ROUND, GroupKey): Row(TrainingClient.on_key, (s.AWAIT_ROUND,)),
        (s.AWAIT_ROUND, ClientAborted): Row(TrainingClient.on_key_aborted, (s.ENDED,)),
        (s.FETCHING_MODEL, Chunk): Row(TrainingClient.on_chunk, (s.FETCHING_MODEL, s.TRAINING)),
        (s.TRAINING, SumTrigger.CONTRIBUTE): Row(TrainingClient.on_contribute, (s.AGGREGATING,)),
        **{(state, kind): Inside("sum") for state in IN_SUM for kind in SUM_TO_CLIENT},
        **{(state, ClientAborted): Row(TrainingClient.on_sum_aborted, (s.AWAIT_ROUND,)) for state in IN_SUM},
        **{(state, SpendingSeen): Row(TrainingClient.on_spending_seen, (state, s.AWAIT_ROUND)) for state in IN_SUM},
        (s.AGGREGATING, Contributed): Row(TrainingClient.on_contributed, (s.AWAIT_ROUND,)),
    }
    outside = (s.AWAIT_WELCOME, s.AWAIT_ROUND)
    within = tuple(state for state in s if state not in NO_ROUND)
    state: TrainingState
    for state in within:
        table[state, EndRound] = Row(TrainingClient.on_end_round, (s.AWAIT_ROUND,))
    for state in outside + within:
        table[state, Finish] = Row(TrainingClient.on_finish, (s.ENDED,))
        table[state, NewRoster] = Row(TrainingClient.on_new_roster, (s.ENDED,))
        table[state, Resume] = Row(TrainingClient.on_resume, tuple(dict.fromkeys((state, s.AWAIT_WELCOME))))
        ends = {s.AWAIT_WELCOME: (s.AWAIT_WELCOME, s.ENDED), s.AWAIT_ROUND: (s.AWAIT_WELCOME, s.ENDED)}
        table[state, Abort] = Row(TrainingClient.on_abort, ends.get(state, (s.AWAIT_ROUND, s.AWAIT_WELCOME, s.ENDED)))
        asks = (s.AWAIT_ROUND,) if state is s.AWAIT_ROUND else ()
        table[state, Trigger.EXPIRE] = Row(TrainingClient.on_expire, (*asks, s.AWAIT_WELCOME, s.ENDED))
        table[state, Trigger.DROP] = Row(TrainingClient.on_drop, (s.ENDED,))
    for state in IN_SUM:
        table[state, Abort] = Inside("sum", table[state, Abort])
    return table


TRAINING_CLIENT_TABLE: Final = _client_table()

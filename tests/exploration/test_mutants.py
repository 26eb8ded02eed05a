"""The explorer can fail: each of these machines lacks one check, and each is caught."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Handler, Heard, Output, Row, Step
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import Members, decode_members
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.messages import StartRound
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.messages import AnswerComplaints, MaskedInput, PeerComplaints, Survivors, UnmaskRequest
from tacit.protocol.sum.server import AggregationServer
from tacit.protocol.sum.sharing import HeldShares
from tacit.protocol.sum.states import ClientState, ServerState
from tests.exploration.engine import RuleBroken, World, explore
from tests.exploration.lying_world import LyingWorld
from tests.exploration.network_world import NetworkWorld
from tests.exploration.page import PAIRS
from tests.exploration.secure_sum import Cohort
from tests.exploration.session import Clients
from tests.exploration.session_lying_world import SessionLyingWorld


class Remembering(AggregationClient):
    """Keeps its secrets, so that a wrong row has something to give away."""

    def _take(self, step: Step[ClientState], now: float) -> list[Output]:
        kept = self.data
        outputs = super()._take(step, now)
        self.data = self.data or kept
        return outputs

    def admit(self, state: ClientState, kind: type[Message], handler: Handler, to: ClientState) -> None:
        self.table = {**self.table, (state, kind): Row(handler, (to,))}


class OpensTwice(Remembering):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.admit(ClientState.DONE, UnmaskRequest, AggregationClient.on_unmask_request, ClientState.DONE)


class OpensAfterGivingUp(Remembering):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.admit(ClientState.ABORTED, UnmaskRequest, AggregationClient.on_unmask_request, ClientState.DONE)

    def on_unmask_request(self, heard: Heard[UnmaskRequest], now: float) -> Step[ClientState]:
        if not hasattr(self.data, "held"):
            raise self.unexpected(UnmaskRequest)
        return super().on_unmask_request(heard, now)


class OpensWithoutThreshold(AggregationClient):
    def _require(self, count: int, what: str, needed: int | None = None) -> None:
        if what != "clients survived":
            super()._require(count, what, needed)


class OpensForStrangers(AggregationClient):
    def _checked_survivors(self, own: Any, bitmap: bytes) -> Members:
        return super()._checked_survivors(replace(own, sharers=Members(b"\xff", 8)), bitmap)


class OpensItself(AggregationClient):
    def _checked_survivors(self, own: Any, bitmap: bytes) -> Members:
        self.member, member = next(iter(Members(bitmap, self.agreement.size)), self.member), self.member
        try:
            return super()._checked_survivors(own, bitmap)
        finally:
            self.member = member


class ChecksNoSignature(AggregationClient):
    def _check_signatures(self, *arguments: Any) -> None: ...


class BelievesTheRequest(AggregationClient):
    def on_unmask_request(self, heard: Heard[UnmaskRequest], now: float) -> Step[ClientState]:
        self.data = replace(self.data, survivors=Members(heard.message.survivors, self.agreement.size))
        return super().on_unmask_request(heard, now)


class OpensUnconfirmed(BelievesTheRequest, Remembering):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.admit(ClientState.AWAIT_SURVIVORS, UnmaskRequest, AggregationClient.on_unmask_request, ClientState.DONE)


class SignsTwice(Remembering):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        state = ClientState.AWAIT_UNMASK_REQUEST
        self.admit(state, Survivors, AggregationClient.on_survivors, state)


class AnswersAnybody(AggregationClient):
    def on_peer_complaints(self, heard: Heard[PeerComplaints], now: float) -> Step[ClientState]:
        holders = decode_members(heard.message.holders, self.agreement.size)
        shares = b"".join(self.data.given[holder].both for holder in holders if holder in self.data.given)
        return Step(ClientState.AWAIT_SURVIVORS, (self._send(AnswerComplaints(shares=shares)),))


class BlamesTheAccused(AggregationServer):
    def on_answer_complaints(self, heard: Heard[AnswerComplaints], now: float) -> Step[ServerState]:
        raise RemoteProtocolError(Code.SHARES, "somebody complained")


class KeepsTheAnswers(AggregationServer):
    def close_complaints(self, now: float) -> Step[ServerState]:
        step = super().close_complaints(now)
        self._answers = {}
        return step


class SwapsShares(AggregationClient):
    def on_unmask_request(self, heard: Heard[UnmaskRequest], now: float) -> Step[ClientState]:
        swapped = {owner: HeldShares(held.seed, held.key) for owner, held in self.data.held.items()}
        self.data = replace(self.data, held=swapped)
        return super().on_unmask_request(heard, now)


class WaitsForEver(AggregationClient):
    def on_peer_keys(self, *arguments: Any) -> Step[ClientState]:
        return structs.replace(super().on_peer_keys(*arguments), deadline=None)


class AddsTwice(AggregationServer):
    def late(self, sender: str, packet: Packet) -> bool:
        return packet.kind is not MaskedInput and super().late(sender, packet)


class TakesLateVectors(AggregationServer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        late = Row(AggregationServer.on_masked_input, (ServerState.UNMASK,))
        self.table = {**self.table, (ServerState.UNMASK, MaskedInput): late}

    def late(self, sender: str, packet: Packet) -> bool:
        if packet.kind is MaskedInput:
            return self.agreement.places[sender] in self._vectors.ready
        return super().late(sender, packet)

    def on_masked_input(self, heard: Heard[MaskedInput], now: float) -> Step[ServerState]:
        self._vectors._left_out.clear()
        return super().on_masked_input(heard, now)


class CountsTheDropped(AggregationServer):
    def close_inputs(self, now: float) -> Step[ServerState]:
        self._vectors.included |= self._packets.keys()
        return super().close_inputs(now)


class ForgetsSurvivors(AggregationServer):
    def close_unmask(self, now: float) -> Step[ServerState]:
        self._survivors = tuple(member for member in self._survivors if member not in self.dropped)
        return super().close_unmask(now)


class GoesOnWithFew(AggregationServer):
    def _shortage(self, *count: Any) -> None: ...


class ServerWaitsForEver(AggregationServer):
    def _begin_phase(self, members: tuple[int, ...], now: float) -> None:
        super()._begin_phase(members, now)
        if getattr(self, "_adverts_digest", b""):  # Not in its first phase.
            self.deadline = None


class PublishesNothing(AggregationServer):
    def close_unmask(self, now: float) -> Step[ServerState]:
        step = super().close_unmask(now)
        return Step(step.state, (), step.commit)


class OpensPartsOfGroups(AggregationClient):
    def _checked_survivors(self, own: Any, bitmap: bytes) -> Members:
        agreement = self.agreement
        self.agreement = replace(agreement, groups=tuple((member,) for member in range(agreement.size)))
        try:
            return super()._checked_survivors(own, bitmap)
        finally:
            self.agreement = agreement


class JournalsAfterwards(TrainingClient):
    """Its journal is written after the first message of a sum."""

    def on_start_round(self, heard: Heard[StartRound], now: float) -> Step[TrainingState]:
        step = super().on_start_round(heard, now)
        return structs.replace(step, outputs=(), commit=lambda: [*(step.commit() or ()), *step.outputs])


class ForgetsItsJournal(TrainingClient):
    def __init__(self, *arguments: Any, journal: Any, **named: Any) -> None:
        super().__init__(*arguments, journal=(), **named)


class ForgetsWhatItEntered(TrainingClient):
    def on_start_round(self, heard: Heard[StartRound], now: float) -> Step[TrainingState]:
        step, entered = super().on_start_round(heard, now), {*self._entered}

        def commit() -> Any:
            outputs = step.commit()
            self._entered = entered
            return outputs

        return structs.replace(step, commit=commit)


class EntersOneRoundOnly(TrainingClient):
    """No round comes after one that it was in, as if it might have been the same."""

    def on_start_round(self, heard: Heard[StartRound], now: float) -> Step[TrainingState]:
        if self._entered:
            raise RemoteProtocolError(Code.SESSION, "this client was in a round from this model before")
        return super().on_start_round(heard, now)


class WaitsForEverForARound(TrainingClient):
    def on_welcome(self, *arguments: Any) -> Step[TrainingState]:
        return structs.replace(super().on_welcome(*arguments), deadline=None)


def liar(client: type[AggregationClient], *, active: bool, whole: bool, size: int = 3) -> World[Any]:
    return LyingWorld(Cohort(size, 2, active=active, client=client), whole=whole)


def network(server: type[AggregationServer], *, copies: int, interruptions: int) -> World[Any]:
    return NetworkWorld(Cohort(3, 2, active=False, server=server), copies=copies, interruptions=interruptions)


def liar_about_groups(client: type[AggregationClient]) -> World[Any]:
    return LyingWorld(Cohort(4, 3, active=True, groups=PAIRS, client=client), whole=False)


LIAR = partial(liar, active=False, whole=False)
LIAR_ABOUT_ALL = partial(liar, active=False, whole=True)
LIAR_TO_FOUR = partial(liar, active=False, whole=False, size=4)
"""With a threshold of only half of the clients."""
LIAR_TO_ACTIVE = partial(liar, active=True, whole=False)


def liar_over_rounds(client: type[TrainingClient], *, sessions: int = 1, starts: int = 1) -> World[Any]:
    return SessionLyingWorld(Clients(3, client=client), sessions=sessions, rounds=3 - sessions, starts=starts)


def complaining(server: type[AggregationServer]) -> World[Any]:
    cohort = Cohort(4, 3, active=True, server=server, spoiler="c1")
    return NetworkWorld(cohort, copies=1, interruptions=0)


def liar_with_one(client: type[AggregationClient]) -> World[Any]:
    return LyingWorld(Cohort(4, 3, active=True, client=client), whole=False, corrupt=True)


LIAR_OVER_SESSIONS = partial(liar_over_rounds, sessions=2)
LIAR_TO_ONE_WHO_RESTARTS = partial(liar_over_rounds, starts=2)
REPEATING = partial(network, copies=2, interruptions=0)
INTERRUPTED = partial(network, copies=1, interruptions=1)
INTERRUPTED_TWICE = partial(network, copies=1, interruptions=2)

MUTANTS: list[tuple[Callable[[Any], World[Any]], type[Any], str]] = [
    (LIAR, OpensTwice, "opened twice"),
    (LIAR, OpensAfterGivingUp, "spoke after it had given up"),
    (LIAR, OpensWithoutThreshold, "accepted too few survivors"),
    (LIAR_ABOUT_ALL, OpensForStrangers, "accepted survivors who never shared"),
    (LIAR, OpensItself, "accepted survivors without itself"),
    (LIAR, SwapsShares, "sent a share of the wrong kind"),
    (LIAR, WaitsForEver, "waits without a deadline in AWAIT_PEER_SHARES"),
    (LIAR_TO_FOUR, AggregationClient, "shares that open both secrets of"),
    (LIAR_TO_ACTIVE, ChecksNoSignature, "clients opened sums over different survivors"),
    (LIAR_TO_ACTIVE, BelievesTheRequest, "opened a sum over survivors that it did not sign"),
    (LIAR_TO_ACTIVE, OpensUnconfirmed, "opened a sum over survivors that it did not sign"),
    (LIAR_TO_ACTIVE, SignsTwice, "signed two different sets of survivors"),
    (liar_about_groups, OpensPartsOfGroups, "accepted survivors that cut a group in two"),
    (liar_with_one, AnswersAnybody, "answered more complaints than holders may lie"),
    (LIAR_TO_ONE_WHO_RESTARTS, JournalsAfterwards, "spoke before its journal was written"),
    (LIAR_TO_ONE_WHO_RESTARTS, ForgetsItsJournal, "entered round 1 twice"),
    (LIAR_OVER_SESSIONS, ForgetsWhatItEntered, "entered round 1 twice"),
    (liar_over_rounds, WaitsForEverForARound, "waits without a deadline in AWAIT_ROUND"),
    (liar_over_rounds, EntersOneRoundOnly, "cannot be in a round of an honest server any more"),
    (complaining, BlamesTheAccused, "for SHARES, though it kept the rules"),
    (complaining, KeepsTheAnswers, "for SHARES, though it kept the rules"),
    (REPEATING, AddsTwice, "server published another sum than that of its survivors"),
    (INTERRUPTED, TakesLateVectors, "for SHARES, though it kept the rules"),
    (INTERRUPTED, CountsTheDropped, "server published another sum than that of its survivors"),
    (INTERRUPTED, ForgetsSurvivors, "server gave up with shares enough to open a secret"),
    (INTERRUPTED_TWICE, GoesOnWithFew, "server published a sum over too few members"),
    (REPEATING, PublishesNothing, "server has 0 results in"),
    (INTERRUPTED, ServerWaitsForEver, "server waits without a deadline in SHARE_KEYS"),
]


SLOW = (LIAR_TO_ONE_WHO_RESTARTS, LIAR_OVER_SESSIONS, complaining, REPEATING, INTERRUPTED, INTERRUPTED_TWICE)


@pytest.mark.parametrize(
    ("world", "mutant", "fault"),
    [pytest.param(*each, marks=[pytest.mark.exhaustive] * (each[0] in SLOW)) for each in MUTANTS],
)
def test_a_missing_check_is_found(world: Callable[[Any], World[Any]], mutant: type[Any], fault: str) -> None:
    with pytest.raises(RuleBroken) as broken:
        explore(world(mutant))
    assert fault in broken.value.fault
    assert broken.value.trace

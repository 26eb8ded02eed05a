"""Group keys explored: the real machines keep every rule, and machines that lack one check each are caught."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.machine import Heard, Output, Step, Trigger
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.messages import EndKey, StartKey
from tacit.protocol.group_key.states import HolderState, KeeperState, MemberState, RelayState
from tests.cases import cases
from tests.exploration.engine import RuleBroken, World, explore
from tests.exploration.group_key import KeyCohort, SessionHolder, SessionKeeper
from tests.exploration.group_key_worlds import KeyLyingWorld, KeyNetworkWorld

NETWORK = {"nothing interrupts": (3, 0), "one interruption": (3, 1), "two clients": (2, None)}
EXPECTED = {
    "nothing interrupts": {"epoch 0, 3 members"},
    "one interruption": {"epoch 0, 3 members", "epoch 1, 2 members", "too few are left"},
    "two clients": {"epoch 0, 2 members", "too few are left"},
}


@cases("name", NETWORK)
def test_no_state_of_the_network_within_bounds_breaks_a_rule(name: str) -> None:
    size, interruptions = NETWORK[name]
    assert (
        set(explore(KeyNetworkWorld(KeyCohort(size), copies=1, interruptions=interruptions)).outcomes)
        == (EXPECTED[name])
    )


@cases(("size", "epochs"), [(2, 2), (3, 1)])
def test_no_lie_within_bounds_breaks_a_rule(size: int, epochs: int) -> None:
    seen = explore(KeyLyingWorld(KeyCohort(size), epochs=epochs))
    assert set(seen.outcomes) == {f"{begun} clients began a round" for begun in range(size + 1)}


class BeginsEpochsTwice(SessionHolder):
    def on_start_key(self, heard: Heard[StartKey], now: float) -> Step[Any]:
        self._epoch = -1
        return super().on_start_key(heard, now)


class KeepsWhatWasCalledOff(SessionHolder):
    def on_end_key(self, heard: Heard[EndKey], now: float) -> Step[Any]:
        keys, state = dict(self._keys), self.state
        step = super().on_end_key(heard, now)

        def commit() -> None:
            step.commit()
            if state is HolderState.KEYED:
                self._keys, self.state = keys, state

        return structs.replace(step, commit=commit)


class TakesAnyKey(SessionHolder):
    def for_round(self, cohort: tuple[str, ...]) -> GroupKey:
        return GroupKey(0, bytes(32), cohort, bytes(32))

    def round_begun(self) -> None: ...


class AcceptsUnconfirmed(SessionHolder):
    def expire(self, now: float) -> list[Output]:
        attempt = self.attempt
        if attempt is None or attempt.state is not MemberState.AWAIT_PEER_CONFIRMATIONS:
            return super().expire(now)
        key = GroupKey(self._epoch, attempt.data.key, attempt.agreement.members, attempt.data.transcript.digest)
        return self.relay(attempt, [key], now)


class ForgetsNothing(SessionHolder):
    def forget(self) -> None:
        keys = self._keys
        super().forget()
        self._keys = keys


class WaitsForEver(SessionHolder):
    def deadlines(self) -> Iterator[float]:
        return iter(())


class BeginsTooEarly(SessionKeeper):
    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        outputs = super().receive(sender, packet, now)
        attempt = self.attempt
        if attempt is not None and attempt.state is RelayState.KEY_ACCEPT:
            attempt.waiting.clear()
            outputs += self._going_on(self.relay(attempt, attempt.trigger(Trigger.COMPLETE, now), now), now)
        return outputs


class BeginsTheSameEpoch(SessionKeeper):
    def agree(self, members: tuple[str, ...], model: bytes, now: float) -> list[Output]:
        self._epoch = -1
        return super().agree(members, model, now)

    def _agree(self, members: tuple[str, ...], now: float) -> list[Output]:
        self._epoch = -1
        return super()._agree(members, now)


class BlamesLatecomers(SessionKeeper):
    """Takes what crosses the end of an attempt for a wrong message of the next."""

    def late(self, sender: str, packet: Packet) -> bool:
        return self.state is not KeeperState.AGREEING and super().late(sender, packet)


def liar(holder: type[SessionHolder]) -> World[Any]:
    return KeyLyingWorld(KeyCohort(2, holder=holder), epochs=1)


def failing(holder: type[SessionHolder]) -> World[Any]:
    return KeyNetworkWorld(KeyCohort(2, holder=holder), copies=1, interruptions=1)


def network(keeper: type[SessionKeeper]) -> World[Any]:
    return KeyNetworkWorld(KeyCohort(3, keeper=keeper), copies=1, interruptions=1)


MUTANTS: list[tuple[Callable[[Any], World[Any]], type[Any], str]] = [
    (liar, BeginsEpochsTwice, "took part in an epoch twice"),
    (liar, KeepsWhatWasCalledOff, "began a round under a key that was called off"),
    (liar, TakesAnyKey, "began a round under a key that it does not hold"),
    (liar, AcceptsUnconfirmed, "has not confirmed"),
    (liar, WaitsForEver, "waits for the others without a deadline"),
    (failing, ForgetsNothing, "keeps secrets after its session"),
    (network, BeginsTooEarly, "server began a round under a key that c"),
    (network, BlamesLatecomers, "server ended an attempt for SIGNATURE, though all kept the rules"),
    (network, BeginsTheSameEpoch, "server began an epoch twice"),
]


@cases(("world", "mutant", "fault"), MUTANTS)
def test_a_missing_check_is_found(world: Callable[[Any], World[Any]], mutant: type[Any], fault: str) -> None:
    with pytest.raises(RuleBroken) as broken:
        explore(world(mutant))
    assert fault in broken.value.fault
    assert broken.value.trace

"""Owners that would use a piece of material again that is laid by: killed at any time, restored from a copy, or lying.

tests/protocol/inference/test_stock.py has the rules, tests/cli/test_dealt_ahead.py kills real processes.
"""

from __future__ import annotations

import msgspec
import pytest

from tacit.protocol.inference.data_owner import Wish
from tacit.protocol.inference.results import Agreed
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, data_owner_names
from tacit.simulate.world.network import Parcel, altered

(DATA_OWNER,) = data_owner_names(1)
BOTH = (MODEL_OWNER, DATA_OWNER)


def world(ahead: int) -> MemoryInference:
    """One image in every session."""
    return MemoryInference({DATA_OWNER: Wish(images=1, batch=1, channels=1, side=4)}, ahead=ahead)


def again(run: MemoryInference) -> MemoryInference:
    run.start()
    return run.settle()


def check_used_once(run: MemoryInference) -> None:
    for party in BOTH:
        pieces = [piece for piece in run.used if piece[0] == party]
        assert len(set(pieces)) == len(pieces)


def check_in_order(run: MemoryInference) -> None:
    ended = run.ended(DATA_OWNER)
    assert ended is not None
    assert ended.code is None


SESSIONS = 3


def transcript() -> int:
    return len(again(again(world(ahead=2).run())).log)


@pytest.mark.threat("owner/piece-again")
@pytest.mark.parametrize("dies", BOTH)
@pytest.mark.parametrize("delivered", range(1, transcript() + 1))
def test_whoever_is_killed_at_any_time_uses_no_piece_again(dies: str, delivered: int) -> None:
    """After every message of three sessions, of which the first lays two pieces by."""
    run = world(ahead=2)
    run.start()
    for _ in range(SESSIONS):
        if run.advance(lambda: len(run.log) >= delivered):
            break
        run.start()
    run.kill(dies)
    run.settle()
    run.dead.discard(dies)
    for _ in range(SESSIONS):
        again(run)
        check_in_order(run)
    check_used_once(run)


@pytest.mark.threat("owner/piece-again")
@pytest.mark.parametrize("party", BOTH)
@pytest.mark.parametrize("lie", [{"next": 0}, {"next": 0, "end": 2**31}])
def test_who_says_that_a_used_piece_is_left_gets_the_next_one(party: str, lie: dict[str, int]) -> None:
    run = world(ahead=3).run()
    again(run)
    kind = "agree-terms" if party == DATA_OWNER else "inference-terms"

    def lied(parcel: Parcel) -> list[Parcel]:
        stock = msgspec.structs.replace(parcel.message.stock, **lie)  # type: ignore[attr-defined]
        return [altered(parcel, message=msgspec.structs.replace(parcel.message, stock=stock))]

    run.say_instead(kind, party, lied)
    again(run)
    other = next(name for name in BOTH if name != party)
    assert run.outcome(Agreed, other)[-1].piece == 1
    check_used_once(run)


@pytest.mark.threat("owner/piece-again")
@pytest.mark.parametrize("party", BOTH)
@pytest.mark.parametrize("age", [1, 2, 3])
def test_who_is_restored_from_a_copy_of_any_age_uses_no_piece_again(party: str, age: int) -> None:
    """Of a time at which the stock was another one, too: then what both have is deleted, and new material is dealt."""
    run, key = world(ahead=2).run(), (party, DATA_OWNER)
    copies = [run.held[key]]
    for _ in range(3):
        again(run)
        copies.append(run.held[key])
    run.held[key] = copies[-1 - age]
    for _ in range(3):
        again(run)
        check_in_order(run)
    check_used_once(run)

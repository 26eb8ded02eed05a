"""What a model owner keeps of rounds: one share of each data owner, and the last sum, which outlives it."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tacit.parties.adaptation.model_owner import Openings
from tacit.parties.adaptation.standing import COUNTS
from tacit.protocol.adaptation.schedule import REFUSED
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.errors import RemoteProtocolError

OWNERS = ("alice", "bob")
POLICY = OpeningPolicy(rounds=8, owners=2, smallest_cohort=2, colluders=0)


def words(*parameters: int, refused: int = 0) -> torch.Tensor:
    counted = torch.zeros(COUNTS, dtype=torch.int64)
    counted[REFUSED] = refused
    return torch.cat([torch.tensor(parameters), counted])


def held(openings: Openings, number: int, shares: dict[str, torch.Tensor]) -> bytes:
    for name, share in shares.items():
        openings.sums.begin(name, number)
        openings.sums.keep(name, number)
        openings.keep(name, number, share)
    for name in shares:
        openings.sums.say(name, number, OWNERS, 0.0)
    assert openings.sums.verdict(number) == ""
    return openings.opened(number)


def test_the_sum_is_that_of_the_survivors_and_is_told_again_after_a_restart(tmp_path: Path) -> None:
    openings = Openings(POLICY, tmp_path / "openings")
    told = held(openings, 1, {"alice": words(1, 2), "bob": words(10, -20)})
    assert told == words(11, -18).numpy().tobytes()
    again = Openings(POLICY, tmp_path / "openings")
    assert (again.opened(1), again.sums.opened, again.sums.survivors) == (told, 1, OWNERS)


def test_numbers_of_images_that_were_stated_outlive_the_model_owner(tmp_path: Path) -> None:
    openings = Openings(POLICY, tmp_path / "openings")
    for name, count in (("alice", 5), ("bob", 9)):
        openings.sums.check_begin(name, 1, 0, count)
        openings.sums.begin(name, 1, count)
        openings.sums.keep(name, 1)
        openings.keep(name, 1, words(1), 16)
    for name in OWNERS:
        openings.sums.say(name, 1, OWNERS, 0.0)
    openings.opened(1)
    again = Openings(POLICY, tmp_path / "openings")
    assert again.sums.counts == {"alice": 5, "bob": 9}
    with pytest.raises(RemoteProtocolError, match="it says that it has 6 images, and has said 5 before"):
        again.sums.check_begin("alice", 2, 1, 6)


def test_who_was_told_a_sum_or_has_begun_to_learn_is_known_after_a_restart(tmp_path: Path) -> None:
    """Otherwise more owners than the policy lets learn would be told, a few between any two restarts."""
    policy, path = replace(POLICY, owners=3), tmp_path / "openings"
    openings = Openings(policy, path)
    openings.sums.begin("alice", 1, 5)
    openings.save()
    sums = Openings(policy, path).sums
    assert (sums.owners, sums.counts, sums.opened) == ({"alice"}, {"alice": 5}, 0)
    told = held(openings, 1, {"alice": words(1), "bob": words(2)})
    openings.sums.say("carol", 1, (), 0.0)
    assert openings.opened(1) == told
    again = Openings(policy, path)
    assert again.opened(1) == told
    with pytest.raises(RemoteProtocolError, match="lets 3 data owners learn, and as many do"):
        again.sums.check_ask("dave", ())


def test_nothing_is_written_where_nothing_has_changed(tmp_path: Path) -> None:
    """Beginnings of rounds, and sums that are told once more, are many."""
    openings = Openings(POLICY, tmp_path / "openings")
    held(openings, 1, {"alice": words(1), "bob": words(2)})
    (tmp_path / "openings").unlink()
    openings.save()
    openings.opened(1)
    assert not (tmp_path / "openings").exists()


def test_who_begins_round_after_round_has_one_share_kept() -> None:
    openings = Openings(POLICY)
    shares = [torch.full((4,), number) for number in range(3)]
    gone = [weakref.ref(words) for words in shares]
    for number in (1, 2, 3):
        openings.sums.begin("alice", number)
        openings.sums.keep("alice", number)
        openings.keep("alice", number, shares.pop(0))
    assert [reference() is None for reference in gone] == [True, True, False]
    # It is of a round that the others have not learned in.
    told = held(openings, 4, {"alice": words(1), "bob": words(2)})
    assert told == words(3).numpy().tobytes()
    assert gone[-1]() is None


def test_a_round_that_is_final_waits_for_its_shares_and_takes_no_others() -> None:
    """A session can be at work on its last batch when it is asked for the sum already, and others hear of it first."""
    openings = Openings(POLICY)
    for number, names in ((1, ("alice",)), (2, OWNERS)):
        for name in names:
            openings.sums.begin(name, number)
            openings.sums.keep(name, number)
        openings.keep(names[-1], number, words(number))
    # Of a former session of bob's, and late.
    openings.keep("bob", 1, words(100))
    for name in OWNERS:
        openings.sums.say(name, 2, OWNERS, 0.0)
    assert (openings.sums.verdict(2), openings.verdict(2)) == ("", None)
    # Bob may be in the next round before anybody has been told.
    openings.sums.begin("bob", 3)
    openings.sums.keep("bob", 3)
    openings.keep("bob", 3, words(30))
    openings.keep("alice", 2, words(1))
    assert openings.verdict(2) == ""
    assert openings.opened(2) == words(3).numpy().tobytes()
    openings.sums.begin("alice", 3)
    openings.sums.keep("alice", 3)
    openings.keep("alice", 3, words(10))
    for name in OWNERS:
        openings.sums.say(name, 3, OWNERS, 0.0)
    assert openings.verdict(3) == ""
    assert openings.opened(3) == words(40).numpy().tobytes()


def test_refused_batches_are_told_with_the_last_round_alone_and_of_all_rounds(tmp_path: Path) -> None:
    told = []
    for number in (1, 2, 3):
        openings = Openings(POLICY, tmp_path / "openings", last=3)
        shares = {"alice": words(number, refused=2**62 + number), "bob": words(0, refused=2**62)}
        told.append(torch.frombuffer(bytearray(held(openings, number, shares)), dtype=torch.int64))
    assert [int(sums[REFUSED]) for sums in told] == [0, 0, (6 * 2**62 + 6 + 2**63) % 2**64 - 2**63]
    assert [int(sums[0]) for sums in told] == [1, 2, 3]

"""Double-blind adaptation between hosts: real processes and sockets, folders that share nothing."""

import asyncio
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from tacit.parties.adaptation.events import BatchEnded, RoundSaved
from tacit.parties.hosting import preflight
from tacit.parties.links.endpoint import Received
from tacit.parties.links.keys import load
from tacit.parties.links.roster import read_roster
from tacit.parties.links.server_endpoint import ServerEndpoint
from tests.cli.adaptation_house import BATCH, CLASSES, DATA_OWNERS, ROLES, AdaptationHouse, complaint, forget, labelled
from tests.cli.command import Invoke
from tests.cli.hosts import Process
from tests.cli.outputs import check_output

pytestmark = pytest.mark.end_to_end

ROUNDS = 6
"""So many that whoever is to be killed before the last one is."""


@pytest.fixture
def house(tmp_path: Path, tacit: Invoke, student: Path) -> Iterator[AdaptationHouse]:
    made = AdaptationHouse(tmp_path, tacit, student)
    try:
        yield made
    finally:
        made.stop()


def batches(house: AdaptationHouse, number: int) -> int:
    """Batches of a round, of all data owners, refused ones among them."""
    ended = [batch for name in DATA_OWNERS for batch in house.events(name, BatchEnded)]
    return sum(batch.round == number for batch in ended)


def test_adapting_between_hosts(house: AdaptationHouse) -> None:
    """The order does not matter; all data owners have the same adapters; the same command again asks nobody."""
    labelled(house.path / "carol" / "images.npz", [0, 1] * 3, side=12)
    running = {name: house.start(name, "--json", "learned.json") for name in DATA_OWNERS}
    running["alice"].until(f"nothing listens at {house.at('owner')} yet")
    running["owner"] = house.start("owner")
    running["owner"].until(f"shares of {house.words} words")
    running["dealer"] = house.start("dealer")
    for name in (*DATA_OWNERS, "dealer"):
        assert running[name].end() == 0, running[name].everything
        assert running[name].complained == []
    found = [check_output(house.path / name / "learned.json", "learned") for name in DATA_OWNERS]
    for figures in found:
        assert (figures["round"], figures["planned"], figures["classes"]) == (2, 2, list(CLASSES))
        assert [(row["round"], row["lost"], row["owners"], row["images"]) for row in figures["rounds"]] == [
            (number, None, 3, BATCH * batches(house, number)) for number in (1, 2)
        ]
        assert 0 <= figures["refused_batches"] <= batches(house, 1) + batches(house, 2)
        assert figures["rounds"] == found[0]["rounds"]
        assert figures["batches"] == 2
    assert len({house.adapters(name) for name in DATA_OWNERS}) == 1
    said = running["bob"].said
    assert any(line.startswith("round 2  while learning: loss ") for line in said), running["bob"].everything
    for name in (*DATA_OWNERS, "dealer"):
        told = house.status(name)
        assert (told["running"], told["round"], told["rounds"], told["learning"]) == (False, 2, 2, True)
    for name in DATA_OWNERS:
        running["owner"].until(f"session with {name} over: the session is closed")
    told = house.status("owner")
    assert (told["running"], told["phase"], told["round"], told["serves"]) == (True, "listening", 2, [])
    again = house.start("alice", "--json", "again.json")
    assert again.end() == 0, again.everything
    assert check_output(house.path / "alice" / "again.json", "learned") == found[0]
    assert "6 images; the adapters after round 2 are known" in again.said


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param("dealer", marks=pytest.mark.exhaustive),
        "owner",
        pytest.param("alice", marks=pytest.mark.exhaustive),
    ],
)
def test_whoever_is_killed_costs_a_round_at_most(house: AdaptationHouse, killed: str) -> None:
    """kill -9 after the first round, and the same command again, within a grace that no slow start exceeds."""
    house.rounds, house.grace = ROUNDS, 3600.0
    house.model_owner()
    house.dealer()
    for name in DATA_OWNERS:
        house.data_owner(name)
    running = {name: house.start(name, *options(name)) for name in ("dealer", "owner", *DATA_OWNERS)}
    for name in DATA_OWNERS:
        running[name].until("round 1  while learning: ")
    kept = house.adapters("alice")
    running[killed].signal(signal.SIGKILL)
    assert running[killed].end() == -signal.SIGKILL
    running[killed] = house.start(killed, *options(killed))
    for name in DATA_OWNERS:
        assert running[name].end() in (0, 3), running[name].everything
        figures = check_output(house.path / name / "learned.json", "learned")
        assert figures["round"] == ROUNDS
        rows = {row["round"]: row["lost"] for row in figures["rounds"]}
        assert rows.keys() <= set(range(1, ROUNDS + 1))
        assert (rows[1], rows[ROUNDS]) == (None, None)
        assert sum(lost is not None for lost in rows.values()) <= 1
    assert running["dealer"].end() == 0, running["dealer"].everything
    assert len({house.adapters(name) for name in DATA_OWNERS} | {kept}) == 2
    # It is killed in the second round, or on a busy machine in a later one.
    if killed == "dealer":
        assert any(re.fullmatch("goes on after round [1-4]", line) for line in running["dealer"].said)
    if killed == "alice":
        pattern = "6 images; the adapters after round [1-4] are known"
        assert any(re.fullmatch(pattern, line) for line in running["alice"].said)


def test_a_model_owner_that_restarts_before_it_has_offered_its_terms(house: AdaptationHouse) -> None:
    """Data owners have said hello, and hear that their links are lost."""
    dealer = house.start("dealer")
    owners = [house.start(name) for name in DATA_OWNERS]

    async def hang_up() -> None:
        keys, roster = load(house.path / "owner" / "owner.key"), read_roster(house.path / "roster.toml")
        async with await ServerEndpoint.bind(house.at("owner"), keys=keys, roster=roster) as endpoint:
            while not isinstance(await endpoint.receive(), Received):
                pass

    asyncio.run(hang_up())
    house.start("owner")
    for process in (*owners, dealer):
        assert process.end() == 0, process.everything
    assert any("the session with the model owner is lost" in process.everything for process in owners)


def test_data_owners_count_by_their_images_and_the_model_owner_adds_noise(house: AdaptationHouse) -> None:
    labelled(house.path / "carol" / "images.npz", [0, 1] * 6)
    house.model_owner(weights="counts", least_count=6, noise=1e-6)
    for name in DATA_OWNERS:
        house.data_owner(name, weights="counts")
    running = house.start_all()
    for name in (*DATA_OWNERS, "dealer"):
        assert running[name].end() == 0, running[name].everything
    assert len({house.adapters(name) for name in DATA_OWNERS}) == 1
    assert "noise of 1e-06 on every common parameter, no budget" in running["owner"].said
    counts = {saved.peer: saved.weight for saved in house.events("owner", RoundSaved)}
    assert counts == {"alice": 16, "bob": 16, "carol": 32}


def test_a_budget_without_room_is_refused_before_anybody_learns(house: AdaptationHouse) -> None:
    house.model_owner(noise=1e-6, largest_epsilon=1.0)
    running = house.start("owner")
    assert running.end() == 2, running.everything
    assert re.search(r"largest_epsilon = 1, .* may open 0 rounds, and 2 are to be learned", running.complained[-1])


def options(name: str) -> tuple[str, ...]:
    return ("--json", "learned.json") if name in DATA_OWNERS else ()


@pytest.mark.exhaustive
def test_sums_that_were_told_are_not_told_of_other_learning(house: AdaptationHouse) -> None:
    """All but the model owner have lost what they knew, and begin anew."""
    running = house.start_all()
    for name in (*DATA_OWNERS, "dealer"):
        assert running[name].end() == 0, running[name].everything
    running["owner"].signal(signal.SIGKILL)
    running["owner"].end()
    for name in (*DATA_OWNERS, "dealer"):
        forget(house.path / name / "state")
    running = house.start_all()
    refused_by_one(running, "the model owner opens 2 rounds, and all of them are open: ask it for more")


def refused_by_one(running: Mapping[str, Process], pattern: str) -> None:
    """Who finds out leaves; where others have left before, the dealer has too few and says so."""
    for name in DATA_OWNERS:
        complaint(running[name], 1, f"{pattern}|only [0-9] clients are there; a round takes at least 3")
    assert any(re.search(pattern, line) for name in DATA_OWNERS for line in running[name].complained)


def few_images(house: AdaptationHouse) -> None:
    labelled(house.path / "alice" / "images.npz", [0, 1, 0])


def other_channels(house: AdaptationHouse) -> None:
    labels = np.arange(6) % 2
    np.savez(house.path / "alice" / "images.npz", x_train=np.zeros((6, 8, 8, 2), np.uint8), y_train=labels)


def swapped(house: AdaptationHouse) -> object:
    return house.data_owner("alice", data={"source": "images.npz", "classes": ("1", "0")})


TOLD: dict[str, tuple[Callable[[AdaptationHouse], object], str, int]] = {
    "another batch": (
        lambda house: house.data_owner("alice", batch=3),
        "owner: it learns by batches of 4 images; here they have 3",
        1,
    ),
    "other rounds": (
        lambda house: house.data_owner("alice", rounds=3),
        "adaptation.rounds = 3: the model owner has 2; all parties need the same",
        2,
    ),
    "other batches": (
        lambda house: house.data_owner("alice", batches=2),
        "adaptation.batches = 2: the model owner has 1; all parties need the same",
        2,
    ),
    "a larger cohort": (
        lambda house: house.data_owner("alice", smallest_cohort=4),
        "owner: it opens sums of 3 data owners; the policy here wants 4 or more",
        1,
    ),
    "other classes": (swapped, "have the classes 1, 0; what is learned are 0, 1, in this order", 2),
    "other channels": (other_channels, "data.mean has 1 channels, and the images have 2", 2),
    "another roster": (
        lambda house: house.roster("owner", "dealer", "alice", "bob", of=("alice",)),
        "alice: it holds another roster: give all parties the same file",
        1,
    ),
}


def test_what_a_data_owner_finds_out_from_the_model_owner(house: AdaptationHouse) -> None:
    """Refused on its side, each in a line; the others are not disturbed."""
    for name in ("dealer", "owner"):
        house.start(name)
    roster = (house.path / "alice" / "roster.toml").read_bytes()
    for make, pattern, status in TOLD.values():
        labelled(house.path / "alice" / "images.npz", [0, 1] * 3)
        (house.path / "alice" / "roster.toml").write_bytes(roster)
        house.data_owner("alice")
        make(house)
        complaint(house.start("alice"), status, pattern)
        forget(house.path / "alice" / "state")


@pytest.mark.parametrize(
    ("keys", "pattern"),
    [
        pytest.param(
            {"rounds": 3},
            "the dealer sums 3 rounds; here and at the model owner there are 2",
            marks=pytest.mark.exhaustive,
        ),
        ({"words": 7}, "the dealer sums 7 words, and a share has [0-9]+: correct its file"),
    ],
)
def test_a_dealer_that_sums_something_else(house: AdaptationHouse, keys: dict[str, int], pattern: str) -> None:
    house.dealer(**keys)
    running = house.start_all()
    refused_by_one(running, pattern)
    # It is told: its owner is who can correct it.
    assert re.search(pattern, running["dealer"].everything)


SERVING: dict[str, tuple[str, Callable[[AdaptationHouse], object], str]] = {
    "no words": ("dealer", lambda house: house.dealer(words=0), "adaptation.words is missing"),
    "too few data owners": (
        "dealer",
        lambda house: house.roster("owner", "dealer", "alice", "bob"),
        "the roster has 2 data owners: sums of 3 beside 0 who may collude need 3; add the others",
    ),
    "one class": (
        "owner", lambda house: house.model_owner(classes=["0"]), r'adaptation.classes = \["0"\]: two classes at least',
    ),
    "fewer openings than rounds": (
        "owner", lambda house: house.model_owner(most_rounds=1), "2 rounds could not be opened",
    ),
    "nothing to predict with": (
        "owner", lambda house: house.model_owner(purpose="prediction"), "learning.msgpack is missing: nobody has",
    ),
}  # fmt: skip


def test_a_party_that_serves_and_finds_out_by_itself(house: AdaptationHouse) -> None:
    for name, make, pattern in SERVING.values():
        house.roster(*ROLES)
        house.dealer()
        house.model_owner()
        make(house)
        complaint(house.start(name), 2, pattern)


def test_a_model_owner_keeps_to_its_learning(house: AdaptationHouse) -> None:
    """The seed of the first adapters is drawn once, and another learning is refused in the same folder."""
    path, kept = house.path / "owner" / "state" / "learning.msgpack", []
    for again in (False, True):
        owner = house.start("owner")
        owner.until("shares of [0-9]+ words")
        owner.signal(signal.SIGKILL)
        owner.end()
        assert ("finds bounds, by a rehearsal on images of its own" in owner.said) is not again
        kept.append(path.read_bytes())
    assert kept[0] == kept[1]
    house.model_owner(batches=2)
    complaint(house.start("owner"), 2, "learning.msgpack is of another model or learning than the file of this party")


def test_who_adapts_is_tested_before_the_day(
    house: AdaptationHouse, tacit: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the three alone, and a data owner with the others there."""

    def states(name: str, status: int) -> dict[str, str]:
        copy = house.path / name / "preflight.json"
        result = tacit("preflight", house.path / name / "party.toml", "--json", copy)
        assert result.exit_code == status, result.output
        return {row["check"]: row["state"] for row in check_output(copy, "preflight")["findings"]}

    assert set(states("dealer", 0).values()) <= {"ok", "warning"}
    found = states("owner", 4)
    assert (found["model"], found["dealer-tcp"]) == ("ok", "absent")
    found = states("alice", 4)
    assert (found["images"], found["owner-tcp"]) == ("ok", "absent")
    for name in ("dealer", "owner"):
        house.start(name).until("listens at")
    # Who is there may be slow.
    monkeypatch.setattr(preflight, "ANSWER_SECONDS", 60.0)
    house.data_owner("alice", sums=house.at("dealer"))
    complaint(house.start("alice"), 2, "at this address the dealer deals")
    house.data_owner("alice")
    found = states("alice", 0)
    assert [found[f"{name}-version"] for name in ("dealer", "sums", "owner")] == ["ok", "ok", "ok"]
    few_images(house)
    assert states("alice", 1)["images"] == "wrong"

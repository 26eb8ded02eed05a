"""Private inference between hosts: real processes and sockets, folders that share nothing, keys that commands made."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tacit.protocol.inference.schedule import Sizes, pass_rounds
from tests.cli.command import Invoke
from tests.cli.inference_house import ROLES, House, check_answers
from tests.cli.outputs import check_output

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from test_infer import SIZES

pytestmark = pytest.mark.end_to_end

MANY = 300
FEW = 30


@pytest.fixture
def house(tmp_path: Path, tacit: Invoke, student: Path, images: Path) -> Iterator[House]:
    made = House(tmp_path, tacit, student, images)
    try:
        yield made
    finally:
        made.stop()


def costs(sizes: Sizes, batches: list[int]) -> tuple[int, int]:
    rounds = [each for batch in batches for each in pass_rounds(sizes, batch)]
    return sum(each.model_owner_bytes for each in rounds), sum(each.data_owner_bytes for each in rounds)


def test_private_inference_between_hosts(house: House, student: Path, images: Path) -> None:
    """The order does not matter; answers are those in the clear; the same command again asks nobody."""
    house.alice(batch=5)
    alice = house.start("alice", "--json", "answers.json")
    alice.until(f"nothing listens at {house.at('owner')} yet")
    owner = house.start("owner")
    owner.until(f"nothing listens at {house.at('dealer')} yet")
    dealer = house.start("dealer")
    assert alice.end() == 0, alice.everything
    assert alice.complained == []
    figures = check_output(house.path / "alice" / "answers.json", "answers")
    check_answers(figures, student, images)
    assert [row["image"] for row in figures["images"]] == [f"test {index}" for index in range(12)]
    assert figures["passes"] == 3
    assert (figures["model_owner_bytes"], figures["data_owner_bytes"]) == costs(SIZES, [5, 5, 2])
    assert sum(line.startswith("│ test ") for line in alice.said) == 12
    assert f"model {figures['weights']}" in alice.said
    assert f"model {figures['weights']}" in owner.said
    owner.until("session with alice over: the session is closed")
    dealer.until("session with owner and alice over: ")
    told = house.status("alice")
    assert (told["running"], told["role"], told["round"], told["rounds"]) == (False, "data-owner", 12, 12)
    for name in ("owner", "dealer"):
        told = house.status(name)
        assert (told["running"], told["role"], told["phase"]) == (True, ROLES[name], "listening")
        assert told["serves"] == []
    for process in (owner, dealer):
        process.signal(signal.SIGTERM)
        assert process.end() == 130
        assert process.complained == ["tacit: interrupted"]
    again = house.start("alice", "--json", "again.json")
    assert again.end() == 0, again.everything
    assert check_output(house.path / "alice" / "again.json", "answers") == figures
    assert "12 images, 12 of them answered" in again.said


@pytest.fixture(scope="module")
def many(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images to ask about, so many that whoever is to be killed before the last one is."""
    path = tmp_path_factory.mktemp("many") / "many.npz"
    arrays = np.load(images)
    np.savez(path, **{name: np.resize(arrays[name], (MANY, *arrays[name].shape[1:])) for name in ("x_test", "y_test")})
    return path


def test_answers_of_two_models_are_not_mixed(house: House, many: Path) -> None:
    house.alice(batch=1, images=str(many))
    for name in ("dealer", "owner"):
        running = house.start(name)
    alice = house.start("alice")
    alice.until(f"3 of {MANY} images")
    running.signal(signal.SIGKILL)
    running.end()
    # Without its salt the same model has another commitment.
    (house.path / "owner" / "state" / "salt").unlink()
    house.start("owner")
    assert alice.end() == 1
    (line,) = alice.complained
    assert re.fullmatch(
        r"tacit: owner: it offers another model than the policy here names; \d+ images are answered by the former: "
        r"remove .*state/answers/[0-9a-f]{32}\.jsonl to ask about all of them again",
        line,
    )


def test_a_lost_dealer_and_a_killed_data_owner_cost_no_answer(house: House, many: Path) -> None:
    """Each is started again by the same command. Neither counts as a refusal, on either side."""
    few = house.path / "few.npz"
    with np.load(many) as arrays:
        np.savez(few, **{name: arrays[name][:FEW] for name in arrays})
    house.alice(batch=2, images=str(few))
    dealer, _ = house.start("dealer"), house.start("owner")
    alice = house.start("alice")
    alice.until(f"^4 of {FEW} images")
    dealer.signal(signal.SIGKILL)
    dealer.end()
    house.start("dealer")
    alice.until(f"^12 of {FEW} images")
    alice.signal(signal.SIGKILL)
    alice.end()
    again = house.start("alice")
    assert again.end() == 0, again.everything
    assert re.search(rf"{FEW} images, 1\d of them answered", again.everything)
    for name in ("owner", "alice"):
        ledger = (house.path / name / "state" / "ledger.json").read_text()
        assert re.findall(r'"refused": ?(\d+)', ledger) == ["0"], ledger


def test_a_data_owner_stops_at_its_own_limit(house: House) -> None:
    """Two passes a day: ten of twelve images, and none by the same command. The dealer is audited meanwhile."""
    house.alice(batch=5, **{"policy.passes_a_day": 2, "policy.audit_fraction": 0.25})
    house.model_owner(**{"policy.audit_fraction": 0.25})
    for name in ("dealer", "owner"):
        house.start(name)
    for _ in range(2):
        alice = house.start("alice")
        assert alice.end() == 1, alice.everything
        (line,) = alice.complained
        assert re.fullmatch(
            r"tacit: alice: its limit of 2 passes a day with owner is reached until \d{4}-.*Z: go on then by the same "
            r"command, or raise passes_a_day in its \[policy\]; every verdict is one bit that owner chose",
            line,
        )
    assert "12 images, 10 of them answered" in alice.said
    assert (house.path / "alice" / "state" / "ledger.json").stat().st_mode & 0o777 == 0o600


def test_a_quota_is_told_and_outlives_kill_9(house: House) -> None:
    """Seven of twelve images a day: a pass of five, none of five more, whoever is killed, and one of two."""
    quota = {"most_batch": 5, "policy.images_a_day": 7, "policy.refused_a_day": 5}
    house.alice(batch=5)
    house.model_owner(**quota)
    house.start("dealer")
    for already in (0, 5):
        owner = house.start("owner")
        alice = house.start("alice")
        assert alice.end() == 1, alice.everything
        assert (f"12 images, {already} of them answered" if already else "12 images") in alice.said
        (line,) = alice.complained
        assert re.search(r"alice: the quota: 7 images a day a data owner may ask about, 2 are left until \d{4}-", line)
        owner.signal(signal.SIGKILL)
        assert owner.end() == -signal.SIGKILL
    house.alice(batch=2)
    owner = house.start("owner")
    alice = house.start("alice")
    assert alice.end() == 1, alice.everything
    assert "7 of 12 images" in alice.said
    assert "0 are left" in alice.complained[0]
    ledger = house.path / "owner" / "state" / "ledger.json"
    assert ledger.stat().st_mode & 0o777 == 0o600

"""What each cheat does to a federation in memory, in every mode that has an occasion for it; one more round follows."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tacit.parties.runs.events import ClientCheated
from tacit.protocol.core.errors import Code
from tacit.protocol.session.rounds import RoundDone, RoundOver
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.messages import AnswerComplaints
from tacit.simulate.federation.cheats import CHEATS
from tacit.simulate.federation.faults import Faults, read_faults
from tacit.simulate.world import federation as world
from tacit.simulate.world.federation import MemoryFederation, small_configuration

CHEAT = "client-2"
modes = pytest.mark.parametrize("mode", ["active", "semi-honest", "none"])
masked = pytest.mark.parametrize("mode", ["active", "semi-honest"])
Cheated = Callable[..., MemoryFederation]


def told(one: MemoryFederation) -> list[tuple[str, int, str]]:
    """Who cheated when and how, by what the cheats say themselves."""
    return [(name, event.round, event.how) for name, event in one.outputs if isinstance(event, ClientCheated)]


@pytest.fixture
def cheated(monkeypatch: pytest.MonkeyPatch) -> Cheated:
    """cheated(*texts, clients=5, rounds=2, ...): a federation that was run with these cheats, in chunks of 64 bytes."""

    def run(*texts: str, clients: int = 5, rounds: int = 2, **configuration: Any) -> MemoryFederation:
        parties = ("server", *(f"client-{number}" for number in range(clients)))
        faults = read_faults(cheat=texts, parties=parties)
        monkeypatch.setattr(
            world, "TrainingClient", lambda name, *given, **named: faults.machine(name)(name, *given, **named)
        )
        monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)
        return MemoryFederation(small_configuration(clients, **configuration), clients, rounds=rounds).run()

    return run


def check_exact(one: MemoryFederation, rounds: Iterable[RoundDone], left: tuple[str, ...]) -> None:
    for done in rounds:
        assert (done.code, done.survivors) == (None, left)
        np.testing.assert_array_equal(done.total, one.plain_sum(done))


@masked
@pytest.mark.parametrize("parameters", [10, 200], ids=["one chunk", "chunks"])
def test_random_words_are_in_the_sum_in_the_place_of_the_vector(cheated: Cheated, mode: str, parameters: int) -> None:
    one = cheated("client-2@words", mode=mode, parameters=parameters, ring_bits=24)
    spoiled, following = one.outcome(RoundDone)
    assert spoiled.survivors == one.roster.clients
    assert spoiled.total is not None
    # What the sum of the others lacks is the noise: nothing that the client has computed.
    assert (spoiled.total != one.plain_sum(spoiled)).mean() > 0.9
    check_exact(one, [following], one.roster.clients)
    assert told(one) == [(CHEAT, 1, "words")]


@pytest.mark.parametrize("parameters", [10, 200], ids=["one chunk", "chunks"])
def test_random_words_are_found_where_nothing_hides_them(cheated: Cheated, parameters: int) -> None:
    one = cheated("client-2@words", mode="none", parameters=parameters)
    spoiled, following = one.outcome(RoundDone)
    assert [(drop.member, drop.code, drop.included) for drop in spoiled.dropped] == [(CHEAT, Code.VECTOR, False)]
    left = tuple(name for name in one.roster.clients if name != CHEAT)
    check_exact(one, [spoiled, following], left)


@masked
def test_a_wrong_commitment_ends_the_round_and_the_session_of_its_author(cheated: Cheated, mode: str) -> None:
    one = cheated("client-2@commitment:2", rounds=3, mode=mode)
    first, aborted, third = one.outcome(RoundDone)
    assert (aborted.code, aborted.culprit) == (Code.SECRET, CHEAT)
    check_exact(one, [first], one.roster.clients)
    check_exact(one, [third], tuple(name for name in one.roster.clients if name != CHEAT))
    assert told(one) == [(CHEAT, 2, "commitment")]


@masked
@pytest.mark.parametrize("parameters", [10, 200], ids=["one chunk", "chunks"])
def test_a_false_complaint_is_answered_and_costs_nobody_anything(cheated: Cheated, mode: str, parameters: int) -> None:
    one = cheated("client-2@complaint", mode=mode, parameters=parameters)
    assert [parcel.sender for parcel in one.log if parcel.packet.kind is AnswerComplaints] == ["client-0"]
    for done in one.outcome(RoundDone):
        assert done.dropped == ()
    check_exact(one, one.outcome(RoundDone), one.roster.clients)
    assert {over.code for over in one.outcome(RoundOver)} == {None}
    assert told(one) == [(CHEAT, 1, "complaint")]


@modes
def test_four_of_thirteen_stalled_uploads_cost_nobody_else_anything(cheated: Cheated, mode: str) -> None:
    cheats = [f"client-{number}" for number in range(4)]
    one = cheated(*(f"{name}@upload" for name in cheats), clients=13, mode=mode, parameters=200)
    stalled, following = one.outcome(RoundDone)
    assert [(drop.member, drop.phase, drop.code) for drop in stalled.dropped] == [
        (name, "MASKED_INPUT", Code.TIMEOUT) for name in cheats
    ]
    check_exact(one, [stalled], one.roster.clients[4:])
    check_exact(one, [following], one.roster.clients)
    assert sorted(told(one)) == [(name, 1, "upload") for name in cheats]


def test_a_lie_without_an_occasion_is_not_told(cheated: Cheated) -> None:
    """Without masks nobody shares secrets, and a vector of one chunk comes at once; a round may not come."""
    texts = [*(f"client-2@{how}" for how in ("commitment", "complaint", "upload")), "client-2@words:9"]
    one = cheated(*texts, mode="none")
    check_exact(one, one.outcome(RoundDone), one.roster.clients)
    assert told(one) == []


def test_all_cheats_of_a_round_are_told(cheated: Cheated) -> None:
    one = cheated(*(f"client-2@{how}" for how in CHEATS), parameters=200)
    first, following = one.outcome(RoundDone)
    assert (first.code, [drop.member for drop in first.dropped]) == (None, [CHEAT])
    check_exact(one, [following], one.roster.clients)
    assert sorted(how for _, _, how in told(one)) == sorted(CHEATS)


def test_who_is_started_again_cheats_in_the_rounds_that_are_left() -> None:
    texts = ["client-1@words:1", "client-1@upload:3", "client-2@words:3"]
    faults = read_faults(cheat=texts, restart=["client-1@TRAIN:2"], parties=("server", "client-1", "client-2"))
    left = faults.after_kill("client-1")
    assert isinstance(left, Faults)
    assert [(lie.party, lie.cheat.name, lie.round) for lie in left.lies] == [("client-1", "upload", 3)]

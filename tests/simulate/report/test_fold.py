"""The state as a fold over events: what is known in the middle of a run, when only the events up to there have come."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import msgspec
import pytest

from tacit.parties.runs.events import PartyFailed
from tacit.parties.runs.reading import read_state
from tacit.parties.runs.state import MOST_STRANGERS, Contact, RunState
from tacit.parties.session.event_log import read
from tacit.parties.session.events import (
    HandshakeRefused,
    HeartbeatSent,
    LinkLost,
    LinkOpened,
    ModelEvaluated,
    PhaseEnded,
    RosterUpdated,
    RoundEnded,
    SessionEnded,
    WaitingChanged,
    WorkMeasured,
)
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import ClientJoined
from tacit.protocol.sum.states import Phase
from tests.simulate.conftest import at, configured


def events_of(run: Any) -> list[Event]:
    logs = [read(run.run.events(name)) for name in ("server", *run.clients)]
    return sorted((event for log in logs for event in log), key=attrgetter("time"))


def state_of(run: Any) -> RunState:
    state = RunState()
    for event in events_of(run):
        state.take(event)
    return state


def test_events_one_by_one_make_the_state_of_the_files(script: Any) -> None:
    run = script()
    run.session()
    run.round(1, dropped={"client-2": False}, killed=["client-2"])
    run.round(2, status=None)
    run.now += 100.0
    run.session()
    run.round(2, status="aborted")
    run.round(3)
    run.end()
    assert state_of(run).close() == read_state(run.run.path / "events")


def test_a_round_is_open_until_its_result_comes(script: Any) -> None:
    run = script()
    run.session()
    began = run.now
    run.round(1)
    state = RunState()
    for event in events_of(run):
        if not isinstance(event, RoundEnded):
            state.take(event)
    (round,) = state.rounds
    assert (round.status, round.began, round.ended) == ("unfinished", began, began + 3.0)
    assert state.parties["client-1"].visits[Phase.TRAIN] == 1


def test_who_is_where_and_who_is_waited_for_is_known_in_the_middle() -> None:
    state = RunState()
    state.take(at(1.0, "server", LinkOpened(peer="client-1")))
    state.take(at(2.0, "client-1", PhaseEnded(round=0, phase=Phase.SESSION, seconds=1.0, next=Phase.TRAIN)))
    assert state.server is None
    state.take(at(3.0, "server", configured()))
    state.take(at(3.5, "server", LinkOpened(peer="client-1")))
    state.take(at(4.0, "server", WaitingChanged(on=["client-1"])))
    state.take(at(5.0, "client-1", HeartbeatSent(done=0.25)))
    client = state.parties["client-1"]
    assert (client.phase, client.since, client.heard, client.done) == (Phase.TRAIN, 2.0, 5.0, 0.25)
    assert (state.server, state.waiting, state.waiting_since) == ("server", ("client-1",), 4.0)
    assert state.links == {"client-1": Contact(True, 3.5)}
    assert (len(state.sessions), state.rounds, state.warnings) == (1, [], [])
    state.take(at(6.0, "server", LinkLost(peer="client-1")))
    assert state.links == {"client-1": Contact(False, 6.0)}


def test_a_lost_link_matters_to_a_server_once_the_client_has_joined() -> None:
    state = RunState()
    state.take(at(1.0, "server", configured()))
    assert state.take(at(2.0, "server", LinkLost(peer="client-1"))).level == "debug"
    state.take(at(3.0, "server", ClientJoined(member="client-1")))
    line = state.take(at(4.0, "server", LinkLost(peer="client-1")))
    assert (line.level, line.seconds, line.text) == ("warning", 3.0, "lost the link to client-1")
    state.take(at(5.0, "server", SessionEnded(code=None, detail="all rounds are done")))
    assert state.take(at(6.0, "server", LinkLost(peer="client-1"))).level == "debug"
    assert state.warnings == [line]


def test_a_client_that_was_started_again_is_there(script: Any) -> None:
    run = script()
    run.session()
    state = state_of(run)
    died = "its process ended unexpectedly: killed by SIGKILL"
    state.take(at(run.now, "client-1", PartyFailed(reason=died)))
    client = state.parties["client-1"]
    assert client.ended == died
    assert [line.text for line in state.warnings] == [died]
    state.take(at(run.now + 1.0, "client-1", HeartbeatSent()))
    assert client.ended is None
    state.take(at(run.now + 2.0, "client-1", SessionEnded(code=None, detail="all rounds are done")))
    state.take(at(run.now + 3.0, "client-1", WorkMeasured(seconds={"masking": 1.0})))
    assert client.ended == "all rounds are done"


@pytest.mark.parametrize("early", [True, False])
def test_a_model_that_clients_evaluate_has_the_mean_of_what_they_found(script: Any, early: bool) -> None:
    run = script()
    run.session()
    run.round(1)
    *events, done = sorted(events_of(run), key=lambda event: isinstance(event, RoundEnded))
    unjudged = msgspec.structs.replace(done, accuracy=None, balanced_accuracy=None, loss=None)
    found = [
        at(
            run.now,
            f"client-{number}",
            ModelEvaluated(round=1, accuracy=0.25 * number, balanced_accuracy=0.5 * number, loss=1.0),
        )
        for number in (1, 2)
    ]
    state = RunState()
    for event in (*events, *found, unjudged) if early else (*events, unjudged, *found):
        state.take(event)
    (round,) = state.rounds
    assert round.result is not None
    assert (round.result.accuracy, round.result.balanced_accuracy, round.result.loss) == (0.375, 0.75, 1.0)
    assert state.judged_on == "test images, as clients found it"


def test_a_session_that_goes_on_with_another_roster_ends_in_order_for_who_takes_it_up(script: Any) -> None:
    """The server says what follows before the slower of the clients has said that its session is over."""
    run = script()
    run.session()
    run.round(1)
    state = state_of(run)
    changed = RosterUpdated(
        former=1, version=2, fingerprint="ab", added=[], removed=["client-2"], rotated=[], regrouped=[]
    )
    for party in ("server", "client-1"):
        state.take(at(run.now, party, changed))
    detail = "it goes on with version 2 of the roster"
    assert state.take(at(run.now, "server", SessionEnded(code="ROSTER", detail=detail))).level == "info"
    began = run.now
    run.session()
    for event in events_of(run):
        if event.time >= began:
            state.take(event)
    for party in ("client-1", "client-2"):
        state.take(at(run.now, party, SessionEnded(code="ROSTER", detail="version 2")))
    assert not [line for line in state.warnings if line.party in ("server", "client-1")]
    assert [line.text for line in state.warnings if line.party == "client-2"][-1] == "session over: version 2 (ROSTER)"
    state.take(at(run.now, "client-1", SessionEnded(code="ROSTER", detail="the server holds another roster")))
    assert [line.text for line in state.warnings if line.party == "client-1"] == [
        "session over: the server holds another roster (ROSTER)"
    ]


def test_a_round_that_did_not_begin_cannot_end(script: Any) -> None:
    run = script()
    run.session()
    run.round(1)
    *_, ended = (event for event in events_of(run) if isinstance(event, RoundEnded))
    with pytest.raises(ValueError, match="round 9 is over, and did not begin"):
        state_of(run).take(msgspec.structs.replace(ended, round=9))


def test_made_up_keys_of_strangers_fill_no_memory() -> None:
    state = RunState(server="hub")
    for number in range(MOST_STRANGERS + 50):
        state.take(HandshakeRefused(time=1.0, party="hub", reason="no member", public_key=str(number), address="x"))
    assert len(state.strangers) == MOST_STRANGERS + 1
    assert sum(stranger.count for stranger in state.strangers.values()) == MOST_STRANGERS + 50

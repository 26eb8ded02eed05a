"""Clocks of several hosts: logs with clocks that are off by hours, drift or are set come together on one page."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tacit.parties.runs.reading import DRIFT, Events, align, read_state
from tacit.parties.session.event_log import read
from tacit.parties.session.events import HeartbeatSent, MessagesTimed
from tests.simulate.conftest import BEGAN, at

Clock = Callable[[float], float]
"""What a client's clock shows at a true time, which is the server's."""
Note = tuple[str, str, int, int, float]

pytestmark = pytest.mark.usefixtures("undrawn")


def right(now: float) -> float:
    return now


def conversation(clock: Clock, *, rounds: int = 20, every: float = 60.0, delay: float = 0.05) -> dict[str, Events]:
    """Logs of a server and a client that note a message each way, at the beginning and the end of every round; the way
    takes `delay` seconds or up to twice as long."""
    draw = random.Random(rounds)
    logs: dict[str, Events] = {"server": [], "client-1": []}
    for number in range(rounds):
        for part in (0, 1):
            down = BEGAN + number * every + part * 0.8 * every
            arrived = down + delay * (1 + draw.random())
            up = arrived + 0.01
            back = up + delay * (1 + draw.random())
            place = "a1b2c3d4", number + 1, part + 1
            logs["server"].append(timed("server", back, [("client-1", *place, down)], [("client-1", *place, back)]))
            sent, received = [("server", *place, clock(up))], [("server", *place, clock(arrived))]
            logs["client-1"].append(timed("client-1", clock(up), sent, received))
    return logs


def timed(party: str, time: float, sent: list[Note], received: list[Note]) -> MessagesTimed:
    return MessagesTimed(time=time, party=party, sent=sent, received=received)


def errors(logs: dict[str, Events], clock: Clock) -> tuple[list[float], Any]:
    """By how much the aligned times of the client's events are wrong, and what is said of its clock."""
    truth = conversation(right)["client-1"]
    aligned, (found,) = align(logs, "server")
    assert aligned["server"] == logs["server"]
    return [abs(event.time - true.time) for event, true in zip(aligned["client-1"], truth, strict=True)], found


@pytest.mark.parametrize("hours", [-30.0, -1.0, 0.5, 12.0])
def test_a_clock_that_is_off_by_hours(hours: float) -> None:
    def clock(now: float) -> float:
        return now + 3600 * hours

    wrong, found = errors(conversation(clock), clock)
    assert found.uncertainty is not None
    assert max(wrong) <= found.uncertainty < 0.08
    assert found.ahead == pytest.approx(3600 * hours, abs=found.uncertainty)
    assert (found.messages, found.jumps) == (80, 0)


@pytest.mark.parametrize("parts", [-100e-6, 100e-6])
def test_a_clock_that_drifts(parts: float) -> None:
    def clock(now: float) -> float:
        return now + 7200.0 + parts * (now - BEGAN)

    wrong, found = errors(conversation(clock), clock)
    assert found.uncertainty is not None
    assert max(wrong) <= found.uncertainty < 0.1
    assert found.jumps == 0


@pytest.mark.parametrize("jump", [-3600.0, -1.0, 5.0, 7200.0])
def test_a_clock_that_is_set_in_the_middle(jump: float) -> None:
    def clock(now: float) -> float:
        return now + 100.0 + (jump if now > BEGAN + 605.0 else 0.0)

    wrong, found = errors(conversation(clock), clock)
    assert found.uncertainty is not None
    assert max(wrong) <= found.uncertainty < 0.1
    assert (found.jumps, found.ahead) == (1, pytest.approx(100.0 + jump, abs=0.1))


def test_a_clock_that_messages_do_not_contradict_is_left_as_it_is() -> None:
    def clock(now: float) -> float:
        return now + 0.02

    logs = conversation(clock)
    aligned, (found,) = align(logs, "server")
    assert aligned == logs
    assert (found.ahead, found.jumps) == (0.0, 0)
    assert found.uncertainty == pytest.approx(0.1, abs=0.06)


def test_between_messages_the_uncertainty_grows_by_what_clocks_may_drift() -> None:
    logs = conversation(right, rounds=1, every=3600.0)
    logs["client-1"].insert(1, at(logs["client-1"][0].time + 1440.0, "client-1", HeartbeatSent()))
    _, (near,) = align(conversation(right, rounds=1, every=3600.0), "server")
    _, (found,) = align(logs, "server")
    assert found.uncertainty == pytest.approx(near.uncertainty + DRIFT * 1440.0, abs=0.1)


def test_a_client_without_a_message_in_common_is_not_aligned() -> None:
    logs = conversation(lambda now: now + 3600.0)
    logs["server"] = [
        timed(
            "server",
            event.time,
            [(peer, "another ", *place) for peer, _, *place in event.sent],
            [(peer, "another ", *place) for peer, _, *place in event.received],
        )
        for event in logs["server"]
        if isinstance(event, MessagesTimed)
    ]
    aligned, (found,) = align(logs, "server")
    assert aligned == logs
    assert (found.messages, found.uncertainty) == (0, None)


def test_messages_one_way_only_leave_the_uncertainty_unknown() -> None:
    logs = conversation(lambda now: now + 3600.0)
    logs["client-1"] = [msgspec.structs.replace(event, sent=[]) for event in logs["client-1"]]
    _, (found,) = align(logs, "server")
    assert found.uncertainty is None
    assert found.ahead == pytest.approx(3600.0, abs=0.2)


def test_a_number_that_is_there_twice_is_not_used() -> None:
    """A conversation that began anew numbers from 0 again: nobody knows which is which."""
    logs = conversation(right)
    again = [("server", "a1b2c3d4", 1, 1, BEGAN + 9e6)]
    logs["client-1"].append(msgspec.structs.replace(logs["client-1"][0], received=again))
    _, (found,) = align(logs, "server")
    # One fewer each way: that event has its sent note again, too.
    assert found.messages == 78


def shifted(run: Any, name: str, clock: Clock, folder: Path) -> Path:
    """The log of a party as a host with another clock would have written it, in a folder of its own."""
    folder.mkdir()
    path = folder / f"{name}.jsonl"

    def set_clock(notes: list[Note]) -> list[Note]:
        return [(*place, clock(time)) for *place, time in notes]

    with path.open("wb") as file:
        for event in read(run.run.events(name)):
            if isinstance(event, MessagesTimed):
                event = timed(name, event.time, set_clock(event.sent), set_clock(event.received))
            file.write(msgspec.json.encode(at(clock(event.time), name, event)) + b"\n")
    run.run.events(name).unlink()
    return path


@pytest.fixture
def apart(script: Any, tmp_path: Path) -> Any:
    """A run of three rounds whose clients 1 and 2 were on hosts with other clocks; with these logs, as places."""
    run = script()
    run.session()
    for number in (1, 2, 3):
        for party in run.clients:
            down = [(party, "feed", number, 1, run.now + 0.125), (party, "feed", number, 2, run.now + 2.125)]
            up = [(party, "feed", number, 1, run.now + 1.0), (party, "feed", number, 2, run.now + 2.5)]
            run.log("server", MessagesTimed(sent=down, received=up), after=2.75)
            heard = [("server", *place, time + 0.015625) for _, *place, time in down]
            said = [("server", *place, time - 0.015625) for _, *place, time in up]
            run.log(party, MessagesTimed(sent=said, received=heard), after=2.75)
        run.round(number)
    run.end()
    whole = read_state(run.run.path / "events")
    places = [
        shifted(run, "client-1", lambda now: now - 10_800.0, tmp_path / "one"),
        shifted(run, "client-2", lambda now: now + 7200.0 + 50e-6 * (now - BEGAN), tmp_path / "two").parent,
    ]
    return run, whole, places


def test_logs_of_several_hosts_make_the_state_of_one(apart: Any) -> None:
    run, whole, places = apart
    found = read_state(run.run.path / "events", *places)
    uncertain = {clock.party: clock.uncertainty for clock in found.clocks}
    assert list(found.parties) == list(whole.parties)
    assert not found.one_machine
    for mine, true in zip(found.rounds, whole.rounds, strict=True):
        assert (mine.number, mine.began, mine.ended, mine.result) == (true.number, true.began, true.ended, true.result)
        for name, spans in true.spans.items():
            for span, expected in zip(mine.spans[name], spans, strict=True):
                assert span.phase == expected.phase
                assert span.start == pytest.approx(expected.start, abs=uncertain.get(name, 0.0) + 1e-3)
    for name, ahead in (("client-1", -10_800.0), ("client-2", 7200.0), ("client-3", 0.0)):
        (clock,) = (clock for clock in found.clocks if clock.party == name)
        assert clock.ahead == pytest.approx(ahead, abs=0.01)
        assert clock.uncertainty == pytest.approx(0.015625, abs=0.001)
    assert found.warnings == []


def test_a_log_is_read_up_to_notes_that_are_none(apart: Any) -> None:
    run, _, places = apart
    run.log_line("server", "messages-timed", sent=[["client-1", 7]])
    (unread,) = read_state(run.run.path / "events", *places).unread
    assert unread.path == run.run.events("server")
    assert "at `$.sent[0][1]`" in unread.fault

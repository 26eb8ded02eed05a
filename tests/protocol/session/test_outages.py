"""Lost links and killed processes: the server gathers its clients again, and the run goes on when they are back."""

from random import Random

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended, Output
from tacit.protocol.session.events import GatheringStarted
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.simulate.world.federation import GRACE, JOIN_SECONDS, PATIENCE, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

HOUR, DAY = 3600.0, 86_400.0


class Outages(MemoryFederation):
    """Hosts that start their processes again, as a service manager does."""

    def __init__(self, clients: int, *, rounds: int, seed: bytes = b"outages", **changes: object) -> None:
        self.saved, self.supervised = 0, False
        self.pauses: dict[str, float] = {}
        self.calm = 0.0
        """When the last fault is over."""
        super().__init__(small_configuration(clients, **changes), clients, rounds=rounds, seed=seed)
        self.client_grace = 2 * HOUR
        self.training_seconds = lambda: 50.0

    def apply(self, done: RoundDone) -> str:
        self.saved = done.round
        return super().apply(done)

    def lose(self, *names: str) -> None:
        for name in names:
            self.lose_link(name)

    def restore(self, *names: str) -> None:
        for name in names:
            self.network.cut.discard(name)
            if self.host not in self.dead:
                self.restore_link(name)

    def kill_server(self) -> None:
        if self.rounds_left <= 0:
            return
        self.kill(self.host)
        for client in self.clients.values():
            client.server_lost(self.now)

    def restart_server(self) -> None:
        if self.rounds_left <= 0:
            return
        self.start_server(completed=self.saved)
        for name in set(self.roster.clients) - self.network.cut:
            self.restore_link(name)

    def act(self, party: str, output: Output) -> None:
        super().act(party, output)
        if isinstance(output, Ended) and output.code is not None and self.supervised:
            assert party != self.host or not self.saved, "a server that has a round gathers for as long as it takes"
            # While hosts are out, each pause is twice the last: an outage of days takes few attempts.
            self.pauses[party] = pause = min(2 * self.pauses.get(party, 2.5), HOUR)
            self.at(self.now + (pause if self.now < self.calm else 5.0), lambda: self._start_again(party, output))

    def _start_again(self, party: str, ended: Ended) -> None:
        if party == self.host and self.server.state is SessionState.ENDED:
            self.kill_server()
            self.restart_server()
        elif party in self.clients and self.clients[party].state is TrainingState.ENDED:
            self.start_client(party)


FINISHED = "the federation is finished"
DONE = Ended(None, "all rounds are done")


@cases("training", [False, True])
def test_a_resumption_restarts_the_patience_of_a_waiting_client(*, training: bool) -> None:
    one = Outages(3, rounds=1)
    one.start(*one.roster.clients[: 3 if training else 2])
    one.settle(until=5.0)
    one.lose("client-0")
    one.restore("client-0")
    one.advance()
    client = one.clients["client-0"]
    assert (client.state is TrainingState.TRAINING) is training
    assert client.deadline == (None if training else 5.0 + PATIENCE)


@cases("seconds", [GRACE - 1, GRACE + 1, HOUR, 3 * DAY])
def test_an_outage_of_all_links_costs_one_round_at_most(seconds: float) -> None:
    one = Outages(5, rounds=3)
    one.client_grace = 4 * DAY
    one.start()
    one.settle(until=20.0)
    one.lose(*one.roster.clients)
    one.settle(until=20.0 + seconds)
    one.restore(*one.roster.clients)
    one.settle(until=20.0 + seconds + HOUR)
    done = one.outcome(RoundDone)
    assert one.ended(SERVER) == DONE
    assert [round.missed for round in done] == [True] * (seconds > GRACE) + [False] * 3
    assert {round.survivors for round in done if not round.missed} == {one.roster.clients}
    assert {one.ended(name) for name in one.roster.clients} == {Ended(None, FINISHED)}


def test_who_comes_back_first_waits_a_grace_for_the_others() -> None:
    one = Outages(5, rounds=2)
    one.start()
    one.settle(until=20.0)
    one.lose(*one.roster.clients)
    one.settle(until=HOUR)
    assert one.server.state is SessionState.GATHERING
    assert one.outcome(GatheringStarted, SERVER)
    for place, name in enumerate(one.roster.clients[:4]):
        one.at(HOUR + place, lambda name=name: one.restore(name))
    one.settle(until=2 * HOUR)
    assert one.outcome(RoundDone)[1].cohort == one.roster.clients[:4]
    assert one.outcome(RoundDone)[1].began == HOUR + 2 + GRACE
    assert one.ended(SERVER) == DONE


def test_one_of_three_that_crashes_is_waited_for() -> None:
    one = Outages(3, rounds=3)
    one.start()
    one.settle(until=20.0)
    one.lose("client-1")
    one.kill("client-1")
    one.settle(until=DAY)
    assert one.server.state is SessionState.GATHERING
    assert [one.clients[name].state for name in ("client-0", "client-2")] == [TrainingState.AWAIT_ROUND] * 2
    one.restore("client-1")
    one.start_client("client-1")
    one.settle(until=DAY + HOUR)
    assert [done.survivors for done in one.outcome(RoundDone) if not done.missed] == [one.roster.clients] * 3


def test_a_server_that_started_again_waits_for_its_clients() -> None:
    one = Outages(5, rounds=3)
    one.start()
    one.settle(until=70.0)
    assert one.saved == 1
    one.kill_server()
    one.lose(*one.roster.clients)
    one.settle(until=100.0)
    one.restart_server()
    one.settle(until=100.0 + 10 * JOIN_SECONDS)
    assert one.server.state is SessionState.GATHERING
    one.restore(*one.roster.clients)
    one.settle(until=HOUR)
    assert [done.round for done in one.outcome(RoundDone) if not done.missed] == [1, 2, 3]
    assert one.ended(SERVER) == DONE


def test_a_client_that_is_stopped_and_started_again_costs_no_round() -> None:
    one = Outages(3, rounds=2)
    one.start()
    one.settle(until=20.0)
    one.emit("client-1", one.clients["client-1"].give_up("its host restarts", one.now, code=Code.LEFT))
    one.settle(until=300.0)
    one.start_client("client-1")
    one.settle(until=HOUR)
    assert [done.missed for done in one.outcome(RoundDone)] == [True, False, False]
    assert one.ended(SERVER) == DONE


def test_a_round_that_lost_a_restarted_client_is_held_again() -> None:
    one = Outages(3, rounds=2)
    one.start()
    one.settle(until=20.0)
    one.start_client("client-1")
    one.settle(until=HOUR)
    assert [(done.missed, done.lost) for done in one.outcome(RoundDone)] == [
        (True, ("client-1",)), (False, ()), (False, ()),
    ]  # fmt: skip
    assert one.ended(SERVER) == DONE


@cases("last", ["welcome", "start-round", "peer-keys", "end-round", "share-keys"])
def test_late_messages_of_an_earlier_process_are_ignored(last: str) -> None:
    """A message to or from the client's former process arrives after the next process has sent its hello."""
    one = Outages(3, rounds=2)
    held = list[Parcel]()

    def hook(parcel: Parcel) -> list[Parcel]:
        if "client-1" not in (parcel.sender, parcel.receiver):
            return [parcel]
        held.extend([parcel] if held or parcel.kind == last else [])
        return [] if held else [parcel]

    one.hook = hook
    one.start()
    while not held:
        one.settle(until=one.now + 1.0)
    one.hook = lambda parcel: [parcel]
    one.start_client("client-1")
    if last == "share-keys":
        one.settle(until=one.now + 1.0)
    assert not one.put(held[0])
    one.settle(until=HOUR)
    assert one.ended(SERVER) == DONE
    assert {one.ended(name) for name in one.roster.clients} == {Ended(None, FINISHED)}


def test_gathering_again_ends_when_its_time_is_over_or_too_few_can_come() -> None:
    one = Outages(4, rounds=3)
    one.start_server(regather_seconds=HOUR)
    one.start()
    one.settle(until=20.0)
    one.lose("client-0", "client-1")
    one.settle(until=2 * HOUR)
    assert one.ended(SERVER) == Ended(Code.THRESHOLD, "only 2 clients are there; a round takes at least 3")

    one = Outages(4, rounds=3)
    one.start()
    one.settle(until=20.0)
    one.lose("client-0", "client-1")
    one.settle(until=HOUR)
    assert one.server.state is SessionState.GATHERING
    one.emit(SERVER, one.server.do_without(["client-0", "client-1"], one.now))
    assert one.ended(SERVER) == Ended(Code.THRESHOLD, "only 2 clients are there; a round takes at least 3")


def test_a_client_asks_a_silent_server_and_gives_up_one_that_does_not_answer() -> None:
    one = Outages(4, rounds=1)
    one.start("client-0")
    one.start_server()
    one.kill("client-0")
    one.start("client-0", "client-1", "client-2")
    one.server._gather_until = one.server.deadline = DAY
    one.settle(until=5 * PATIENCE)
    assert one.clients["client-0"].state is TrainingState.AWAIT_ROUND
    assert len([parcel for parcel in one.log if parcel.sender == "client-0" and parcel.kind == "resume"]) == 4
    one.hook = lambda parcel: []
    # Its last question.
    one.settle(until=5.9 * PATIENCE)
    assert one.clients["client-0"].state is TrainingState.AWAIT_ROUND
    one.settle(until=6.1 * PATIENCE)
    ended = one.ended("client-0")
    assert ended is not None
    assert ended.code is Code.TIMEOUT


def test_a_link_that_is_back_is_enough_during_a_session_and_not_after_it() -> None:
    one = Outages(3, rounds=1)
    one.start()
    one.server.link_lost("client-1", one.now)
    one.server.link_back("client-1")
    assert one.server.presence.lost == ()
    one.server.link_lost("client-1", one.now)
    one.server.presence.end()
    one.server.link_back("client-1")
    assert one.server.untold


def test_a_client_that_gave_up_and_returns_can_take_part() -> None:
    one = Outages(4, rounds=1)
    one.paused = True
    one.start()
    one.emit("client-1", one.clients["client-1"].give_up("its disk is full", one.now))
    one.advance()
    assert "client-1" not in one.server.presence.possible
    one.start("client-1")
    assert "client-1" in one.server.presence.possible


def endured(seed: int) -> Outages:
    """Everything that may fail does so for a while, of which the last is over in some days."""
    random = Random(seed)
    clients = random.randint(3, 5)
    mode = random.choice(("active", "semi-honest", "none"))
    one = Outages(clients, rounds=3, seed=b"outages %d" % seed, mode=mode)
    one.training_seconds, one.supervised = lambda: random.uniform(1.0, 90.0), True
    one.start()
    free: dict[str, float] = {}
    for _ in range(random.randint(1, 8)):
        begins = 10 ** random.uniform(0.0, 3.5)
        lasts = 10 ** random.uniform(0.0, 5.5)
        victims = random.sample(one.roster.clients, random.randint(1, clients))
        fault = random.choice(("links", "clients", "server"))
        if fault == "server":
            victims = [SERVER]
        begins = max([begins, *(free.get(name, 0.0) for name in victims)])
        free.update(dict.fromkeys(victims, begins + lasts + 1.0))
        one.calm = max(one.calm, begins + lasts)
        for name in victims:
            if fault == "links":
                one.at(begins, lambda name=name: name in one.clients and one.lose(name))
                one.at(begins + lasts, lambda name=name: one.restore(name))
            elif fault == "clients":
                one.at(begins, lambda name=name: (one.lose(name), one.kill(name)))
                one.at(begins + lasts, lambda name=name: (one.restore(name), one.start_client(name)))
            else:
                one.at(begins, one.kill_server)
                one.at(begins + lasts, one.restart_server)
    while one.now < one.calm + 2 * DAY and one.ended(SERVER) != DONE:
        one.settle(until=one.now + HOUR)
    return one


def check_endured(seed: int) -> None:
    one = endured(seed)
    assert one.ended(SERVER) == DONE, seed
    counted = [done for done in one.outcome(RoundDone) if not done.missed]
    assert one.rounds_left == 0, seed
    # A server that is killed before it has applied a sum holds that round again.
    assert len(counted) >= 3, seed


def test_a_run_ends_once_links_are_back() -> None:
    for seed in range(40):
        check_endured(seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_many_runs_end_once_links_are_back(first: int) -> None:
    for seed in range(first, first + 500):
        check_endured(seed)

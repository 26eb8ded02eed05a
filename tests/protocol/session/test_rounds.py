"""Whole federations in memory: every round's sum is the plain sum of its survivors, whoever comes, goes and fails."""

from itertools import pairwise

import numpy as np

from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import CHUNK_BYTES, Chunk
from tacit.protocol.session.messages import MESSAGES, EndRound
from tacit.protocol.session.rounds import Accepted, Journal, RoundDone, RoundOver, Train
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import MaskedInput, VectorChunk
from tacit.protocol.sum.states import Phase
from tacit.simulate.world.federation import PATIENCE, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases


def federation(*, clients: int = 5, rounds: int = 1, **changes: object) -> MemoryFederation:
    return MemoryFederation(small_configuration(clients, **changes), clients, rounds=rounds)


def check_sums(done: list[RoundDone], one: MemoryFederation) -> None:
    for round in done:
        assert round.total is not None
        np.testing.assert_array_equal(round.total, one.plain_sum(round))


@cases("mode", ["active", "semi-honest"])
def test_rounds_follow_each_other(mode: str) -> None:
    one = federation(rounds=3, mode=mode).run()
    done = one.outcome(RoundDone)
    assert [(round.round, round.survivors, round.code) for round in done] == [
        (number, one.roster.clients, None) for number in (1, 2, 3)
    ]
    check_sums(done, one)
    assert one.outcome(Ended, SERVER) == [Ended(None, "all rounds are done")]
    for name in one.roster.clients:
        told = [type(output) for party, output in one.outputs if party == name]
        assert told == [Accepted, *[Journal, Train, RoundOver] * 3, Ended]
        assert one.outcome(RoundOver, name) == [RoundOver(number, None, "") for number in (1, 2, 3)]
        assert one.ended(name) == Ended(None, "the federation is finished")
    models = [train.model for train in one.outcome(Train, "client-2")]
    assert all((np.frombuffer(b, "<f4") - np.frombuffer(a, "<f4") == 1).all() for a, b in pairwise(models))


def test_the_same_randomness_gives_the_same_bytes() -> None:
    first, second = federation(rounds=2).run(), federation(rounds=2).run()
    assert first.log == second.log
    other = MemoryFederation(small_configuration(5), 5, rounds=2, seed=b"other").run()
    assert not {parcel.frames for parcel in first.log} & {parcel.frames for parcel in other.log}


@cases("parameters", [CHUNK_BYTES // 4, CHUNK_BYTES // 4 + 1, 5 * CHUNK_BYTES // 4 + 7])
def test_models_of_several_chunks(parameters: int) -> None:
    one = federation(clients=3, parameters=parameters).run()
    check_sums(one.outcome(RoundDone), one)
    start = np.arange(parameters, dtype="<f4").tobytes()
    assert {train.model for train in one.outcome(Train)} == {start}
    chunks = -(-4 * parameters // CHUNK_BYTES)
    assert sum(parcel.packet.kind is Chunk for parcel in one.log) == 3 * chunks
    # The vector has a few words more than the model: the weight, and so one chunk more where the model fills them.
    assert sum(parcel.packet.kind is VectorChunk for parcel in one.log) == 3 * -(-4 * (parameters + 1) // CHUNK_BYTES)


def test_who_is_late_in_a_round_is_in_the_next() -> None:
    one = federation(rounds=2)
    delayed: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender == "client-1" and (delayed or parcel.packet.kind is MaskedInput) and one.server.round == 1:
            delayed.append(parcel)
            return []
        if parcel.receiver == "client-1" and parcel.packet.kind is EndRound:
            one.hook = lambda parcel: [parcel]
            return [*delayed, parcel]
        return [parcel]

    one.hook = hook
    one.run()
    first, second = one.outcome(RoundDone)
    assert [(dropped.member, dropped.phase, dropped.code) for dropped in first.dropped] == [
        ("client-1", "MASKED_INPUT", Code.TIMEOUT)
    ]
    assert first.survivors == tuple(name for name in one.roster.clients if name != "client-1")
    assert second.survivors == one.roster.clients
    check_sums([first, second], one)
    assert [over.code for over in one.outcome(RoundOver, "client-1")] == [Code.TIMEOUT, None]
    assert [parcel.packet.kind for parcel in delayed] == [MaskedInput]
    assert one.server.ignored == 1


def test_who_breaks_a_rule_is_out_for_the_session() -> None:
    one = federation(rounds=3)

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender == "client-2" and parcel.packet.kind is MaskedInput:
            return [altered(parcel, payload=b"not a vector")]
        return [parcel]

    one.hook = hook
    one.run()
    first, second, third = one.outcome(RoundDone)
    assert [(dropped.member, dropped.code) for dropped in first.dropped] == [("client-2", Code.VECTOR)]
    others = tuple(name for name in one.roster.clients if name != "client-2")
    assert first.survivors == second.cohort == second.survivors == third.survivors == others
    check_sums([first, second, third], one)
    ended = one.ended("client-2")
    assert ended is not None
    assert ended.code is Code.VECTOR
    assert one.clients["client-2"].state is TrainingState.ENDED


def test_one_fault_more_than_tolerated_ends_the_round_and_not_the_session() -> None:
    """Five clients, four are needed; two give up in the round, which ends within the handling of the second's word."""
    one = federation(rounds=2)
    one.idle = {"client-0", "client-1"}
    one.start()
    for name in sorted(one.idle):
        one.emit(name, one.clients[name].give_up("out of memory", one.now))
    one.settle()
    first, *others = one.outcome(RoundDone)
    assert (first.round, first.code, first.total) == (1, Code.THRESHOLD, None)
    assert [dropped.detail for dropped in first.dropped] == ["it gave up: out of memory"] * 2
    (second,) = others
    assert second.cohort == second.survivors == ("client-2", "client-3", "client-4")
    check_sums(others, one)
    assert one.ended("client-0") == Ended(Code.LOCAL, "client-0: out of memory")


def test_a_sum_that_stalls_ends_the_round_of_the_client_only() -> None:
    one = federation()
    one.hook = lambda parcel: [] if parcel.packet.kind is MaskedInput else [parcel]
    one.start()
    client = one.clients["client-0"]
    assert client.phase is Phase.MASKED_INPUT
    deadline = client.next_deadline
    assert deadline is not None
    one.now = deadline
    one.emit("client-0", client.expire(deadline))
    (over,) = one.outcome(RoundOver, "client-0")
    assert (over.round, over.code, client.state) == (1, Code.TIMEOUT, TrainingState.AWAIT_ROUND)
    assert client.next_deadline == deadline + PATIENCE


def test_counting_goes_on_after_a_restart_of_the_server() -> None:
    one = federation(rounds=2)
    one.start_server(completed=7)
    one.run()
    assert [done.round for done in one.outcome(RoundDone)] == [8, 9]
    check_sums(one.outcome(RoundDone), one)


def test_the_cohort_is_no_larger_than_configured() -> None:
    configuration: Configuration = small_configuration(4)
    one = MemoryFederation(configuration, 6, rounds=2)
    one.paused = True
    one.start(*one.roster.clients[2:])
    one.start(*one.roster.clients[:2])
    one.advance()
    one.paused = False
    one.settle()
    assert [done.cohort for done in one.outcome(RoundDone)] == [one.roster.clients[2:], one.roster.clients[:4]]


def test_phases_and_waiting_for() -> None:
    one = federation()
    one.training_seconds = lambda: 1.0
    seen: list[tuple[Phase, Phase]] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        pair = (one.server.phase, one.clients["client-0"].phase)
        if not seen or seen[-1] != pair:
            seen.append(pair)
        return [parcel]

    one.hook = hook
    one.run()
    servers = list(dict.fromkeys(pair[0] for pair in seen))
    clients = list(dict.fromkeys(pair[1] for pair in seen))
    # Vectors of one chunk are there as soon as the last one is ready.
    assert servers == [phase for phase in Phase if phase not in (Phase.MASKED_INPUT, Phase.ANSWER_COMPLAINTS)]
    assert clients == [phase for phase in Phase if phase not in (Phase.ANSWER_COMPLAINTS, Phase.UNMASK)]
    assert one.server.waiting_for == ()


def test_a_training_that_outlasts_its_round_is_sent_in_no_other() -> None:
    one = federation(rounds=2)
    one.idle = {"client-0"}
    one.start()
    one.settle(until=one.configuration.train_seconds + one.configuration.phase_seconds + 1)
    client = one.clients["client-0"]
    assert (client.state, client.round) == (TrainingState.TRAINING, 2)
    assert client.contribute(1, one.draw("client-0", 1), one.now) == []
    assert client.state is TrainingState.TRAINING

    one = federation()
    one.idle = {"client-0"}
    one.run()
    client = one.clients["client-0"]
    assert one.outcome(RoundDone)[0].survivors == one.roster.clients[1:]
    assert client.contribute(1, one.draw("client-0", 1), one.now) == []
    assert client.give_up("too late", one.now) == []


def test_bytes_are_counted_alike_at_both_ends() -> None:
    one = federation(rounds=2).run()
    sent: dict[tuple[int, Phase], int] = {}
    for parcel in one.log:
        packet = decode(parcel.frames, MESSAGES)
        where = (packet.envelope.round, packet.kind.PHASE)
        sent[where] = sent.get(where, 0) + sum(map(len, parcel.frames))
    ends = [one.server.traffic, *(client.traffic for client in one.clients.values())]
    for where, total in sent.items():
        assert sum(end.sent[where] for end in ends) == sum(end.received[where] for end in ends) == total

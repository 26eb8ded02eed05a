"""Group keys within a session: members that come, go and fail, and models that change hands or are remembered."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from tacit.protocol.core.blob import NO_BLOB
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import CHUNK_BYTES, Abort, Chunk, Fetch, Message
from tacit.protocol.group_key.events import GroupKeyReceived, KeyAgreementFailed, ModelRecovered
from tacit.protocol.group_key.holder import LastModel, Reencrypt
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    EndKey,
    KeyAccepted,
    KeyCommit,
    KeyContribution,
    KeyedModel,
    PeerKeyConfirmations,
    ReencryptModel,
    StartKey,
)
from tacit.protocol.session.events import ModelNotReceived
from tacit.protocol.session.messages import StartRound
from tacit.protocol.session.rounds import NewModel, RoundDone, Train
from tacit.simulate.world.federation import JOIN_SECONDS, PATIENCE, SERVER, MemoryFederation, shift, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

ALL = Ended(None, "all rounds are done")
LEFT = Abort(code=Code.LOCAL, detail="the disk is full", culprit="")


def federation(clients: int = 4, *, rounds: int = 2, roster: int = 0, **changes: Any) -> MemoryFederation:
    """A federation that encrypts its model; roster: clients in the roster, if there are more than in a round."""
    settings = {"encrypted": True, "group_key": True, "initial_model": "clients", "mode": "semi-honest"}
    return MemoryFederation(small_configuration(clients, **(settings | changes)), roster or clients, rounds=rounds)


def plain(key: Any, model: bytes) -> np.ndarray:
    return np.frombuffer(model, "<f4") - np.float32(shift(key))


def epochs(one: MemoryFederation) -> list[int]:
    seen: list[int] = []
    for parcel in one.log:
        if isinstance(message := parcel.message, StartKey) and message.epoch not in seen:
            assert not seen or message.epoch > seen[-1]
            seen.append(message.epoch)
    return seen


def check(one: MemoryFederation) -> list[RoundDone]:
    """In every round all have the one key of its cohort, and train on the one model; every sum is right."""
    epochs(one)
    expected = np.arange(sum(one.configuration.tensor_sizes), dtype="<f4")
    done = one.outcome(RoundDone)
    for round in done:
        trains = {name: out for name, out in one.outputs if isinstance(out, Train) and out.round == round.round}
        assert set(round.survivors) <= trains.keys() <= set(round.cohort)
        keys = {train.key for train in trains.values() if train.key}
        assert [key.members for key in keys] == [round.cohort]
        for train in trains.values():
            if one.configuration.encrypted:
                assert np.array_equal(plain(train.key, train.model), expected)
        if round.total is not None:
            np.testing.assert_array_equal(round.total, one.plain_sum(round))
            expected += 1
    for last in one.outcome(LastModel):
        assert np.array_equal(plain(last.key, last.model), expected)
    return done


def used(one: MemoryFederation) -> list[int]:
    return [next(t.key.epoch for t in one.outcome(Train) if t.round == r.round and t.key) for r in check(one)]


def failures(one: MemoryFederation) -> list[tuple[int, str, list[str]]]:
    return [(failed.epoch, failed.code, failed.by) for failed in one.outcome(KeyAgreementFailed, SERVER)]


def everybody_got_the_last_model(one: MemoryFederation, *names: str) -> None:
    assert one.ended(SERVER) == ALL
    got = [name for name, output in one.outputs if isinstance(output, LastModel)]
    assert sorted(got) == sorted(names or one.roster.clients)


def gives_up(one: MemoryFederation, name: str) -> None:
    one.put(one.forge(name, SERVER, LEFT, round=0))
    one.kill(name)


def test_a_model_of_another_length_is_not_provided() -> None:
    one = federation()
    one.idle = set(one.roster.clients)
    one.start()
    one.settle(until=1.0)
    with pytest.raises(LocalProtocolError, match="a model of 36 bytes does not fit the layout"):
        one.clients["client-0"].provide(0, bytes(36), one.now)


def between_rounds(one: MemoryFederation) -> MemoryFederation:
    one.paused = True
    one.settle(until=one.now + 1)
    one.paused = False
    return one


@cases("mode", ["active", "semi-honest"])
@cases(("every", "expected"), [(0, [0] * 5), (1, [0, 1, 2, 3, 4]), (2, [0, 0, 1, 1, 2])])
def test_a_key_is_renewed_every_so_many_rounds(mode: str, every: int, expected: list[int]) -> None:
    one = federation(rounds=5, rekey_every=every, mode=mode).run()
    assert used(one) == expected
    assert len({train.key.transcript for train in one.outcome(Train)}) == len(set(expected))
    everybody_got_the_last_model(one)


@cases("initial", ["clients", "server"])
def test_the_first_model_is_made_from_the_key_or_is_that_of_the_server(initial: str) -> None:
    one = federation(initial_model=initial).run()
    orders = [parcel.message for parcel in one.log if parcel.packet.kind is ReencryptModel]
    assert [(order.source, order.model.size) for order in orders] == [(initial, 40 * (initial == "server"))]  # type: ignore[attr-defined]
    assert used(one) == [0, 0]
    everybody_got_the_last_model(one)


def test_a_key_alone_needs_no_transfer_of_models() -> None:
    one = federation(rounds=3, encrypted=False, initial_model="server", rekey_every=2).run()
    assert used(one) == [0, 0, 1]
    outside = {parcel.packet.kind for parcel in one.log if not parcel.packet.envelope.round}
    assert not outside & {ReencryptModel, KeyedModel, Fetch, Chunk}
    assert one.ended(SERVER) == ALL


@cases("leaver", ["client-0", "client-3"])
def test_a_member_that_leaves_between_rounds(leaver: str) -> None:
    one = federation(rounds=3)
    one.start()
    between_rounds(one)
    gives_up(one, leaver)
    one.settle()
    stayed = tuple(name for name in one.roster.clients if name != leaver)
    assert used(one) == [0, 1, 1]
    assert [done.cohort for done in check(one)] == [one.roster.clients, stayed, stayed]
    everybody_got_the_last_model(one, *stayed)


@cases("newcomer", ["client-0", "client-3"])
def test_a_member_that_joins_late(newcomer: str) -> None:
    """Also one whom the roster lists before those that can read the model."""
    one = federation(rounds=3)
    one.start(*(name for name in one.roster.clients if name != newcomer))
    one.paused = True
    one.settle(until=JOIN_SECONDS + 1)
    one.start_client(newcomer)
    one.paused = False
    one.settle()
    assert used(one) == [0, 1, 1]
    assert check(one)[-1].cohort == one.roster.clients
    everybody_got_the_last_model(one)


@cases("restarted", ["client-0", "client-3"])
def test_a_member_that_restarts_under_the_same_name_between_rounds(restarted: str) -> None:
    """It has lost its keys, so it gets another and is not asked for the model."""
    one = federation(rounds=3)
    one.start()
    between_rounds(one)
    one.start_client(restarted)
    one.settle()
    assert used(one) == [0, 1, 1]
    assert [done.cohort for done in check(one)] == [one.roster.clients] * 3
    orders = [parcel.receiver for parcel in one.log if parcel.packet.kind is ReencryptModel]
    assert orders == ["client-0", "client-1" if restarted == "client-0" else "client-0"]
    everybody_got_the_last_model(one)


IN_ATTEMPT: list[type[Message]] = [KeyCommit, KeyContribution, ConfirmKey, KeyAccepted]


def outside_rounds(parcel: Parcel, sender: str, kind: type[Message]) -> bool:
    return (parcel.sender, parcel.packet.kind, parcel.packet.envelope.round) == (sender, kind, 0)


OF_PROVIDER: list[type[Message]] = [Fetch, KeyedModel, Chunk]
POINTS = [
    *((kind, who, who, who == "client-0") for kind in IN_ATTEMPT for who in ("client-0", "client-2")),
    *((kind, "client-0", who, who != "client-0") for kind in OF_PROVIDER for who in ("client-0", "client-2")),
]
"""Where an attempt is disturbed: at which message of whom, who goes, and whether a key is renewed or is the first."""
CASES = [
    (how, *point)
    for how in ("silent", "gives up", "restarts")
    for point in POINTS
    if how != "silent" or point[1] == point[2]
]


@cases(
    ("how", "kind", "sender", "victim", "rekeyed"),
    CASES,
)
def test_a_member_that_goes_in_the_middle_of_an_attempt(
    how: str, kind: type[Message], sender: str, victim: str, rekeyed: bool
) -> None:
    """It is named, and the others agree on the next key without it; but with it if it started again."""
    one = federation(rounds=2 + rekeyed, rekey_every=1, initial_model="server")
    disturbed: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        here = outside_rounds(parcel, sender, kind) and one.server.round == rekeyed
        if how == "silent" and disturbed and parcel.sender == victim:
            return []
        if not here or disturbed:
            return [parcel]
        disturbed.append(parcel)
        if how == "gives up":
            gives_up(one, victim)
        elif how == "restarts":
            one.start_client(victim)
            one.put(one.network.pull(victim, SERVER))
        return [parcel] if sender != victim else []

    one.hook = hook
    one.run()
    assert disturbed
    code = "TIMEOUT" if how == "silent" else "LEFT"
    assert failures(one) == [(rekeyed, code, [victim])]
    cohorts = [done.cohort for done in check(one)]
    stayed = tuple(name for name in one.roster.clients if name != victim or how == "restarts")
    assert set(cohorts[rekeyed:]) == {stayed}
    assert not {rekeyed} & set(used(one))
    if how == "silent":
        assert [ended.code for ended in one.outcome(Ended, victim)] == [Code.TIMEOUT]
    everybody_got_the_last_model(one, *stayed)


@cases("kind", [*IN_ATTEMPT, *OF_PROVIDER])
def test_what_crosses_the_end_of_an_attempt_bars_nobody(kind: type[Message]) -> None:
    """client-0 speaks when client-2 has given up already, and only then learns of the end."""
    one = federation(rounds=2, rekey_every=1)
    crossed: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if outside_rounds(parcel, "client-0", kind) and one.server.round == 1 and not crossed:
            crossed.append(parcel)
            gives_up(one, "client-2")
            ignored = one.server.keeper.ignored
            assert one.put(parcel) == []
            assert one.server.keeper.ignored == ignored + 1
            return []
        return [parcel]

    one.hook = hook
    one.run()
    assert crossed
    assert failures(one) == [(1, "LEFT", ["client-2"])]
    assert used(one) == [0, 2]
    everybody_got_the_last_model(one, "client-0", "client-1", "client-3")


def test_a_key_that_some_had_accepted_is_used_by_nobody() -> None:
    """All but client-2 hold the key when it goes; the key that follows is another."""
    one = federation(rounds=1)

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.packet.kind) == (SERVER, PeerKeyConfirmations) and parcel.receiver == "client-2":
            gives_up(one, "client-2")
            return []
        return [parcel]

    one.hook = hook
    one.run()
    held = [(name, output.epoch) for name, output in one.outputs if isinstance(output, GroupKeyReceived)]
    others = ["client-0", "client-1", "client-3"]
    assert [sorted(name for name, epoch in held if epoch == number) for number in (0, 1)] == [others, others]
    assert used(one) == [1]
    ended = [parcel.receiver for parcel in one.log if parcel.packet.kind is EndKey]
    assert sorted(ended) == others


def test_fewer_than_the_smallest_cohort_wait_for_others() -> None:
    one = federation(3)
    lost = [1]

    def hook(parcel: Parcel) -> list[Parcel]:
        confirms = parcel.sender == "client-1" and parcel.packet.kind is ConfirmKey
        return [] if confirms and lost and lost.pop() else [parcel]

    one.hook = hook
    one.run()
    assert failures(one) == [(0, "TIMEOUT", ["client-1"])]
    # Who was late says hello again, and a key is agreed on at the second try.
    assert [done.survivors for done in one.outcome(RoundDone)] == [one.roster.clients] * 2
    assert one.ended(SERVER) == Ended(None, "all rounds are done")


def test_when_nobody_is_left_who_can_read_the_model_the_session_ends() -> None:
    one = federation(3)
    one.start()
    between_rounds(one)
    for name in one.roster.clients:
        one.start_client(name)
    one.settle()
    detail = "none of the clients that are left can read the model: those with its key have left"
    assert [one.ended(name) for name in (SERVER, *one.roster.clients)] == [Ended(Code.KEYS, detail)] * 4
    assert len(check(one)) == 1


@cases("reader", ["client-0", "client-1", "client-2"])
def test_one_reader_is_enough(reader: str) -> None:
    one = federation(3)
    one.start()
    between_rounds(one)
    for name in one.roster.clients:
        if name != reader:
            one.start_client(name)
    one.settle()
    assert used(one) == [0, 1]
    assert [parcel.receiver for parcel in one.log if parcel.packet.kind is ReencryptModel][-1] == reader
    everybody_got_the_last_model(one)


@cases("kind", [Fetch, KeyedModel, Chunk])
def test_a_link_that_is_lost_for_a_while_disturbs_nothing(kind: type[Message]) -> None:
    one = federation(rounds=2, rekey_every=1)
    held: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if outside_rounds(parcel, "client-0", kind) and one.server.round == 1:
            one.hook = lambda parcel: [parcel]
            one.network.cut.add("client-0")
            one.server.link_lost("client-0", one.now)
            held.append(parcel)
            return []
        return [parcel]

    one.hook = hook
    one.start()
    one.settle(until=one.now + 5.0)
    assert one.network.cut
    one.network.cut.clear()
    one.server.link_back("client-0")
    one.put(*held)
    one.settle()
    assert (used(one), failures(one)) == ([0, 1], [])
    everybody_got_the_last_model(one)


@cases("how", ["silent", "gives up", "restarts"])
def test_who_goes_while_the_last_model_is_handed_out_keeps_nobody_from_it(how: str) -> None:
    one = federation(rounds=1)
    silenced: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender == "client-1" and (silenced or outside_rounds(parcel, "client-1", Fetch)):
            silenced.append(parcel)
            if how == "gives up":
                gives_up(one, "client-1")
            elif how == "restarts":
                one.start_client("client-1")
                one.put(one.network.pull("client-1", SERVER))
            return []
        return [parcel]

    one.hook = hook
    one.run()
    everybody_got_the_last_model(one, "client-0", "client-2", "client-3")
    without = [event.members for event in one.outcome(ModelNotReceived, SERVER)]
    assert without == ([["client-1"]] if how == "silent" else [])


def test_a_model_of_several_chunks_in_both_directions() -> None:
    parameters = 5 * CHUNK_BYTES // 4 + 7
    one = federation(3, rounds=2, rekey_every=1, initial_model="server", parameters=parameters).run()
    check(one)
    chunks = -(-4 * parameters // CHUNK_BYTES)
    sent = [parcel.sender for parcel in one.log if outside_rounds(parcel, parcel.sender, Chunk)]
    # Two keys; each time to the provider and back. Then the last model to each.
    assert sent.count("client-0") == 2 * chunks
    assert sent.count(SERVER) == (2 + 3) * chunks
    everybody_got_the_last_model(one)


@cases("seed", [0, 2, 3, 4])
def test_the_model_is_right_after_many_changes_of_membership(seed: int) -> None:
    """Members leave, come back and start again, between rounds and in the middle of attempts, as chance has it."""
    random = Random(seed)
    one = federation(6, rounds=8, rekey_every=random.choice((0, 1, 3)))
    away: list[str] = []
    disturbances = 0

    def change() -> None:
        nonlocal disturbances
        present = [name for name in one.clients if name not in away]
        # So many stay that each attempt has a cohort, and two who can read the model.
        if random.random() < 0.5 and len(present) > 4:
            away.append(random.choice(present[1:]))
            gives_up(one, away[-1])
        elif away:
            one.start_client(away.pop(0))
        disturbances += 1

    def hook(parcel: Parcel) -> list[Parcel]:
        one.paused |= parcel.packet.kind is StartRound
        of_key = parcel.packet.kind in (*IN_ATTEMPT, *OF_PROVIDER) and not parcel.packet.envelope.round
        if of_key and parcel.receiver == SERVER and random.random() < 0.03:
            change()
            return [] if parcel.sender in away else [parcel]
        return [parcel]

    one.hook = hook
    one.start()
    while one.ended(SERVER) is None:
        one.settle(until=one.now + 30)
        change()
        one.paused = False
    assert len(check(one)) == 8
    assert one.ended(SERVER) == ALL
    assert disturbances > 8
    assert len(set(used(one))) > 4


def cohorts_after(one: MemoryFederation, names: Sequence[str]) -> list[tuple[str, ...]]:
    between_rounds(one)
    for name in names:
        one.start_client(name)
    one.settle()
    return [done.cohort for done in check(one)]


def test_late_clients_do_not_take_the_place_of_all_who_can_read_the_model() -> None:
    one = federation(3, roster=6)
    one.start(*one.roster.clients[3:])
    assert len(cohorts_after(one, one.roster.clients[:3])) == 2
    assert one.ended(SERVER) == ALL


def test_a_member_that_leaves_in_the_last_round_keeps_nobody_from_the_last_model() -> None:
    one = federation(rounds=1)
    one.start()
    between_rounds(one)
    gives_up(one, "client-1")
    one.settle()
    everybody_got_the_last_model(one, "client-0", "client-2", "client-3")


@cases("kind", [KeyContribution, KeyedModel])
def test_who_starts_again_in_an_attempt_is_there_for_the_next(kind: type[Message]) -> None:
    one = federation(3)

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.packet.kind) == ("client-0", kind):
            one.hook = lambda parcel: [parcel]
            one.start_client("client-2")
        return [parcel]

    one.hook = hook
    one.run()
    assert used(one) == [1, 1]
    everybody_got_the_last_model(one)


def test_a_model_that_was_encrypted_for_a_failed_attempt_is_not_taken_for_the_next() -> None:
    one = federation(rounds=1)
    one.idle = {"client-0"}
    one.start()
    gives_up(one, "client-3")
    one.advance()
    first, second = (order for name, order in one.outputs if type(order).__name__ == "Reencrypt")
    assert (first.key.epoch, second.key.epoch) == (0, 1)
    for order in (first, second):  # The shell is late with the first.
        one.emit("client-0", one.clients["client-0"].provide(order.key.epoch, one.encrypt(order), one.now))
    one.idle = set()
    one.settle()
    assert used(one) == [1]


def test_a_key_message_restarts_the_patience_of_a_client() -> None:
    one, held = federation(), list[Parcel]()
    one.hook = lambda parcel: held.append(parcel) or [] if isinstance(parcel.message, StartKey) else [parcel]
    one.start()
    one.settle(until=5.0)
    first = held[0]
    one.put(first)
    assert one.clients[first.receiver].deadline == 5.0 + PATIENCE


SETTINGS = {"encrypted": True, "group_key": True, "mode": "semi-honest"}
LOST = np.full(10, 99, "<f4").tobytes()
"""What the server has: a model under a key that nobody holds any more."""


class Remembering(MemoryFederation):
    """After three rounds. remembers: after which round each client has a model in the clear; it is that number."""

    def __init__(self, remembers: dict[str, int], *, initial_model: str = "clients", rounds: int = 1) -> None:
        configuration = small_configuration(4, **SETTINGS, initial_model=initial_model)
        super().__init__(configuration, 4, rounds=rounds, model=LOST)
        self.remembers = remembers
        self.asked: list[tuple[str, int]] = []
        self.start_server(completed=3)

    def act(self, party: str, output: object) -> None:
        if isinstance(output, Reencrypt) and output.source == "remembered":
            self.asked.append((party, output.round))
        super().act(party, output)  # type: ignore[arg-type]

    def encrypt(self, order: Reencrypt) -> bytes:
        if order.source != "remembered":
            return super().encrypt(order)
        round = self.remembers.get(self.asked[-1][0], -1)
        return np.full(10, round + shift(order.key), "<f4").tobytes() if round >= order.round else b""


@cases("initial_model", ["clients", "server"])
@cases(
    ("remembers", "asked", "after"),
    [
        ({"client-0": 3}, ["client-0"], 3),
        # An aborted round has a number and no model of its own.
        ({"client-0": 4}, ["client-0"], 3),
        ({"client-0": 2, "client-2": 3}, ["client-0", "client-1", "client-2"], 3),
        ({"client-0": 1, "client-1": 2}, ["client-0", "client-1", "client-2", "client-3", "client-0", "client-1"], 2),
    ],
)
def test_the_newest_model_that_somebody_remembers(
    initial_model: str, remembers: dict[str, int], asked: list[str], after: int
) -> None:
    one = Remembering(remembers, initial_model=initial_model, rounds=2).run()
    assert [name for name, _ in one.asked] == asked
    assert [round for _, round in one.asked] == [3] * min(4, len(asked)) + [2] * (len(asked) - 4)
    assert [done.round for done in one.outcome(RoundDone)] == [after + 1, after + 2]
    assert one.outcome(NewModel)[0].round == after
    for job in one.outcome(Train):
        if job.round == after + 1:
            model = np.frombuffer(job.model, "<f4") - np.float32(shift(job.key))  # type: ignore[arg-type]
            assert model.tolist() == [remembers[asked[-1]]] * 10
    assert one.outcome(ModelRecovered, SERVER) == [ModelRecovered(member=asked[-1], round=after)]
    assert one.ended(SERVER) == Ended(None, "all rounds are done")


@cases("remembers", [{}, {"client-1": 1}])
def test_where_nobody_remembers_it_the_session_ends(remembers: dict[str, int]) -> None:
    """Nothing is made up in its place, and nobody is thrown out for it."""
    one = Remembering(remembers).run()
    ended = one.ended(SERVER)
    assert ended == Ended(
        Code.KEYS, "no client that is here remembers the model after round 3 or 2: start again when others are there"
    )
    assert len(one.asked) == 8
    assert not one.outcome(RoundDone)
    assert {one.ended(name).code for name in one.roster.clients} == {Code.KEYS}


def test_who_leaves_instead_of_answering_is_not_waited_for() -> None:
    one = Remembering({"client-0": 3, "client-1": 3})
    one.idle = {"client-0"}
    one.start()
    one.put(one.forge("client-0", SERVER, Abort(code=Code.LOCAL, detail="no", culprit=""), round=0))
    assert [done.round for done in one.settle().outcome(RoundDone)] == [4]
    assert one.outcome(NewModel)[-1].round == 3


def test_a_fresh_session_asks_nobody_to_remember() -> None:
    one = MemoryFederation(small_configuration(4, **SETTINGS, initial_model="clients"), 4).run()
    orders = [parcel.message for parcel in one.log if parcel.packet.kind is ReencryptModel]
    assert [(order.source, order.round) for order in orders] == [("clients", 0)]


def test_nothing_in_the_place_of_a_model_that_was_to_be_made_is_refused() -> None:
    one = MemoryFederation(small_configuration(4, **SETTINGS, initial_model="clients"), 4)
    one.idle = {"client-0"}
    one.start()
    one.put(one.forge("client-0", SERVER, KeyedModel(epoch=0, model=NO_BLOB), round=0))
    assert [(failed.by, failed.code) for failed in one.outcome(KeyAgreementFailed, SERVER)] == [(["client-0"], "MODEL")]

"""Rounds of server and clients on loopback sockets under CURVE, all in one process; clients that come and go."""

import asyncio
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tacit.parties.learning.learner import Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Endpoint, Event, Received
from tacit.parties.links.keys import PartyKeys, encode_key
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session import server as server_party
from tacit.parties.session.client import STOPPED
from tacit.parties.session.event_log import read
from tacit.parties.session.events import (
    ClientRoundEnded,
    ClientsAwaited,
    ConfigurationAccepted,
    LinkLost,
    PhaseEnded,
    RoundEnded,
    SessionEnded,
    TrafficCounted,
)
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.server import Evaluation
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.events import ClientLeft, RoundStarted
from tacit.protocol.session.rounds import RoundDone
from tacit.secagg.packing import Total


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """Bytes of the frames that went through the endpoints, "sent" and "received", by the name of their party."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def watch(kind: Any, method: str) -> None:
        original = getattr(kind, method)

        async def opening(address: str, *, keys: PartyKeys, **options: Any) -> Endpoint:
            endpoint: Any = await original(address, keys=keys, **options)
            send, receive, count = endpoint.send, endpoint.receive, counts[keys.name]

            async def sending(*arguments: Any) -> None:
                await send(*arguments)
                count["sent"] += sum(memoryview(frame).nbytes for frame in arguments[-1])

            async def receiving() -> Event:
                event: Event = await receive()
                if isinstance(event, Received):
                    count["received"] += sum(frame.nbytes for frame in event.frames)
                return event

            endpoint.send, endpoint.receive = sending, receiving
            return endpoint

        monkeypatch.setattr(kind, method, opening)

    watch(ServerEndpoint, "bind")
    watch(ClientEndpoint, "connect")
    return counts


@pytest.mark.asyncio
async def test_rounds_are_held_and_move_the_model_by_the_mean(federation: Any, moved: dict[str, Counter[str]]) -> None:
    updates: dict[tuple[int, str], Update] = {}
    before = [federation.keeper.flat.copy()]

    def on_round(done: RoundDone, total: Total | None) -> Evaluation:
        before.append(federation.keeper.flat.copy())
        federation.rounds.append((done, total))
        return Evaluation(accuracy=0.25 * done.round)

    server = await federation.serve(rounds=2, on_round=on_round)
    clients = [
        federation.join(name, on_update=lambda round, update, name=name: updates.update({(round, name): update}))
        for name in federation.clients
    ]
    ended = await federation.all_of(server, *clients)
    assert ended[0] == Ended(None, "all rounds are done")
    assert ended[1:] == [Ended(None, "the federation is finished")] * 4

    done = federation.events("server", RoundEnded)
    assert [fields.accuracy for fields in done] == [0.25, 0.5]
    for number, fields in enumerate(done, start=1):
        assert (fields.round, fields.status, fields.code) == (number, "completed", None)
        assert fields.cohort == fields.survivors == list(federation.clients)
        assert fields.dropped == []
        assert fields.samples == 4 * federation.samples
        correct = sum(updates[number, name].statistics.correct for name in federation.clients)
        assert fields.train_accuracy == correct / (4 * federation.samples)
        meant = sum(updates[number, name].values.astype(np.float64) for name in federation.clients) / (
            4 * federation.samples
        )
        # Stochastic rounding, then one rounding of coordinates below 4 to float32.
        bound = federation.configuration.packing().error_bound(4) / (4 * federation.samples) + 4 * 2.0**-24
        assert np.abs(before[number] - before[number - 1] - meant).max() <= bound

    for name in ("server", *federation.clients):
        reports = federation.events(name, TrafficCounted)
        for way in ("sent", "received"):
            assert sum(getattr(report, way) for report in reports) == moved[name][way] > 0
        assert [event for event in read(federation.directory / f"{name}.events") if isinstance(event, SessionEnded)]
    phases = Counter(fields.phase for fields in federation.events("client-1", PhaseEnded))
    # Who has trained before the shares come is never in TRAIN.
    assert phases["ADVERTISE_KEYS"] == phases["MASKED_INPUT"] == phases["CONSISTENCY_CHECK"] == 2
    for name in federation.clients:
        entries = JournalFile(federation.journal(name)).read()
        assert [entry.round for entry in entries] == [1, 2]


@pytest.mark.asyncio
async def test_nothing_secret_is_told(federation: Any) -> None:
    server = await federation.serve(rounds=1)
    await federation.all_of(server, *map(federation.join, federation.clients))
    secrets = [
        text
        for own in federation.keys.values()
        for secret in (own.curve_secret, own.signing_secret)
        for text in (encode_key(secret), secret.hex(), repr(secret)[2:-1])
    ]
    written = [path.read_text() for path in federation.directory.iterdir()]
    assert len(written) == 9
    assert not [secret for secret in secrets for text in written if secret in text]


@pytest.mark.asyncio
async def test_a_client_that_vanishes_is_dropped_and_the_round_is_held(federation: Any) -> None:
    loop = asyncio.get_running_loop()
    clients: dict[str, asyncio.Task[Ended]] = {}

    def on_round(done: RoundDone, total: Total | None) -> Evaluation:
        # Its last word is enough to end the round; the end of its link may come later.
        asyncio.run_coroutine_threadsafe(federation.event("server", LinkLost), loop).result(federation.seconds)
        return Evaluation()

    server = await federation.serve(rounds=2, on_round=on_round)

    def die(round: int, update: Update) -> None:
        loop.call_soon_threadsafe(clients["client-4"].cancel)

    for name in federation.clients:
        clients[name] = federation.join(name, on_update=die if name == "client-4" else lambda round, update: None)
    async with asyncio.timeout(federation.seconds):
        with pytest.raises(asyncio.CancelledError):
            await clients["client-4"]
    ended = await federation.all_of(server, *(clients[name] for name in federation.clients[:3]))
    assert [end.code for end in ended] == [None] * 4
    first, second = federation.events("server", RoundEnded)
    assert first.status == second.status == "completed"
    assert first.survivors == second.survivors == second.cohort == list(federation.clients[:3])
    assert [(gone.party, gone.included_in_sum, gone.code) for gone in first.dropped] == [("client-4", False, "LEFT")]
    assert second.dropped == []
    assert (first.absent, second.absent) == ({}, {"client-4": f"it gave up: {STOPPED}"})
    assert "client-4" in [event.peer for event in federation.events("server", LinkLost)]
    assert first.samples == 3 * federation.samples


@pytest.mark.asyncio
async def test_a_client_that_comes_back_takes_part_in_the_next_round(federation: Any) -> None:
    loop = asyncio.get_running_loop()
    clients: dict[str, asyncio.Task[Ended]] = {}
    back = asyncio.Event()

    def on_round(done: RoundDone, total: Total | None) -> Evaluation:
        if done.round == 1:
            asyncio.run_coroutine_threadsafe(come_back(), loop).result(federation.seconds)
        return Evaluation()

    async def come_back() -> None:
        # Until then it has its journal.
        await asyncio.wait([clients["client-4"]])
        federation.news.clear()
        clients["client-4"] = federation.join("client-4")
        await federation.event("client-4", ConfigurationAccepted)
        back.set()

    def die(round: int, update: Update) -> None:
        loop.call_soon_threadsafe(clients["client-4"].cancel)

    server = await federation.serve(rounds=2, on_round=on_round)
    for name in federation.clients:
        clients[name] = federation.join(name, on_update=die if name == "client-4" else lambda round, update: None)
    async with asyncio.timeout(federation.seconds):
        with pytest.raises(asyncio.CancelledError):
            await clients["client-4"]
        await back.wait()
    ended = await federation.all_of(server, *clients.values())
    assert [end.code for end in ended] == [None] * 5
    first, second = federation.events("server", RoundEnded)
    assert first.survivors == list(federation.clients[:3])
    assert second.survivors == list(federation.clients)


@pytest.mark.asyncio
async def test_too_few_clients_abort_the_round_and_leave_the_model(federation: Any) -> None:
    loop = asyncio.get_running_loop()
    before = federation.keeper.bytes
    server = await federation.serve(rounds=1)
    clients: dict[str, asyncio.Task[Ended]] = {}
    for name in federation.clients:

        def die(round: int, update: Update, name: str = name) -> None:
            if name in federation.clients[2:]:
                loop.call_soon_threadsafe(clients[name].cancel)

        clients[name] = federation.join(name, on_update=die)
    async with asyncio.timeout(federation.seconds):
        for name in federation.clients[2:]:
            with pytest.raises(asyncio.CancelledError):
                await clients[name]
    ended = await federation.all_of(server, *(clients[name] for name in federation.clients[:2]))
    assert [end.code for end in ended] == [None] * 3
    (done,) = federation.events("server", RoundEnded)
    assert (done.status, done.code, done.survivors) == ("aborted", "THRESHOLD", [])
    assert sorted(gone.party for gone in done.dropped) == list(federation.clients[2:])
    assert (done.samples, done.train_loss, done.clipped) == (0, None, None)
    assert federation.keeper.bytes == before
    assert [total for _, total in federation.rounds] == [None]
    assert federation.events("client-1", ClientRoundEnded)[0].code == "THRESHOLD"


@pytest.mark.asyncio
@pytest.mark.parametrize("fails", ["decode", "apply", "on_round", "both"])
async def test_nothing_that_fails_in_a_round_ends_the_server(
    federation: Any, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = federation.keeper.bytes

    def boom(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("the device is gone")

    def on_round(done: RoundDone, total: Total | None) -> Evaluation:
        if total is not None or fails == "both":
            boom()
        return Evaluation()

    if fails in ("decode", "apply"):
        monkeypatch.setattr(federation.keeper, fails, boom)
    server = await federation.serve(rounds=2, on_round=on_round)
    ended = await federation.all_of(server, *map(federation.join, federation.clients))
    assert [end.code for end in ended] == [None] * len(ended)
    rounds = federation.events("server", RoundEnded)
    assert [(done.status, done.code) for done in rounds] == [("aborted", "VECTOR")] * 2
    assert "RuntimeError: the device is gone" in rounds[0].detail
    assert federation.keeper.bytes == before


@pytest.mark.asyncio
async def test_a_client_that_refuses_rounds_does_not_end_well(federation: Any) -> None:
    one, *others = federation.clients
    policy = ClientPolicy(threshold_floor=len(federation.clients))
    server = await federation.serve(rounds=2)
    ended = await federation.all_of(server, federation.join(one, policy=policy), *map(federation.join, others))
    assert [end.code for end in ended] == [None, Code.POLICY, *[None] * len(others)]
    first, second = federation.events("server", RoundEnded)
    assert first.survivors == second.survivors == others
    (refusal,) = [dropped for dropped in first.dropped if dropped.party == one]
    assert "this client's policy accepts" in refusal.detail
    assert "it refused its last round" in federation.events("server", RoundStarted)[1].absent[one]


@pytest.mark.asyncio
async def test_a_server_names_whom_it_waits_for(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_party, "AWAITED_SECONDS", 0.0)
    first, *others = federation.clients
    server = await federation.serve(rounds=1)
    joined = [federation.join(name) for name in others]
    while not any(event.on == [first] for event in federation.events("server", ClientsAwaited)):
        federation.news.pop(("server", ClientsAwaited), None)
        await federation.event("server", ClientsAwaited)
    ended = await federation.all_of(server, *joined, federation.join(first))
    assert [end.code for end in ended] == [None] * len(ended)


@pytest.mark.asyncio
async def test_clients_that_are_not_drawn_are_not_absent_and_those_that_left_are(federation: Any) -> None:
    everybody, gone = federation.clients, federation.clients[0]
    federation.participants = len(everybody)
    federation.configuration = replace(federation.configuration, clients=len(everybody) - 1)
    federation.keeper.reconfigure(federation.configuration)

    loop = asyncio.get_running_loop()

    def stop_one(done: RoundDone, total: Total | None) -> Evaluation:
        assert total is not None
        if done.round == 3:
            loop.call_soon_threadsafe(joined[gone].cancel)
            asyncio.run_coroutine_threadsafe(federation.event("server", ClientLeft), loop).result(federation.seconds)
        return Evaluation()

    server = await federation.serve(rounds=6, on_round=stop_one)
    joined = {name: federation.join(name) for name in everybody}
    ended = await federation.all_of(server, *(joined[name] for name in everybody[1:]))
    assert [end.code for end in ended] == [None] * len(everybody)
    rounds = federation.events("server", RoundStarted)
    assert all(len(round.cohort) == len(everybody) - 1 for round in rounds)
    assert [round.absent for round in rounds[:3]] == [{}] * 3
    assert set(rounds[-1].absent) == {gone}
    assert rounds[-1].cohort == list(everybody[1:])

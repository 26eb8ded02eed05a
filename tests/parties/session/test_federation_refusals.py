"""Who is not let in, who cannot go on, and who breaks a rule: each is named, and the others complete the round."""

import asyncio
import time
from typing import Any

import numpy as np
import pytest
import torch

from tacit.parties.learning.learner import Draft, Learner, Update
from tacit.parties.links import endpoint
from tacit.parties.links.client_endpoint import (
    ClientEndpoint,
    NotAdmittedError,
)
from tacit.parties.links.endpoint import LinkLost, LinkUp, NotConnectedError, Received
from tacit.parties.links.keys import encode_key, generate
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session import events, shell
from tacit.parties.session.client import CANNOT_TRAIN
from tacit.parties.session.event_log import EventLog
from tacit.parties.session.events import (
    ConfigurationAccepted,
    HandshakeRefused,
    LinkOpened,
    PhaseEnded,
    RoundEnded,
    SendFailed,
    ShutdownIncomplete,
    TrainingFailed,
)
from tacit.parties.session.journal import JournalError
from tacit.parties.session.server import Evaluation
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.messages import Resume
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.configuration import Configuration
from tacit.secagg.packing import Total


@pytest.mark.asyncio
async def test_a_stranger_is_not_admitted_and_the_server_says_who_it_was(federation: Any) -> None:
    server = await federation.serve(rounds=1)
    stranger = generate("stranger")
    claimed = Roster((*federation.roster.members, stranger.member("client")))
    with pytest.raises(NotAdmittedError, match="add 'stranger' with this key to it"):
        await federation.join("stranger", keys=stranger, roster=claimed)
    ended = await federation.all_of(server, *map(federation.join, federation.clients))
    assert [end.code for end in ended] == [None] * 5
    (refused,) = federation.events("server", HandshakeRefused)
    assert refused.public_key == encode_key(stranger.curve_public)
    assert refused.address == "127.0.0.1"
    assert federation.events("server", RoundEnded)[0].survivors == list(federation.clients)


@pytest.mark.asyncio
async def test_a_client_with_another_roster_is_told_so(federation: Any) -> None:
    server = await federation.serve(rounds=1)
    partial = Roster(tuple(member for member in federation.roster.members if member.name != "client-3"))
    other = federation.join("client-4", roster=partial)
    (ended,) = await federation.all_of(other)
    assert ended.code is Code.ROSTER
    assert "give all parties the same file" in ended.detail
    assert federation.events("server", MessageRefused)[0].member == "client-4"
    await federation.vanish(server)


@pytest.mark.asyncio
async def test_clients_of_a_server_that_is_gone_end_after_the_grace(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is meant for a server that is gone is given up sooner than in earnest.
    monkeypatch.setattr(endpoint, "_LINGER_MS", 300)
    loop = asyncio.get_running_loop()
    tasks: dict[str, asyncio.Task[Ended]] = {}

    def kill(done: RoundDone, total: Total | None) -> Evaluation:
        loop.call_soon_threadsafe(tasks["server"].cancel)
        return Evaluation()

    tasks["server"] = await federation.serve(rounds=2, on_round=kill)
    clients = [federation.join(name) for name in federation.clients]
    async with asyncio.timeout(federation.seconds):
        with pytest.raises(asyncio.CancelledError):
            await tasks["server"]
    for ended in await federation.all_of(*clients):
        assert ended.code is Code.LEFT
        assert ended.detail == "the link to server is lost and did not come back in 0.2 s"


@pytest.mark.asyncio
async def test_a_client_whose_key_was_removed_while_it_was_off_says_so_after_the_grace(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is there again, with a roster without it: what it missed cannot be told, and is the likely reason."""
    federation.grace = 1000.0
    monkeypatch.setattr(shell, "ALIVE_SECONDS", 0.05)
    server = await federation.serve(rounds=1)
    leap = 0.0
    party = federation.client_party("client-1")
    monkeypatch.setattr(party._event_log, "now", lambda: time.monotonic() + leap)
    # The end of it that knows why its link does not come back.
    ends: list[ClientEndpoint] = []
    connect = ClientEndpoint.connect

    async def connected(*arguments: Any, **options: Any) -> ClientEndpoint:
        ends.append(await connect(*arguments, **options))
        return ends[0]

    monkeypatch.setattr(ClientEndpoint, "connect", connected)
    client = asyncio.create_task(party.run())
    await federation.event("client-1", ConfigurationAccepted)
    await federation.vanish(server)
    removed = Roster(tuple(one for one in federation.roster.members if one.name != "client-1"))
    async with await ServerEndpoint.bind(federation.address, keys=federation.keys["server"], roster=removed):
        async with asyncio.timeout(federation.seconds):
            while ends[0].refusal is None:
                await asyncio.sleep(0.01)
        leap = federation.grace
        (ended,) = await federation.all_of(client)
    assert ended.code is Code.LEFT
    assert ended.detail == (
        "the link to server is lost and did not come back in 1000 s: the server at "
        f"{federation.address} does not know this key (status 400): its roster never had it, or has it no longer; "
        "ask its operator for the newest roster, and if need be to add 'client-1' with this key to it"
    )


@pytest.mark.asyncio
async def test_a_client_whose_disk_is_full_contributes_nothing(federation: Any) -> None:
    """Its journal cannot be written, so not even its keys leave; the others complete the round."""
    server = await federation.serve(rounds=2)

    def fill_the_disk(round: int, update: Update) -> None:
        federation.journal("client-4").unlink()
        federation.journal("client-4").symlink_to("/dev/full")

    full = federation.join("client-4", on_update=fill_the_disk)
    clients = [federation.join(name) for name in federation.clients[:3]]
    async with asyncio.timeout(federation.seconds):
        with pytest.raises(JournalError, match=r"client-4\.journal cannot be written .*: make room"):
            await full
    await federation.all_of(server, *clients)
    before, done = federation.events("server", RoundEnded)
    assert before.survivors == list(federation.clients)
    assert done.survivors == list(federation.clients[:3])
    assert [(gone.party, gone.included_in_sum) for gone in done.dropped] == [("client-4", False)]
    assert federation.events("client-4", PhaseEnded)[-1].next == "SESSION"


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [ValueError("too\nlittle data"), OSError("no such file"), FloatingPointError("nan")])
async def test_a_client_that_cannot_train_says_why_at_home_only(federation: Any, error: Exception) -> None:
    """The reason may hold numbers of samples or losses, which only the secure sum may carry to the server."""

    def fail(configuration: Configuration) -> Learner:
        raise error

    server = await federation.serve(rounds=1)
    broken = federation.join("client-4", make=fail)
    ended = await federation.all_of(broken, server, *map(federation.join, federation.clients[:3]))
    assert ended[0].code is Code.LOCAL
    reason = " ".join(str(error).split())
    assert ended[0].detail == reason
    assert [event.detail for event in federation.events("client-4", TrainingFailed)] == [reason]
    (gone,) = federation.events("server", RoundEnded)[0].dropped
    assert gone.party == "client-4"
    assert gone.detail == f"it gave up: {CANNOT_TRAIN}"
    for name in ("server", *federation.clients[:3]):
        assert reason not in (federation.directory / f"{name}.events").read_text()


@pytest.mark.asyncio
async def test_a_defect_in_training_is_not_hidden(federation: Any) -> None:
    def fail(configuration: Configuration) -> Learner:
        raise LookupError("a bug")

    server = await federation.serve(rounds=1)
    broken = federation.join("client-4", make=fail)
    others = [federation.join(name) for name in federation.clients[:3]]
    with pytest.raises(LookupError, match="a bug"):
        await broken
    assert [end.code for end in await federation.all_of(server, *others)] == [None] * 4


@pytest.mark.asyncio
async def test_a_sum_that_cannot_be_one_is_not_applied(federation: Any) -> None:
    """Client 4 contributes words outside of what an honest vector can be."""
    before = federation.keeper.bytes
    packing = federation.configuration.packing()

    class Cheat(Learner):
        def encode(self, draft: Draft) -> Update:
            honest = super().encode(draft)
            words = packing.ring.from_signed(np.full(packing.length, 1 << (packing.ring.bits - 2)))
            return Update(words, honest.values, honest.statistics, 0)

    def cheat(configuration: Configuration) -> Learner:
        return Cheat(configuration, torch.zeros(6, 1, 8, 8), torch.arange(6) % 3, seed=1, device=torch.device("cpu"))

    server = await federation.serve(rounds=1)
    await federation.all_of(
        server, federation.join("client-4", make=cheat), *map(federation.join, federation.clients[:3])
    )
    (done,) = federation.events("server", RoundEnded)
    assert done.status == "aborted"
    assert "the sum is not one of honest contributions" in done.detail
    assert federation.keeper.bytes == before
    assert federation.rounds[0][1] is None


@pytest.mark.asyncio
async def test_a_message_beyond_the_limits_bars_its_sender(federation: Any) -> None:
    server = await federation.serve(rounds=1)
    async with await ClientEndpoint.connect(
        federation.address, keys=federation.keys["client-4"], server=federation.roster.server
    ) as rude:
        await rude._socket.send_multipart([b"x"] * 65)
        await federation.event("server", MessageRefused)
        (refused,) = federation.events("server", MessageRefused)
        assert (refused.member, refused.code) == ("client-4", "MALFORMED")
        assert "65 frames where 3 are allowed" in refused.detail
    await federation.vanish(server)


@pytest.mark.asyncio
async def test_a_server_that_breaks_the_limits_is_left_with_the_reason(federation: Any) -> None:
    async with await ServerEndpoint.bind(
        "tcp://127.0.0.1:*", keys=federation.keys["server"], roster=federation.roster
    ) as rude:
        federation.address = rude.address
        client = federation.join("client-1")
        while not isinstance(await rude.receive(), Received):
            pass
        routing_id = rude._links.current("client-1")
        await rude._socket.send_multipart([routing_id, *[b"x"] * 65])
        (ended,) = await federation.all_of(client)
    assert ended.code is Code.LOCAL
    assert "the server sent a message beyond the limits: 65 frames where 64 are allowed" in ended.detail


@pytest.mark.asyncio
async def test_a_link_that_comes_back_ends_the_grace(federation: Any) -> None:
    sent: list[Any] = []

    class Wire:
        async def send(self, frames: Any) -> None:
            sent.append(frames)

    party = federation.client_party("client-1")
    party._machine.start(EventLog.now())
    patient = party._machine.next_deadline
    await party._hear(Wire(), LinkLost("server"))
    assert sent == []
    assert party._machine.next_deadline <= EventLog.now() + federation.grace < patient
    await party._hear(Wire(), LinkUp("server"))
    (asked,) = sent
    assert decode(asked, MESSAGES).kind is Resume
    assert party._machine.next_deadline == patient
    assert [type(event) for event in federation.told["client-1"]] == [events.LinkLost, LinkOpened]


class Stuck:
    """The endpoint of a client: what is said on it waits until somebody is done with it, and then the disk is full."""

    def __init__(self) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def send(self, frames: object) -> None:
        self.reached.set()
        await self.go.wait()
        raise JournalError("/full.journal cannot be written (No space left on device): make room")


@pytest.mark.asyncio
@pytest.mark.parametrize("late", [False, True], ids=["in time", "too late"])
async def test_what_goes_wrong_while_a_party_is_stopped_is_told(
    federation: Any, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(shell, "LAST_SECONDS", 0.0 if late else federation.seconds)
    party, endpoint = federation.client_party("client-1"), Stuck()
    working = asyncio.create_task(party._perform(endpoint, party._machine.start(EventLog.now())))
    await endpoint.reached.wait()
    working.cancel()
    if not late:
        endpoint.go.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    told = [] if late else ["/full.journal cannot be written (No space left on device): make room"]
    assert [event.detail for event in federation.events("client-1", ShutdownIncomplete)] == told


class Gone:
    """The endpoint of a server whose members have lost their links."""

    async def send(self, name: str, frames: object) -> None:
        raise NotConnectedError(f"{name} has no link")


@pytest.mark.asyncio
async def test_a_server_waits_for_members_in_grace_and_goes_on_when_a_message_cannot_leave(
    federation: Any,
) -> None:
    party = federation.server_party(rounds=1)
    client = federation.client_party("client-1")
    (hello,) = client._machine.start(EventLog.now())
    welcome = party._take_event(Received("client-1", tuple(memoryview(frame) for frame in hello.frames)))
    patient = party._machine.next_deadline
    party._take_event(LinkLost("client-1"))
    assert party._machine.next_deadline <= EventLog.now() + federation.grace < patient
    party._take_event(LinkUp("client-1"))
    assert party._machine.next_deadline == patient
    await party._perform(Gone(), welcome)
    failed = [(event.to, event.reason) for event in federation.events("server", SendFailed)]
    assert ("client-1", "client-1 has no link") in failed

"""Around a session of private inference: the ledger that outlives it, ended tasks, and peers that take no messages."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tacit.models.file_system import FILES
from tacit.parties.inference import conversation
from tacit.parties.inference.conversation import Courier, InferenceError, ended
from tacit.parties.inference.events import ImagesAnswered, InferenceSessionEnded
from tacit.parties.inference.ledger import Ledger
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links import endpoint
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Limits, LinkUp, Received
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core import rate_limit
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import CHUNK_BYTES, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, DealerHello, InferenceHello
from tacit.protocol.inference.quota import Spent
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_one_loop import DEALER, KEYS, LISTEN, MODEL_OWNER, PATIENCE, ROSTER, house
from tests.parties.inference.test_parties import BLOCK_ERROR, error_of

FRAME = bytes(1 << 20)


@pytest.fixture(autouse=True)
def _no_long_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_LINGER_MS", 300)


@pytest.mark.asyncio
async def test_what_waits_for_one_who_takes_nothing_is_dropped_and_the_next_message_follows() -> None:
    limits = Limits(max_frame_bytes=len(FRAME), queue_messages=2, send_seconds=0.3)
    told: asyncio.Queue[str] = asyncio.Queue()
    async with (
        asyncio.timeout(PATIENCE),
        await ServerEndpoint.bind(LISTEN, keys=KEYS[DEALER], roster=ROSTER, limits=limits) as server,
        await ClientEndpoint.connect(
            server.address, keys=KEYS["alice"], server=ROSTER.member(DEALER), limits=limits
        ) as alice,
    ):
        assert await server.receive() == LinkUp("alice")
        courier = Courier(partial(server.send, "alice"), told.put_nowait)
        for number in range(60):  # More than queues and the kernel's buffers take.
            courier.put([b"%d" % number, FRAME])
        await courier.drained()
        assert "'alice' took no message for 0.3 s" in await told.get()
        server._limits = replace(limits, send_seconds=PATIENCE)
        taken: list[int] = []
        waiting = asyncio.create_task(courier.drained())
        while True:
            event = await alice.receive()
            if isinstance(event, Received) and event.frames[0] == b"again":
                break
            if isinstance(event, Received):
                taken.append(int(bytes(event.frames[0])))
                if len(taken) == 1:
                    courier.put([b"again"])
        assert taken == list(range(len(taken)))
        assert len(taken) < 60
        assert told.empty()
        await waiting
        await courier.close()


HELLOS: dict[str, Callable[[], Message]] = {
    MODEL_OWNER: lambda: InferenceHello(roster=ROSTER.hash),
    DEALER: lambda: DealerHello(roster=ROSTER.hash, peer=MODEL_OWNER, terms=bytes(32), contribution=bytes(32)),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("party", HELLOS)
async def test_a_data_owner_that_asks_and_does_not_read_loses_its_own_session_alone(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, party: str
) -> None:
    monkeypatch.setattr(conversation, "MOST_WAITING", 50)
    monkeypatch.setattr(rate_limit, "HELLOS", 1 << 20)  # Here they are only what is cheapest to ask.
    few = Limits(max_frame_bytes=CHUNK_BYTES + 1024, max_frames=3, queue_messages=2)
    monkeypatch.setattr(conversation, "limits", lambda patience: few)
    async with house(tmp_path) as home:
        await home.dealer(address="ipc://*")
        await home.model_owner(private, address="ipc://*")  # Where the kernel keeps less than of TCP.
        bob = home.asks("bob", one_block.images[:3], batch=1)
        await home.waits("bob", ImagesAnswered)
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as alice:
            alice.set(zmq.LINGER, 0)
            alice.set(zmq.RCVHWM, 2)
            alice.set(zmq.CURVE_SERVERKEY, ROSTER.member(party).curve_public)
            alice.set(zmq.CURVE_PUBLICKEY, KEYS["alice"].curve_public)
            alice.set(zmq.CURVE_SECRETKEY, KEYS["alice"].curve_secret)
            alice.connect(home.addresses[party])

            async def asks() -> None:
                while True:
                    session = NO_SESSION if party == MODEL_OWNER else os.urandom(32)
                    await alice.send_multipart(
                        Link("alice", party, session, Traffic(), INFERENCE_MESSAGES).frames(HELLOS[party](), round=0)
                    )

            asking = asyncio.create_task(asks())
            over = await home.waits(party, InferenceSessionEnded, detail="it has left 50 messages waiting")
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert (over.code, over.culprit) == ("LEFT", "alice")
        assert error_of(await bob, one_block.friendly, one_block.images[:3]) < 2 * BLOCK_ERROR


def test_it_is_read_again_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger = Ledger(path)
    assert ledger.of("alice") == Spent()
    first, second = Spent(day=1, used=3, refused=1), Spent(day=1, used=2, refused=0)
    ledger.keep("alice", first)
    ledger.keep("bob", second)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Ledger(path)
    assert (again.of("alice"), again.of("bob")) == (first, second)
    again.keep("bob", Spent(day=2, used=1, refused=0))
    assert b"alice" not in path.read_bytes()
    # For a clock that comes back to the first day, alice has used that up.
    assert again.of("alice") == Spent(day=2)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"alice": {"day": -1}}', b'{"alice": {"more": 1}}', b"\xff"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ledger\.json does not say what other owners have used .* or remove it"):
        Ledger(path)


@pytest.mark.asyncio
@pytest.mark.asyncio
async def test_a_pass_that_cannot_be_counted_does_not_begin(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, ledger=tmp_path / "ledger.json")
        monkeypatch.setattr(FILES, "write", full)
        with pytest.raises(InferenceError):
            await home.asks("alice", one_block.images[:1], batch=1)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"])
    assert (over.code, over.culprit) == ("LOCAL", MODEL_OWNER)
    assert "OSError" in over.failure


@pytest.mark.asyncio
@pytest.mark.asyncio
async def test_who_is_cancelled_while_it_ends_a_task_waits_until_that_has_tidied_up() -> None:
    tidying, may_go, tidied = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tidying.set()
            await may_go.wait()
            tidied.set()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    ending = asyncio.create_task(ended(task))
    await tidying.wait()
    ending.cancel()
    await asyncio.sleep(0)
    may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert tidied.is_set()
    assert task.cancelled()

"""Whoever takes no messages loses its session, and the others keep theirs; nothing piles up for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from tacit.parties.inference import conversation
from tacit.parties.inference.conversation import Courier
from tacit.parties.inference.events import ImagesAnswered, InferenceSessionEnded
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links import endpoint
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Limits, LinkUp, Received
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.protocol.core import rate_limit
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.messages import CHUNK_BYTES, Message
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, DealerHello, InferenceHello

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Transformer
    from in_one_loop import DEALER, KEYS, LISTEN, MODEL_OWNER, PATIENCE, ROSTER, house
    from test_parties import BLOCK_ERROR, error_of

pytestmark = pytest.mark.asyncio
FRAME = bytes(1 << 20)


@pytest.fixture(autouse=True)
def _no_long_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_LINGER_MS", 300)


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

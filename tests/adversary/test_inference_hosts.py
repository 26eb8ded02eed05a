"""Strangers and other members at the ports of a dealer and a model owner, while a session goes on; and a data owner
that is killed and comes back. tests/cli/test_inference_hosts.py kills real processes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq
import zmq.asyncio

from tacit.parties.inference.events import ImagesAnswered, InferenceSessionEnded, PassEnded, SessionOpened
from tacit.parties.inference.model_owner import ModelOwnerParty
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Received
from tacit.parties.links.keys import encode_key, generate
from tacit.parties.session.events import HandshakeRefused
from tacit.protocol.core.codec import Envelope, Frame, decode, encode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.link import NO_SESSION
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import (
    INFERENCE_MESSAGES,
    INFERENCE_VERSION,
    CloseInference,
    DealerHello,
    DealingOver,
    InferenceHello,
    OrderRandomness,
    StartPass,
)
from tacit.protocol.inference.results import Deal, KeysDealt, MaterialKey
from tacit.protocol.sum.states import VERSION
from tacit.simulate.world import inference as world
from tests.cases import cases
from tests.parties.inference import conftest as _inference
from tests.parties.inference.in_one_loop import DEALER, KEYS, MODEL_OWNER, ROSTER, House, house

one_block, private = _inference.one_block, _inference.private


@asynccontextmanager
async def asking(
    directory: Path, block: Any, model: Any
) -> AsyncIterator[tuple[House, ModelOwnerParty, torch.Tensor, asyncio.Task[Any]]]:
    """A session of alice's, which is held up when its first pass is over."""
    images = block.images[:2]
    async with house(directory) as home:
        await home.dealer()
        party = await home.model_owner(model)
        links = await home.over_cables()

        def progress(done: int) -> None:
            for cable in home.cables if done == 1 else ():
                cable.flows.clear()
            home.tell("alice", ImagesAnswered(images=done, of=len(images), refused=0))

        alice = home.asks("alice", images, batch=1, links=links, progress=progress)
        await home.waits("alice", ImagesAnswered)
        try:
            yield home, party, images, alice
        finally:
            # Else a failure is not told: the parties would wait for each other until the test is given up.
            for cable in home.cables:
                cable.flows.set()


async def check(home: House, alice: asyncio.Task[Any], block: Any, images: torch.Tensor) -> None:
    """It was under way all the time; its answers are right, and nobody else has had a pass."""
    assert not alice.done()
    for cable in home.cables:
        cable.flows.set()
    answers = (await alice).logits
    with torch.no_grad():
        clear = block.exact()(images.double())
    assert (answers - clear).abs().max() < 0.1
    await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"], code=None, passes=len(images))
    passes = [event.peer for party, event in home.told if party == MODEL_OWNER and isinstance(event, PassEnded)]
    assert passes == ["alice"] * len(images)
    sessions = [event.peers for party, event in home.told if party == DEALER and isinstance(event, SessionOpened)]
    assert sessions == [[MODEL_OWNER, "alice"]]


def said(
    message: Message, sender: str, session: bytes = NO_SESSION, *, sequence: int = 0, version: int = INFERENCE_VERSION
) -> list[Frame]:
    fields: dict[str, Any] = {"version": version, "type": message.TYPE, "session": session, "round": 0}
    return encode(message, Envelope(sender=sender, sequence=sequence, **fields))


@pytest.mark.threat("stranger/inference-ports")
@pytest.mark.asyncio
async def test_strangers_at_the_ports_of_private_inference(one_block: Any, private: Any, tmp_path: Path) -> None:
    """Without CURVE, with a key of nobody, with noise, and with handshakes that do not go on, at both ports."""
    stranger, context, writers = generate("stranger"), zmq.asyncio.Context(), []
    async with asking(tmp_path, one_block, private) as (home, _, images, alice):
        for name in (DEALER, MODEL_OWNER):
            host, port = home.addresses[name].removeprefix("tcp://").split(":")
            for start in (os.urandom(1000), b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f", b"") * 10:
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(start)
                writers.append(writer)
            with context.socket(zmq.DEALER) as plain, context.socket(zmq.DEALER) as unknown:
                unknown.setsockopt(zmq.CURVE_SERVERKEY, KEYS[name].curve_public)
                unknown.setsockopt(zmq.CURVE_PUBLICKEY, stranger.curve_public)
                unknown.setsockopt(zmq.CURVE_SECRETKEY, stranger.curve_secret)
                for socket in (plain, unknown):
                    socket.setsockopt(zmq.LINGER, 0)
                    socket.connect(home.addresses[name])
                    await socket.send_multipart(said(InferenceHello(roster=ROSTER.hash), "alice"))
                await home.waits(name, HandshakeRefused, public_key=None)
                refused = await home.waits(name, HandshakeRefused, reason="this key is not in the roster")
                assert refused.public_key == encode_key(stranger.curve_public)
                assert await plain.poll(0) == await unknown.poll(0) == 0
        await check(home, alice, one_block, images)
        for writer in writers:
            writer.transport.abort()
    context.term()


async def answers_to(home: House, who: str, to: str, *messages: list[Frame]) -> list[Message]:
    """What a member hears who says these at somebody's port, one after the other."""
    heard: list[Message] = []
    async with await ClientEndpoint.connect(home.addresses[to], keys=KEYS[who], server=ROSTER.member(to)) as link:
        # What cannot be read comes last: at both ports it is answered, or ends what its sender has begun.
        for frames in (*messages, [b"\xc1", b"\xc1"]):
            await link.send(frames)
        async with asyncio.timeout(60):
            while not heard:
                event = await link.receive()
                if isinstance(event, Received):
                    heard.append(decode(event.frames, INFERENCE_MESSAGES).parse())
        while True:
            try:
                async with asyncio.timeout(0.2):
                    event = await link.receive()
            except TimeoutError:
                return heard
            if isinstance(event, Received):
                heard.append(decode(event.frames, INFERENCE_MESSAGES).parse())


@pytest.mark.threat("computing-party/others-session")
@pytest.mark.asyncio
async def test_a_member_has_no_part_in_the_session_of_another(one_block: Any, private: Any, tmp_path: Path) -> None:
    """Even if it knew the name of that session, which goes over links that it has not. The dealer is no data owner."""
    async with asking(tmp_path, one_block, private) as (home, party, images, alice):
        session = party._service.sessions["alice"].session
        ask, close = StartPass(weights=private.commitment), CloseInference()
        hello = InferenceHello(roster=ROSTER.hash)
        (refused,) = await answers_to(home, "carol", MODEL_OWNER, said(ask, "carol", session))
        assert isinstance(refused, Abort)
        assert refused.code is Code.MALFORMED
        taken = await answers_to(home, "carol", MODEL_OWNER, said(hello, "alice"), said(close, "alice", session))
        assert all(isinstance(each, Abort) for each in taken)
        assert isinstance(taken[0], Abort)
        assert taken[0].code is Code.SENDER
        misplaced = await answers_to(home, DEALER, MODEL_OWNER, said(hello, DEALER))
        assert all(isinstance(each, Abort) for each in misplaced)
        assert isinstance(misplaced[0], Abort)
        assert misplaced[0].code is Code.MEMBERS
        come = DealerHello(roster=ROSTER.hash, peer=MODEL_OWNER, terms=bytes(32), contribution=bytes(32))
        order = OrderRandomness(first=0, count=1, requests=b"")
        for messages in ([come, order], [DealingOver()], [order]):
            frames = [said(each, "carol", session, sequence=number) for number, each in enumerate(messages)]
            told = await answers_to(home, "carol", DEALER, *frames)
            assert told
            assert all(isinstance(each, Abort) for each in told)
        await check(home, alice, one_block, images)


@pytest.mark.threat("stranger/old-version")
@pytest.mark.asyncio
async def test_who_speaks_the_version_of_a_federation_is_told_which_one_is_spoken(
    one_block: Any, private: Any, tmp_path: Path
) -> None:
    """At both ports. The numbers are different ones, although both begin at a hello."""
    hello = InferenceHello(roster=ROSTER.hash)
    come = DealerHello(roster=ROSTER.hash, peer=MODEL_OWNER, terms=bytes(32), contribution=bytes(32))
    async with asking(tmp_path, one_block, private) as (home, _, images, alice):
        for to, message in ((MODEL_OWNER, hello), (DEALER, come)):
            told = await answers_to(home, "carol", to, said(message, "carol", version=VERSION))
            assert isinstance(told[0], Abort)
            assert (told[0].code, told[0].detail) == (
                Code.VERSION,
                f"protocol version {VERSION}, here {INFERENCE_VERSION} of private inference: "
                "install the same release on both sides",
            )
        await check(home, alice, one_block, images)


(DATA_OWNER,) = world.data_owner_names(1)


def in_memory() -> world.MemoryInference:
    return world.MemoryInference({DATA_OWNER: InferenceRequest(images=2, batch=1, channels=1, side=4)})


TRANSCRIPT = len(in_memory().run().log)


@pytest.mark.threat("data-owner/randomness-again")
@cases("delivered", range(1, TRANSCRIPT + 1))
def test_a_data_owner_that_is_killed_and_comes_back_gets_fresh_material(delivered: int) -> None:
    """After every message of a session: each that it has has keys of its own, and a number of a request serves once."""
    run = in_memory()
    deals: list[tuple[bytes, int]] = []
    deal = run.deal

    def noted(dealer: Any, order: Deal) -> None:
        deals.extend((dealer.session, order.first + number) for number in range(order.count))
        deal(dealer, order)

    run.deal = noted  # type: ignore[method-assign]
    run.start()
    run.advance(lambda: len(run.log) >= delivered)
    run.kill(DATA_OWNER)
    run.settle()
    run.dead.discard(DATA_OWNER)
    run.start()
    run.settle()
    ended = run.ended(DATA_OWNER)
    assert ended is not None
    assert ended.code is None
    keys = [key for dealt in run.outcome(KeysDealt) for key in dealt.keys]
    assert len(set(keys)) == len(keys) >= 2
    for party in (world.MODEL_OWNER, DATA_OWNER):
        own = [found.key for found in run.outcome(MaterialKey, party)]
        assert len(set(own)) == len(own)
        assert set(own) <= set(keys)
    assert len(set(deals)) == len(deals)

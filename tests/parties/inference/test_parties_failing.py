"""Parties of private inference that vanish, are late, fail, or say what nobody can read: who is told, who goes on."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tacit.parties.correlated.material import Dealing
from tacit.parties.inference import conversation, passes
from tacit.parties.inference.conversation import InferenceError, ReconnectPolicy, linked
from tacit.parties.inference.dealer import DealerParty
from tacit.parties.inference.events import (
    ImagesAnswered,
    InferenceSessionEnded,
    PreprocessingFailed,
    SessionOpened,
    TermsAgreed,
)
from tacit.parties.inference.material import AnyBlockRequest, Fixed
from tacit.parties.inference.operations import DATA, Party, Program, Words
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links import endpoint
from tacit.parties.links.client_endpoint import ClientEndpoint
from tacit.parties.links.endpoint import Endpoint, Event, Limits, Received
from tacit.parties.links.server_endpoint import ServerEndpoint
from tacit.parties.session.shell import Hooks
from tacit.protocol.core import events as logged
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, DealerHello, InferenceHello
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_one_loop import DEALER, KEYS, LISTEN, MODEL_OWNER, PATIENCE, ROSTER, House, house
from tests.parties.inference.test_parties import BLOCK_ERROR, error_of

pytestmark = pytest.mark.asyncio
SECRET = "the 42nd weight is 0.125"
TOO_MANY_FRAMES = [b"frame"] * 4
SOON = 0.1
"""Seconds of patience where it ends."""


@pytest.fixture(autouse=True)
def _no_long_farewells(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is meant for a party that is gone is given up sooner than in earnest."""
    monkeypatch.setattr(endpoint, "_LINGER_MS", 300)


def broken(*arguments: Any, **more: Any) -> Any:
    raise RuntimeError(SECRET)


@pytest.mark.parametrize(
    ("party", "kind", "fields"),
    [
        (MODEL_OWNER, TermsAgreed, {"peer": "alice"}),
        ("alice", ImagesAnswered, {}),
    ],
    ids=["before the weights", "in a pass"],
)
async def test_a_data_owner_that_vanishes_leaves_the_others_alone(
    one_block: Transformer,
    private: PrivateModel,
    tmp_path: Path,
    party: str,
    kind: type[logged.Event],
    fields: dict[str, Any],
) -> None:
    images = one_block.images[:3]
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        bob = home.asks("bob", images, batch=1)
        await home.waits("bob", ImagesAnswered)
        alice = home.asks("alice", one_block.images, batch=1, links=await home.over_cables())
        await home.waits(party, kind, **fields)
        await home.cut()
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"], code="LEFT", culprit="alice")
        with pytest.raises(InferenceError, match=r"the link to .* is lost"):
            await alice
        assert error_of(await bob, one_block.friendly, images) < 2 * BLOCK_ERROR
        assert (over.passes > 0) == (kind is ImagesAnswered)
        found = await home.asks("alice", images[:1])
    assert error_of(found, one_block.friendly, images[:1]) < 2 * BLOCK_ERROR, "she may come back"


async def test_a_data_owner_that_is_stopped_says_so(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        home.asks("alice", one_block.images, batch=1)
        await home.waits("alice", ImagesAnswered)
        await home.stop("alice")
        for party in (MODEL_OWNER, DEALER):
            over = await home.waits(party, InferenceSessionEnded, code="LOCAL", culprit="alice")
            assert over.detail == "it cannot go on (CancelledError); its own log says why"


@pytest.mark.parametrize("gone", [DEALER, MODEL_OWNER])
async def test_sessions_end_with_a_party_that_goes_in_the_middle(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, gone: str
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        names = ("alice", "bob")
        works = [home.asks(name, one_block.images, batch=1) for name in names]
        for name in names:
            await home.waits(name, ImagesAnswered)
        await home.stop(gone)
        for ended in await asyncio.gather(*works, return_exceptions=True):
            assert isinstance(ended, InferenceError)
            assert (ended.code, ended.culprit) == (Code.LEFT, gone)
            assert f"{gone}: the link to " in str(ended)
        (stays,) = {DEALER, MODEL_OWNER} - {gone}
        for _ in names:
            await home.waits(stays, InferenceSessionEnded, code="LEFT", culprit=gone)
        if gone == DEALER:
            await home.dealer(address=home.addresses[DEALER])
            found = await home.asks("alice", one_block.images[:1])
            assert error_of(found, one_block.friendly, one_block.images[:1]) < 2 * BLOCK_ERROR, "it may come back"


async def cheating(home: House, name: str, says: Sequence[bytes]) -> None:
    """In the place of a party: one that answers everything so; not at all without frames."""
    listening = await ServerEndpoint.bind(LISTEN, keys=KEYS[name], roster=ROSTER, limits=Limits())

    async def serve() -> None:
        async with listening:
            while True:
                event = await listening.receive()
                if isinstance(event, Received) and says:
                    await listening.send(event.sender, says)

    home.tasks[name] = asyncio.ensure_future(serve())
    home.addresses[name] = listening.address


async def test_a_dealer_that_says_what_nobody_can_read_is_named_by_both(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await cheating(home, DEALER, TOO_MANY_FRAMES)
        await home.model_owner(private)
        with pytest.raises(InferenceError, match="2 or 3 frames") as ended:
            await home.asks("alice", one_block.images[:1])
        assert (ended.value.code, ended.value.culprit) == (Code.MALFORMED, DEALER)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"], code="MALFORMED", culprit=DEALER)
    assert "2 or 3 frames" in over.detail


@pytest.mark.parametrize(
    ("says", "patience", "code", "text"),
    [
        ((), SOON, "TIMEOUT", f"no word from model-owner for {3 * SOON:g} s"),
        (TOO_MANY_FRAMES, PATIENCE, "MALFORMED", "2 or 3 frames"),
    ],
    ids=["nothing", "what nobody can read"],
)
async def test_a_model_owner_that_does_not_answer_is_named(
    one_block: Transformer, tmp_path: Path, says: Sequence[bytes], patience: float, code: str, text: str
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await cheating(home, MODEL_OWNER, says)
        reconnect = ReconnectPolicy(seconds=PATIENCE)
        with pytest.raises(InferenceError, match=text) as ended:
            await home.asks("alice", one_block.images[:1], patience=patience, reconnect=reconnect)
        assert (ended.value.code, ended.value.culprit) == (Code[code], MODEL_OWNER)


async def test_a_relay_with_nobody_behind_it_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "CONNECT_SECONDS", 0.5)
    refused = asyncio.Event()

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    def say(reason: str) -> None:
        if "wrong server key" in reason:
            refused.set()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as relay:
        address = f"tcp://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        reconnect = ReconnectPolicy(seconds=PATIENCE, on_failure=say)
        linking = asyncio.create_task(linked(address, KEYS["alice"], ROSTER.server, PATIENCE, reconnect))
        waiting = asyncio.create_task(refused.wait())
        await asyncio.wait([linking, waiting], return_when=asyncio.FIRST_COMPLETED)
        assert not linking.done()
    async with await ServerEndpoint.bind(address, keys=KEYS[MODEL_OWNER], roster=ROSTER), await linking:
        pass


HELLOS = {
    MODEL_OWNER: InferenceHello(roster=ROSTER.hash),
    DEALER: DealerHello(roster=ROSTER.hash, peer=MODEL_OWNER, terms=bytes(32), contribution=bytes(32)),
}


@pytest.mark.parametrize("party", HELLOS)
async def test_a_message_beyond_the_limits_ends_the_session_of_its_sender_alone(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, party: str
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        bob = home.asks("bob", one_block.images[:3], batch=1)
        await home.waits("bob", ImagesAnswered)
        async with await ClientEndpoint.connect(
            home.addresses[party], keys=KEYS["alice"], server=ROSTER.member(party), limits=Limits()
        ) as alice:
            link = Link("alice", party, NO_SESSION, Traffic(), INFERENCE_MESSAGES)
            await alice.send(link.frames(HELLOS[party], round=0))
            await alice.send(TOO_MANY_FRAMES)
            over = await home.waits(party, InferenceSessionEnded, code="MALFORMED", culprit="alice")
        assert over.detail == "a message has 2 or 3 frames, not 0"
        assert error_of(await bob, one_block.friendly, one_block.images[:3]) < 2 * BLOCK_ERROR


def with_unknown_weight(requests: Sequence[AnyBlockRequest]) -> list[AnyBlockRequest]:
    return [
        msgspec.structs.replace(request, weight=999) if isinstance(request, Fixed) else request for request in requests
    ]


ORDERS: dict[str, tuple[Callable[[Sequence[AnyBlockRequest]], bytes], str]] = {
    "no requests": (lambda requests: b"\xc1", "MessagePack data is malformed"),
    "a request too few": (lambda requests: msgspec.msgpack.encode(requests[1:]), r"it says 6 requests and has 5"),
    "a weight that nobody has": (
        lambda requests: msgspec.msgpack.encode(with_unknown_weight(requests)), "was not for the mask of such a weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS)
async def test_an_order_that_is_none_is_not_met_and_both_are_told(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    encode, text = ORDERS[case]
    monkeypatch.setattr(passes, "encoded_requests", encode)
    await _not_met(one_block, private, tmp_path, text)


async def _not_met(one_block: Transformer, private: PrivateModel, directory: Path, text: str) -> None:
    async with house(directory) as home:
        await home.dealer()
        await home.model_owner(private)
        with pytest.raises(InferenceError, match=f"dealer: an order that cannot be met: .*{text}") as ended:
            await home.asks("alice", one_block.images[:1])
        assert (ended.value.code, ended.value.culprit) == (Code.MALFORMED, DEALER)
        await home.waits(MODEL_OWNER, InferenceSessionEnded, code="MALFORMED", culprit=DEALER)
        await home.waits(DEALER, InferenceSessionEnded, code="MALFORMED", culprit=DEALER)


def without_a_row(private: PrivateModel, part: str) -> PrivateModel:
    """A model whose last layer is damaged: its owner fails when it masks the words, or computes with the bias."""
    head = private.weights["head"]
    damaged = dataclasses.replace(head, **{part: getattr(head, part)[:-1]})
    return dataclasses.replace(private, weights={**private.weights, "head": damaged})


@pytest.mark.parametrize(("part", "place"), [("words", "model_owner.py"), ("bias", "operations.py")])
async def test_an_error_of_the_model_owner_is_told_without_its_text(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, part: str, place: str
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(without_a_row(private, part))
        with pytest.raises(
            InferenceError, match=r"model-owner: it cannot go on \(RuntimeError\); its own log"
        ) as ended:
            await home.asks("alice", one_block.images[:1])
        assert (ended.value.code, ended.value.culprit) == (Code.LOCAL, MODEL_OWNER)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, code="LOCAL", culprit=MODEL_OWNER)
        await home.waits(DEALER, InferenceSessionEnded, code="LOCAL", culprit=MODEL_OWNER)
    assert over.failure.startswith(f"RuntimeError in {place}, line ")


async def test_what_a_program_refuses_of_the_other_owner_ends_the_session_and_names_it(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = Party.tell

    def refusing(party: Party, operation: str, words: Words, *, to: int) -> Program[torch.Tensor | None]:
        found = yield from tell(party, operation, words, to=to)
        if (party.rank, operation) == (DATA, "result"):
            raise RemoteProtocolError(Code.MALFORMED, "it told what is none")
        return found

    monkeypatch.setattr(Party, "tell", refusing)
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        with pytest.raises(InferenceError, match="it told what is none") as ended:
            await home.asks("alice", one_block.images[:1])
        assert (ended.value.code, ended.value.culprit) == (Code.MALFORMED, MODEL_OWNER)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, code="MALFORMED")
        assert over.culprit == MODEL_OWNER


async def test_an_error_of_the_dealer_is_told_without_its_text(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dealing, "correction", broken)
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        with pytest.raises(InferenceError, match=r"dealer: it cannot go on \(RuntimeError\); its own log") as ended:
            await home.asks("alice", one_block.images[:1])
        assert (ended.value.code, ended.value.culprit) == (Code.LOCAL, DEALER)
        await home.waits(MODEL_OWNER, InferenceSessionEnded, code="LOCAL", culprit=DEALER)
        failure = await home.waits(DEALER, PreprocessingFailed, owners=[MODEL_OWNER, "alice"])
    assert failure.failure.startswith("RuntimeError in test_parties_failing.py, line ")
    assert all(SECRET not in file.read_text() for file in tmp_path.iterdir())


async def test_an_error_of_a_data_owner_is_its_own(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        work = home.asks("alice", one_block.images[:2], batch=1, progress=broken)
        with pytest.raises(RuntimeError, match=SECRET):
            await work
        del home.tasks["alice"]
        for party in (MODEL_OWNER, DEALER):
            over = await home.waits(party, InferenceSessionEnded, code="LOCAL", culprit="alice")
            assert over.detail == "it cannot go on (RuntimeError); its own log says why"
    assert all(SECRET not in file.read_text() for file in tmp_path.iterdir())


class Come(Endpoint):
    """All of its messages have come; as at a socket, each takes some turns of the loop to be read."""

    def __init__(self, *messages: Received) -> None:
        # No socket: only what receive() gives counts here.
        self.address = LISTEN
        self._messages = deque(messages)

    async def receive(self) -> Event:
        for _ in range(8):
            await asyncio.sleep(0)
        return self._messages.popleft() if self._messages else await asyncio.Future[Event]()


class Slow(Hooks):
    seconds = 0.0

    def heard(self, sender: str, frames: Sequence[memoryview]) -> None:
        if sender == "bob":
            self.seconds = 2 * PATIENCE


async def test_a_message_that_had_come_before_a_deadline_was_noticed_is_not_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model owner waits at the dealer, which is busy with bob's message when the hello of alice comes."""
    session = bytes(31) + b"s"

    def message(sender: str, peer: str) -> Received:
        hello = DealerHello(roster=ROSTER.hash, peer=peer, terms=bytes(32), contribution=bytes(32))
        frames = Link(sender, DEALER, session, Traffic(), INFERENCE_MESSAGES).frames(hello, round=0)
        return Received(sender, tuple(memoryview(bytes(frame)) for frame in frames))

    hooks, said = Slow(), Received("bob", (memoryview(b"?"),))
    monkeypatch.setattr(conversation.Conversation, "now", lambda: hooks.seconds)

    async def bound(party: DealerParty) -> Come:
        return Come(message(MODEL_OWNER, "alice"), said, message("alice", MODEL_OWNER))

    async def nothing(*arguments: Any) -> None:
        """Neither sends nor closes."""

    monkeypatch.setattr(DealerParty, "_bound", bound)
    monkeypatch.setattr(Come, "send", nothing, raising=False)
    monkeypatch.setattr(Come, "close", nothing)
    async with house(tmp_path) as home:
        await home.dealer(patience=PATIENCE, hooks=hooks)
        await home.waits(DEALER, SessionOpened, peers=[MODEL_OWNER, "alice"])
        assert not any(isinstance(event, InferenceSessionEnded) for _, event in home.told)

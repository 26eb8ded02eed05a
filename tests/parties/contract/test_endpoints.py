"""What every pair of endpoints keeps to, whatever carries the messages."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tacit.parties.links.client_endpoint import ClientEndpoint, UnreachableError
from tacit.parties.links.endpoint import (
    EndpointClosedError,
    EndpointError,
    Event,
    Limits,
    LinkLost,
    LinkUp,
    MessageRefused,
    NotConnectedError,
    PeerStalledError,
    Received,
)

PATIENCE_SECONDS = 30
"""Only how long a broken test hangs."""


async def contents(endpoint: Any, until: Callable, count: int) -> list[tuple[str, list[bytes]]]:
    messages = [await until(endpoint, Received) for _ in range(count)]
    return [(message.sender, [bytes(frame) for frame in message.frames]) for message in messages]


SHAPES = {
    "one byte": [b"x"],
    "empty among others": [b"x", b"", b"x", b""],
    "several empty": [b"x", b"", b""],
    "eight megabytes": [os.urandom(8 << 20)],
    "many frames": [bytes([number]) * number for number in range(1, 65)],
    "a view": [memoryview(bytearray(b"0123456789"))[2:5], b"x"],
}


@pytest.mark.asyncio
async def test_frames_arrive_intact_in_both_directions(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server, await transport.connect(server, "alice") as alice:
        assert await alice.receive() == LinkUp("server")
        assert await server.receive() == LinkUp("alice")
        for shape in SHAPES.values():
            expected = [bytes(frame) for frame in shape]
            await alice.send(shape)
            message = await until(server, Received)
            assert all(frame.readonly and frame.format == "B" for frame in message.frames)
            assert (message.sender, [bytes(frame) for frame in message.frames]) == ("alice", expected)
            await server.send("alice", shape)
            assert await contents(alice, until, 1) == [("server", expected)]


@pytest.mark.asyncio
async def test_what_no_message_is_allowed_to_be(transport: Any, until: Callable) -> None:
    limits = Limits(max_frames=2, max_frame_bytes=1024)
    async with await transport.bind(limits=limits) as server, await transport.connect(server, "bob", limits) as bob:
        await until(server, LinkUp)
        for frames in ([], [b"x"] * 3, [bytes(1025)], [b""], [b"", b"x"]):
            with pytest.raises(ValueError, match=r"frames, not|exceeds 1024|greeting"):
                await bob.send(frames)
            with pytest.raises(ValueError, match=r"frames, not|exceeds 1024|greeting"):
                await server.send("bob", frames)
        await server.send("bob", [b"the first"])
        assert await contents(bob, until, 1) == [("server", [b"the first"])]


@pytest.mark.asyncio
async def test_too_many_frames_are_refused_where_they_arrive(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server, await transport.connect(server, "bob", Limits(max_frames=3)) as bob:
        await until(server, LinkUp)
        await server.send("bob", [b"x"] * 4)
        await server.send("bob", [b"x"] * 3)
        assert await until(bob, MessageRefused) == MessageRefused("server", "4 frames where 3 are allowed")
        assert await contents(bob, until, 1) == [("server", [b"x"] * 3)]


@pytest.mark.asyncio
async def test_order_is_kept_however_many_send_at_once(transport: Any, until: Callable) -> None:
    limits = Limits(queue_messages=4)
    async with await transport.bind(limits=limits) as server, await transport.connect(server, "alice", limits) as alice:
        await until(server, LinkUp)
        numbers = [str(number).encode() for number in range(100)]
        # More than the queues hold: each end has to wait for the other.
        for send, end in ((lambda number: server.send("alice", [number]), alice), (lambda n: alice.send([n]), server)):
            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    group.create_task(send(number))
                received = [frames for _, frames in await contents(end, until, len(numbers))]
            assert received == [[number] for number in numbers]


@pytest.mark.asyncio
async def test_several_clients_at_once_are_told_apart(transport: Any, until: Callable) -> None:
    rounds = 30

    async def converse(client: Any, name: str) -> None:
        for number in range(rounds):
            await client.send([name.encode(), bytes([number])])
            assert await contents(client, until, 1) == [("server", [b"for " + name.encode(), bytes([number])])]

    async with (
        await transport.bind() as server,
        await transport.connect(server, "alice") as alice,
        await transport.connect(server, "bob") as bob,
        asyncio.TaskGroup() as group,
    ):
        for client, name in ((alice, "alice"), (bob, "bob")):
            group.create_task(converse(client, name))
        for _ in range(2 * rounds):
            ((name, (claimed, number)),) = await contents(server, until, 1)
            assert claimed == name.encode()
            await server.send(name, [b"for " + claimed, number])


@pytest.mark.asyncio
async def test_who_is_not_in_the_roster_gets_no_link(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server:
        with pytest.raises(EndpointError, match="'stranger'"):
            await ClientEndpoint.connect(
                server.address,
                keys=transport.keys["stranger"],
                server=transport.roster.server,
                connect_deadline=PATIENCE_SECONDS,
            )
        async with await transport.connect(server, "alice"):
            assert await until(server, LinkUp) == LinkUp("alice")


@pytest.mark.asyncio
async def test_receivers_without_a_link(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server:
        with pytest.raises(LookupError, match="'nobody' is not in the roster"):
            await server.send("nobody", [b"hello"])
        with pytest.raises(NotConnectedError, match="'alice' has no link"):
            await server.send("alice", [b"hello"])
        async with await transport.connect(server, "alice"):
            await until(server, LinkUp)
        assert await until(server, LinkLost) == LinkLost("alice")
        with pytest.raises(NotConnectedError, match="'alice' has no link"):
            await server.send("alice", [b"hello"])


@pytest.mark.asyncio
async def test_a_link_that_ends_is_reported_once_and_its_last_message_arrives(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server, await transport.connect(server, "bob") as bob:
        await until(server, LinkUp)
        events: list[Event] = []

        async def collect(*kinds: type[Event]) -> None:
            missing = set(kinds)
            while missing:
                events.append(await asyncio.wait_for(server.receive(), PATIENCE_SECONDS))
                missing.discard(type(events[-1]))

        for number in range(3):
            async with await transport.connect(server, "alice") as alice:
                await collect(LinkUp)
                await alice.send([bytes([number]), os.urandom(100_000)])
            await collect(LinkLost, Received)
        await bob.send([b"the last event"])
        events.append(await until(server, Received))
        assert isinstance(events[-1], Received)
        assert events[-1].sender == "bob"
        links = [event for event in events if not isinstance(event, Received)]
        assert links == [LinkUp("alice"), LinkLost("alice")] * 3
        assert [event.frames[0][0] for event in events[:-1] if isinstance(event, Received)] == [0, 1, 2]


@pytest.mark.asyncio
async def test_the_newest_link_is_used_and_an_older_one_never_again(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server, await transport.connect(server, "alice") as first:
        await until(server, LinkUp)
        async with await transport.connect(server, "alice") as second:
            assert [await server.receive(), await server.receive()] == [LinkLost("alice"), LinkUp("alice")]
            await server.send("alice", [b"to the newest"])
            assert await contents(second, until, 1) == [("server", [b"to the newest"])]
            await first.send([b"from the older"])
            await second.send([b"from the newest"])
            assert await contents(server, until, 1) == [("alice", [b"from the newest"])]
        assert await server.receive() == LinkLost("alice")
        with pytest.raises(NotConnectedError, match="'alice' has no link at the moment"):
            await server.send("alice", [b"to the older"])


@pytest.mark.asyncio
async def test_a_client_finds_back_to_a_server_that_starts_again(transport: Any, until: Callable) -> None:
    server = await transport.bind()
    async with await transport.connect(server, "alice") as alice:
        assert await alice.receive() == LinkUp("server")
        assert await server.receive() == LinkUp("alice")
        await server.send("alice", [b"last words"])
        assert await contents(alice, until, 1) == [("server", [b"last words"])]
        await server.close()
        assert await alice.receive() == LinkLost("server")
        # Sent into the void: it waits for the next link.
        await alice.send([b"for your successor"])
        waiting = asyncio.create_task(until(alice, Received))
        async with await transport.bind(server.address) as successor:
            assert await until(successor, LinkUp) == LinkUp("alice")
            if transport.scheme == "tokens":
                # Nothing is heard before the token, so its sender says it again.
                await alice.send([b"for your successor"])
            assert await contents(successor, until, 1) == [("alice", [b"for your successor"])]
            await successor.send("alice", [b"welcome back"])
            assert bytes((await waiting).frames[0]) == b"welcome back"


@pytest.mark.asyncio
async def test_nobody_listens(transport: Any) -> None:
    server = await transport.bind()
    await server.close()
    with pytest.raises(UnreachableError, match="listens at"):
        await ClientEndpoint.connect(
            server.address,
            keys=transport.keys["alice"],
            server=transport.roster.server,
            connect_deadline=0.05,
        )


@pytest.mark.asyncio
async def test_a_full_queue_holds_its_sender_back_and_nobody_else(transport: Any, until: Callable) -> None:
    limits = Limits(queue_messages=2, send_seconds=0.05)
    large = bytes(2 << 20)
    async with (
        await transport.bind(limits=limits) as server,
        await transport.connect(server, "alice", limits) as alice,
        await transport.connect(server, "bob", limits) as bob,
    ):
        for _ in range(2):
            await until(server, LinkUp)

        accepted: Counter[Any] = Counter()

        async def fill(end: Any, send: Callable) -> None:
            while True:
                await send()
                accepted[end] += 1

        with pytest.raises(PeerStalledError, match=r"'alice'.* took no message for 0.05 s"):
            await fill(alice, lambda: server.send("alice", [large]))
        await server.send("bob", [b"quick"])
        assert await contents(bob, until, 1) == [("server", [b"quick"])]
        with pytest.raises(PeerStalledError, match=r"'server' at .* has taken no message for 0.05 s"):
            await fill(server, lambda: alice.send([large]))
        # What was accepted arrives.
        for end in (alice, server):
            assert 1 <= accepted[end] < 1000
            assert all(size == [large] for _, size in await contents(end, until, accepted[end]))
        await alice.send([b"room again"])
        await server.send("alice", [b"room again"])
        assert await contents(server, until, 1) == [("alice", [b"room again"])]
        assert await contents(alice, until, 1) == [("server", [b"room again"])]


@pytest.mark.asyncio
async def test_a_cancelled_receive_loses_nothing(transport: Any, until: Callable) -> None:
    async with await transport.bind() as server, await transport.connect(server, "alice") as alice:
        await until(server, LinkUp)
        received: list[int] = []
        for number in range(50):
            waiting = asyncio.create_task(server.receive())
            await asyncio.sleep(0)
            await alice.send([bytes([number])])
            waiting.cancel()
            (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
            if isinstance(outcome, Received):
                received.append(outcome.frames[0][0])
        while len(received) < 50:
            received.append((await until(server, Received)).frames[0][0])
        assert received == list(range(50))


@pytest.mark.asyncio
async def test_a_cancelled_send_leaves_the_link_usable(transport: Any, until: Callable) -> None:
    limits = Limits(queue_messages=2)
    async with await transport.bind(limits=limits) as server, await transport.connect(server, "alice", limits) as alice:
        await until(server, LinkUp)
        for other, send in ((alice, lambda frames: server.send("alice", frames)), (server, alice.send)):

            async def fill(send: Callable = send) -> None:
                while True:
                    await send([bytes(2 << 20)])

            # The time until the queues are full differs; cancelling before that shows nothing wrong either.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(fill(), 0.1)
            sending = asyncio.create_task(send([b"the next one"]))
            while bytes((await until(other, Received)).frames[0]) != b"the next one":
                pass
            await sending


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["server", "client"])
async def test_closing_while_others_wait(transport: Any, until: Callable, who: str) -> None:
    limits = Limits(queue_messages=2)
    server = await transport.bind(limits=limits)
    client = await transport.connect(server, "alice", limits)
    await until(server, LinkUp)

    async def fill(send: Callable) -> None:
        while True:
            await send()

    own, send = {
        "server": (server, lambda: server.send("alice", [bytes(1 << 20)])),
        "client": (client, lambda: client.send([bytes(1 << 20)])),
    }[who]
    waiting = [asyncio.create_task(until(own, MessageRefused)), asyncio.create_task(fill(send))]
    # Until the queue is full for a moment, or a few turns of the loop when it fills later.
    await asyncio.wait(waiting, timeout=0.05)
    peer = client if own is server else server
    async with asyncio.timeout(PATIENCE_SECONDS):
        closing = asyncio.create_task(own.close())
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(result, EndpointClosedError) for result in results), results
        assert isinstance(await until(peer, LinkLost), LinkLost)
        await closing
        await peer.close()


@pytest.mark.asyncio
async def test_after_close_nothing_works_and_nothing_is_left(transport: Any, until: Callable) -> None:
    def resources() -> tuple[int, int]:
        """Open files, and threads of libzmq; those that the event loop uses for blocking calls are its own affair."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")) - threading.active_count()

    async def whole_life() -> None:
        server = await transport.bind()
        client = await transport.connect(server, "alice")
        await until(server, LinkUp)
        await client.send([b"hello"])
        await until(server, Received)
        for endpoint in (server, client):
            await endpoint.close()
            await endpoint.close()
            with pytest.raises(EndpointClosedError):
                await endpoint.receive()
        with pytest.raises(EndpointClosedError):
            await server.send("alice", [b"hello"])
        with pytest.raises(EndpointClosedError):
            await client.send([b"hello"])

    # What the process keeps for ever, such as the threads of the event loop, is there after the first time. ZeroMQ
    # closes inproc sockets in a thread of its own, so a life may still end when it is counted: hence many lives.
    await whole_life()
    before = resources()
    for _ in range(10):
        await whole_life()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while any(now > then for now, then in zip(resources(), before, strict=True)):
            await asyncio.sleep(0.01)

"""A secure sum between processes that share nothing but ports. Every client listens at its own; the server goes to all.

    python secure_sum.py client ann 7101 1.5 2 3 &
    python secure_sum.py client bob 7102 4 5 6 &
    python secure_sum.py client cid 7103 7 8 9.5 &
    python secure_sum.py server 7101 7102 7103

The server prints the sum, and has seen no vector. The transport here is bare TCP on one machine. Between hosts it has
to be one that nobody can read or change: give `open_connection` and `start_server` an `ssl=` with certificates on both
sides. And the roster, which this server makes, is to be compared by people (`roster.fingerprint`): whoever makes it up
could put clients of its own into it.
"""

import asyncio
import os
import sys
import time

import msgspec

from tacit.protocol import Member, PartyKeys, Roster, SumClient, SumServer, SumSettings, make_roster, new_keys

SETTINGS = SumSettings(length=3, clip=10.0, title="an example", phase_seconds=120.0, vector_seconds=120.0)


async def send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(4, "big") + message)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def client(keys: PartyKeys, port: int, vector: list[float]) -> None:
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(writer, msgspec.msgpack.encode(keys.member("client")))
        roster = Roster(msgspec.msgpack.decode(await receive(reader), type=tuple[Member, ...]))
        party = SumClient(SETTINGS, roster, keys, entropy=os.urandom)
        answers = party.start(time.monotonic()) + party.contribute(vector, time.monotonic())
        while True:
            for answer in answers:
                await send(writer, answer)
            if party.outcome is not None:
                break
            try:
                async with asyncio.timeout_at(party.deadline):
                    message = await receive(reader)
                answers = party.receive(message, time.monotonic())
            except TimeoutError:
                answers = party.expire(time.monotonic())
        print(f"{keys.name}: {type(party.outcome).__name__}")
        writer.close()
        over.set()

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        await over.wait()


async def reach(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)


async def server(ports: list[int]) -> None:
    keys = new_keys("server", entropy=os.urandom)
    links = [await reach(port) for port in ports]
    members = [msgspec.msgpack.decode(await receive(reader), type=Member) for reader, _ in links]
    roster = make_roster(keys.member("server"), *members)
    for _, writer in links:
        await send(writer, msgspec.msgpack.encode(roster.members))
    writers = {member.name: writer for member, (_, writer) in zip(members, links, strict=True)}
    party = SumServer(SETTINGS, roster, now=time.monotonic())
    heard: asyncio.Queue[tuple[str, bytes | None]] = asyncio.Queue()

    async def listen(name: str, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                heard.put_nowait((name, await receive(reader)))
        except (asyncio.IncompleteReadError, ConnectionError):
            heard.put_nowait((name, None))

    listening = [
        asyncio.create_task(listen(member.name, reader)) for member, (reader, _) in zip(members, links, strict=True)
    ]
    while party.outcome is None:
        try:
            async with asyncio.timeout_at(party.deadline):
                name, message = await heard.get()
            now = time.monotonic()
            answers = party.drop(name, now) if message is None else party.receive(name, message, now)
        except TimeoutError:
            answers = party.expire(time.monotonic())
        for to, answer in answers:
            await send(writers[to], answer)
    for task in listening:
        task.cancel()
    print(f"server: {party.outcome}")
    print(f"server: {getattr(party.outcome, 'values', None)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["client", name, port, *numbers]:
            asyncio.run(client(new_keys(name, entropy=os.urandom), int(port), [float(number) for number in numbers]))
        case ["server", *ports]:
            asyncio.run(server([int(port) for port in ports]))
        case _:
            sys.exit(__doc__)

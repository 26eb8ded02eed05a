"""Dealer, model owner and data owners in one event loop, over real sockets and CURVE, with links that can be cut.

What the parties write into their event logs is what tests wait for. At the end nothing may be left: no task, no thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.data_owner import Answer, DataOwnerSettings, Inferred, open_session
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.events import ImagesAnswered
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.core.events import Event
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceRequest

DEALER: Final = "dealer"
MODEL_OWNER: Final = "model-owner"
OWNERS: Final = ("alice", "bob", "carol")
PATIENCE: Final = 60.0
"""Seconds until a wait counts as lost; no test takes them."""
LISTEN: Final = "tcp://127.0.0.1:*"
KEYS: Final[Mapping[str, PartyKeys]] = {name: generate(name) for name in (MODEL_OWNER, DEALER, *OWNERS)}
ROSTER: Final = Roster(
    (
        KEYS[MODEL_OWNER].member("server"),
        KEYS[DEALER].member("dealer"),
        *(KEYS[name].member("client") for name in OWNERS),
    )
)

EventT = TypeVar("EventT", bound=Event)


class Cable:
    """TCP connections through here can be cut, and held up while `flows` is not set."""

    def __init__(self) -> None:
        self.address = ""
        self.flows = asyncio.Event()
        self.flows.set()
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    async def to(cls, address: str) -> Cable:
        cable, port = cls(), int(address.rpartition(":")[2])
        cable._server = await asyncio.start_server(lambda *near: cable._join(port, *near), "127.0.0.1", 0)
        cable.address = f"tcp://127.0.0.1:{cable._server.sockets[0].getsockname()[1]}"
        return cable

    async def cut(self) -> None:
        self._server.close()
        self.abort()
        await self._server.wait_closed()

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _join(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        self._writers += [writer, far_writer]
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while octets := await reader.read(1 << 16):
                await self.flows.wait()
                writer.write(octets)
                await writer.drain()
        writer.close()


@dataclass
class House:
    directory: Path
    told: list[tuple[str, Event]] = field(default_factory=list)
    """Events that have been written into event logs and not been waited for, each with the name of its event_log."""
    tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    cables: list[Cable] = field(default_factory=list)
    logs: ExitStack = field(default_factory=ExitStack)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def waits(self, event_log: str, kind: type[EventT], **expected: Any) -> EventT:
        """Wait for an event with these fields in an event log, and return it. An event is waited for once."""
        async with asyncio.timeout(PATIENCE):
            while True:
                for index, (name, event) in enumerate(self.told):
                    if name != event_log or not isinstance(event, kind):
                        continue
                    if all(getattr(event, field) == value for field, value in expected.items()):
                        del self.told[index]
                        return event
                self._news.clear()
                await self._news.wait()

    def tell(self, event_log: str, event: Event) -> None:
        self.told.append((event_log, event))
        self._news.set()

    async def dealer(self, *, address: str = LISTEN, **settings: Any) -> None:
        settings = {"keys": KEYS[DEALER], "roster": ROSTER, **settings}
        party = DealerParty(DealerSettings(address=address, **settings), self.event_log(DEALER))
        await self._serve(DEALER, party)

    async def model_owner(self, model: PrivateModel, *, address: str = LISTEN, **settings: Any) -> ModelOwnerParty:
        settings = {"keys": KEYS[MODEL_OWNER], "roster": ROSTER, "dealer_address": self.addresses[DEALER], **settings}
        party = ModelOwnerParty(ModelOwnerSettings(address=address, **settings), model, self.event_log(MODEL_OWNER))
        await self._serve(MODEL_OWNER, party)
        return party

    def asks(
        self, name: str, images: torch.Tensor, *, batch: int = 2, links: tuple[str, str] | None = None, **settings: Any
    ) -> asyncio.Task[Inferred]:
        """A data owner at work; ImagesAnswered comes after every pass. links: where it finds model owner and dealer."""
        model_owner, dealer = links or (self.addresses[MODEL_OWNER], self.addresses[DEALER])
        settings = {
            "model_owner_address": model_owner,
            "dealer_address": dealer,
            "keys": KEYS[name],
            "roster": ROSTER,
            **settings,
        }

        def answered(done: int) -> None:
            self.tell(name, ImagesAnswered(images=done, of=len(images), refused=0))

        progress = settings.pop("progress", answered)

        async def ask() -> Inferred:
            answers: list[Answer] = []
            channels, side = images.shape[1], images.shape[-1]
            request = InferenceRequest(images=len(images), batch=batch, channels=channels, side=side)
            async with open_session(DataOwnerSettings(**settings), request) as session:
                async for answer in session.answers(images):
                    answers.append(answer)
                    progress(sum(each.costs.images for each in answers))
            return Inferred.collected(session, answers)

        self.tasks[name] = asyncio.ensure_future(ask())
        return self.tasks[name]

    async def over_cables(self) -> tuple[str, str]:
        """Where a data owner finds model owner and dealer, through cables."""
        cables = [await Cable.to(self.addresses[name]) for name in (MODEL_OWNER, DEALER)]
        self.cables += cables
        return cables[0].address, cables[1].address

    async def cut(self) -> None:
        for cable in self.cables:
            await cable.cut()
        self.cables.clear()

    async def stop(self, *names: str) -> None:
        tasks = [self.tasks.pop(name) for name in names]
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            # A data owner's error belongs to the test that waited for it.
            assert ended is None or isinstance(
                ended, asyncio.CancelledError | InferenceError | EndpointError | Inferred | Ended | ValueError
            )

    def event_log(self, party: str) -> EventLog:
        log = self.logs.enter_context(EventFile(self.directory / f"{party}.jsonl", party))
        return EventLog(log, lambda event: self.tell(party, event))

    async def _serve(self, name: str, party: DealerParty | ModelOwnerParty) -> None:
        self.tasks[name] = asyncio.ensure_future(party.run())
        self.addresses[name] = (await self.waits(name, ListeningStarted)).address


def working_threads() -> set[threading.Thread]:
    """Those that a program waits for before it ends; ZeroMQ keeps others for itself."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


@asynccontextmanager
async def house(directory: Path) -> AsyncIterator[House]:
    threads = working_threads()
    found = House(directory)
    try:
        yield found
    finally:
        await found.cut()
        await found.stop(*reversed(found.tasks))
        found.logs.close()
    await asyncio.get_running_loop().shutdown_default_executor()
    for thread in working_threads() - threads:
        thread.join(PATIENCE)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    threads_left = working_threads() - threads
    assert not left, f"tasks are left: {left}"
    assert not threads_left, f"threads are left: {threads_left}"

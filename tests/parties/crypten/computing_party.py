"""What the tests run in processes of their own: one computing party each."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from crypten_cases import CASES

from tacit.parties.crypten.communicator import LinkCommunicator
from tacit.parties.crypten.compatibility import corrected, crypten
from tacit.parties.crypten.computation import computing
from tacit.parties.crypten.link import connect, listen
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster
from tacit.simulate.federation.child import Control


@dataclass(frozen=True)
class Place:
    """A party among the others; their addresses are files in the directory."""

    own: str
    parties: tuple[str, ...]
    keys: PartyKeys
    roster: Roster
    directory: Path

    @property
    def rank(self) -> int:
        return self.parties.index(self.own)

    @contextmanager
    def computing(self, patience: float) -> Iterator[LinkCommunicator]:
        """Everybody listens for those behind it, and connects to those before it."""
        common: dict[str, Any] = {"keys": self.keys, "roster": self.roster, "session": b"test", "patience": patience}
        behind, links = self.parties[self.rank + 1 :], {}
        with ExitStack() as stack:
            address = f"ipc://{self.directory}/{self.own}"
            listener = stack.enter_context(listen(address, peers=behind, **common)) if behind else None
            for server in self.parties[: self.rank]:
                address = f"ipc://{self.directory}/{server}"
                links[server] = stack.enter_context(connect(address, server=server, **common))
            if listener is not None:
                links |= listener.accept()
            provider = crypten.mpc.provider.TrustedFirstParty()
            with computing(self.own, parties=self.parties, links=links, provider=provider) as communicator:
                yield communicator


async def all_cases(_control: Control, *, place: Place, gloo: bool) -> dict[str, Any]:
    """Every case on our links, and again on gloo with the same seeds; results go to files."""
    return await asyncio.to_thread(_all_cases, place, gloo)


def _all_cases(place: Place, gloo: bool) -> dict[str, Any]:
    with place.computing(patience=60.0) as communicator:
        torch.save(_results(place.rank), place.directory / f"{place.own}.pt")
        statistics = communicator.get_communication_stats()
    if gloo:
        os.environ |= {
            "DISTRIBUTED_BACKEND": "gloo",
            "RENDEZVOUS": f"file://{place.directory}/rendezvous",
            "WORLD_SIZE": str(len(place.parties)),
            "RANK": str(place.rank),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        crypten.init()
        with corrected():
            torch.save(_results(place.rank), place.directory / f"{place.own}.gloo.pt")
        crypten.communicator.get().barrier()
    return {"rounds": statistics["rounds"]}


def _results(rank: int) -> dict[str, torch.Tensor]:
    results: dict[str, torch.Tensor] = {}
    with crypten.cfg.temp_override({"debug.debug_mode": True}), crypten.no_grad():
        for index, (name, case) in enumerate(CASES.items()):
            # The provider draws from torch's generator, the rest of CrypTen from its own ones.
            torch.manual_seed(1000 * index + rank)
            crypten.manual_seed(1000 * index + rank, 1000 * index + 10 + rank, index)
            x, y = (
                crypten.cryptensor(value if rank == source else torch.zeros_like(value), src=source)
                for source, value in enumerate(case.inputs(index))
            )
            results[name] = case.secure(x, y).get_plain_text()
    return results


async def misbehave(control: Control, *, place: Place, fault: str, patience: float) -> None:
    """Both parties multiply and compare; the second does what the fault says."""
    await asyncio.to_thread(_misbehave, control, place, FAULTS[fault] if place.rank == 1 else _NOTHING, patience)


def _misbehave(control: Control, place: Place, fault: Callable[[Control], bool], patience: float) -> None:
    with place.computing(patience) as communicator:
        x = crypten.cryptensor(torch.ones(3, 4), src=0)
        with communicator.operation("first layer"):
            if not fault(control):
                _ = x * x
        with communicator.operation("second layer"):
            _ = x.relu()


def _NOTHING(control: Control) -> bool:
    return False


def _miss_a_call(control: Control) -> bool:
    return True


def _hang(control: Control) -> bool:
    """Until the test is over, or kills this process."""
    control.send({"pid": os.getpid()})
    threading.Event().wait()
    return True


FAULTS: dict[str, Callable[[Control], bool]] = {"misses a call": _miss_a_call, "is killed": _hang}

"""The traffic of stock CrypTen's two computing parties through a relay, without a change to CrypTen or gloo.

Processes of torch.distributed find each other in a store: each publishes the address where it listens, 127.0.0.1 and a
port, and of every two the one with the higher address connects to the other. Here the store is ours: it hands out
addresses that are chosen for the reader. A rank sees those above itself at addresses higher than its own, so that it
waits for them, and those below itself at 0.0.0.0, which is lower and means this machine; the port is the published one,
or, between model owner and data owner, one of the relay's that leads there. So there is one connection for every pair
of ranks in every group, as without us, and each of those between the two passes through the relay, both ways.

All of this hangs on what gloo publishes, which is nobody's promise: who measures asks the relay whether the bytes have
passed. An entry that is no such address remains as it is.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlparse

import torch

# torch.distributed has them too, but not for type checkers.
from torch._C._distributed_c10d import FileStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler

from tacit.simulate.federation.relay import Relay

_SCHEME: Final = "relayed"
_PARTIES: Final = {0, 1}
_LENGTH = struct.Struct("<Q")
# Address family (2: IPv4), port in network order, address.
_SOCKET_ADDRESS = struct.Struct("=H2s4s")
_IPV4: Final = 2
_LOOPBACK: Final = bytes((127, 0, 0, 1))
_THIS_MACHINE: Final = bytes(4)


def prepare(path: Path, rank: int, relay: Relay | None) -> None:
    """Let crypten.init() join, as this rank of two, those who meet at this file; one thread computes in this process.

    With a relay, once in a process (then RuntimeError).
    """
    torch.set_num_threads(1)
    os.environ |= {
        "DISTRIBUTED_BACKEND": "gloo",
        "RENDEZVOUS": f"file://{path}" if relay is None else _relayed(path, relay),
        "WORLD_SIZE": str(len(_PARTIES)),
        "RANK": str(rank),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _relayed(path: Path, relay: Relay) -> str:
    stores: list[Store] = []

    def meet(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        parts = urlparse(url)
        numbers = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        rank, ranks = numbers["rank"], numbers["world_size"]
        # Kept, since those that come to hold it hold the part of it that is not Python.
        stores.append(_RelayedStore(FileStore(parts.path, ranks), rank, relay))
        yield stores[-1], rank, ranks

    register_rendezvous_handler(_SCHEME, meet)  # type: ignore[no-untyped-call]
    return f"{_SCHEME}://{path}"


class _RelayedStore(Store):
    """A store that publishes addresses with the rank of their owner, and hands them out as the reader shall see them.

    Rank r is published as 127.0.0.(r + 1), although it listens at 127.0.0.1 like all.
    """

    def __init__(self, store: Store, rank: int, relay: Relay) -> None:
        super().__init__()
        self._store = store
        self._rank = rank
        self._relay = relay

    def set(self, key: str, value: Any) -> None:
        if (place := _place(value)) is not None:
            _, port, _ = _SOCKET_ADDRESS.unpack_from(value, place)
            value = _with(value, place, port, bytes((127, 0, 0, self._rank + 1)))
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        value = self._store.get(key)
        if (place := _place(value)) is None:
            return value
        _, port, address = _SOCKET_ADDRESS.unpack_from(value, place)
        rank = address[-1] - 1
        if rank >= self._rank:
            return value
        if {rank, self._rank} == _PARTIES:
            port = self._relay.through(int.from_bytes(port, "big")).to_bytes(2, "big")
        return _with(value, place, port, _THIS_MACHINE)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._store.wait(keys, *timeout)


def _place(value: bytes) -> int | None:
    """Where gloo's entry of a rank has the socket's address: behind the host's name and a length. None: no entry."""
    if len(value) < _LENGTH.size:
        return None
    place = _LENGTH.size + _LENGTH.unpack_from(value)[0] + _LENGTH.size
    if place + _SOCKET_ADDRESS.size > len(value):
        return None
    family, _, address = _SOCKET_ADDRESS.unpack_from(value, place)
    return place if family == _IPV4 and address[:3] == _LOOPBACK[:3] else None


def _with(value: bytes, place: int, port: bytes, address: bytes) -> bytes:
    return value[:place] + _SOCKET_ADDRESS.pack(_IPV4, port, address) + value[place + _SOCKET_ADDRESS.size :]

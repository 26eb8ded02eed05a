"""The store that sends gloo's connections through the relay: what each rank is told of each other rank."""

import socket
import struct
from ipaddress import IPv4Address

import torch.distributed

from tacit.simulate.bench.blocks import _RelayedStore
from tacit.simulate.federation.relay import Shaping, relaying

RANKS = range(3)


def entry(port: int) -> bytes:
    """As gloo publishes it: the host's name, and a sockaddr_storage with a sequence number, each after its length."""
    address = struct.pack("=H2s4s", socket.AF_INET, port.to_bytes(2, "big"), IPv4Address("127.0.0.1").packed)
    return struct.pack("<Q", 4) + b"host" + struct.pack("<Q", 136) + address.ljust(128, b"\7") + bytes(8) + b"more"


def test_of_two_ranks_the_higher_connects_and_the_computing_parties_through_the_relay() -> None:
    store = torch.distributed.HashStore()
    with relaying(Shaping(latency_ms=1)) as relay:
        assert relay is not None
        stores = [_RelayedStore(store, rank, relay) for rank in RANKS]
        published = [entry(4_000 + rank) for rank in RANKS]
        for rank in RANKS:
            stores[rank].set(f"group/{rank}", published[rank])
        for reader in RANKS:
            for owner in set(RANKS) - {reader}:
                seen = stores[reader].get(f"group/{owner}")
                family, port, address = struct.unpack_from("=H2s4s", seen, 20)
                number = int.from_bytes(port, "big")
                assert seen[:20] + seen[28:] == published[owner][:20] + published[owner][28:]
                assert family == socket.AF_INET
                # gloo's rule: the higher address connects. The reader's own is 127.0.0.1.
                assert (IPv4Address("127.0.0.1") > IPv4Address(address)) == (reader > owner)
                assert (number == 4_000 + owner) == ((reader, owner) != (1, 0))


def test_what_is_no_address_of_loopback_remains_as_it_is() -> None:
    store = torch.distributed.HashStore()
    elsewhere = [struct.pack("<Q", 2**64 - 1) + bytes(100), entry(1).replace(b"\x7f", b"\x0a"), entry(1)[:24]]
    with relaying(Shaping(latency_ms=1)) as relay:
        assert relay is not None
        for number, value in enumerate([b"", b"7", bytes(8), *elsewhere]):
            key = f"key{number}"
            _RelayedStore(store, 0, relay).set(key, value)
            assert store.get(key) == value
            assert _RelayedStore(store, 1, relay).get(key) == value

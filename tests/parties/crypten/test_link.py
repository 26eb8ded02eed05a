"""Links of a computation over real sockets with CURVE: what they carry, and whom they name when something is wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from tacit.parties.crypten.ends import DialledEnd
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import (
    CHUNK_BYTES,
    FIELDS_LIMIT,
    SESSION_BYTES,
    LinkCost,
    Listener,
    PeerLink,
    errors_told,
    listen,
)
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.roster import Roster

SOON = 0.3  # Seconds until a call gives up whose failure is the point of the test.

Pair = tuple[PeerLink, PeerLink]


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: str
    shape: list[int]


class Greeting(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    session: bytes = b"this computation"
    roster: bytes
    nonce: bytes = bytes(32)


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.int64(-5).reshape(())],
        [np.zeros((0, 3), np.float32), torch.tensor([True, False])],
        [np.arange(24).reshape(2, 3, 4)[:, ::2], torch.arange(6, dtype=torch.int32).reshape(2, 3).T],
        [np.arange(5, dtype=np.uint8), np.arange(700)],
        [np.arange(CHUNK_BYTES // 8), np.arange(CHUNK_BYTES // 8 + 1), np.arange(CHUNK_BYTES // 4, dtype=np.uint16)],
        [np.array([np.nan, -0.0, np.inf]), np.array([0, 2**64 - 1], np.uint64), np.array([-128], np.int8)],
    ],
    ids=["none", "scalar", "empty", "strided", "unaligned", "chunks", "extremes"],
)
def test_arrays_arrive_as_they_were_sent(pair: Pair, arrays: Sequence[Any]) -> None:
    sender, receiver = pair
    sender.send("layer/open", arrays)
    received = receiver.receive("layer/open", [(array.dtype, array.shape) for array in arrays])
    for sent, array in zip(arrays, received, strict=True):
        np.testing.assert_array_equal(np.asarray(sent), array, strict=True)
        assert array.flags.aligned
        array[...] = 1  # The receiver's own.


def test_what_was_sent_may_change_afterwards(pair: Pair) -> None:
    sender, receiver = pair
    values = np.arange(4 * CHUNK_BYTES)
    sender.send("open", [values])
    values[:] = 0
    np.testing.assert_array_equal(receiver.receive("open", [(np.int64, values.shape)])[0], np.arange(4 * CHUNK_BYTES))


def test_structures_go_both_ways_in_order(pair: Pair) -> None:
    one, other = pair
    for number in range(3):
        one.send_fields("order", Order(kind="mul", shape=[number]))
        other.send("reply", [np.array([number])])
    for number in range(3):
        assert other.receive_fields("order", Order) == Order(kind="mul", shape=[number])
        assert one.receive("reply", [(np.int64, (1,))])[0] == number


def test_both_ends_count_the_same_and_know_their_link(pair: Pair, open_pair: Callable[..., Pair]) -> None:
    one, other = pair
    one.send("open", [np.zeros(1000)])
    other.receive("open", [(np.float64, (1000,))])
    sent, received = one.counters["open"], other.counters["open"]
    assert 8000 < sent.bytes_sent < 8100
    assert sent.bytes_sent == received.bytes_received > 0
    assert sent.bytes_received == received.bytes_sent == 0
    assert sent.seconds > 0
    assert received.seconds > 0
    assert one.counters["hello"].bytes_received == one.counters["hello"].bytes_sent > 0
    assert one.counters["never"] == LinkCost()
    assert one.binding == other.binding
    assert one.binding not in (bytes(32), *(link.binding for link in open_pair()))


@pytest.mark.parametrize(
    ("sent", "awaited", "reason"),
    [
        (
            ("mul", [np.zeros(2)]),
            ("relu", [(np.float64, (2,))]),
            r"it sent mul \(float64\[2\]\) where relu \(float64\[2\]\) was due",
        ),
        (("mul", [np.zeros(2)]), ("mul", [(np.float64, (3,))]), r"float64\[2\]\) where mul \(float64\[3\]\) was due"),
        (("mul", [np.zeros(2)]), ("mul", [(np.int64, (2,))]), r"float64\[2\]\) where mul \(int64\[2\]\) was due"),
        (
            ("mul", [np.zeros(2)]),
            ("mul", [(np.float64, (2,))] * 2),
            r"where mul \(float64\[2\], float64\[2\]\) was due",
        ),
        (("mul", []), ("mul", [(np.float64, (2,))]), r"it sent mul \(empty\) where mul \(float64\[2\]\) was due"),
        (("mul", Order(kind="", shape=[])), ("mul", []), r"it sent mul \(fields\) where mul \(empty\) was due"),
        (("mul", []), ("mul", Order), r"it sent mul \(empty\) where mul \(fields\) was due"),
    ],
)
def test_a_party_that_misses_a_call_is_named_with_both_operations(
    pair: Pair, sent: tuple[str, Any], awaited: tuple[str, Any], reason: str
) -> None:
    owner, alice = pair
    alice.send("first", [])
    owner.receive("first", [])
    (alice.send if isinstance(sent[1], list) else alice.send_fields)(*sent)
    with pytest.raises(MpcError, match=f"'alice', {awaited[0]}: .*{reason}, as message 2: it has missed or") as caught:
        (owner.receive if isinstance(awaited[1], list) else owner.receive_fields)(*awaited)
    assert (caught.value.party, caught.value.operation) == ("alice", awaited[0])


def header(alice: PeerLink, **changes: Any) -> bytes:
    fields = {"link": alice.binding[:8], "sequence": 1, "operation": "mul", "arrays": [["int64", [2]]]} | changes
    encoded = msgspec.msgpack.encode(fields)
    return struct.pack("<I", len(encoded)) + encoded + bytes(-(4 + len(encoded)) % 8)


LARGE = CHUNK_BYTES // 8 + 1
large = partial(header, arrays=[["int64", [LARGE]]])


@pytest.mark.parametrize(
    ("frames", "awaited", "reason"),
    [
        (lambda alice: [header(alice)], 2, "bytes in 1 frames, not those of its header"),
        (lambda alice: [header(alice) + bytes(15)], 2, "in 1 frames, not those"),
        (lambda alice: [header(alice) + bytes(17)], 2, "in 1 frames, not those"),
        (lambda alice: [header(alice) + bytes(16), b""], 2, "in 2 frames, not those"),
        (lambda alice: [header(alice), bytes(16)], 2, "in 2 frames, not those"),
        (lambda alice: [large(alice), bytes(CHUNK_BYTES)], LARGE, "in 2 frames, not those"),
        (lambda alice: [large(alice), bytes(CHUNK_BYTES - 1), bytes(9)], LARGE, "in 3 frames, not those"),
        (lambda alice: [large(alice) + b"0", bytes(CHUNK_BYTES), bytes(8)], LARGE, "in 3 frames, not those"),
        (lambda alice: [header(alice, link=bytes(8)) + bytes(16)], 2, "belongs to another session"),
        (lambda alice: [header(alice, sequence=3) + bytes(16)], 2, "its message 3 came where 1 was due"),
        (lambda alice: [header(alice, more=1) + bytes(16)], 2, "malformed"),
        (lambda alice: [b"\xff" * 20], 2, "malformed"),
        (lambda alice: [b"\xff"], 2, "malformed"),
        (lambda alice: [struct.pack("<I", 1 << 15) + bytes(1 << 15)], 2, "at most 16384"),
    ],
)
def test_messages_that_no_link_writes_are_refused(
    pair: Pair, frames: Callable[[PeerLink], Sequence[bytes]], awaited: int, reason: str
) -> None:
    owner, alice = pair
    alice._end.put("owner", "mul", frames(alice))
    with pytest.raises(MpcError, match=f"'alice', mul: .*{reason}"):
        owner.receive("mul", [(np.int64, (awaited,))])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([encode_structure(Order(kind="mul", shape=[1])), b""], "in 2 frames, not those of its header"),
        ([msgspec.msgpack.encode({"kind": "mul"})], "Order is malformed"),
        ([msgspec.msgpack.encode({"shape": [1], "kind": "mul"})], "canonical"),
        ([bytes(FIELDS_LIMIT + 1)], f"at most {FIELDS_LIMIT}"),
    ],
)
def test_fields_that_no_link_writes_are_refused(pair: Pair, body: list[bytes], reason: str) -> None:
    owner, alice = pair
    opening = header(alice, operation="order", arrays=None)
    alice._end.put("owner", "order", [opening + body[0], *body[1:]])
    with pytest.raises(MpcError, match=f"'alice', order: .*{reason}"):
        owner.receive_fields("order", Order)


def test_what_cannot_be_sent_is_refused_at_home(pair: Pair) -> None:
    with pytest.raises(ValueError, match="dtype complex128: a link carries bool"):
        pair[0].send("mul", [np.zeros(1, complex)])
    with pytest.raises(ValueError, match=f"at most {FIELDS_LIMIT} fit"):
        pair[0].send_fields("order", Order(kind="x" * FIELDS_LIMIT, shape=[]))


def test_a_late_party_is_named(open_pair: Callable[..., Pair]) -> None:
    owner, _ = open_pair(patience=SOON)
    with pytest.raises(MpcError, match=r"'alice', softmax: nothing came for 0.3 s, although its link is open"):
        owner.receive("softmax", [])


def send_for_ever(link: PeerLink, operation: str = "stream") -> None:
    while True:
        link.send(operation, [np.zeros(CHUNK_BYTES // 8)])


def test_a_party_that_takes_nothing_is_named(open_pair: Callable[..., Pair]) -> None:
    owner, alice = open_pair(patience=SOON)
    for sender, receiver in ((owner, "alice"), (alice, "owner")):
        with pytest.raises(MpcError, match=f"'{receiver}', stream: it took no message for 0.3 s"):
            send_for_ever(sender)


@pytest.mark.parametrize("closing", [0, 1])
def test_a_party_that_has_gone_is_named_after_its_last_message(pair: Pair, closing: int) -> None:
    gone, left = pair[closing], pair[1 - closing]
    gone.send("last", [np.arange(3)])
    gone.close()
    assert list(left.receive("last", [(np.int64, (3,))])[0]) == [0, 1, 2]
    with pytest.raises(MpcError, match=f"'{gone.own}', next: its link is lost"):
        left.receive("next", [])


@pytest.mark.parametrize("closing", [0, 1])
def test_a_party_that_gives_up_says_why_after_its_last_message(pair: Pair, closing: int) -> None:
    gone, left = pair[closing], pair[1 - closing]
    gone.send("last", [np.arange(3)])
    gone.abort("'bob', softmax: nothing came\nfor 60 s" + "." * 3000)
    gone.close()
    assert list(left.receive("last", [(np.int64, (3,))])[0]) == [0, 1, 2]
    reason = r"it has given up: 'bob', softmax: nothing camefor 60 s\.+$"
    with pytest.raises(MpcError, match=f"'{gone.own}', relu: {reason}") as caught:
        left.receive("relu", [])
    assert (caught.value.party, caught.value.operation) == (gone.own, "relu")
    assert len(str(caught.value)) < 2100


def test_whoever_sends_reads_the_reason_too(pair: Pair) -> None:
    owner, alice = pair
    with pytest.raises(MpcError, match="'owner', mul: no"), errors_told([alice]):
        raise MpcError("owner", "mul", "no")
    alice.close()
    owner._end.wait(["nobody"], SOON)  # Until the loss of the link is known.
    with pytest.raises(MpcError, match="'alice', relu: it has given up: 'owner', mul: no"):
        send_for_ever(owner, "relu")


def test_of_errors_that_are_not_public_only_the_kind_is_told(pair: Pair) -> None:
    owner, alice = pair
    for link, public in ((alice, OSError), (owner, LookupError)):
        with pytest.raises(KeyError), errors_told([link], public):
            raise KeyError("a value")
    with pytest.raises(MpcError, match=r"'alice', relu: it has given up: KeyError; see its log$"):
        owner.receive_fields("relu", Order)
    with pytest.raises(MpcError, match=r"'owner', relu: it has given up: KeyError: 'a value'$"):
        alice.receive_fields("relu", Order)


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode({"reason": 5}),
        msgspec.msgpack.encode({"reason": "x" * 2001}),
        msgspec.msgpack.encode({"reason": "x", "more": 1}),
        b"",
    ],
)
def test_reasons_that_no_link_writes_are_refused(pair: Pair, body: bytes) -> None:
    owner, alice = pair
    alice._end.put("owner", "ended", [header(alice, operation="ended", arrays=None) + body])
    with pytest.raises(MpcError, match=r"'alice', mul: it sent ended \(fields\) where mul \(empty\) was due"):
        owner.receive("mul", [])


def test_giving_up_neither_waits_nor_fails_when_the_peer_takes_nothing(open_pair: Callable[..., Pair]) -> None:
    for stalled in range(2):
        link = open_pair(patience=SOON)[stalled]
        with pytest.raises(MpcError, match="it took no message"), errors_told([link]):
            send_for_ever(link)


def test_a_message_for_a_party_that_has_gone_is_refused(pair: Pair) -> None:
    owner, alice = pair
    alice.close()
    with pytest.raises(MpcError, match=r"'alice', .*: its link is lost"):
        owner.receive("first", [])
    with pytest.raises(MpcError, match="'alice', second: its link is lost"):
        owner.send("second", [])


def test_one_listener_serves_several_peers(
    owner_listens: Callable[..., Listener], dial: Callable[..., PeerLink]
) -> None:
    listener = owner_listens("alice", "bob")
    with ThreadPoolExecutor(2) as pool:
        futures = {name: pool.submit(dial, name, listener.address) for name in ("bob", "alice")}
        links = listener.accept()
        peers = {name: future.result() for name, future in futures.items()}
    assert listener.ready(0) == []
    peers["bob"].send("order", [np.array([2])])
    assert listener.ready(30) == ["bob"]
    peers["alice"].send("order", [np.array([1])])
    for number, (name, link) in enumerate(links.items(), 1):
        assert (link.own, link.peer) == ("owner", name)
        assert link.receive("order", [(np.int64, (1,))])[0] == number
        link.send("reply", [np.array([number * 10])])
    for number, name in enumerate(links, 1):
        assert peers[name].receive("reply", [(np.int64, (1,))])[0] == number * 10
    peers["alice"].close()
    assert listener.ready(30) == ["alice"]


def test_a_party_may_come_again_while_others_are_awaited(
    keys: dict[str, PartyKeys], roster: Roster, owner_listens: Callable[..., Listener], dial: Callable[..., PeerLink]
) -> None:
    listener = owner_listens("alice", "bob")
    with ThreadPoolExecutor(3) as pool:
        accepted = pool.submit(listener.accept)
        first = DialledEnd.dial(listener.address, keys=keys["alice"], roster=roster, server="owner", patience=30.0)
        PeerLink(first, own="alice", peer="owner").send_fields("hello", Greeting(roster=roster.hash))
        first.shut()
        again = [pool.submit(dial, name, listener.address) for name in ("alice", "bob")]
        assert accepted.result()["alice"].binding == again[0].result().binding
        again[1].result()


def test_those_who_do_not_come_are_named_and_who_was_turned_away(
    owner_listens: Callable[..., Listener], dial: Callable[..., PeerLink]
) -> None:
    listener = owner_listens("alice")
    end = listener._end
    with ThreadPoolExecutor(1) as pool:
        # In the roster, but no party of this computation.
        bob = pool.submit(dial, "bob", listener.address)
        end._pending.append(end._loop.run_until_complete(end.receive()))
    with pytest.raises(MpcError, match=r"'owner', connect: the server at tcp.* does not know this key"):
        bob.result()
    end._limits = replace(end._limits, send_seconds=SOON)
    reason = r"'alice', accept: no link to tcp.* within 0.3 s.*turned away: 127.0.0.1: "
    with pytest.raises(MpcError, match=reason):
        listener.accept()


def test_nobody_at_the_address_is_named(dial: Callable[..., PeerLink], owner_listens: Callable[..., Listener]) -> None:
    listener = owner_listens("alice")
    listener.close()
    with pytest.raises(MpcError, match="'owner', connect: nothing listens at tcp"):
        dial("alice", listener.address, patience=SOON)


def test_an_address_in_use_is_named(
    keys: dict[str, PartyKeys], roster: Roster, owner_listens: Callable[..., Listener]
) -> None:
    address = owner_listens("alice").address
    with pytest.raises(MpcError, match="'owner', listen: cannot listen at"):
        listen(address, keys=keys["owner"], roster=roster, peers=["alice"], session=b"")


def test_a_session_with_a_long_name_is_refused_at_home(
    owner_listens: Callable[..., Listener], dial: Callable[..., PeerLink]
) -> None:
    with pytest.raises(ValueError, match="a name of 65 bytes; at most 64 are accepted"):
        owner_listens("alice", session=bytes(SESSION_BYTES + 1))
    with pytest.raises(ValueError, match="a name of 65 bytes; at most 64 are accepted"):
        dial("alice", "tcp://127.0.0.1:1", session=bytes(SESSION_BYTES + 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"session": b"another"}, r"it is in another session \(616e6f74686572, here 7468697320636f6d\)"),
        ({"roster": True}, "it has another roster"),
    ],
)
def test_a_party_of_another_session_or_roster_is_named(
    keys: dict[str, PartyKeys],
    roster: Roster,
    owner_listens: Callable[..., Listener],
    dial: Callable[..., PeerLink],
    changes: dict[str, Any],
    reason: str,
) -> None:
    if changes.get("roster"):
        changes = {"roster": Roster(roster.members[:2])}
    listener = owner_listens("alice")
    with ThreadPoolExecutor(1) as pool:
        alice = pool.submit(dial, "alice", listener.address, **changes)
        with pytest.raises(MpcError, match=f"'alice', hello: {reason}"):
            listener.accept()
        with pytest.raises(MpcError, match="'owner', hello: it "):
            alice.result()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "it speaks version 2, here 1: install the same release"),
        ({"nonce": bytes(31)}, "malformed"),
        ({"session": bytes(65)}, "malformed"),
    ],
)
def test_hellos_that_no_link_writes_are_refused(
    keys: dict[str, PartyKeys],
    roster: Roster,
    owner_listens: Callable[..., Listener],
    opened: ExitStack,
    changes: dict[str, Any],
    reason: str,
) -> None:
    listener = owner_listens("alice")

    def dial() -> None:
        end = DialledEnd.dial(listener.address, keys=keys["alice"], roster=roster, server="owner", patience=30.0)
        opened.callback(end.shut)
        PeerLink(end, own="alice", peer="owner").send_fields("hello", Greeting(roster=roster.hash, **changes))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(dial)
        with pytest.raises(MpcError, match=f"'alice', hello: .*{reason}"):
            listener.accept()

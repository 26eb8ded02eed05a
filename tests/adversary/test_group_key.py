"""The group key: a server that lies to its members.

Whatever the server does, alone, no member accepts another key than the others or one that the server knows: an accepted
key is the one that follows from the contributions of all members, none of which ever left in the clear.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Send
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import AgreementKey, SigningKey
from tacit.protocol.group_key.agreement import (
    COMMIT_BYTES,
    CONFIRMATION_BYTES,
    PACKET_BYTES,
    SEALED_BYTES,
    GroupKey,
    KeyAgreed,
    commit_record,
)
from tacit.protocol.group_key.holder import GroupKeyMember
from tacit.protocol.group_key.messages import ConfirmKey, KeyComplaint, PeerKeyCommits, PeerKeyContributions
from tacit.protocol.sum.exchange import ClientAborted
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.group_keys import RELAY, MemoryGroupKey, memory_group_key

SIZE = 3
TOLD = {"peer-key-commits": "commits", "peer-key-contributions": "packets", "peer-key-confirmations": "confirmations"}
"""What the server tells, in its order, with the name of the one field."""
RECORDS = {
    "peer-key-commits": (COMMIT_BYTES, (0, 32, 64), SIZE),
    "peer-key-contributions": (PACKET_BYTES, (0, SEALED_BYTES), SIZE - 1),
    "peer-key-confirmations": (CONFIRMATION_BYTES, (0, 32), SIZE),
}
"""Bytes of a record, where its parts begin, and how many there are."""
CELLS = [
    (kind, size * record + start)
    for kind, (size, starts, count) in RECORDS.items()
    for record in range(count)
    for start in starts
]


def records(message: Message) -> bytes:
    data: bytes = getattr(message, TOLD[message.TYPE])
    return data


def retold(message: Message, data: bytes) -> Any:
    return type(message)(**{TOLD[message.TYPE]: data})


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def tell(run: MemoryGroupKey, kind: str, lie: Callable[[Message], Message], to: str = "c0") -> MemoryGroupKey:
    run.say_instead(kind, RELAY, lambda told: [lie(told.message) if told.receiver == to else told.message])
    return run


def the_key(seed: bytes = b"", epoch: int = 0) -> bytes:
    """The key that the members of such a run agree on when nobody lies."""
    (key,) = {output.key for output in memory_group_key(SIZE, seed=seed, epoch=epoch).run().outcome(GroupKey)}
    return bytes(key)


KEYS = {(seed, epoch): the_key(seed, epoch) for seed in (b"", b"other") for epoch in (0, 1)}


def check(run: MemoryGroupKey, key: bytes = KEYS[b"", 0]) -> None:
    """No other key than the one of all contributions, and only after all confirmed; no channel key given away."""
    assert {output.key for output in run.outcome(GroupKey)} <= {key}
    confirmed = {delivery.sender for delivery in run.log if isinstance(delivery.message, ConfirmKey)}
    assert not run.outcome(GroupKey) or confirmed == set(run.agreement.members)
    assert not [delivery for delivery in run.log if isinstance(delivery.message, KeyComplaint)]
    assert all(member.deadline is None for member in run.members.values())


def blames_server(run: MemoryGroupKey, *codes: Code) -> None:
    """c0 ended with one of these codes, and holds nothing but the server responsible."""
    check(run)
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert aborted.culprit == RELAY
    assert aborted.code in codes, aborted
    assert not run.outcome(GroupKey, "c0")


@pytest.mark.threat("server/group-key-bent")
@cases(("kind", "at"), CELLS)
def test_a_bent_record_is_the_fault_of_the_server(kind: str, at: int) -> None:
    run = tell(memory_group_key(SIZE), kind, lambda told: retold(told, flip(records(told), at)))
    blames_server(run.run(), Code.SIGNATURE, Code.KEYS, Code.SECRET)


def check_records_of_another_number_are_refused(kind: str, length: str) -> None:
    size = RECORDS[kind][0]

    def lie(told: Message) -> Message:
        whole = records(told)
        changed = {
            "none": b"", "short": whole[:-1], "long": whole + b"\0", "record less": whole[size:],
            "record more": whole + whole[:size],
        }  # fmt: skip
        return retold(told, changed[length])

    blames_server(tell(memory_group_key(SIZE), kind, lie).run(), Code.SHARES)


def check_records_in_another_order_are_refused(kind: str, first: int) -> None:
    """Every record is bound to its owner, and to its holder where it has one."""
    size, _, count = RECORDS[kind]

    def lie(told: Message) -> Message:
        parts = [records(told)[at * size : (at + 1) * size] for at in range(count)]
        parts[first], parts[first - 1] = parts[first - 1], parts[first]
        return retold(told, b"".join(parts))

    blames_server(tell(memory_group_key(SIZE), kind, lie).run(), Code.SIGNATURE, Code.KEYS, Code.SECRET)


@pytest.mark.threat("server/group-key-bent")
def test_records_of_another_number_order_or_member_are_refused() -> None:
    for kind in TOLD:
        for length in ["none", "short", "long", "record less", "record more"]:
            check_records_of_another_number_are_refused(kind, length)

    for kind in TOLD:
        for first in [0, 1]:
            check_records_in_another_order_are_refused(kind, first)

    run = memory_group_key(SIZE)
    told: dict[str, Message] = {}
    run.say_instead("peer-key-contributions", RELAY, lambda d: told.update({d.receiver: d.message}) or [])
    run.start()
    run.advance()
    # c2's packet in c0's place is its packet for c1.
    swapped = records(told["c0"])[:PACKET_BYTES] + records(told["c1"])[PACKET_BYTES:]
    run.hook = lambda delivery: [delivery]
    run.deliver(Delivery(RELAY, "c0", retold(told["c0"], swapped), None))
    run.settle()
    blames_server(run, Code.SIGNATURE)


def check_records_of_another_epoch_are_refused(kind: str, whole: bool) -> None:
    """All of them, or only those of the last member, which is as honest in either epoch."""
    earlier = memory_group_key(SIZE, epoch=1)
    old = {d.kind: records(d.message) for d in earlier.run().log if d.kind in TOLD and d.receiver == "c0"}
    size = RECORDS[kind][0]
    lie = (lambda told: old[kind]) if whole else (lambda told: records(told)[:-size] + old[kind][-size:])
    run = tell(memory_group_key(SIZE), kind, lambda told: retold(told, lie(told)))
    blames_server(run.run(), Code.SIGNATURE, Code.KEYS, Code.SECRET)


def check_what_was_told_already_is_told_once(kind: str) -> None:
    run = memory_group_key(SIZE)
    run.say_instead(kind, RELAY, lambda told: [told.message] * (1 + (told.receiver == "c0")))
    run.run()
    check(run)
    accepted = kind == "peer-key-confirmations"
    assert [output.code for output in run.outcome(ClientAborted, "c0")] == [Code.UNEXPECTED] * (not accepted)


def check_a_members_own_record_must_be_the_one_it_sent(kind: str) -> None:
    """Even one that it signed itself, as a member would that was made to take part in an epoch twice."""
    run = memory_group_key(SIZE)

    def lie(told: Message) -> Message:
        signing = run.signing["c0"]
        if kind == "peer-key-commits":
            public = AgreementKey(bytes(32)).public
            own = commit_record(run.agreement, 0, signing, channel_key=public, contribution=bytes(32))
        else:
            own = run.members["c0"].data.transcript.confirmation(b"another", signing, 0)
        return retold(told, own + records(told)[len(own) :])

    blames_server(tell(run, kind, lie).run(), Code.KEYS, Code.SECRET)


@pytest.mark.threat("server/group-key-replay")
def test_what_was_told_before_or_of_another_epoch_is_refused() -> None:
    for kind in TOLD:
        for whole in [True, False]:
            check_records_of_another_epoch_are_refused(kind, whole)

    for kind in TOLD:
        check_what_was_told_already_is_told_once(kind)

    for kind in ["peer-key-commits", "peer-key-confirmations"]:
        check_a_members_own_record_must_be_the_one_it_sent(kind)


SPLIT: list[dict[str, Any]] = [
    {"session": bytes(32)},
    {"epoch": 7},
    {"members": ("c0", "c1", "c9")},
    {"members": ("c0", "c1"), "signing_keys": ...},
    {"roster": bytes(32)},
    {"configuration": bytes(32)},
]


@pytest.mark.threat("server/group-key-split")
@cases("changes", SPLIT)
def test_members_that_were_told_different_things_agree_on_nothing(changes: dict[str, Any]) -> None:
    """c1 was told another session, epoch, membership, roster or configuration than c0 and c2."""
    run = memory_group_key(SIZE)
    changes = {key: run.agreement.signing_keys[:2] if value is ... else value for key, value in changes.items()}
    other = GroupKeyMember(
        replace(run.agreement, **changes), "c1", signing=run.signing["c1"], entropy=run.streams.of("x")
    )
    # The relay of this server believes whatever c1 says.
    (commit,) = (output.message for output in other.start(0.0) if isinstance(output, Send))
    record = commit.channel_key + commit.commitment + commit.signature

    def lie(told: Message) -> Message:
        data = records(told)
        return retold(told, data[:COMMIT_BYTES] + record + data[2 * COMMIT_BYTES :])

    blames_server(tell(run, "peer-key-commits", lie).run(), Code.SIGNATURE)


@pytest.mark.threat("server/group-key-split")
def test_a_member_that_commits_twice_for_the_server_splits_nobody() -> None:
    """c2 colludes, and signs one commitment for c0 and another for c1; the server checks nothing."""
    run = memory_group_key(SIZE)
    said: dict[tuple[str, str], Any] = {}
    run.hook = lambda d: said.update({(d.sender, d.kind): d.message}) or []
    run.start()
    run.advance()
    commits = [said[name, "key-commit"] for name in run.agreement.members]
    honest = b"".join(commit.channel_key + commit.commitment + commit.signature for commit in commits)
    second = commit_record(
        run.agreement, 2, run.signing["c2"], channel_key=AgreementKey(bytes(32)).public, contribution=bytes(32)
    )
    run.hook = lambda d: [d] if d.sender == RELAY else said.update({(d.sender, d.kind): d.message}) or []
    for name, last in (("c0", honest[-COMMIT_BYTES:]), ("c1", second), ("c2", honest[-COMMIT_BYTES:])):
        run.deliver(Delivery(RELAY, name, PeerKeyCommits(commits=honest[:-COMMIT_BYTES] + last), None))
    run.advance()
    others = run.agreement.others
    for name, place in (("c0", 0), ("c1", 1)):
        starts = {owner: PACKET_BYTES * others(owner).index(place) for owner in others(place)}
        mine = b"".join(
            said[f"c{owner}", "key-contribution"].packets[start : start + PACKET_BYTES]
            for owner, start in starts.items()
        )
        run.deliver(Delivery(RELAY, name, PeerKeyContributions(packets=mine), None))
        (aborted,) = run.outcome(ClientAborted, name)
        assert (aborted.code, aborted.culprit) == (Code.SIGNATURE, RELAY)


def check_the_server_cannot_put_its_own_channel_key_between_two_members(signer: str) -> None:
    run = memory_group_key(SIZE)
    signing = SigningKey(bytes(32)) if signer == "server" else run.signing["c0"]
    record = commit_record(
        run.agreement, 1, signing, channel_key=AgreementKey(bytes(32)).public, contribution=bytes(32)
    )

    def lie(told: Message) -> Message:
        return retold(told, records(told)[:COMMIT_BYTES] + record + records(told)[2 * COMMIT_BYTES :])

    blames_server(tell(run, "peer-key-commits", lie).run(), Code.SIGNATURE)


@pytest.mark.threat("server/group-key-middle")
def test_the_server_cannot_put_its_own_channel_key_between_two_members() -> None:
    for signer in ["server", "c0"]:
        check_the_server_cannot_put_its_own_channel_key_between_two_members(signer)

    run = memory_group_key(SIZE)
    run.start()
    public = run.members["c1"].data.channel.public
    record = commit_record(run.agreement, 2, run.signing["c2"], channel_key=public, contribution=bytes(32))
    tell(run, "peer-key-commits", lambda told: retold(told, records(told)[:-COMMIT_BYTES] + record))
    run.settle()
    blames_server(run, Code.KEYS)


@pytest.mark.threat("server/group-key-drops")
@cases("kind", TOLD)
@cases("victims", [("c0",), ("c0", "c1"), ("c0", "c1", "c2")])
def test_a_server_that_withholds_ends_in_time(kind: str, victims: tuple[str, ...]) -> None:
    run = memory_group_key(SIZE)
    run.say_instead(kind, RELAY, lambda told: [] if told.receiver in victims else [told.message])
    run.run()
    check(run)
    accepted = SIZE - len(victims) if kind == "peer-key-confirmations" else 0
    assert len(run.outcome(GroupKey)) == accepted
    assert not run.outcome(KeyAgreed)


LIES = st.lists(
    st.tuples(st.sampled_from(sorted(TOLD)), st.integers(0, SIZE - 1), st.integers(0, 4), st.integers(0, 1 << 12)),
    min_size=1,
    max_size=4,
)
EARLIER = {
    seed: {(d.kind, d.receiver): d.message for d in memory_group_key(SIZE, seed=seed, epoch=1).run().log}
    for seed in (b"", b"other")
}
"""What was told in another epoch of the same members, and in another session of others."""


@pytest.mark.threat("server/group-key-split", "server/group-key-bent", "server/group-key-replay")
@settings(max_examples=60, deadline=None)
@given(LIES)
def test_no_mixture_of_lies_makes_two_keys(lies: list[tuple[str, int, int, int]]) -> None:
    run = memory_group_key(SIZE)
    for kind, place, lie, number in lies:
        name, another = f"c{place}", f"c{number % SIZE}"

        def say(told: Delivery, name: str = name, another: str = another, lie: int = lie, n: int = number) -> Any:
            if told.receiver != name:
                return [told.message]
            data = records(told.message)
            return [
                [],
                [EARLIER[b""][told.kind, another]],
                [EARLIER[b"other"][told.kind, another]],
                [retold(told.message, flip(data, n % len(data)))],
                [retold(told.message, data[: n % len(data)] + data[: len(data) - n % len(data)])],
            ][lie]

        run.say_instead(kind, RELAY, say)
    run.run()
    check(run)

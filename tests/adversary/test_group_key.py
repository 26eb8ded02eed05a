"""Group keys: a server that lies, members that cheat and are named, and outsiders that talk into an agreement."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tacit.parties.protections.encryption import Encryption
from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
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
    KeyFailed,
    Transcript,
    commit_record,
)
from tacit.protocol.group_key.events import KeyAgreementStarted
from tacit.protocol.group_key.holder import GroupKeyMember
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
)
from tacit.protocol.group_key.states import KeyLabel, RelayState
from tacit.protocol.session.messages import MESSAGES, Hello
from tacit.protocol.sum.exchange import ClientAborted
from tests.adversary.test_client_floods import raw
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


def remake(message: Message, **fields: Any) -> Any:
    return type(message)(**{name: getattr(message, name) for name in message.__struct_fields__} | fields)


def failed(run: MemoryGroupKey, code: Code, culprit: str) -> None:
    assert [(failed.code, failed.culprits) for failed in run.outcome(KeyFailed)] == [(code, (culprit,))]


BENT: dict[str, tuple[str, Callable[[Any], Any], Code]] = {
    "channel key": ("key-commit", lambda m: remake(m, channel_key=flip(m.channel_key, 0)), Code.SIGNATURE),
    "small order": ("key-commit", lambda m: remake(m, channel_key=bytes(32)), Code.KEYS),
    "commitment": ("key-commit", lambda m: remake(m, commitment=flip(m.commitment, 0)), Code.SIGNATURE),
    "no signature": ("key-commit", lambda m: remake(m, signature=b""), Code.SIGNATURE),
    "packet": ("key-contribution", lambda m: remake(m, packets=flip(m.packets, 0)), Code.SIGNATURE),
    "last signature": ("key-contribution", lambda m: remake(m, packets=flip(m.packets, -1 % len(m.packets))),
                       Code.SIGNATURE),
    "swapped": ("key-contribution", lambda m: remake(m, packets=m.packets[PACKET_BYTES:] + m.packets[:PACKET_BYTES]),
                Code.SIGNATURE),
    "byte less": ("key-contribution", lambda m: remake(m, packets=m.packets[1:]), Code.SHARES),
    "no packets": ("key-contribution", lambda m: remake(m, packets=b""), Code.SHARES),
    "tag": ("confirm-key", lambda m: remake(m, tag=flip(m.tag, 0)), Code.SIGNATURE),
    "signature of tag": ("confirm-key", lambda m: remake(m, signature=flip(m.signature, 0)), Code.SIGNATURE),
    "too early": ("key-commit", lambda m: KeyAccepted(epoch=0), Code.UNEXPECTED),
    "not its to say": ("key-commit", lambda m: PeerKeyConfirmations(confirmations=b""), Code.UNEXPECTED),
}  # fmt: skip


def check_a_member_whose_fault_the_relay_can_see_is_named(case: str) -> None:
    kind, bend, code = BENT[case]
    run = memory_group_key(SIZE)
    run.say_instead(kind, "c1", lambda delivery: [bend(delivery.message)])
    failed(run.run(), code, "c1")
    assert not run.outcome(GroupKey)
    assert {(output.code, output.culprit) for output in run.outcome(ClientAborted)} == {(code, "c1")}


@pytest.mark.threat("client/group-key-malformed")
def test_a_member_whose_fault_the_relay_can_see_is_named() -> None:
    for case in BENT:
        check_a_member_whose_fault_the_relay_can_see_is_named(case)

    run = memory_group_key(SIZE)
    run.start()
    taken = run.members["c0"].data.channel.private
    thief = GroupKeyMember(run.agreement, "c1", signing=run.signing["c1"], entropy=lambda size: taken)
    (send,) = thief.start(0.0)
    run.say_instead("key-commit", "c1", lambda delivery: [send.message])
    run.settle()
    failed(run, Code.KEYS, "c1")


Wrong = Callable[[Transcript, AgreementKey, SigningKey], bytes]


def other_contribution(transcript: Transcript, channel: AgreementKey, signing: SigningKey) -> bytes:
    """c1's packet for c2 with another contribution than committed to."""
    return transcript.packet(channel, signing, bytes(32), owner=1, holder=2)


def unopenable(transcript: Transcript, channel: AgreementKey, signing: SigningKey) -> bytes:
    place = [member.to_bytes(2, "little") for member in (1, 2)]
    noise = bytes(SEALED_BYTES)
    return noise + signing.sign(KeyLabel.SIGN_CONTRIBUTION, transcript.digest, *place, noise)


def cheat(run: MemoryGroupKey, wrong: Wrong) -> None:
    def say(delivery: Delivery) -> list[Message]:
        c1 = run.members["c1"]
        packet = wrong(c1.data.transcript, c1.data.channel, run.signing["c1"])
        assert isinstance(delivery.message, KeyContribution)
        return [KeyContribution(epoch=0, packets=delivery.message.packets[:PACKET_BYTES] + packet)]

    run.say_instead("key-contribution", "c1", say)


def wrong_confirmation(run: MemoryGroupKey, name: str) -> ConfirmKey:
    record = run.relay.data.confirmation(b"another", run.signing[name], run.agreement.places[name])
    return ConfirmKey(epoch=0, tag=record[:32], signature=record[32:])


@pytest.mark.threat("client/group-key-contribution")
@pytest.mark.threat("client/group-key-confirmation")
def test_another_contribution_or_confirmation_names_its_owner() -> None:
    for wrong, code in [(other_contribution, Code.SECRET), (unopenable, Code.SHARES)]:
        run = memory_group_key(SIZE)
        cheat(run, wrong)
        failed(run.run(), code, "c1")
        assert {(output.code, output.culprit) for output in run.outcome(ClientAborted)} == {(code, "c1")}
        assert not run.outcome(GroupKey)

    run = memory_group_key(SIZE)
    run.say_instead("confirm-key", "c1", lambda delivery: [wrong_confirmation(run, "c1")])
    failed(run.run(), Code.SECRET, "c1")
    for honest in ("c0", "c2"):
        assert [(a.code, a.culprit) for a in run.outcome(ClientAborted, honest)] == [(Code.SECRET, "c1")]
    assert not run.outcome(GroupKey)


@pytest.mark.threat("client/group-key-frames")
@cases("kind", ["confirm-key", "key-accepted"])
@cases(
    ("accused", "private", "code"),
    [
        (0, None, Code.SHARES),
        (2, None, Code.SHARES),
        (0, b"\1" * 32, Code.KEYS),
        (1, None, Code.MEMBERS),
        (SIZE, None, Code.MEMBERS),
    ],
)
def test_a_false_complaint_names_who_makes_it(kind: str, accused: int, private: bytes | None, code: Code) -> None:
    run = memory_group_key(SIZE)
    run.start()
    own = run.members["c1"].data.channel.private
    complaint = KeyComplaint(epoch=0, accused=accused, channel_private=own if private is None else private)
    run.say_instead(kind, "c1", lambda delivery: [complaint])
    run.settle()
    failed(run, code, "c1")
    assert len(run.outcome(GroupKey)) == SIZE * (kind == "key-accepted")


@pytest.mark.threat("client/group-key-frames")
@cases(("complaining", "accused"), [("c1", 2), ("c2", 0)])
def test_two_that_cheat_together_frame_nobody(complaining: str, accused: int) -> None:
    """c1 cheats c2, which confirms some key all the same: whichever of them complains then is named itself."""
    run = memory_group_key(SIZE)
    cheat(run, other_contribution)
    run.start()
    private = {name: member.data.channel.private for name, member in run.members.items()}
    run.say_instead("key-complaint", "c2", lambda delivery: [wrong_confirmation(run, "c2")])
    run.say_instead("peer-key-confirmations", RELAY, lambda delivery: [])
    assert run.advance(lambda: run.relay.state is RelayState.KEY_ACCEPT)
    run.hook = lambda delivery: [delivery]
    complaint = KeyComplaint(epoch=0, accused=accused, channel_private=private[complaining])
    run.deliver(Delivery(complaining, RELAY, complaint, None))
    run.settle()
    failed(run, Code.SECRET, complaining)
    assert not run.outcome(GroupKey)


SAID: tuple[Message, ...] = (
    KeyCommit(epoch=0, channel_key=bytes(32), commitment=bytes(32), signature=bytes(64)),
    KeyComplaint(epoch=0, accused=0, channel_private=bytes(32)),
    KeyAccepted(epoch=0),
    KeyAccepted(epoch=7),
)


@pytest.mark.threat("client/group-key-outsider")
@pytest.mark.asyncio
async def test_who_comes_too_late_for_an_agreement(protected: Callable[..., Any]) -> None:
    """Three agree, of whom client-3 says nothing, so that it goes on; client-4 comes meanwhile."""
    federation = protected(encryption=Encryption())
    federation.configuration = structs.replace(federation.configuration, clients=3)
    server = await federation.serve(rounds=1)
    public, hello = federation.keys["server"].curve_public, Hello(roster=federation.roster.hash)

    async def greet(name: str, socket: Any) -> Link:
        first = Link(name, "server", NO_SESSION, Traffic(), MESSAGES)
        await socket.send_multipart(first.frames(hello, round=0))
        async with asyncio.timeout(federation.seconds):
            while len(frames := await socket.recv_multipart()) < 2:
                pass
        return Link(name, "server", decode(frames, MESSAGES).envelope.session, Traffic(), MESSAGES)

    for name in ("client-1", "client-2"):
        federation.join(name)
    async with (
        raw(federation.keys["client-3"], public, federation.address) as silent,
        raw(federation.keys["client-4"], public, federation.address) as outsider,
    ):
        await greet("client-3", silent)
        await federation.event("server", KeyAgreementStarted)
        link = await greet("client-4", outsider)
        for message in SAID:
            await outsider.send_multipart(link.frames(message, round=0))
        # What nobody can read is the next that the server says something of.
        await outsider.send_multipart([b"noise"] * 2)
        await federation.event("server", MessageRefused)
        assert [fields.code for fields in federation.events("server", MessageRefused)] == ["MALFORMED"]
        assert not server.done()
        assert len(federation.events("server", KeyAgreementStarted)) == 1
    await federation.vanish(server)

"""The group key: members that cheat. The relay names who is at fault, and nobody whom a member only accuses."""

from collections.abc import Callable
from typing import Any

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import AgreementKey, SigningKey
from tacit.protocol.group_key.agreement import PACKET_BYTES, SEALED_BYTES, GroupKey, KeyFailed, Transcript
from tacit.protocol.group_key.holder import GroupKeyMember
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    KeyAccepted,
    KeyComplaint,
    KeyContribution,
    PeerKeyConfirmations,
)
from tacit.protocol.group_key.states import KeyLabel, RelayState
from tacit.protocol.sum.exchange import ClientAborted
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.group_keys import RELAY, MemoryGroupKey, memory_group_key

SIZE = 3


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


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

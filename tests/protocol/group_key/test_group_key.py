"""Agreements on a group key among honest members, and with members that leave, are late, or never belonged to it."""

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import pytest

from tacit.protocol.core.codec import decode, encode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.link import Link, Traffic
from tacit.protocol.core.machine import Send
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.core.primitives import framed
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreed, KeyFailed
from tacit.protocol.group_key.messages import KeyCommit, KeyComplaint
from tacit.protocol.group_key.states import KeyLabel, MemberState
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.exchange import ClientAborted
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.group_keys import RELAY, MemoryGroupKey, memory_group_key

SAID = ["key-commit", "key-contribution", "confirm-key", "key-accepted"]
"""What a member says, in its order: one message in each phase of the relay."""
SIZE = 4


def secrets_of(run: MemoryGroupKey) -> dict[str, Any]:
    return {name: member.data for name, member in run.members.items()}


def failed(run: MemoryGroupKey, code: Code, *culprits: str) -> KeyFailed:
    """The one result of the relay: it failed with this code, and the rest is offered."""
    result: KeyFailed
    (result,) = run.outcome(KeyFailed)
    assert (result.code, result.culprits) == (code, culprits), result
    assert result.remaining == tuple(name for name in run.agreement.members if name not in culprits)
    return result


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@cases("size", [2, 3, 7])
def test_all_members_accept_the_one_key(size: int) -> None:
    run = memory_group_key(size, seed=b"honest")
    run.start()
    secrets = secrets_of(run)
    run.settle()
    commits = [delivery.message for delivery in run.log if isinstance(delivery.message, KeyCommit)]
    agreement, names = run.agreement, [f"c{member}" for member in range(size)]
    parts = (b"\5", agreement.session, bytes(4), agreement.roster, agreement.configuration, "\n".join(names).encode())
    context = sha256(framed(KeyLabel.KEY_AGREEMENT, *parts))
    records = b"".join(commit.channel_key + commit.commitment + commit.signature for commit in commits)
    salt = sha256(framed(KeyLabel.KEY_TRANSCRIPT, context, records))
    secret = b"".join(secrets[name].contribution for name in names)
    # HKDF of RFC 5869, one block.
    key = hmac.digest(hmac.digest(salt, secret, "sha256"), framed(KeyLabel.GROUP_KEY, b"") + b"\1", "sha256")
    assert run.outcome(GroupKey) == [GroupKey(0, key, tuple(names), salt)] * size
    assert run.outcome(KeyAgreed) == [KeyAgreed(0, tuple(names), salt)]
    assert [party.state.name for party in run.parties.values()] == ["COMPLETED"] + ["ACCEPTED"] * size
    assert [party.deadline for party in run.parties.values()] == [None] * (size + 1)
    said = b"".join(encode_structure(delivery.message) for delivery in run.log)
    assert len(run.log) == 7 * size
    for hidden in (key, *(s.contribution for s in secrets.values()), *(s.channel.private for s in secrets.values())):
        assert hidden not in said


def key_of(run: MemoryGroupKey) -> bytes:
    (key,) = {output.key for output in run.run().outcome(GroupKey)}
    return bytes(key)


def test_a_run_replays_and_every_epoch_has_a_key_of_its_own() -> None:
    first, again, other = (memory_group_key(3, seed=b"replay") for _ in range(3))
    other = MemoryGroupKey(replace(other.agreement, epoch=1), other.signing, other.streams)  # The same contributions.
    assert key_of(first) == key_of(again) != key_of(other)
    assert first.log == again.log


def test_agreements_that_are_possible_and_their_contexts() -> None:
    for changes in [
        {"session": bytes(32)},
        {"epoch": 1},
        {"members": ("c0", "c2", "c1")},
        {"roster": bytes(32)},
        {"configuration": bytes(32)},
    ]:
        agreement = memory_group_key(3).agreement
        assert replace(agreement, **changes).context != agreement.context

    for changes, reason in [
        ({"members": ("c0",), "signing_keys": (b"0",)}, "2 to 10000 members, not 1"),
        ({"members": ("c0", "c1", "c1")}, "distinct names"),
        ({"signing_keys": (b"0", b"1", b"1")}, "distinct names"),
        ({"signing_keys": (b"0", b"1")}, "a signing key each"),
        ({"epoch": -1}, "epoch -1"),
        ({"epoch": 2**31 + 1}, "epoch 2147483649"),
    ]:
        with pytest.raises(LocalProtocolError, match=reason):
            replace(memory_group_key(3).agreement, **changes)

    for epoch in (0, 2**31):
        assert replace(memory_group_key(3).agreement, epoch=epoch).epoch == epoch

    for size in [2, 10_000]:
        members = tuple(f"c{member}" for member in range(size))
        keys = tuple(member.to_bytes(32, "little") for member in range(size))
        assert replace(memory_group_key(3).agreement, members=members, signing_keys=keys).size == size


@cases("killed", [None, "c1"])
def test_secrets_are_never_shown_and_forgotten_at_the_end(killed: str | None) -> None:
    run = memory_group_key(3, seed=b"secret")
    run.start()
    assert run.advance(lambda: all(m.state is MemberState.AWAIT_PEER_CONFIRMATIONS for m in run.members.values()))
    held = run.members["c0"].data
    complaint = KeyComplaint(epoch=0, accused=1, channel_private=held.channel.private)
    shown = f"{held!r} {complaint!r} {GroupKey(0, held.key, (), bytes(32))!r}"
    for secret in (held.key, held.contribution, held.channel.private):
        assert repr(secret)[2:-1] not in shown
    if killed:
        run.kill(killed)
    run.settle()
    assert [member.data is not None for name, member in run.members.items() if name != killed].count(True) == 0


@cases("kind", SAID)
@cases("killed", [True, False])
def test_who_leaves_or_is_silent_is_named_and_the_rest_agrees_without_it(kind: str, killed: bool) -> None:
    run = memory_group_key(SIZE, seed=b"leaves")

    def silence(delivery: Delivery) -> list[Message]:
        if killed:
            run.kill("c2")
        return []

    run.say_instead(kind, "c2", silence)
    result = failed(run.run(), Code.LEFT if killed else Code.TIMEOUT, "c2")
    assert "c2" in result.detail
    last = kind == "key-accepted"
    assert len(run.outcome(GroupKey)) == SIZE * last
    told = [(output.code, output.culprit) for output in run.outcome(ClientAborted)]
    assert told == [(result.code, "c2")] * (0 if last else SIZE - killed)
    keys = tuple(run.agreement.signing_keys[run.agreement.places[name]] for name in result.remaining)
    agreement = replace(run.agreement, epoch=1, members=result.remaining, signing_keys=keys)
    following = MemoryGroupKey(agreement, run.signing, run.streams).run()
    assert [(agreed.epoch, agreed.members) for agreed in following.outcome(KeyAgreed)] == [(1, result.remaining)]
    assert len({output.key for output in (*following.outcome(GroupKey), *run.outcome(GroupKey))}) == 1 + last


def test_who_is_late_or_gone_is_named_and_who_is_gone_is_told_nothing() -> None:
    run = memory_group_key(SIZE)
    run.hook = lambda delivery: [] if delivery.sender in ("c0", "c3") else [delivery]
    assert "KEY_COMMIT from c0, c3" in failed(run.run(), Code.TIMEOUT, "c0", "c3").detail

    run = memory_group_key(SIZE)
    run.start()
    outputs = run.relay.drop("c2", Code.LEFT, "gone", run.now)
    assert [output.to for output in outputs if isinstance(output, Send)] == ["c0", "c1", "c3"]


@cases("answered", [True, False])
def test_who_gives_up_is_named_with_its_reason(answered: bool) -> None:
    run = memory_group_key(SIZE)
    abort = Abort(code=Code.LOCAL, detail="disk full", culprit="c1")
    run.say_instead("confirm-key", "c1", lambda delivery: [delivery.message, abort][not answered :])
    assert failed(run.run(), Code.LEFT, "c1").detail == "c1: it gave up: disk full"
    # It is not told what it knows.
    assert [(output.code, output.culprit) for output in run.outcome(ClientAborted, "c1")] == [(Code.TIMEOUT, RELAY)]


@cases("kind", [*SAID, "abort", "key-complaint"])
def test_who_is_no_member_of_this_attempt_changes_nothing(kind: str) -> None:
    """It joined too late, or was left out; the next attempt may include it."""
    run, other = memory_group_key(3), memory_group_key(3)
    said: dict[str, Message] = {delivery.kind: delivery.message for delivery in other.run().log}
    said["abort"] = Abort(code=Code.LOCAL, detail="", culprit="")
    said["key-complaint"] = KeyComplaint(epoch=0, accused=0, channel_private=bytes(32))
    run.start()
    place = SAID.index(kind) if kind in SAID else 2
    assert run.advance(
        lambda: run.relay.state.name == ("KEY_COMMIT", "KEY_CONTRIBUTE", "KEY_CONFIRM", "KEY_ACCEPT")[place]
    )
    link = Link("stranger", RELAY, run.agreement.session, Traffic(), MESSAGES)
    (refused,) = run.relay.receive("stranger", decode(link.frames(said[kind], round=0), MESSAGES), run.now)
    assert isinstance(refused, MessageRefused)
    assert (refused.member, refused.code) == ("stranger", "MEMBERS")
    assert run.relay.drop("stranger", Code.LEFT, "gone", run.now) == []
    run.settle()
    assert run.outcome(KeyAgreed)


@cases("kind", SAID)
def test_a_repetition_is_ignored(kind: str) -> None:
    run = memory_group_key(3)
    run.say_instead(kind, "c0", lambda delivery: [delivery.message, delivery.message])
    assert run.run().outcome(KeyAgreed)
    assert run.relay.ignored == 1


def test_a_member_that_is_told_nothing_gives_up() -> None:
    run = memory_group_key(3)
    run.hook = lambda delivery: [] if delivery.receiver == "c0" else [delivery]
    detail = "no word from server: still to await what the others commit to"
    assert run.run().outcome(ClientAborted, "c0") == [ClientAborted(Code.TIMEOUT, detail, RELAY)]
    with pytest.raises(LocalProtocolError, match="cannot start in state ABORTED"):
        run.members["c0"].start(0.0)

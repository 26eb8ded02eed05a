"""Vectors, complaints and returned shares that break a rule: their senders are named, the others lose nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tacit.protocol.aggregation_results import ServerAborted, Summed
from tacit.protocol.errors import Code
from tacit.protocol.machine import Report
from tacit.protocol.members import encode_members
from tacit.protocol.messages import AdvertiseKeys, MaskedInput, Message, UnmaskShares
from tacit.protocol.primitives import Label
from tacit.protocol.transcript import survivors_signed
from tacit.simulate.memory import Delivery, MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
CLIENTS = 5
CHEAT = "c1"
MEMBER = 1
OTHERS = ("c0", "c2", "c3", "c4")
modes = pytest.mark.parametrize("active", [True, False], ids=["active", "semi-honest"])


def cheating(active: bool, kind: type[Message], change: Change, *, by: tuple[str, ...] = (CHEAT,)) -> MemorySum:
    """A finished sum in which these clients said `change` of their honest message."""
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender in by and isinstance(delivery.message, kind):
            return [replace(delivery, message=change(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    return run


def named(run: MemorySum, phase: str, code: Code, *members: str) -> None:
    assert [(drop.member, drop.phase, drop.code) for drop in run.server.drops] == [
        (member, phase, code) for member in members or (CHEAT,)
    ]
    told = {d.receiver: d.message for d in run.log if d.sender == "server" and d.kind == "abort"}
    assert all(told[member].code is code and told[member].culprit == member for member in members or (CHEAT,))  # type: ignore[attr-defined]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@modes
@pytest.mark.parametrize("payload", [b"", bytes(19), bytes(16), bytes(24), None])
def test_a_vector_of_another_length(payload: bytes | None, active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    run.hook = lambda d: [replace(d, payload=payload)] if (d.sender, d.kind) == (CHEAT, "masked-input") else [d]
    run.run()
    assert summed(run).survivors == OTHERS
    named(run, "MASKED_INPUT", Code.VECTOR)


@modes
def test_the_second_of_two_vectors_is_ignored(active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    run.hook = lambda d: [d, replace(d, payload=bytes(20))] if (d.sender, d.kind) == (CHEAT, "masked-input") else [d]
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert (run.server.ignored, run.server.drops) == (1, [])


@modes
def test_the_second_of_two_adverts_is_ignored(active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    second = AdvertiseKeys(channel_key=bytes(32), mask_key=bytes(32), choices=b"", signature=b"")
    run.hook = lambda d: [d, replace(d, message=second)] if (d.sender, d.kind) == (CHEAT, "advertise-keys") else [d]
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert (run.server.ignored, run.server.drops) == (1, [])


@modes
@pytest.mark.parametrize("kind", ["advertise-keys", "share-keys", "masked-input", "unmask-shares"])
def test_a_late_message_is_ignored(kind: str, active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    held: list[Delivery] = []

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind) == (CHEAT, kind):
            held.append(delivery)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    late = run.server.ignored
    run.hook = lambda delivery: [delivery]
    run.deliver(held[0])
    assert run.server.ignored == late + 1
    assert summed(run).survivors == (run.agreement.cohort if kind == "unmask-shares" else OTHERS)
    named(run, {"advertise-keys": "ADVERTISE_KEYS", "share-keys": "SHARE_KEYS", "masked-input": "MASKED_INPUT"}.get(
        kind, "UNMASK"), Code.TIMEOUT)  # fmt: skip


# Complaints and returned shares


@modes
def test_a_complaint_about_shares_not_given(active: bool, audit: Audit) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == "c4" and delivery.kind == "share-keys":
            run.kill("c4")
            return []
        if delivery.sender == CHEAT and delivery.kind == "masked-input":
            return [replace(delivery, message=MaskedInput(complaints=encode_members((4,), CLIENTS)))]
        return [delivery]

    run.hook = hook
    run.run()
    drop = next(drop for drop in run.server.drops if drop.member == CHEAT)
    assert (drop.phase, drop.code, drop.included) == ("MASKED_INPUT", Code.MEMBERS, False)
    outcome = audit(run)
    # Three are left; the active threshold is four.
    assert isinstance(outcome, ServerAborted if active else Summed)


@modes
def test_a_false_complaint_is_reported_with_both_names(active: bool, summed: ExactSum) -> None:
    complaint = MaskedInput(complaints=encode_members((2,), CLIENTS))
    run = cheating(active, MaskedInput, lambda run, message: complaint)
    assert summed(run).survivors == run.agreement.cohort
    reports = [report.fields for report in run.outcome(Report, "server") if report.event == "complaint"]
    assert reports == [{"by": CHEAT, "against": "c2"}]
    # It then returns the share all the same, and so is out; its vector stays in.
    named(run, "UNMASK", Code.SHARES)
    assert run.server.drops[0].included


RETURNS: dict[str, Callable[[Any], UnmaskShares]] = {
    "a share altered": lambda m: msgspec.structs.replace(m, shares=flipped(m.shares, 50)),
    "shares swapped": lambda m: msgspec.structs.replace(m, shares=m.shares[36:72] + m.shares[:36] + m.shares[72:]),
    "shares cut": lambda m: msgspec.structs.replace(m, shares=m.shares[:-1]),
    "a share too many": lambda m: msgspec.structs.replace(m, shares=m.shares + bytes(36)),
    "an owner left out": lambda m: UnmaskShares(owners=encode_members((0, 1, 2, 3), CLIENTS), shares=m.shares[:-36]),
    "owners renamed": lambda m: msgspec.structs.replace(m, owners=encode_members((0, 1, 2, 3), CLIENTS)),
}


@modes
@pytest.mark.parametrize("name", RETURNS)
def test_bad_returns_exclude_the_holder(name: str, active: bool, audit: Audit, summed: ExactSum) -> None:
    run = cheating(active, UnmaskShares, lambda run, message: RETURNS[name](message))
    assert summed(run).survivors == run.agreement.cohort
    named(run, "UNMASK", Code.SHARES)
    many = ("c1", "c2") if active else ("c1", "c2", "c3")
    run = cheating(active, UnmaskShares, lambda run, message: RETURNS[name](message), by=many)
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert outcome.code is Code.THRESHOLD
    named(run, "UNMASK", Code.SHARES, *many)


@modes
def test_the_wrong_kind_of_share(active: bool, summed: ExactSum) -> None:
    # The share of the key in the place of that of the seed: an honest server does not take what it must not have.
    keys: dict[str, bytes] = {}

    def change(run: MemorySum, message: UnmaskShares) -> UnmaskShares:
        return UnmaskShares(owners=message.owners, shares=keys["c0"] + message.shares[36:])

    run = memory_sum(CLIENTS, active=active, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == CHEAT and delivery.kind == "masked-input":
            keys["c0"] = run.clients[CHEAT]._held[0].key
        if delivery.sender == CHEAT and isinstance(delivery.message, UnmaskShares):
            return [replace(delivery, message=change(run, delivery.message))]
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    named(run, "UNMASK", Code.SHARES)


def test_a_signature_over_other_survivors(summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=True, seed=b"cheats")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == CHEAT and delivery.kind == "confirm-survivors":
            survivors = encode_members((0, 1, 2, 3), run.agreement.size)
            parts = survivors_signed(run.clients[CHEAT]._sharing, MEMBER, survivors)
            signature = run.signing[CHEAT].sign(Label.SIGN_SURVIVORS, *parts)
            return [replace(delivery, message=msgspec.structs.replace(delivery.message, signature=signature))]
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    named(run, "CONSISTENCY_CHECK", Code.SIGNATURE)


@modes
def test_what_a_client_holds_against_others_is_no_fault_of_its_own(active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"cheats")
    run.hook = lambda d: (
        [replace(d, message=msgspec.structs.replace(d.message, adverts=b""))]
        if (d.receiver, d.kind) == (CHEAT, "peer-keys")
        else [d]
    )
    run.run()
    assert summed(run).survivors == OTHERS
    (drop,) = run.server.drops
    assert (drop.member, drop.code) == (CHEAT, Code.LEFT)
    assert drop.detail.startswith("it gave up: ")

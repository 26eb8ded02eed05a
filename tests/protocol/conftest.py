"""What every secure sum in these tests must satisfy, whoever cheats or drops out."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import inspect

from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import Label
from tacit.protocol.core.roster import split_records
from tacit.protocol.sum import agreement as agreement_module
from tacit.protocol.sum.agreement import packet_signed
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.messages import AnswerComplaints, MaskedInput, PeerKeys, ShareKeys, UnmaskShares
from tacit.protocol.sum.sharing import PACKET_BYTES, commit_share
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.shamir import SHARE_BYTES
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum

Audit = Callable[[MemorySum], Summed | ServerAborted]


def listed(bitmap: bytes, size: int) -> list[int]:
    """The members of a set; bits that nobody owns, which an honest receiver refuses, are passed over."""
    return [member for member in range(min(size, 8 * len(bitmap))) if bitmap[member // 8] >> member % 8 & 1]


Opened = dict[int, dict[Label, dict[int, bytes]]]
"""By owner and kind: the shares that left their holders, by holder."""


def opened_shares(run: MemorySum) -> Opened:
    """The shares of either kind that left their holders; which kind it is follows from the commitments."""
    agreement = run.agreement
    index = agreement.cohort.index
    commitments: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    opened: Opened = defaultdict(lambda: {SumLabel.KEY_SHARE: {}, SumLabel.SEED_SHARE: {}})
    for delivery in run.log:
        message = delivery.message
        if isinstance(message, ShareKeys):
            for place, holder in enumerate(listed(message.holders, agreement.size)):
                packet = message.packets[place * PACKET_BYTES :]
                commitments[index(delivery.sender), holder] = packet[:32], packet[32:64]
        elif isinstance(message, UnmaskShares):
            holder = index(delivery.sender)
            for place, owner in enumerate(listed(message.owners, agreement.size)):
                share = message.shares[place * SHARE_BYTES : (place + 1) * SHARE_BYTES]
                for label, committed in zip(
                    (SumLabel.KEY_SHARE, SumLabel.SEED_SHARE), commitments.get((owner, holder), (b"", b"")), strict=True
                ):
                    if commit_share(label, agreement, owner=owner, holder=holder, share=share) == committed:
                        opened[owner][label][holder] = share
        elif isinstance(message, AnswerComplaints):
            owner = index(delivery.sender)
            for start in range(0, len(message.shares), 2 * SHARE_BYTES):
                both = message.shares[start : start + SHARE_BYTES], message.shares[start + SHARE_BYTES :][:SHARE_BYTES]
                for holder in range(agreement.size):
                    for place, (label, share) in enumerate(zip(opened[owner], both, strict=True)):
                        committed = commitments.get((owner, holder), (b"", b""))[place]
                        if commit_share(label, agreement, owner=owner, holder=holder, share=share) == committed:
                            opened[owner][label][holder] = share
    return opened


def spoiled(
    run: MemorySum, delivery: Delivery, holders: Mapping[int, Collection[int]], place: int = 70
) -> list[Delivery]:
    """What is under way, but by owner the packets for these holders have another bit at a place, and are signed so."""
    message, owner = delivery.message, run.agreement.places.get(delivery.sender)
    if not isinstance(message, ShareKeys) or owner not in holders:
        return [delivery]
    told = (d.message for d in run.log if d.receiver == delivery.sender)
    digest = next(said.digest for said in told if isinstance(said, PeerKeys))
    packets = split_records(message.packets, PACKET_BYTES, listed(message.holders, run.agreement.size))
    for holder in holders[owner]:
        packet = packets[holder]
        packets[holder] = packet[:place] + bytes([packet[place] ^ 1]) + packet[place + 1 :]
    signatures = b""
    for holder, packet in packets.items() if run.agreement.active else ():
        parts = packet_signed(run.agreement, digest, owner=owner, holder=holder, packet=packet)
        signatures += run.signing[delivery.sender].sign(SumLabel.SIGN_SHARES, *parts)
    said = msgspec.structs.replace(message, packets=b"".join(packets.values()), signatures=signatures)
    return [replace(delivery, message=said)]


def check(run: MemorySum) -> Summed | ServerAborted:
    """The server's one outcome: an exact sum or a coded end, and never both secrets of anybody."""
    outcomes = [*run.outcome(Summed), *run.outcome(ServerAborted)]
    assert len(outcomes) == 1
    assert all(name == run.agreement.server for name, output in run.outputs if output is outcomes[0])
    said = {run.agreement.places[d.sender]: d.message for d in run.log if isinstance(d.message, MaskedInput)}
    complaining = {member for member, message in said.items() if any(message.complaints)}
    for kinds in opened_shares(run).values():
        assert kinds[SumLabel.KEY_SHARE].keys() & kinds[SumLabel.SEED_SHARE].keys() <= complaining
        assert min(map(len, kinds.values())) < run.agreement.parameters.threshold
    outcome: Summed | ServerAborted = outcomes[0]
    if isinstance(outcome, Summed):
        assert outcome.survivors
        np.testing.assert_array_equal(outcome.total, run.plain_sum(outcome.survivors))
        assert {drop.member for drop in run.server.drops if drop.included} <= set(outcome.survivors)
    return outcome


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a vector have 16 words of four bytes."""
    monkeypatch.setattr(agreement_module, "CHUNK_BYTES", 64)


@pytest.fixture
def spoil() -> Callable[..., list[Delivery]]:
    return spoiled


@pytest.fixture
def audit() -> Audit:
    return check


@pytest.fixture
def summed() -> Callable[[MemorySum], Summed]:
    def check_sum(run: MemorySum) -> Summed:
        outcome = check(run)
        assert isinstance(outcome, Summed), outcome
        return outcome

    return check_sum


@pytest.fixture
def opened() -> Callable[[MemorySum], Opened]:
    return opened_shares


def plainest(kind: inspect.Type) -> Any:
    match kind:
        case inspect.BytesType():
            return bytes(kind.min_length or 0)
        case inspect.IntType():
            return kind.ge or 0
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
        case inspect.VarTupleType():
            return ()
        case inspect.EnumType():
            return next(iter(kind.cls))
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.UnionType():
            return plainest(kind.types[0])
        case inspect.StructType():
            return kind.cls(**{field.name: plainest(field.type) for field in kind.fields})
    raise NotImplementedError(f"no plainest value of {kind}")


@pytest.fixture(scope="session")
def plain_message() -> Callable[[type[Message]], Message]:
    """A well-formed message of any type, of the first or smallest values."""

    def make(kind: type[Message]) -> Message:
        fields = inspect.type_info(kind).fields  # type: ignore[attr-defined]
        return kind(**{field.name: plainest(field.type) for field in fields})

    return make

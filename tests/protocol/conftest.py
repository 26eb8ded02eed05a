"""What every secure sum in these tests must satisfy, whoever cheats or drops out."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import inspect

from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import Label
from tacit.protocol.sum.messages import ShareKeys, UnmaskShares
from tacit.protocol.sum.results import ServerAborted, Summed
from tacit.protocol.sum.sharing import PACKET_BYTES, commit_share
from tacit.secagg.shamir import SHARE_BYTES
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
    opened: Opened = defaultdict(lambda: {Label.KEY_SHARE: {}, Label.SEED_SHARE: {}})
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
                    (Label.KEY_SHARE, Label.SEED_SHARE), commitments.get((owner, holder), (b"", b"")), strict=True
                ):
                    if commit_share(label, agreement, owner=owner, holder=holder, share=share) == committed:
                        opened[owner][label][holder] = share
    return opened


def check(run: MemorySum) -> Summed | ServerAborted:
    """The server's one outcome: an exact sum or a coded end, and never both secrets of anybody."""
    outcomes = [*run.outcome(Summed), *run.outcome(ServerAborted)]
    assert len(outcomes) == 1
    assert all(name == run.agreement.server for name, output in run.outputs if output is outcomes[0])
    for kinds in opened_shares(run).values():
        assert not kinds[Label.KEY_SHARE].keys() & kinds[Label.SEED_SHARE].keys()
        assert min(map(len, kinds.values())) < run.agreement.parameters.threshold
    outcome: Summed | ServerAborted = outcomes[0]
    if isinstance(outcome, Summed):
        assert outcome.survivors
        np.testing.assert_array_equal(outcome.total, run.plain_sum(outcome.survivors))
        assert {drop.member for drop in run.server.drops if drop.included} <= set(outcome.survivors)
    return outcome


@pytest.fixture
def audit() -> Audit:
    """Check a finished sum and return its outcome."""
    return check


@pytest.fixture
def summed() -> Callable[[MemorySum], Summed]:
    """Check a sum that must have succeeded and return it."""

    def check_sum(run: MemorySum) -> Summed:
        outcome = check(run)
        assert isinstance(outcome, Summed), outcome
        return outcome

    return check_sum


@pytest.fixture
def opened() -> Callable[[MemorySum], Opened]:
    """Which shares of whom left their holders."""
    return opened_shares


def plainest(kind: inspect.Type) -> Any:
    """The first or smallest value of a field's type."""
    match kind:
        case inspect.BytesType():
            return bytes(kind.min_length or 0)
        case inspect.IntType():
            return kind.ge or 0
        case inspect.StrType():
            return ""
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

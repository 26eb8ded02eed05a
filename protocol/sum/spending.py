"""A client's statement of its spent privacy budget, so that a client restored from a backup cannot spend it twice.

A client states in every advert, signed by itself, the cost of all its rounds, this one included. The server and the
cohort keep its highest statement. Each of them returns it: the server in its welcome, and members that share with the
client sealed beside the shares, under keys that the client has made for this round, so that no earlier answer can be
replayed. The highest counts. Nobody can raise it, because it is signed by its client.

Statements are sent if the configuration says so (`Configuration.spending`), that is, if a round has a cost. Otherwise
they take no bytes.

A statement is bound to the lineage of the roster and to a signing key. The former keys in the roster
(`Member.previous`) identify a client with new keys or another name.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Result
from tacit.protocol.core.primitives import SIGNATURE_BYTES, SigningKey, verify
from tacit.protocol.core.roster import Member
from tacit.protocol.sum.states import SumLabel

_AMOUNT: Final = struct.Struct("<d")
STATEMENT_BYTES: Final = _AMOUNT.size + SIGNATURE_BYTES
NOTHING_SPENT: Final = bytes(STATEMENT_BYTES)
"""Placeholder for a client without a budget, or without a known statement. Nobody signs it."""

Statement = Annotated[bytes, Meta(min_length=STATEMENT_BYTES, max_length=STATEMENT_BYTES)]
Spent = Annotated[bytes, Meta(max_length=STATEMENT_BYTES)]
"""Field of a message: a statement, or empty if the configuration has none."""


@dataclass(frozen=True)
class SpendingSeen(Result):
    """Statements received in a sum, each with the name of its client; a client also receives its own."""

    statements: tuple[tuple[str, bytes], ...]


def seen_in(statements: Iterable[tuple[str, bytes]]) -> tuple[SpendingSeen, ...]:
    """The report of statements, each with the name of its client: empty if there are none."""
    found = tuple((name, said) for name, said in statements if said not in (b"", NOTHING_SPENT))
    return (SpendingSeen(found),) if found else ()


def state_spending(signing: SigningKey, lineage: bytes, amount: float) -> bytes:
    """STATEMENT_BYTES: the amount as a little-endian float64, and a signature."""
    if not amount:
        return NOTHING_SPENT
    packed = _AMOUNT.pack(amount)
    return packed + signing.sign(SumLabel.SIGN_SPENDING, lineage, packed)


def amount_of(statement: bytes) -> float:
    """The amount in a statement, or in its placeholder."""
    amount: float = _AMOUNT.unpack(statement[: _AMOUNT.size])[0]
    return amount


def check_size(statement: bytes, *, spending: bool) -> None:
    """Refuse (SIGNATURE) a statement if the configuration has none, and a missing one if it has them."""
    if len(statement) != (size := STATEMENT_BYTES if spending else 0):
        raise RemoteProtocolError(Code.SIGNATURE, f"a statement of spending has {size} bytes, not {len(statement)}")


def check_statement(statement: bytes, lineage: bytes, signing_public: bytes) -> None:
    """Refuse (SIGNATURE) a statement with an invalid signature or amount."""
    if statement == NOTHING_SPENT:
        return
    if not 0 < amount_of(statement) < math.inf:
        raise RemoteProtocolError(Code.SIGNATURE, "a statement of spending has no amount above 0")
    packed, signature = statement[: _AMOUNT.size], statement[_AMOUNT.size :]
    verify(signing_public, signature, SumLabel.SIGN_SPENDING, lineage, packed)


def highest(statements: Iterable[bytes], lineage: bytes, member: Member) -> float:
    """The highest amount that one of the member's keys has signed; other statements are ignored."""
    best = 0.0
    for statement in statements:
        for key in member.signing_keys if amount_of(statement) > best else ():
            with suppress(RemoteProtocolError):
                check_statement(statement, lineage, key)
                best = amount_of(statement)
                break
    return best


def held_of(held: Mapping[bytes, bytes], member: Member) -> bytes:
    """The highest statement of a member. held: by signing key, statements that were checked."""
    return max((held.get(key, NOTHING_SPENT) for key in member.signing_keys), key=amount_of)


def news(held: Mapping[bytes, bytes], seen: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Checked statements, each with its signing key, that are higher than the held ones."""
    return {key: statement for key, statement in seen if amount_of(statement) > amount_of(held.get(key, NOTHING_SPENT))}

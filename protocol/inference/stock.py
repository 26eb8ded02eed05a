"""Material that outlives its session: what both owners have laid by, and what a session may take of it.

A stock is the material of one session that was dealt for passes to come: a piece for each. Each owner keeps its part
with a counter, and marks a piece as used before anything is opened that depends on it. Sessions begin at the larger of
both counters. So a piece serves once, if one side was killed between its mark and the opening, or was restored from an
older copy; what both do not have is of no use to either.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tacit.protocol.inference.messages import NOTHING, Stock


@dataclass(frozen=True)
class Held:
    """What an owner has laid by for the sessions with one other."""

    stock: Stock
    terms: bytes
    """Digest of the terms on which it was dealt, and with them of the commitment to the model."""


def stock_on(terms: bytes, held: Held | None) -> Stock:
    """What serves on these terms; nothing if it was dealt on others."""
    return held.stock if held is not None and held.terms == terms else NOTHING


def joint(own: Stock, peers: Stock) -> Stock | None:
    """What is left of the same stock to both; None if there is nothing: then neither has any use for what it has."""
    if (own.id, own.batch) != (peers.id, peers.batch):
        return None
    found = msgspec.structs.replace(own, next=max(own.next, peers.next), end=min(own.end, peers.end))
    return found if found.next < found.end else None


def fitting(stock: Stock | None, *, images: int, batch: int) -> tuple[int, int]:
    """Images of a session and of its passes: as wanted, or as many as the stock serves if its passes are not larger."""
    if stock is None or stock.batch > min(batch, images):
        return images, min(batch, images)
    return min(images // stock.batch, stock.end - stock.next) * stock.batch, stock.batch


def serves(stock: Stock | None, *, images: int, batch: int) -> bool:
    """Whether all passes of a session take their material from the stock; otherwise none does."""
    if stock is None or batch != stock.batch:
        return False
    return images % batch == 0 and images <= (stock.end - stock.next) * batch

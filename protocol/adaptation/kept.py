"""Kept shares of a data owner's images: the passes that made them, and the state that both owners resume from.

An owner's record is bound to the terms and to the passes that made its shares: its *chain* is a hash over session,
number and images of every pass. Shares of different passes do not combine, so both owners compare how far their chains
agree before use, and each keeps the state before its last pass. Both count uses; a use is persisted before anything is
opened in it, at the data owner first. An owner restored from an older state has a chain or a count that does not match,
and the session ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tacit.protocol.adaptation.states import AdaptationLabel
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import digest

NOTHING: Final = bytes(32)
"""Chain before the first pass."""
_RESTORED: Final = (
    "one of both has been restored from an older state: remove the folder `kept` of either owner, and images pass the "
    "blocks again"
)
Prefix = tuple[int, bytes]
"""Number of leading images, and the chain of the passes in which they went through the blocks."""


@dataclass
class KeptRecord:
    terms_digest: bytes = b""
    """Digest of the terms of the passes; empty before the first agreement."""
    last: Prefix = (0, NOTHING)
    before: Prefix = (0, NOTHING)
    """Prefix before the last pass."""
    uses: int = 0
    """Training steps that these shares served, or may have served."""

    def of(self, terms_digest: bytes) -> KeptRecord:
        """Return the record under these terms, without anything made under other terms."""
        return self if terms_digest == self.terms_digest else KeptRecord(terms_digest)

    def compare(self, images: int, chain: bytes, uses: int) -> Prefix:
        """Return the prefix that both share, at the model owner; the arguments are the data owner's record. The empty
        prefix sends all images through the blocks again."""
        if not images or not self.last[0]:
            return 0, NOTHING
        if not 0 <= uses - self.uses <= 1:
            raise RemoteProtocolError(
                Code.SESSION, f"it counts {uses} uses of kept shares, here there are {self.uses}: {_RESTORED}"
            )
        if (images, chain) in (self.last, self.before):
            return images, chain
        if images > self.last[0]:
            return self.last
        raise RemoteProtocolError(Code.SESSION, f"it keeps other shares of {images} images than here: {_RESTORED}")

    def check(self, images: int, chain: bytes, uses: int) -> None:
        """Refuse a common prefix, stated by the model owner, that the data owner's record contradicts."""
        if not images:
            return
        if (images, chain) not in (self.last, self.before) or not 0 <= self.uses - uses <= 1:
            raise RemoteProtocolError(
                Code.SESSION, f"it goes on behind {images} images and {uses} uses of kept shares: {_RESTORED}"
            )

    def resume(self, terms_digest: bytes, common: Prefix, uses: int) -> None:
        """Resume from the common prefix. uses: the data owner's count."""
        self.terms_digest, self.last = terms_digest, common
        self.uses = uses if common[0] else 0
        if self.before[0] >= common[0]:
            self.before = (0, NOTHING)

    def use(self) -> None:
        """One step more is on these shares."""
        self.uses += 1

    def add(self, session: bytes, number: int, images: int) -> None:
        """Record that the pass of this number put so many more images through the blocks."""
        place = number.to_bytes(8, "big") + images.to_bytes(8, "big")
        chained = digest(AdaptationLabel.KEPT, self.last[1], session, place)
        self.last, self.before = (self.last[0] + images, chained), self.last

"""Shares that both owners keep of a data owner's images: which passes they are of, and where both go on.

What an owner keeps is bound to the terms and to the passes in which it was made: its *chain* is a hash over session,
number and images of every pass. Shares of different passes would be no shares of anything, so both compare how far
their chains agree before they use them, and each remembers the state before its last pass. Both count the uses; a use
is on the disk before anything is opened in it, at the data owner first. Whoever was restored from an older state has a
chain or a count that does not fit, and the session ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tacit.protocol.adaptation.states import AdaptationLabel
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import digest

NOTHING: Final = bytes(32)
"""The chain before the first pass."""
_RESTORED: Final = (
    "one of both has been restored from an older state: remove the folder `kept` of either owner, and images pass the "
    "blocks again"
)
Prefix = tuple[int, bytes]
"""How many images, the first ones, and the chain of the passes in which they went through the blocks."""


@dataclass
class KeptRecord:
    terms_digest: bytes = b""
    """The digest of the terms that the passes followed; empty before the first agreement."""
    last: Prefix = (0, NOTHING)
    before: Prefix = (0, NOTHING)
    """The same before the last pass."""
    uses: int = 0
    """Steps of learning that these shares served, or may have served."""

    def of(self, terms_digest: bytes) -> KeptRecord:
        """What is kept under these terms: nothing of what was made under other ones."""
        return self if terms_digest == self.terms_digest else KeptRecord(terms_digest)

    def compare(self, images: int, chain: bytes, uses: int) -> Prefix:
        """At the model owner: what both have in common, where the data owner says that it has so much. Nothing where
        either has nothing: all images pass the blocks then."""
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
        """At the data owner: refuse what the model owner says that both have in common, unless it is so."""
        if not images:
            return
        if (images, chain) not in (self.last, self.before) or not 0 <= self.uses - uses <= 1:
            raise RemoteProtocolError(
                Code.SESSION, f"it goes on behind {images} images and {uses} uses of kept shares: {_RESTORED}"
            )

    def resume(self, terms_digest: bytes, common: Prefix, uses: int) -> None:
        """Go on behind this, which both have. uses: as the data owner counts them."""
        self.terms_digest, self.last = terms_digest, common
        self.uses = uses if common[0] else 0
        if self.before[0] >= common[0]:
            self.before = (0, NOTHING)

    def use(self) -> None:
        """One step more is on these shares."""
        self.uses += 1

    def add(self, session: bytes, number: int, images: int) -> None:
        """So many more images have passed the blocks, in the pass of this number."""
        place = number.to_bytes(8, "big") + images.to_bytes(8, "big")
        chained = digest(AdaptationLabel.KEPT, self.last[1], session, place)
        self.last, self.before = (self.last[0] + images, chained), self.last

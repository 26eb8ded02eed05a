"""What all members of one secure sum hold alike before its first message.

An Agreement is made by every party for itself, from its own roster, the configuration it accepted, and the model it
received. Its `context` is a hash over all of that; it is part of every signature and the salt of every derived key. A
server that tells two clients different things thereby gets masks that do not cancel: noise, and no sum.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from tacit.protocol.core.codec import VERSION
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.members import Members, encode_members, split_records
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.primitives import SIGNATURE_BYTES, Label, digest, verify
from tacit.secagg.graph import GraphParameters
from tacit.secagg.ring import Ring

WORDS_ALIGNED: Final = 16
"""Chunks start at multiples of 16 words, so that each starts at a block of the AES keystream whatever the word size."""
UPLOADS: Final = 4
"""Members whose long vectors are fetched at the same time."""
TRANSFER_LIMIT: Final = 10
"""A transfer that moves may take this many times phase_seconds."""


def words_of_a_chunk(ring: Ring) -> int:
    """How many words a chunk of a vector has that is not the last: as many aligned ones as fit CHUNK_BYTES."""
    return CHUNK_BYTES // ring.wire_bytes // WORDS_ALIGNED * WORDS_ALIGNED


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One secure sum: who, what ring, which rules, and the hashes that tie everything to it."""

    session: bytes
    round: int
    server: str
    cohort: tuple[str, ...]
    """Names of the selected clients, in roster order; inside the sum a member is its position here."""
    signing_keys: tuple[bytes, ...]
    """Ed25519 public keys of the cohort, from the roster."""
    active: bool
    regular: bool
    parameters: GraphParameters
    fewest_survivors: int = 0
    """The fewest clients in a sum that is opened; without groups the threshold is another bound."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Members that are in the sum all or none, by the roster; none where everybody is in it alone."""
    ring: Ring
    length: int
    """Ring words of the vector."""
    roster: bytes
    configuration: bytes
    model: bytes
    """Hashes of the roster, the configuration and the model."""
    group_key: bytes = b""
    """Hash of the transcript of the group key that the members use in this round, if they have one."""
    secure: bool = True
    """Whether vectors are masked; if not, the server sees each of them."""
    single_vectors: bool = False
    """Whether the server hands out each vector beside the sum; never where vectors are masked."""
    train_seconds: float
    phase_seconds: float

    @property
    def size(self) -> int:
        """Members of the cohort."""
        return len(self.cohort)

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of every member by its name."""
        return {name: place for place, name in enumerate(self.cohort)}

    @cached_property
    def group_of(self) -> dict[int, tuple[int, ...]]:
        """The group of every member; without groups each is one of its own."""
        groups = self.groups or tuple((member,) for member in range(self.size))
        return {member: group for group in groups for member in group}

    @property
    def fewest_summed(self) -> int:
        """The fewest clients in a sum that is opened.

        Without groups whoever answers is in the sum. With them who is left out answers too: the threshold then counts
        answers only.
        """
        return self.fewest_survivors if self.groups else max(self.fewest_survivors, self.parameters.threshold)

    @cached_property
    def _group_sets(self) -> tuple[Members, ...]:
        return tuple(Members(encode_members(group, self.size), self.size) for group in self.groups)

    def check_whole(self, members: Members) -> None:
        """Refuse a set of members that cuts a group in two."""
        if any(members.cuts(group) for group in self._group_sets):
            raise RemoteProtocolError(Code.MEMBERS, "there are some members of a group without the others of it")

    @cached_property
    def context(self) -> bytes:
        """32 bytes that depend on everything above."""
        return digest(
            Label.ROUND,
            VERSION.to_bytes(1, "little"),
            self.session,
            self.round.to_bytes(4, "little"),
            self.roster,
            self.configuration,
            self.model,
            "\n".join(self.cohort).encode(),
            self.parameters.neighbours.to_bytes(4, "little"),
            self.parameters.threshold.to_bytes(4, "little"),
            self.group_key,
        )

    def sharing_digest(self, adverts: bytes, sharers: bytes) -> bytes:
        """The transcript up to SHARE_KEYS: context, digest of the adverts, who shared. Salt of every mask."""
        return digest(Label.SHARING, self.context, adverts, sharers)

    def check_signature(self, member: int, signature: bytes, label: Label, *parts: bytes) -> None:
        """Refuse what the member did not sign in active mode, and any signature in semi-honest mode."""
        if self.active:
            verify(self.signing_keys[member], signature, label, *parts)
        elif signature:
            raise RemoteProtocolError(Code.SIGNATURE, "a message is signed in semi-honest mode")

    def split_signatures(self, signatures: bytes, members: Collection[int]) -> dict[int, bytes]:
        """One for each of these members, unchecked; of no bytes in semi-honest mode. Refuses any other length."""
        return split_records(signatures, SIGNATURE_BYTES if self.active else 0, members, Code.SIGNATURE)

    @property
    def most_complaints(self) -> int:
        """Complaints of one member that are answered: so many holders may lie and have not both of its secrets.

        Against a server that lies 2t > holders + liars must hold, which is what the threshold was chosen for; with one
        that follows the protocol, fewer than t shares of the other kind come together.
        """
        threshold = self.parameters.threshold
        # In a complete graph a member holds a share of its own secrets too.
        holders = self.parameters.neighbours + (not self.regular)
        return max(0, 2 * threshold - holders - 1) if self.active else threshold - 1

    @property
    def chunk_words(self) -> int:
        """Words in every chunk of the vector but the last."""
        return words_of_a_chunk(self.ring)

    @property
    def chunks(self) -> int:
        """Chunks of the vector; at least one."""
        return max(1, -(-self.length // self.chunk_words))

    @property
    def input_seconds(self) -> float:
        """Longest time that vectors take, once all are ready: those of several chunks are fetched UPLOADS at a time."""
        return self.phase_seconds * (1 if self.chunks == 1 else TRANSFER_LIMIT * -(-self.size // UPLOADS))

    def chunk_span(self, chunk: int) -> slice:
        """The words of a chunk."""
        start = chunk * self.chunk_words
        return slice(start, min(start + self.chunk_words, self.length))

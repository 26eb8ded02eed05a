"""What client and server of a secure sum compute alike: docs/spec/secure-aggregation.md up to the phases."""

import math
import struct
from dataclasses import dataclass
from typing import Any

from constants import (
    ADVERTS,
    CHUNK_BYTES,
    PACKET_BYTES,
    PAIRWISE_SEED,
    RING_SEED,
    ROUND,
    SHARING,
    SIGN_ADVERT,
    SIGN_SPENDING,
    SIGN_SURVIVORS,
    STATEMENT_BYTES,
    TRANSFER_LIMIT,
    UPLOADS,
    VERSION,
    WORDS_ALIGNED,
    Refused,
    require,
)
from encoding import write_members
from parameters import PlainPacking, word_bytes
from primitives import check_public_key, derive, digest, order, sign, u8, u16, u32, verify, x25519


@dataclass(frozen=True)
class Terms:
    session: bytes
    round: int
    server: str
    cohort: list[str]
    signing_keys: list[bytes]
    mode: str
    graph: str
    neighbours: int
    threshold: int
    ring_bits: int
    length: int
    roster: bytes
    configuration: bytes
    model: bytes
    train_seconds: float
    phase_seconds: float
    fewest_survivors: int
    lineage: bytes = b""
    spending: bool = False
    group_key: bytes = b""
    groups: tuple[tuple[int, ...], ...] = ()
    plain: PlainPacking | None = None

    def group_of(self, member: int) -> list[int]:
        return next((list(group) for group in self.groups if member in group), [member])

    def check_whole(self, members: list[int]) -> None:
        require(all(set(self.group_of(member)) <= set(members) for member in members), "MEMBERS")

    @property
    def fewest_summed(self) -> int:
        return self.fewest_survivors if self.groups else max(self.fewest_survivors, self.threshold)

    @property
    def size(self) -> int:
        return len(self.cohort)

    @property
    def active(self) -> bool:
        return self.mode == "active"

    @property
    def secure(self) -> bool:
        return self.mode != "none"

    @property
    def chosen(self) -> bool:
        """Clients choose their holders."""
        return self.active and self.graph == "regular"

    @property
    def context(self) -> bytes:
        return digest(
            ROUND,
            u8(VERSION),
            self.session,
            u32(self.round),
            self.roster,
            self.configuration,
            self.model,
            "\n".join(self.cohort).encode("ascii"),
            u32(self.neighbours),
            u32(self.threshold),
            self.group_key,
        )

    @property
    def chunk_words(self) -> int:
        return CHUNK_BYTES // word_bytes(self.ring_bits) // WORDS_ALIGNED * WORDS_ALIGNED

    @property
    def chunks(self) -> int:
        return max(1, -(-self.length // self.chunk_words))

    def words_in(self, chunk: int) -> int:
        return min(self.chunk_words, self.length - chunk * self.chunk_words)

    @property
    def input_seconds(self) -> float:
        return self.phase_seconds * (1 if self.chunks == 1 else TRANSFER_LIMIT * math.ceil(self.size / UPLOADS))

    def bitmap(self, members: Any) -> bytes:
        return write_members(list(members), self.size)

    def names(self, members: Any) -> list[str]:
        return [self.cohort[member] for member in sorted(members)]

    @property
    def statement_bytes(self) -> int:
        return STATEMENT_BYTES if self.spending else 0

    @property
    def packet_bytes(self) -> int:
        return PACKET_BYTES + self.statement_bytes

    @property
    def record_bytes(self) -> int:
        return 64 + (2 * self.neighbours if self.chosen else 0) + self.statement_bytes + (64 if self.active else 0)

    def check_signature(self, member: int, signature: bytes, label: bytes, *parts: bytes) -> None:
        """In semi-honest mode the field must be empty."""
        if self.active:
            verify(self.signing_keys[member], signature, label, *parts)
        else:
            require(signature == b"", "SIGNATURE")

    @property
    def signature_bytes(self) -> int:
        return 64 if self.active else 0

    def cut_signatures(self, signatures: bytes, members: list[int]) -> dict[int, bytes]:
        """One for each of the members; in semi-honest mode of no bytes."""
        size = self.signature_bytes
        require(len(signatures) == size * len(members), "SIGNATURE")
        return {member: signatures[size * at : size * (at + 1)] for at, member in enumerate(members)}

    @property
    def most_complaints(self) -> int:
        if not self.active:
            return self.threshold - 1
        holders = self.neighbours + 1 if self.graph == "complete" else self.neighbours
        return max(0, 2 * self.threshold - holders - 1)

    def check_choices(self, member: int, choices: bytes) -> list[int]:
        require(len(choices) == (2 * self.neighbours if self.chosen else 0), "MEMBERS")
        members = [int.from_bytes(choices[at : at + 2], "little") for at in range(0, len(choices), 2)]
        require(members == sorted(set(members)) and all(m < self.size and m != member for m in members), "MEMBERS")
        return members


@dataclass(frozen=True)
class Advert:
    """One record of the list of public keys."""

    channel_key: bytes
    mask_key: bytes
    choices: bytes
    spent: bytes
    signature: bytes

    @classmethod
    def cut(cls, record: bytes, terms: Terms) -> "Advert":
        end = len(record) - terms.signature_bytes
        middle = end - terms.statement_bytes
        return cls(record[:32], record[32:64], record[64:middle], record[middle:end], record[end:])

    @property
    def record(self) -> bytes:
        return self.channel_key + self.mask_key + self.choices + self.spent + self.signature

    def check_keys(self) -> None:
        check_public_key(self.channel_key)
        check_public_key(self.mask_key)

    def check_signature(self, terms: Terms, member: int) -> None:
        signed = self.channel_key + self.mask_key + self.choices + self.spent
        terms.check_signature(member, self.signature, SIGN_ADVERT, terms.context, u16(member), signed)
        require(len(self.spent) == terms.statement_bytes, "SIGNATURE")
        if terms.spending:
            check_statement(self.spent, terms.lineage, terms.signing_keys[member])


def amount_of(statement: bytes) -> float:
    return float(struct.unpack("<d", statement[:8])[0])


def state_spending(private: bytes, lineage: bytes, amount: float) -> bytes:
    packed = struct.pack("<d", amount)
    return packed + sign(private, SIGN_SPENDING, lineage, packed) if amount else bytes(STATEMENT_BYTES)


def check_statement(statement: bytes, lineage: bytes, public: bytes) -> None:
    if statement != bytes(STATEMENT_BYTES):
        require(0 < amount_of(statement) < math.inf, "SIGNATURE")
        verify(public, statement[8:], SIGN_SPENDING, lineage, statement[:8])


def highest(statements: list[bytes], lineage: bytes, keys: list[bytes]) -> float:
    """The highest amount that one of these keys has stated."""
    found = [0.0]
    for statement in statements:
        for key in keys:
            try:
                check_statement(statement, lineage, key)
                found.append(amount_of(statement))
            except Refused:
                continue
    return max(found)


def held_of(held: dict[bytes, bytes], keys: list[bytes]) -> bytes:
    return max((held.get(key, bytes(STATEMENT_BYTES)) for key in keys), key=amount_of)


def adverts_digest(terms: Terms, advertised: bytes, records: bytes) -> bytes:
    return digest(ADVERTS, terms.context, advertised, records)


def sharing_digest(terms: Terms, adverts: bytes, sharers: Any) -> bytes:
    return digest(SHARING, terms.context, adverts, terms.bitmap(sharers))


def cut_records(records: bytes, size: int, members: list[int]) -> dict[int, bytes]:
    require(len(records) == size * len(members), "SHARES")
    return {member: records[size * at : size * (at + 1)] for at, member in enumerate(members)}


def signed_packet(terms: Terms, adverts: bytes, owner: int, holder: int, packet: bytes) -> tuple[bytes, ...]:
    return terms.context, adverts, u16(owner) + u16(holder), packet


def signed_complaint(sharing: bytes, owner: int, holder: int) -> tuple[bytes, ...]:
    return sharing, u16(owner) + u16(holder)


def signed_survivors(terms: Terms, member: int, signature: bytes, sharing: bytes, survivors: Any) -> None:
    terms.check_signature(member, signature, SIGN_SURVIVORS, sharing, u16(member), terms.bitmap(survivors))


@dataclass(frozen=True)
class Neighbourhood:
    holders: list[int]
    owners: list[int]
    peers: list[int]
    known: list[int]


def neighbourhood(
    terms: Terms, member: int, advertised: list[int], adverts: bytes, choices: dict[int, list[int]]
) -> Neighbourhood:
    """Whom a member has to do with; `choices` are those of the members whose adverts are at hand."""
    if terms.graph == "complete":
        holders = owners = list(advertised)
        peers = [m for m in advertised if m != member]
    elif terms.chosen:
        holders = [m for m in choices[member] if m in advertised]
        owners = [m for m in advertised if member in choices.get(m, [])]
        peers = sorted({*holders, *owners})
    else:
        holders = owners = peers = ring_neighbours(terms, member, advertised, adverts)
    return Neighbourhood(holders, owners, peers, sorted({member, *holders, *owners, *peers}))


def ring_neighbours(terms: Terms, member: int, advertised: list[int], adverts: bytes) -> list[int]:
    if terms.neighbours >= len(advertised) - 1:
        return [m for m in advertised if m != member]
    ring = order(advertised, digest(RING_SEED, terms.context, adverts))
    place = ring.index(member)
    steps = range(1, terms.neighbours // 2 + 1)
    return sorted(ring[(place + way * step) % len(ring)] for step in steps for way in (1, -1))


def pairwise_mask(private: bytes, public: bytes, sharing: bytes, member: int, peer: int) -> tuple[bytes, int]:
    """(seed, sign) of the mask of `member` towards `peer`."""
    low, high = min(member, peer), max(member, peer)
    seed = derive(x25519(private, public), PAIRWISE_SEED, sharing, u16(low) + u16(high))
    return seed, 1 if member > peer else -1

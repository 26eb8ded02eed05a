"""The agreement of a secure sum: its context, public keys, neighbourhoods, pairwise masks, and signed contents.

Every party makes an Agreement for itself, from its own roster, the configuration that it accepted, and the model that
it received. Its `context` is part of every signature and the salt of every derived key: if a server sends two clients
different inputs, their masks do not cancel. docs/spec/secure-aggregation.md has the three graphs.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.primitives import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    AgreementKey,
    Label,
    SigningKey,
    check_public_key,
    derive,
    digest,
    verify,
)
from tacit.protocol.core.roster import Members, encode_members, split_records
from tacit.protocol.sum.messages import AdvertiseKeys
from tacit.protocol.sum.spending import STATEMENT_BYTES, check_size, check_statement
from tacit.protocol.sum.states import VERSION, SumLabel
from tacit.secagg.graph import GraphParameters, ring_order
from tacit.secagg.keystream import Mask, Usage
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Ring
from tacit.secagg.threads import map_in_threads

WORDS_ALIGNED: Final = 16
"""Chunks start at multiples of 16 words, so that each starts at a block of the AES keystream whatever the word size."""
UPLOADS: Final = 4
"""Members whose long vectors are fetched at the same time."""
TRANSFER_LIMIT: Final = 10
"""A transfer that makes progress may take this many times phase_seconds."""


def words_of_a_chunk(ring: Ring) -> int:
    """Words of a chunk of a vector, except the last: as many aligned ones as fit CHUNK_BYTES."""
    return CHUNK_BYTES // ring.wire_bytes // WORDS_ALIGNED * WORDS_ALIGNED


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """One secure sum: members, ring, rules, and the hashes that bind everything to it."""

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
    """Fewest clients in an opened sum; without groups the threshold is another bound."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Groups of members that are in the sum all or none, by the roster; empty without groups."""
    ring: Ring
    length: int
    """Words of the vector."""
    plain: PlainPacking | None = None
    """Layout of unmasked vectors, each of which the server sees; None with masks."""
    roster: bytes
    configuration: bytes
    model: bytes
    """Hashes of the roster, the configuration and the model."""
    lineage: bytes = b""
    """Lineage of the roster, which statements of spending are bound to."""
    spending: bool = False
    """Whether there are statements of spending, in adverts and beside shares."""
    group_key: bytes = b""
    """Hash of the transcript of the members' group key in this round, if they have one."""
    single_vectors: bool = False
    """Whether the server outputs each vector beside the sum; never with masks."""
    train_seconds: float
    phase_seconds: float

    @property
    def secure(self) -> bool:
        return self.plain is None

    @property
    def size(self) -> int:
        return len(self.cohort)

    @property
    def signature_bytes(self) -> int:
        return SIGNATURE_BYTES if self.active else 0

    @property
    def statement_bytes(self) -> int:
        return STATEMENT_BYTES if self.spending else 0

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of every member by its name."""
        return {name: place for place, name in enumerate(self.cohort)}

    @cached_property
    def group_of(self) -> dict[int, tuple[int, ...]]:
        """The group of every member; without groups each is its own."""
        groups = self.groups or tuple((member,) for member in range(self.size))
        return {member: group for group in groups for member in group}

    @property
    def fewest_summed(self) -> int:
        """The fewest clients in an opened sum.

        Without groups every client that answers is in the sum. With groups excluded clients answer too: the threshold
        then counts answers only."""
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
        """32 bytes that depend on all fields above."""
        return digest(
            SumLabel.ROUND,
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
        """The transcript up to SHARE_KEYS: context, digest of the adverts, sharers. Salt of every mask."""
        return digest(SumLabel.SHARING, self.context, adverts, sharers)

    def check_signature(self, member: int, signature: bytes, label: Label, *parts: bytes) -> None:
        """Refuse a wrong signature of the member in active mode, and any signature in semi-honest mode."""
        if self.active:
            verify(self.signing_keys[member], signature, label, *parts)
        elif signature:
            raise RemoteProtocolError(Code.SIGNATURE, "a message is signed in semi-honest mode")

    def check_signatures(self, label: Label, signed: Sequence[tuple[int, bytes, tuple[bytes, ...]]]) -> None:
        """The same for members, their signatures and the signed parts, on all cores."""
        map_in_threads(lambda one: self.check_signature(one[0], one[1], label, *one[2]), signed, worth=4)

    def split_signatures(self, signatures: bytes, members: Collection[int]) -> dict[int, bytes]:
        """One for each of these members, unchecked; empty in semi-honest mode. Refuses any other length."""
        return split_records(signatures, self.signature_bytes, members, Code.SIGNATURE)

    @property
    def most_complaints(self) -> int:
        """Most complaints of one member that are answered: so many malicious holders do not have both of its secrets.

        Against a malicious server 2t > holders + colluders must hold, which the choice of threshold ensures; with a
        semi-honest one, fewer than t shares of the other kind come together."""
        threshold = self.parameters.threshold
        # In a complete graph a member holds a share of its own secrets too.
        holders = self.parameters.neighbours + (not self.regular)
        return max(0, 2 * threshold - holders - 1) if self.active else threshold - 1

    @cached_property
    def chunk_words(self) -> int:
        """Words in every chunk of the vector but the last."""
        return words_of_a_chunk(self.ring)

    @cached_property
    def chunks(self) -> int:
        """Chunks of the vector; at least one."""
        return max(1, -(-self.length // self.chunk_words))

    @property
    def input_seconds(self) -> float:
        """Longest time of the vectors' transfer, once all are ready: those of several chunks are fetched UPLOADS at a
        time."""
        return self.phase_seconds * (1 if self.chunks == 1 else TRANSFER_LIMIT * -(-self.size // UPLOADS))

    def chunk_span(self, chunk: int) -> slice:
        start = chunk * self.chunk_words
        return slice(start, min(start + self.chunk_words, self.length))


def pairwise_mask(own: AgreementKey, other: bytes, sharing: bytes, member: int, peer: int) -> Mask:
    """The mask of `member` towards `peer`: the later one adds, the earlier one subtracts, so that the pair cancels."""
    low, high = sorted((member, peer))
    info = low.to_bytes(2, "little") + high.to_bytes(2, "little")
    seed = derive(own.agree(other), SumLabel.PAIRWISE_SEED, salt=sharing, info=info)
    return Mask(seed, Usage.PAIRWISE_MASK, 1 if member > peer else -1)


def owner_and_holder(owner: int, holder: int) -> bytes:
    return owner.to_bytes(2, "little") + holder.to_bytes(2, "little")


def packet_signed(agreement: Agreement, adverts: bytes, *, owner: int, holder: int, packet: bytes) -> tuple[bytes, ...]:
    """Content of an owner's signature over the packet of one holder."""
    return agreement.context, adverts, owner_and_holder(owner, holder), packet


def complaint_signed(sharing: bytes, *, owner: int, holder: int) -> tuple[bytes, ...]:
    """Content of a holder's signature over its complaint about an owner."""
    return sharing, owner_and_holder(owner, holder)


def survivors_signed(sharing: bytes, member: int, survivors: bytes) -> tuple[bytes, ...]:
    """Content of a signature over the bitmap of survivors."""
    return sharing, member.to_bytes(2, "little"), survivors


@dataclass(frozen=True)
class Neighbourhood:
    """The relations of one member, each in rising order."""

    holders: tuple[int, ...]
    """Holders of shares of its secrets."""
    owners: tuple[int, ...]
    """Owners whose shares it holds."""
    peers: tuple[int, ...]
    """Members with whom it shares a pairwise mask."""

    def known(self, member: int) -> tuple[int, ...]:
        """All members whose keys this one needs, itself included."""
        # Holders of its shares, and owners of shares that it holds, are peers; it may hold its own.
        return tuple(sorted((member, *self.peers)))


class Graph:
    """The neighbourhoods among the members that advertised.

    advertised: in rising order, with a fast `in`. choices: in an active regular graph the holders that members named:
    of all members on the server, of the included ones on a client; otherwise empty."""

    def __init__(
        self,
        agreement: Agreement,
        advertised: Collection[int],
        adverts_digest: bytes,
        choices: Mapping[int, tuple[int, ...]],
    ) -> None:
        self._agreement = agreement
        self._advertised = advertised
        self._digest = adverts_digest
        self._choices = choices

    def of(self, member: int) -> Neighbourhood:
        return self.each((member,))[member]

    def each(self, members: tuple[int, ...]) -> dict[int, Neighbourhood]:
        """The neighbourhoods of these members."""
        agreement, everybody = self._agreement, tuple(self._advertised)
        if not agreement.regular:
            return {member: Neighbourhood(everybody, everybody, _without(everybody, member)) for member in members}
        if not agreement.active:
            around = zip(members, self._around(members), strict=True)
            return {member: Neighbourhood(others, others, others) for member, others in around}
        found = {}
        for member in members:
            holders = tuple(holder for holder in self._choices[member] if holder in self._advertised)
            owners = self._owners(member)
            found[member] = Neighbourhood(holders, owners, tuple(sorted({*holders, *owners})))
        return found

    def _around(self, members: tuple[int, ...]) -> list[tuple[int, ...]]:
        order, place = self._ring
        neighbours = self._agreement.parameters.neighbours
        if neighbours >= order.size - 1:
            return [_without(tuple(self._advertised), member) for member in members]
        half = np.arange(1, neighbours // 2 + 1)
        places = place[np.array(members), np.newaxis] + np.concatenate((half, -half))
        return list(map(tuple, np.sort(order[places % order.size], axis=1).tolist()))

    @cached_property
    def _ring(self) -> tuple[np.ndarray, np.ndarray]:
        seed = digest(SumLabel.RING_SEED, self._agreement.context, self._digest)
        order = ring_order(np.array(tuple(self._advertised), np.int64), seed)
        place = np.zeros(self._agreement.size, np.int64)
        place[order] = np.arange(order.size)
        return order, place

    def _owners(self, holder: int) -> tuple[int, ...]:
        holders, owners = self._choices_by_holder
        low, high = np.searchsorted(holders, (holder, holder + 1))
        return tuple(owners[low:high].tolist())

    @cached_property
    def _choices_by_holder(self) -> tuple[np.ndarray, np.ndarray]:
        """Every choice as a holder and its owner: holders rising, and owners rising for each of them."""
        choosers = sorted(self._choices)
        holders = np.array([self._choices[owner] for owner in choosers], np.int64)
        owners = np.repeat(np.array(choosers, np.int64), holders.shape[1])
        order = np.argsort(holders, axis=None, kind="stable")
        return holders.ravel()[order], owners[order]


def choose_holders(agreement: Agreement, member: int, entropy: Entropy) -> bytes:
    """A uniform choice of holders among the others, as the bytes of an advert; empty if the graph needs none."""
    if not (agreement.regular and agreement.active):
        return b""
    others = np.delete(np.arange(agreement.size), member)
    chosen = ring_order(others, entropy(32))[: agreement.parameters.neighbours]
    return np.sort(chosen).astype("<u2").tobytes()


def read_choices(agreement: Agreement, member: int, choices: bytes) -> tuple[int, ...]:
    """The holders that a member named; refuses any other number, order, or a member that cannot hold."""
    expected = 2 * agreement.parameters.neighbours if agreement.regular and agreement.active else 0
    if len(choices) != expected:
        raise RemoteProtocolError(Code.MEMBERS, f"an advert names holders in {expected} bytes, not {len(choices)}")
    holders = struct.unpack(f"<{len(choices) // 2}H", choices)
    if holders and (list(holders) != sorted(set(holders)) or holders[-1] >= agreement.size or member in holders):
        raise RemoteProtocolError(
            Code.MEMBERS, "an advert names holders out of order, twice, outside the cohort, or itself"
        )
    return holders


def _without(members: tuple[int, ...], member: int) -> tuple[int, ...]:
    return tuple(other for other in members if other != member)


@dataclass(frozen=True)
class Advert:
    """The keys of one member for one round."""

    channel_key: bytes
    mask_key: bytes
    choices: bytes
    signature: bytes
    spent: bytes = b""

    @property
    def signed(self) -> bytes:
        return self.channel_key + self.mask_key + self.choices + self.spent

    @property
    def record(self) -> bytes:
        """Fixed-size encoding within a list of adverts."""
        return self.signed + self.signature

    def message(self) -> AdvertiseKeys:
        return AdvertiseKeys(
            channel_key=self.channel_key,
            mask_key=self.mask_key,
            choices=self.choices,
            spent=self.spent,
            signature=self.signature,
        )


def sign_advert(
    agreement: Agreement,
    member: int,
    signing: SigningKey,
    *,
    channel_key: bytes,
    mask_key: bytes,
    choices: bytes,
    spent: bytes = b"",
) -> Advert:
    """An advert; signed in active mode."""
    advert = Advert(channel_key, mask_key, choices, b"", spent)
    if not agreement.active:
        return advert
    parts = _signed_parts(agreement, member, advert.signed)
    return replace(advert, signature=signing.sign(SumLabel.SIGN_ADVERT, *parts))


def check_advert(agreement: Agreement, member: int, message: AdvertiseKeys) -> tuple[Advert, tuple[int, ...]]:
    """The advert and the holders it names; refuses invalid keys, choices, statement of spending, or signature."""
    advert = Advert(message.channel_key, message.mask_key, message.choices, message.signature, message.spent)
    check_public_key(advert.channel_key)
    check_public_key(advert.mask_key)
    choices = read_choices(agreement, member, advert.choices)
    parts = _signed_parts(agreement, member, advert.signed)
    agreement.check_signature(member, advert.signature, SumLabel.SIGN_ADVERT, *parts)
    check_size(advert.spent, spending=agreement.spending)
    if agreement.spending:
        check_statement(advert.spent, agreement.lineage, agreement.signing_keys[member])
    return advert, choices


def record_bytes(agreement: Agreement) -> int:
    choices = 2 * agreement.parameters.neighbours if agreement.regular and agreement.active else 0
    return 2 * KEY_BYTES + choices + agreement.statement_bytes + agreement.signature_bytes


def split_adverts(agreement: Agreement, records: bytes, members: tuple[int, ...]) -> dict[int, Advert]:
    """The adverts of these members, unchecked; refuses any other length."""
    size = record_bytes(agreement)
    spent_end = size - agreement.signature_bytes
    choices_end = spent_end - agreement.statement_bytes
    return {
        member: Advert(
            record[:KEY_BYTES],
            record[KEY_BYTES : 2 * KEY_BYTES],
            record[2 * KEY_BYTES : choices_end],
            record[spent_end:],
            record[choices_end:spent_end],
        )
        for member, record in split_records(records, size, members, Code.KEYS).items()
    }


def refuse_equal_keys(adverts: Mapping[int, Advert]) -> None:
    """Refuse a list in which any two public keys are equal."""
    keys = [key for advert in adverts.values() for key in (advert.channel_key, advert.mask_key)]
    if len(set(keys)) != len(keys):
        raise RemoteProtocolError(Code.KEYS, "two public keys of the round are equal")


def adverts_digest(agreement: Agreement, adverts: Mapping[int, Advert]) -> bytes:
    """32 bytes over the advertising members and their adverts."""
    members = sorted(adverts)
    return digest(
        SumLabel.ADVERTS,
        agreement.context,
        encode_members(members, agreement.size),
        b"".join(adverts[member].record for member in members),
    )


def _signed_parts(agreement: Agreement, member: int, body: bytes) -> tuple[bytes, bytes, bytes]:
    return agreement.context, member.to_bytes(2, "little"), body

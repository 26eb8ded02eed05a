"""Operations on the primitives of the secure sum: nothing here has a state."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from tacit.protocol.core.primitives import (
    AgreementKey,
    Label,
    SigningKey,
    check_public_key,
    derive,
    digest,
    open_sealed,
    seal,
    verify,
)
from tacit.protocol.core.roster import Member, Role, Roster, decode_members, encode_members
from tacit.protocol.sum.agreement import Agreement, pairwise_mask
from tacit.secagg.graph import GraphChoice, GraphParameters, choose_parameters, ring_order
from tacit.secagg.keystream import Mask, Usage, apply_masks, keystream
from tacit.secagg.packing import Packing, WeightForm
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Ring
from tacit.secagg.shamir import decode_share, encode_share, reconstruct, share
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.operations import Operations

Mode = Literal["active", "semi-honest"]
SumMode = Literal["active", "semi-honest", "none"]
Longest = Annotated[int, Meta(ge=0, le=1 << 20)]


class MaskInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One mask: its seed, the label of its keystream, and whether it is added (1) or subtracted (-1)."""

    seed: Octets
    usage: str
    sign: Literal[1, -1]


class MemberInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One row of a roster."""

    name: str
    role: Role
    curve_public: Octets
    signing_public: Octets
    group: int = 0
    """Number of the client's group; 0 where it is in none."""


class PackingInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the layout of a contribution follows from."""

    clients: int
    clip: float
    value_bits: int
    max_weight: int
    form: WeightForm
    tensor_sizes: tuple[int, ...]
    metrics: tuple[str, ...]
    ring_bits: int | None = None

    def packing(self) -> Packing:
        """The layout; ValueError where a sum could wrap."""
        return Packing(**msgspec.structs.asdict(self))


class SumTerms(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all members of a secure sum hold alike before its first message."""

    session: Octets
    round: int
    server: str
    cohort: tuple[str, ...]
    signing_keys: tuple[Octets, ...]
    """Ed25519 public keys of the cohort."""
    mode: SumMode
    graph: Literal["complete", "regular"]
    neighbours: int
    threshold: int
    ring_bits: int
    length: int
    """Ring words of the vector."""
    roster: Octets
    configuration: Octets
    model: Octets
    train_seconds: float
    phase_seconds: float
    fewest_survivors: int
    """In a regular graph, and with groups, the fewest clients in a sum that is opened; otherwise 0."""
    group_key: Octets | None = None
    """Transcript of the group key of the round, if it has one."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Members that are in the sum all or none; empty where everybody is in it alone."""

    def agreement(self) -> Agreement:
        """The same for the machines."""
        given = msgspec.structs.asdict(self)
        mode, graph, bits = given.pop("mode"), given.pop("graph"), given.pop("ring_bits")
        made = {
            "active": mode == "active",
            "plain": self._plain() if mode == "none" else None,
            "regular": graph == "regular",
            "parameters": GraphParameters(given.pop("neighbours"), given.pop("threshold")),
            "ring": Ring(bits),
            "group_key": self.group_key or b"",
        }
        return Agreement(**given | made)

    def _plain(self) -> PlainPacking:
        """Without secure aggregation the last word is a weight of one byte."""
        return PlainPacking(
            clients=len(self.cohort),
            max_weight=255,
            form=WeightForm.SCALAR,
            tensor_sizes=(self.length - 1,),
            metrics=(),
        )


def stream(*, seed: Octets, usage: str, length: Longest) -> bytes:
    """The first bytes of the keystream of a seed and a label."""
    return keystream(seed, Usage(usage.encode()), length)


def mask(*, bits: int, words: Octets, start: int, masks: tuple[MaskInput, ...]) -> bytes:
    """Packed ring words, the first of which stands at `start` of the vector, with these masks applied."""
    ring = Ring(bits)
    masked = ring.unpack(words).copy()
    apply_masks(masked, [Mask(each.seed, Usage(each.usage.encode()), each.sign) for each in masks], ring, start=start)
    return bytes(ring.pack(masked))


def agree(*, private: Octets, public: Octets) -> dict[str, bytes]:
    """X25519: the own public key, and the secret that is shared with a public key, which is checked first."""
    key = AgreementKey(private)
    check_public_key(public)
    return {"public": key.public, "secret": key.agree(public)}


def derive_key(*, secret: Octets, label: str, salt: Octets, info: Octets) -> bytes:
    """HKDF-SHA256 with the framed label and info."""
    return derive(secret, Label(label.encode()), salt=salt, info=info)


def hash_parts(*, label: str, parts: tuple[Octets, ...]) -> bytes:
    """SHA-256 over the framed label and parts."""
    return digest(Label(label.encode()), *parts)


def sign(*, private: Octets, label: str, parts: tuple[Octets, ...]) -> dict[str, bytes]:
    """Ed25519: the public key, and its signature over the framed label and parts."""
    key = SigningKey(private)
    return {"public": key.public, "signature": key.sign(Label(label.encode()), *parts)}


def verify_signature(*, public: Octets, signature: Octets, label: str, parts: tuple[Octets, ...]) -> bool:
    """True for a signature that verifies; any other is refused."""
    verify(public, signature, Label(label.encode()), *parts)
    return True


def seal_once(*, key: Octets, plaintext: Octets, associated: Octets) -> bytes:
    """ChaCha20-Poly1305 with the nonce zero."""
    return seal(key, plaintext, associated=associated)


def open_once(*, key: Octets, ciphertext: Octets, associated: Octets) -> bytes:
    """The plaintext of what was sealed so."""
    return open_sealed(key, ciphertext, associated=associated)


def share_secrets(
    *, secrets: tuple[Octets, ...], points: tuple[int, ...], threshold: int, seed: Octets
) -> list[list[bytes]]:
    """Shamir's shares of the secrets: for each point those of all secrets."""
    shares = share(secrets, points=np.array(points, np.int64), threshold=threshold, seed=seed)
    return [[encode_share(one) for one in at_point] for at_point in shares]


def reconstruct_secrets(*, shares: tuple[tuple[Octets, ...], ...], points: tuple[int, ...]) -> list[bytes]:
    """The secrets of such shares, at exactly as many points as the threshold."""
    elements = np.array([[decode_share(one) for one in at_point] for at_point in shares])
    return reconstruct(elements, np.array(points, np.int64))


def order_ring(*, members: tuple[int, ...], seed: Octets) -> list[int]:
    """The random order of the members on the ring."""
    order: list[int] = ring_order(np.array(members, np.int64), seed).tolist()
    return order


def graph_parameters(*, clients: int, colluders: int, dropouts: int, mode: Mode, graph: GraphChoice) -> dict[str, int]:
    """Neighbours and threshold of a cohort."""
    found = choose_parameters(clients, colluders=colluders, dropouts=dropouts, active=mode == "active", graph=graph)
    return {"neighbours": found.neighbours, "threshold": found.threshold}


def pack_signed(*, bits: int, numbers: tuple[int, ...]) -> bytes:
    """Integers in two's complement as packed ring words."""
    ring = Ring(bits)
    return bytes(ring.pack(ring.from_signed(np.array(numbers, np.int64))))


def unpack_signed(*, bits: int, words: Octets) -> list[int]:
    """Packed ring words read in two's complement."""
    ring = Ring(bits)
    numbers: list[int] = ring.signed(ring.unpack(words)).tolist()
    return numbers


def packing_layout(*, packing: PackingInput) -> dict[str, int]:
    """Width of the ring, the integer that stands for the bound, bits of the summed value, and length of the vector."""
    layout = packing.packing()
    return {
        "ring_bits": layout.ring.bits,
        "levels": layout.quantiser.levels,
        "value_field": layout.value_field,
        "length": layout.length,
    }


def encode_contribution(
    *, packing: PackingInput, values: tuple[float, ...], weights: int | tuple[int, ...], metrics: dict[str, int]
) -> dict[str, Any]:
    """The packed words of weighted values that need no rounding, and how many were clipped."""
    layout = packing.packing()
    given: Any = weights if isinstance(weights, int) else np.array(weights, np.int64)
    # No value lies between two integers, so that nothing is drawn from the generator that could matter.
    encoded = layout.encode(np.array(values, np.float64), given, metrics, np.random.default_rng(0))
    return {"words": bytes(layout.ring.pack(encoded.words)), "clipped": encoded.clipped}


def decode_sum(*, packing: PackingInput, words: Octets, contributors: int) -> dict[str, Any]:
    """The sums of values, weights and metrics in the sum of contributions."""
    layout = packing.packing()
    total = layout.decode(layout.ring.unpack(words), contributors=contributors)
    return {"values": total.values.tolist(), "weights": total.weights.tolist(), "metrics": total.metrics}


def write_members(*, members: tuple[int, ...], size: Annotated[int, Meta(ge=0, le=10_000)]) -> bytes:
    """The bitmap of a set of members."""
    return encode_members(members, size)


def read_members(*, bitmap: Octets, size: int) -> list[int]:
    """The members of a bitmap."""
    return list(decode_members(bitmap, size))


def roster_of(
    rows: tuple[MemberInput, ...], version: int = 0, operator: bytes | None = None, lineage: bytes | None = None
) -> Roster:
    """The roster with these rows. operator: the private key of who signs this version."""
    members = tuple(Member(**msgspec.structs.asdict(row)) for row in rows)
    if operator is None:
        return Roster(members, version, lineage=lineage or b"")
    return Roster.signed(members, version=version, operator=SigningKey(operator), lineage=lineage or b"")


def roster_hash(
    *, members: tuple[MemberInput, ...], version: int = 0, operator: Octets | None = None, lineage: Octets | None = None
) -> bytes:
    """The hash of a roster; operator: the private key of who signs this version, if it has any."""
    return roster_of(members, version, operator, lineage).hash


def roster_signature(
    *, members: tuple[MemberInput, ...], version: int, operator: Octets, lineage: Octets
) -> dict[str, bytes]:
    """A version of a roster as it travels: its encoding and its operator's signature, made with this private key."""
    signed = roster_of(members, version, operator, lineage)
    return {"encoded": signed.encoded, "signature": signed.signature}


def terms_context(*, terms: SumTerms) -> dict[str, Any]:
    """The hash of all that a sum's members hold alike, and how its vector is cut into chunks."""
    agreement = terms.agreement()
    return {"context": agreement.context, "chunks": agreement.chunks, "chunk_words": agreement.chunk_words}


def pairwise_mask_seed(
    *, private: Octets, public: Octets, sharing: Octets, member: int, peer: int
) -> dict[str, bytes | int]:
    """Seed and sign of the mask of one member towards another."""
    found = pairwise_mask(AgreementKey(private), public, sharing, member, peer)
    return {"seed": found.seed, "sign": found.sign}


PRIMITIVES: Final[Operations] = {
    "keystream": stream,
    "mask": mask,
    "agree": agree,
    "derive": derive_key,
    "digest": hash_parts,
    "sign": sign,
    "verify": verify_signature,
    "seal": seal_once,
    "open": open_once,
    "share": share_secrets,
    "reconstruct": reconstruct_secrets,
    "ring order": order_ring,
    "parameters": graph_parameters,
    "pack": pack_signed,
    "unpack": unpack_signed,
    "layout": packing_layout,
    "write contribution": encode_contribution,
    "read sum": decode_sum,
    "write members": write_members,
    "read members": read_members,
    "roster": roster_hash,
    "sign roster": roster_signature,
    "context": terms_context,
    "pairwise mask": pairwise_mask_seed,
}
"""By the names that vectors use."""

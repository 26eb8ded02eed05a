"""Computations: functions that a vector calls by name, from given inputs to an expected result.

A computation is a function with typed keyword parameters; its docstring describes its result, in the notation of
vectors. Computations on tensors import torch when they are performed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms
from tacit.protocol.adaptation.schedule import adaptation_rounds, sum_words
from tacit.protocol.adaptation.sums import weight_of
from tacit.protocol.core.codec import Envelope, decode, decode_structure, encode, encode_structure
from tacit.protocol.core.errors import LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT, Kinds
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
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.protocol.inference.material import material_key, request_key
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, TERMS_LIMIT, Terms
from tacit.protocol.inference.results import Agreed
from tacit.protocol.inference.schedule import LOGITS, Sizes, layer_shapes, pass_rounds, weight_bytes
from tacit.protocol.inference.states import InferenceLabel
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.agreement import Agreement, pairwise_mask
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.secagg.graph import GraphChoice, GraphParameters, choose_parameters, ring_order
from tacit.secagg.keystream import Mask, Usage, apply_masks, keystream
from tacit.secagg.packing import Packing, WeightForm
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Ring
from tacit.secagg.shamir import decode_share, encode_share, reconstruct, share
from tacit.simulate.conformance.notation import Octets, VectorError, from_hex, octets_hook, plain, to_hex

if TYPE_CHECKING:
    from tacit.models.layout import Layout
    from tacit.parties.protections.encryption import GroupModel

Computation = Callable[..., Any]
Computations = Mapping[str, Computation]
INVALID: Final = "INVALID"
"""For inputs that the caller refuses, so that they never have a code on the wire."""


class Refusal(Exception):
    """A computation without a result: `code` is the wire code's name, or INVALID."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


def parameters_of(computation: Computation) -> type[msgspec.Struct]:
    """The structure of a computation's inputs."""
    return _parameters(getattr(computation, "__func__", computation))


def perform(computations: Computations, name: str, inputs: Mapping[str, Any]) -> Any:
    """Return the result for these inputs, all in the notation of vectors.

    Refusal without a result; VectorError for inputs of other types.
    """
    computation = computations.get(name)
    if computation is None:
        raise VectorError(f"there is no computation {name!r}")
    try:
        read = msgspec.convert(inputs, parameters_of(computation), dec_hook=octets_hook)
    except msgspec.ValidationError as error:
        raise VectorError(f"inputs of {name}: {error}") from None
    try:
        result = computation(**{field: getattr(read, field) for field in read.__struct_fields__})
    except VectorError:
        raise
    except RemoteProtocolError as error:
        raise Refusal(error.code.name, error.detail) from None
    except (ValueError, LocalProtocolError) as error:
        raise Refusal(INVALID, str(error)) from None
    return plain(result)


@cache
def _parameters(function: Computation) -> type[msgspec.Struct]:
    hints = get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in hints:
            default = () if parameter.default is parameter.empty else (parameter.default,)
            fields.append((name, hints[name], *default))
    return msgspec.defstruct(f"Inputs of {function.__qualname__}", fields, kw_only=True, forbid_unknown_fields=True)


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
    """Number of the client's group; 0 without one."""
    previous: tuple[Octets, ...] = ()
    """Its previous signing keys."""


class PackingInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a contribution's layout."""

    clients: int
    clip: float
    value_bits: int
    max_weight: int
    form: WeightForm
    tensor_sizes: tuple[int, ...]
    metrics: tuple[str, ...]
    ring_bits: int | None = None

    def packing(self) -> Packing:
        """Return the layout; ValueError if a sum could wrap."""
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
    """Transcript of the round's group key, if it has one."""
    groups: tuple[tuple[int, ...], ...] = ()
    """Groups of members that are in the sum together or not at all; empty if every member is a group of its own."""

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
    """X25519: the own public key, and the secret shared with a public key, which is checked first."""
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
    """True for a valid signature; any other is refused."""
    verify(public, signature, Label(label.encode()), *parts)
    return True


def seal_once(*, key: Octets, plaintext: Octets, associated: Octets) -> bytes:
    """ChaCha20-Poly1305 with the nonce zero."""
    return seal(key, plaintext, associated=associated)


def open_once(*, key: Octets, ciphertext: Octets, associated: Octets) -> bytes:
    """The plaintext behind such a ciphertext."""
    return open_sealed(key, ciphertext, associated=associated)


def share_secrets(
    *, secrets: tuple[Octets, ...], points: tuple[int, ...], threshold: int, seed: Octets
) -> list[list[bytes]]:
    """Shamir's shares of the secrets: for each point the shares of all secrets."""
    shares = share(secrets, points=np.array(points, np.int64), threshold=threshold, seed=seed)
    return [[encode_share(one) for one in at_point] for at_point in shares]


def reconstruct_secrets(*, shares: tuple[tuple[Octets, ...], ...], points: tuple[int, ...]) -> list[bytes]:
    """The secrets behind such shares, at exactly as many points as the threshold."""
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
    """Integers in two's complement in packed ring words."""
    ring = Ring(bits)
    numbers: list[int] = ring.signed(ring.unpack(words)).tolist()
    return numbers


def packing_layout(*, packing: PackingInput) -> dict[str, int]:
    """Width of the ring, integer representing the bound, bits of the summed value, and length of the vector."""
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
    """The packed words of weighted values that need no rounding, and the number of clipped ones."""
    layout = packing.packing()
    given: Any = weights if isinstance(weights, int) else np.array(weights, np.int64)
    # No value lies between two integers, so the generator's draws have no effect.
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
    rows: tuple[MemberInput, ...],
    version: int,
    operator: bytes | None,
    lineage: bytes | None,
    standby: bytes | None,
    former: tuple[MemberInput, ...],
) -> Roster:
    """Return the roster with these rows. operator: private key that signs this version; standby: a public key."""
    members, gone = (tuple(Member(**msgspec.structs.asdict(row)) for row in some) for some in (rows, former))
    more: dict[str, Any] = {"lineage": lineage or b"", "standby": standby or b"", "former": gone}
    if operator is None:
        return Roster(members, version, **more)
    return Roster.signed(members, version=version, operator=SigningKey(operator), **more)


def roster_hash(
    *,
    members: tuple[MemberInput, ...],
    version: int = 0,
    operator: Octets | None = None,
    lineage: Octets | None = None,
    standby: Octets | None = None,
    former: tuple[MemberInput, ...] = (),
) -> bytes:
    """The hash of a roster; operator: the private key that signs this version, if any."""
    return roster_of(members, version, operator, lineage, standby, former).hash


def roster_signature(
    *,
    members: tuple[MemberInput, ...],
    version: int,
    operator: Octets,
    lineage: Octets,
    standby: Octets | None = None,
    former: tuple[MemberInput, ...] = (),
) -> dict[str, bytes]:
    """A version of a roster as it travels: its encoding and its operator's signature with this private key."""
    signed = roster_of(members, version, operator, lineage, standby, former)
    return {"encoded": signed.encoded, "signature": signed.signature}


def terms_context(*, terms: SumTerms) -> dict[str, Any]:
    """The hash of all data that a sum's members must agree on, and the chunks of its vector."""
    agreement = terms.agreement()
    return {"context": agreement.context, "chunks": agreement.chunks, "chunk_words": agreement.chunk_words}


def pairwise_mask_seed(
    *, private: Octets, public: Octets, sharing: Octets, member: int, peer: int
) -> dict[str, bytes | int]:
    """Seed and sign of a member's mask towards another member."""
    found = pairwise_mask(AgreementKey(private), public, sharing, member, peer)
    return {"seed": found.seed, "sign": found.sign}


Fields = dict[str, Any]
"""A body or a configuration: byte strings are objects {"hex": ...}, because a body also has text."""


class MessageFamily:
    """Messages of one kind of link, written and read."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds

    def computations(self) -> Computations:
        """Return the computations by the names that vectors use."""
        return {"write message": self.write_message, "read message": self.read_message}

    def write_message(
        self,
        *,
        type: str,
        session: Octets,
        round: int,
        sender: str,
        sequence: int,
        body: Fields,
        payload: Octets | None = None,
        link: int = 0,
        received: int = 0,
    ) -> list[bytes]:
        """The frames of a message."""
        if type not in self._kinds:
            raise VectorError(f"there is no message {type!r}")
        envelope = Envelope(
            version=self._kinds.version, type=type, session=session, round=round, sender=sender, sequence=sequence,
            link=link, received=received,
        )  # fmt: skip
        return [bytes(frame) for frame in encode(structure_of(body, self._kinds[type]), envelope, payload)]

    def read_message(self, *, frames: tuple[Octets, ...]) -> dict[str, Any]:
        """The envelope, the body and the raw frame (or null) of a message."""
        packet = decode(frames, self._kinds)
        message = packet.parse()
        return {"envelope": fields_of(packet.envelope), "body": fields_of(message), "payload": packet.payload}


def write_configuration(*, configuration: Fields) -> dict[str, bytes]:
    """The encoding of a configuration and its hash."""
    made: Configuration = structure_of(configuration, Configuration)
    return {"encoding": encode_structure(made), "hash": made.hash()}


def read_configuration(*, encoding: Octets, policy: Policy, clients: int) -> bytes:
    """The hash of a well-formed configuration that a client with this policy accepts in a roster of so many clients."""
    configuration = decode_structure(encoding, Configuration, limit=BODY_LIMIT)
    policy.check(configuration, clients=clients)
    return configuration.hash()


def fields_of(structure: msgspec.Struct) -> Fields:
    """Return the fields of a body or an envelope in the notation of vectors."""
    fields: Fields = to_hex(msgspec.to_builtins(structure, builtin_types=(bytes,)))
    return fields


def structure_of(fields: Fields, kind: Any) -> Any:
    """Invert `fields_of`."""
    return msgspec.convert(from_hex(fields), kind, builtin_types=(bytes,))


def use_group_key(*, key: Octets, transcript: Octets, label: str, info: Octets) -> bytes:
    """The 32 bytes that all members derive from a group key for one use."""
    return GroupKey(0, key, (), transcript).derive(Label(label.encode()), info)


Matrix = Literal["orthogonal", "gaussian"]
DECIMALS: Final = 5
"""Decimals of the numbers of an encrypted model: machines differ in the last bits of logarithms and cosines."""


class Tensor(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One tensor of a model."""

    name: str
    shape: tuple[Annotated[int, Meta(ge=1, le=4096)], ...]


class KeyInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A group key, and its member."""

    key: Octets
    transcript: Octets
    members: tuple[str, ...]

    def group_key(self) -> GroupKey:
        """The same for the parties."""
        return GroupKey(0, self.key, self.members, self.transcript)


def coordinate(
    *,
    group: KeyInput,
    member: str,
    round: int,
    tensors: tuple[Tensor, ...],
    zero_probability: float,
    layers: dict[str, float],
    min_contributors: int,
    survivors: int,
) -> list[int]:
    """The coordinated binary weights of a member in a round; `layers`: probability by name of a tensor.

    survivors: of the smallest sum that is opened.
    """
    from tacit.parties.protections.binary_weights import CoordinatedBinaryWeights
    from tacit.parties.protections.sides import Group

    protection = CoordinatedBinaryWeights(
        zero_probability=zero_probability, layers=layers, min_contributors=min_contributors
    )
    drawn = protection.agreed(_layout(tensors), round, Group(group.group_key(), member), survivors=survivors)
    bits: list[int] = drawn.astype(int).tolist()
    return bits


def encrypt_model(*, group: KeyInput, tensors: tuple[Tensor, ...], matrix: Matrix, model: Octets) -> list[float]:
    """The numbers of a model, given as little-endian float32, under a group key, rounded to five decimals."""
    encrypted = _model(tensors, matrix).reencrypt(Reencrypt("server", group.group_key(), None, bytes(model)))
    return [round(number, DECIMALS) for number in np.frombuffer(encrypted, "<f4").astype(np.float64).tolist()]


def first_embeddings(*, group: KeyInput, tensors: tuple[Tensor, ...]) -> bytes:
    """The embeddings of the clients' initial model, before encryption; all other tensors are zero."""
    return _model(tensors, "orthogonal").initial(group.group_key()).astype("<f4").tobytes()


def _model(tensors: tuple[Tensor, ...], matrix: Matrix) -> GroupModel:
    from tacit.parties.protections.encryption import Encryption, GroupModel

    layout = _layout(tensors)
    return GroupModel(layout, Encryption(matrix=matrix), lambda seed: np.zeros(layout.size, np.float32))


def _layout(tensors: tuple[Tensor, ...]) -> Layout:
    from tacit.models.layout import Layout, LayoutEntry

    return Layout(tuple(LayoutEntry(tensor.name, tensor.shape) for tensor in tensors))


Rank = Literal[0, 1]
Two = Annotated[tuple[Octets, ...], Meta(min_length=2, max_length=2)]


class LayerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A layer of a model in integers."""

    words: tuple[int, ...]
    """The matrix, row by row."""
    bias: tuple[int, ...]
    """The added bias; for the embedding also a matrix."""


def write_terms(*, terms: Fields) -> dict[str, bytes]:
    """The encoding of terms and its digest."""
    encoding = encode_structure(structure_of(terms, Terms))
    return {"encoding": encoding, "digest": digest(InferenceLabel.INFERENCE_TERMS, encoding)}


def read_terms(*, encoding: Octets) -> Fields:
    """Well-formed terms, with sizes that fit together."""
    return fields_of(decode_structure(encoding, Terms, limit=TERMS_LIMIT))


def commit_to_weights(*, salt: Octets, layers: tuple[LayerInput, ...]) -> bytes:
    """The commitment to a model with these layers, in their order."""
    import torch

    from tacit.parties.inference.model import IntegerWeight, weight_octets

    weights = {
        str(number): IntegerWeight(
            torch.tensor(layer.words, dtype=torch.int64), torch.tensor(layer.bias, dtype=torch.int64), bits=0
        )
        for number, layer in enumerate(layers)
    }
    return digest(InferenceLabel.WEIGHTS, salt, *weight_octets(weights))


def layers(*, sizes: Sizes) -> list[list[Any]]:
    """Name, rows, columns, and bytes of the masked weights of every layer, in order."""
    shapes = layer_shapes(sizes)
    return [[name, *shapes[name], size] for name, size in zip(shapes, weight_bytes(sizes), strict=True)]


def schedule(*, sizes: Sizes, images: int, batch: int, number: int) -> dict[str, Any]:
    """The pass of this number of a session: its images; for every round the operation, and the bytes that the model
    owner and the data owner open."""
    terms = Terms(
        sizes=sizes, results=LOGITS, weights=b"", most_images=images, most_batch=batch, audited=0, arithmetic=b""
    )
    own = Agreed("", b"", terms, b"", images, batch).images_of(number)
    return {"images": own, "rounds": [list(each) for each in pass_rounds(sizes, own)]}


def derive_material_key(
    *, session: Octets, terms: Octets, owner: str, owner_contribution: Octets, dealer_contribution: Octets
) -> bytes:
    """The key of an owner's preprocessing streams; `terms` is the digest."""
    return material_key(
        session=session,
        terms=terms,
        owner=owner,
        owner_contribution=owner_contribution,
        contribution=dealer_contribution,
    )


def write_requests(*, requests: tuple[Fields, ...]) -> bytes:
    """The encoding of requests in an order."""
    from tacit.parties.inference.material import decoded_requests, encoded_requests

    return encoded_requests(decoded_requests(msgspec.msgpack.encode(requests)))


def read_requests(*, encoding: Octets) -> list[Fields]:
    """Requests that a dealer can meet, each checked by itself."""
    from tacit.parties.inference.material import decoded_requests

    return [msgspec.to_builtins(request) for request in decoded_requests(encoding)]


def draw_material(*, key: Octets, number: int, requests: Octets, rank: Rank) -> list[list[bytes]]:
    """An owner's draws (0: the model owner, 1: the data owner) for encoded requests with numbers from `number` on:
    every tensor of each request, as 8-byte words."""
    from tacit.parties.inference.material import decoded_requests, drawn

    return [
        [each.numpy().tobytes() for each in drawn(request, rank=rank, key=request_key(key, place))]
        for place, request in enumerate(decoded_requests(requests), number)
    ]


def correct_material(*, keys: Two, requests: Octets) -> list[dict[str, Any] | None]:
    """The dealer's corrections for the first encoded requests of a session, and their recipients (0: the model owner,
    1: the data owner); null without one. `keys` are those of both owners, in that order."""
    from tacit.parties.correlated.material import Dealing
    from tacit.parties.inference.material import decoded_requests, encoded_correction

    dealing = Dealing(keys)
    found: list[dict[str, Any] | None] = []
    for number, request in enumerate(decoded_requests(requests)):
        words = encoded_correction(request, dealing.correction(request, number))
        found.append(None if words is None else {"to": list(request.receivers), "words": bytes(words)})
    return found


def evaluate_trees(
    *, key: Octets, number: int, requests: Octets, rank: Rank, correction: Octets, places: tuple[int, ...]
) -> dict[str, Any]:
    """An owner's shares for one encoded `Lookup` request and the dealer's correction: for each DCF key whether each of
    these places is below, modulo 2^`words`; for each DPF key both words of every place, as 8-byte words."""
    import numpy as np

    from tacit.parties.correlated.trees import below, point_words
    from tacit.parties.inference.material import Lookup, corrected, decoded_requests, drawn
    from tacit.parties.inference.tables import trees_of

    (request,) = decoded_requests(requests)
    if not isinstance(request, Lookup):
        raise ValueError(f"{request} has no trees")
    _, *roots = drawn(request, rank=rank, key=request_key(key, number))
    trees = trees_of(request, [*roots, *corrected(request, bytearray(correction))])
    compared = np.tile(np.array(places, np.uint64), (len(trees.threshold_roots), 1))
    lowest = np.uint64((1 << request.words) - 1)
    return {
        "below": (below(rank, trees.threshold_roots, trees.thresholds, compared) & lowest).tolist(),
        "points": []
        if trees.points is None
        else [each.tobytes() for each in point_words(rank, trees.point_roots, trees.points)],
    }


def cosines(*, places: tuple[int, ...]) -> dict[str, Any]:
    """The table of cosines at these places, and its digest."""
    from tacit.parties.inference.waves import cosines, table_digest

    return {"digest": table_digest(), "values": cosines()[list(places)].tolist()}


def wave_factors(*, wave: Fields, places: tuple[int, ...]) -> list[list[int]]:
    """The public factors of a Fourier approximation at these opened places: of the first cosine, the first sine, ..."""
    import torch

    from tacit.parties.inference.waves import Wave, factors

    found = factors(msgspec.convert(wave, Wave), torch.device("cpu"))
    return [factor[list(places)].tolist() for factor in found]


def inverse_table(*, inverse: Fields, index: int, slope: int) -> dict[str, list[int]]:
    """Values and slopes of an inverse, with so many bits of an interval and of an offset in it."""
    from tacit.parties.inference.tables import Table

    place = {"factor": 1, "low": 0, "high": 1, "domain": 32, "index": index, "slope": slope}
    values, slopes = msgspec.convert(place | {"inverse": inverse}, Table).words
    return {"values": values.tolist(), "slopes": slopes.tolist()}


def inverse_steps(*, low: int, high: int, scale: float) -> dict[str, list[int]]:
    """Ends of the steps of a stepwise inverse, and the values between them."""
    from tacit.parties.inference.tables import SteppedInverse

    place = {"factor": 1, "levels": 32, "low": low, "high": high, "scale": scale}
    ends, values = msgspec.convert(place, SteppedInverse).steps
    return {"ends": ends.tolist(), "values": values.tolist()}


def write_adaptation_terms(*, terms: Fields) -> dict[str, bytes]:
    """The encoding of terms and its digest."""
    encoding = encode_structure(structure_of(terms, AdaptationTerms))
    return {"encoding": encoding, "digest": digest(InferenceLabel.INFERENCE_TERMS, encoding)}


def read_adaptation_terms(*, encoding: Octets) -> Fields:
    """Well-formed terms, with sizes that fit together."""
    return fields_of(decode_structure(encoding, AdaptationTerms, limit=TERMS_LIMIT))


def adaptation_schedule(*, terms: Fields, images: int) -> dict[str, Any]:
    """A pass of so many images: for every round the operation, and the bytes that the model owner and the data owner
    open. And the words of a sum."""
    read: AdaptationTerms = structure_of(terms, AdaptationTerms)
    rounds = adaptation_rounds(read, images)
    return {
        "rounds": [list(each) for each in rounds],
        "words": sum_words(read.sizes, read.learning),
    }


def draw_zeros(*, secret: Octets, words: int) -> bytes:
    """The zeros added to so many words of the model owner's share, 8 bytes each, and subtracted by the data owner."""
    from tacit.parties.correlated.material import Keystream

    return Keystream(secret).draw((words,)).numpy().astype("<i8").tobytes()


def weigh(*, count: int, least_count: int) -> int:
    """The weight of a data owner with `count` images."""
    return weight_of(count, least_count)


COMPUTATIONS: Final[Mapping[str, Computations]] = {
    "secure sum": {
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
        **MessageFamily(MESSAGES).computations(),
        "write configuration": write_configuration,
        "read configuration": read_configuration,
    },
    "group key": {"use group key": use_group_key},
    "protection": {
        "coordinated weights": coordinate,
        "encrypt model": encrypt_model,
        "first embeddings": first_embeddings,
    },
    "private inference": {
        **MessageFamily(INFERENCE_MESSAGES).computations(),
        "write terms": write_terms,
        "read terms": read_terms,
        "commit to weights": commit_to_weights,
        "layers": layers,
        "schedule": schedule,
        "derive material key": derive_material_key,
        "write requests": write_requests,
        "read requests": read_requests,
        "draw material": draw_material,
        "correct material": correct_material,
        "evaluate trees": evaluate_trees,
        "cosines": cosines,
        "wave factors": wave_factors,
        "inverse table": inverse_table,
        "inverse steps": inverse_steps,
    },
    "double-blind adaptation": {
        **MessageFamily(ADAPTATION_MESSAGES).computations(),
        "write terms": write_adaptation_terms,
        "read terms": read_adaptation_terms,
        "schedule": adaptation_schedule,
        "draw zeros": draw_zeros,
        "weigh": weigh,
    },
}
"""Computations of each protocol, by the names that vectors use."""

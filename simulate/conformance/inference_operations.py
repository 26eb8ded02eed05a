"""Operations of private inference that need no machine: terms, commitments, schedules, keys, the dealer's material, and
public numbers.

What computes with tensors needs torch, which is imported when such an operation is performed.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.inference.material import material_key
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, TERMS_LIMIT, Terms
from tacit.protocol.inference.results import Agreed
from tacit.protocol.inference.schedule import LOGITS, Sizes, layer_shapes, pass_rounds, weight_bytes
from tacit.simulate.conformance.message_operations import Fields, MessageFamily, fields_of, structure_of
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.operations import Operations

Rank = Literal[0, 1]
Two = Annotated[tuple[Octets, ...], Meta(min_length=2, max_length=2)]


class LayerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A layer of a model as whole numbers."""

    words: tuple[int, ...]
    """The matrix, row after row."""
    bias: tuple[int, ...]
    """What is added; of the embedding a matrix too."""


def write_terms(*, terms: Fields) -> dict[str, bytes]:
    """The encoding of terms and its digest."""
    encoding = encode_structure(structure_of(terms, Terms))
    return {"encoding": encoding, "digest": digest(Label.INFERENCE_TERMS, encoding)}


def read_terms(*, encoding: Octets) -> Fields:
    """Terms that are well-formed, with sizes that fit together."""
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
    return digest(Label.WEIGHTS, salt, *weight_octets(weights))


def layers(*, sizes: Sizes) -> list[list[Any]]:
    """Of every layer in order its name, rows, columns, and the bytes of its masked weights."""
    shapes = layer_shapes(sizes)
    return [[name, *shapes[name], size] for name, size in zip(shapes, weight_bytes(sizes), strict=True)]


def schedule(*, sizes: Sizes, images: int, batch: int, number: int) -> dict[str, Any]:
    """The pass of this number of a session: its images; of every round the operation, and the bytes that the model
    owner and the data owner open.
    """
    terms = Terms(sizes=sizes, results=LOGITS, weights=b"", most_images=images, most_batch=batch, arithmetic=b"")
    own = Agreed("", b"", terms, b"", images, batch).images_of(number)
    return {"images": own, "rounds": [list(each) for each in pass_rounds(sizes, own)]}


def derive_material_key(
    *, session: Octets, terms: Octets, owner: str, owner_contribution: Octets, dealer_contribution: Octets
) -> bytes:
    """The key of an owner's streams of material; `terms` is the digest."""
    return material_key(
        session=session,
        terms=terms,
        owner=owner,
        owner_contribution=owner_contribution,
        contribution=dealer_contribution,
    )


def write_requests(*, requests: tuple[Fields, ...]) -> bytes:
    """The encoding of requests, as an order carries them."""
    from tacit.parties.inference.material import decoded_requests, encoded_requests

    return encoded_requests(decoded_requests(msgspec.msgpack.encode(requests)))


def read_requests(*, encoding: Octets) -> list[Fields]:
    """Requests that a dealer can meet, as far as each says it alone."""
    from tacit.parties.inference.material import decoded_requests

    return [msgspec.to_builtins(request) for request in decoded_requests(encoding)]


def draw_material(*, key: Octets, number: int, requests: Octets, rank: Rank) -> list[list[bytes]]:
    """What an owner (0: the model owner, 1: the data owner) draws for encoded requests with numbers from `number` on:
    of each request every tensor, as 8-byte words.
    """
    from tacit.parties.inference.material import decoded_requests, drawn

    return [
        [each.numpy().tobytes() for each in drawn(request, place, rank=rank, key=key)]
        for place, request in enumerate(decoded_requests(requests), number)
    ]


def correct_material(*, keys: Two, requests: Octets) -> list[dict[str, Any] | None]:
    """What the dealer sends for each of the first encoded requests of a session, and to whom (0: the model owner, 1:
    the data owner); null where nothing is sent. `keys` are those of both owners, in that order.
    """
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
    """Of one encoded request, a `Lookup`, with what the dealer sent for it, an owner's shares: for each tree of
    thresholds whether each of these places is below; for each tree of points both words of every place, as 8-byte
    words.
    """
    import numpy as np

    from tacit.parties.correlated.trees import below, point_words
    from tacit.parties.inference.material import Lookup, corrected, decoded_requests, drawn
    from tacit.parties.inference.tables import trees_of

    (request,) = decoded_requests(requests)
    if not isinstance(request, Lookup):
        raise ValueError(f"{request} has no trees")
    _, *roots = drawn(request, number, rank=rank, key=key)
    trees = trees_of(request, [*roots, *corrected(request, bytearray(correction))])
    compared = np.tile(np.array(places, np.uint64), (len(trees.threshold_roots), 1))
    return {
        "below": below(rank, trees.threshold_roots, trees.thresholds, compared).tolist(),
        "points": []
        if trees.points is None
        else [each.tobytes() for each in point_words(rank, trees.point_roots, trees.points)],
    }


def cosines(*, places: tuple[int, ...]) -> dict[str, Any]:
    """The table of cosines at these places, and its digest."""
    from tacit.parties.inference.waves import cosines, table_digest

    return {"digest": table_digest(), "values": cosines()[list(places)].tolist()}


def wave_factors(*, wave: Fields, places: tuple[int, ...]) -> list[list[int]]:
    """The public factors of a sum of waves where these places are opened: of the first cosine, the first sine, ..."""
    import torch

    from tacit.parties.inference.waves import Wave, factors

    found = factors(msgspec.convert(wave, Wave), torch.device("cpu"))
    return [factor[list(places)].tolist() for factor in found]


def inverse_table(*, inverse: Fields, index: int, slope: int) -> dict[str, list[int]]:
    """Values and slopes of an inverse, with so many bits of an interval and of a place in it."""
    from tacit.parties.inference.tables import Table

    place = {"factor": 1, "low": 0, "high": 1, "domain": 32, "index": index, "slope": slope}
    values, slopes = msgspec.convert(place | {"inverse": inverse}, Table).words
    return {"values": values.tolist(), "slopes": slopes.tolist()}


INFERENCE_OPERATIONS: Final[Operations] = {
    **MessageFamily(INFERENCE_MESSAGES).operations(),
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
}
"""By the names that vectors use."""

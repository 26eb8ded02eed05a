"""The computations of private inference and double-blind adaptation: docs/spec/vectors.md."""

from functools import partial
from typing import Any

from adaptation_terms import (
    ADAPTATION,
    ADAPTATION_TERMS,
    adaptation_rounds,
    read_adaptation_terms,
    sum_words,
    weight_of,
)
from computations import do_read_message, do_write_message, from_body, to_body
from computations import octets as given
from constants import WEIGHTS
from inference_dealer import material_key
from inference_material import (
    Stream,
    corrections,
    draw,
    octets,
    pairs,
    read_correction,
    read_requests,
    request_stream,
    tree_keys,
    write_requests,
)
from inference_terms import INFERENCE, TERMS, layers_of, passes_of, read_terms, rounds_of, terms_digest
from inference_trees import below, point_words
from inference_waves import cosines, factors, inverse_steps, inverse_table, table_digest
from primitives import digest


def do_write_terms(kind: Any, terms: dict[str, Any]) -> dict[str, bytes]:
    encoding = kind.write(from_body(terms))
    return {"encoding": encoding, "digest": terms_digest(encoding)}


def do_commit(salt: str, layers: list[dict[str, list[int]]]) -> bytes:
    return digest(WEIGHTS, given(salt), *(octets(layer[part]) for layer in layers for part in ("words", "bias")))


def do_schedule(sizes: dict[str, int], images: int, batch: int, number: int) -> dict[str, Any]:
    own = passes_of(images, batch)[number - 1]
    return {"images": own, "rounds": rounds_of(sizes, own)}


def do_material_key(owner: str, **inputs: str) -> bytes:
    session, terms = given(inputs["session"]), given(inputs["terms"])
    contributions = given(inputs["owner_contribution"]), given(inputs["dealer_contribution"])
    return material_key(session, terms, owner, *contributions)


def do_draw(key: str, number: int, requests: str, rank: int) -> list[list[bytes]]:
    return [
        [octets(words) for words in draw(request, rank, request_stream(given(key), place))]
        for place, request in enumerate(read_requests(given(requests)), number)
    ]


def do_trees(key: str, number: int, requests: str, rank: int, correction: str, places: list[int]) -> dict[str, Any]:
    (request,) = read_requests(given(requests))
    drawn = draw(request, rank, request_stream(given(key), number))
    levels, index = request["levels"], request["index"]
    parts = read_correction(request, given(correction))
    thresholds = tree_keys(parts[:3], levels)
    points = tree_keys(parts[3:], index) if index else []
    return {
        "below": [
            [below(rank, root, keys, place, levels, request["words"]) for place in places]
            for root, keys in zip(pairs(drawn[1]), thresholds, strict=True)
        ],
        "points": [
            octets([word for words in point_words(rank, root, keys, index) for word in words])
            for root, keys in zip(pairs(drawn[-1]), points, strict=bool(index))
        ],
    }


def do_cosines(places: list[int]) -> dict[str, Any]:
    return {"digest": table_digest(), "values": [cosines()[place] for place in places]}


def do_draw_zeros(secret: str, words: int) -> bytes:
    return b"".join(word.to_bytes(8, "little") for word in Stream(given(secret)).draw([words], 64))


def do_adaptation_schedule(terms: dict[str, Any], images: int) -> dict[str, Any]:
    return {"rounds": adaptation_rounds(terms, images), "words": sum_words(terms)}


INFERENCE_COMPUTATIONS: dict[str, Any] = {
    "write message": partial(do_write_message, family=INFERENCE),
    "read message": partial(do_read_message, family=INFERENCE),
    "write terms": partial(do_write_terms, TERMS),
    "read terms": lambda encoding: to_body(read_terms(given(encoding))),
    "commit to weights": do_commit,
    "layers": lambda sizes: [list(layer) for layer in layers_of(sizes)],
    "schedule": do_schedule,
    "derive material key": do_material_key,
    "write requests": write_requests,
    "read requests": lambda encoding: read_requests(given(encoding)),
    "draw material": do_draw,
    "correct material": lambda keys, requests: corrections([given(key) for key in keys], given(requests)),
    "evaluate trees": do_trees,
    "cosines": do_cosines,
    "wave factors": lambda wave, places: factors(wave, places),
    "inverse table": inverse_table,
    "inverse steps": inverse_steps,
}

ADAPTATION_COMPUTATIONS: dict[str, Any] = {
    "write message": partial(do_write_message, family=ADAPTATION),
    "read message": partial(do_read_message, family=ADAPTATION),
    "write terms": partial(do_write_terms, ADAPTATION_TERMS),
    "read terms": lambda encoding: to_body(read_adaptation_terms(given(encoding))),
    "schedule": do_adaptation_schedule,
    "draw zeros": do_draw_zeros,
    "weigh": lambda count, least_count: weight_of(count, least_count),
}

"""Messages, terms, layers and rounds of private inference: docs/spec/messages.md and docs/spec/inference.md."""

from typing import Any

from constants import (
    INFERENCE_TERMS,
    INFERENCE_VERSION,
    LARGEST_PIXELS,
    LARGEST_SCORES,
    LARGEST_TOKENS,
    LARGEST_WEIGHTS,
    MOST_IMAGES,
    ORDER_LIMIT,
    TERMS_LIMIT,
    require,
)
from encoding import Array, Binary, Boolean, Integer, Map, choice, decode
from messages import BODIES, HASH, NAME, NUMBER, Family
from primitives import digest

IMAGES = Integer(1, MOST_IMAGES)
REQUEST_NUMBER = Integer(0, 2**63 - 1)
INFERENCE_BODIES = {
    "inference-hello": Map(roster=HASH),
    "inference-terms": Map(roster=HASH, terms=Binary(TERMS_LIMIT)),
    "agree-terms": Map(terms=HASH, images=IMAGES, batch=IMAGES),
    "masked-weights": Map(layer=NUMBER, chunk=NUMBER),
    "start-pass": Map(weights=HASH),
    "audit-commitment": Map(commitment=HASH),
    "audit-coin": Map(contribution=HASH),
    "audit-keys": Map(),
    "pass-started": Map(weights=HASH),
    "opening": Map(step=NUMBER, chunk=NUMBER),
    "close-inference": Map(),
    "inference-closed": Map(),
    "dealer-hello": Map(roster=HASH, peer=NAME, terms=HASH, contribution=HASH),
    "dealer-welcome": Map(contribution=HASH),
    "order-randomness": Map(first=REQUEST_NUMBER, count=Integer(1, 2**20), requests=Binary(ORDER_LIMIT)),
    "randomness": Map(number=REQUEST_NUMBER, chunk=NUMBER),
    "dealing-over": Map(),
    "abort": BODIES["abort"],
}
INFERENCE = Family(INFERENCE_BODIES, ("masked-weights", "audit-keys", "opening", "randomness"), INFERENCE_VERSION)

SIZES = Map(
    side=Integer(1, 4096),
    channels=Integer(1, 256),
    patch=Integer(1, 4096),
    width=Integer(1, 4096),
    heads=Integer(1, 4096),
    hidden=Integer(1, 16384),
    blocks=Integer(1, 256),
    classes=Integer(1, 65536),
    forms=Array(256, Map(squarings=Integer(0, 5), hidden_bits=Integer(16, 24))),
    prefix=Integer(0, 1024),
    norm_pre=Boolean(),
    pooling=choice("token", "two tokens", "mean", "mean of normalised", "attention"),
    whole=Boolean(),
)
TERMS = Map(
    sizes=SIZES,
    results=Map(labels=Integer(0, 65536), bits=Integer(0, 16)),
    weights=HASH,
    most_images=IMAGES,
    most_batch=IMAGES,
    audited=Integer(0, 2**15),
    arithmetic=Binary(TERMS_LIMIT),
)


def layers_of(sizes: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Name, rows, columns, and bytes of the masked weights."""
    x = sizes["patch"] * sizes["patch"] * sizes["channels"]
    d, f, k = sizes["width"], sizes["hidden"], sizes["classes"]
    _, w = pooled_of(sizes)
    blocks = []
    for block in range(sizes["blocks"]):
        left = d + 1 if sizes["pooling"] == "attention" and block == sizes["blocks"] - 1 else d
        of_a_block = [("qkv", d, 3 * d), ("proj", d, left), ("fc1", d, f), ("fc2", f, left)]
        blocks += [(f"{block}.{name}", a, b) for name, a, b in of_a_block]
    shapes = [("embedding", x, d), *([("norm_pre", d, d)] if sizes["norm_pre"] else []), *blocks, ("head", w, k)]
    return [(name, a, b, (8 if sizes["whole"] or name.endswith(".qkv") else 5) * a * b) for name, a, b in shapes]


def patches_of(sizes: dict[str, Any]) -> int:
    found: int = (sizes["side"] // sizes["patch"]) ** 2
    return found


def tokens_of(sizes: dict[str, Any]) -> int:
    prefix: int = sizes["prefix"]
    return prefix + patches_of(sizes)


def pooled_of(sizes: dict[str, Any]) -> tuple[int, int]:
    """R and W: tokens that the last LayerNorm takes, words that the head reads."""
    p, d = patches_of(sizes), sizes["width"]
    found: dict[str, tuple[int, int]] = {
        "token": (1, d),
        "two tokens": (2, 2 * d),
        "mean": (1, d),
        "mean of normalised": (p, d),
        "attention": (0, d + 1),
    }
    return found[sizes["pooling"]]


def read_terms(encoded: bytes, form: Map = TERMS) -> dict[str, Any]:
    found = decode(form, encoded, TERMS_LIMIT)
    sizes = found["sizes"]
    require(sizes["side"] % sizes["patch"] == 0 and sizes["width"] % sizes["heads"] == 0, "MALFORMED")
    require(sizes["patch"] * sizes["patch"] * sizes["channels"] <= LARGEST_PIXELS, "MALFORMED")
    require(len(sizes["forms"]) in (0, sizes["blocks"]), "MALFORMED")
    results = found["results"]
    require((results["labels"] > 0) != (results["bits"] > 0), "MALFORMED")
    t = tokens_of(sizes)
    require(2 <= t <= LARGEST_TOKENS and sizes["heads"] * t * t <= LARGEST_SCORES, "MALFORMED")
    require(sum(a * b for _, a, b, _ in layers_of(sizes)) <= LARGEST_WEIGHTS, "MALFORMED")
    return found


def terms_digest(encoded: bytes) -> bytes:
    return digest(INFERENCE_TERMS, encoded)


def rounds_of(sizes: dict[str, Any], images: int, labels: int = 0) -> list[tuple[str, int, int]]:
    """Operation, bytes of the model owner, bytes of the data owner: the table of *Rounds*."""
    n, t, d, h = images, tokens_of(sizes), sizes["width"], sizes["heads"]
    f, p, k = sizes["hidden"], patches_of(sizes), sizes["classes"]
    r, w = pooled_of(sizes)
    x = sizes["patch"] * sizes["patch"] * sizes["channels"]
    mixing = 5 * n * h * t * t + 4 * n * t * h
    mixed = 3 * n * t * d + 8 * n * t * h
    divided, divided_again = ([octets * n * h * t * t + 4 * n * t * h, 8 * n * t * h] for octets in (5, 4))

    def normalisation(name: str, rows: int) -> list[tuple[str, int, int]]:
        return [(name, size, size) for size in (3 * rows * d, 4 * rows, 8 * rows)]

    first = [("embedding", 0, 5 * n * p * x)]
    if sizes["norm_pre"]:
        first += [*normalisation("norm pre", n * t), ("norm pre", 0, 5 * n * t * d)]

    def block(form: dict[str, int]) -> list[tuple[str, int, int]]:
        squarings, activated = form["squarings"], (form["hidden_bits"] + 7) // 8 * n * t * f
        lifted = 3 * n * t * f + 4 * n * t
        softmax = [2 * n * h * t * t + 8 * n * t * h]
        if squarings:
            softmax += divided + [3 * n * h * t * t, *divided_again] * squarings
        return [
            *normalisation("layer norm 1", n * t),
            ("qkv", 0, 8 * n * t * d),
            ("scores", 15 * n * t * d, 15 * n * t * d),
            *(("softmax", size, size) for size in softmax),
            ("mixing", mixing, mixing),
            ("mixing", mixed, mixed),
            ("projection", 0, 5 * n * t * d),
            *normalisation("layer norm 2", n * t),
            ("fc1", 0, 5 * n * t * d),
            ("gelu", activated, activated),
            ("gelu", lifted, lifted),
            ("fc2", 0, 5 * n * t * f),
        ]

    forms = sizes["forms"] or [{"squarings": 0, "hidden_bits": 16}] * sizes["blocks"]
    pooling = {"mean": p * d, "attention": w}.get(sizes["pooling"], 0)
    last = [
        *([("pooling", 3 * n * pooling, 3 * n * pooling)] if pooling else []),
        *(normalisation("final norm", n * r) if r else []),
        ("head", 0, 5 * n * w),
        ("count", 4, 4),
        ("range", 8, 8),
        *(("ranking", n * size, n * size) for size in (ranking_bytes(k, labels) if labels else ())),
        ("result", 2 * n * labels if labels else 4 * n * k, 0),
    ]
    return first + [each for form in forms for each in block(form)] + last


def ranking_bytes(classes: int, labels: int) -> list[int]:
    """Of the rounds in which an image's best labels are found, by *Ranking*."""
    plan, left = [], classes
    while left > 128 and left > 8 * labels:
        whole, rest = divmod(left, 8 * labels)
        plan.append((whole + (rest > 0), 8 * labels))
        left = whole * labels + min(rest, labels)
    plan.append((1, left))
    found = []
    for number, (groups, size) in enumerate(plan, 1):
        found += [2 * groups * size * (size - 1), 4 * groups * size]
        if len(plan) > 1:
            found.append(3 * groups * size * (labels + (1 if number == len(plan) else 2)))
    return found


def passes_of(images: int, batch: int) -> list[int]:
    """How many images each pass has."""
    return [min(batch, images - start) for start in range(0, images, batch)]

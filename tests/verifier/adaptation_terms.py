"""Messages, terms and rounds of double-blind adaptation: docs/spec/messages.md and docs/spec/adaptation.md."""

from typing import Any

from constants import ADAPTATION_VERSION, DETAIL_LIMIT, LARGEST_COHORT, require
from encoding import Array, Integer, Map, Text, choice
from inference_terms import INFERENCE_BODIES, TERMS, read_terms, rounds_of, tokens_of
from messages import HASH, NAME, NUMBER, Family

ROUND = Integer(1, 2**31)
SHARED_TYPES = (
    "inference-hello", "inference-terms", "agree-terms", "masked-weights", "start-pass", "audit-commitment",
    "audit-coin", "audit-keys", "pass-started", "opening", "close-inference", "inference-closed", "abort",
)  # fmt: skip
ADAPTATION_BODIES = {kind: INFERENCE_BODIES[kind] for kind in SHARED_TYPES} | {
    "compare-kept": Map(images=NUMBER, chain=HASH, uses=NUMBER, steps=Integer(1, 2**20)),
    "kept-compared": Map(images=NUMBER, chain=HASH, uses=NUMBER),
    "choose-images": Map(images=Array(1024, NUMBER)),
    "begin-round": Map(number=ROUND, based=NUMBER, done=NUMBER, count=NUMBER),
    "round-begun": Map(done=NUMBER),
    "keep-round": Map(number=ROUND, secret=HASH),
    "ask-sum": Map(number=ROUND, survivors=Array(LARGEST_COHORT, NAME)),
    "own-sum": Map(number=ROUND, chunk=NUMBER),
    "sum-lost": Map(number=ROUND, detail=Text(DETAIL_LIMIT)),
}
ADAPTATION = Family(ADAPTATION_BODIES, ("masked-weights", "audit-keys", "opening", "own-sum"), ADAPTATION_VERSION)
LEARNING = Map(
    adapters=Integer(0, 256),
    rank=Integer(1, 1024),
    classes=Integer(2, 4096),
    batch=Integer(1, 1024),
    cut=Integer(1, 38),
    gradient=Integer(1, 64),
)
ADAPTATION_TERMS = Map(
    **TERMS.fields,
    purpose=choice("learning", "prediction"),
    learning=LEARNING,
    rounds=Integer(1, 2**20),
    smallest_cohort=Integer(2, LARGEST_COHORT),
    least_count=NUMBER,
)


def read_adaptation_terms(encoded: bytes) -> dict[str, Any]:
    found = read_terms(encoded, ADAPTATION_TERMS)
    require(found["learning"]["adapters"] in (0, found["sizes"]["blocks"]), "MALFORMED")
    return found


def parameters_of(terms: dict[str, Any]) -> int:
    """P."""
    sizes, learning = terms["sizes"], terms["learning"]
    t, d, r = tokens_of(sizes), sizes["width"], learning["rank"]
    return learning["adapters"] * (2 * r * (t + d) + 1) + learning["classes"] * (d + 1)


def sum_words(terms: dict[str, Any]) -> int:
    return parameters_of(terms) + 4


def weight_of(count: int, least: int) -> int:
    """*Weights*."""
    if least == 0:
        return 1
    return min(max(16 * count // least, 16), 32)


def rounds_of_blocks(sizes: dict[str, Any], images: int) -> list[tuple[str, int, int]]:
    """`embedding`, and those of the blocks."""
    found = rounds_of(sizes, images)
    return found[: [name for name, _, _ in found].index("final norm")]


def adaptation_rounds(terms: dict[str, Any], images: int) -> list[tuple[str, int, int]]:
    """*Rounds of a step*, and *A prediction*."""
    learns = terms["purpose"] == "learning"
    sizes, learning = terms["sizes"], terms["learning"]
    n, t, d = images, tokens_of(sizes), sizes["width"]
    a, r, c, p = learning["adapters"], learning["rank"], learning["classes"], parameters_of(terms)
    b, g = -(-(40 - learning["cut"]) // 8), -(-learning["gradient"] // 8)
    ntd, ntr, nrd = n * t * d, n * t * r, n * r * d
    nrr, forwards, backwards = n * r * r, [], []
    for adapter in range(a):
        read = 1 if adapter == a - 1 else t
        small = r * read + r * d
        forwards += [
            4 * ntd, 8 * (ntd + r * d) + 4 * n * t, 4 * ntr, 8 * (ntr + r * d) + 4 * n * t, 4 * ntd, 8 * (ntd + r * t),
            4 * nrd, 8 * (nrd + r * read + learns) + 4 * n * r, 4 * n * read * d + 8,
        ]  # fmt: skip
        backwards[:0] = [
            8 * n * read * d + 4 * (small + nrr), 8 * (n * read * d + small + nrr) + 4 * n,
            12 * nrd + g * small, 7 * nrd + 8 * small, 4 * nrr, 8 * nrr, 12 * ntr, 7 * ntr,
        ]  # fmt: skip
    head = [
        ("norm", 4 * n * d), ("norm", 4 * n), ("norm", 8 * n), ("norm", 4 * n * d), ("head", 8 * (n * d + c * d)),
    ]  # fmt: skip
    head_backwards = [
        ("softmax", 22 * n * c), ("softmax", 8 * n * c + 4 * n), ("softmax", 12 * n), ("softmax", 4 * n * c),
        ("head backwards", 8 * (2 * n * c + n * d + c * d)), ("norm backwards", 12 * n * d),
        ("norm backwards", 8 * n), ("norm backwards", 8 * n), ("norm backwards", 4 * n * d + 8 * n),
    ]  # fmt: skip
    step = [
        ("lift", b * (a * t or 1) * n * d + 7 * p),
        ("parameters", 4 * (5 * a + 2)),
        *(("adapter", size) for size in forwards),
        *head,
    ]
    if learns:
        step += [*head_backwards, *(("adapter backwards", size) for size in backwards)]
        step += [("parameters backwards", g * p), ("parameters after", 4 * p), ("parameters after", 4 * (5 * a + 2))]
        step += [("count", 4), ("choice", 8 * (p + 3))]
    found = [(name, size, size) for name, size in step]
    if learns:
        return found
    found = rounds_of_blocks(sizes, images) + found
    results = rounds_of(sizes | {"classes": c}, images, terms["results"]["labels"])
    return found + results[[name for name, _, _ in results].index("count") :]

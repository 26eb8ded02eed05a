"""Messages, terms and rounds of double-blind adaptation: docs/spec/messages.md and docs/spec/adaptation.md."""

from typing import Any

from constants import ADAPTATION_VERSION, DETAIL_LIMIT, LARGEST_COHORT, TOLD_BLOCKS, require
from encoding import Array, Integer, Map, Text, choice
from inference_terms import INFERENCE_BODIES, TERMS, read_terms, rounds_of, tokens_of
from messages import HASH, NAME, NUMBER, Family
from primitives import digest

ROUND = Integer(1, 2**31)
SHARED_TYPES = (
    "inference-hello", "inference-terms", "agree-terms", "masked-weights", "start-pass", "pass-started", "opening",
    "close-inference", "inference-closed", "abort",
)  # fmt: skip
ADAPTATION_BODIES = {kind: INFERENCE_BODIES[kind] for kind in SHARED_TYPES} | {
    "begin-round": Map(number=ROUND, based=NUMBER, done=NUMBER, count=NUMBER),
    "round-begun": Map(done=NUMBER),
    "keep-round": Map(number=ROUND, secret=HASH),
    "ask-sum": Map(number=ROUND, survivors=Array(LARGEST_COHORT, NAME)),
    "own-sum": Map(number=ROUND, chunk=NUMBER),
    "sum-lost": Map(number=ROUND, detail=Text(DETAIL_LIMIT)),
}
ADAPTATION = Family(ADAPTATION_BODIES, ("masked-weights", "opening", "own-sum"), ADAPTATION_VERSION)
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
    reveal=choice("none", "sampled", "all"),
    selection=choice("data-owner", "enrolment"),
    learning=LEARNING,
    rounds=Integer(1, 2**20),
    smallest_cohort=Integer(2, LARGEST_COHORT),
    least_count=NUMBER,
)


def read_adaptation_terms(encoded: bytes) -> dict[str, Any]:
    found = read_terms(encoded, ADAPTATION_TERMS)
    require(found["learning"]["adapters"] in (0, found["sizes"]["blocks"]), "MALFORMED")
    require(found["selection"] == "data-owner" or found["reveal"] != "none", "MALFORMED")
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


def told_of(terms: dict[str, Any], session: bytes, number: int) -> list[bool]:
    """Which outputs are told in a pass, of the first block first."""
    blocks = terms["sizes"]["blocks"]
    if terms["reveal"] != "sampled":
        return [terms["reveal"] == "all"] * blocks
    coins = int.from_bytes(digest(TOLD_BLOCKS, session, number.to_bytes(8, "little")), "little")
    told = [True]
    for block in range(blocks - 1, 0, -1):
        told.insert(0, not told[0] and coins >> (block - 1) & 1 == 1)
    return told


def told_rounds(sizes: dict[str, int], images: int, told: list[bool]) -> list[tuple[str, int, int]]:
    """A pass that tells outputs: *Told outputs*."""
    n, ntd = images, images * tokens_of(sizes) * sizes["width"]
    (embedding, *rest), before = rounds_of(sizes, "shared", images), False
    block = rest[: [name for name, _, _ in rest].index("fc2") + 1]
    found = [embedding]
    for index, tells in enumerate(told):
        found += [each for each in block if not (before and each[0] == "layer norm 1")]
        if tells:
            relative = 4 * n if any(told[:index]) else 0
            labels = 5 * n if index + 1 == len(told) else 0
            found += [("shuffle", 4 * n, 5 * (ntd + n)), ("result", 5 * ntd + relative + labels, 0)]
        before = tells
    return [*found, ("count", 4, 4), ("range", 8, 8)]


def enrolment_rounds(terms: dict[str, Any], number: int, enrolled: int) -> list[tuple[str, int, int]]:
    """What the first pass begins with: *Enrolment*."""
    if number > 1 or terms["selection"] == "data-owner":
        return []
    sizes = terms["sizes"]
    words = (tokens_of(sizes) - 1) * sizes["channels"] * sizes["patch"] ** 2 + 1
    return [("shuffle", 4 * enrolled, 5 * enrolled * words)]


def adaptation_rounds(
    terms: dict[str, Any], images: int, session: bytes, number: int, enrolled: int
) -> list[tuple[str, int, int]]:
    """Of the pass of this number in a session: *Rounds of a pass*, and *Told outputs*."""
    learns = terms["purpose"] == "learning"
    if learns and terms["reveal"] != "none":
        told = told_rounds(terms["sizes"], images, told_of(terms, session, number))
        return enrolment_rounds(terms, number, enrolled) + told
    sizes, learning = terms["sizes"], terms["learning"]
    n, t, d = images, tokens_of(sizes), sizes["width"]
    a, r, c, p = learning["adapters"], learning["rank"], learning["classes"], parameters_of(terms)
    b, g = -(-(40 - learning["cut"]) // 8), -(-learning["gradient"] // 8)
    of_inference = rounds_of(sizes, "shared", images)
    first_norm = [name for name, _, _ in of_inference].index("final norm")
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
        ("lift", b * max(a, 1) * ntd + 7 * p),
        ("parameters", 4 * (5 * a + 2)),
        *(("adapter", size) for size in forwards),
        *head,
    ]
    if learns:
        step += [*head_backwards, *(("adapter backwards", size) for size in backwards)]
        step.append(("parameters backwards", g * p))
    found = of_inference[:first_norm] + [(name, size, size) for name, size in step]
    if learns:
        return [*found, ("count", 4, 4), ("range", 8, 8)]
    results = rounds_of(sizes | {"classes": c}, "shared", images, terms["results"]["labels"])
    return found + results[[name for name, _, _ in results].index("count") :]

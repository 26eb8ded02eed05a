"""Which outputs are told, its distribution enumerated, and what a pass sends then, counted by hand."""

from __future__ import annotations

import hashlib
from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest

from tacit.models.adapters.sampling import chain
from tacit.protocol.adaptation.schedule import enrolment_rounds, told_rounds
from tacit.protocol.adaptation.told import MOST_BLOCKS, sampled, told_blocks
from tacit.protocol.inference.schedule import Round, Sizes, block_rounds, embedding_rounds, range_rounds
from tests.protocol.inference.totals import by_operation

SESSION = bytes(range(32))
SIZES = Sizes(side=8, channels=1, patch=4, width=16, heads=2, hidden=64, blocks=4, classes=3)


@pytest.mark.parametrize("blocks", range(1, 8))
def test_samples_of_all_coins_are_those_of_training_in_the_clear_and_stationary(blocks: int) -> None:
    counts: Counter[tuple[bool, ...]] = Counter()
    for coins in product((False, True), repeat=blocks - 1):
        told = sampled(coins)
        assert list(told) == chain(np.array(coins, dtype=np.bool_)).tolist()
        counts[told] += 1
    # The chain forwards from its stationary start: one half where none was told, nothing where one was.
    law: dict[tuple[bool, ...], Fraction] = {(True,): Fraction(1, 3), (False,): Fraction(2, 3)}
    for _ in range(blocks - 1):
        law = {
            (*told, tells): probability if told[-1] else probability / 2
            for told, probability in law.items()
            for tells in ((False,) if told[-1] else (False, True))
        }
    found = {told: Fraction(count, 2 ** (blocks - 1)) for told, count in counts.items()}
    assert found == {told: 3 * probability for told, probability in law.items() if told[-1]}


def test_coins_are_the_bits_of_a_digest_of_session_and_pass() -> None:
    for number in (1, 2, 300):
        framed = b""
        for part in (b"tacit/1 told blocks", SESSION, number.to_bytes(8, "little")):
            framed += len(part).to_bytes(8, "little") + part
        octets = hashlib.sha256(framed).digest()
        coins = [bool(octets[block // 8] >> block % 8 & 1) for block in range(MOST_BLOCKS - 1)]
        assert told_blocks("sampled", MOST_BLOCKS, session=SESSION, number=number) == sampled(coins)


def test_a_sample_is_drawn_for_every_pass_and_has_the_last_block_and_no_neighbours() -> None:
    samples = [told_blocks("sampled", 12, session=SESSION, number=number) for number in range(1, 101)]
    assert all(told[-1] and not any(one and other for one, other in pairwise(told)) for told in samples)
    # 89 samples have neither neighbours nor a gap in front: two passes of twelve blocks seldom have the same.
    assert len(set(samples)) > 30
    assert told_blocks("sampled", 12, session=bytes(32), number=1) != samples[0]
    assert told_blocks("sampled", 1, session=SESSION, number=1) == (True,)
    assert told_blocks("all", 3, session=SESSION, number=1) == (True,) * 3
    assert told_blocks("none", 3, session=SESSION, number=1) == (False,) * 3


@pytest.mark.parametrize("blocks", [0, MOST_BLOCKS + 1])
def test_more_blocks_than_coins_are_refused(blocks: int) -> None:
    with pytest.raises(ValueError, match=f"of {blocks} blocks none can be drawn"):
        told_blocks("sampled", blocks, session=SESSION, number=1)


def test_what_telling_costs_is_declared() -> None:
    """3 images of 5 tokens of 16 values: 240 words of 5 bytes, one more for the label of each image."""
    rounds = told_rounds(SIZES, 3, (True, False, False, True))
    blocks = [block_rounds(SIZES, 3, known=known, told=False) for known in (False, True, False, False)]
    assert [len(block) for block in blocks] == [15, 12, 15, 15]
    assert rounds == (
        *embedding_rounds(SIZES, 3, known=False),
        *blocks[0],
        Round("shuffle", 12, 1215),
        Round("result", 1200, 0),
        *blocks[1],
        *blocks[2],
        *blocks[3],
        Round("shuffle", 12, 1215),
        Round("result", 1200 + 12 + 15, 0),
        *range_rounds(),
    )
    every = told_rounds(SIZES, 3, (True,) * 4)
    assert by_operation(every)["layer norm 1"][2] == 3
    assert by_operation(every)["result"] == (1200 + 2 * 1212 + 1227, 0, 4)


def test_what_enrolment_costs_is_declared() -> None:
    """4 patches of 16 pixels and a label: 65 words of 5 bytes for each of 3 images, against 3 numbers of 4 bytes."""
    assert enrolment_rounds(SIZES, 3) == (Round("shuffle", 12, 975),)


@pytest.mark.parametrize("told", [(True,) * 3, (True,) * 5, (True, True, True, False), (False,) * 4])
def test_the_last_output_is_always_told(told: tuple[bool, ...]) -> None:
    with pytest.raises(ValueError, match="of 4 blocks the last always is"):
        told_rounds(SIZES, 3, told)

"""One opened value per mask, and a mask that an owner knows hides nothing that is opened to it.

Recorded of whole passes: what each request was drawn, what was opened, and to whom. Every opened word is the sum of a
share and of a part of a mask; both are found again in what was recorded, none of them twice.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tacit.parties.correlated.material import request_stream
from tacit.parties.inference.material import Fixed, Lookup, Matrix, Narrow, Scores, Waves
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import COUNTED
from tacit.protocol.inference.schedule import PLACE, RANGE, VECTORS, WORD_BITS
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_memory import Pass

Opened = tuple[tuple[int, ...], int]
"""A shape, and the bits of its words."""


def masks(request: object) -> list[Opened]:
    if isinstance(request, Narrow):
        factor = [] if request.factor is None else [(request.factor, WORD_BITS)]
        return [(request.shape, request.bits), *factor]
    if isinstance(request, Waves):
        return [(request.shape, request.bits)]
    if isinstance(request, Lookup):
        return [(request.shape, PLACE)]
    if isinstance(request, Scores):
        return [(request.shape, VECTORS)] * 2
    if isinstance(request, Matrix):
        return [(request.left, request.words), (request.right, request.words)]
    return []


@pytest.mark.parametrize("kind", ["one_block", "stock_block", "squared_block"])
def test_every_mask_hides_one_opened_value(request: pytest.FixtureRequest, kind: str) -> None:
    model: Transformer = request.getfixturevalue(kind)
    run = Pass(model.friendly, model.fitted, model.images[:2])
    assert run.finish()
    to_both: Counter[Opened] = Counter()
    to_model_owner: Counter[Opened] = Counter()
    for one, other in run.pair.exchanges:
        if one.operation in ("result", RANGE):
            continue  # What shall be known.
        mutual = Counter((tuple(words.shape), bits) for words, bits in one.sent)
        to_both += mutual
        to_model_owner += Counter((tuple(words.shape), bits) for words, bits in other.sent) - mutual
    expected = Counter(mask for each in run.pair.requests for mask in masks(each))
    assert to_both == expected
    # What the data owner alone tells is hidden by the mask that it drew alone, one for every use of a weight.
    fixed = [each for each in run.pair.requests if isinstance(each, Fixed)]
    assert to_model_owner == Counter(((*each.rows, each.weight_shape[0]), each.words) for each in fixed)
    assert all(not each.free(MODEL) and each.free(DATA) for each in fixed)
    # Each request is drawn once, from a place of its own in either stream.
    assert run.pair.taken == [len(run.pair.requests)] * 2
    assert [each for each in run.pair.requests if each == COUNTED] == [COUNTED]


def test_neither_owner_draws_a_whole_mask_of_what_is_opened_to_it(squared_block: Transformer) -> None:
    run = Pass(squared_block.friendly, squared_block.fitted, squared_block.images[:1])
    assert run.finish()
    for number, each in enumerate(run.pair.requests):
        if not masks(each):
            continue
        for draws in (each.free(MODEL), each.free(DATA)):
            # Both draw a part of it, so that neither knows the sum.
            assert draws[0].shape == masks(each)[0][0]
        mine, yours = (
            request_stream(run.pair.keys[rank], number).draw(each.free(rank)[0].shape, each.free(rank)[0].bits)
            for rank in (MODEL, DATA)
        )
        if mine.numel() > 4:
            assert not mine.equal(yours)


def test_the_same_pass_opens_other_words_each_time(one_block: Transformer) -> None:
    found = []
    for _ in range(2):
        run = Pass(one_block.friendly, one_block.fitted, one_block.images[:2])
        assert run.finish()
        found.append(run.pair.exchanges)
    compared = 0
    for (one, other), (again, another) in zip(*found, strict=True):
        if one.operation in ("result", RANGE):
            continue
        for before, after in zip((*one.sent, *other.sent), (*again.sent, *another.sent), strict=True):
            words, bits = before
            same = signed(words - after[0], bits) == 0
            # By chance one in 2^bits, which is at least 2^16.
            assert same.sum() < 4
            compared += words.numel()
    assert compared > 4000

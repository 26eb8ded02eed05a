"""The best labels, found on shares: those of a stable sort, whatever the logits; at the cost that is declared."""

from itertools import product

import pytest
import torch

from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ranking import Ranking, check, ranking_requests, rankings, reduced, result_requests
from tacit.protocol.inference.schedule import (
    MOST_LABELS,
    RANKED,
    RANKED_TOGETHER,
    STREAM,
    Results,
    Round,
    ranking_rounds,
    ranking_steps,
)
from tests.parties.inference.in_memory import Pair, shares

LARGEST = 1 << (RANKED - 2)
"""What a logit is below."""


def best(words: torch.Tensor, labels: int) -> torch.Tensor:
    """The numbers of the greatest, the first of equal ones first."""
    return words.sort(dim=1, descending=True, stable=True).indices[:, :labels]


def ranked(words: torch.Tensor, labels: int, pair: Pair | None = None) -> torch.Tensor:
    """What comes out of logits [images, classes], after the cost was compared."""
    pair = pair or Pair()
    images, classes = words.shape
    runs = [Ranking(party, images, classes, labels) for party in pair.parties]
    found = pair.run(*(run.run(share) for run, share in zip(runs, shares(words), strict=True)))
    assert tuple(pair.requests) == ranking_requests(images, classes, labels)
    assert tuple(pair.log) == ranking_rounds(classes, labels, images)
    return sum(found) & ((1 << RANKED) - 1)


@pytest.mark.parametrize(("classes", "labels"), [(2, 1), (3, 1), (3, 2), (4, 3)])
def test_all_orders_of_few_classes_with_all_their_ties(classes: int, labels: int) -> None:
    words = torch.tensor(list(product(range(classes), repeat=classes))) - 1
    assert ranked(words, labels).equal(best(words, labels))


@pytest.mark.parametrize("classes", [2, 3])
def test_logits_at_the_ends_of_their_range(classes: int) -> None:
    words = torch.tensor(list(product((1 - LARGEST, -LARGEST // 2, -1, 0, 1, LARGEST - 1), repeat=classes)))
    assert ranked(words, 1).equal(best(words, 1))


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (10, 1),
        (10, 9),
        # In two steps: a last group of 1, of fewer than are kept, and of all.
        (RANKED_TOGETHER + 1, 1),
        (RANKED_TOGETHER + 33, 4),
        (2 * RANKED_TOGETHER, 4),
        (RANKED_TOGETHER + 1, MOST_LABELS),
        # In three.
        (1100, 1),
    ],
)
def test_many_classes(classes: int, labels: int) -> None:
    generator = torch.Generator().manual_seed(classes + labels)
    words = torch.randint(1 - LARGEST, LARGEST, (4, classes), generator=generator)
    words[1] = words[1] % 3  # Hardly any differ, and of these the best are no more than one another.
    words[2] = -1
    words[3] = words[3].sort().values  # The best are in the last group.
    assert ranked(words, labels).equal(best(words, labels))


def test_as_many_steps_as_classes_need() -> None:
    sizes = {
        (2, 1): [(1, 2, 1)],
        (128, 1): [(1, 128, 1)],
        (129, 1): [(17, 8, 1), (1, 17, 1)],
        (1000, 1): [(125, 8, 1), (1, 125, 1)],
        (1000, 5): [(25, 40, 5), (1, 125, 5)],
        (129, 16): [(2, 128, 16), (1, 17, 16)],
        (1 << 16, 1): [(8192, 8, 1), (1024, 8, 1), (128, 8, 1), (1, 128, 1)],
    }
    assert {case: [tuple(step) for step in ranking_steps(*case)] for case in sizes} == sizes
    assert sum(step.groups * step.pairs for step in ranking_steps(1000, 1)) == 11_250


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("images", [1, 5])
def test_the_data_owner_is_told_labels_of_two_bytes_and_nothing_else(
    images: int, labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.parties.inference.ranking._COMPARED", 2 * 45)  # Two images of ten classes.
    results, scale = Results(labels=labels, bits=0), 2.0**28
    words = torch.randn(images, 10, generator=torch.Generator().manual_seed(images)).mul(scale).long()
    pair = Pair()
    ready = [rankings(party, images, 10, results) for party in pair.parties]
    assert tuple(pair.requests) == result_requests(images, 10, results)
    model_owners, told = pair.run(
        *(
            reduced(party, share, scale, results, each)
            for party, share, each in zip(pair.parties, shares(words), ready, strict=True)
        )
    )
    assert told.equal(best(words >> (STREAM - RANKED), labels))
    assert not model_owners.any()
    assert tuple(pair.log) == (*ranking_rounds(10, labels, images), Round("result", 2 * images * labels, 0))


def test_what_owners_tell_each_other_is_uniform() -> None:
    """Although all logits are the same. Of n fair bits the mean is off by 7 deviations hardly once in 3e11 times."""
    pair = Pair()
    ranked(torch.zeros(10, 150, dtype=torch.int64), 2, pair)
    for one, other in pair.exchanges:
        for (first, bits), (second, _) in zip(one.sent, other.sent, strict=True):
            for words in (first, second, first + second):
                ones = torch.stack([((words >> bit) & 1).double().mean() for bit in range(bits)])
                assert ((ones - 0.5).abs() * 2 * words.numel() ** 0.5).max() < 7
    assert len(pair.exchanges) == 6
    assert pair.exchanges[0][MODEL].operation == pair.exchanges[0][DATA].operation == "ranking"


@pytest.mark.parametrize(("labels", "classes"), [(1, 1), (2, 2), (10, 10), (MOST_LABELS + 1, 1000)])
def test_more_labels_than_make_sense_are_refused(labels: int, classes: int) -> None:
    with pytest.raises(ValueError, match=rf"the {labels} best labels of {classes} classes cannot be told: at most 16"):
        check(2.0**28, classes, Results(labels=labels, bits=0))

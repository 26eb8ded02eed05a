"""Features come out of the gradients of a head: of copies in one round, of others as rounds add up."""

import pytest
import torch
from torch.nn.functional import one_hot

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.adapters.gradients import descent, stepped
from tacit.models.adapters.parallel import AdapterParameters, FinalNorm, each, initial
from tests.adversary.colluders import (
    HeadGradient,
    feature_of_copies,
    features_of,
    gradient_between,
    imitated,
    labels_of,
    standardised,
)

CLASSES, WIDTH, RATE = 4, 12, 0.5
LABELS = torch.tensor([0, 1, 1, 2, 2, 3, 3])


def features(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return standardised(1 + torch.randn(count, WIDTH, generator=generator, dtype=torch.float64))


def rounds(found: torch.Tensor, labels: torch.Tensor, copies: torch.Tensor, count: int) -> list[HeadGradient]:
    weight, bias = torch.zeros(CLASSES, WIDTH, dtype=torch.float64), torch.zeros(CLASSES, dtype=torch.float64)
    seen = []
    for _ in range(count):
        off = (found @ weight.T + bias).softmax(-1) - one_hot(labels, CLASSES)
        off = off * (copies / copies.sum())[:, None]
        seen.append(HeadGradient(weight=weight, bias=bias, by_weight=off.T @ found, by_bias=off.sum(0)))
        weight, bias = weight - RATE * seen[-1].by_weight, bias - RATE * seen[-1].by_bias
    return seen


def parameters(seed: int) -> AdapterParameters:
    shape = initial(LinearProbeConfiguration(), blocks=1, tokens=3, width=WIDTH, classes=CLASSES, seed=1)
    generator = torch.Generator().manual_seed(seed)
    return each(lambda tensor: torch.randn(tensor.shape, generator=generator, dtype=torch.float64), shape)


def test_between_two_common_heads_is_the_gradient_of_who_has_learned() -> None:
    before, tokens = parameters(1), torch.randn(1, len(LABELS), 3, WIDTH, dtype=torch.float64)
    norm = FinalNorm.plain(WIDTH, 0.0)
    gradient = descent(before, norm, tokens, LABELS).gradient
    # Two of five owners have had this batch.
    after = each(lambda one, other: (2 * one + 3 * other) / 5, stepped(before, gradient, RATE), before)
    found = gradient_between(before, after, rate=RATE, owners=5, learned=2)
    torch.testing.assert_close(found.by_weight, gradient.head_weight)
    torch.testing.assert_close(found.by_bias, gradient.head_bias)
    assert found.weight is before.head_weight
    assert found.bias is before.head_bias


def test_copies_give_their_feature_exactly() -> None:
    true = features(1)
    seen = rounds(true, torch.tensor([2]), torch.tensor([16]), 3)
    for count in (1, 3):
        torch.testing.assert_close(feature_of_copies(seen[:count]), true[0])
    torch.testing.assert_close(labels_of(seen[0], images=16), torch.full((16,), 2))


def test_one_round_gives_one_image_less_than_there_are_classes() -> None:
    true, labels, copies = features(CLASSES - 1), torch.tensor([0, 1, 3]), torch.tensor([1, 5, 2])
    (first,) = rounds(true, labels, copies, 1)
    found = features_of([first], labels, copies, steps=500, seed=1)
    torch.testing.assert_close(found, true, atol=1e-4, rtol=0)


@pytest.mark.exhaustive
def test_more_images_need_more_rounds() -> None:
    true, copies = features(len(LABELS)), torch.ones(len(LABELS), dtype=torch.int64)
    seen = rounds(true, LABELS, copies, 4)
    assert labels_of(seen[0], images=len(LABELS)).equal(LABELS)

    def cosine(count: int) -> float:
        """The mean over the true images of that with the nearest of their class."""
        found = features_of(seen[:count], LABELS, copies, steps=1000, seed=1)
        same = LABELS[:, None] == LABELS
        cosines = (true @ found.T / WIDTH).masked_fill(~same, -1)
        return float(cosines.max(1).values.mean())

    # Three equations a round, for seven images.
    assert cosine(1) < 0.9
    assert cosine(4) > 0.99


def test_an_imitation_of_a_smooth_function_learns_with_images() -> None:
    images = torch.randn(300, 1, 2, 2, generator=torch.Generator().manual_seed(2))
    values = torch.stack([images.flatten(1).sum(1), images[:, 0, 0, 0] * images[:, 0, 1, 1]], 1).double().tanh()
    errors = [
        float((imitated(images[:count], values[:count], images[200:]) - values[200:]).norm() / values[200:].norm())
        for count in (1, 20, 200)
    ]
    assert errors[0] > errors[1] > errors[2]
    # 0.263 was measured; whoever gives zeros has 1.
    assert errors[2] < 0.3

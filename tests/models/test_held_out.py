from fractions import Fraction

import torch

from tacit.models.data import split
from tests.cases import cases


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@cases("part", [0.0, 0.1, 0.29, 0.3, 0.5])
@cases("count", [1, 2, 9, 10, 100])
def test_every_image_is_on_one_side(part: float, count: int) -> None:
    trained, kept = split(images(count), part, b"run")
    # As it is written in the file: 0.29 of 100 are 29, although 0.29 * 100 is less.
    assert len(kept) == int(Fraction(str(part)) * count)
    assert len(trained) > 0
    assert sorted([*trained.tolist(), *kept.tolist()]) == list(range(count))
    assert trained.tolist() == sorted(trained.tolist())


def test_the_side_of_an_image_follows_from_images_and_run() -> None:
    x = images(40)
    _, kept = split(x, 0.25, b"run")
    _, again = split(x.clone(), 0.25, b"run")
    assert kept.tolist() == again.tolist()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    _, moved = split(x[order], 0.25, b"run")
    assert sorted(order[moved].tolist()) == kept.tolist()
    _, other = split(x, 0.25, b"another run")
    assert other.tolist() != kept.tolist()


def test_what_is_kept_stays_kept_when_more_is_kept() -> None:
    x = images(40)
    few, more = (set(split(x, part, b"run")[1].tolist()) for part in (0.1, 0.4))
    assert few < more

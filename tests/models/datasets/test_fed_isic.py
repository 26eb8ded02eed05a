from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.models.configuration import DataConfiguration
from tacit.models.data import read
from tacit.models.datasets import fed_isic
from tacit.models.partition import divide

COLUMNS = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2\n"


def row(image: str, *, target: object = 0, centre: object = 0, fold: str = "train") -> str:
    return f"{image},0,0,0,0,0,0,0,0,0,{target},{centre},{fold},{fold}_{centre}\n"


TRAIN = [row(f"ISIC_{label:07d}", target=label, centre=label % 6) for label in range(8)]
TEST = [row("ISIC_0000100_downsampled", target=3, centre=5, fold="test"), row("ISIC_0000101", target=1, fold="test")]


@pytest.fixture
def root(tmp_path: Path, picture: Callable[..., None]) -> Path:
    """A training image in each of the eight classes, in six centres; two test images."""
    for line in TRAIN + TEST:
        path = tmp_path / "ISIC_2019_Training_Input_preprocessed" / f"{line.split(',')[0]}.jpg"
        picture(path, height=16, width=20)
    (tmp_path / "train_test_split").write_text(COLUMNS + "".join(TEST[:1] + TRAIN + TEST[1:]), encoding="utf-8")
    return tmp_path


def test_images_labels_and_centres(root: Path) -> None:
    source = fed_isic.read(root)
    assert source.class_names == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert source.train.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert source.test.labels.tolist() == [3, 1]
    assert source.train.centres is not None
    assert source.train.centres.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert source.test.centres is not None
    assert source.test.centres.tolist() == [5, 0]
    assert list(source.train.images.sizes()) == [(16, 20)] * 8
    assert list(source.test.images.sizes()) == [(16, 20)] * 2


def test_clients_have_the_centres_that_are_named_one_each(root: Path) -> None:
    order = (5, 1, 2)
    data = DataConfiguration(source="fed-isic2019", directory=str(root), partition="centre", centres=order)
    source = read(data)
    assert source.train.labels.tolist() == [1, 2, 5, 7]
    assert source.test.labels.tolist() == [3]
    assert [path.stem for path in source.train.images.paths] == [f"ISIC_{label:07d}" for label in (1, 2, 5, 7)]
    parts = divide(source.train.labels, data, clients=3, seed=0, centres=source.train.centres)
    assert [source.train.labels[part].tolist() for part in parts] == [[5], [1, 7], [2]]


def test_a_centre_without_training_images_is_refused(root: Path) -> None:
    lines = [line for line in TRAIN if ",4,train" not in line] + [row("x", target=4, centre=0)]
    (root / "train_test_split").write_text(COLUMNS + "".join(lines + TEST), encoding="utf-8")
    data = DataConfiguration(source="fed-isic2019", directory=str(root), centres=(1, 4))
    with pytest.raises(ValueError, match=r"data\.centres = \[1, 4\]: no training image is of centre 4"):
        read(data)

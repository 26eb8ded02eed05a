from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.models.datasets import npz


def write(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "images.npz"
    np.savez(path, **arrays)
    return path


def test_arrays_are_kept_as_they_are(tmp_path: Path, arrays: dict[str, Any]) -> None:
    source = npz.read(write(tmp_path, arrays))
    for samples, part in ((source.train, "train"), (source.test, "test")):
        count = len(arrays[f"x_{part}"])
        assert np.array_equal(samples.images.pixels(np.arange(count), size=99), arrays[f"x_{part}"])
        assert np.array_equal(samples.labels, arrays[f"y_{part}"])
        assert samples.labels.dtype == np.int64
        assert samples.centres is None
        assert list(samples.images.sizes()) == [(4, 6)] * count
    assert source.class_names == ("0", "1", "2")


LAYOUTS: dict[str, Any] = {
    "column": lambda y: y[:, np.newaxis],
    "one-hot": lambda y: np.eye(4, dtype=np.uint8)[y],
    "one-hot float": lambda y: np.eye(4)[y],
    "one-hot bool": lambda y: np.eye(4, dtype=bool)[y],
    "float": lambda y: y.astype(np.float32),
    "names": lambda y: np.array(["cat", "dog", "e\u0301mu"])[y],
    "bytes": lambda y: np.array([b"a", b"b", b"c"])[y],
    "column of names": lambda y: np.array(["cat", "dog", "emu"])[y][:, np.newaxis],
    "big-endian": lambda y: y.astype(">i2"),
}


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=9),
    layouts=st.tuples(*[st.sampled_from([name for name in LAYOUTS if ("name" in name) == named]) for named in (0, 1)]),
    named=st.booleans(),
    medical=st.booleans(),
)
def test_labels_in_every_layout_are_the_same_labels(
    tmp_path_factory: pytest.TempPathFactory,
    labels: list[int],
    layouts: tuple[str, str],
    named: bool,
    medical: bool,
) -> None:
    layout = layouts[named]
    y = {"train": np.array([0, 1, 2, *labels]), "test": np.array(labels)}
    x = {part: np.zeros((len(found), 3, 3), np.uint8) for part, found in y.items()}
    keys = ("{}_images", "{}_labels") if medical else ("x_{}", "y_{}")
    arrays = {keys[0].format(part): found for part, found in x.items()}
    arrays |= {keys[1].format(part): LAYOUTS[layout](found) for part, found in y.items()}
    if medical:
        arrays["val_images"] = x["test"]
    source = npz.read(write(tmp_path_factory.mktemp("npz"), arrays))
    assert (source.train.labels.tolist(), source.test.labels.tolist()) == (y["train"].tolist(), labels)
    assert source.train.labels.dtype == np.int64
    names = {"names": ("cat", "dog", "\u00e9mu"), "bytes": ("a", "b", "c"), "column of names": ("cat", "dog", "emu")}
    assert source.class_names == names.get(layout, tuple("0123")[: 4 if "hot" in layout else 3])
    assert [note.endswith("val_images not used") for note in source.notes] == [True] * medical
    assert ["1 of 4 classes have no training image: 3"] * ("hot" in layout) == list(source.remarked().notes[medical:])


def test_labels_that_do_not_begin_at_0_are_mentioned(tmp_path: Path, arrays: dict[str, Any]) -> None:
    arrays |= {name: arrays[name] + 2 for name in ("y_train", "y_test")}
    begin, empty = npz.read(write(tmp_path, arrays)).remarked().notes
    assert "labels begin at 2, not at 0" in begin
    assert empty == "2 of 5 classes have no training image: 0, 1"


REFUSED = [
    ("x_train", np.zeros((7, 4, 6, 2), dtype=np.float32), "x_train is float32"),
    ("x_train", np.zeros((7, 4), dtype=np.uint8), r"x_train is uint8 \[7, 4\]"),
    ("x_test", np.zeros((3, 4, 6, 3), dtype=np.uint8), "x_train has 2 channels, x_test has 3"),
    ("x_test", np.array([{}] * 3, dtype=object), "x_test cannot be read"),
    ("y_train", np.zeros(6, dtype=np.int64), r"y_train is int64 \[6\], expected integers \[7\]"),
    ("y_train", np.full((7, 3), 1), r"y_train is int64 \[7, 3\], with several labels, or none, for an image"),
    ("y_train", np.zeros((7, 1, 1), dtype=np.int64), r"y_train is int64 \[7, 1, 1\], .*; numpy\.unique"),
    ("y_train", np.array([0, 1, 2, 0, 1, 2, 0], object), r'y_train cannot be read: .*astype\("int64"\)'),
    ("y_train", np.array(list("abcabca")), "y_train holds names, and other labels are numbers"),
    ("x_train", np.ones((7, 4, 6, 2)) / 2, r'write \(x_train \* 255\)\.round\(\)\.astype\("uint8"\)'),
    ("x_train", np.full((7, 4, 6, 2), 3000, np.uint16), r'write \(x_train // 256\)\.astype\("uint8"\)'),
    ("x_train", np.full((7, 4, 6, 2), -2, np.int16), "its values go from -2 to -2: scale them"),
    ("y_train", np.array([0, 1, 2, 2**16, 0, 0, 0]), "y_train holds labels from 0 to 65536"),
]


@pytest.mark.parametrize(("name", "array", "message"), REFUSED)
def test_wrong_arrays_are_refused(
    tmp_path: Path, arrays: dict[str, Any], name: str, array: np.ndarray[Any, Any], message: str
) -> None:
    arrays[name] = array
    with pytest.raises(ValueError, match=message):
        npz.read(write(tmp_path, arrays))


def test_damaged_arrays_are_named(tmp_path: Path, arrays: dict[str, Any]) -> None:
    path = write(tmp_path, arrays)
    content = bytearray(path.read_bytes())
    content[content.index(arrays["x_train"].tobytes())] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="x_train cannot be read: Bad CRC-32"):
        npz.read(path)


@pytest.mark.parametrize("form", ["text", "empty", "npy", "truncated"])
def test_other_files_are_refused(tmp_path: Path, arrays: dict[str, Any], form: str) -> None:
    path = write(tmp_path, arrays)
    if form == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        path.write_bytes({"text": b"x_train", "empty": b"", "truncated": path.read_bytes()[:-100]}[form])
    with pytest.raises(ValueError, match=r"images\.npz' is not a readable \.npz file") as refusal:
        npz.read(path)
    assert "pickle" not in str(refusal.value), "nobody is told to load what could run"


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_before_height_and_width_are_refused(tmp_path: Path, channels: int) -> None:
    images, labels = np.zeros((5, channels, 32, 28), np.uint8), np.arange(5) % 2
    with pytest.raises(ValueError, match=rf"x_train is uint8 \[5, {channels}, 32, 28\], with channels before height"):
        npz.read(write(tmp_path, {"x_train": images, "y_train": labels}))
    turned = images.transpose(0, 2, 3, 1)
    assert npz.read(write(tmp_path, {"x_train": turned, "y_train": labels})).train.images.channels == channels

import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tacit.models import checkpoint
from tacit.models.layout import Flat, Layout, LayoutEntry

# Not in the order of their names, which is the order inside a safetensors file.
LAYOUT = Layout((LayoutEntry("b", (2, 3)), LayoutEntry("scale", ()), LayoutEntry("a", (4,))))
FLAT: Flat = np.arange(11, dtype=np.float32)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, layout=LAYOUT, flat=FLAT, metadata={"round": "3"})
    flat, metadata = checkpoint.load(path, LAYOUT)
    assert flat.dtype == np.float32
    assert flat.tobytes() == FLAT.tobytes()
    assert metadata == {"round": "3"}


def test_other_programs_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, layout=LAYOUT, flat=FLAT, metadata={})
    tensors = safetensors.numpy.load_file(path)
    assert tensors["b"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert tensors["scale"].tolist() == 6.0
    assert tensors["a"].tolist() == [7.0, 8.0, 9.0, 10.0]


def test_an_interrupted_save_leaves_the_earlier_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    checkpoint.save(path, layout=LAYOUT, flat=FLAT, metadata={"round": "1"})

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(path, layout=LAYOUT, flat=FLAT + 1, metadata={"round": "2"})
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]
    assert checkpoint.load(path, LAYOUT)[1] == {"round": "1"}


def test_a_later_save_replaces_the_earlier(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for number in (1, 2):
        checkpoint.save(path, layout=LAYOUT, flat=FLAT * number, metadata={"round": str(number)})
    flat, metadata = checkpoint.load(path, LAYOUT)
    assert flat.tolist() == (FLAT * 2).tolist()
    assert metadata == {"round": "2"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("flat", [FLAT[:-1], FLAT.astype(np.float64), np.full(11, np.nan, dtype=np.float32)])
def test_save_refuses_what_load_would_refuse(tmp_path: Path, flat: Flat) -> None:
    with pytest.raises(ValueError, match=r"expected float32|not finite"):
        checkpoint.save(tmp_path / "model.safetensors", layout=LAYOUT, flat=flat, metadata={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"no tensors here", b"\x00" * 64, b"\xff" * 64])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors' is not a safetensors file"):
        checkpoint.load(path, LAYOUT)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (LAYOUT.entries[1:], "another architecture: tensor 'b' is missing"),
        ((*LAYOUT.entries, LayoutEntry("c", (1,))), "another architecture: tensor 'c' is not part"),
        ((LayoutEntry("b", (3, 2)), *LAYOUT.entries[1:]), r"tensor 'b' has shape \[3, 2\], expected \[2, 3\]"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, other: tuple[LayoutEntry, ...], message: str) -> None:
    path = tmp_path / "model.safetensors"
    layout = Layout(other)
    checkpoint.save(path, layout=layout, flat=np.zeros(layout.size, dtype=np.float32), metadata={})
    with pytest.raises(ValueError, match=message):
        checkpoint.load(path, LAYOUT)


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {name: part.astype(np.float64) for name, part in LAYOUT.split(FLAT).items()}
    safetensors.numpy.save_file(tensors, path)
    with pytest.raises(ValueError, match="is F64, expected F32"):
        checkpoint.load(path, LAYOUT)


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({**LAYOUT.split(FLAT), "scale": np.array(np.inf, dtype=np.float32)}, path)
    with pytest.raises(ValueError, match=r"model\.safetensors': tensor 'scale' holds a value that is not finite"):
        checkpoint.load(path, LAYOUT)

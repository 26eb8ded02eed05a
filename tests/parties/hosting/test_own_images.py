"""The images of a client: all that its source has, or those that a file of indices names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.parties.hosting.client import own_images
from tacit.parties.hosting.party_file import ClientFile, OwnImagesConfiguration


def client(**data: Any) -> ClientFile:
    return ClientFile(key="a.key", connect="tcp://127.0.0.1:7007", data=OwnImagesConfiguration(**data))


def test_indices_choose_training_images_in_their_order(tmp_path: Path) -> None:
    everything = own_images(client())
    np.save(tmp_path / "mine.npy", np.array([7, 3, 1436]))
    mine = own_images(client(indices=str(tmp_path / "mine.npy")))
    assert mine.train.labels.tolist() == everything.train.labels[[7, 3, 1436]].tolist()
    assert len(mine.train.images) == 3
    assert len(mine.test.images) == len(everything.test.images)


def test_indices_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npy"
    for indices, complaint in (
        (np.array([0, 1437]), "names images that 'digits' lacks: it has 1437"),
        (np.array([-1]), "names images that 'digits' lacks"),
        (np.array([], np.int64), "is no list of int64"),
        (np.array([[1]]), "is no list of int64"),
        (np.array([0.5]), "is no list of int64"),
        (np.array([None]), "allow_pickle"),
    ):
        np.save(path, indices)
        with pytest.raises(ValueError, match=complaint):
            own_images(client(indices=str(path)))
    np.savez(tmp_path / "several.npz", indices=np.array([1]))
    for content in (b"nothing", b"", b"PK\x03\x04 a damaged archive", (tmp_path / "several.npz").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"mine\.npy"):
            own_images(client(indices=str(path)))
    with pytest.raises(OSError, match=r"absent\.npy"):
        own_images(client(indices=str(tmp_path / "absent.npy")))

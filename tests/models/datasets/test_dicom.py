"""DICOM files are read as viewers first show them, or refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom import Dataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from tacit.models.datasets import image_folder
from tacit.models.datasets.samples import FileImages, unreadable

STORED = np.array([[-1000, 0], [40, 3000]])


def dicom(path: Path, pixels: np.ndarray, **attributes: Any) -> Path:
    found = Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = SecondaryCaptureImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = "1.2.3"
    found.Rows, found.Columns = pixels.shape[:2]
    bits = 8 * pixels.dtype.itemsize
    found.BitsAllocated, found.BitsStored, found.HighBit = bits, bits, bits - 1
    found.PixelRepresentation = int(pixels.dtype.kind == "i")
    found.SamplesPerPixel, found.PhotometricInterpretation = 1, "MONOCHROME2"
    for name, value in attributes.items():
        setattr(found, name, value)
    found.PixelData = pixels.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    found.save_as(path, enforce_file_format=True)
    return path


def read(path: Path) -> list[int]:
    grey: np.ndarray = FileImages((path,)).pixels(np.array([0]), size=2)[0]
    assert (grey == grey[..., :1]).all()
    return grey[..., 0].reshape(-1).tolist()


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, [0, 64, 66, 255]),
        ({"PhotometricInterpretation": "MONOCHROME1"}, [255, 191, 189, 0]),
        # Hounsfield units with the window of soft tissue; the second window is another view.
        ({"WindowCenter": [40, 500], "WindowWidth": [400, 2000]}, [0, 102, 128, 255]),
        ({"WindowCenter": 40, "WindowWidth": 400, "VOILUTFunction": "LINEAR_EXACT"}, [0, 102, 128, 255]),
        ({"WindowCenter": 40, "WindowWidth": 400, "VOILUTFunction": "SIGMOID"}, [0, 102, 128, 255]),
        ({"WindowCenter": 40, "WindowWidth": 1}, [0, 0, 255, 255]),
        ({"RescaleSlope": 2, "RescaleIntercept": 100, "WindowCenter": 180, "WindowWidth": 800}, [0, 102, 128, 255]),
    ],
)
def test_values_are_seen_through_slope_and_window(
    tmp_path: Path, attributes: dict[str, Any], expected: list[int]
) -> None:
    path = dicom(tmp_path / "1.DCM", STORED.astype(np.int16), **attributes)
    assert read(path) == pytest.approx(expected, abs=1)
    assert list(FileImages((path,)).sizes()) == [(2, 2)]


def test_a_table_and_colours_are_read(tmp_path: Path) -> None:
    table = Dataset()
    table.add_new("LUTDescriptor", "US", [4, 0, 16])
    table.add_new("LUTData", "US", [0, 13107, 52428, 65535])
    path = dicom(tmp_path / "1.dcm", np.array([[0, 1], [2, 9]], np.uint8), VOILUTSequence=[table])
    assert read(path) == [0, 51, 204, 255]
    colours = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    path = dicom(tmp_path / "2.dcm", colours, SamplesPerPixel=3, PhotometricInterpretation="RGB", PlanarConfiguration=0)
    assert (FileImages((path,)).pixels(np.array([0]), size=2)[0] == colours).all()


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"NumberOfFrames": 3}, "3 frames"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "PALETTE COLOR"),
        ({"Rows": 7}, "pydicom cannot read it|bytes"),
        ({"RescaleSlope": "1e300", "RescaleIntercept": 0, "WindowCenter": 0, "WindowWidth": 4}, ""),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, attributes: dict[str, Any], reason: str) -> None:
    path = dicom(tmp_path / "scan.dcm", STORED.astype(np.int16), **attributes)
    if reason:
        with pytest.raises(ValueError, match=rf"scan\.dcm is not a readable image: .*({reason})"):
            read(path)
    for damaged in (b"", b"no picture", path.read_bytes()[:200], path.read_bytes()[:-3]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"scan\.dcm is not a readable image"):
            read(path)


@settings(max_examples=100, deadline=None)
@given(changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[float, int]]
) -> None:
    path = dicom(tmp_path_factory.mktemp("damaged") / "scan.dcm", STORED.astype(np.int16), RescaleSlope=2)
    content = bytearray(path.read_bytes())
    for place, value in changes:
        content[128 + int(place * (len(content) - 128))] = value
    path.write_bytes(content)
    assert (unreadable(path) or f"{path} is fine").startswith(f"{path} is ")


def test_folders_of_classes_hold_them_beside_other_images(tmp_path: Path) -> None:
    dicom(tmp_path / "train" / "a" / "1.dcm", STORED.astype(np.int16))
    (tmp_path / "train" / "b").mkdir()
    Image.new("L", (3, 3)).save(tmp_path / "train" / "b" / "1.png")
    assert len(image_folder.read(tmp_path).train.images) == 2

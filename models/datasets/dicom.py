"""DICOM files (NEMA PS3.3): one image each, as a viewer first shows it. pydicom, an extra, reads them."""

import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

EXTENSIONS: Final = (".dcm", ".dicom")
_GREY: Final = ("MONOCHROME1", "MONOCHROME2")


def read(path: Path) -> Image.Image:
    """Read eight-bit grey, by the rescale slope and the first window or table in the file, or else from its lowest to
    its highest value; or RGB. ValueError for an unreadable file, several frames, other colours, and without pydicom."""
    try:
        from pydicom import dcmread
        from pydicom.errors import BytesLengthException, InvalidDicomError
        from pydicom.pixels import apply_modality_lut, apply_voi, pixel_array
    except ImportError as error:
        raise ValueError(f"DICOM needs pydicom, which cannot be imported ({error}): pip install pydicom") from None
    try:
        found: Any = dcmread(path)
        if (frames := int(found.get("NumberOfFrames") or 1)) > 1:
            raise ValueError(f"it has {frames} frames, and one is an image: save each in a file of its own")
        stored, kind = pixel_array(found), found.PhotometricInterpretation
        # pixel_array() turns YBR into RGB.
        if stored.shape[2:] == (3,) and stored.dtype == np.uint8:
            return Image.fromarray(stored)
        if kind not in _GREY or stored.ndim != 2:
            raise ValueError(f"it is {kind} {list(stored.shape)}, and grey or RGB images of 8 bits are read")
        values = apply_modality_lut(stored, found)
        if found.get("VOILUTSequence"):
            shares = apply_voi(values, found) / (2 ** found.VOILUTSequence[0].LUTDescriptor[2] - 1)
        else:
            shares = _windowed(values.astype(np.float64), found)
    except (InvalidDicomError, BytesLengthException, zlib.error) as error:
        raise ValueError(f"it is no DICOM file: {error}") from None
    except (AttributeError, KeyError, IndexError, TypeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"pydicom cannot read it: {' '.join(str(error).split())}") from None
    if not np.isfinite(shares).all():
        raise ValueError("its rescale slope or window leads to values that are not finite")
    seen = np.rint(255 * shares.clip(0, 1)).astype(np.uint8)
    return Image.fromarray(255 - seen if kind == "MONOCHROME1" else seen)


def _windowed(values: npt.NDArray[np.float64], found: Any) -> npt.NDArray[np.float64]:
    centre, width = (np.atleast_1d(found.get(name) or 0.0)[0] for name in ("WindowCenter", "WindowWidth"))
    if not width:
        lowest, highest = values.min(), values.max()
        return np.asarray((values - lowest) / max(highest - lowest, 1.0))
    function = found.get("VOILUTFunction") or "LINEAR"
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (values - float(centre)) / float(width))))
    exact = function == "LINEAR_EXACT"
    # A width of 1 is a threshold.
    steep = max(float(width) - (not exact), 1e-9)
    return np.asarray((values - float(centre) + 0.5 * (not exact)) / steep + 0.5)

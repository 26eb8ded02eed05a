"""Street View House Numbers, cropped digits (Netzer et al. 2011): train_32x32.mat and test_32x32.mat.

A damaged MATLAB file can crash the library that parses it. So, as in torchvision, a file is parsed only after its MD5
checksum matched the published one. In the files, label 10 means the digit 0; torchvision's reader converts it.
"""

from pathlib import Path
from typing import Any

from tacit.models.datasets.samples import ArrayImages, Samples, Source, require_checksum


def read(directory: Path, *, reader: type[Any] | None = None) -> Source:
    """Read both files. `reader` replaces torchvision.datasets.SVHN, which has the checksums.

    Raises FileNotFoundError for a missing file, ValueError for another checksum.
    """
    # Imported here because torchvision takes a second to import and not every source needs it.
    from torchvision.datasets import SVHN

    chosen = reader or SVHN
    return Source(
        train=_split(directory, "train", chosen),
        test=_split(directory, "test", chosen),
        class_names=tuple(str(digit) for digit in range(10)),
    )


def _split(directory: Path, split: str, reader: type[Any]) -> Samples:
    _, name, checksum = reader.split_list[split]
    require_checksum(directory / name, md5=checksum, purpose="cropped digits of SVHN")
    content = reader(str(directory), split=split, download=False)  # data: uint8 [N, 3, 32, 32]
    return Samples(ArrayImages(content.data.transpose(0, 2, 3, 1)), content.labels)

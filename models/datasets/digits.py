"""The handwritten digits that come with scikit-learn (Alpaydin and Kaynak 1998, UCI repository)."""

from typing import Final

import numpy as np

from tacit.models.datasets.samples import ArrayImages, Samples, Source

_TEST: Final = 360
_SPLIT_SEED: Final = 0


def read() -> Source:
    """1,437 training and 360 test images of 8 x 8 pixels from 0 to 16; always the same split, stratified by class."""
    # Imported here because scikit-learn takes a second to import and only this source needs it.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = digits.images[..., np.newaxis].astype(np.uint8)
    labels = digits.target.astype(np.int64)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=_TEST, random_state=_SPLIT_SEED, stratify=labels
    )
    return Source(
        train=Samples(ArrayImages(x_train), y_train),
        test=Samples(ArrayImages(x_test), y_test),
        class_names=tuple(str(name) for name in digits.target_names),
    )

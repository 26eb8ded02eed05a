"""The record of secure sums in Flower's messages, and the conversion of Flower's models to vectors and back.

One ConfigRecord, beside the app's own records of the same message, has the step and messages of the sum, as bytes. A
hash identifies the app's own content; it is in the title of the sum and with it in every signature and mask.
"""

from __future__ import annotations

from hashlib import sha256
from os import urandom
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

RECORD: Final = "tacit"
STEP: Final = "step"
WHO, BEGIN, GO_ON = "who", "begin", "go on"
"""Steps: identify yourself; enter this sum; take these frames, and train if there is a model."""
FRAMES: Final = "frames"
EXAMPLES: Final = "num-examples"
"""Metric that weights a client, as in Flower's own strategies."""
MOD_FAILED: Final = 6
"""Flower's code for an error of a mod."""


class RefusedError(ValueError):
    """A refused message, or an invalid folder; one line for both owners."""


def is_training(message_type: str) -> bool:
    return message_type.split(".", maxsplit=1)[0] == "train"


def sum_title(run: int, content: bytes) -> str:
    """The title of a new sum: it ends with the hash of the model's content, so that all clients train from the same."""
    return f"flower run {run} sum {urandom(8).hex()} of {content.hex()}"


def announced(title: str) -> str:
    """The hash in a title, in hexadecimal digits."""
    return title.rpartition(" ")[2]


def content_digest(content: RecordDict) -> bytes:
    """SHA-256 (32 bytes) of all records of a message except this one, in the order of their names."""
    parts = []
    for name in sorted(content.keys() - {RECORD}):
        record = content[name]
        if isinstance(record, ArrayRecord):
            items: list[Any] = [
                (key, array.dtype, list(array.shape), sha256(array.data).digest()) for key, array in record.items()
            ]
        else:
            items = [(key, record[key]) for key in sorted(record)]
        parts.append((type(record).__name__, name, items))
    return sha256(msgspec.msgpack.encode(parts)).digest()


def arrays_of(content: RecordDict) -> ArrayRecord:
    """The one ArrayRecord of a message: its model. RefusedError if there are several, or none."""
    found = list(content.array_records.values())
    if len(found) != 1:
        raise RefusedError(f"a message to train from has {len(found)} ArrayRecords: the secure sum takes exactly one")
    return found[0]


def summed(model: ArrayRecord) -> dict[str, npt.NDArray[np.floating[Any]]]:
    """The arrays of a model that are summed: those of floating-point numbers."""
    arrays = {name: array.numpy() for name, array in model.items()}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def update(model: ArrayRecord, trained: ArrayRecord) -> npt.NDArray[np.float64]:
    """The change of the model by training, float64 [D]. RefusedError if the two have different arrays."""
    before, after = summed(model), summed(trained)
    shapes = [{name: array.shape for name, array in arrays.items()} for arrays in (before, after)]
    if shapes[0] != shapes[1]:
        raise RefusedError(f"the trained model has arrays {shapes[1]}, the one that was sent {shapes[0]}")
    return np.concatenate([(after[name].astype(np.float64) - array).reshape(-1) for name, array in before.items()])


def moved(model: ArrayRecord, mean: npt.NDArray[np.float64]) -> ArrayRecord:
    """The model with the mean update [D] added; other than floating-point arrays are unchanged."""
    arrays, start = dict(model), 0
    for name, array in summed(model).items():
        part = mean[start : start + array.size].reshape(array.shape)
        arrays[name] = Array((array + part).astype(array.dtype))
        start += array.size
    return ArrayRecord(arrays)


def ours(content: RecordDict) -> ConfigRecord | None:
    return content.config_records.get(RECORD)


Value = TypeVar("Value")


def taken(record: ConfigRecord, key: str, kind: type[Value]) -> Value:
    """A value of a record. Refuses a missing one, or one of another type."""
    value = record.get(key)
    if not isinstance(value, kind):
        raise RefusedError(f"a record has {key!r} as {type(value).__name__}, not {kind.__name__}")
    return value


def frames_of(record: ConfigRecord) -> list[bytes]:
    """The messages of the sum in a record. Refuses other values."""
    frames = taken(record, FRAMES, list)
    for frame in frames:
        if not isinstance(frame, bytes):
            raise RefusedError(f"a record has a {type(frame).__name__} among its frames")
    return frames

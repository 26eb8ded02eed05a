"""Our record in Flower's messages, and how a model of Flower's becomes a vector and back.

Everything of ours stands in one ConfigRecord, beside whatever the app has in the same message: the step, and with it
messages of the sum, as bytes. The app's own content is identified by a hash, which is in the title
of the sum and with it in every signature and mask.
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
"""Steps: say who you are; enter this sum; take these frames, and train if there is something to train from."""
FRAMES: Final = "frames"
EXAMPLES: Final = "num-examples"
"""The metric that is the weight of a client, as in Flower's own strategies."""
MOD_FAILED: Final = 6
"""Flower's code of an error of a mod."""


class RefusedError(ValueError):
    """A message that one side does not act on, or a folder that does not fit; one line for both owners."""


def is_training(message_type: str) -> bool:
    return message_type.split(".", maxsplit=1)[0] == "train"


def sum_title(run: int, content: bytes) -> str:
    """The title of a new sum: it ends with the hash of what is to be trained from, so that nobody is told another."""
    return f"flower run {run} sum {urandom(8).hex()} of {content.hex()}"


def announced(title: str) -> str:
    """The hash in a title, in hexadecimal digits."""
    return title.rpartition(" ")[2]


def content_digest(content: RecordDict) -> bytes:
    """SHA-256 (32 bytes) of all records of a message, in the order of their names; ours is left out."""
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
    """The one ArrayRecord of a message: its model. RefusedError where there are several, or none."""
    found = list(content.array_records.values())
    if len(found) != 1:
        raise RefusedError(f"a message to train from has {len(found)} ArrayRecords: the secure sum takes exactly one")
    return found[0]


def summed(model: ArrayRecord) -> dict[str, npt.NDArray[np.floating[Any]]]:
    """The arrays of a model that are summed: those of floating numbers."""
    arrays = {name: array.numpy() for name, array in model.items()}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def update(model: ArrayRecord, trained: ArrayRecord) -> npt.NDArray[np.float64]:
    """What training has added to the model, float64 [D]. RefusedError where the two are not of the same arrays."""
    before, after = summed(model), summed(trained)
    shapes = [{name: array.shape for name, array in arrays.items()} for arrays in (before, after)]
    if shapes[0] != shapes[1]:
        raise RefusedError(f"the trained model has arrays {shapes[1]}, the one that was sent {shapes[0]}")
    return np.concatenate([(after[name].astype(np.float64) - array).reshape(-1) for name, array in before.items()])


def moved(model: ArrayRecord, mean: npt.NDArray[np.float64]) -> ArrayRecord:
    """The model with the mean update [D] added; what is not of floating numbers stays as it is."""
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
    """A value of a record. Refuses one that is missing, or of another kind."""
    value = record.get(key)
    if not isinstance(value, kind):
        raise RefusedError(f"a record has {key!r} as {type(value).__name__}, not {kind.__name__}")
    return value


def frames_of(record: ConfigRecord) -> list[bytes]:
    """The messages of the sum in a record. Refuses what is none."""
    frames = taken(record, FRAMES, list)
    for frame in frames:
        if not isinstance(frame, bytes):
            raise RefusedError(f"a record has a {type(frame).__name__} among its frames")
    return frames

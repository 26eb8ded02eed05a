"""`secure_sum`: the secure sum of some vectors, with the real machines in one process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.protocol.core.roster import new_keys
from tacit.protocol.session.one_sum import SumClient, SumResult, SumServer, SumSettings, make_roster

_SERVER = "server"


class SumError(Exception):
    """There is no sum; the message gives the reason."""


def secure_sum(
    vectors: Mapping[str, npt.ArrayLike] | Sequence[npt.ArrayLike],
    *,
    clip: float | None = None,
    lost: Collection[str] = (),
    **settings: Any,
) -> SumResult:
    """Compute the secure sum of three or more vectors of equal length, by the names of their clients, or as client-1,
    client-2, ...

    clip: the largest absolute value; by default that of these vectors, which real clients cannot know of each other.
    Values are rounded at random, without bias, to multiples of a step: about clip / 2^(value_bits - 1); `value_bits` is
    20 by default. A coordinate that is below the step in every vector, and not zero, is refused: its sum would be only
    rounding. lost: clients that are gone when the others send their vectors, which are missing in the sum. settings: of
    SumSettings. ValueError for invalid input, SumError if too many are lost.
    """
    if not isinstance(vectors, Mapping):
        vectors = {f"client-{number}": vector for number, vector in enumerate(vectors, start=1)}
    arrays = {name: _array(name, vector) for name, vector in vectors.items()}
    if unknown := sorted(set(lost) - arrays.keys()):
        raise ValueError(f"{unknown[0]!r} cannot be lost: it has no vector")
    if strange := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise ValueError(f"the vector of {strange[0]!r} has a value that is not finite")
    largest = max((float(np.abs(array).max(initial=0.0)) for array in arrays.values()), default=0.0)
    first = next(iter(arrays), "")
    for name, array in arrays.items():
        if array.shape != arrays[first].shape:
            shapes = f"has shape {array.shape}, that of {first!r} {arrays[first].shape}"
            raise ValueError(f"the vector of {name!r} {shapes}: all are alike")
    length = arrays[first].size if arrays else 0
    terms = SumSettings(length=length, clip=(largest or 1.0) if clip is None else clip, **settings)
    if arrays:
        _check_resolved(arrays, terms.packing(len(arrays)).step)
    keys = {name: new_keys(name, entropy=os.urandom) for name in (_SERVER, *arrays)}
    roster = make_roster(keys[_SERVER].member("server"), *(keys[name].member("client") for name in arrays))
    server = SumServer(terms, roster, now=0.0)
    clients = {name: SumClient(terms, roster, keys[name], entropy=os.urandom) for name in arrays}
    said = deque((name, message) for name, client in clients.items() for message in client.start(0.0))
    for name in arrays.keys() - set(lost):
        said.extend((name, message) for message in clients[name].contribute(arrays[name], 0.0))

    def hand_over(answers: list[tuple[str, bytes]]) -> None:
        for receiver, answer in answers:
            said.extend((receiver, message) for message in clients[receiver].receive(answer, 0.0))

    def exchange() -> None:
        while said:
            hand_over(server.receive(*said.popleft(), 0.0))

    exchange()
    for name in lost:
        hand_over(server.drop(name, 0.0))
        exchange()
    if not isinstance(server.outcome, SumResult):
        raise SumError(server.outcome.detail if server.outcome else "too many are lost")
    return server.outcome


def _check_resolved(arrays: Mapping[str, npt.NDArray[np.float64]], step: float) -> None:
    """Raise ValueError for coordinates that the resolution loses."""
    largest = np.max([np.abs(array) for array in arrays.values()], axis=0)
    lost = np.flatnonzero((largest > 0) & (largest < step))
    if lost.size:
        raise ValueError(
            f"{lost.size} of {largest.size} coordinates are lost: the resolution is {step:.3g}, and the largest of "
            f"coordinate {lost[0]} is {largest[lost[0]]:.3g}; raise value_bits, take a smaller clip, or scale the "
            "coordinates to one size"
        )


def _array(name: str, vector: Any) -> npt.NDArray[np.float64]:
    if hasattr(vector, "detach"):
        tensor = vector.detach().cpu()
        # numpy has no bfloat16.
        vector = (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    try:
        array = np.asarray(vector)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty(0)
    if array.dtype.kind == "c":
        raise ValueError(f"the vector of {name!r} is complex; sum real and imaginary parts as a vector each")
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iufb":
        raise ValueError(f"the vector of {name!r} is no list of numbers")
    return array.astype(np.float64)

"""Orders of material: requests as both owners encode them, and what they turn into at an owner and at the dealer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from tacit.parties.correlated.dealing import RequestError
from tacit.parties.correlated.material import check, correction_words, expand
from tacit.parties.correlated.streams import Keystream
from tacit.parties.inference.material import AnyBlockRequest

_WORD_BYTES = 8
_OWNERS = 2


def encoded_requests(requests: Sequence[AnyBlockRequest]) -> bytes:
    """As an order carries them."""
    return msgspec.msgpack.encode(requests)


def decoded_requests(data: bytes) -> tuple[AnyBlockRequest, ...]:
    """The inverse. RequestError for anything else, or more than a dealer deals at once."""
    try:
        requests = msgspec.msgpack.decode(data, type=tuple[AnyBlockRequest, ...])
        for request in requests:
            check(request, _OWNERS)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise RequestError(str(error)) from error
    if encoded_requests(requests) != data:
        raise RequestError("the requests are not in their canonical encoding")
    return requests


def correction_bytes(request: AnyBlockRequest) -> int:
    """Of what the dealer sends for it."""
    return _WORD_BYTES * correction_words(request)


def drawn(request: AnyBlockRequest, number: int, *, rank: int, key: bytes) -> list[torch.Tensor]:
    """What an owner draws for a request from its own stream."""
    return expand(request, rank, Keystream(key, number))


def corrected(request: AnyBlockRequest, data: bytearray) -> list[torch.Tensor]:
    """The dependent words of a request, out of what the dealer sent."""
    words, start, found = torch.frombuffer(data, dtype=torch.int64), 0, []
    for draw in request.dependent():
        end = start + math.prod(draw.shape)
        found.append(words[start:end].reshape(draw.shape))
        start = end
    return found


def encoded_correction(words: Sequence[torch.Tensor]) -> memoryview | None:
    """The dependent words of a request as its receiver is sent them; None where there are none."""
    return np.concatenate([each.numpy().reshape(-1).view(np.uint8) for each in words]).data if words else None

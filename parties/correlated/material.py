"""Correlated randomness from a dealer: keystreams, requests, and the corrections that complete the parties' own words.

docs/spec/inference-material.md specifies streams, requests and draws. Every request of a session has its own stream, so
that its words can be disclosed alone. Every party draws its free words and its shares of the dependent ones; one party,
the receiver, draws no shares of these: its shares are the correction, which is the only message.

Sources: Beaver (CRYPTO 1991); Escudero et al. (ePrint 2020/338, section 5.1) for the truncation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import groupby
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from msgspec import Meta

from tacit.protocol.inference.material import request_key

KEY_BYTES: Final = 32
WORD_BITS: Final = 64
_WORD_BYTES = 8
_CIPHER_BLOCK = 16
_ZEROS = memoryview(bytes(1 << 17))


class Keystream:
    """The words of one stream, drawn one after the other. Not thread-safe."""

    __slots__ = ("_encryptor", "drawn")

    def __init__(self, key: bytes) -> None:
        """ValueError unless the key has 32 bytes."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"a stream has a key of {KEY_BYTES} bytes")
        self._encryptor = Cipher(AES256(key), CTR(bytes(_CIPHER_BLOCK))).encryptor()
        self.drawn = 0
        """Words drawn so far; both ends of a stream must agree on it."""

    def draw(self, shape: Sequence[int], bits: int = WORD_BITS) -> torch.Tensor:
        """The next words of the stream, int64 of this shape: uniform over the ring, or [0, 2^bits) if bits < 64."""
        count = math.prod(shape)
        # The cipher's interface requires a block, less a byte, of space beyond the output.
        words = np.empty(count + _CIPHER_BLOCK // _WORD_BYTES, "<i8")
        room = memoryview(words.data).cast("B")
        for low in range(0, count * _WORD_BYTES, len(_ZEROS)):
            self._encryptor.update_into(_ZEROS[: count * _WORD_BYTES - low], room[low:])
        self.drawn += count
        drawn = torch.from_numpy(words[:count]).reshape(tuple(shape))
        return drawn if bits == WORD_BITS else drawn.bitwise_and_((1 << bits) - 1)


def request_stream(key: bytes, number: int) -> Keystream:
    return Keystream(request_key(key, number))


LARGEST_WORDS: Final = 1 << 28
"""Most words that a party draws for one request: 2 GiB."""
LARGEST_DIVISOR: Final = 1 << 62
SIGN: Final = -(1 << 63)
"""The highest bit of a word, as int64."""

Size = Annotated[int, Meta(ge=0, le=LARGEST_WORDS)]
Shape = Annotated[tuple[Size, ...], Meta(max_length=8)]
Rank = Annotated[int, Meta(ge=0, le=254)]

Operation = Literal["mul", "matmul"]


class Draw(NamedTuple):
    shape: Shape
    bits: int = WORD_BITS


class Request(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    @property
    def receiver(self) -> int:
        return 0

    @property
    def receivers(self) -> tuple[int, ...]:
        """Ranks that receive the correction, and draw no dependent words; if all do, it is public, not shared."""
        return (self.receiver,)

    def free(self, rank: int) -> list[Draw]:
        raise NotImplementedError

    def dependent(self) -> list[Draw]:
        raise NotImplementedError

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> Iterable[torch.Tensor]:
        """The dependent words, from the free words of each rank (and, for Linear, the mask of the weight). The caller
        may modify its arguments afterwards."""
        raise NotImplementedError


class Product(Request, frozen=True):
    """c = operation(a, b), as torch.mul and torch.matmul."""

    operation: Operation
    left: Shape
    right: Shape
    arguments: Annotated[tuple[Size, ...], Meta(max_length=0)] = ()
    """Empty: such products have only their factors."""

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.left), Draw(self.right)]

    def dependent(self) -> list[Draw]:
        return [Draw(_product_shape(self))]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        left, right = (_sum(words) for words in zip(*free, strict=True))
        return [self.compute(left, right)]

    def compute(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        operation: Callable[..., torch.Tensor] = getattr(torch, self.operation)
        return operation(left, right)


class _OneShape(Request, frozen=True):
    shape: Shape

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape)]

    def dependent(self) -> list[Draw]:
        return [Draw(self.shape)]


class Square(_OneShape, frozen=True):
    """c = a a."""

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        total = _sum([words for (words,) in free])
        return [total * total]


class Truncation(_OneShape, frozen=True):
    """A mask r, and its negative quotient by the divisor for both values of its highest bit."""

    divisor: Annotated[int, Meta(ge=2, le=LARGEST_DIVISOR)]

    def dependent(self) -> list[Draw]:
        return [Draw(self.shape), Draw(self.shape)]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        mask = _sum([words for (words,) in free])
        return [-floor_quotient(mask, self.divisor), -floor_quotient(mask ^ SIGN, self.divisor)]


class Weight(Request, frozen=True):
    """The mask V of one weight of the owner. It masks this weight and never another."""

    owner: Rank
    shape: tuple[Size, Size]

    def free(self, rank: int) -> list[Draw]:
        return [Draw(self.shape)] if rank == self.owner else []

    def dependent(self) -> list[Draw]:
        return []

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        return []


class Linear(Request, frozen=True):
    """Z = R V for the weight whose mask is the request of that number; rows is the shape of R without its columns."""

    owner: Rank
    rows: Annotated[tuple[Size, ...], Meta(max_length=7)]
    weight: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    weight_shape: tuple[Size, Size]

    @property
    def receiver(self) -> int:
        return self.owner

    def free(self, rank: int) -> list[Draw]:
        return [] if rank == self.owner else [Draw((*self.rows, self.weight_shape[0]))]

    def dependent(self) -> list[Draw]:
        return [Draw((*self.rows, self.weight_shape[1]))]

    def solve(self, free: Sequence[list[torch.Tensor]], weight: torch.Tensor | None) -> list[torch.Tensor]:
        if weight is None:
            raise ValueError("a linear request needs the mask of its weight")
        return [_sum([words[0] for words in free if words]) @ weight]


def check(request: Request, parties: int) -> None:
    """ValueError for a request that is invalid for this number of parties."""
    owner = getattr(request, "owner", 0)
    if owner >= parties:
        raise ValueError(f"{request}: there is no rank {owner} among {parties} parties")
    words = max(sum(map(_count, request.free(rank))) for rank in range(parties)) + correction_words(request)
    if words > LARGEST_WORDS:
        raise ValueError(f"{request}: {words} words are more than {LARGEST_WORDS}; take a smaller batch")


def correction_words(request: Request) -> int:
    return sum(map(_count, request.dependent()))


def expand(request: Request, rank: int, stream: Keystream) -> list[torch.Tensor]:
    """Draw this rank's words: its free words, and unless it is the receiver its shares of the dependent ones."""
    drawn = [stream.draw(draw.shape, draw.bits) for draw in request.free(rank)]
    # Whole words: the bits above those of a dependent word are undefined.
    for draw, equal in groupby(() if rank in request.receivers else request.dependent()):
        # One allocation, large enough to return to the system after use.
        drawn += stream.draw((len(list(equal)), *draw.shape)).unbind()
    return drawn


def correct(
    request: Request,
    streams: Sequence[Keystream],
    weight: torch.Tensor | None = None,
    *,
    device: torch.device | None = None,
) -> Iterator[torch.Tensor]:
    """Yield the receiver's shares of the dependent words, from the streams of all ranks; each is computed on demand, so
    that the working set stays in a processor's cache. device: of the computation; None: the CPU, which draws all
    streams."""
    free = [
        [stream.draw(draw.shape, draw.bits).to(device) for draw in request.free(rank)]
        for rank, stream in enumerate(streams)
    ]
    weight = None if weight is None else weight.to(device)
    others = [stream for rank, stream in enumerate(streams) if rank not in request.receivers]
    for share, draw in zip(request.solve(free, weight), request.dependent(), strict=True):
        for stream in others:
            share -= stream.draw(draw.shape).to(share.device)
        yield share


def floor_quotient(words: torch.Tensor, divisor: int) -> torch.Tensor:
    """Signed words divided by a positive integer, rounded down."""
    if divisor & (divisor - 1) == 0:
        return words >> (divisor.bit_length() - 1)  # The same, ten times as fast.
    return words.div(divisor, rounding_mode="floor")


def _sum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, tensors)


def _count(draw: Draw) -> int:
    return math.prod(draw.shape)


@lru_cache(maxsize=4096)
def _product_shape(request: Product) -> Shape:
    # Torch's meta device would do as well, but loads a hundred modules, for seconds.
    left, right = request.left, request.right
    if request.operation == "mul":
        return np.broadcast_shapes(left, right)
    if request.operation == "matmul":
        rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else ()
        if left and right and left[-1] == right[-2 if len(right) > 1 else 0]:
            return (*np.broadcast_shapes(left[:-2], right[:-2]), *rows, *columns)
    raise ValueError(f"{request}: there is no such product of these shapes")


class RequestError(ValueError):
    """An invalid request; the message names it and the reason."""


class Dealing:
    """The dealer's state of one session; keys: 32 bytes for each party, in the order of the ranks; device: see
    `correct`."""

    def __init__(self, keys: Sequence[bytes], *, device: torch.device | None = None) -> None:
        self._keys = keys
        self._device = device
        self._weights: dict[int, Weight] = {}

    def correction(self, request: Request, number: int) -> Iterator[torch.Tensor]:
        """Yield the receiver's shares of the dependent words; none for the mask of a weight, which is recorded when
        they are requested. RequestError."""
        mask = None
        try:
            check(request, len(self._keys))
            if isinstance(request, Weight):
                self._weights[number] = request
            elif isinstance(request, Linear):
                mask = self._mask(request)
            streams = [request_stream(key, number) for key in self._keys]
            yield from correct(request, streams, mask, device=self._device)
        except (ValueError, RuntimeError) as error:
            raise RequestError(str(error)) from error

    def _mask(self, request: Linear) -> torch.Tensor:
        # Expanded again every time: weights are many, and the product takes longer.
        if self._weights.get(request.weight) != Weight(owner=request.owner, shape=request.weight_shape):
            raise RequestError(f"{request}: request {request.weight} was not for the mask of such a weight")
        return request_stream(self._keys[request.owner], request.weight).draw(request.weight_shape)

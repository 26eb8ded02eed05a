"""A blocking link between two parties of one secure computation: arrays and small structures, each checked on arrival.

Both ends know what comes next, because they run the same program. A message opens with a header that says it: the
link, a sequence number, the name of the operation, dtype and shape of every array. The receiver writes the header that
it expects and compares bytes; anything else, above all a party that has missed a call, ends the computation with an
MpcError that names the party and both operations. The arrays follow as raw little-endian bytes, small ones in the frame
of the header, others in frames of their own of at most CHUNK_BYTES. Nothing is unpickled.

A link begins with a hello from each end: the session that its owner was started with, the hash of the roster and a
fresh nonce. Both nonces enter `PeerLink.binding`, which no two links share; a party that comes with another session or
roster is refused by name. A lost link is not opened again: shares in flight cannot be recovered.

A party that gives up says why in a last message, `abort`. The peer comes upon it in its turn, behind what was sent
before, wherever it waits next; `errors_told` does this for all links of a program.

One thread uses a link (ends.py says why).
"""

import os
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from math import prod
from typing import Annotated, Any, Final, NoReturn, Self, TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Meta

from tacit.parties.crypten.ends import CHUNK_BYTES, BlockingEnd, DialledEnd, Frames, ListeningEnd
from tacit.parties.crypten.errors import MpcError
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.roster import Roster

FIELDS_LIMIT: Final = 1 << 16
"""Bytes that an encoded structure may have."""
SESSION_BYTES: Final = 64
"""Bytes that the name of a session may have."""
PATIENCE_SECONDS: Final = 60.0

# Up to this size, another copy costs less than another frame.
_INLINE_BYTES = 1 << 14
_HEADER_LIMIT = 1 << 14
_LENGTH = struct.Struct("<I")
# The header is padded to a multiple of this, so that the arrays behind it are aligned.
_ALIGNMENT = 8
_VERSION = 1
_HELLO = "hello"
_ENDED = "ended"
_REASON_LIMIT = 2_000
_NO_BINDING = bytes(32)
_LABEL = b"tacit/1 link of a secure computation"

Array = np.ndarray[Any, np.dtype[Any]]
Dtype = np.dtype[Any] | type[np.generic] | torch.dtype
Structure = TypeVar("Structure", bound=msgspec.Struct)
_Arrays = tuple[tuple[str, tuple[int, ...]], ...]

_NAMES: Final[Mapping[Any, str]] = {
    key: name
    for name in ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"]
    for key in (np.dtype(name), np.dtype(name).type, getattr(torch, name))
}
"""The dtypes that a link carries, in all their spellings."""


@dataclass
class LinkCost:
    """What one operation has cost on a link: whole messages, without what CURVE, ZeroMQ and TCP add."""

    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    """Spent in the calls, waiting included."""


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    link: bytes
    sequence: int
    operation: str
    arrays: _Arrays | None
    """Dtype and shape of each; None announces a structure."""

    def __str__(self) -> str:
        if self.arrays is None:
            return f"{self.operation} (fields)"
        return f"{self.operation} ({', '.join(f'{dtype}{list(shape)}' for dtype, shape in self.arrays) or 'empty'})"


class _Hello(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    session: Annotated[bytes, Meta(max_length=SESSION_BYTES)]
    roster: bytes
    nonce: Annotated[bytes, Meta(min_length=32, max_length=32)]


class _Ended(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=_REASON_LIMIT)]


class _Closed:
    """What is closed with `with` or close(), and has an end of its own."""

    _end: BlockingEnd

    def close(self) -> None:
        """Let the last messages leave, for a few seconds at most, and free the sockets: of a listener, those of all
        its links. What has arrived and was not received is dropped; closing twice is harmless."""
        self._end.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PeerLink(_Closed):
    """A duplex link to one peer. Made by connect() or Listener.accept(); closed with `with`, close() or its listener.

    Every call blocks, for `patience` seconds at most, and raises MpcError, which names the peer, the operation and the
    reason. After an error the link is of no further use.
    """

    def __init__(self, end: BlockingEnd, *, own: str, peer: str) -> None:
        self.own = own
        self.peer = peer
        self.binding = _NO_BINDING
        """32 bytes that both ends know and that no other link has: a hash over a fresh nonce of each end and the
        session. Public to whoever runs the other end, and sent under CURVE only."""
        self.counters: defaultdict[str, LinkCost] = defaultdict(LinkCost)
        """By name of the operation."""
        self._end = end
        self._sent = 0
        self._received = 0

    def send(self, operation: str, arrays: Sequence[Array | torch.Tensor]) -> None:
        """Queue the arrays; they are copied. ValueError for a dtype that no link carries."""
        plain = [_plain(array) for array in arrays]
        self._put(operation, tuple((_name(array.dtype), array.shape) for array in plain), _frames(plain))

    def receive(self, operation: str, expected: Sequence[tuple[Dtype, Sequence[int]]]) -> list[Array]:
        """The arrays of this operation, of exactly these dtypes and shapes; they are the caller's own."""
        described = tuple((_name(dtype), tuple(shape)) for dtype, shape in expected)
        sizes = [np.dtype(dtype).itemsize * prod(shape) for dtype, shape in described]
        pieces = iter(self._take(operation, described, sizes))
        return [
            _array([next(pieces) for _ in _lengths(size)], dtype, shape)
            for size, (dtype, shape) in zip(sizes, described, strict=True)
        ]

    def send_fields(self, operation: str, fields: msgspec.Struct) -> None:
        """Queue a small structure of plain types. ValueError beyond FIELDS_LIMIT."""
        encoded = encode_structure(fields)
        if len(encoded) > FIELDS_LIMIT:
            raise ValueError(f"{operation}: {len(encoded)} bytes of fields; at most {FIELDS_LIMIT} fit")
        self._put(operation, None, [memoryview(encoded)])

    def receive_fields(self, operation: str, kind: type[Structure]) -> Structure:
        """The structure of this operation: exactly the canonical encoding of a `kind`."""
        (fields,) = self._take(operation, None, None)
        try:
            return decode_structure(fields, kind, limit=FIELDS_LIMIT)
        except RemoteProtocolError as error:
            self._refuse(operation, str(error))

    def abort(self, reason: str) -> None:
        """Tell the peer why this end gives up: its next receive, once it has read what was sent before, raises MpcError
        with the reason. Never raises, nor waits for a peer that takes nothing."""
        ended = encode_structure(_Ended(reason=reason[:_REASON_LIMIT]))
        self._end.put_last(self.peer, self._header(_ENDED, None, self._sent) + ended)

    def _greet(self, session: bytes, roster: Roster) -> Self:
        """Exchange hellos. Both ends send first, so that neither waits for the other's check."""
        own = _Hello(version=_VERSION, session=session, roster=roster.hash, nonce=os.urandom(32))
        self.send_fields(_HELLO, own)
        peer = self.receive_fields(_HELLO, _Hello)
        if peer.version != own.version:
            self._refuse(_HELLO, f"it speaks version {peer.version}, here {own.version}: install the same release")
        if peer.roster != own.roster:
            self._refuse(_HELLO, "it has another roster: give every party the same file")
        if peer.session != own.session:
            self._refuse(
                _HELLO,
                f"it is in another session ({peer.session.hex()[:16]}, here {own.session.hex()[:16]}): "
                "start all parties again, for the same session",
            )
        nonces = b"".join(sorted((own.nonce, peer.nonce)))
        self.binding = sha256(_LABEL + nonces + roster.hash + session).digest()
        return self

    def _put(self, operation: str, arrays: _Arrays | None, body: Frames) -> None:
        begin = time.perf_counter()
        header = self._header(operation, arrays, self._sent)
        size = sum(frame.nbytes for frame in body)
        inline = arrays is None or size <= _INLINE_BYTES
        try:
            self._end.put(self.peer, operation, [b"".join((header, *body))] if inline else [header, *body])
        except MpcError:
            self._raise_reason(operation, self._end.last(self.peer))
            raise
        self._sent += 1
        cost = self.counters[operation]
        cost.bytes_sent += len(header) + size
        cost.seconds += time.perf_counter() - begin

    def _take(self, operation: str, arrays: _Arrays | None, sizes: Sequence[int] | None) -> Frames:
        """The body of the next message: the pieces of its arrays, or the fields if there are no sizes."""
        begin = time.perf_counter()
        expected = self._header(operation, arrays, self._received)
        first, *frames = self._end.take(self.peer, operation)
        if first[: len(expected)] != expected:
            self._explain(operation, arrays, first)
        received = first.nbytes + sum(frame.nbytes for frame in frames)
        body = self._body(first[len(expected) :], frames, sizes)
        if body is None:
            self._refuse(
                operation, f"its message has {received} bytes in {1 + len(frames)} frames, not those of its header"
            )
        self._received += 1
        cost = self.counters[operation]
        cost.bytes_received += received
        cost.seconds += time.perf_counter() - begin
        return body

    @staticmethod
    def _body(rest: memoryview, frames: Frames, sizes: Sequence[int] | None) -> Frames | None:
        """The body out of the rest of the first frame and the other frames; None if they are not what belongs there."""
        if sizes is None:
            return None if frames else [rest]
        lengths = [length for size in sizes for length in _lengths(size)]
        if sum(sizes) > _INLINE_BYTES:
            return None if rest or [frame.nbytes for frame in frames] != lengths else frames
        if frames or rest.nbytes != sum(sizes):
            return None
        return [rest[end - length : end] for end, length in zip(accumulate(lengths), lengths, strict=True)]

    def _header(self, operation: str, arrays: _Arrays | None, sequence: int) -> bytes:
        """The header as it stands in a message: its length, and zeros behind it."""
        encoded = msgspec.msgpack.encode(
            _Header(link=self.binding[:8], sequence=sequence, operation=operation, arrays=arrays)
        )
        return _LENGTH.pack(len(encoded)) + encoded + bytes(-(_LENGTH.size + len(encoded)) % _ALIGNMENT)

    def _explain(self, operation: str, arrays: _Arrays | None, message: memoryview) -> NoReturn:
        """Say what is wrong with a message that does not begin with the expected header."""
        self._raise_reason(operation, message)
        length = int.from_bytes(message[: _LENGTH.size], "little")
        try:
            header = decode_structure(message[_LENGTH.size :][:length], _Header, limit=_HEADER_LIMIT)
        except RemoteProtocolError as error:
            self._refuse(operation, str(error))
        if header.link != self.binding[:8]:
            self._refuse(operation, f"its {header} belongs to another session: start all parties again")
        if header.sequence != self._received:
            self._refuse(
                operation, f"its message {header.sequence} came where {self._received} was due: some were lost"
            )
        due = _Header(link=header.link, sequence=self._received, operation=operation, arrays=arrays)
        self._refuse(
            operation,
            f"it sent {header} where {due} was due, as message {self._received}: it has missed or added a call; "
            "let all parties run the same program on the same shapes",
        )

    def _raise_reason(self, operation: str, message: memoryview) -> None:
        """MpcError if this is the peer's last message, which says why it gave up."""
        length = _LENGTH.size + int.from_bytes(message[: _LENGTH.size], "little")
        with suppress(RemoteProtocolError):
            header = decode_structure(message[_LENGTH.size : length], _Header, limit=_HEADER_LIMIT)
            if (header.link, header.operation, header.arrays) == (self.binding[:8], _ENDED, None):
                ended = decode_structure(message[length + -length % _ALIGNMENT :], _Ended, limit=FIELDS_LIMIT)
                # For a log: one line, whatever the peer has written.
                self._refuse(operation, f"it has given up: {''.join(filter(str.isprintable, ended.reason))}")

    def _refuse(self, operation: str, reason: str) -> NoReturn:
        raise MpcError(self.peer, operation, reason)


@contextmanager
def errors_told(links: Iterable[PeerLink], *public: type[Exception]) -> Iterator[None]:
    """An error that leaves the block is told to the other ends: MpcErrors, and those of the public kinds, as they read;
    of others the kind alone, because the text might show a secret."""
    try:
        yield
    except BaseException as error:
        kind = type(error).__name__
        reason = f"{kind}: {error}" if isinstance(error, public) else f"{kind}; see its log"
        for link in links:
            link.abort(str(error) if isinstance(error, MpcError) else reason)
        raise


class Listener(_Closed):
    """Waits for the links of several peers at one address. Made by listen(); closed with `with` or close()."""

    def __init__(self, end: ListeningEnd, *, own: str, peers: Sequence[str], session: bytes, roster: Roster) -> None:
        self.address = end.address
        """Where the peers connect; the port that the system chose, if it was left open."""
        self._end: ListeningEnd = end
        self._own = own
        self._peers = tuple(peers)
        self._session = session
        self._roster = roster

    def accept(self) -> dict[str, PeerLink]:
        """The links to all peers, by name; nobody is let in afterwards. MpcError names those who did not come."""
        self._end.accept()
        return {
            peer: PeerLink(self._end, own=self._own, peer=peer)._greet(self._session, self._roster)
            for peer in self._peers
        }

    def ready(self, seconds: float) -> list[str]:
        """Peers whose next message is here, else those whose link is lost; waits at most so long for one."""
        return self._end.wait(self._peers, seconds)


def listen(
    address: str,
    *,
    keys: PartyKeys,
    roster: Roster,
    peers: Sequence[str],
    session: bytes,
    patience: float = PATIENCE_SECONDS,
) -> Listener:
    """Listen at tcp://HOST:PORT or ipc://PATH for the members `peers`.

    `session` names the computation: at most SESSION_BYTES that all its parties were started with. Every call waits for
    `patience` seconds. Raises MpcError for an address that cannot be used, LookupError for a peer that is not in the
    roster.
    """
    _check_session(session)
    opened = ListeningEnd.listen(address, keys=keys, roster=roster, peers=peers, patience=patience)
    return Listener(opened, own=keys.name, peers=peers, session=session, roster=roster)


def connect(
    address: str,
    *,
    keys: PartyKeys,
    roster: Roster,
    server: str,
    session: bytes,
    patience: float = PATIENCE_SECONDS,
) -> PeerLink:
    """Open a link to the member `server`, who listens at the address; arguments and errors as of listen()."""
    _check_session(session)
    opened = DialledEnd.dial(address, keys=keys, roster=roster, server=server, patience=patience)
    try:
        return PeerLink(opened, own=keys.name, peer=server)._greet(session, roster)
    except BaseException:
        opened.shut()
        raise


def _check_session(session: bytes) -> None:
    if len(session) > SESSION_BYTES:
        raise ValueError(f"the session has a name of {len(session)} bytes; at most {SESSION_BYTES} are accepted")


def _name(dtype: Dtype) -> str:
    name = _NAMES.get(dtype)
    if name is None:
        raise ValueError(f"dtype {dtype}: a link carries {', '.join(sorted(set(_NAMES.values())))}")
    return name


def _plain(array: Array | torch.Tensor) -> Array:
    return array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array


def _lengths(size: int) -> list[int]:
    """Bytes of the frames that carry so many bytes."""
    return [min(CHUNK_BYTES, size - start) for start in range(0, size, CHUNK_BYTES)]


def _frames(arrays: Iterable[Array]) -> list[memoryview]:
    whole = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    return [view[start : start + CHUNK_BYTES] for view in whole for start in range(0, view.nbytes, CHUNK_BYTES)]


def _array(pieces: Sequence[memoryview], dtype: str, shape: tuple[int, ...]) -> Array:
    """One array out of its frames; copied unless it is one frame that can be used as it is."""
    if len(pieces) == 1:
        array = np.frombuffer(pieces[0], dtype)
        if not (array.flags.aligned and array.flags.writeable):
            array = array.copy()
    else:
        array = np.empty(prod(shape), dtype)
        target = array.view(np.uint8).data
        for index, piece in enumerate(pieces):
            target[index * CHUNK_BYTES : index * CHUNK_BYTES + piece.nbytes] = piece
    return array.reshape(shape)

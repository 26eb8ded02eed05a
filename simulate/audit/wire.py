"""An outsider on the wire: what a relay between clients and server sees, which is bytes under CURVE and their times.

Streams are those of ZMTP 3 (ZeroMQ RFC 23): a greeting of 64 octets, then frames of a flag, a length and a body. Under
CURVE (RFC 26) the body of a message's frame is a name, a nonce and a box, whose ciphertext is longer than what is in it
by a constant. So lengths of frames are told, and with them who sends an update, of how many numbers, and who stops.
The ciphertext itself is attacked as if it were the ring words of an upload. Whose stream it is, the outsider need not
know: of all clients' images any counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tacit.simulate.audit.views import RunTerms, UpdateView, masked
from tacit.simulate.federation.relay import PassedBytes, passed

WIRE: Final = "wire"
"""The name of who is there."""
TAP: Final = "wire.passed"
"""The file of what passed, beside the recordings."""
ON_THE_WIRE: Final = "bytes on the wire"
"""How what it observes begins."""

_GREETING: Final = 64
_LONG: Final = 0x02
"""The flag of a frame whose length takes eight octets, not one."""
_MESSAGE: Final = b"\x07MESSAGE"
_BEFORE: Final = len(_MESSAGE) + 8 + 16 + 1
"""Octets in front of what a frame holds: the name, a nonce, a tag, and a flag that is encrypted too."""
LARGE: Final = 4096
"""Octets from which on a frame is part of a model or an update."""


@dataclass(frozen=True)
class Ciphertext:
    """What is in one frame of a message, encrypted: as long as it is in the clear."""

    seconds: float
    """When its last octet passed, on the monotonic clock."""
    octets: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Exchanged:
    """Of one stream, the frames that are large."""

    sent: tuple[Ciphertext, ...]
    """By who has connected, a client."""
    given: tuple[Ciphertext, ...]
    """By the server."""

    def uploads(self) -> list[bytes]:
        """What was sent between one model and the next, put together."""
        starts = [frame.seconds for frame in self.given]
        several: dict[int, list[bytes]] = defaultdict(list)
        for frame in self.sent:
            several[sum(start < frame.seconds for start in starts)].append(frame.octets)
        return [b"".join(parts) for _, parts in sorted(several.items())]

    def parameters(self) -> int:
        """About how many numbers of four octets the first model had, by its length; 0 if none came."""
        first = self.sent[0].seconds if self.sent else float("inf")
        return sum(len(frame.octets) for frame in self.given if frame.seconds < first) // 4


def exchanged(tap: Path) -> list[Exchanged]:
    """Of every stream that a relay kept, in the order in which they were opened."""
    pieces: dict[int, dict[bool, list[PassedBytes]]] = defaultdict(lambda: {True: [], False: []})
    for piece in passed(tap):
        pieces[piece.stream][piece.onwards].append(piece)
    streams = (ways for _, ways in sorted(pieces.items()))
    return [Exchanged(sent=tuple(_large(ways[True])), given=tuple(_large(ways[False]))) for ways in streams]


def told(streams: Sequence[Exchanged]) -> str:
    """What lengths and times alone say, in words."""
    counts = [len(one.uploads()) for one in streams]
    most = max(counts, default=0)
    lost = sum(0 < count < most for count in counts)
    parameters = max((one.parameters() for one in streams), default=0)
    return f"{sum(map(bool, counts))} clients sent up to {most} updates of {parameters:,} numbers, {lost} stopped early"


def on_the_wire(tap: Path, terms: RunTerms) -> list[UpdateView]:
    """Every upload's ciphertext, read as an upload; by round, and by stream. Of the model its architecture is known."""
    configuration, model = terms.configuration, terms.keeper().flat
    packing = configuration.packing()
    size = packing.length * packing.ring.wire_bytes
    streams = [one for one in exchanged(tap) if one.uploads()]
    what = f"{ON_THE_WIRE}: {told(streams)}"
    views: list[UpdateView] = []
    for stream in streams:
        for round, octets in enumerate(stream.uploads(), 1):
            words = packing.ring.unpack(octets[:size].ljust(size, b"\0"))
            views.append(masked(what, terms.clients, words, configuration, model, None, round))
    return sorted(views, key=lambda view: view.round)


def _large(pieces: Sequence[PassedBytes]) -> Iterator[Ciphertext]:
    """The frames of one direction that are large. What is not ZMTP under CURVE has none."""
    stream, ends, end = b"".join(piece.octets for piece in pieces), list[tuple[int, float]](), 0
    for piece in pieces:
        ends.append((end := end + len(piece.octets), piece.seconds))
    place, passed_by = _GREETING, iter(ends)
    reached, seconds = 0, 0.0
    while place < len(stream):
        size = 8 if stream[place] & _LONG else 1
        length = int.from_bytes(stream[place + 1 : place + 1 + size])
        body = stream[place + 1 + size : place + 1 + size + length]
        place += 1 + size + length
        while reached < min(place, len(stream)):
            reached, seconds = next(passed_by)
        if len(body) == length >= LARGE and body.startswith(_MESSAGE):
            yield Ciphertext(seconds, body[_BEFORE:])

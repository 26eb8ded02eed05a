"""Observations: an adversary's view of the clients' updates after a recorded run, from its own recordings alone.

docs/audits.md lists each adversary's data. Members agree on a key before the first round, and again when it is renewed;
one of them then sends the server the model under the new key. A removed member has the old key: with a server it has
the old model in the clear, and the same model under the new key.

An outsider sees streams of ZMTP 3 (ZeroMQ RFC 23) under CURVE (RFC 26): lengths of frames, and from them the sender and
size of each update, and departures. The ciphertext is attacked as if it were the ring words of an upload.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Flat
from tacit.models.model_encryption import ModelKey
from tacit.parties.learning.keeper import Keeper
from tacit.parties.protections.encryption import GroupModel
from tacit.protocol.core.codec import Packet, decode
from tacit.protocol.core.messages import Chunk
from tacit.protocol.group_key.messages import KeyedModel
from tacit.protocol.session.messages import MESSAGES, StartRound
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import MaskedInput, VectorChunk
from tacit.secagg.packing import Total
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Words
from tacit.simulate.federation.processes import SERVER
from tacit.simulate.federation.recording import HeardMessage, HeldKey, OpenedSum, OwnWords, Record, read
from tacit.simulate.federation.relay import PassedBytes, passed


@dataclass(frozen=True, kw_only=True)
class FormerKey:
    """The key before a round's, and the model under both when the key was renewed."""

    key: ModelKey = field(repr=False)
    before: Flat = field(repr=False)
    after: Flat = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """An adversary's knowledge of the encryption of a round's model."""

    first: Flat | None = field(repr=False)
    """The first model of the run under the key of this round; None if it was renewed since."""
    key: ModelKey | None = field(default=None, repr=False)
    """The round's key, if a member is among the adversary's parties."""
    former: FormerKey | None = field(default=None, repr=False)
    """Former key of a member removed at the latest renewal; None before that."""


class Renewals:
    def __init__(self) -> None:
        self._last: Sealed | None = None

    def round(self, before: Flat, model: Flat, key: ModelKey | None, *, given: bool) -> Sealed:
        """Return the encryption of the next round. before: the server's own model after the last one; model: that of
        this round; given: whether a member sent it."""
        last = self._last
        if last is None:
            last = Sealed(first=model, key=key)
        elif given:
            former = None if last.key is None else FormerKey(key=last.key, before=before, after=model)
            last = Sealed(first=None, key=key, former=former)
        self._last = last
        return last


def model_keys(records: Iterable[Record], group: GroupModel | None) -> dict[int, ModelKey]:
    """Return the keys that a client held, by round; none without model encryption."""
    if group is None:
        return {}
    return {record.round: group.key(record.key) for record in records if isinstance(record, HeldKey)}


def given_models(records: Iterable[Record]) -> dict[int, bytes]:
    """Return the models that members sent a server, little-endian float32, by the round that was opened next."""
    given, chunks = dict[int, bytes](), dict[int, bytes]()
    for record in records:
        if isinstance(record, OpenedSum) and chunks:
            given[record.round] = b"".join(chunks[chunk] for chunk in sorted(chunks))
            chunks = {}
        if not isinstance(record, HeardMessage):
            continue
        packet = decode([memoryview(frame) for frame in record.frames], MESSAGES)
        if packet.kind is KeyedModel:
            chunks = {}
        elif packet.kind is Chunk and packet.payload is not None:
            said = packet.parse()
            assert isinstance(said, Chunk)
            chunks[said.chunk] = bytes(packet.payload)
    return given


UPLOAD: Final = "upload"
WITH_KEYS: Final = "upload and a member's keys"
MASKED: Final = "masked upload"
SUM: Final = "opened sum"
LESS_OWN: Final = "opened sum minus colluding clients"
MODELS: Final = "difference of two models"
MEAN_OF_UPLOADS: Final = "mean of uploads"
DIFFERENCE: Final = "difference of two sums"


@dataclass(frozen=True, kw_only=True)
class UpdateView(Sealed):
    """An adversary's view of the mean of some clients' contributions to a round."""

    round: int
    kind: str
    clients: tuple[str, ...]
    """The clients whose images are attacked."""
    model: Flat = field(repr=False)
    mean: npt.NDArray[np.float64] = field(repr=False)
    """float64 [D]; 0 without a contributor."""
    known: npt.NDArray[np.bool_] = field(repr=False)
    """Coordinates with a contributor: bool [D]."""
    others: tuple[UpdateView, ...] = field(default=(), repr=False)
    """Other rounds in which the same clients trained on the same images, if all are attacked as one."""


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """Terms known to every party of the run: the packing of contributions, and the training."""

    configuration: Configuration
    training: TrainingConfiguration
    clients: tuple[str, ...]
    keeper: Callable[[], Keeper]
    """The server's side at the start of the run."""
    group_model: GroupModel | None
    """Makes the keys of an encrypted model."""


def observed(folder: Path, parties: Sequence[str], terms: RunTerms) -> list[UpdateView]:
    """Return the observations of these colluding parties, round by round; for a server with clients, only those that it
    lacks alone. ValueError for no parties, and for invalid recordings."""
    word = terms.configuration.packing().ring.word
    own = {party: _contributions(read(folder, party), word) for party in parties if party != SERVER}
    keys = model_keys(read(folder, min(own)), terms.group_model) if own else {}
    if SERVER in parties:
        return list(_server(list(read(folder, SERVER)), own, keys, terms))
    if not own:
        raise ValueError("there is no party to observe anything; name server or client")
    return list(_client(read(folder, min(own)), own, keys, terms))


def contributors(folder: Path, view: UpdateView, terms: RunTerms) -> npt.NDArray[np.int64]:
    """Count the view's clients that contributed to each coordinate, by their own recordings: int64 [D]."""
    packing, counts = terms.configuration.packing(), np.zeros(len(view.mean), np.int64)
    for client in view.clients:
        contributed = _contributions(read(folder, client), packing.ring.word)
        # A client that was lost during training contributed nothing.
        if view.round in contributed:
            counts += packing.decode(contributed[view.round], contributors=1).mean()[1]
    return counts


def _contributions(records: Iterable[Record], word: np.dtype[Any]) -> dict[int, Words]:
    return {record.round: record.words.astype(word) for record in records if isinstance(record, OwnWords)}


def _server(
    records: list[Record], own: Mapping[str, Mapping[int, Words]], keys: Mapping[int, ModelKey], terms: RunTerms
) -> Iterator[UpdateView]:
    configuration, keeper = terms.configuration, terms.keeper()
    packing = configuration.packing()
    heard = [record for record in records if isinstance(record, HeardMessage)]
    uploads = _uploads(heard, configuration)
    given, renewals = given_models(records), Renewals()
    for opened in (record for record in records if isinstance(record, OpenedSum)):
        before = keeper.flat
        if opened.round in given:
            keeper.replace(given[opened.round])
        model = keeper.flat
        sealed = renewals.round(before, model, keys.get(opened.round), given=opened.round in given)
        vectors = uploads[opened.round]
        total = Total(
            values=opened.values, weights=opened.weights, metrics={"samples": 0}, tensor_sizes=packing.tensor_sizes
        )

        def seen(
            kind: str,
            clients: Iterable[str],
            sums: Total,
            round: int = opened.round,
            model: Flat = model,
            sealed: Sealed = sealed,
        ) -> UpdateView:
            mean, known = sums.mean()
            return UpdateView(
                round=round,
                kind=kind,
                clients=tuple(clients),
                model=model,
                mean=mean,
                known=known,
                **vars(sealed),
            )

        if configuration.secure:
            there = [client for client in own if client in opened.survivors]
            if not own:
                for client, words in vectors.items():
                    yield masked(MASKED, (client,), words, configuration, model, sealed.first, opened.round)
                yield seen(SUM, opened.survivors, total)
            elif there:
                left = [client for client in opened.survivors if client not in own]
                less = without(total, [packing.decode(own[client][opened.round], contributors=1) for client in there])
                yield seen(LESS_OWN, left, less)
        else:
            honest = {client: words for client, words in vectors.items() if client not in own}
            alone = {client: packing.decode(words, contributors=1) for client, words in honest.items()}
            for client, one in alone.items():
                yield seen(WITH_KEYS if own else UPLOAD, [client], one)
            # As many as a sum would have, for comparison, and without a member's help.
            for count in sorted(set() if own else {2, len(alone)}):
                some = list(alone)[:count]
                yield seen(MEAN_OF_UPLOADS, some, _added([alone[client] for client in some]))
        keeper.apply(total, vectors if configuration.single_vectors else {}, round=opened.round)


def masked(
    kind: str,
    clients: tuple[str, ...],
    words: Words,
    configuration: Configuration,
    model: Flat,
    first: Flat | None,
    round: int,
) -> UpdateView:
    """Read masked words as a contribution, without the checks that they would fail."""
    packing = configuration.packing()
    if isinstance(packing, PlainPacking):
        # Any bits may be those of NaN, infinity, or a number that no model has.
        values = np.nan_to_num(words[: packing.values_length].view("<f4").astype(np.float64), posinf=0.0, neginf=0.0)
        values = np.clip(values, -configuration.clip, configuration.clip)
    else:
        numbers = packing.ring.signed(words[: packing.values_length])
        limit = packing.quantiser.levels
        values = packing.quantiser.dequantise(np.clip(numbers, -limit, limit)) / configuration.max_weight
    known = np.ones(len(values), np.bool_)
    return UpdateView(round=round, kind=kind, clients=clients, model=model, first=first, mean=values, known=known)


def _client(
    records: Iterable[Record],
    own: Mapping[str, Mapping[int, Words]],
    keys: Mapping[int, ModelKey],
    terms: RunTerms,
) -> Iterator[UpdateView]:
    """Yield observations in the clear: a member decrypts the models, and its own part."""
    packing = terms.configuration.packing()
    heard = _models((record for record in records if isinstance(record, HeardMessage)), packing.values_length)

    def clear(round: int, values: Flat) -> Flat:
        return keys[round].decrypt(values) if keys else values

    # A round that ended before this client had trained leaves it no key.
    models = {round: clear(round, model) for round, model in heard.items() if round in keys or not keys}
    others = tuple(client for client in terms.clients if client not in own)
    for round in sorted(models):
        if round + 1 not in models:
            continue
        moved = models[round + 1].astype(np.float64) - models[round]
        mean = -moved / terms.training.learning_rate if terms.training.sends_gradients else moved
        # Assume equal weights; a client does not know the others'.
        parts = [
            clear(round, packing.decode(words[round], contributors=1).mean()[0].astype(np.float32))
            for words in own.values()
            if round in words
        ]
        left = (mean * len(terms.clients) - sum(parts)) / (len(terms.clients) - len(parts))
        known = np.ones(len(left), np.bool_)
        first = None if keys else models[min(models)]
        yield UpdateView(
            round=round, kind=MODELS, clients=others, model=models[round], first=first, mean=left, known=known
        )


def _uploads(heard: Iterable[HeardMessage], configuration: Configuration) -> dict[int, dict[str, Words]]:
    packing = configuration.packing()
    chunks: dict[int, dict[str, dict[int, Words]]] = defaultdict(lambda: defaultdict(dict))
    for message, packet in _packets(heard, MaskedInput, VectorChunk):
        if not packet.payload:
            continue
        said = packet.parse()
        chunk = said.chunk if isinstance(said, VectorChunk) else 0
        chunks[packet.envelope.round][message.sender][chunk] = packing.ring.unpack(packet.payload)
    return {
        round: {
            client: np.concatenate([parts[chunk] for chunk in sorted(parts)])
            for client, parts in sorted(of_clients.items())
            if sum(map(len, parts.values())) == packing.length
        }
        for round, of_clients in chunks.items()
    }


def _models(heard: Iterable[HeardMessage], coordinates: int) -> dict[int, Flat]:
    """Return the received models, by the rounds that began with them, even if one was not sent again; models between
    rounds are to be encrypted."""
    chunks: dict[int, dict[int, bytes]] = defaultdict(dict)
    announced: dict[int, bytes] = {}
    for _, packet in _packets(heard, StartRound, Chunk):
        said, round = packet.parse(), packet.envelope.round
        if isinstance(said, StartRound):
            announced[round] = said.model.digest
        elif isinstance(said, Chunk) and packet.payload is not None and round:
            chunks[round][said.chunk] = bytes(packet.payload)
    came = {round: b"".join(parts[chunk] for chunk in sorted(parts)) for round, parts in chunks.items()}
    known = {announced[round]: model for round, model in came.items() if round in announced}
    whole = {round: known[model] for round, model in announced.items() if model in known} | came
    return {round: np.frombuffer(model, "<f4") for round, model in whole.items() if len(model) == 4 * coordinates}


def _packets(heard: Iterable[HeardMessage], *kinds: type) -> Iterator[tuple[HeardMessage, Packet]]:
    for message in heard:
        packet = decode([memoryview(frame) for frame in message.frames], MESSAGES)
        if packet.kind in kinds:
            yield message, packet


def without(total: Total, parts: Sequence[Total]) -> Total:
    return Total(
        values=total.values - sum(part.values for part in parts),
        weights=total.weights - sum(part.weights for part in parts),
        metrics={},
        tensor_sizes=total.tensor_sizes,
    )


def _added(parts: Sequence[Total]) -> Total:
    return Total(
        values=np.sum([part.values for part in parts], axis=0),
        weights=np.sum([part.weights for part in parts], axis=0),
        metrics={},
        tensor_sizes=parts[0].tensor_sizes,
    )


WIRE: Final = "wire"
TAP: Final = "wire.passed"
ON_THE_WIRE: Final = "bytes on the wire"
"""Prefix of its kind of observation."""

_GREETING: Final = 64
_LONG: Final = 0x02
"""The flag of a frame whose length takes eight octets, not one."""
_MESSAGE: Final = b"\x07MESSAGE"
_BEFORE: Final = len(_MESSAGE) + 8 + 16 + 1
"""Octets in front of a frame's content: the name, a nonce, a tag, and a flag that is encrypted too."""
LARGE: Final = 4096
"""Octets from which on a frame is part of a model or an update."""


@dataclass(frozen=True)
class Ciphertext:
    """Encrypted content of one frame of a message, as long as its plaintext."""

    seconds: float
    """Arrival of its last octet, on the monotonic clock."""
    octets: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """The large frames of one connection; sent: by the client; given: by the server."""

    sent: tuple[Ciphertext, ...]
    given: tuple[Ciphertext, ...]

    def uploads(self) -> list[bytes]:
        """Join the frames sent between one model and the next."""
        starts = [frame.seconds for frame in self.given]
        several: dict[int, list[bytes]] = defaultdict(list)
        for frame in self.sent:
            several[sum(start < frame.seconds for start in starts)].append(frame.octets)
        return [b"".join(parts) for _, parts in sorted(several.items())]

    def parameters(self) -> int:
        """Estimate the number of parameters, four octets each, by the length of the first model; 0 if none passed."""
        first = self.sent[0].seconds if self.sent else float("inf")
        return sum(len(frame.octets) for frame in self.given if frame.seconds < first) // 4


def streams_of(tap: Path) -> list[Stream]:
    """Read all streams of a relay's record, in order of opening."""
    pieces: dict[int, dict[bool, list[PassedBytes]]] = defaultdict(lambda: {True: [], False: []})
    for piece in passed(tap):
        pieces[piece.stream][piece.onwards].append(piece)
    streams = (ways for _, ways in sorted(pieces.items()))
    return [Stream(sent=tuple(_large(ways[True])), given=tuple(_large(ways[False]))) for ways in streams]


def traffic_summary(streams: Sequence[Stream]) -> str:
    """Summarise the disclosures of lengths and times alone."""
    counts = [len(one.uploads()) for one in streams]
    most = max(counts, default=0)
    lost = sum(0 < count < most for count in counts)
    parameters = max((one.parameters() for one in streams), default=0)
    return f"{sum(map(bool, counts))} clients sent up to {most} updates of {parameters:,} numbers, {lost} stopped early"


def on_the_wire(tap: Path, terms: RunTerms) -> list[UpdateView]:
    """Return every upload's ciphertext, read as an upload; by round, and by stream. The architecture of the model is
    known."""
    configuration, model = terms.configuration, terms.keeper().flat
    packing = configuration.packing()
    size = packing.length * packing.ring.wire_bytes
    streams = [one for one in streams_of(tap) if one.uploads()]
    kind = f"{ON_THE_WIRE}: {traffic_summary(streams)}"
    views: list[UpdateView] = []
    for stream in streams:
        for round, octets in enumerate(stream.uploads(), 1):
            words = packing.ring.unpack(octets[:size].ljust(size, b"\0"))
            views.append(masked(kind, terms.clients, words, configuration, model, None, round))
    return sorted(views, key=lambda view: view.round)


def _large(pieces: Sequence[PassedBytes]) -> Iterator[Ciphertext]:
    """Return the large frames of one direction; none if the octets are not ZMTP under CURVE."""
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

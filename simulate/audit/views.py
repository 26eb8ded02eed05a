"""What an adversary knows of the clients' updates after a recorded run, worked out of its own recordings alone.

A server without secure aggregation has every upload; with it, uploads under masks and the sums that it opened; together
with clients, the sums less what these clients contributed. A client has the models that it was given: the difference of
two is the mean of a round, from which it takes its own part. In each case the adversary knows the model that the update
was made from, because it sent or received it. A server with a client has the client's keys of an encrypted model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tacit.models.layout import Flat
from tacit.models.model_encryption import ModelKey
from tacit.parties.learning.keeper import Keeper
from tacit.parties.protections.encryption import GroupModel
from tacit.protocol.core.codec import Packet, decode
from tacit.protocol.core.messages import Chunk
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import MaskedInput, VectorChunk
from tacit.secagg.packing import Total
from tacit.secagg.ring import Words
from tacit.simulate.audit.keys import FormerKey, Renewals, Sealed, given_models, model_keys
from tacit.simulate.federation.recording import HeardMessage, OpenedSum, OwnWords, Record, read
from tacit.simulate.federation.supervision import SERVER

UPLOAD: Final = "upload"
WITH_KEYS: Final = "upload, and the keys of a member"
MASKED: Final = "upload under masks"
SUM: Final = "opened sum"
LESS_OWN: Final = "opened sum less colluding clients"
MODELS: Final = "difference of two models"
MEAN_OF_UPLOADS: Final = "mean of uploads"
DIFFERENCE: Final = "difference of two sums"


@dataclass(frozen=True, kw_only=True)
class UpdateView:
    """The mean of some clients' contributions to a round, as an adversary knows it."""

    round: int
    what: str
    clients: tuple[str, ...]
    """Whose images are in it, and are sought."""
    model: Flat = field(repr=False)
    """From which they began."""
    first: Flat | None = field(repr=False)
    """The first model of the run, as the adversary has it: encrypted, if it is; None if the key was renewed since."""
    mean: npt.NDArray[np.float64] = field(repr=False)
    """float64 [D]; 0 where nobody contributed."""
    known: npt.NDArray[np.bool_] = field(repr=False)
    """Where somebody contributed: bool [D]."""
    key: ModelKey | None = field(default=None, repr=False)
    """Of the round, where one of the adversary's parties is a member."""
    former: FormerKey | None = field(default=None, repr=False)
    """What a member has who was removed when the key was renewed last; None before that."""
    others: tuple[UpdateView, ...] = field(default=(), repr=False)
    """Of other rounds, in which the same clients trained on the same images, where they are to be read as one."""


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What every party of the run was told: how contributions are packed, and what a step is."""

    configuration: Configuration
    learning_rate: float
    clients: tuple[str, ...]
    keeper: Callable[[], Keeper]
    """The server's side at the start of the run."""
    group_model: GroupModel | None
    """Makes the keys of an encrypted model."""


def observed(folder: Path, parties: Sequence[str], terms: RunTerms) -> list[UpdateView]:
    """All that these parties together can make out, round by round; of a server with clients, what it has not alone.

    ValueError for parties of which nothing can be made out, and for recordings that are none.
    """
    word = terms.configuration.packing().ring.word
    own = {party: _contributions(read(folder, party), word) for party in parties if party != SERVER}
    keys = model_keys(read(folder, min(own)), terms.group_model) if own else {}
    if SERVER in parties:
        return list(_server(list(read(folder, SERVER)), own, keys, terms))
    if not own:
        raise ValueError("nobody is there to observe anything; name server or client")
    return list(_client(read(folder, min(own)), own, keys, terms))


def contributors(folder: Path, view: UpdateView, terms: RunTerms) -> npt.NDArray[np.int64]:
    """How many of the view's clients contributed to each coordinate: int64 [D], by what they really worked out."""
    packing, counts = terms.configuration.packing(), np.zeros(len(view.mean), np.int64)
    for client in view.clients:
        contributed = _contributions(read(folder, client), packing.ring.word)
        # Who was lost while it trained has contributed nothing.
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
            what: str,
            clients: Iterable[str],
            sums: Total,
            round: int = opened.round,
            model: Flat = model,
            sealed: Sealed = sealed,
        ) -> UpdateView:
            mean, known = sums.mean()
            return UpdateView(
                round=round,
                what=what,
                clients=tuple(clients),
                model=model,
                mean=mean,
                known=known,
                first=sealed.first,
                key=sealed.key,
                former=sealed.former,
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
            # What a sum of as many would have told it, without a member's help.
            for count in sorted(set() if own else {2, len(alone)}):
                some = list(alone)[:count]
                yield seen(MEAN_OF_UPLOADS, some, _added([alone[client] for client in some]))
        keeper.apply(total, vectors if configuration.single_vectors else {}, round=opened.round)


def masked(
    what: str,
    clients: tuple[str, ...],
    words: Words,
    configuration: Configuration,
    model: Flat,
    first: Flat | None,
    round: int,
) -> UpdateView:
    """What the words would be without masks: read as a contribution is, but for the checks that they would not pass."""
    packing = configuration.packing()
    numbers = packing.ring.signed(words[: packing.values_length])
    limit = packing.quantiser.levels
    values = packing.quantiser.dequantise(np.clip(numbers, -limit, limit)) / configuration.max_weight
    known = np.ones(len(values), np.bool_)
    return UpdateView(round=round, what=what, clients=clients, model=model, first=first, mean=values, known=known)


def _client(
    records: Iterable[Record],
    own: Mapping[str, Mapping[int, Words]],
    keys: Mapping[int, ModelKey],
    terms: RunTerms,
) -> Iterator[UpdateView]:
    """All in the clear: a member decrypts the models, and its own part."""
    packing = terms.configuration.packing()
    heard = _models((record for record in records if isinstance(record, HeardMessage)), packing.values_length)

    def clear(round: int, values: Flat) -> Flat:
        return keys[round].decrypt(values) if keys else values

    # A round that was over before this client had trained leaves it no key.
    models = {round: clear(round, model) for round, model in heard.items() if round in keys or not keys}
    others = tuple(client for client in terms.clients if client not in own)
    for round in sorted(models):
        if round + 1 not in models:
            continue
        moved = models[round + 1].astype(np.float64) - models[round]
        mean = -moved / terms.learning_rate if terms.configuration.scheme == "fedsgd" else moved
        # Of equal weights; others are not known to a client.
        parts = [
            clear(round, packing.decode(words[round], contributors=1).mean()[0].astype(np.float32))
            for words in own.values()
            if round in words
        ]
        left = (mean * len(terms.clients) - sum(parts)) / (len(terms.clients) - len(parts))
        known = np.ones(len(left), np.bool_)
        first = None if keys else models[min(models)]
        yield UpdateView(
            round=round, what=MODELS, clients=others, model=models[round], first=first, mean=left, known=known
        )


def _uploads(heard: Iterable[HeardMessage], configuration: Configuration) -> dict[int, dict[str, Words]]:
    """Ring words by round and client, of vectors that came whole."""
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
    """The models that a party was given, by the rounds in which they came; those between rounds are to be encrypted."""
    chunks: dict[int, dict[int, bytes]] = defaultdict(dict)
    for _, packet in _packets(heard, Chunk):
        said = packet.parse()
        if isinstance(said, Chunk) and packet.payload is not None and packet.envelope.round:
            chunks[packet.envelope.round][said.chunk] = bytes(packet.payload)
    whole = {round: b"".join(parts[chunk] for chunk in sorted(parts)) for round, parts in chunks.items()}
    return {round: np.frombuffer(model, "<f4") for round, model in whole.items() if len(model) == 4 * coordinates}


def _packets(heard: Iterable[HeardMessage], *kinds: type) -> Iterator[tuple[HeardMessage, Packet]]:
    for message in heard:
        packet = decode([memoryview(frame) for frame in message.frames], MESSAGES)
        if packet.kind in kinds:
            yield message, packet


def without(total: Total, parts: Sequence[Total]) -> Total:
    """A sum without some contributions to it."""
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

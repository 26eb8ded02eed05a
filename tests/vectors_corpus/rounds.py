"""Transcripts of whole secure sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from tacit.protocol.core.codec import Envelope, encode
from tacit.protocol.core.messages import CHUNK_BYTES
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.messages import FetchVector
from tacit.protocol.sum.states import VERSION
from tacit.secagg.graph import complete_parameters
from tacit.secagg.packing import WeightForm
from tacit.secagg.plain import PlainPacking
from tacit.secagg.ring import Ring
from tacit.simulate.conformance.computations import SumTerms
from tacit.simulate.conformance.exchange import linked_sum_client, linked_sum_server
from tacit.simulate.world.federation import plain_words
from tests.vectors_corpus.play import SERVER, Change, Making, Parcel, Play, ending, unchanged
from tests.vectors_corpus.primitives import drawn

PHASE_SECONDS: Final = 10.0
FIRST_DEADLINE: Final = 110.0
TWO_CHUNKS: Final = CHUNK_BYTES // 4 + 16
"""Words of a vector of two chunks."""


def sum_terms(
    clients: int,
    *,
    active: bool,
    regular: tuple[int, int] | None = None,
    ring_bits: int = 32,
    length: int = 3,
    **others: Any,
) -> dict[str, Any]:
    """What the members hold alike. regular: neighbours and threshold of a regular graph; others: terms as they are."""
    cohort = [f"client-{member}" for member in range(clients)]
    complete = complete_parameters(clients, active=active, colluders=0)
    neighbours, threshold = regular or (complete.neighbours, complete.threshold)
    keys = [SigningKey(drawn(f"{name} signing")).public for name in cohort]
    return {
        "session": drawn("session"), "round": 1, "server": SERVER, "cohort": cohort, "signing_keys": keys,
        "mode": "active" if active else "semi-honest", "graph": "regular" if regular else "complete",
        "neighbours": neighbours, "threshold": threshold, "ring_bits": ring_bits, "length": length,
        "roster": drawn("roster"), "configuration": drawn("configuration"), "model": drawn("model"),
        "train_seconds": FIRST_DEADLINE - PHASE_SECONDS, "phase_seconds": PHASE_SECONDS,
        "fewest_survivors": clients - 1 if regular else 0, **others,
    }  # fmt: skip


PLAIN: Final[dict[str, Any]] = {"mode": "none", "threshold": 1}
"""Terms without secure aggregation."""
GROUPED: Final[dict[str, Any]] = {"groups": [[0, 3], [1, 4], [2, 5]], "fewest_survivors": 4}
"""Terms of six clients in pairs, of which one may be left out."""


def agreement_of(terms: dict[str, Any]) -> Agreement:
    return msgspec.convert(terms, SumTerms, builtin_types=(bytes,), dec_hook=lambda kind, value: value).agreement()


def words(name: str, bits: int, length: int) -> Any:
    """Ring words that follow from a name; a long vector is zero."""
    octets = -(-bits // 8)
    if octets * length > CHUNK_BYTES:
        return np.zeros(length, Ring(bits).word)
    raw = drawn(name, octets * length)
    numbers = [int.from_bytes(raw[start : start + octets], "little") % 2**bits for start in range(0, len(raw), octets)]
    return np.array(numbers, Ring(bits).word)


def plain_vector(name: str, *, form: str, tensor_sizes: tuple[int, ...], metrics: tuple[str, ...] = ()) -> Any:
    """The words of a contribution without secure aggregation that follow from a name."""
    packing = PlainPacking(clients=5, max_weight=100, form=WeightForm(form), tensor_sizes=tensor_sizes, metrics=metrics)
    return plain_words(packing, words(name, packing.ring.bits, packing.length))


def sum_client(terms: dict[str, Any], name: str) -> Making:
    """One of the clients, with randomness that follows from its name."""
    given = {"agreement": agreement_of(terms), "name": name, "signing": SigningKey(drawn(f"{name} signing"))}
    return Making(linked_sum_client, given, drawn(f"{name} entropy", 160))


def contribute(play: Play, terms: dict[str, Any], name: str) -> None:
    bits, length = terms["ring_bits"], terms["length"]
    vector = words(f"{name} vector", bits, length)
    if terms["mode"] == "none" and vector.any():
        vector = plain_vector(f"{name} vector", form="scalar", tensor_sizes=(length - 1,))
    play.act(name, "contribute", vector=vector)


def begun(terms: dict[str, Any], about: str, training: Sequence[str] = ()) -> Play:
    """A play in which all clients have started, and have their vectors but for those who still train."""
    play = Play("secure sum", about)
    play.make(SERVER, Making(linked_sum_server, {"agreement": agreement_of(terms)}))
    for name in terms["cohort"]:
        play.make(name, sum_client(terms, name))
    for name in ([SERVER] if terms["mode"] == "none" else []) + terms["cohort"]:
        play.act(name, "start")
    for name in terms["cohort"]:
        if name not in training:
            contribute(play, terms, name)
    return play


def played(terms: dict[str, Any], about: str, change: Change = unchanged) -> Play:
    play = begun(terms, about)
    play.deliver(change)
    return ending(play, "sum")


def round_semi_honest() -> Play:
    return played(sum_terms(4, active=False), "Four clients, semi-honest, nobody drops out.")


def round_active() -> Play:
    return played(sum_terms(4, active=True), "Four clients, active, nobody drops out.")


def round_ring() -> Play:
    terms = sum_terms(6, active=False, regular=(4, 3), ring_bits=20)
    return with_losses(
        terms, "Six clients on a ring of four neighbours, semi-honest; one shares and sends no vector.",
        {"client-3": "masked-input"},
    )  # fmt: skip


def round_chosen() -> Play:
    terms = sum_terms(5, active=True, regular=(3, 2), ring_bits=64)
    return with_losses(
        terms, "Five clients who choose their holders, active; one sends no vector, one does not unmask.",
        {"client-3": "masked-input", "client-4": "unmask-shares"},
    )  # fmt: skip


def round_semi_honest_dropouts() -> Play:
    return with_losses(
        sum_terms(5, active=False, ring_bits=24, length=5),
        "Five clients, semi-honest: one goes in each of the last two phases, and their deadlines pass.",
        {"client-1": "masked-input", "client-4": "unmask-shares"},
    )


def round_active_dropouts() -> Play:
    return with_losses(
        sum_terms(4, active=True, ring_bits=12),
        "Four clients, active: one shares and sends no vector, and the deadline passes.",
        {"client-0": "masked-input"},
    )


def round_early_dropouts() -> Play:
    return with_losses(
        sum_terms(4, active=False, ring_bits=64),
        "Four clients, semi-honest: one advertises its keys and does not share.",
        {"client-2": "share-keys"},
    )


def with_losses(terms: dict[str, Any], about: str, losses: dict[str, str]) -> Play:
    """These clients are gone before that message; the server's deadlines pass."""
    play = begun(terms, about)
    gone: set[str] = set()

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if losses.get(parcel.sender) == parcel.kind:
            gone.add(parcel.sender)
        return None if gone & {parcel.sender, parcel.receiver} else parcel.frames

    play.deliver(change)
    for _ in losses:
        play.expire(SERVER, play.now + (FIRST_DEADLINE if not play.now else PHASE_SECONDS))
        play.deliver(change)
    return ending(play, "sum")


def round_lost_links() -> Play:
    play = begun(sum_terms(4, active=True), "Four clients, active: a link is lost when its owner has sent its vector.")

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        return None if parcel.receiver == "client-2" and parcel.kind == "survivors" else parcel.frames

    play.deliver(change)
    play.act(SERVER, "drop", member="client-2")
    play.deliver()
    return ending(play, "sum")


def round_chunks() -> Play:
    terms = sum_terms(3, active=False, length=TWO_CHUNKS)
    play = begun(terms, "Vectors of two chunks are fetched, that of the third client in advance.", ["client-2"])
    play.deliver()
    contribute(play, terms, "client-2")
    play.deliver()
    # Masked vectors of two chunks are given by their hashes, so that nobody can receive them.
    play.hidden.add(SERVER)
    return ending(play, "sum")


def round_stalled_uploads() -> Play:
    terms = sum_terms(7, active=False, length=TWO_CHUNKS, **PLAIN)
    play = begun(
        terms,
        "Vectors of two chunks, without secure aggregation: of seven clients the second sends none, the third one of "
        "two, and each is out a phase after its last; the sixth is ready at the last moment, and the seventh too late.",
        ["client-5", "client-6"],
    )
    late: list[Parcel] = []

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if parcel.sender in ("client-1", "client-2") and parcel.kind != "masked-input":
            late.append(parcel)
            return None
        return parcel.frames

    play.deliver(change)
    play.now = PHASE_SECONDS - 1
    play.give(next(parcel for parcel in late if parcel.sender == "client-2"))
    for now in (PHASE_SECONDS, 2 * PHASE_SECONDS - 1):
        play.expire(SERVER, now)
        play.deliver(change)
    play.now = FIRST_DEADLINE - 1
    contribute(play, terms, "client-5")
    last: list[Parcel] = []

    def slowly(parcel: Parcel) -> Sequence[bytes] | None:
        if parcel.sender == "client-5" and parcel.kind == "vector-chunk":
            last.append(parcel)
            return None
        return change(parcel)

    play.deliver(slowly)
    play.expire(SERVER, FIRST_DEADLINE)
    for parcel in last:
        play.give(parcel)
    play.deliver(change)
    return ending(play, "sum")


def _asked(about: str, *chunks: int) -> Play:
    """A client that still trains is asked for these chunks of its vector of five."""
    terms = sum_terms(3, active=False, length=CHUNK_BYTES + 16, **PLAIN)
    play = Play("secure sum", about)
    play.make("client-0", sum_client(terms, "client-0"))
    play.act("client-0", "start")
    for sequence, chunk in enumerate(chunks):
        message = FetchVector(chunk=chunk)
        envelope = Envelope(
            version=VERSION, type=message.TYPE, session=terms["session"], round=1, sender=SERVER, sequence=sequence
        )
        frames = [bytes(frame) for frame in encode(message, envelope, None)]
        play.give(Parcel(sequence, SERVER, "client-0", tuple(frames), play.kinds))
    return ending(play, "aborted", "UNEXPECTED")


def fetch_vector_bad_order() -> Play:
    return _asked("A chunk is asked for twice.", 0, 0)


def fetch_vector_bad_window() -> Play:
    return _asked("More chunks are asked for in advance than a window has.", 0, 1, 2, 3, 4)


def round_plain() -> Play:
    return played(sum_terms(2, active=False, **PLAIN), "Two clients without secure aggregation.")


HONEST: Final[tuple[Callable[[], Play], ...]] = (
    round_semi_honest, round_active, round_ring, round_chosen, round_semi_honest_dropouts, round_active_dropouts,
    round_early_dropouts, round_lost_links, round_plain,
)  # fmt: skip
UPLOADS: Final[tuple[Callable[[], Play], ...]] = (
    round_chunks, round_stalled_uploads, fetch_vector_bad_order, fetch_vector_bad_window,
)  # fmt: skip

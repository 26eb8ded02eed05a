"""Transcripts of sessions: joining, models, rounds and their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import Any, Final

import msgspec
from msgspec import structs

from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.primitives import SigningKey, digest
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.rounds import JournalEntry, JournalLine
from tacit.protocol.session.server import TrainingServer
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy
from tacit.protocol.sum.spending import state_spending
from tacit.protocol.sum.states import SumLabel
from tests.vectors_corpus.messages import encoded, octets
from tests.vectors_corpus.play import SERVER, Change, Making, Parcel, Play, ending, unchanged
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.rounds import plain_vector, words

CLIENTS: Final = 3


def names(clients: int) -> tuple[str, ...]:
    return tuple(f"client-{number}" for number in range(clients))


NAMES: Final = names(CLIENTS)
CHEAT: Final = "client-1"
"""Who breaks a rule where a client does; also the client that a lying server speaks to."""
MODEL: Final = pack("<6f", *range(6))
TRAIN_SECONDS: Final = 60.0
PHASE_SECONDS: Final = 5.0
GRACE: Final = 5.0
LENGTH: Final = 6 + 1 + 2 * 2
"""Words of the vector: six values, the weight, two metrics in two limbs each."""


def roster(clients: int = CLIENTS, groups: Sequence[int] = ()) -> list[dict[str, Any]]:
    """The server and the clients. groups: numbers of the clients' groups, if they are in any."""
    rows: list[dict[str, Any]] = []
    for name in (SERVER, *names(clients)):
        signing = SigningKey(drawn(f"{name} signing")).public
        role = "server" if name == SERVER else "client"
        rows.append({"name": name, "role": role, "curve_public": drawn(f"{name} curve"), "signing_public": signing})
    for row, group in zip(rows[1:], groups, strict=False):
        row["group"] = group
    return rows


def roster_of(rows: Sequence[Mapping[str, Any]], version: int = 0, **signed: Any) -> Roster:
    """The roster with these rows. signed: the private key of who signs this version, the lineage, a standby key, and
    former members."""
    members = tuple(Member(**row) for row in rows)
    if not signed:
        return Roster(members, version)
    operator = SigningKey(signed.pop("operator"))
    return Roster.signed(members, version=version, operator=operator, **signed)


def policy_of(**fields: Any) -> Policy:
    return msgspec.convert(fields, Policy)


POLICY: Final = policy_of(modes=["active", "semi-honest"])


def session_client(name: str, roster: Roster, *, draws: int = 128, **changes: Any) -> Making:
    journal: tuple[JournalLine, ...] = ()
    given = {
        "name": name, "roster": roster, "signing": SigningKey(drawn(f"{name} signing")), "policy": POLICY,
        "journal": journal, "patience": 600.0, "grace": GRACE,
    }  # fmt: skip
    return Making(TrainingClient, given | changes, drawn(f"{name} link", 2) + drawn(f"{name} entropy", draws))


def session_server(roster: Roster, *, configuration: bytes = b"", **changes: Any) -> Making:
    proposed = configuration or encoded(clients=CLIENTS)
    given = {
        "roster": roster, "configuration": decode_structure(proposed, Configuration, limit=BODY_LIMIT), "model": MODEL,
        "smallest_cohort": CLIENTS, "join_seconds": 60.0, "grace": GRACE,
    }  # fmt: skip
    return Making(TrainingServer, given | changes, drawn("session"))


def begun(
    about: str,
    *,
    model: bytes = MODEL,
    clients: int = CLIENTS,
    draws: int = 256,
    groups: Sequence[int] = (),
    silent: Sequence[str] = (),
    completed: int = 0,
    signed: Mapping[str, Any] | None = None,
    fixed: bytes = b"",
    own: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: Any,
) -> Play:
    """A session in which all clients but the silent ones have said hello.

    draws: bytes of randomness of each; by default for two rounds. groups: numbers of the clients' groups, if they are
    in any. completed: rounds of earlier sessions. signed: version and operator of the roster, if it has any. own: of
    single parties, what they alone are made with.
    changes: of the configuration.
    """
    play = Play("federation", about)
    policy = policy_of(modes=["active", "semi-honest", "none"], least_corrupt=0.0) if changes else POLICY
    members = roster_of(roster(clients, groups), **(signed or {}))
    given: dict[str, Any] = {"model": model, "configuration": encoded(**{"clients": clients} | changes)}
    if completed:
        given |= {"completed": completed}
    if fixed:
        announced = {"digest": octets(digest(SumLabel.FIXED, fixed)), "size": len(fixed)}
        given |= {"fixed": fixed, "configuration": encoded(clients=clients, fixed=announced)}
    play.make(SERVER, session_server(members, **given | dict((own or {}).get(SERVER, {}))))
    for name in names(clients):
        play.make(name, session_client(name, members, draws=draws, policy=policy, **(own or {}).get(name, {})))
    for name in names(clients):
        if name not in silent:
            play.act(name, "start")
    return play


def hold_round(play: Play, round: int, change: Change = unchanged, *, plain: str = "") -> None:
    """Deliver the model, let the clients train, and deliver the rest.

    plain: without secure aggregation, the form of the weights.
    """
    play.deliver(change)
    for name in NAMES:
        vector = words(f"{name} vector {round}", 32, LENGTH)
        if plain:
            vector = plain_vector(
                f"{name} vector {round}", form=plain, tensor_sizes=(4, 2), metrics=("correct", "samples")
            )
        play.act(name, "contribute", round=round, vector=vector)
    play.deliver(change)


def session_active() -> Play:
    play = begun("Three clients join, complete one round in active mode, and finish.")
    hold_round(play, 1)
    play.act(SERVER, "finish", model=b"")
    play.deliver()
    return ending(play, "round done")


def session_fixed_part() -> Play:
    fixed = b"what is not trained"
    play = begun(
        "The model has a part that is not trained: each client fetches it in its first round, and only then.",
        fixed=fixed,
    )
    hold_round(play, 1)
    play.act(SERVER, "next_round", model=MODEL)
    hold_round(play, 2)
    play.act(SERVER, "finish", model=b"")
    play.deliver()
    return ending(play, "round done")


def session_repeated_round() -> Play:
    play = begun("A vector comes too late and the round is aborted; a second round is run from the same model.")
    late: list[Parcel] = []

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if (parcel.sender, parcel.kind) != (CHEAT, "masked-input") or late:
            return parcel.frames
        late.append(parcel)
        return None

    hold_round(play, 1, change)
    play.expire(SERVER, TRAIN_SECONDS + PHASE_SECONDS)
    play.give(late[0])
    play.deliver()
    play.act(SERVER, "next_round", model=MODEL)
    hold_round(play, 2)
    play.act(SERVER, "finish", model=b"")
    play.deliver()
    return ending(ending(play, "round done", "THRESHOLD"), "round done")


def session_spoiled_sum() -> Play:
    play = begun("Two rounds whose sums cannot be applied: all are told so, and the model stays as it was.")
    for round in (1, 2):
        hold_round(play, round)
        if round == 1:
            play.act(SERVER, "next_round", model=MODEL, unusable="the sum is no sum of updates")
    play.act(SERVER, "finish", model=b"", unusable="the sum is no sum of updates")
    play.deliver()
    return ending(ending(play, "round over", "VECTOR"), "round done")


def session_lost_links() -> Play:
    play = begun("The server loses its link to a client that is to train, and the client loses its own to the server.")
    play.deliver()
    play.act(SERVER, "link_lost", member=CHEAT)
    play.act(CHEAT, "server_lost")
    for party in (CHEAT, SERVER):
        play.expire(party, GRACE)
    play.deliver(lambda parcel: None if parcel.receiver == CHEAT else parcel.frames)
    return ending(play, "ended", "LEFT")


def flap(play: Play, *, ends: Sequence[str] = (SERVER, CHEAT)) -> None:
    """The client's link breaks and comes back; these ends notice."""
    for call, own in (("link_lost", "server_lost"), ("link_back", "server_back")):
        for party in ends:
            if party == SERVER:
                play.act(party, call, member=CHEAT)
            else:
                play.act(party, own)


def session_resumed(*losses: tuple[str, str]) -> Play:
    """Two rounds, in which the client's link breaks with these messages, each to its receiver."""
    play = begun(
        "A client's link breaks several times, with a message that is lost, and comes back. All that was not received "
        "is said again, and everybody is in both rounds.",
    )
    left = list(losses or [(CHEAT, "welcome"), (CHEAT, "chunk"), (SERVER, "share-keys"), (CHEAT, "survivors")])

    def change(parcel: Parcel) -> Sequence[bytes] | None:
        if not left or (parcel.receiver, parcel.kind) != left[0] or CHEAT not in (parcel.sender, parcel.receiver):
            return parcel.frames
        left.pop(0)
        flap(play)
        if parcel.receiver == SERVER:
            # What the client said next, before it asked to go on, comes first: the server knows that something is lost.
            envelope = structs.replace(parcel.packet.envelope, sequence=parcel.packet.envelope.sequence + 1)
            play.give(parcel, (encode_structure(envelope), *parcel.frames[1:]))
        return None

    hold_round(play, 1, change)
    # What came over a former connection, or goes to or from an earlier process, is passed over.
    fetch, welcome = play.said("fetch", CHEAT, SERVER), play.said("welcome", SERVER, CHEAT)
    play.give(fetch)
    for parcel in (fetch, welcome):
        envelope = structs.replace(parcel.packet.envelope, link=parcel.packet.envelope.link + 9)
        play.give(parcel, (encode_structure(envelope), *parcel.frames[1:]))
    play.act(SERVER, "next_round", model=MODEL)
    hold_round(play, 2, change)
    play.act(SERVER, "finish", model=b"")
    play.deliver()
    return ending(play, "round done")


def session_resumed_at_the_end() -> Play:
    play = begun("A client's link is lost when the session ends. It comes back, and the client is told the end.")
    hold_round(play, 1)
    play.act(SERVER, "link_lost", member=CHEAT)
    play.act(CHEAT, "server_lost")
    play.act(SERVER, "finish", model=b"")
    play.deliver(lambda parcel: None if parcel.receiver == CHEAT else parcel.frames)
    play.now = GRACE / 2
    play.act(SERVER, "link_back", member=CHEAT)
    play.act(CHEAT, "server_back")
    play.deliver()
    return ending(play, "ended")


def session_not_resumed() -> Play:
    play = begun(
        "What cannot go on: a hello was lost with the link, and the server knows of no conversation; then the link is "
        "away for longer than the server's grace. Both times the client is told so, and says hello again.",
        silent=(CHEAT,),
    )
    play.act(CHEAT, "start")
    play.deliver(lambda parcel: None if parcel.sender == CHEAT else parcel.frames)
    flap(play)
    play.deliver()
    for name in NAMES:
        if name != CHEAT:
            play.act(name, "contribute", round=1, vector=words("x", 32, LENGTH))
    play.deliver()
    play.act(SERVER, "link_lost", member=CHEAT)
    play.expire(SERVER, GRACE)
    play.act(CHEAT, "server_lost")
    flap(play, ends=(CHEAT,))
    play.deliver()
    return ending(ending(play, "round over", "LEFT"), "client-left")


def session_many_resumptions() -> Play:
    play = begun("A link comes back seven times: four times the client is answered at once, then from time to time.")
    play.deliver()
    for now in (0.0, 0.0, 0.0, 0.0, 4.0, 6.0, 7.0):
        play.now = now
        flap(play)
        play.deliver()
    play.expire(SERVER, 10.0)
    play.deliver()
    return ending(play, "accepted")


def session_many_hellos() -> Play:
    play = Play(
        "federation",
        "A client is started seven times: five hellos are answered at once, two wait, and one of these is answered.",
    )
    members = roster_of(roster())
    play.make(SERVER, session_server(members))
    play.make(CHEAT, session_client(CHEAT, members))
    play.act(CHEAT, "start")
    (hello,) = play.parcels
    for now in (0.0, 0.0, 0.0, 0.0, 4.0, 6.0, 7.0):
        play.now = now
        play.give(hello)
    play.expire(SERVER, 10.0)
    play.now = 11.0
    play.give(hello)
    play.expire(SERVER, 20.0)
    return ending(play, "client-joined")


def session_spending() -> Play:
    def said(amount: float) -> list[Any]:
        key = SigningKey(drawn(f"{CHEAT} signing"))
        return [(key.public, state_spending(key, b"", amount))]

    play = begun(
        "A client has forgotten what it spent of its budget: the server knows more than its journal, and another "
        "client still more; started without a journal it is told all. Of a third one the owner states it.",
        own={
            SERVER: {"held": said(3.0)},
            CHEAT: {"journal": (JournalEntry(session=drawn("former session"), round=1, cost=2.0),)},
            "client-2": {"held": said(5.0)},
            "client-0": {"spent": 0.5},
        },
        spending=True,
    )
    hold_round(play, 1)
    play.act(SERVER, "next_round", model=MODEL)
    hold_round(play, 2)
    play.make(CHEAT, session_client(CHEAT, roster_of(roster()), policy=POLICY))
    play.act(CHEAT, "start")
    play.deliver()
    return ending(play, "journal spending")


PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    session_active, session_fixed_part, session_repeated_round, session_spoiled_sum, session_lost_links,
    session_resumed, session_resumed_at_the_end, session_not_resumed, session_many_resumptions, session_many_hellos,
    session_spending,
)  # fmt: skip

"""Vectors of sessions: joining, models, rounds and their ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import Any, Final

from msgspec import structs

from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.primitives import Label, digest
from tests.vectors_corpus.messages import encoded, octets
from tests.vectors_corpus.play import SERVER, Change, Parcel, Play, ending, unchanged
from tests.vectors_corpus.primitives import drawn
from tests.vectors_corpus.rounds import plain_vector, words
from tests.vectors_corpus.script import Script

CLIENTS: Final = 3


def names(clients: int) -> tuple[str, ...]:
    """The names of so many clients."""
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
    signer = Script("secure sum", "primitive", "")
    rows = []
    for name in (SERVER, *names(clients)):
        signed = signer.do("sign", private=drawn(f"{name} signing"), label="tacit/1 sign ADVERTISE_KEYS", parts=[])
        role = "server" if name == SERVER else "client"
        curve = drawn(f"{name} curve")
        rows.append({"name": name, "role": role, "curve_public": curve, "signing_public": signed["public"]})
    for row, group in zip(rows[1:], groups, strict=False):
        row["group"] = group
    return rows


def session_client(name: str, **changes: Any) -> dict[str, Any]:
    """A client of the session."""
    client = {
        "name": name, "signing_private": drawn(f"{name} signing"), "entropy": drawn(f"{name} entropy", 128),
        "policy": {"modes": ["active", "semi-honest"]}, "journal": [], "patience": 600.0, "grace": GRACE,
    }  # fmt: skip
    return client | changes


def session_server(**changes: Any) -> dict[str, Any]:
    """The server of the session."""
    server = {
        "configuration": encoded(clients=CLIENTS), "model": MODEL, "entropy": drawn("session"),
        "smallest_cohort": CLIENTS, "join_seconds": 60.0, "grace": GRACE,
    }  # fmt: skip
    return server | changes


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
    **changes: Any,
) -> Play:
    """A session in which all clients but the silent ones have said hello.

    draws: bytes of randomness of each; by default for two rounds. groups: numbers of the clients' groups, if they are
    in any. completed: rounds of earlier sessions. signed: version and operator of the roster, if it has any.
    changes: of the configuration.
    """
    play = Play("federation", "session", about)
    policy: dict[str, Any] = {"modes": ["active", "semi-honest"]}
    if changes:
        policy = {"modes": ["active", "semi-honest", "none"], "least_corrupt": 0.0}
    played = [session_client(name, entropy=drawn(f"{name} entropy", draws), policy=policy) for name in names(clients)]
    server = session_server(model=model, configuration=encoded(**{"clients": clients} | changes))
    if completed:
        server |= {"completed": completed}
    if fixed:
        announced = {"digest": octets(digest(Label.FIXED, fixed)), "size": len(fixed)}
        server |= {"fixed": fixed, "configuration": encoded(clients=clients, fixed=announced)}
    play.do("begin session", roster=roster(clients, groups), clients=played, server=server, **(signed or {}))
    for name in names(clients):
        if name not in silent:
            play.act(name, "hello", party=name)
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
        play.act(name, "contribute", party=name, round=round, words=vector, **play.at())
    play.deliver(change)


def session_active() -> Play:
    play = begun("Three clients join, complete one round in active mode, and finish.")
    hold_round(play, 1)
    play.act(SERVER, "finish")
    play.deliver()
    return ending(play, "round done")


def session_fixed_part() -> Play:
    fixed = b"what is not trained"
    play = begun(
        "The model has a part that is not trained: each client fetches it in its first round, and only then.",
        fixed=fixed,
    )
    hold_round(play, 1)
    play.act(SERVER, "next round", model=MODEL)
    hold_round(play, 2)
    play.act(SERVER, "finish")
    play.deliver()
    return ending(play, "round done")


def session_repeated_round() -> Script:
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
    play.act(SERVER, "next round", model=MODEL, **play.at())
    hold_round(play, 2)
    play.act(SERVER, "finish", **play.at())
    play.deliver()
    return ending(ending(play, "round done", "THRESHOLD"), "round done")


def session_spoiled_sum() -> Script:
    play = begun("Two rounds whose sums cannot be applied: all are told so, and the model stays as it was.")
    for round in (1, 2):
        hold_round(play, round)
        if round == 1:
            play.act(SERVER, "next round", model=MODEL, unusable="the sum is no sum of updates")
    play.act(SERVER, "finish", unusable="the sum is no sum of updates")
    play.deliver()
    return ending(ending(play, "round over", "VECTOR"), "round done")


def session_lost_links() -> Script:
    play = begun("The server loses its link to a client that is to train, and the client loses its own to the server.")
    play.deliver()
    play.do("link lost", party=SERVER, peer=CHEAT)
    play.do("link lost", party=CHEAT, peer=SERVER)
    for party in (CHEAT, SERVER):
        play.expire(party, GRACE)
    play.deliver(lambda parcel: None if parcel.receiver == CHEAT else parcel.frames)
    return ending(play, "ended", "LEFT")


def flap(play: Play, *, ends: Sequence[str] = (SERVER, CHEAT)) -> None:
    """The client's link breaks and comes back; these ends notice."""
    peers = {SERVER: CHEAT, CHEAT: SERVER}
    for party in ends:
        play.act(party, "link lost", party=party, peer=peers[party], **play.at())
    for party in ends:
        play.act(party, "link back", party=party, peer=peers[party], **play.at())


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
    # What came over a former connection is passed over.
    play.give(next(parcel for parcel in play.parcels if (parcel.sender, parcel.kind) == (CHEAT, "fetch")))
    play.act(SERVER, "next round", model=MODEL)
    hold_round(play, 2, change)
    play.act(SERVER, "finish")
    play.deliver()
    return ending(play, "round done")


def session_resumed_at_the_end() -> Script:
    play = begun("A client's link is lost when the session ends. It comes back, and the client is told the end.")
    hold_round(play, 1)
    play.act(SERVER, "link lost", party=SERVER, peer=CHEAT)
    play.act(CHEAT, "link lost", party=CHEAT, peer=SERVER)
    play.act(SERVER, "finish")
    play.deliver(lambda parcel: None if parcel.receiver == CHEAT else parcel.frames)
    play.now = GRACE / 2
    play.act(SERVER, "link back", party=SERVER, peer=CHEAT, **play.at())
    play.act(CHEAT, "link back", party=CHEAT, peer=SERVER, **play.at())
    play.deliver()
    return ending(play, "ended")


def session_not_resumed() -> Play:
    play = begun(
        "What cannot go on: a hello was lost with the link, and the server knows of no conversation; then the link is "
        "away for longer than the server's grace. Both times the client is told so, and says hello again.",
        silent=(CHEAT,),
    )
    play.act(CHEAT, "hello", party=CHEAT)
    play.deliver(lambda parcel: None if parcel.sender == CHEAT else parcel.frames)
    flap(play)
    play.deliver()
    for name in NAMES:
        if name != CHEAT:
            play.act(name, "contribute", party=name, round=1, words=words("x", 32, LENGTH))
    play.deliver()
    play.act(SERVER, "link lost", party=SERVER, peer=CHEAT)
    play.expire(SERVER, GRACE)
    play.act(CHEAT, "link lost", party=CHEAT, peer=SERVER, **play.at())
    flap(play, ends=(CHEAT,))
    play.deliver()
    return ending(ending(play, "round over", "LEFT"), "left")


def session_many_resumptions() -> Script:
    play = begun("A link comes back seven times: four times the client is answered at once, then from time to time.")
    play.deliver()
    for now in (0.0, 0.0, 0.0, 0.0, 4.0, 6.0, 7.0):
        play.now = now
        flap(play)
        play.deliver()
    play.expire(SERVER, 10.0)
    play.deliver()
    return ending(play, "accepted")


def session_many_hellos() -> Script:
    play = Play(
        "federation", "session",
        "A client is started seven times: five hellos are answered at once, two wait, and one of these is answered.",
    )  # fmt: skip
    play.do("begin session", roster=roster(), clients=[session_client(CHEAT)], server=session_server())
    play.act(CHEAT, "hello", party=CHEAT)
    (hello,) = play.parcels
    for now in (0.0, 0.0, 0.0, 0.0, 4.0, 6.0, 7.0):
        play.now = now
        play.give(hello)
    play.expire(SERVER, 10.0)
    play.now = 11.0
    play.give(hello)
    play.expire(SERVER, 20.0)
    return ending(play, "joined")


FILES: Final[dict[str, Callable[[], Script]]] = {
    function.__name__: function
    for function in (
        session_active, session_fixed_part, session_repeated_round, session_spoiled_sum, session_lost_links,
        session_resumed, session_resumed_at_the_end, session_not_resumed, session_many_resumptions,
        session_many_hellos,
    )
}  # fmt: skip
"""File name without its ending, and what makes it."""

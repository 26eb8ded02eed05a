"""Every message in every state of the server of a federation, against a table written down here."""

from collections.abc import Callable

import pytest

from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.machine import Ended, Input, Transmit
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Message, Resume
from tacit.protocol.group_key.messages import EndKey, KeyCommit, StartKey
from tacit.protocol.group_key.states import ATTEMPT_TO_RELAY, TO_KEEPER
from tacit.protocol.session.events import ClientJoined, ClientLeft, ClientResumed
from tacit.protocol.session.messages import MESSAGES, FetchFixed, Hello, Welcome
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.session.server import TRAINING_SERVER_TABLE
from tacit.protocol.session.states import SessionState
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    AnswerComplaints,
    ConfirmSurvivors,
    MaskedInput,
    ShareKeys,
    UnmaskShares,
    VectorChunk,
)
from tacit.simulate.world.federation import JOIN_SECONDS, SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

CLIENT = "client-0"
SITUATIONS = ("gathering", "keying", "in-round", "between-rounds", "distributing", "ended")
"""One for every state, in the order of SessionState."""
KEYED = ("keying", "distributing")
"""Those with a group key, and an encrypted model."""


def federation_in(situation: str) -> MemoryFederation:
    """Five clients, four of whom are enough; in "in-round" and "keying" two have not answered yet."""
    keyed = situation in KEYED
    configuration = small_configuration(5, encrypted=keyed, group_key=keyed, initial_model="clients")
    federation = MemoryFederation(configuration, 5, rounds=1 if situation == "distributing" else 2)
    names = list(federation.roster.clients)
    if situation == "gathering":
        names.remove("client-4")
    elif situation == "in-round":
        federation.idle = {CLIENT, "client-1"}  # So that the phase goes on without client-0.
    elif situation in KEYED:
        kind = KeyCommit if situation == "keying" else Fetch

        def silence(parcel: Parcel) -> list[Parcel]:
            silent = parcel.sender in (CLIENT, "client-1") and not parcel.packet.envelope.round
            return [] if silent and parcel.packet.kind is kind else [parcel]

        federation.hook = silence
    elif situation == "between-rounds":
        federation.paused = True
    elif situation == "ended":
        federation.rounds_left = 1
    for name in names:
        federation.start_client(name)
    federation.settle(until=5.0 if situation in KEYED else 15.0)
    federation.hook = lambda parcel: [parcel]
    federation.outputs.clear()
    return federation


STATES = dict(zip(SITUATIONS, SessionState, strict=True))


def said(federation: MemoryFederation, kind: type[Message], plain_message: Callable) -> Message:
    """A well-formed message of this type, which the server accepts where it expects one and may know what it holds."""
    examples: tuple[Message, ...] = (
        Hello(roster=federation.roster.hash),
        Abort(code=Code.LOCAL, detail="the disk is full", culprit=CLIENT),
    )
    return next((message for message in examples if type(message) is kind), None) or plain_message(kind)


# Verdicts: "barred" for the session; "dropped CODE" from the round and barred at its end; "failed CODE", barred for
# an attempt at a key; "left" the session; "left the round" only; "joined" again; "served" a chunk; "ignored". The model
# of the round was fetched before, the last one was not.
SUM = (AdvertiseKeys, ShareKeys, MaskedInput, VectorChunk, AnswerComplaints, ConfirmSurvivors, UnmaskShares)
OF_A_ROUND = (*SUM, Fetch, FetchFixed)
ALWAYS = {Hello: "joined", Abort: "left", Resume: "barred SEQUENCE"}
RESTING = {**ALWAYS, **dict.fromkeys(OF_A_ROUND, "ignored")}
OF_A_CLIENT = (MessageRefused, ClientJoined, ClientLeft, ClientResumed, ClientDropped)
EXPECTED: dict[str, tuple[str, dict[type[Message], str]]] = {
    "gathering": ("barred", {**ALWAYS, **dict.fromkeys(OF_A_ROUND, "ignored")}),
    "keying": (
        "barred",
        {
            **RESTING,
            **dict.fromkeys(TO_KEEPER, "ignored"),
            **dict.fromkeys(ATTEMPT_TO_RELAY, "failed UNEXPECTED"),
            KeyCommit: "failed KEYS",
        },
    ),
    "in-round": (
        "barred",
        {
            **dict.fromkeys(SUM, "dropped UNEXPECTED"),
            **dict.fromkeys((AdvertiseKeys, ShareKeys), "ignored"),
            MaskedInput: "dropped MEMBERS",
            FetchFixed: "barred MODEL",
            **ALWAYS,
        },
    ),
    "between-rounds": ("barred", RESTING),
    "distributing": ("barred", {**RESTING, **dict.fromkeys(TO_KEEPER, "ignored"), Fetch: "served"}),
    "ended": ("ignored", {Resume: "barred SEQUENCE"}),
}


@cases("kind", MESSAGES.values())
@cases("situation", SITUATIONS)
def test_cell(situation: str, kind: type[Message], plain_message: Callable) -> None:
    federation = federation_in(situation)
    server = federation.server
    otherwise, cells = EXPECTED[situation]
    verdict = cells.get(kind, otherwise)
    assert server.state is STATES[situation]
    hello = {"session": bytes(32), "sequence": 0, "received": 0} if kind is Hello else {}
    round = server.round if kind in OF_A_ROUND and verdict != "served" else 0
    message = said(federation, kind, plain_message)
    payload = bytes(4) if kind.PAYLOAD else None
    outputs = federation.put(federation.forge(CLIENT, SERVER, message, round=round, payload=payload, **hello))
    events = [output for output in outputs if isinstance(output, OF_A_CLIENT)]
    assert {event.member for event in events} <= {CLIENT}
    reports = [type(event) for event in events]
    packets = [
        decode(output.frames, MESSAGES) for output in outputs if isinstance(output, Transmit) and output.to == CLIENT
    ]
    told = [(packet.envelope.round, packet.parse()) for packet in packets]
    barred = [(at, message.code) for at, message in told if isinstance(message, Abort)]
    assert server.state is STATES[situation]
    others = {
        decode(output.frames, MESSAGES).kind
        for output in outputs
        if isinstance(output, Transmit) and output.to != CLIENT
    }
    gone = verdict.split()[0] in ("barred", "left", "joined", "failed")
    assert others == ({EndKey, StartKey} if gone and situation == "keying" else set())
    in_sum = [ClientDropped] if situation == "in-round" else []
    if verdict == "ignored":
        assert outputs == []
        assert sum(part.ignored for part in (server, server.keeper, server.sum) if part is not None) == 1
    elif verdict.startswith("barred"):
        assert reports == [MessageRefused, ClientLeft, *in_sum]
        assert barred == [(0, Code[[*verdict.split(), "UNEXPECTED"][1]])]
        hello = Hello(roster=federation.roster.hash)
        assert federation.put(federation.forge(CLIENT, SERVER, hello, round=0, session=bytes(32), sequence=0)) == []
    elif verdict.startswith("dropped"):
        assert reports == [ClientDropped]
        assert barred == [(1, Code[verdict.split()[1]])]
    elif verdict.startswith("failed"):
        assert reports == [ClientLeft]
        assert barred == [(0, Code[verdict.split()[1]])]
        assert federation.server.waiting_for == federation.roster.clients[1:]
    elif verdict == "served":
        assert [type(message) for _, message in told] == [Chunk]
    elif verdict == "left":
        assert reports == [ClientLeft, *in_sum]
        assert told == []
    else:
        assert verdict == "joined"
        assert reports == [ClientLeft, ClientJoined, *in_sum]
        assert [type(message) for _, message in told] == [Welcome, *[StartKey] * (situation == "keying")]


@cases("situation", SITUATIONS)
def test_a_client_that_ends_a_round_stays_in_the_session(situation: str) -> None:
    """An Abort within a round that is over already comes too late to mean anything."""
    federation = federation_in(situation)
    abort = Abort(code=Code.TIMEOUT, detail="no word", culprit=SERVER)
    outputs = federation.put(federation.forge(CLIENT, SERVER, abort, round=federation.server.round or 1))
    if situation == "in-round":
        (dropped,) = outputs
        assert isinstance(dropped, ClientDropped)
        assert dropped.code == "LEFT"
    elif situation in ("gathering", "keying"):
        events = [type(output) for output in outputs if isinstance(output, Event)]
        assert events[:2] == [MessageRefused, ClientLeft]
    else:
        assert outputs == []
    if situation == "between-rounds":
        federation.paused = False
        federation.settle()
        assert federation.outcome(RoundDone)[-1].cohort == federation.roster.clients


@cases("kind", MESSAGES.values())
def test_who_has_not_said_hello_is_not_heard(kind: type[Message], plain_message: Callable) -> None:
    federation = federation_in("gathering")
    message = said(federation, kind, plain_message)
    hello = {"session": bytes(32)} if kind is Hello else {}
    outputs = federation.put(federation.forge("client-4", SERVER, message, round=0, **hello))
    assert (outputs == []) == (kind not in (Hello, Resume))


@cases("sender", ["server", "stranger"])
def test_only_clients_are_heard(sender: str) -> None:
    federation = federation_in("gathering")
    hello = Hello(roster=federation.roster.hash)
    parcel = federation.forge(sender, SERVER, hello, round=0, session=bytes(32))
    assert federation.server.feed(sender, parcel.frames, 0.0) == []
    assert federation.server.ignored == 1


@cases("kind", OF_A_ROUND)
def test_messages_of_a_round_to_come(kind: type[Message], plain_message: Callable) -> None:
    federation = federation_in("in-round")
    outputs = federation.put(federation.forge(CLIENT, SERVER, said(federation, kind, plain_message), round=2))
    assert isinstance(outputs[0], MessageRefused)
    assert outputs[0].code == "SESSION"


@cases("kind", [*OF_A_ROUND, Abort])
def test_messages_of_a_former_round_are_ignored(kind: type[Message], plain_message: Callable) -> None:
    federation = MemoryFederation(small_configuration(5), 5, rounds=2)
    federation.idle = set()
    federation.paused = True
    federation.run()
    federation.idle = set(federation.roster.clients)
    federation.paused = False
    federation.settle(until=5.0)
    assert (federation.server.state, federation.server.round) == (SessionState.IN_ROUND, 2)
    waiting = federation.server.waiting_for
    assert federation.put(federation.forge(CLIENT, SERVER, said(federation, kind, plain_message), round=1)) == []
    assert federation.server.waiting_for == waiting == federation.roster.clients


def test_chunks_beyond_the_model() -> None:
    federation = federation_in("in-round")
    outputs = federation.put(federation.forge(CLIENT, SERVER, Fetch(chunk=1), round=1))
    assert "chunk 1 is beyond the end" in str(outputs[0])


@cases("situation", [name for name in SITUATIONS if name != "between-rounds"])
def test_the_shell_goes_on_only_between_rounds(situation: str) -> None:
    server = federation_in(situation).server
    with pytest.raises(LocalProtocolError, match=f"cannot start the next round in state {server.state.name}"):
        server.next_round(b"", 20.0)
    with pytest.raises(LocalProtocolError, match=f"cannot finish in state {server.state.name}"):
        server.finish(b"", 20.0)


def test_every_state_has_a_situation() -> None:
    assert set(STATES.values()) == set(SessionState)
    assert {cause for state, cause in TRAINING_SERVER_TABLE if state is SessionState.ENDED} == {Resume}
    triggers = {(state.name, cause.name) for state, cause in TRAINING_SERVER_TABLE if isinstance(cause, Input)}
    assert triggers == {
        ("GATHERING", "COMPLETE"),
        ("GATHERING", "EXPIRE"),
        ("GATHERING", "CHANGE_ROSTER"),
        ("IN_ROUND", "DROP"),
        ("BETWEEN_ROUNDS", "NEXT_ROUND"),
        ("BETWEEN_ROUNDS", "FINISH"),
        ("BETWEEN_ROUNDS", "CHANGE_ROSTER"),
    }


def test_without_enough_clients_the_session_ends() -> None:
    federation = MemoryFederation(small_configuration(5), 5, smallest_cohort=4)
    for name in federation.roster.clients[:3]:
        federation.start_client(name)
    federation.settle(until=JOIN_SECONDS - 1)
    assert federation.server.state is SessionState.GATHERING
    assert federation.server.waiting_for == ("client-3", "client-4")
    federation.settle()
    detail = "only 3 clients are there; a round takes at least 4"
    assert federation.outcome(Ended) == [Ended(Code.THRESHOLD, detail)] * 4

"""Every message in every state of the client of a federation, against a table written down here."""

from collections.abc import Callable

from tacit.protocol.core.blob import announce
from tacit.protocol.core.codec import decode, encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended, Output, Transmit
from tacit.protocol.core.messages import Abort, Chunk, Message, Resume
from tacit.protocol.session.client import TRAINING_CLIENT_TABLE, TrainingClient
from tacit.protocol.session.messages import (
    MESSAGES,
    EndRound,
    Finish,
    NewRoster,
    StartRound,
    Welcome,
)
from tacit.protocol.session.rounds import Accepted, RoundOver, Train
from tacit.protocol.session.states import OUTSIDE_ROUNDS, TrainingState
from tacit.protocol.sum.messages import FetchVector, PeerComplaints, PeerKeys, PeerShares, Survivors, UnmaskRequest
from tacit.protocol.sum.states import SumLabel
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases

CLIENT = "client-0"
HELD_BACK = {
    "offline": "",
    "await-welcome": "welcome",
    "await-round": "start-round",
    "fetching-model": "chunk",
    "training": "",
    "training-with-a-key": "",
    "aggregating": "peer-keys",
    "round-unmasked": "end-round",
    "ended": "",
}
"""The situations, and the message of the server that does not reach the client in them."""


def federation_in(situation: str) -> MemoryFederation:
    federation = MemoryFederation(small_configuration(3, group_key=situation.endswith("key")), 3)
    blocked = HELD_BACK[situation]
    reached: list[Parcel] = []

    def hold(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver == CLIENT and (reached or blocked == parcel.packet.kind.TYPE):
            reached.append(parcel)
            return []
        return [parcel]

    federation.hook = hold
    federation.idle = {CLIENT} if situation.startswith("training") else set()
    federation.paused = situation == "round-unmasked"
    for name in federation.roster.clients[1:]:
        federation.start_client(name)
    if situation == "offline":
        federation.clients[CLIENT] = TrainingClient(
            CLIENT,
            federation.roster,
            signing=federation.signing[CLIENT],
            policy=federation.policy,
            journal=(),
            entropy=federation.streams.of("x"),
            patience=1.0,
            grace=1.0,
        )
    else:
        federation.start_client(CLIENT)
    federation.advance()
    if situation == "ended":
        federation.emit(CLIENT, federation.clients[CLIENT].give_up("the disk is full", federation.now))
    federation.idle = {CLIENT}
    federation.outputs.clear()
    return federation


def said(federation: MemoryFederation, kind: type[Message], plain_message: Callable) -> Message:
    """A well-formed message of this type, which the client accepts where it expects one and may know what it holds."""
    examples: tuple[Message, ...] = (
        Welcome(roster=federation.roster.hash, configuration=encode_structure(federation.configuration), spent=b""),
        StartRound(cohort=b"\x07", model=announce(federation.model, SumLabel.MODEL)),
        EndRound(code=Code.THRESHOLD, detail="too few"),
        Abort(code=Code.KEYS, detail="because", culprit=""),
    )
    return next((message for message in examples if type(message) is kind), None) or plain_message(kind)


# Verdicts: the state that follows; or who is told what: "ends CODE" the session, "aborts CODE" the round.
OUT_OF_ROUND: dict[type[Message], str] = {
    **dict.fromkeys(OUTSIDE_ROUNDS, "ends UNEXPECTED"), Finish: "ENDED", Resume: "ends SEQUENCE",
    NewRoster: "ends ROSTER",
}  # fmt: skip
"""What is said in no round is refused in one, too; nobody has asked to go on, and the roster has no operator. Where a
group key is agreed on, see test_keyed_cells.py."""
SAME_IN_EVERY_ROUND = {**OUT_OF_ROUND, EndRound: "AWAIT_ROUND", Abort: "AWAIT_ROUND"}
EXPECTED: dict[str, tuple[str, dict[type[Message], str]]] = {
    # The situation: what becomes of messages that are not listed; the others.
    "offline": ("ends SESSION", {}),
    "await-welcome": (
        "ends SESSION",
        {**OUT_OF_ROUND, Welcome: "AWAIT_ROUND", StartRound: "ends UNEXPECTED"},
    ),
    "await-round": (
        "ends SESSION",
        {**OUT_OF_ROUND, StartRound: "FETCHING_MODEL"},
    ),
    # The sum goes on beside: in the first and the fourth of these it awaits keys, in the others its vector.
    "fetching-model": (
        "aborts UNEXPECTED",
        {Chunk: "TRAINING", PeerKeys: "aborts MEMBERS", **SAME_IN_EVERY_ROUND},
    ),
    "training": ("aborts UNEXPECTED", {FetchVector: "aborts VECTOR", **SAME_IN_EVERY_ROUND}),
    "training-with-a-key": ("aborts UNEXPECTED", {FetchVector: "aborts VECTOR", **SAME_IN_EVERY_ROUND}),
    "aggregating": ("aborts UNEXPECTED", {PeerKeys: "aborts MEMBERS", **SAME_IN_EVERY_ROUND}),
    "round-unmasked": (
        "aborts UNEXPECTED",
        {
            **OUT_OF_ROUND,
            **dict.fromkeys(
                (
                    PeerKeys,
                    PeerShares,
                    FetchVector,
                    PeerComplaints,
                    Survivors,
                    UnmaskRequest,
                    Chunk,
                    Abort,
                ),
                "ignored",
            ),
            # From the model that it has.
            StartRound: "TRAINING",
            EndRound: "AWAIT_ROUND",
        },
    ),
    "ended": ("nothing", {}),
}


def aborts(outputs: list[Output]) -> list[tuple[int, Abort]]:
    """What the client tells the server with an Abort: in which round, and the message."""
    packets = [decode(output.frames, MESSAGES) for output in outputs if isinstance(output, Transmit)]
    return [(packet.envelope.round, message) for packet in packets if isinstance(message := packet.parse(), Abort)]


@cases("kind", MESSAGES.values())
@cases("situation", EXPECTED)
def test_cell(situation: str, kind: type[Message], plain_message: Callable) -> None:
    federation = federation_in(situation)
    client = federation.clients[CLIENT]
    before, deadline = client.state, client.next_deadline
    in_round = situation not in ("offline", "await-welcome", "await-round")
    round = 0 if kind in OUTSIDE_ROUNDS else 2 if in_round and kind is StartRound else 1
    payload = federation.model if kind.PAYLOAD else None
    message = said(federation, kind, plain_message)
    otherwise, cells = EXPECTED[situation]
    verdict = cells.get(kind, otherwise)
    outputs = federation.put(federation.forge(SERVER, CLIENT, message, round=round, payload=payload))
    told, over = aborts(outputs), [output for output in outputs if isinstance(output, RoundOver)]
    ended = [output for output in outputs if isinstance(output, Ended)]
    if verdict in ("nothing", "ignored"):
        assert (outputs, client.state, client.next_deadline) == ([], before, deadline)
        assert client.ignored == (verdict == "ignored")
    elif verdict.startswith("ends"):
        code = Code[verdict.split()[1]]
        assert client.state is TrainingState.ENDED
        assert [(at, abort.code, abort.culprit) for at, abort in told] == [(0, code, SERVER)]
        assert [output.code for output in ended] == [code]
        assert client.next_deadline is None
    elif verdict.startswith("aborts"):
        code = Code[verdict.split()[1]]
        assert client.state is TrainingState.AWAIT_ROUND
        assert [(at, abort.code, abort.culprit) for at, abort in told] == [(round, code, SERVER)]
        assert [(output.round, output.code) for output in over] == [(number, code) for number in range(1, round + 1)]
        assert not ended
    else:
        assert client.state is TrainingState[verdict]
        assert told == []
        closing = {EndRound: (1, Code.THRESHOLD), Abort: (1, Code.KEYS)}
        assert [(output.round, output.code) for output in over] == ([closing[kind]] if kind in closing else [])
        assert [output.code for output in ended] == ([None] if verdict == "ENDED" else [])
        assert [type(output) for output in outputs if isinstance(output, Accepted | Train)] == (
            [Accepted] if kind is Welcome else [Train] if verdict == "TRAINING" else []
        )


@cases("situation", [name for name in EXPECTED if name not in ("offline", "ended")])
def test_an_abort_outside_of_a_round_ends_the_session(situation: str) -> None:
    federation = federation_in(situation)
    abort = Abort(code=Code.SHARES, detail="you are out", culprit=CLIENT)
    outputs = federation.put(federation.forge(SERVER, CLIENT, abort, round=0))
    assert outputs == [Ended(Code.SHARES, "you are out")]
    assert federation.clients[CLIENT].state is TrainingState.ENDED


@cases(
    "kind",
    [kind for kind in MESSAGES.values() if kind not in (*OUTSIDE_ROUNDS, Abort, StartRound)],
)
@cases("situation", ["await-round", "fetching-model", "aggregating"])
def test_messages_of_a_round_do_not_come_outside(situation: str, kind: type[Message], plain_message: Callable) -> None:
    federation = federation_in(situation)
    outputs = federation.put(federation.forge(SERVER, CLIENT, said(federation, kind, plain_message), round=0))
    # Where a group key is agreed on, models come outside of rounds.
    code = Code.UNEXPECTED if (kind, situation) == (Chunk, "await-round") else Code.SESSION
    assert [abort.code for _, abort in aborts(outputs)] == [code]
    assert federation.clients[CLIENT].state is TrainingState.ENDED


@cases("kind", [kind for kind in OUTSIDE_ROUNDS if kind is not Resume])
def test_messages_of_no_round_do_not_come_in_one(kind: type[Message], plain_message: Callable) -> None:
    federation = federation_in("training")
    outputs = federation.put(federation.forge(SERVER, CLIENT, said(federation, kind, plain_message), round=1))
    assert [abort.code for _, abort in aborts(outputs)] == [Code.SESSION]


def test_every_state_has_a_situation() -> None:
    seen = {federation_in(situation).clients[CLIENT].state for situation in EXPECTED}
    assert seen == set(TrainingState)
    assert {state for state, _ in TRAINING_CLIENT_TABLE} == seen - {TrainingState.ENDED}

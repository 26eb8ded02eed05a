"""Every (state x message) cell of the two tables about group keys, on parties of a federation brought into the state.

The expected tables are written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
What is said within an attempt goes to its own machine, and has its cells in test_group_key_tables.py.
"""

from dataclasses import replace
from typing import Any

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import Event, MessageRefused
from tacit.protocol.core.machine import Ended, Trigger
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreed, KeyFailed
from tacit.protocol.group_key.events import KeyAgreementFailed
from tacit.protocol.group_key.holder import HOLDER_TABLE
from tacit.protocol.group_key.keeper import KEEPER_TABLE
from tacit.protocol.group_key.states import HolderState, KeeperState, KeyTrigger
from tacit.protocol.session.events import ClientLeft
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.states import SessionState, TrainingState
from tacit.protocol.sum.exchange import ClientAborted
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel
from tests.cases import cases
from tests.protocol.cells import ATTEMPT, IGNORED, Cells, Expected, check_table

CLIENT = "client-0"

TO_MEMBER = ("peer-key-commits", "peer-key-contributions", "peer-key-confirmations")
TO_RELAY = ("key-commit", "key-contribution", "confirm-key", "key-accepted", "key-complaint")
TRANSFERRED = ("keyed-model", "fetch", "chunk")
END: Cells = {"end-key": {"NO_KEY"}}
GIVE_UP: Cells = {"expire": {"NO_KEY"}}
HOLDER: Expected = {
    "NO_KEY": {**END, "start-key": {"AGREEING"}, **dict.fromkeys(TO_MEMBER, IGNORED)},
    "AGREEING": {
        **END,
        **dict.fromkeys(TO_MEMBER, ATTEMPT),
        "GroupKey": {"KEYED"},
        "ClientAborted": {"NO_KEY"},
    },
    "KEYED": {
        **END,
        "start-key": {"AGREEING"},
        "reencrypt-model": {"FETCHING_MODEL", "ENCRYPTING"},
        "keyed-model": {"FETCHING_LAST"},
    },
    "FETCHING_MODEL": {**END, **GIVE_UP, "chunk": {"FETCHING_MODEL", "ENCRYPTING"}},
    "ENCRYPTING": {**END, "provide what is waited for": {"PROVIDING", "KEYED"}},
    "PROVIDING": {**END, **GIVE_UP, "fetch": {"PROVIDING", "KEYED"}},
    "FETCHING_LAST": {**GIVE_UP, "chunk": {"FETCHING_LAST", "KEYED"}},
}
LATE: Cells = dict.fromkeys((*TO_RELAY, *TRANSFERRED), IGNORED)
FAIL: Cells = {"expire": {"IDLE"}, "drop": {"IDLE"}}
KEEPER: Expected = {
    "IDLE": {
        **LATE,
        "drop": IGNORED,
        "agree on a group key": {"AGREEING"},
        "distribute the last model": {"DISTRIBUTING"},
    },
    "AGREEING": {
        **dict.fromkeys(TRANSFERRED, IGNORED),
        **dict.fromkeys((*TO_RELAY, "drop"), ATTEMPT),
        "KeyAgreed": {"AWAIT_MODEL", "IDLE"},
        "KeyFailed": {"IDLE"},
    },
    "AWAIT_MODEL": {
        **LATE,
        **FAIL,
        "fetch": {"AWAIT_MODEL"},
        "keyed-model": {"FETCHING_MODEL", "AWAIT_MODEL", "IDLE"},
    },
    "FETCHING_MODEL": {**LATE, **FAIL, "chunk": {"FETCHING_MODEL", "IDLE"}},
    "DISTRIBUTING": {
        **LATE,
        "fetch": {"DISTRIBUTING"},
        "complete": {"IDLE"},
        "expire": {"IDLE"},
        "drop": {"DISTRIBUTING"},
    },
}
TABLES: list[tuple[Any, Any, Expected]] = [(HOLDER_TABLE, HolderState, HOLDER), (KEEPER_TABLE, KeeperState, KEEPER)]


@cases(("table", "states", "expected"), TABLES)
def test_the_table_says_what_is_written_here(table: Any, states: Any, expected: Expected) -> None:
    results = (GroupKey, KeyAgreed, KeyFailed, ClientAborted)
    causes = {
        **MESSAGES,
        **{trigger.value: trigger for trigger in (*Trigger, *KeyTrigger)},
        **{result.__name__: result for result in results},
    }
    check_table(table, states, causes, expected)
    assert {cause for _, cause in table} <= set(causes.values())


# What does not arrive, so that the party stays in the state: the receiver, and the type of the message.
HELD_BACK = {
    "NO_KEY": (CLIENT, "start-key"),
    "AGREEING": (CLIENT, "peer-key-commits"),
    "KEYED": (CLIENT, "reencrypt-model"),
    "FETCHING_MODEL": (CLIENT, "chunk"),
    "PROVIDING": (CLIENT, "fetch"),
    "FETCHING_LAST": (CLIENT, "chunk"),
    "server AGREEING": (SERVER, "key-commit"),
    "server AWAIT_MODEL": (SERVER, "keyed-model"),
    "server FETCHING_MODEL": (SERVER, "chunk"),
    "server DISTRIBUTING": (SERVER, "fetch"),
}


def brought_to(situation: str) -> MemoryFederation:
    """Four clients, and one of the parties in this state; the name of a state of the server begins with "server"."""
    last = situation.endswith(("DISTRIBUTING", "FETCHING_LAST"))
    configuration = small_configuration(
        4,
        encrypted=True,
        group_key=True,
        initial_model="clients" if last or situation.startswith("server") else "server",
    )
    one = MemoryFederation(configuration, 4)
    receiver, held = HELD_BACK.get(situation, ("", ""))
    reached: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        here = held == parcel.packet.kind.TYPE and parcel.packet.envelope.round == 0
        if parcel.receiver == receiver and (here or (reached and receiver == CLIENT)):
            reached.append(parcel)
            return []
        return [parcel]

    one.hook = hook
    one.idle = {CLIENT} if situation == "ENCRYPTING" else set()
    one.start(*one.roster.clients[: 3 if situation == "server IDLE" else 4])
    one.settle(until=one.now + 1)
    one.hook = lambda parcel: [parcel]
    return one


def told_garbage(one: MemoryFederation, sender: str, receiver: str, kind: str) -> list[Any]:
    """What the receiver makes of a message of that type whose body is no message."""
    message_type = MESSAGES[kind]
    parcel = one.forge(sender, receiver, EXAMPLE, round=0, type=kind)
    payload = (b"\0" * 4,) if message_type.PAYLOAD else ()
    return one.put(replace(parcel, frames=(parcel.frames[0], b"\xc1", *payload)))


EXAMPLE = MESSAGES["key-accepted"](epoch=0)  # type: ignore[call-arg]


@cases("state", HOLDER)
def test_every_message_in_every_state_of_a_client(state: str) -> None:
    one = brought_to(state)
    for kind in (*TO_MEMBER, *TRANSFERRED, "start-key", "end-key", "reencrypt-model"):
        client = one.clients[CLIENT]
        if client.state is not TrainingState.AWAIT_ROUND:
            one = brought_to(state)
            client = one.clients[CLIENT]
        holder: Any = client.holder
        assert (holder.state.name, client.state) == (state, TrainingState.AWAIT_ROUND)
        outputs = told_garbage(one, SERVER, CLIENT, kind)
        if HOLDER[state].get(kind) == IGNORED:
            assert (outputs, holder.ignored, holder.state.name) == ([], 1, state)
            holder.ignored = 0
            continue
        legal = kind in HOLDER[state] and (HOLDER[state][kind] != ATTEMPT or kind == "peer-key-commits")
        (ended,) = [output for output in outputs if isinstance(output, Ended)]
        assert ended.code is (Code.MALFORMED if legal else Code.UNEXPECTED)
        assert client.state is TrainingState.ENDED
        assert (client.next_deadline, holder.next_deadline) == (None, None)


@cases("state", KEEPER)
def test_every_message_in_every_state_of_the_server(state: str) -> None:
    situation = f"server {state}"
    one = brought_to(situation)
    session = one.server.state
    for kind in (*TO_RELAY, *TRANSFERRED):
        keeper = one.server.keeper
        if keeper.state.name != state or CLIENT in one.server.presence.barred:
            one = brought_to(situation)
            keeper = one.server.keeper
        assert (keeper.state.name, one.server.state) == (state, session)
        ignored = keeper.ignored
        outputs = told_garbage(one, CLIENT, SERVER, kind)
        if KEEPER[state].get(kind) == IGNORED:
            assert (outputs, keeper.ignored) == ([], ignored + 1)
            continue
        legal = kind in KEEPER[state]
        code = Code.MALFORMED if legal or state == "AGREEING" else Code.UNEXPECTED
        events: dict[type[Any], Any] = {type(output): output for output in outputs if isinstance(output, Event)}
        failed = state != "DISTRIBUTING"
        named = events[KeyAgreementFailed if failed else MessageRefused]
        assert named.code == code.name
        assert named.by == [CLIENT] if failed else named.member == CLIENT
        assert events[ClientLeft].member == CLIENT
        # The others go on without it.
        assert one.server.state is (SessionState.KEYING if failed else SessionState.DISTRIBUTING)
        assert one.server.waiting_for == one.roster.clients[1:]


@cases("state", ["AWAIT_MODEL", "FETCHING_MODEL", "DISTRIBUTING"])
@cases("kind", [*TO_RELAY, *TRANSFERRED])
def test_who_is_not_waited_for_is_not_heard(state: str, kind: str) -> None:
    """Another member, or one that has all that it was to have."""
    one = brought_to(f"server {state}")
    if state == "DISTRIBUTING":
        one.put(one.forge("client-1", SERVER, MESSAGES["fetch"](chunk=0), round=0))  # type: ignore[call-arg]
    waiting = one.server.waiting_for
    assert told_garbage(one, "client-1", SERVER, kind) == []
    assert one.server.waiting_for == waiting
    assert "client-1" not in waiting

"""Every (state x message) cell of the two machines of a group key, on machines that were brought into the state.

The expected tables are written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
"""

from typing import Any

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Send, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.group_key.agreement import KeyFailed
from tacit.protocol.group_key.holder import MEMBER_TABLE
from tacit.protocol.group_key.keeper import RELAY_TABLE
from tacit.protocol.group_key.states import KeyTrigger, MemberState, RelayState
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.exchange import ClientAborted
from tests.cases import cases
from tests.protocol.cells import IGNORED, Cells, Expected, check_table, garbage
from tests.world.exchange import Delivery
from tests.world.group_keys import RELAY, MemoryGroupKey, memory_group_key

STOPS: Cells = {"abort": {"ABORTED"}, "expire": {"ABORTED"}}
MEMBER: Expected = {
    "READY": {"start": {"AWAIT_PEER_COMMITS"}},
    "AWAIT_PEER_COMMITS": {"peer-key-commits": {"AWAIT_PEER_CONTRIBUTIONS"}, **STOPS},
    "AWAIT_PEER_CONTRIBUTIONS": {"peer-key-contributions": {"AWAIT_PEER_CONFIRMATIONS", "ABORTED"}, **STOPS},
    "AWAIT_PEER_CONFIRMATIONS": {"peer-key-confirmations": {"ACCEPTED", "ABORTED"}, **STOPS},
    "ACCEPTED": {"abort": IGNORED},
    "ABORTED": dict.fromkeys(
        ("abort", "peer-key-commits", "peer-key-contributions", "peer-key-confirmations"), IGNORED
    ),
}
ENDS: Cells = {**STOPS, "drop": {"ABORTED"}}
OVER: Cells = dict.fromkeys(
    ("key-commit", "key-contribution", "confirm-key", "key-accepted", "key-complaint", "abort", "drop"), IGNORED
)
RELAYED: Expected = {
    "KEY_COMMIT": {"key-commit": {"KEY_COMMIT"}, "complete": {"KEY_CONTRIBUTE"}, **ENDS},
    "KEY_CONTRIBUTE": {
        "key-commit": IGNORED,
        "key-contribution": {"KEY_CONTRIBUTE"},
        "complete": {"KEY_CONFIRM"},
        **ENDS,
    },
    "KEY_CONFIRM": {
        "key-commit": IGNORED,
        "key-contribution": IGNORED,
        "confirm-key": {"KEY_CONFIRM"},
        "key-complaint": {"ABORTED"},
        "complete": {"KEY_ACCEPT"},
        **ENDS,
    },
    "KEY_ACCEPT": {
        "key-commit": IGNORED,
        "key-contribution": IGNORED,
        "confirm-key": IGNORED,
        "key-accepted": {"KEY_ACCEPT"},
        "key-complaint": {"ABORTED"},
        "complete": {"COMPLETED"},
        **ENDS,
    },
    "COMPLETED": OVER,
    "ABORTED": OVER,
}
TABLES: list[tuple[Any, Any, Expected]] = [(MEMBER_TABLE, MemberState, MEMBER), (RELAY_TABLE, RelayState, RELAYED)]


@cases(("table", "states", "expected"), TABLES)
def test_the_table_says_what_is_written_here(table: Any, states: Any, expected: Expected) -> None:
    causes = {**MESSAGES, **{trigger.value: trigger for trigger in (*Trigger, *KeyTrigger)}}
    check_table(table, states, causes, expected)


def brought_to(party: str, state: str) -> MemoryGroupKey:
    run = memory_group_key(2, seed=b"cells")
    if state == "READY":
        return run
    run.start()
    if state == "ABORTED":
        run.deliver(Delivery(*(("c0", RELAY) if party == RELAY else (RELAY, "c0")), ABORT, None))
    assert run.advance(lambda: run.parties[party].state.name == state)
    return run


ABORT = Abort(code=Code.LEFT, detail="", culprit="")
CELLS = [(party, state) for party, states in (("c0", MEMBER), (RELAY, RELAYED)) for state in states]


@cases(("party", "state"), CELLS)
def test_every_message_in_every_state(party: str, state: str) -> None:
    expected = (RELAYED if party == RELAY else MEMBER)[state]
    sender = "c0" if party == RELAY else RELAY
    run = brought_to(party, state)
    for kind in MESSAGES:
        machine = run.parties[party]
        if machine.state.name != state:
            run = brought_to(party, state)
            machine = run.parties[party]
        # Whom the relay does not wait for repeats itself.
        waited = party != RELAY or run.agreement.places[sender] in run.relay.waiting
        ignored = machine.ignored
        outputs = machine.receive(sender, garbage(run.agreement, kind, sender), run.now)
        if expected.get(kind) == IGNORED or (
            kind in expected and not waited and kind not in ("abort", "key-complaint")
        ):
            assert (outputs, machine.ignored) == ([], ignored + 1)
            continue
        code = Code.MALFORMED if kind in expected else Code.UNEXPECTED
        results = [output for output in outputs if not isinstance(output, Send)]
        if state in ("ACCEPTED", "ABORTED", "COMPLETED"):
            (refused,) = results
            assert isinstance(refused, MessageRefused)
            assert (refused.member, refused.code) == (sender, code.name)
            assert machine.state.name == state
        else:
            (result,) = results
            assert isinstance(result, KeyFailed if party == RELAY else ClientAborted)
            assert result.code is code
            assert sender in (result.culprits if isinstance(result, KeyFailed) else (result.culprit,))
            assert machine.state.name == "ABORTED"
            assert machine.deadline is None

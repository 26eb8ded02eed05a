"""Every (state x message) cell of the two machines of a group key, on machines that were brought into the state.

A cell is tried with a body that is no message at all: where the type is legal it is refused as MALFORMED, where it is
not as UNEXPECTED, which shows that legality is decided before parsing.
"""

from tacit.protocol.core.errors import Code
from tacit.protocol.core.events import MessageRefused
from tacit.protocol.core.machine import Send
from tacit.protocol.core.messages import Abort
from tacit.protocol.group_key.agreement import KeyFailed
from tacit.protocol.group_key.holder import MEMBER_TABLE
from tacit.protocol.group_key.keeper import RELAY_TABLE
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.sum.exchange import ClientAborted
from tests.cases import cases
from tests.protocol.cells import IGNORED, cells_of, garbage
from tests.world.exchange import Delivery
from tests.world.group_keys import RELAY, MemoryGroupKey, memory_group_key

MEMBER, RELAYED = cells_of(MEMBER_TABLE), cells_of(RELAY_TABLE)


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

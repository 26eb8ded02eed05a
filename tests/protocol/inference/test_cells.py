"""Every (state x cause) cell of the machines of private inference, on machines that were brought into the state.

The expected tables are written here by hand. A cell is tried with a body that is no message at all: where the type is
legal it is refused as MALFORMED, where it is not as UNEXPECTED, which shows that legality is decided before parsing.
What is legal is done for real at the end, until every transition of every table has been taken.
"""

from copy import deepcopy
from typing import Any

import pytest

from tacit.protocol.core.codec import Envelope, Packet, decode
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import IGNORE, Machine, Row, Transmit, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.inference.data_owner import DATA_OWNER_TABLE, InferencePolicy, InferenceRequest
from tacit.protocol.inference.dealer import DEALER_TABLE
from tacit.protocol.inference.material import MATERIAL_TABLE, MaterialOwner
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, INFERENCE_VERSION
from tacit.protocol.inference.model_owner import MODEL_OWNER_TABLE
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.results import Agreed, Charged, InferenceEnded, PassRefused
from tacit.protocol.inference.schedule import pass_rounds
from tacit.protocol.inference.states import DealerState, InferenceState, InferenceTrigger, MaterialState
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.world.inference import (
    DEALER,
    MODEL_OWNER,
    PATIENCE,
    MemoryInference,
    data_owner_names,
    small_terms,
)
from tests.cases import cases

(DATA_OWNER,) = data_owner_names(1)
MATERIAL = "randomness"
IGNORED = "ignored"
Expected = dict[str, dict[str, str | set[str]]]

BREAK: dict[str, str | set[str]] = {"abort": {"ABORTED"}, "drop": {"ABORTED"}}
END: dict[str, str | set[str]] = {**BREAK, "expire": {"ABORTED"}}
OVER: dict[str, str | set[str]] = {"abort": IGNORED, "drop": IGNORED}
OPEN, GIVE = "opening", "open shares"
AUDIT = ("audit-commitment", "audit-coin", "audit-keys")
BY_DATA_OWNER: Expected = {
    "READY": {"start": {"AWAIT_TERMS"}, "drop": {"ABORTED"}},
    "AWAIT_TERMS": {"inference-terms": {"AWAIT_WEIGHTS"}, **END},
    "AWAIT_WEIGHTS": {"masked-weights": {"AWAIT_WEIGHTS", "IDLE"}, **END},
    "IDLE": {"ask for a pass": {"AWAIT_START", "ABORTED"}, "finish": {"CLOSING"}, **BREAK},
    "AWAIT_START": {"audit-commitment": {"AUDITING"}, "pass-started": {"COMPUTING"}, **END},
    "AUDITING": {"audit the dealer": {"AWAIT_COIN"}, **BREAK},
    "AWAIT_COIN": {"audit-coin": {"REVEALING", "AWAIT_START"}, **END},
    "REVEALING": {"reveal keys of requests": {"AWAIT_KEYS"}, **BREAK},
    "AWAIT_KEYS": {"audit-keys": {"AWAIT_START"}, **END},
    "COMPUTING": {OPEN: {"COMPUTING", "IDLE"}, GIVE: {"COMPUTING", "IDLE"}, **END},
    "CLOSING": {"inference-closed": {"CLOSED"}, **END},
    "CLOSED": OVER,
    "ABORTED": {
        **OVER,
        **dict.fromkeys(
            ("inference-terms", "masked-weights", *AUDIT, "pass-started", OPEN, "inference-closed"), IGNORED
        ),
    },
}
BY_MODEL_OWNER: Expected = {
    "AWAIT_HELLO": {"inference-hello": {"AWAIT_AGREEMENT"}, "drop": {"ABORTED"}},
    "AWAIT_AGREEMENT": {"agree-terms": {"MASKING"}, **END},
    "MASKING": {"provide what is waited for": {"MASKING", "IDLE"}, **BREAK},
    "IDLE": {"start-pass": {"PREPARING"}, "close-inference": {"CLOSED"}, **END},
    "PREPARING": {"audit the dealer": {"AWAIT_COIN"}, "begin a pass": {"COMPUTING", "ABORTED"}, **BREAK},
    "AWAIT_COIN": {"audit-coin": {"AWAIT_KEYS", "PREPARING"}, **END},
    "AWAIT_KEYS": {"audit-keys": {"REVEALING"}, **END},
    "REVEALING": {"reveal keys of requests": {"PREPARING"}, **BREAK},
    "COMPUTING": {OPEN: {"COMPUTING", "IDLE"}, GIVE: {"COMPUTING", "IDLE"}, **END},
    "CLOSED": OVER,
    "ABORTED": {**OVER, **dict.fromkeys(("agree-terms", "start-pass", *AUDIT[1:], OPEN, "close-inference"), IGNORED)},
}
BY_MATERIAL_OWNER: Expected = {
    "READY": {"start": {"AWAIT_WELCOME"}},
    "AWAIT_WELCOME": {"dealer-welcome": {"SERVED"}, **END},
    "SERVED": {"order correlated randomness": {"SERVED"}, "randomness": {"SERVED"}, "finish": {"CLOSED"}, **END},
    "CLOSED": {**OVER, "randomness": IGNORED},
    "ABORTED": {**OVER, "dealer-welcome": IGNORED, "randomness": IGNORED},
}
BY_DEALER: Expected = {
    "AWAIT_OWNERS": {"dealer-hello": {"AWAIT_OWNERS", "SERVING"}, **END},
    "SERVING": {
        "order-randomness": {"SERVING"},
        "deliver correlated randomness": {"SERVING"},
        "dealing-over": {"SERVING", "CLOSED"},
        **END,
    },
    "CLOSED": {**OVER, "deliver correlated randomness": IGNORED},
    "ABORTED": {
        **OVER,
        **dict.fromkeys(("dealer-hello", "order-randomness", "dealing-over", "deliver correlated randomness"), IGNORED),
    },
}
TABLES: dict[str, tuple[Any, Any, Expected]] = {
    DATA_OWNER: (DATA_OWNER_TABLE, InferenceState, BY_DATA_OWNER),
    MODEL_OWNER: (MODEL_OWNER_TABLE, InferenceState, BY_MODEL_OWNER),
    MATERIAL: (MATERIAL_TABLE, MaterialState, BY_MATERIAL_OWNER),
    DEALER: (DEALER_TABLE, DealerState, BY_DEALER),
}
CAUSES: dict[str, Any] = {**INFERENCE_MESSAGES, **{trigger.value: trigger for trigger in (*Trigger, *InferenceTrigger)}}
CELLS = [(role, state) for role, (_, _, expected) in TABLES.items() for state in expected]
"""Every machine in every state that it can be in."""


@cases("role", TABLES)
def test_the_table_says_what_is_written_here(role: str) -> None:
    table, states, expected = TABLES[role]

    def verdict(state: Any, cause: Any) -> str | set[str] | None:
        row = table.get((state, cause))
        if row is IGNORE:
            return IGNORED
        return {state.name for state in row.to} if isinstance(row, Row) else None

    for state in states:
        for name, cause in CAUSES.items():
            assert verdict(state, cause) == expected.get(state.name, {}).get(name), (state, name)
    assert {state.name for state, _ in table} == set(expected)
    assert {cause for _, cause in table} <= set(CAUSES.values())


def test_every_type_of_the_family_has_a_row_and_is_of_no_other_family() -> None:
    causes = {cause for table, _, _ in TABLES.values() for _, cause in table}
    assert set(INFERENCE_MESSAGES.values()) <= causes
    assert INFERENCE_MESSAGES.keys() & MESSAGES.keys() == {"abort"}


def world(**given: Any) -> MemoryInference:
    return MemoryInference({DATA_OWNER: InferenceRequest(images=1, batch=1, channels=1, side=4)}, **given)


def audited(seed: bytes = b"picks some") -> MemoryInference:
    """A session of one image whose owners audit half of what the dealer deals."""
    policies = {DATA_OWNER: InferencePolicy(audited=HALF)}
    return world(terms=small_terms(audited=HALF), policies=policies, requests=FOUR, seed=seed)


HALF = 1 << 15
FOUR = ((24, 0), (0, 16), (8, 8), (8, 8))
AUDITING = {"AUDITING", "AWAIT_COIN", "AWAIT_KEYS", "REVEALING"}
HELD_BACK = {
    (DATA_OWNER, "AUDITING"): InferenceState.AWAIT_START,
    (DATA_OWNER, "REVEALING"): InferenceState.AWAIT_COIN,
    (MODEL_OWNER, "REVEALING"): InferenceState.AWAIT_KEYS,
}
"""Where a party does nothing more by itself, so that it stays in the next state."""


def machine_of(role: str, run: MemoryInference) -> Machine[Any] | None:
    match role:
        case "dealer":
            return run.dealers.sessions.get(DATA_OWNER)
        case "randomness":
            return run.owners[DATA_OWNER].material
        case "model-owner":
            return run.service.sessions.get(DATA_OWNER)
    return run.owners[DATA_OWNER].machine


def brought_to(role: str, state: str, *, waiting: bool = False) -> tuple[MemoryInference, Any]:
    """A session of one image whose machine of that role is in this state; waiting: and has a deadline."""
    run = audited() if state in AUDITING else world()
    if (role, state) == (MODEL_OWNER, "AWAIT_HELLO"):
        return run, run.serve(DATA_OWNER)
    if (role, state) == (DATA_OWNER, "READY"):
        return run, run.join(DATA_OWNER)
    if (role, state) == (DATA_OWNER, "IDLE"):
        run.idle.add(DATA_OWNER)
    run.start()
    if (role, state) == (MATERIAL, "READY"):
        assert run.advance(lambda: bool(run.outcome(Agreed, DATA_OWNER)))
        (agreed,) = run.outcome(Agreed, DATA_OWNER)
        return run, MaterialOwner(
            DATA_OWNER, run.roster, dealer=DEALER, agreed=agreed, entropy=run.streams.of("x"), patience=PATIENCE
        )
    if state == "ABORTED":
        assert run.advance(lambda: machine_of(role, run) is not None)
        drop = (DATA_OWNER,) if role == DEALER else ()
        machine_of(role, run).drop(*drop, "gone", run.now)  # type: ignore[union-attr]

    def reached() -> bool:
        machine = machine_of(role, run)
        return machine is not None and machine.state.name == state and (machine.deadline is not None or not waiting)

    if (role, state) in HELD_BACK:
        held_in = HELD_BACK[role, state]
        assert run.advance(lambda: getattr(machine_of(role, run), "state", None) is held_in)
        run.idle.add(role)
    assert run.advance(reached)
    return run, machine_of(role, run)


def sender_to(role: str) -> str:
    return {DATA_OWNER: MODEL_OWNER, MATERIAL: DEALER}.get(role, DATA_OWNER)


def hears(role: str, state: str, culprit: str) -> set[str]:
    """Who is told that a machine ends an exchange: of a dealer, who has come to it, and who is at fault."""
    come = {DATA_OWNER} if state == "AWAIT_OWNERS" else {MODEL_OWNER, DATA_OWNER}
    return come | {culprit} if role == DEALER else {culprit}


FORGOTTEN = {"state", "deadline", "_rounds", "_hellos", "_orders", "_arrivals", "data", "_link", "_links"}


def remembered(machine: Machine[Any]) -> dict[str, Any]:
    """What a machine knows beside its state, what an end makes it forget, and its links, which number messages."""
    kept = {name: value for name, value in vars(machine).items() if name not in FORGOTTEN | {"table", "_entropy"}}
    kept.pop("traffic")
    return deepcopy({name: getattr(value, "__dict__", value) for name, value in kept.items()})


def holds_secrets(machine: Machine[Any]) -> bool:
    return any(vars(machine).get(name) for name in ("_rounds", "_hellos", "data"))


def garbage(kind: str, sender: str) -> Packet:
    envelope = Envelope(version=INFERENCE_VERSION, type=kind, session=bytes(32), round=0, sender=sender, sequence=0)
    return Packet(envelope, b"\xc1", None, INFERENCE_MESSAGES[kind])


@cases(("role", "state"), CELLS)
def test_every_message_in_every_state(role: str, state: str) -> None:
    expected, sender = TABLES[role][2][state], sender_to(role)
    over = state in ("CLOSED", "ABORTED")
    for kind in INFERENCE_MESSAGES:
        run, machine = brought_to(role, state)
        before, ignored = remembered(machine), machine.ignored
        outputs = machine.receive(sender, garbage(kind, sender), run.now)
        if expected.get(kind) == IGNORED:
            assert (outputs, machine.ignored, machine.state.name) == ([], ignored + 1, state)
            continue
        assert remembered(machine) == before
        if over:
            assert (outputs, machine.state.name) == ([], state)
            continue
        code = Code.MALFORMED if kind in expected else Code.UNEXPECTED
        *told, ended = (output for output in outputs if not isinstance(output, Charged))
        assert isinstance(ended, InferenceEnded)
        assert (ended.code, ended.culprit) == (code, sender)
        assert {told.to for told in told} == hears(role, state, sender)
        for message in told:
            assert isinstance(message, Transmit)
            abort = decode(message.frames, INFERENCE_MESSAGES).parse()
            assert isinstance(abort, Abort)
            assert (abort.code, abort.detail, abort.culprit) == (code, ended.detail, sender)
        assert (machine.state.name, machine.deadline, holds_secrets(machine)) == ("ABORTED", None, False)


@cases(("role", "state"), CELLS)
def test_every_internal_event_in_every_state(role: str, state: str) -> None:
    expected = TABLES[role][2][state]
    run, machine = brought_to(role, state)
    for trigger in (*Trigger, *InferenceTrigger):
        if expected.get(trigger.value) == IGNORED:
            assert machine.trigger(trigger, run.now) == []
        elif trigger.value not in expected:
            with pytest.raises(LocalProtocolError, match=f"cannot {trigger.value} in state {state}"):
                machine.trigger(trigger, run.now)
    assert machine.state.name == state
    if state in ("CLOSED", "ABORTED"):
        # What the shell still has to say when an exchange is over has no effect.
        calls: dict[str, tuple[Any, ...]] = {
            "ask": (0.0,), "finish": (), "give": (0, b""), "mask": (0, b""), "begin": (b"", 0.0), "audit": (b"", ()),
            "reveal": ((),), "order": (b"", 1, ()),
            "deliver": (DATA_OWNER, 0, b""), "give_up": (RemoteProtocolError(Code.LOCAL, "no disk"),),
            "expire": (), "drop": (DATA_OWNER, "gone") if role == DEALER else ("gone",),
        }  # fmt: skip
        for name, arguments in calls.items():
            if hasattr(machine, name):
                assert getattr(machine, name)(*arguments, 1e9) == [], name
        assert machine.state.name == state


Transition = tuple[str, str, str, str]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[Transition]:
    """(role, state, cause, next state) of whatever machines do while the test runs."""
    seen: set[Transition] = set()
    roles = {id(table): role for role, (table, _, _) in TABLES.items()}

    def watch(method: str, cause: Any) -> None:
        original = getattr(Machine, method)

        def watched(machine: Any, *arguments: Any) -> Any:
            before = machine.state.name
            outputs = original(machine, *arguments)
            if machine.table.get((TABLES[roles[id(machine.table)]][1][before], cause(arguments))) is not IGNORE:
                name = getattr(cause(arguments), "TYPE", None) or cause(arguments).value
                seen.add((roles[id(machine.table)], before, name, machine.state.name))
            return outputs

        monkeypatch.setattr(Machine, method, watched)

    watch("receive", lambda arguments: arguments[1].kind)
    watch("trigger", lambda arguments: arguments[0])
    return seen


def refused_in(first: str, second: str) -> None:
    """A pass that is out of range, whose words about that come in this order."""
    run = world()
    run.out_of_range.add((DATA_OWNER, 1))
    run.start()
    owners = {DATA_OWNER: run.owners, MODEL_OWNER: run.served}
    step = len(pass_rounds(run.terms.sizes, 1)) - 2
    last = step - (3 if second == DATA_OWNER else 1)
    assert run.advance(lambda: DATA_OWNER in run.served)
    late = owners[second][DATA_OWNER]
    assert run.advance(lambda: last in late.given)
    run.idle.add(second)
    if second == DATA_OWNER:
        assert run.advance(lambda: step - 3 in late.opened)
        # The model owner awaits what it multiplies by its last weights, and the count.
        for awaited in (step - 2, step - 1):
            late.given.add(awaited)
            late.tell("owners", late.machine.give(awaited, bytes(late.openings[awaited]), run.now))
    assert run.advance(lambda: step in late.opened)
    assert step not in late.given
    run.idle.remove(second)
    late.go_on()
    run.settle()
    assert run.verdicts() == {(None, "")}
    assert [each.number for each in run.outcome(PassRefused)] == [1, 1]


def test_genuine_messages_and_events_take_every_transition(taken: set[Transition]) -> None:
    world().run()
    for order in ((DATA_OWNER, MODEL_OWNER), (MODEL_OWNER, DATA_OWNER)):
        refused_in(*order)
    replaced = world()
    replaced.start()
    replaced.weights = bytes(32)
    replaced.settle()
    limited = world(policies={DATA_OWNER: InferencePolicy(quota=Quota(used=0))}).run()
    assert limited.verdicts() == {(Code.POLICY, DATA_OWNER)}
    for seed in (b"picks some", b"picks none"):
        assert audited(seed).run().verdicts() == {(None, "")}
    for role, state in CELLS:
        expected = TABLES[role][2][state]
        sender, shared = sender_to(role), (DATA_OWNER,) if role == DEALER else ()
        for cause in ("abort", "drop", "expire"):
            if expected.get(cause) != {"ABORTED"}:
                continue
            run, machine = brought_to(role, state, waiting=cause == "expire")
            if cause == "abort":
                abort = Abort(code=Code.LOCAL, detail="no disk", culprit=sender)
                receiver = {MATERIAL: DATA_OWNER}.get(role, role)
                outputs = machine.feed(*shared, run.forge(sender, receiver, abort).frames, run.now)
                ended = InferenceEnded(Code.LOCAL, "no disk", sender)
            elif cause == "drop":
                outputs = machine.drop(*shared, "gone", run.now)
                ended = InferenceEnded(Code.LEFT, "gone", sender)
            else:
                assert machine.deadline == run.now + PATIENCE
                assert machine.expire(run.now + PATIENCE - 1e-6) == []
                outputs = machine.expire(run.now + PATIENCE)
                late = outputs[-1].culprit
                assert late in ((DATA_OWNER, MODEL_OWNER) if role == DEALER else (sender,))
                assert f"no word from {late} for {PATIENCE:g} s" in outputs[-1].detail
                ended = InferenceEnded(Code.TIMEOUT, outputs[-1].detail, late)
            assert outputs[-1] == ended
            # Who says it, or is gone, is not told; the other owner is.
            heard = hears(role, state, ended.culprit)
            told = [output for output in outputs[:-1] if not isinstance(output, Charged)]
            assert {message.to for message in told} == (heard if cause == "expire" else heard - {sender})
            assert (machine.state.name, machine.deadline, holds_secrets(machine)) == ("ABORTED", None, False)
    wanted = {
        (role, state, cause, target)
        for role, (_, _, expected) in TABLES.items()
        for state, causes in expected.items()
        for cause, targets in causes.items()
        if targets != IGNORED
        for target in targets
    }
    assert taken == wanted

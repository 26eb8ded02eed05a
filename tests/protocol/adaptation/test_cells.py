"""Every (state x cause) cell of the machines of double-blind adaptation, on machines that were brought into the state.

As for private inference: the expected tables are written here by hand, a cell is tried with a body that is no message
at all (MALFORMED where the type is legal, UNEXPECTED where it is not), and in the end every transition is taken.
"""

from typing import Any

import pytest

from tacit.protocol.adaptation.data_owner import LEARNING_DATA_OWNER_TABLE
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, ADAPTATION_VERSION
from tacit.protocol.adaptation.model_owner import LEARNING_MODEL_OWNER_TABLE
from tacit.protocol.adaptation.states import AdaptationTrigger
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.core.codec import Envelope, Packet, decode
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import IGNORE, Machine, Transmit, Trigger
from tacit.protocol.core.messages import Abort
from tacit.protocol.inference.data_owner import InferencePolicy
from tacit.protocol.inference.quota import Quota
from tacit.protocol.inference.results import InferenceEnded
from tacit.protocol.inference.states import InferenceState, InferenceTrigger
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.world.adaptation import PASS, MemoryAdaptation, learning_terms, round_plan
from tacit.simulate.world.inference import MODEL_OWNER, PATIENCE, data_owner_names
from tests.cases import cases
from tests.protocol.cells import IGNORED, Cells, Expected, check_table

(DATA_OWNER,) = data_owner_names(1)

BREAK: Cells = {"abort": {"ABORTED"}, "drop": {"ABORTED"}}
END: Cells = {**BREAK, "expire": {"ABORTED"}}
OVER: Cells = {"abort": IGNORED, "drop": IGNORED}
OPEN, GIVE = "opening", "open shares"
AUDIT = ("audit-commitment", "audit-coin", "audit-keys")
BY_DATA_OWNER: Expected = {
    "READY": {"start": {"AWAIT_TERMS"}, "drop": {"ABORTED"}},
    "AWAIT_TERMS": {"inference-terms": {"AWAIT_KEPT", "AWAIT_WEIGHTS"}, **END},
    "AWAIT_KEPT": {"kept-compared": {"AWAIT_WEIGHTS", "IDLE"}, **END},
    "AWAIT_WEIGHTS": {"masked-weights": {"AWAIT_WEIGHTS", "IDLE"}, **END},
    "IDLE": {
        "choose the images of a step": {"IDLE"},
        "begin a round of learning": {"AWAIT_ROUND"},
        "ask for a pass": {"AWAIT_START", "ABORTED"},
        "keep what a round has learned": {"IDLE"},
        "ask for the sum of a round": {"AWAIT_SUM"},
        "finish": {"CLOSING"},
        **BREAK,
    },
    "AWAIT_ROUND": {"round-begun": {"IDLE"}, **END},
    "AWAIT_START": {"audit-commitment": {"AUDITING"}, "pass-started": {"COMPUTING"}, **END},
    "AUDITING": {"audit the dealer": {"AWAIT_COIN"}, **BREAK},
    "AWAIT_COIN": {"audit-coin": {"REVEALING", "AWAIT_START"}, **END},
    "REVEALING": {"reveal keys of requests": {"AWAIT_KEYS"}, **BREAK},
    "AWAIT_KEYS": {"audit-keys": {"AWAIT_START"}, **END},
    "COMPUTING": {OPEN: {"COMPUTING", "IDLE"}, GIVE: {"COMPUTING", "IDLE"}, **END},
    "AWAIT_SUM": {"own-sum": {"AWAIT_SUM", "IDLE"}, "sum-lost": {"IDLE"}, **END},
    "CLOSING": {"inference-closed": {"CLOSED"}, **END},
    "CLOSED": OVER,
    "ABORTED": {
        **OVER,
        **dict.fromkeys(
            ("inference-terms", "kept-compared", "masked-weights", "round-begun", *AUDIT, "pass-started", OPEN,
             "own-sum", "sum-lost", "inference-closed"),
            IGNORED,
        ),
    },
}  # fmt: skip
BY_MODEL_OWNER: Expected = {
    "AWAIT_HELLO": {"inference-hello": {"AWAIT_AGREEMENT"}, "drop": {"ABORTED"}},
    "AWAIT_AGREEMENT": {"agree-terms": {"AWAIT_KEPT", "MASKING"}, **END},
    "AWAIT_KEPT": {"compare-kept": {"MASKING", "IDLE"}, **END},
    "MASKING": {"provide what is waited for": {"MASKING", "IDLE"}, **BREAK},
    "IDLE": {
        "choose-images": {"IDLE"},
        "begin-round": {"BEGINNING_ROUND"},
        "start-pass": {"PREPARING"},
        "keep-round": {"IDLE"},
        "ask-sum": {"SUMMING", "IDLE"},
        "close-inference": {"CLOSED"},
        **BREAK,
    },
    "BEGINNING_ROUND": {"begin a round of learning": {"IDLE"}, **BREAK},
    "PREPARING": {"audit the dealer": {"AWAIT_COIN"}, "begin a pass": {"COMPUTING", "ABORTED"}, **BREAK},
    "AWAIT_COIN": {"audit-coin": {"AWAIT_KEYS", "PREPARING"}, **END},
    "AWAIT_KEYS": {"audit-keys": {"REVEALING"}, **END},
    "REVEALING": {"reveal keys of requests": {"PREPARING"}, **BREAK},
    "COMPUTING": {OPEN: {"COMPUTING", "IDLE"}, GIVE: {"COMPUTING", "IDLE"}, **END},
    "SUMMING": {"provide what is waited for": {"IDLE"}, **BREAK},
    "CLOSED": OVER,
    "ABORTED": {
        **OVER,
        **dict.fromkeys(
            (
                "agree-terms",
                "compare-kept",
                "choose-images",
                "begin-round",
                "start-pass",
                *AUDIT[1:],
                OPEN,
                "keep-round",
                "ask-sum",
                "close-inference",
            ),
            IGNORED,
        ),
    },
}
TABLES: dict[str, tuple[Any, Expected]] = {
    DATA_OWNER: (LEARNING_DATA_OWNER_TABLE, BY_DATA_OWNER),
    MODEL_OWNER: (LEARNING_MODEL_OWNER_TABLE, BY_MODEL_OWNER),
}
CAUSES: dict[str, Any] = {
    **ADAPTATION_MESSAGES,
    **{trigger.value: trigger for trigger in (*Trigger, *InferenceTrigger, *AdaptationTrigger)},
}
CELLS = [(role, state) for role, (_, expected) in TABLES.items() for state in expected]
"""Every machine in every state that it can be in."""
ALONE = OpeningPolicy(rounds=2, owners=1, smallest_cohort=1, colluders=0)


@cases("role", TABLES)
def test_the_table_says_what_is_written_here(role: str) -> None:
    table, expected = TABLES[role]
    check_table(table, InferenceState, CAUSES, expected)


def test_every_type_of_the_family_has_a_row_and_of_a_federation_is_abort_alone() -> None:
    causes = {cause for table, _ in TABLES.values() for _, cause in table}
    assert set(ADAPTATION_MESSAGES.values()) <= causes
    assert ADAPTATION_MESSAGES.keys() & MESSAGES.keys() == {"abort"}


def world(*plan: Any, **given: Any) -> MemoryAdaptation:
    """A session of one data owner, which may be told its own sum here."""
    return MemoryAdaptation({DATA_OWNER: plan or round_plan(1, [DATA_OWNER])}, opening=ALONE, **given)


def audited(seed: bytes = b"picks some") -> MemoryAdaptation:
    """A session whose owners audit half of what the dealer deals."""
    policies = {DATA_OWNER: InferencePolicy(audited=HALF)}
    return world(terms=learning_terms(audited=HALF), policies=policies, requests=FOUR, seed=seed)


HALF = 1 << 15
FOUR = ((24, 0), (0, 16), (8, 8), (8, 8))
AUDITING = {"AUDITING", "AWAIT_COIN", "AWAIT_KEYS", "REVEALING"}
HELD_BACK = {
    (DATA_OWNER, "AUDITING"): InferenceState.AWAIT_START,
    (DATA_OWNER, "REVEALING"): InferenceState.AWAIT_COIN,
    (MODEL_OWNER, "REVEALING"): InferenceState.AWAIT_KEYS,
}
"""Where a party does nothing more by itself, so that it stays in the next state."""


def machine_of(role: str, run: MemoryAdaptation) -> Any:
    sessions = run.service.sessions if role == MODEL_OWNER else run.owners
    found = sessions.get(DATA_OWNER)
    return found if role == MODEL_OWNER or found is None else found.machine  # type: ignore[union-attr]


def brought_to(role: str, state: str, *, waiting: bool = False) -> tuple[MemoryAdaptation, Any]:
    """A session of one round whose machine of that role is in this state; waiting: and has a deadline."""
    before = state in ("AWAIT_WEIGHTS", "MASKING")
    run = audited() if state in AUDITING else world(brought=not before)
    if (role, state) == (MODEL_OWNER, "AWAIT_HELLO"):
        return run, run.serve(DATA_OWNER)
    if (role, state) == (DATA_OWNER, "READY"):
        return run, run.join(DATA_OWNER)
    if (role, state) in ((DATA_OWNER, "IDLE"), (MODEL_OWNER, "SUMMING"), (MODEL_OWNER, "BEGINNING_ROUND")):
        run.idle.add(role)
    if state == "SUMMING":
        run = world(("ask_sum", (1, ())), brought=True)
        run.idle.add(role)
    run.start()
    if state == "ABORTED":
        assert run.advance(lambda: machine_of(role, run) is not None)
        machine_of(role, run).drop("gone", run.now)

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
    return MODEL_OWNER if role == DATA_OWNER else DATA_OWNER


def garbage(kind: str, sender: str) -> Packet:
    envelope = Envelope(version=ADAPTATION_VERSION, type=kind, session=bytes(32), round=0, sender=sender, sequence=0)
    return Packet(envelope, b"\xc1", None, ADAPTATION_MESSAGES[kind])


def sums_of(run: MemoryAdaptation) -> dict[str, Any]:
    return {name: repr(value) for name, value in vars(run.sums).items()}


@cases(("role", "state"), CELLS)
def test_every_message_in_every_state(role: str, state: str) -> None:
    expected, sender = TABLES[role][1][state], sender_to(role)
    over = state in ("CLOSED", "ABORTED")
    for kind in ADAPTATION_MESSAGES:
        run, machine = brought_to(role, state)
        before, ignored = (sums_of(run), machine.number, machine._agreed), machine.ignored
        outputs = machine.receive(sender, garbage(kind, sender), run.now)
        assert (sums_of(run), machine.number, machine._agreed) == before
        if expected.get(kind) == IGNORED:
            assert (outputs, machine.ignored, machine.state.name) == ([], ignored + 1, state)
            continue
        if over:
            assert (outputs, machine.state.name) == ([], state)
            continue
        code = Code.MALFORMED if kind in expected else Code.UNEXPECTED
        told, ended = outputs
        assert isinstance(ended, InferenceEnded)
        assert (ended.code, ended.culprit) == (code, sender)
        assert isinstance(told, Transmit)
        abort = decode(told.frames, ADAPTATION_MESSAGES).parse()
        assert isinstance(abort, Abort)
        assert (told.to, abort.code, abort.detail, abort.culprit) == (sender, code, ended.detail, sender)
        assert (machine.state.name, machine.deadline, machine.data) == ("ABORTED", None, None)


@cases(("role", "state"), CELLS)
def test_every_internal_event_in_every_state(role: str, state: str) -> None:
    expected = TABLES[role][1][state]
    run, machine = brought_to(role, state)
    for trigger in (*Trigger, *InferenceTrigger, *AdaptationTrigger):
        if expected.get(trigger.value) == IGNORED:
            assert machine.trigger(trigger, run.now) == []
        elif trigger.value not in expected:
            with pytest.raises(LocalProtocolError, match=f"cannot {trigger.value} in state {state}"):
                machine.trigger(trigger, run.now)
    assert machine.state.name == state
    if state in ("CLOSED", "ABORTED"):
        # What the shell still has to say when an exchange is over has no effect.
        common: dict[str, tuple[Any, ...]] = {
            "give": (0, b""), "give_up": (RemoteProtocolError(Code.LOCAL, "no disk"),), "expire": (), "drop": ("gone",)
        }  # fmt: skip
        own: dict[str, tuple[Any, ...]] = (
            {"ask": (0.0,), "finish": (), "begin_round": (1, 0, 0), "ask_sum": (1, ())}
            if role == DATA_OWNER
            else {"mask": (0, b""), "begin": (b"", 0.0), "begin_round": (0,)}
        )
        for name, arguments in (common | own).items():
            assert getattr(machine, name)(*arguments, 1e9) == [], name
        if role == DATA_OWNER:
            assert machine.keep_round(1, 1e9)[1] == []
        else:
            assert machine.provide(1, b"", 1e9) == []
        assert machine.state.name == state


@cases("state", ["IDLE", "MASKING", "BEGINNING_ROUND", "SUMMING", "PREPARING"])
def test_the_model_owner_has_no_deadline_while_others_or_itself_are_waited_for(state: str) -> None:
    _, machine = brought_to(MODEL_OWNER, state)
    assert machine.deadline is None


Transition = tuple[str, str, str, str]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> set[Transition]:
    """(role, state, cause, next state) of whatever these machines do while the test runs."""
    seen: set[Transition] = set()
    roles = {id(table): role for role, (table, _) in TABLES.items()}

    def watch(method: str, cause: Any) -> None:
        original = getattr(Machine, method)

        def watched(machine: Any, *arguments: Any) -> Any:
            before = machine.state
            outputs = original(machine, *arguments)
            role = roles.get(id(machine.table))
            if role and machine.table.get((before, cause(arguments))) is not IGNORE:
                name = getattr(cause(arguments), "TYPE", None) or cause(arguments).value
                seen.add((role, before.name, name, machine.state.name))
            return outputs

        monkeypatch.setattr(Machine, method, watched)

    watch("receive", lambda arguments: arguments[1].kind)
    watch("trigger", lambda arguments: arguments[0])
    return seen


def test_genuine_messages_and_events_take_every_transition(taken: set[Transition]) -> None:
    assert world().run().verdicts() == {(None, "")}
    # A sum of several chunks; one of a round that nobody is in, and one that is known to be lost.
    large = learning_terms(width=64, heads=1, hidden=1, classes=4096)
    plan = (("begin_round", (1, 0, 0)), ("keep_round", (1,)), ("ask_sum", (1, (DATA_OWNER,))), ("ask_sum", (7, ())))
    assert world(*plan, terms=large).run().verdicts() == {(None, "")}
    assert world(("ask_sum", (3, (DATA_OWNER,)))).run().verdicts() == {(None, "")}
    for first in (DATA_OWNER, MODEL_OWNER):
        ended_with_the_last_word_of(first)
    replaced = world()
    replaced.start()
    replaced.weights = bytes(32)
    replaced.settle()
    predicts = {"terms": learning_terms(purpose="prediction"), "purposes": {DATA_OWNER: "prediction"}}
    limited = world(PASS, policies={DATA_OWNER: InferencePolicy(quota=Quota(used=0))}, **predicts).run()
    assert limited.verdicts() == {(Code.POLICY, DATA_OWNER)}
    for seed in (b"picks some", b"picks none"):
        assert audited(seed).run().verdicts() == {(None, "")}
    for role, state in CELLS:
        expected = TABLES[role][1][state]
        sender = sender_to(role)
        for cause in ("abort", "drop", "expire"):
            if expected.get(cause) != {"ABORTED"}:
                continue
            run, machine = brought_to(role, state, waiting=cause == "expire")
            if cause == "abort":
                abort = Abort(code=Code.LOCAL, detail="no disk", culprit=sender)
                outputs = machine.feed(run.forge(sender, role, abort).frames, run.now)
                ended = InferenceEnded(Code.LOCAL, "no disk", sender)
            elif cause == "drop":
                outputs = machine.drop("gone", run.now)
                ended = InferenceEnded(Code.LEFT, "gone", sender)
            else:
                assert machine.deadline == run.now + PATIENCE
                assert machine.expire(run.now + PATIENCE - 1e-6) == []
                outputs = machine.expire(run.now + PATIENCE)
                assert f"no word from {sender} for {PATIENCE:g} s" in outputs[-1].detail
                ended = InferenceEnded(Code.TIMEOUT, outputs[-1].detail, sender)
            assert outputs[-1] == ended
            assert {told.to for told in outputs[:-1]} == ({sender} if cause == "expire" else set())
            assert (machine.state.name, machine.deadline, machine.data) == ("ABORTED", None, None)
    wanted = {
        (role, state, cause, target)
        for role, (_, expected) in TABLES.items()
        for state, causes in expected.items()
        for cause, targets in causes.items()
        if targets != IGNORED
        for target in targets
    }
    assert wanted - taken == set()
    assert taken - wanted == set()


def ended_with_the_last_word_of(last: str) -> None:
    run = world(brought=True)
    run.start()
    assert run.advance(lambda: DATA_OWNER in run.served)
    shells = {DATA_OWNER: run.owners[DATA_OWNER], MODEL_OWNER: run.served[DATA_OWNER]}
    assert run.advance(lambda: bool(shells[last].schedule))
    step = len(shells[last].schedule) - 1
    assert run.advance(lambda: step - 1 in shells[last].given)
    run.idle.add(last)
    assert run.advance(lambda: step in shells[last].opened)
    run.idle.remove(last)
    shells[last].go_on()
    assert run.settle().verdicts() == {(None, "")}

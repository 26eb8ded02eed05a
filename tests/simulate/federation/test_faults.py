"""Faults: their notation, whom they concern, what is left of them after a kill, and what a strike does."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.sum.states import Phase
from tacit.simulate.federation.cheats import CheatingClient
from tacit.simulate.federation.faults import PHASES, Fault, FaultError, Faults, Kind, read_faults
from tacit.simulate.federation.hosting import Hosting
from tacit.simulate.federation.processes import Exit, Processes, Supervisor
from tacit.simulate.federation.roles import Plan, Role, client_outcome, server_outcome
from tests.cases import cases

PARTIES = ("server", *(f"client-{number}" for number in range(1, 12)))


def read(**given: Sequence[str]) -> Faults:
    return read_faults(parties=PARTIES, **given)


@given(
    kind=st.sampled_from(Kind),
    party=st.sampled_from(PARTIES[1:]),
    phase=st.sampled_from(PHASES),
    round=st.integers(1, 10**6),
    change=st.sampled_from((str.upper, str.lower)),
)
def test_what_is_written_is_what_is_read(kind: Kind, party: str, phase: Phase, round: int, change: Any) -> None:
    faults = read(**{kind.value: [f"{party}@{change(phase.value)}:{round}"]})
    assert faults == Faults((Fault(kind, party, phase, round),))


def test_without_a_round_it_is_the_first_and_every_option_may_be_given_repeatedly() -> None:
    faults = read(drop=["client-1@TRAIN", "server@UNMASK:2"], stall=["server@TRAIN"], slow=["server:1", "client-2:0.5"])
    assert faults.moments == (
        Fault(Kind.DROP, "client-1", Phase.TRAIN, 1),
        Fault(Kind.DROP, "server", Phase.UNMASK, 2),
        Fault(Kind.STALL, "server", Phase.TRAIN, 1),
    )
    assert faults.kilobits == (("server", 1.0), ("client-2", 0.5))


NOTATION = "write PARTY@PHASE or PARTY@PHASE:ROUND, such as client-2@MASKED_INPUT:3"
CHEATING = "write CLIENT@HOW or CLIENT@HOW:ROUND, such as client-2@words:3"
SPEED = "write PARTY:KBIT with a speed above 0, such as client-2:500"


@cases(
    ("option", "text", "expected"),
    [
        ("drop", "", NOTATION),
        ("drop", "client-1", NOTATION),
        ("drop", "client-1@", NOTATION),
        ("drop", "@TRAIN", NOTATION),
        ("drop", "client-1@TRAIN:", NOTATION),
        ("drop", "client-1@TRAIN:0", NOTATION),
        ("drop", "client-1@TRAIN:-1", NOTATION),
        ("drop", "client-1@TRAIN:1:2", NOTATION),
        ("drop", "client-1@TRAIN:\u0661", NOTATION),
        ("drop", "client-1@TRAIN\n", NOTATION),
        ("stall", "client-1@SESSION", f"SESSION is no phase; they are {', '.join(PHASES)}"),
        ("stall", "client-1@nap", f"nap is no phase; they are {', '.join(PHASES)}"),
        ("restart", "client-12@TRAIN", "client-12 is no party of this run; they are server, client-1, client-2, ..., "),
        ("slow", "client-1", SPEED),
        ("slow", "client-1:", SPEED),
        ("slow", "client-1:0", SPEED),
        ("slow", "client-1:0.0", SPEED),
        ("slow", "client-1:-5", SPEED),
        ("slow", "client-1:nan", SPEED),
        ("slow", "client-1:1e3", SPEED),
        ("cheat", "client-1", CHEATING),
        ("cheat", "client-1@words:0", CHEATING),
        ("cheat", "client-1@words:first", CHEATING),
        ("cheat", "client-1@lies", "lies is no cheat; they are words, commitment, complaint, upload"),
        ("cheat", "server@words", "server is no client of this run; they are client-1, client-2, client-3, ..., "),
        ("slow", "nobody:1", "nobody is no party of this run; they are server, client-1, client-2, ..., client-11"),
    ],
)
def test_anything_else_is_refused_with_what_would_be_accepted(option: str, text: str, expected: str) -> None:
    with pytest.raises(FaultError) as refused:
        read(**{option: [text]})
    assert str(refused.value).startswith(f"--{option} {text}: {expected}")


def test_a_server_is_not_started_again() -> None:
    with pytest.raises(FaultError, match="a restarted server is a new session; use --drop and --resume"):
        read(restart=["server@TRAIN"])


def test_clients_cheat_in_the_rounds_that_are_named() -> None:
    faults = read(cheat=["client-1@WORDS", "client-1@upload:3", "client-1@complaint:3", "client-2@words:2"])
    machine = faults.machine("client-1")
    assert isinstance(machine, partial)
    cheats = {round: [cheat.name for cheat in told] for round, told in machine.keywords["cheats"].items()}
    assert (machine.func, cheats) == (CheatingClient, {1: ["words"], 3: ["upload", "complaint"]})
    assert faults.machine("client-3") is TrainingClient


def test_a_party_without_faults_has_no_hooks_of_its_own() -> None:
    faults = read(drop=["client-1@TRAIN"], slow=["client-2:100"])
    assert [faults.of(party) is None for party in PARTIES[:4]] == [True, False, False, True]
    assert faults.named == {"client-1", "client-2"}


def test_the_earliest_moment_decides_whether_a_killed_party_comes_back_and_the_later_rounds_are_left() -> None:
    order = ["client-1@UNMASK:2", "client-1@MASKED_INPUT:1", "client-1@UNMASK:1", "client-2@TRAIN:1"]
    faults = read(restart=order, drop=["client-1@SHARE_KEYS:3"], slow=["client-1:100", "client-2:200"])
    first = faults.after_kill("client-1")
    assert first is not None
    assert {(fault.kind, fault.phase, fault.round) for fault in first.moments} == {
        (Kind.RESTART, Phase.UNMASK, 2),
        (Kind.DROP, Phase.SHARE_KEYS, 3),
    }
    assert first.kilobits == (("client-1", 100.0),)
    second = first.after_kill("client-1")
    assert second is not None
    assert [fault.kind for fault in second.moments] == [Kind.DROP]
    assert second.after_kill("client-1") is None


@pytest.mark.parametrize("option", ["drop", "stall"])
def test_who_was_dropped_or_frozen_first_stays_away(option: str) -> None:
    faults = read(**{option: ["client-1@MASKED_INPUT:2"]}, restart=["client-1@CONSISTENCY_CHECK:2"])
    assert faults.after_kill("client-1") is None


@pytest.mark.parametrize(
    ("kind", "sent"),
    [(Kind.DROP, signal.SIGKILL), (Kind.RESTART, signal.SIGKILL), (Kind.STALL, signal.SIGSTOP)],
)
def test_a_moment_strikes_in_its_phase_of_its_round_only(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, sent: signal.Signals
) -> None:
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *given: signals.append(given))
    hooks = Faults((Fault(kind, "client-1", Phase.MASKED_INPUT, 2),)).of("client-1")
    struck = []
    for round in (1, 2, 3):
        for phase in Phase:
            hooks.entering(round, {Phase.SESSION, phase})
            struck += [(round, phase)] * len(signals)
            assert signals in ([], [(os.getpid(), sent)])
            signals.clear()
    assert struck == [(2, Phase.MASKED_INPUT)]


@pytest.mark.parametrize(("speed", "slept"), [("8", [1.0]), ("2.5", [3.2]), (None, [])])
def test_a_slow_link_takes_the_time_of_its_bits(
    monkeypatch: pytest.MonkeyPatch, speed: str | None, slept: list[float]
) -> None:
    seconds: list[float] = []

    async def sleep(given: float) -> None:
        seconds.append(given)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    faults = read(drop=["client-1@TRAIN"], slow=[f"client-1:{speed}"] if speed else [])
    asyncio.run(faults.of("client-1").moved(1000))
    assert seconds == slept


@cases(
    ("code", "client", "server"),
    [(None, 0, 0)] + [(code, 4 if code in (Code.LEFT, Code.TIMEOUT) else 1, 3) for code in Code],
)
def test_the_status_of_a_process_tells_how_its_session_ended(code: Code | None, client: int, server: int) -> None:
    ended = Ended(code, "why")
    assert client_outcome(ended) == {"detail": "why", "status": client}
    assert server_outcome(ended) == {"detail": "why", "status": server}


Script = list[tuple[str, dict[str, Any] | Exit]]


class Scripted:
    """Processes that say what was written down for them, and are counted when they are started."""

    def __init__(self, script: Script) -> None:
        self.started: list[str] = []
        self._script = script

    async def start(self, name: str, target: object, **arguments: object) -> None:
        self.started.append(name)

    def tell(self, name: str, told: dict[str, Any]) -> None:
        pass

    async def messages(self) -> AsyncIterator[tuple[str, dict[str, Any] | Exit]]:
        for message in self._script:
            yield message


@pytest.mark.parametrize(("server_ended", "starts"), [(False, 2), (True, 1)])
def test_nobody_is_started_again_when_the_run_is_over(tmp_path: Path, server_ended: bool, starts: int) -> None:
    """The client is killed before or after the server has ended."""
    end: Script = [("server", {"finished": {"detail": "all rounds are done", "status": 0}}), ("server", Exit(0, None))]
    killed: Script = [("client-1", Exit(None, "SIGKILL"))]
    there = ListeningStarted(party="server", address="tcp://127.0.0.1:1")
    listening: Script = [("server", {"event": msgspec.json.encode(there).decode()})]
    processes = Scripted([*listening, *end, *killed] if server_ended else [*listening, *killed, *end])
    plan = Plan(Experiment(), RunDirectory(tmp_path), 1, 0, 0, faults=read(restart=["client-1@UNMASK:9"]))
    roles = {name: Role(plan, name, tmp_path) for name in PARTIES[:2]}
    hosting = Hosting({"client-1": ("client-1",)})
    supervisor = Supervisor(cast(Processes, processes), roles, hosting, lambda event: None)
    assert asyncio.run(supervisor.follow()) == "all rounds are done"
    assert processes.started == ["server"] + ["client-1"] * starts

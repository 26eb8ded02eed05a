"""Faults on purpose, with real processes: who dies, freezes or comes back, what becomes of the rounds, the status."""

import html
import json
import multiprocessing
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.session.events import ClientRoundEnded, SessionEnded
from tacit.protocol.sum.events import ComplaintReceived
from tacit.simulate.federation import processes
from tacit.simulate.federation import run as simulation_run
from tacit.simulate.federation.processes import Exit, Processes
from tests.cli.command import Invoke, Run, WriteExperiment

pytestmark = pytest.mark.end_to_end


# Of the phases of a round only ANSWER_COMPLAINTS needs somebody who complains.
ACTIVE_PHASES = ("ADVERTISE_KEYS", "SHARE_KEYS", "TRAIN", "MASKED_INPUT", "CONSISTENCY_CHECK", "UNMASK")


Simulate = Callable[..., Run]


@pytest.fixture
def simulate(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, monkeypatch: pytest.MonkeyPatch
) -> Simulate:
    """simulate(*options, deadlines=, clients=, rounds=, more=) holds a run. At its end everybody has time to leave."""
    monkeypatch.setattr(processes, "LEAVE_SECONDS", 120.0)

    def simulate(*options: object, deadlines: str = "grace = 0.5", **experiment: Any) -> Run:
        file = write_experiment(tmp_path / "small.toml", **experiment)
        file.write_text(file.read_text().replace("grace = 0.5", deadlines))
        run = Run(tacit("simulate", file, *options, "--out", tmp_path / "run"), tmp_path / "run")
        assert multiprocessing.active_children() == [], "a process was left behind"
        return run

    return simulate


@pytest.fixture
def frozen_are_ended_soon(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LEAVE_SECONDS", 1.5)
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.25)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Exit]]:
    seen: list[tuple[str, Exit]] = []

    class Watched(Processes):
        async def messages(self) -> AsyncIterator[tuple[str, Any]]:
            async for name, message in super().messages():
                if isinstance(message, Exit):
                    seen.append((name, message))
                yield name, message

    monkeypatch.setattr(simulation_run, "Processes", Watched)
    return seen


def test_a_client_that_dies_in_any_phase_is_dropped_and_the_round_completed(
    simulate: Simulate, exits: list[tuple[str, Exit]]
) -> None:
    """One client after the other, each in a later phase of a later round; the sums are verified."""
    options = [
        f"--drop=client-{number}@{phase.lower()}:{number}" for number, phase in enumerate(ACTIVE_PHASES, start=1)
    ]
    clients = [f"client-{number}" for number in range(1, len(ACTIVE_PHASES) + 6)]
    run = simulate(*options, "--verify", clients=len(clients), rounds=len(ACTIVE_PHASES))
    assert (run.result.exit_code, run.result.stderr) == (0, "")
    summary = run.summary
    for number, (phase, held) in enumerate(zip(ACTIVE_PHASES, summary["rounds"], strict=True), start=1):
        included = phase in ("CONSISTENCY_CHECK", "UNMASK")
        (gone,) = held["dropped"]
        # What the server waits for from a client that trains is its vector.
        seen = "MASKED_INPUT" if phase == "TRAIN" else phase
        assert (gone["party"], gone["phase"], gone["included_in_sum"]) == (f"client-{number}", seen, included)
        assert (gone["code"], gone["detail"]) == ("LEFT", "its link was lost for 0.5 s")
        assert held["status"] == "completed"
        assert held["cohort"] == clients[number - 1 :]
        assert held["survivors"] == clients[number - 1 if included else number :]
    assert [entry["clients"] for entry in summary["verified"]] == [len(held["survivors"]) for held in summary["rounds"]]
    ends = dict(exits)
    assert all(str(ends[f"client-{number}"]) == "killed by SIGKILL" for number in range(1, len(ACTIVE_PHASES) + 1))
    assert {ends[name].code for name in ("server", *clients[len(ACTIVE_PHASES) :])} == {0}


def test_below_the_threshold_the_round_is_aborted_and_held_again_by_who_is_left(simulate: Simulate) -> None:
    phase, detail = "MASKED_INPUT", "only 3 clients sent a vector and are still there; 4 are needed"
    drops = [f"--drop={client}@{phase}" for client in ("client-2", "client-4")]
    run = simulate(*drops, clients=5, rounds=2)
    assert (run.result.exit_code, run.result.stderr) == (0, "")
    aborted, *held = run.summary["rounds"]
    assert (aborted["status"], aborted["code"], aborted["survivors"]) == ("aborted", "THRESHOLD", [])
    assert aborted["detail"].startswith(detail)
    assert aborted["detail"].endswith(": its link was lost for 0.5 s")
    assert {(gone["party"], gone["phase"]) for gone in aborted["dropped"]} == {("client-2", phase), ("client-4", phase)}
    assert re.search(rf"^round 1 of \d aborted after .* s: {detail}", run.result.stdout, re.MULTILINE)
    left = ["client-1", "client-3", "client-5"]
    assert [(entry["status"], entry["survivors"]) for entry in held] == [("completed", left)] * 2


def test_a_server_that_dies_between_the_answers_and_the_saved_model_repeats_the_round_when_it_is_resumed(
    simulate: Simulate, tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    """The sum of round 2 is opened, and where the new model would be written something is in its way."""
    directory = tmp_path / "run"
    assert simulate("--seed", 7, "--drop=server@TRAIN:2", rounds=2).result.exit_code == 4
    obstacle = directory / ".model.safetensors.tmp"
    obstacle.mkdir()
    before = (directory / "model.safetensors").read_bytes()
    failed = Run(tacit("simulate", "--resume", directory), directory)
    assert failed.result.exit_code == 1
    assert f"{directory / 'model.safetensors'} cannot be written: Is a directory" in failed.result.stderr
    assert failed.model == before
    for number in range(1, 5):
        lines = (directory / "journal" / f"client-{number}.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines][-1] == 2
    obstacle.rmdir()
    resumed = Run(tacit("simulate", "--resume", directory), directory)
    assert (resumed.result.exit_code, resumed.result.stderr) == (0, "")
    held = [entry["round"] for entry in resumed.summary["rounds"] if entry["status"] == "completed"]
    assert held == [1, 2]
    file, whole = write_experiment(tmp_path / "whole.toml", rounds=2), tmp_path / "whole"
    assert tacit("simulate", file, "--seed", 7, "--out", whole).exit_code == 0
    assert resumed.model == Run(resumed.result, whole).model


@pytest.mark.usefixtures("frozen_are_ended_soon")
def test_a_frozen_server_is_given_up_by_its_clients_and_ended(
    simulate: Simulate, exits: list[tuple[str, Exit]]
) -> None:
    deadlines = "grace = 0.5\nphase = 10.0\njoin = 20.0\ntrain = 0.5"
    run = simulate("--stall", "server@TRAIN", rounds=1, deadlines=deadlines)
    assert run.result.exit_code == 4
    assert run.result.stderr == (
        "tacit: server: it said nothing for 2 s after a client had given it up, and was ended; finished rounds are "
        f"kept: tacit simulate --resume {run.directory}\n"
    )
    # Whoever is the first to give it up; the others may be ended before they do.
    assert re.search("client-[1-4]: no word from server while it was to await the next round", run.result.stdout)
    assert ("server", Exit(None, "SIGKILL")) in exits


def test_a_client_that_is_started_again_is_back_in_the_next_round_every_time(
    simulate: Simulate, exits: list[tuple[str, Exit]]
) -> None:
    """Within a grace that does not end: the server learns of the death when the client is back."""
    options = ["--restart=client-3@MASKED_INPUT:1", "--restart=client-3@UNMASK:2"]
    run = simulate(*options, rounds=3, deadlines="grace = 3600.0\nphase = 3600.0")
    assert (run.result.exit_code, run.result.stderr) == (0, "")
    first, second, third = run.summary["rounds"]
    for held, phase, included in ((first, "MASKED_INPUT", False), (second, "UNMASK", True)):
        (gone,) = held["dropped"]
        assert (gone["party"], gone["phase"], gone["included_in_sum"]) == ("client-3", phase, included)
        assert (gone["code"], gone["detail"]) == ("LEFT", "it started again")
    assert third["survivors"] == ["client-1", "client-2", "client-3", "client-4"]
    assert [str(exit) for name, exit in exits if name == "client-3"] == ["killed by SIGKILL"] * 2 + ["exit code 0"]


def test_clients_that_cheat_cost_a_round_at_most_and_the_run_says_what_happened(simulate: Simulate) -> None:
    """Noise, a false complaint, and a wrong commitment, whose author is out for the session; a round follows each."""
    cheats = ["client-2@words", "client-2@complaint:2", "client-3@commitment:3"]
    run = simulate(*(f"--cheat={text}" for text in cheats), "--verify", "--seed", 7, rounds=4, deadlines="grace = 60.0")
    clients = [f"client-{number}" for number in range(1, 5)]
    assert run.result.exit_code == 3
    assert run.result.stderr.startswith("tacit: 2 of 4 rounds were completed; round 1 was aborted: ")
    spoiled, answered, aborted, last = run.summary["rounds"]
    assert [held["status"] for held in run.summary["rounds"]] == ["aborted", "completed", "aborted", "completed"]
    assert (spoiled["code"], spoiled["culprit"], aborted["code"], aborted["culprit"]) == (
        "VECTOR",
        "",
        "SECRET",
        "client-3",
    )
    # The model that nothing was added to is judged as before.
    assert (aborted["loss"], answered["loss"] != spoiled["loss"]) == (answered["loss"], True)
    assert (answered["survivors"], answered["dropped"]) == (clients, [])
    assert run.events("server", ComplaintReceived)[0].against == "client-1"
    left = [name for name in clients if name != "client-3"]
    assert (last["cohort"], last["survivors"], last["dropped"]) == (left, left, [])
    for name in left:
        assert [over.code for over in run.events(name, ClientRoundEnded)] == ["VECTOR", None, "SECRET", None]
        assert run.events(name, SessionEnded)[-1].code is None
    told = [incident["text"] for incident in run.summary["incidents"]]
    assert [incident["what"] for incident in run.summary["incidents"]] == [
        "cheat",
        "aborted",
        "cheat",
        "cheat",
        "aborted",
        "absent",
    ]
    assert told[0] == "client-2 cheated in round 1: it sent random words in the place of its vector."
    assert told[1].startswith("Round 1 was aborted (VECTOR): the sum is not one of honest contributions: ")
    assert told[2] == "client-2 cheated in round 2: it complained of shares that were right."
    assert told[3] == "client-3 cheated in round 3: it committed to another secret than it shared."
    assert told[4].endswith("At fault was client-3, which is out for the session.")
    assert told[5].startswith("Round 4 began without client-3 (")
    text = html.unescape(run.report)
    for sentence in told:
        assert sentence in text
    assert "client-2: cheats: it sent random words in the place of its vector\n" in run.result.stdout

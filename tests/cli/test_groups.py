"""Groups on the command line: a run with them, and what the owner of a client accepts."""

import json
from pathlib import Path

import pytest

from tacit.parties.hosting.client import ClientHooks
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import make_roster, write_roster
from tacit.parties.session.journal import JournalFile
from tacit.protocol.core.machine import Ended
from tacit.protocol.session.rounds import GroupEntry
from tests.cli.command import Invoke, WriteExperiment


@pytest.mark.end_to_end
def test_a_client_that_dies_takes_its_group_out_and_a_resumed_run_goes_on(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment
) -> None:
    """client-4 dies with its vector on its way: client-3 is left out, and both are missing from the second round."""
    more = "[aggregation]\ncorrupt = 0.05\ndropout = 0.34\n[policy]\nleast_corrupt = 0.05"
    file = write_experiment(tmp_path / "small.toml", clients=6, rounds=2, more=more)
    file.write_text(file.read_text().replace("clients = 6", "clients = 6\ngroup_size = 2"))
    run = tmp_path / "run"
    result = tacit("simulate", file, "--drop", "client-4@MASKED_INPUT", "--verify", "--out", run)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "threshold 5 of 6, active mode, groups of 2: who is lost takes its group out of that sum" in result.stdout
    assert "left out with their groups: client-3" in result.stdout
    first, second = json.loads((run / "summary.json").read_bytes())["rounds"]
    others = ["client-1", "client-2", "client-5", "client-6"]
    assert (len(first["cohort"]), first["survivors"]) == (6, others)
    assert [gone["party"] for gone in first["dropped"]] == ["client-4"]
    assert (second["cohort"], second["survivors"]) == (others, others)
    assert isinstance(JournalFile(run / "journal" / "client-3.jsonl").read()[0], GroupEntry)
    resumed = tacit("simulate", "--resume", run, "--rounds", 3)
    assert (resumed.exit_code, resumed.stderr) == (0, "")
    third = json.loads((run / "summary.json").read_bytes())["rounds"][-1]
    assert (third["round"], len(third["survivors"])) == (3, 6)


def test_an_owner_accepts_the_groups_of_one_roster(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fingerprint is what the client is given, however it was typed in."""
    keys = {name: generate(name) for name in ("server", "client-1")}
    roster = make_roster([keys[name].member("server" if name == "server" else "client") for name in keys])
    save(keys["client-1"], tmp_path, role="client")
    write_roster(roster, tmp_path / "roster.toml")
    party = tmp_path / "party.toml"
    party.write_text('role = "client"\nkey = "client-1.key"\nconnect = "tcp://127.0.0.1:1"\n')
    given: list[str] = []

    async def run_client(*_: object, hooks: ClientHooks, **__: object) -> PartyOutcome:
        given.append(hooks.accepted_groups)
        return PartyOutcome(Ended(None, "over"))

    monkeypatch.setattr("tacit.parties.hosting.client.run_client", run_client)
    for said in (roster.fingerprint, roster.fingerprint.replace(" ", "")):
        assert tacit("client", party, "--accept-groups", said).exit_code == 0
    assert tacit("client", party).exit_code == 0
    assert given == [roster.fingerprint, roster.fingerprint, ""]

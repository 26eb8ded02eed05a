"""A client's whole folder is restored from a backup: its privacy budget is not spent again. Real processes."""

import json
import math
import shutil
from pathlib import Path

import pytest
from dp_accounting import get_epsilon_gaussian

from tacit.parties.protections.gaussian_noise import cost_of
from tacit.parties.protections.protection import Noise
from tests.cli.hosts import Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end
VICTIM = "client-1"
CLIENTS = (VICTIM, "client-2", "client-3", "client-4")
NOISE = '[protection]\nscheme = "dp-gaussian"\ndp_clip = 0.015\ndp_noise = 4.0\n'
EACH = cost_of(Noise(4.0, norm=0.015, delta=1e-5))
TWO_UPDATES = float(get_epsilon_gaussian(1 / math.sqrt(2.5 * EACH), 1e-5))


def held(hosts: Hosts, name: str, *options: str) -> dict[str, Process]:
    path = hosts.experiment(rounds=2, clients=4)
    path.write_text(path.read_text().replace('"small"', f'"{name}"') + NOISE)
    parties = {"server": hosts.start("server", "server", "party.toml", "experiment.toml")}
    parties |= {one: hosts.start(one, "client", "party.toml", *options * (one == VICTIM)) for one in CLIENTS}
    for process in parties.values():
        process.end()
    return parties


def survivors(hosts: Hosts, run: str) -> list[bool]:
    summary = json.loads((hosts.path / "server/state/runs" / run / "summary.json").read_bytes())
    return [VICTIM in entry["survivors"] for entry in summary["rounds"]]


def test_a_restored_folder_does_not_spend_its_budget_again(tmp_path: Path) -> None:
    with running_hosts(tmp_path, clients=4) as hosts:
        hosts.client(VICTIM, sections=f"[policy]\nlargest_epsilon = {TWO_UPDATES}\n")
        folder, backup = hosts.path / VICTIM, hosts.path / "backup"
        shutil.copytree(folder, backup)
        first = held(hosts, "first", "--spent", "0")
        assert {name: process.end() for name, process in first.items()} == dict.fromkeys(first, 0)
        assert survivors(hosts, "0001-first") == [True, True]

        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        # Its operator has made sure that the newer folder is gone.
        tokens = hosts.path / "server/state/tokens.json"
        kept = json.loads(tokens.read_bytes())
        del kept["peers"][VICTIM]
        tokens.write_text(json.dumps(kept))
        second = held(hosts, "second")
        assert second["server"].end() == 0, second["server"].everything
        assert second[VICTIM].end() == 1
        assert "beyond its budget" in second[VICTIM].everything
        assert survivors(hosts, "0002-second") == [False, False]
        (line,) = (folder / f"state/journal/{VICTIM}.jsonl").read_text().splitlines()
        assert json.loads(line) == {"type": "spending", "spent": 2 * EACH, "by_owner": False}

        # Where the server has lost its folder too, the owner is asked.
        shutil.rmtree(hosts.path / "server/state")
        shutil.rmtree(folder / "state")
        third = hosts.start("server", "server", "party.toml", "experiment.toml")
        asked = hosts.run(VICTIM, "client", "party.toml")
        assert asked.end() == 1, third.everything
        assert "tacit client --spent" in asked.everything

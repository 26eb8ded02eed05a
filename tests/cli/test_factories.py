"""Functions of one's own in the files of the command: what runs, and what is refused before anything does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import Result

from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import write_roster
from tacit.protocol.core.roster import Roster
from tests.cli.command import Invoke

HERE = "tests.world.own_functions"
NAMES = ("server", "client-1", "client-2", "client-3")
OWN = """
[federation]
clients = 3
rounds = 1
[model]
factory = "{here}:net"
[data]
factory = "{here}:share"
[training]
factory = "{here}:{step}"
[policy]
factories = ["{accepted}"]
"""


def written(path: Path, *, here: str = HERE, step: str = "step", accepted: str = f"{HERE}:*") -> Path:
    path.write_text(OWN.format(here=here, step=step, accepted=accepted))
    return path


@pytest.mark.end_to_end
def test_an_experiment_of_functions_runs_as_others_do(tmp_path: Path, tacit: Invoke) -> None:
    out = tmp_path / "run"
    done = tacit("simulate", written(tmp_path / "own.toml"), "--out", out, "--verify")
    assert done.exit_code == 0, done.stderr
    assert "round 1 of 1 completed by 3 of 3 clients" in done.stdout
    assert "ring sum exact over 3 clients" in done.stdout
    again = tacit("simulate", "--resume", out, "--rounds", 2)
    assert again.exit_code == 0, again.stderr
    assert "round 2 of 2 completed" in again.stdout
    assert tacit("report", out).exit_code == 0


@pytest.mark.parametrize(
    ("step", "here", "message"),
    [
        ("stepp", HERE, f'training.factory = "{HERE}:stepp": {HERE} has no stepp; did you mean step'),
        ("step", "not_there", 'model.factory = "not_there:net": there is no module not_there; install it where'),
    ],
)
def test_what_is_not_installed_is_refused_before_anything_starts(
    tmp_path: Path, tacit: Invoke, step: str, here: str, message: str
) -> None:
    path = written(tmp_path / "own.toml", here=here, step=step, accepted="*")
    refused = tacit("simulate", path, "--out", tmp_path / "run")
    assert refused.exit_code == 2
    assert f"tacit: {path}: {message}" in " ".join(refused.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    keys = {name: generate(name) for name in NAMES}
    roster = Roster(tuple(own.member("server" if name == "server" else "client") for name, own in keys.items()))
    for name, own in keys.items():
        (tmp_path / name).mkdir()
        save(own, tmp_path / name, role="server" if name == "server" else "client")
        write_roster(roster, tmp_path / name / "roster.toml")
    server = 'role = "server"\nkey = "server.key"\nbind = "tcp://127.0.0.1:7007"\n'
    (tmp_path / "server" / "party.toml").write_text(server)
    return tmp_path


def client(hosts: Path, factory: str, accepted: str = f"{HERE}:*") -> Path:
    path = hosts / "client-1" / "party.toml"
    path.write_text(
        'role = "client"\nkey = "client-1.key"\nconnect = "tcp://127.0.0.1:7007"\n'
        f'[data]\nfactory = "{factory}"\n[policy]\nfactories = ["{accepted}"]\n'
    )
    return path


def line(result: Result, check: str) -> str:
    (found,) = re.findall(rf"^{check} +(.*)", result.stdout, flags=re.MULTILINE)
    return " ".join(found.split())


def test_preflight_looks_at_functions(hosts: Path, tacit: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.parties.hosting import preflight

    monkeypatch.setattr(preflight, "ANSWER_SECONDS", 0.5)
    experiment = written(hosts / "own.toml")
    looked = tacit("preflight", hosts / "server" / "party.toml", experiment)
    assert line(looked, "experiment") == "ok digits: 44 parameters, clients: 3, rounds: 1"
    assert line(looked, "classes").startswith("untested clients have data of their own")
    looked = tacit("preflight", client(hosts, f"{HERE}:share"), experiment)
    assert line(looked, "images") == f"ok {HERE}:share is installed, and is asked for data on the day"
    assert line(looked, "policy").startswith("ok accepts fedavg, active mode")
    looked = tacit("preflight", client(hosts, f"{HERE}:share", accepted="mine.*"), experiment)
    wanted = f'wrong model.factory = "{HERE}:net": this client accepts one of policy.factories, which has mine.*'
    assert line(looked, "experiment") == wanted

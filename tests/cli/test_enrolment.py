"""`tacit keys` and `tacit roster`: from keys that stay where they are made to a roster that all compare."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tacit.parties.links.roster import read_roster
from tests.cases import cases
from tests.cli.command import Invoke
from tests.cli.outputs import check_output

ROLES = {"server": "server", "client-1": "client", "client-2": "client", "client-3": "client"}


@pytest.fixture(scope="module")
def enrolled(tmp_path_factory: pytest.TempPathFactory, tacit: Invoke) -> Path:
    """A folder for each party with its keys, and one where the cards have been gathered. Tests only read it."""
    path = tmp_path_factory.mktemp("enrolled")
    (path / "operator").mkdir()
    for name, role in ROLES.items():
        (path / name).mkdir()
        made = tacit("keys", "new", name, "--role", role, "--out", path / name)
        assert made.exit_code == 0, made.stderr
        (path / "operator" / f"{name}.card").write_bytes((path / name / f"{name}.card").read_bytes())
    return path


@pytest.fixture
def hosts(tmp_path: Path, enrolled: Path) -> Path:
    return Path(shutil.copytree(enrolled, tmp_path / "hosts"))


def cards(hosts: Path, *names: str) -> list[Path]:
    return [hosts / "operator" / f"{name}.card" for name in names or ROLES]


def make(tacit: Invoke, hosts: Path, *more: object, names: tuple[str, ...] = ()) -> Result:
    return tacit("roster", "make", "--out", hosts / "roster.toml", *more, *cards(hosts, *names))


def refused(result: Result, pattern: str) -> None:
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert re.fullmatch(rf"tacit: .*{pattern}.*\n", result.stderr), result.stderr


def test_no_secret_is_in_what_travels(hosts: Path, tacit: Invoke) -> None:
    assert make(tacit, hosts).exit_code == 0
    travelling = "".join(path.read_text() for path in (hosts / "roster.toml", *cards(hosts)))
    for name in ROLES:
        path = hosts / name / f"{name}.key"
        assert path.stat().st_mode & 0o777 == 0o600
        secrets = re.findall(r'_secret = "(.*)"', path.read_text())
        assert len(secrets) == 2
        assert not any(secret in travelling for secret in secrets)


def test_keys_of_a_simulation(tmp_path: Path, tacit: Invoke) -> None:
    made = tacit("keys", "new", "--simulation", 4, "--out", tmp_path / "keys")
    assert made.stdout == f"{tmp_path / 'keys'}: a roster, and folders 0 to 3 with the keys of a client each\n"
    whole = (tmp_path / "keys" / "roster.toml").read_bytes()
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {"0", "1", "2", "3", "roster.toml"}
    for number in range(4):
        folder = tmp_path / "keys" / str(number)
        assert (folder / "roster.toml").read_bytes() == whole
        checked = tacit("roster", "check", folder / "roster.toml", folder / f"client-{number}.key")
        assert checked.exit_code == 0, checked.stderr
    refused(
        tacit("keys", "new", "--simulation", 4, "--out", tmp_path / "keys"), "exists already; use another directory"
    )
    refused(tacit("keys", "new", "ann", "--simulation", 4), "leave out NAME and --role")
    refused(tacit("keys", "new", "ann"), "give the NAME of the party and its --role, or --simulation N")


def test_everybody_finds_itself_in_the_roster_and_compares_its_fingerprint(hosts: Path, tacit: Invoke) -> None:
    made = make(tacit, hosts, "--group-size", 3)
    assert made.exit_code == 0
    first, last, _ = made.stdout.splitlines()
    assert first == f"{hosts / 'roster.toml'}: 4 members, 3 of them clients, in 1 groups"
    fingerprint = last.removeprefix("fingerprint ")
    assert re.fullmatch(r"(\d{5} ){7}\d{5}", fingerprint)
    for name in ROLES:
        own = hosts / name / f"{name}.key"
        for said in (fingerprint, fingerprint.replace(" ", "")):
            checked = tacit("roster", "check", hosts / "roster.toml", own, "--fingerprint", said)
            assert (checked.exit_code, checked.stdout) == (0, f"{first}\n{last}\n")
    assert tacit("roster", "check", hosts / "roster.toml", *cards(hosts)).exit_code == 0


def test_the_members_are_shown(hosts: Path, tacit: Invoke) -> None:
    fingerprint = make(tacit, hosts).stdout.splitlines()[-2]
    shown = tacit("roster", "show", hosts / "roster.toml", "--json", hosts / "roster.json")
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == fingerprint
    figures = check_output(hosts / "roster.json", "roster")
    assert f"fingerprint {figures['fingerprint']}" == fingerprint
    assert {member["name"]: member["role"] for member in figures["members"]} == ROLES
    assert all(name in shown.stdout for name in ROLES)


def test_members_come_and_go(hosts: Path, tacit: Invoke) -> None:
    roster = hosts / "roster.toml"
    make(tacit, hosts, names=("server", "client-1", "client-2"))
    added = tacit("roster", "add", roster, *cards(hosts, "client-3"))
    assert added.exit_code == 0
    assert read_roster(roster).clients == ("client-1", "client-2", "client-3")
    assert tacit("roster", "remove", roster, "client-3").exit_code == 0
    assert ([one.name for one in read_roster(roster).former], len(read_roster(roster).clients)) == (["client-3"], 2)
    # A client that has the roster of before finds out by the fingerprint, and who is in it no more by its key.
    stale = tacit("roster", "check", roster, "--fingerprint", added.stdout.split("fingerprint ")[1])
    refused(stale, "another one than was given: one of the two rosters is stale or was changed; get it again")
    refused(tacit("roster", "check", roster, hosts / "client-3" / "client-3.key"), "ask its operator to add client-3")


def test_an_operator_makes_versions(hosts: Path, tacit: Invoke) -> None:
    """Its key has no card, and only with it the roster changes."""
    roster, key = hosts / "roster.toml", hosts / "office" / "office.key"
    (hosts / "office").mkdir()
    made = tacit("keys", "new", "office", "--role", "operator", "--out", hosts / "office")
    assert re.fullmatch(f"{key}: keep it where rosters are made, and nowhere else\npublic key .{{40}}\n", made.stdout)
    assert ([path.name for path in (hosts / "office").iterdir()], key.stat().st_mode & 0o777) == (["office.key"], 0o600)
    first = make(tacit, hosts, "--operator", key, names=("server", "client-1", "client-2"))
    assert first.stdout.startswith(f"{roster}: version 1, 3 members, 2 of them clients")
    refused(
        tacit("roster", "add", roster, *cards(hosts, "client-3")), "it has an operator: give its operator's key file"
    )
    added = tacit("roster", "add", roster, *cards(hosts, "client-3"), "--operator", key)
    assert added.stdout.startswith(f"{roster}: version 2, 4 members, 3 of them clients")
    (hosts / "new").mkdir()
    tacit("keys", "new", "client-3", "--role", "client", "--out", hosts / "new")
    rotated = tacit("roster", "rotate", roster, hosts / "new" / "client-3.card", "--operator", key)
    assert rotated.stdout.startswith(f"{roster}: version 3, 4 members")
    assert tacit("roster", "check", roster, hosts / "new" / "client-3.key").exit_code == 0
    removed = tacit("roster", "remove", roster, "client-1", "--operator", key)
    assert removed.stdout.startswith(f"{roster}: version 4, 3 members, 2 of them clients")
    assert tacit("roster", "show", roster, "--json", hosts / "roster.json").exit_code == 0
    assert json.loads((hosts / "roster.json").read_bytes())["version"] == 4
    # The standby key lies elsewhere: the operator has its public key only.
    made = tacit("keys", "new", "deputy", "--role", "operator", "--out", hosts / "new")
    public, deputy = made.stdout.split()[-1], hosts / "new" / "deputy.key"
    named = tacit("roster", "sign", roster, "--operator", key, "--standby", public)
    assert named.stdout.startswith(f"{roster}: version 5, 3 members")
    taken = tacit("roster", "sign", roster, "--operator", deputy)
    assert taken.stdout.startswith(f"{roster}: version 6, 3 members")
    refused(tacit("roster", "sign", roster, "--operator", key), "'office' is not its operator")
    refused(tacit("roster", "sign", roster, "--operator", deputy, "--standby", "x"), "--standby 'x'")


def test_newcomers_wait_until_they_fill_a_group(hosts: Path, tacit: Invoke) -> None:
    roster = hosts / "roster.toml"
    make(tacit, hosts, "--group-size", 1, names=("server", "client-1"))
    added = tacit("roster", "add", roster, *cards(hosts, "client-2"))
    assert added.stdout.startswith(f"{roster}: 3 members, 2 of them clients, in 1 groups, 1 of them waiting for one")
    assert "waits" in tacit("roster", "show", roster).stdout
    admitted = tacit("roster", "add", roster, *cards(hosts, "client-3"), "--group-size", 2)
    assert admitted.stdout.startswith(f"{roster}: 4 members, 3 of them clients, in 2 groups\n")


def other_keys(hosts: Path, tacit: Invoke) -> Result:
    make(tacit, hosts)
    (hosts / "new").mkdir()
    tacit("keys", "new", "client-1", "--role", "client", "--out", hosts / "new")
    return tacit("roster", "check", hosts / "roster.toml", hosts / "new" / "client-1.key")


def changed_card(hosts: Path, tacit: Invoke) -> Result:
    path = hosts / "operator" / "client-1.card"
    path.write_text(path.read_text().replace('role = "client"', 'role = "server"'))
    return make(tacit, hosts)


def card_of_another(hosts: Path, tacit: Invoke) -> Result:
    path = hosts / "operator" / "client-2.card"
    path.write_bytes((hosts / "operator" / "client-1.card").read_bytes())
    return make(tacit, hosts)


def name_taken(hosts: Path, tacit: Invoke) -> Result:
    make(tacit, hosts)
    return tacit("roster", "add", hosts / "roster.toml", *cards(hosts, "client-1"))


WRONG: dict[str, tuple[Callable[[Path, Invoke], Result], str]] = {
    "a roster with other keys": (other_keys, "other public keys for 'client-1': it is stale"),
    "a card that was changed": (changed_card, r"client-1\.card: its signature is not that of its own keys"),
    "a card twice": (card_of_another, "'client-1' is in the roster twice; remove one entry"),
    "who is there already": (name_taken, "'client-1' is in the roster already"),
    "no server": (lambda h, t: make(t, h, names=("client-1", "client-2")), "exactly one member with the role 'server'"),
    "groups too large": (lambda h, t: make(t, h, "--group-size", 4), "3 clients make no group of 4"),
    "no card": (lambda h, t: t("roster", "make", "--out", h / "r", h / "x"), "x: cannot be read: No such file"),
    "a key for a card": (
        lambda h, t: t("roster", "make", "--out", h / "r", h / "server" / "server.key"),
        r"server\.key: not a card: .*ask its owner for NAME\.card",
    ),
    "keys that are there": (
        lambda h, t: t("keys", "new", "server", "--role", "server", "--out", h / "server"),
        "server.key: exists already and is never overwritten",
    ),
    "no name": (lambda h, t: t("keys", "new", "Client 1", "--role", "client"), "'Client 1': use 1 to 64 characters"),
    "nobody to remove": (
        lambda h, t: (make(t, h), t("roster", "remove", h / "roster.toml", "client-9"))[1],
        "'client-9' is not in the roster; its members are server, client-1",
    ),
    "no roster": (lambda h, t: t("roster", "show", h / "roster.toml"), "no such file; ask the operator of the server"),
}


@cases(("wrong", "attempt", "pattern"), [(wrong, *row) for wrong, row in WRONG.items()])
def test_wrong_input_is_one_line(
    enrolled: Path, tmp_path: Path, tacit: Invoke, wrong: str, attempt: Callable[[Path, Invoke], Result], pattern: str
) -> None:
    refused(attempt(Path(shutil.copytree(enrolled, tmp_path / wrong)), tacit), pattern)

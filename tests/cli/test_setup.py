"""`tacit init`, `roster make` and `tacit up`: from nothing to parties that may start, and wrong input on the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import Result

from tacit.parties.hosting.folder import open_party
from tacit.parties.hosting.party_file import ClientFile, ServerFile
from tacit.parties.links.roster import given_roster, read_roster, roster_line
from tests.cases import cases
from tests.cli.command import Invoke

SERVER = "192.0.2.10:7007"


@pytest.fixture
def lines(tmp_path: Path, tacit: Invoke, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders server, a, b and c in the working directory; the lines of their cards."""
    monkeypatch.chdir(tmp_path)
    done = [tacit("init", "server", "--address", SERVER)]
    done += [tacit("init", "client", name, "--address", SERVER, "--images", "digits") for name in "abc"]
    assert [one.exit_code for one in done] == [0] * 4, [one.stderr for one in done]
    return [one.stdout.splitlines()[-1] for one in done]


def made(tacit: Invoke, *cards: str) -> str:
    done = tacit("roster", "make", *cards, "--operator", "office/office.key")
    assert done.exit_code == 0, done.stderr
    return str(done.stdout.splitlines()[-1])


def refused(result: Result, pattern: str) -> None:
    assert result.exit_code == 2
    assert re.fullmatch(rf"tacit: [^\n]*{pattern}[^\n]*\n", result.stderr), result.stderr


def test_the_folders_of_all_parties_are_complete(tmp_path: Path, tacit: Invoke, lines: list[str]) -> None:
    line = made(tacit, "\n".join(lines))
    for name in ("server", "a"):
        # The next start, without the roster, is of the same party; the first ends before it begins, as there is no run.
        path = tmp_path / name / "party.toml"
        (tmp_path / name / "roster.toml").write_bytes((tmp_path / "roster.toml").read_bytes())
        opened = open_party(ServerFile, path) if name == "server" else open_party(ClientFile, path)
        assert opened.name == name
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o700
        assert (tmp_path / name / f"{name}.key").stat().st_mode & 0o777 == 0o600
    assert given_roster(line) == read_roster(tmp_path / "roster.toml")
    assert read_roster(tmp_path / "roster.toml").version == 1
    assert not any("secret" in one for one in (line, *lines))


def test_lines_come_wrapped_and_quoted_and_in_a_file(tmp_path: Path, tacit: Invoke, lines: list[str]) -> None:
    mail = "".join(f"> {line[:76]}\n> {line[76:152]}\n>{line[152:]}\n\n" for line in lines[1:])
    (tmp_path / "mail.txt").write_text(mail)
    line = made(tacit, lines[0], "mail.txt")
    quoted = "\n".join(f"> {line[at : at + 70]}" for at in range(0, len(line), 70))
    assert given_roster(quoted).clients == ("a", "b", "c")


def test_a_lost_character_of_any_line_is_noticed(tacit: Invoke, lines: list[str]) -> None:
    line = made(tacit, *lines)
    for at in (0, 7, 40, len(lines[1]) - 1):
        damaged = lines[1][:at] + lines[1][at + 1 :]
        refused(tacit("roster", "make", lines[0], damaged, "--out", "other.toml"), "(no card|cannot be read: No such)")
    swapped = lines[1].replace(":a:", ":b:")
    refused(tacit("roster", "make", lines[0], swapped, "--out", "other.toml"), "no card, or one that was damaged")
    for at in (20, len(line) // 2, len(line) - 1):
        refused(tacit("up", "a", "--roster", line[:at] + line[at + 1 :]), "damaged on its way .* paste the whole line")


def test_the_operator_is_made_once(tmp_path: Path, tacit: Invoke, lines: list[str]) -> None:
    made(tacit, *lines)
    key = (tmp_path / "office" / "office.key").read_bytes()
    again = tacit("roster", "make", *lines, "--operator", "office/office.key", "--out", "again.toml")
    assert again.exit_code == 0
    assert (tmp_path / "office" / "office.key").read_bytes() == key


@cases(
    ("words", "pattern"),
    [
        (("init", "client", "a", "--address", SERVER, "--images", "digits"), "a/party.toml is there already.*another"),
        (("init", "dealer", "d"), "dealer.*`tacit init --help`"),
        (("init", "client", "--address", SERVER, "--images", "digits"), "NAME is missing"),
        (("init", "client", "d", "--images", "digits"), "--address is missing: the address of the server, HOST:PORT"),
        (("init", "client", "d", "--address", SERVER), "--images is missing: the images of this client"),
        (("init", "client", "d", "--address", "server", "--images", "digits"), "connect = .*use tcp://HOST:PORT"),
        (("init", "client", "d", "--address", SERVER, "--images", "no.npz"), "'no.npz': no such file or folder"),
        (("init", "client", "D d", "--address", SERVER, "--images", "digits"), "'D d': use 1 to 64 characters"),
        (("up", "nobody"), "nobody/party.toml: .*`tacit init`"),
        (("up", "a"), "no roster yet: send the card to whoever makes it.*`tacit up a --roster`"),
        (("up", "a", "--roster", "none.toml"), "none.toml: no such file; ask the operator"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...], pattern: str, tmp_path: Path, tacit: Invoke, lines: list[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    refused(tacit(*words), pattern)
    assert sorted(tmp_path.rglob("*")) == before


def test_another_roster_does_not_take_the_place_of_one(tacit: Invoke, lines: list[str], tmp_path: Path) -> None:
    made(tacit, *lines[:3])
    held = (tmp_path / "roster.toml").rename(tmp_path / "a" / "roster.toml").read_bytes()
    other = made(tacit, *lines)
    refused(tacit("up", "a", "--roster", other), "another roster is there already, with the fingerprint")
    refused(tacit("up", "c", "--roster", roster_line(read_roster(tmp_path / "a" / "roster.toml"))), "'c' is not in")
    assert (tmp_path / "a" / "roster.toml").read_bytes() == held


def test_what_is_amiss_is_shown_and_nothing_is_started(tacit: Invoke, lines: list[str], tmp_path: Path) -> None:
    made(tacit, *lines)
    (tmp_path / "a" / "party.toml").write_text(
        (tmp_path / "a" / "party.toml").read_text().replace('"digits"', '"gone.npz"')
    )
    first = roster_line(read_roster(tmp_path / "roster.toml"))
    assert tacit("keys", "new", "server", "--role", "server", "--out", tmp_path / "office").exit_code == 0
    card = tmp_path / "office" / "server.card"
    assert tacit("roster", "rotate", "roster.toml", card, "--operator", "office/office.key").exit_code == 0
    tacit("up", "a", "--roster", first)
    # A later version takes its place.
    done = tacit("up", "a", "--roster", "roster.toml")
    assert read_roster(tmp_path / "a" / "roster.toml").version == 2
    refused(tacit("up", "a", "--roster", first), "it is the older version 1")
    assert (done.exit_code, done.stderr) == (1, "tacit: not started: see the lines above\n")
    assert re.search(r"^images wrong: .*gone.npz", done.stdout, re.M)
    assert not (tmp_path / "a" / "state" / "events").exists()

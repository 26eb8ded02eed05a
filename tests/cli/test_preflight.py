"""`tacit preflight`: every line, as it is when all is well and as it is when something is not."""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from click.testing import Result

from tacit.parties.hosting.preflight import own, reach, work
from tacit.protocol.session.messages import MESSAGES
from tests.cli.outputs import check_output

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end

Invoke = Callable[..., Result]
CLIENT = (
    "key", "roster", "folder", "clock", "journal", "images", "experiment", "classes", "policy", "memory", "disk",
    "training", "name", "tcp", "curve", "version",
)  # fmt: skip
SERVER = ("key", "roster", "folder", "clock", "images", "experiment", "classes", "memory", "disk", "address")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Hosts whose server is at work, and waits for three clients of four."""
    with running_hosts(tmp_path_factory.mktemp("hosts"), clients=4) as made:
        path = made.experiment()
        for name in made.names[1:]:
            (made.path / name / "experiment.toml").write_bytes(path.read_bytes())
        yield made


@pytest.fixture(scope="module")
def server(hosts: Hosts) -> Process:
    started = hosts.start("server", "server", "party.toml", "experiment.toml")
    started.until("listens at")
    return started


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that somebody sets right, on whatever machine; and patience with a server that is there."""
    monkeypatch.setattr(own, "clock_is_synchronised", lambda: True)
    monkeypatch.setattr(reach, "SECONDS", 60.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """For who waits in vain."""
    monkeypatch.setattr(reach, "SECONDS", 15.0)


def looked(result: Result) -> dict[str, tuple[str, str]]:
    """State and detail of every line."""
    lines = (
        re.fullmatch(r"([a-z-]+) +(ok|warning|untested|absent|wrong) +(.*)", one) for one in result.stdout.splitlines()
    )
    return {line[1]: (line[2], line[3]) for line in lines if line is not None}


def expect(result: Result, check: str, state: str, pattern: str, *, missing: str = "the server") -> None:
    """This is what is said in that line, and nothing is wrong but it."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    found = looked(result)
    assert found[check][0] == state, result.output
    assert re.search(pattern, found[check][1]), found[check][1]
    assert [name for name, (other, _) in found.items() if other in ("wrong", "absent") and name != check] == []
    wanted, last = {
        "wrong": (1, "tacit: not ready: see the lines above that are wrong\n"),
        "absent": (4, f"tacit: ready, but {missing} was not reached\n"),
    }.get(state, (0, ""))
    assert (result.exit_code, result.stderr) == (wanted, last)


def test_a_server_tests_itself(hosts: Hosts, tacit: Invoke, tmp_path: Path) -> None:
    """Before any client is there; the file for programs says the same."""
    idle = party(
        hosts, "server", "server.key", 'directory = "idle"\nbind = "tcp://127.0.0.1:*"\n[data]\nsource = "tests.npz"'
    )
    result = tacit("preflight", idle, hosts.path / "server" / "experiment.toml", "--json", tmp_path / "found.json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = looked(result)
    assert tuple(found) == SERVER
    assert {state for state, _ in found.values()} == {"ok"}
    assert "12 grey test images" in found["images"][1]
    assert "827 parameters" in found["experiment"][1]
    told = check_output(tmp_path / "found.json", "preflight")
    assert told["role"] == "server"
    assert {one["check"]: (one["state"], one["detail"]) for one in told["findings"]} == found
    # It looks, and leaves nothing.
    assert not (hosts.path / "server" / "idle").exists()


def test_a_client_and_its_server(hosts: Hosts, server: Process, tacit: Invoke) -> None:
    """Who tests itself does not join, and does not make the server wait for it, or begin."""
    result = preflight(hosts, tacit, hosts.client("client-1"))
    assert (result.exit_code, result.stderr) == (0, "")
    found = looked(result)
    assert tuple(found) == CLIENT
    assert {state for state, _ in found.values()} == {"ok"}
    fingerprints = {found["roster"][1], looked(tacit("preflight", hosts.path / "server" / "party.toml"))["roster"][1]}
    assert len(fingerprints) == 1
    log = hosts.path / "server" / "state" / "runs" / "0001-small" / "events" / "server.jsonl"
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert "link-up" in events
    assert {"joined", "left", "refused", "stranger", "round"}.isdisjoint(events)


def test_without_an_experiment_the_digest_of_classes_is_told(hosts: Hosts, server: Process, tacit: Invoke) -> None:
    found = looked(tacit("preflight", hosts.client("client-1")))
    assert found["experiment"][0] == found["policy"][0] == found["training"][0] == "untested"
    own_digest = re.search(r"digest ([0-9a-f ]{19}); compare", found["classes"][1])
    of_server = looked(tacit("preflight", hosts.path / "server" / "party.toml"))
    # The server goes by the experiment that it has begun.
    assert own_digest is not None
    assert own_digest[1] in of_server["classes"][1]
    assert of_server["address"] == (
        "untested",
        f"a process of this party listens at tcp://127.0.0.1:{hosts.port} now: `tacit status` says how it stands",
    )


def preflight(hosts: Hosts, tacit: Invoke, path: Path) -> Result:
    return tacit("preflight", path, path.parent / "experiment.toml")


def party(hosts: Hosts, name: str, key: str, text: str) -> Path:
    """A party's file beside its own."""
    path = hosts.path / name / "other.toml"
    path.write_text(f'role = "{name.partition("-")[0]}"\nkey = "{key}"\n{text}\n')
    return path


def changed(name: str, **changes: str) -> Callable[[Hosts], Path]:
    """The same experiment but for these: what stands there, by the same with something else."""

    def change(hosts: Hosts) -> Path:
        text = (hosts.path / "server" / "experiment.toml").read_text()
        for old, new in changes.items():
            text, count = re.subn(rf"^{old} = .*$", f"{old} = {new}", text, flags=re.M)
            assert count == 1
        (hosts.path / name / "experiment.toml").write_text(text)
        return hosts.client(name)

    return change


def open_key(hosts: Hosts) -> Path:
    key = hosts.path / "client-1" / "open.key"
    key.write_bytes((hosts.path / "client-1" / "client-1.key").read_bytes())
    key.chmod(0o640)
    text = hosts.client("client-1").read_text()
    return party(hosts, "client-1", "open.key", text.split("\n", 2)[2])


def stale_roster(hosts: Hosts) -> Path:
    hosts.make_roster("server", "client-2", "client-3", out="old.toml")
    (hosts.path / "client-1" / "old.toml").write_bytes((hosts.path / "old.toml").read_bytes())
    for name in ("server", "client-2", "client-3"):
        (hosts.path / name / "roster.toml").write_bytes((hosts.path / "roster.toml").read_bytes())
    return hosts.client("client-1", more='roster = "old.toml"')


def folder_that_is_a_file(hosts: Hosts) -> Path:
    (hosts.path / "client-1" / "taken").write_text("")
    return hosts.client("client-1", more='directory = "taken"')


def key_of_tomorrow(hosts: Hosts) -> Path:
    key = hosts.path / "client-1" / "late.key"
    key.write_bytes((hosts.path / "client-1" / "client-1.key").read_bytes())
    key.chmod(0o600)
    os.utime(key, (time.time() + 86_400,) * 2)
    text = hosts.client("client-1").read_text()
    return party(hosts, "client-1", "late.key", text.split("\n", 2)[2])


def bad_journal(hosts: Hosts) -> Path:
    journal = hosts.path / "client-1" / "spoilt" / "journal" / "client-1.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("nonsense\n")
    return hosts.client("client-1", more='directory = "spoilt"')


def other_classes(*names: str) -> Callable[[Hosts], Path]:
    listed = ", ".join(f'"{name}"' for name in names)

    def write(hosts: Hosts) -> Path:
        path = hosts.client("client-1")
        path.write_text(path.read_text().replace('["0", "1", "2"]', f"[{listed}]"))
        return path

    return write


def without_statistics(hosts: Hosts) -> Path:
    experiment = hosts.path / "client-1" / "experiment.toml"
    experiment.write_text(re.sub(r"(?m)^(mean|std) = .*\n", "", experiment.read_text()))
    return hosts.client("client-1")


def with_stimuli(hosts: Hosts) -> Path:
    experiment = hosts.path / "client-1" / "experiment.toml"
    experiment.write_text(experiment.read_text().replace("[model]", '[protection]\nscheme = "fedrsm"\n[model]'))
    return hosts.client("client-1")


WRONG: dict[str, tuple[Callable[[Hosts], Path], str, str]] = {
    "key open to others": (open_key, "key", r"open\.key: others than its owner may use it .*run: chmod 600"),
    "stale roster": (
        stale_roster,
        "roster",
        r"'client-1' is not in the roster; .*ask its operator to add client-1\.card",
    ),
    "no folder": (folder_that_is_a_file, "folder", "taken is no folder: move it away"),
    "clock behind": (key_of_tomorrow, "clock", r"it is 14[34]\d min behind the file .*late\.key: set it right"),
    "journal": (bad_journal, "journal", r"client-1\.jsonl cannot be read .*restore it, or start with new keys"),
    "no images": (lambda hosts: hosts.client("client-1", source="none.npz"), "images", r"none\.npz"),
    "more classes": (
        other_classes("0", "1", "2", "3"),
        "classes",
        r"this party's list has more: 3: set data\.classes to the list of the experiment",
    ),
    "other classes": (
        changed("client-1", classes='["0", "1", "3", "4"]'),
        "classes",
        "this party's list lacks 3, 4 and has more: 2: set",
    ),
    "order of classes": (other_classes("2", "1", "0"), "classes", "this party's list has another order: set"),
    "policy": (
        lambda hosts: hosts.client("client-1", sections="[policy]\nlargest_clip = 0.1\n"),
        "policy",
        r"the server proposes clip = 0\.25; this client's policy accepts at most 0\.1",
    ),
    "disk": (
        lambda hosts: hosts.client("client-1", sections="[log]\nmegabytes = 10000\nfiles = 1000\n"),
        "disk",
        r"MB free, 10,010,0\d\d MB needed for logs \(log\.megabytes, log\.files\) and models: make room",
    ),
    "weight": (
        changed("client-1", max_weight="5"),
        "training",
        r"this client has 24 samples and aggregation\.max_weight is 5: raise it",
    ),
    "no name": (
        lambda hosts: hosts.client("client-1", connect="tcp://server.invalid:7007"),
        "name",
        r"the name 'server\.invalid' of tcp://server\.invalid:7007 is not known here",
    ),
}


UNTESTED: dict[str, tuple[Callable[[Hosts], Path], str]] = {
    "statistics": (without_statistics, r"leaves data\.classes, data\.channels, data\.mean or data\.std to"),
    "stimuli": (with_stimuli, r'protection\.scheme = "fedrsm" shows images that the server has'),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_client_lacks_by_itself(hosts: Hosts, server: Process, tacit: Invoke, wrong: str) -> None:
    make, check, pattern = WRONG[wrong]
    changed("client-1")(hosts)
    expect(preflight(hosts, tacit, make(hosts)), check, "wrong", pattern)


@pytest.mark.parametrize("unknown", UNTESTED)
def test_an_experiment_that_does_not_tell_a_client_all(
    hosts: Hosts, server: Process, tacit: Invoke, unknown: str
) -> None:
    make, pattern = UNTESTED[unknown]
    changed("client-1")(hosts)
    expect(preflight(hosts, tacit, make(hosts)), "experiment", "untested", pattern)


@pytest.mark.parametrize(
    ("synchronised", "state", "pattern"),
    [(False, "warning", "nothing synchronises it: switch NTP on"), (None, "untested", "does not say whether")],
)
def test_a_clock_that_nobody_sets(
    hosts: Hosts,
    server: Process,
    tacit: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    synchronised: bool | None,
    state: str,
    pattern: str,
) -> None:
    monkeypatch.setattr(own, "clock_is_synchronised", lambda: synchronised)
    expect(tacit("preflight", hosts.client("client-1")), "clock", state, pattern)


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize(
    ("available", "state", "pattern"),
    [
        (None, "untested", "at least 1 MB needed for model, vectors and images; this system does not say"),
        (1000, "wrong", "at least 1 MB needed .*, 0 MB available: take a host with more memory, raise its limit"),
    ],
)
def test_memory(
    hosts: Hosts,
    server: Process,
    tacit: Invoke,
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    available: int | None,
    state: str,
    pattern: str,
) -> None:
    monkeypatch.setattr(work, "available_memory", lambda: available)
    path = changed("client-1")(hosts)
    if role == "server":
        path = hosts.path / "server" / "party.toml"
    expect(preflight(hosts, tacit, path), "memory", state, pattern)


@contextmanager
def nobody() -> Iterator[str]:
    yield "tcp://127.0.0.1:9"


@contextmanager
def full() -> Iterator[str]:
    """Takes no connection any more, as behind a firewall that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        waiting = []
        try:
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(listening.getsockname())
                waiting.append(one)
            yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            for one in waiting:
                one.close()


@contextmanager
def silent() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def web_server() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as foreign:

        def answer() -> None:
            while True:
                try:
                    connection, _ = foreign.accept()
                except OSError:
                    return
                with suppress(OSError):
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{foreign.getsockname()[1]}"
        foreign.shutdown(socket.SHUT_RDWR)


@contextmanager
def other_service() -> Iterator[str]:
    with zmq.Context() as context, context.socket(zmq.REP) as foreign:
        foreign.linger = 0
        yield f"tcp://127.0.0.1:{foreign.bind_to_random_port('tcp://127.0.0.1')}"


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("where", "check", "state", "pattern"),
    [
        (nobody, "tcp", "absent", r"nothing listens at tcp://127\.0\.0\.1:9 \(Connection refused\): start the server"),
        (full, "tcp", "absent", "no answer from .* in 15 s: a firewall drops packets, or the host is off"),
        (silent, "curve", "wrong", "says nothing: it is no tacit server, or one that is stopped or overloaded"),
        (web_server, "curve", "wrong", r"is no tacit server \(it says 'HTTP/1\.1 400 Bad Request'\): correct the addr"),
        (other_service, "curve", "wrong", "is another service of ZeroMQ, without CURVE: correct the address"),
    ],
)
def test_who_is_not_the_server(hosts: Hosts, tacit: Invoke, where: Any, check: str, state: str, pattern: str) -> None:
    with where() as address:
        expect(tacit("preflight", hosts.client("client-1", connect=address)), check, state, pattern)


@pytest.mark.usefixtures("hasty")
def test_a_server_with_another_key(hosts: Hosts, server: Process, tacit: Invoke) -> None:
    """Its roster is of another federation, in which this client is too. The server tells of it as well."""
    (hosts.path / "foreign").mkdir()
    hosts.command("foreign", "keys", "new", "server", "--role", "server")
    cards = [str(hosts.path / "foreign" / "server.card"), str(hosts.path / "client-1.card")]
    hosts.command("foreign", "roster", "make", "--out", "roster.toml", *cards)
    path = hosts.client("client-1", more=f'roster = "{hosts.path / "foreign" / "roster.toml"}"')
    pattern = "has another key than server in the roster: compare fingerprints of the roster by telephone"
    expect(tacit("preflight", path), "curve", "wrong", pattern)
    server.until("stranger: reason a handshake failed")


def test_a_client_that_the_server_does_not_know(hosts: Hosts, server: Process, tacit: Invoke) -> None:
    (hosts.path / "client-7").mkdir()
    hosts.command("client-7", "keys", "new", "client-7", "--role", "client")
    cards = [str(hosts.path / "server.card"), str(hosts.path / "client-7" / "client-7.card")]
    hosts.command("client-7", "roster", "make", "--out", "roster.toml", *cards)
    path = hosts.client("client-7", source="../client-1/own.npz")
    expect(
        tacit("preflight", path), "curve", "wrong", "does not know this key .*; ask its operator .* to add 'client-7'"
    )
    server.until("stranger: reason this key is not in the roster")


def test_another_version(hosts: Hosts, server: Process, tacit: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses it by name, and hears no more of that client: the next look says so."""
    path = hosts.client("client-4")
    with monkeypatch.context() as other:
        other.setitem(vars(MESSAGES), "version", 4)
        pattern = "protocol version 2, here 4 of a federation: install the same release on both sides"
        expect(tacit("preflight", path), "version", "wrong", pattern)
    server.until("refused: member client-4, code VERSION")
    monkeypatch.setattr(reach, "SECONDS", 15.0)
    expect(tacit("preflight", path), "version", "untested", "it is busy, or bars this party; its log says why")


def test_a_party_that_runs_is_left_alone(hosts: Hosts, server: Process, tacit: Invoke) -> None:
    """A second link of the same party would take the place of its own."""
    running = hosts.start("client-2", "client", "party.toml", "--stay")
    running.until("accepted")
    result = preflight(hosts, tacit, hosts.path / "client-2" / "party.toml")
    expect(result, "tcp", "untested", "a process of this party has its link to the server now: `tacit status`")
    assert looked(result)["folder"] == (
        "ok",
        f"{hosts.path / 'client-2' / 'state'}; a process of this party has it now",
    )
    assert running.process.poll() is None


@contextmanager
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f'bind = "tcp://127.0.0.1:{listening.getsockname()[1]}"'


@pytest.mark.parametrize(
    ("text", "experiment", "check", "state", "pattern"),
    [
        (taken, {}, "address", "wrong", "cannot listen at .*: Address already in use; use an address of this host"),
        (
            'bind = "tcp://127.0.0.1:*"\ntell = ["tcp://127.0.0.1:9"]',
            {},
            "address",
            "warning",
            r"tell = 'tcp://127\.0\.0\.1:9' does not lead back here: nothing listens at",
        ),
        (
            'bind = "tcp://127.0.0.1:*"\n[data]\nsource = "../client-1/own.npz"',
            {},
            "images",
            "wrong",
            "holds no test images",
        ),
        (
            'bind = "tcp://127.0.0.1:*"',
            {"clients": "9"},
            "experiment",
            "wrong",
            r"federation\.clients = 9: the roster has 4",
        ),
    ],
    ids=["in use", "told", "images", "clients"],
)
def test_what_a_server_lacks(
    hosts: Hosts, tacit: Invoke, text: Any, experiment: dict[str, str], check: str, state: str, pattern: str
) -> None:
    changed("client-1", **experiment)(hosts)
    chosen = hosts.path / "client-1" / "experiment.toml"
    head = 'directory = "idle"\n'
    if isinstance(text, str):
        expect(tacit("preflight", party(hosts, "server", "server.key", head + text), chosen), check, state, pattern)
    else:
        with text() as said:
            expect(tacit("preflight", party(hosts, "server", "server.key", head + said), chosen), check, state, pattern)


def test_an_address_that_leads_back_is_told(hosts: Hosts, tacit: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
    path = party(hosts, "server", "server.key", f'directory = "idle"\nbind = "{address}"\ntell = ["{address}"]')
    result = tacit("preflight", path, hosts.path / "server" / "experiment.toml")
    assert looked(result)["address"] == ("ok", f"can listen at {address}, reached at {address}")


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ('role = "miner"\n', 'role = "miner": expected'),
        ('role = "client"\nkey = "k"\nconnect = "tcp://fd00::5:7007"\n', r"brackets: tcp://\[fd00::5\]:7007"),
    ],
)
def test_wrong_input(tmp_path: Path, tacit: Invoke, text: str, pattern: str) -> None:
    path = tmp_path / "party.toml"
    path.write_text(text)
    result = tacit("preflight", path)
    assert result.exit_code == 2
    assert re.fullmatch(f"tacit: .*{pattern}.*\n", result.stderr)
    assert looked(result) == {}

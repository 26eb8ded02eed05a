"""Wrong input between hosts: one line at the party concerned, one at its peer where there is one, and the status."""

import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.command import Invoke

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end

OTHER_VERSION = "import tacit.protocol.sum.states as s; s.VERSION += 1; from tacit.cli.main import main; main()"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with running_hosts(tmp_path_factory.mktemp("hosts"), clients=6) as made:
        made.experiment(rounds=1, max_weight=1000)
        yield made


def one_line(said: list[str], pattern: str) -> None:
    assert len(said) == 1, said
    assert re.fullmatch(rf"tacit: .*{pattern}.*", said[0]), said[0]


EXPERIMENTS: dict[str, tuple[dict[str, str], str]] = {
    "no statistics": (
        {"mean = [0.35]\nstd = [0.2]": ""},
        r"data\.mean and data\.std are missing in the experiment: .*`tacit data inspect`",
    ),
    "no classes": ({'classes = ["0", "1", "2"]': ""}, r"data\.classes is missing in the experiment: a server without"),
    "too many clients": ({"clients = 3": "clients = 9"}, r"federation\.clients = 9: the roster has 6; set it to 6"),
    "groups": (
        {
            "clients = 3": "clients = 6\ngroup_size = 3",
            "[aggregation]": "[policy]\nleast_corrupt = 0.1\n[aggregation]\ncorrupt = 0.1\ndropout = 0.5",
        },
        r"federation\.group_size = 3: between hosts the roster has the groups, and this one has none",
    ),
    "single vectors": (
        {
            "[model]": '[protection]\nscheme = "fedcg"\n[policy]\nmodes = ["none"]\n[model]',
            "[aggregation]": '[aggregation]\nmode = "none"',
        },
        r'protection\.scheme = "fedcg": its server works with the update of every client, which is for',
    ),
    "stimuli": (
        {"[model]": '[protection]\nscheme = "fedrsm"\n[policy]\nuncoordinated_weights = true\n[model]'},
        r"shows images of the server to all clients: give the server some, in \[data\] of its own file",
    ),
}


def test_an_experiment_that_hosts_cannot_run(hosts: Hosts, tacit: Invoke) -> None:
    party, path = hosts.path / "server" / "blind.toml", hosts.path / "server" / "wrong.toml"
    party.write_text('role = "server"\nkey = "server.key"\nbind = "tcp://127.0.0.1:*"\ndirectory = "blind"\n')
    for wrong, (changes, pattern) in EXPERIMENTS.items():
        text = (hosts.path / "server" / "experiment.toml").read_text()
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        result = tacit("server", party, path)
        assert result.exit_code == 2, f"{wrong}: {result.output}"
        one_line(result.stderr.splitlines(), pattern)
        assert not (hosts.path / "server" / "blind" / "runs").exists()


def test_a_server_that_is_not_tacit(hosts: Hosts, tacit: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    listening.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        result = tacit("client", hosts.client("client-1", connect=address, more="patience = 8"))
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    hosts.client("client-1")
    assert result.exit_code == 1, result.output
    one_line(result.stderr.splitlines(), "wrong server key or not a tacit server at")


def test_both_sides_say_why_a_client_cannot_take_part(hosts: Hosts) -> None:
    """One server, and a client for each reason; the last two are there to be waited for."""
    server = hosts.start("server", "server", "party.toml", "experiment.toml")
    server.until("listens at")
    (hosts.path / "client-1" / "policy.toml").write_text(
        hosts.client("client-1", sections="[policy]\nlargest_clip = 0.1\n").read_text()
    )
    reasons: dict[str, tuple[Callable[[], Process], str, str]] = {
        "policy": (
            lambda: hosts.run("client-1", "client", "policy.toml"),
            "the server proposes clip = 0.25; this client's policy accepts at most 0.1",
            "client-1 left: it refuses: the server proposes clip",
        ),
        "roster": (
            lambda: other_roster(hosts, "client-2"),
            "it holds another roster: give all parties the same file",
            r"refused a message of client-2: .* \(ROSTER\)",
        ),
        "version": (
            lambda: other_version(hosts, "client-3"),
            "version",
            r"refused a message of client-3: .* \(VERSION\)",
        ),
        "foreign": (
            lambda: foreign_roster(hosts, "client-4"),
            "wrong server key or not a tacit server at",
            "refused a handshake from .*: a handshake failed",
        ),
        "unknown": (
            lambda: unknown_to_the_server(hosts),
            r"does not know this key .*; ask its operator for the newest roster, .* to add 'client-7'",
            "refused a handshake from .* with key .*: this key is not in the roster",
        ),
    }
    for run, own, peer in reasons.values():
        client = run()
        assert client.process.returncode == 1, client.everything
        one_line(client.complained, own)
        server.until(peer)
    server.signal(signal.SIGTERM)
    assert server.end() == 130


def other_roster(hosts: Hosts, name: str) -> Process:
    hosts.make_roster("server", name, out="other.toml")
    (hosts.path / name / "roster.toml").write_bytes((hosts.path / "other.toml").read_bytes())
    return hosts.run(name, "client", "party.toml")


def other_version(hosts: Hosts, name: str) -> Process:
    process = Process.of([sys.executable, "-c", OTHER_VERSION, "client", "party.toml"], hosts.path / name)
    process.end()
    return process


def foreign_roster(hosts: Hosts, name: str) -> Process:
    (hosts.path / "foreign").mkdir()
    hosts.command("foreign", "keys", "new", "server", "--role", "server")
    cards = [str(hosts.path / "foreign" / "server.card"), str(hosts.path / f"{name}.card")]
    hosts.command("foreign", "roster", "make", "--out", "roster.toml", *cards)
    (hosts.path / name / "roster.toml").write_bytes((hosts.path / "foreign" / "roster.toml").read_bytes())
    hosts.client(name, more="patience = 60")
    return hosts.run(name, "client", "party.toml")


def unknown_to_the_server(hosts: Hosts) -> Process:
    (hosts.path / "client-7").mkdir()
    hosts.command("client-7", "keys", "new", "client-7", "--role", "client")
    (hosts.path / "client-7.card").write_bytes((hosts.path / "client-7" / "client-7.card").read_bytes())
    hosts.make_roster("server", "client-7", out="newer.toml")
    (hosts.path / "client-7" / "roster.toml").write_bytes((hosts.path / "newer.toml").read_bytes())
    hosts.client("client-7", source="../client-1/own.npz")
    return hosts.run("client-7", "client", "party.toml")


def test_images_that_do_not_fit_the_task(tmp_path: Path) -> None:
    """Found before that client trains, and told on both sides."""
    own = r"4 classes \(0, 1, 2, 3\), the server's task has 3, and the lists differ: set data\.classes to that of"
    with running_hosts(tmp_path) as hosts:
        hosts.experiment(rounds=1, max_weight=100)
        path = hosts.client("client-2")
        path.write_text(path.read_text().replace('["0", "1", "2"]', '["0", "1", "2", "3"]'))
        server = hosts.start("server", "server", "party.toml", "experiment.toml")
        clients = [hosts.start(name, "client", "party.toml") for name in hosts.names[1:]]
        assert clients[1].end() == 1
        one_line(clients[1].complained, own)
        server.until("client-2 left: it gave up: its images have other classes than the task")
        # Two clients are too few for another round.
        assert server.end() == 3

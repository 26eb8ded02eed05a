"""`tacit server --dashboard`: the page of a federation between hosts, made from what its server alone knows."""

import http.client
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import PATIENCE, Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end

CLIENTS = ("client-1", "client-2", "client-3")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path) as made:
        yield made


def link(server: Process) -> str:
    server.until("live at ")
    return next(line.removeprefix("live at ") for line in server.said if line.startswith("live at "))


def ask(address: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_server_that_goes_on_shows_what_was_before(hosts: Hosts) -> None:
    """Beyond this machine a token is needed, of pages and of metrics."""
    hosts.experiment(rounds=200, epochs=30)
    started = [hosts.start(name, "client", "party.toml", "--stay", "--metrics", "0.0.0.0:0") for name in CLIENTS]
    first = hosts.start("server", "server", "party.toml", "experiment.toml")
    first.until("round 2 of 200 completed")
    first.signal(signal.SIGKILL)
    first.end()
    second = hosts.start("server", "server", "party.toml", "--dashboard", "0.0.0.0:0")
    found = re.fullmatch(r"http://0\.0\.0\.0:(\d+)/enter#(.+)", link(second))
    assert found is not None
    address = f"127.0.0.1:{found[1]}"
    assert ask(address, "/")[0] == 401
    shown = {"Authorization": f"Bearer {found[2]}"}
    completed = re.search(r"<dd>(\d+)<small>completed, of 200", ask(address, "/", **shown)[1])
    assert completed is not None
    assert 2 <= int(completed[1]) < 200
    assert 'tacit_rounds_total{status="completed"}' in ask(address, "/metrics", **shown)[1]
    assert ask(address, "/healthz") == (200, "ok\n")
    started[0].until("metrics at ")
    said = re.search(r"metrics at http://0\.0\.0\.0:(\d+)/metrics, with the token in (\S+)", started[0].everything)
    assert said is not None
    kept = (hosts.path / CLIENTS[0] / said[2]).read_text()
    status, text = ask(f"127.0.0.1:{said[1]}", "/metrics", Authorization=f"Bearer {kept}")
    assert (status, ask(f"127.0.0.1:{said[1]}", "/metrics")[0]) == (200, 401)
    assert re.search(r"^tacit_round_number \d+\.0$", text, re.M)
    second.signal(signal.SIGTERM)
    assert second.end() == 130, second.everything
    assert (hosts.path / "server" / "state" / "page-token").read_text() == found[2]
    assert found[2] not in (hosts.path / "server" / "state" / "logs" / "server.log").read_text()

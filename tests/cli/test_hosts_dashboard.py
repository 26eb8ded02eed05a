"""`tacit server --dashboard`: the page of a federation between hosts, made from what its server alone knows."""

import http.client
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from playwright.sync_api import expect, sync_playwright

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import PATIENCE, Hosts, Process, running_hosts

pytestmark = pytest.mark.end_to_end

CLIENTS = ("client-1", "client-2", "client-3")
Invoke = Callable[..., Result]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with running_hosts(tmp_path) as made:
        yield made


def link(server: Process) -> str:
    """What the server printed, once it has."""
    server.until("live at ")
    return next(line.removeprefix("live at ") for line in server.said if line.startswith("live at "))


def ask(address: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_a_browser_follows_a_server_and_its_clients(hosts: Hosts, chromium: str) -> None:
    """From the wait for clients to the end, also what it prints with --quiet, and nothing else."""
    hosts.experiment(rounds=2)
    server = hosts.start("server", "server", "party.toml", "experiment.toml", "--dashboard", "127.0.0.1:0", "--quiet")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=1000 * PATIENCE)
        page = browser.new_page(viewport={"width": 360, "height": 640})
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(link(server))
        for name in CLIENTS:
            expect(page.locator("#now")).to_contain_text(name, timeout=1000 * PATIENCE)
        clients = [hosts.start(name, "client", "party.toml") for name in CLIENTS]
        heading = page.locator("#now h2").first
        expect(heading).to_contain_text("Ended: all rounds are done", timeout=1000 * PATIENCE)
        assert page.locator("#figures dd").nth(1).inner_text().split()[0] == "2"
        parties = page.locator("#parties").inner_text()
        assert all(name in parties for name in ("server", *CLIENTS))
        # No host has everything, as the machine of a simulation has.
        assert "owner of a host" in page.locator("#seen").inner_text()
        browser.close()
    assert server.end() == 0, server.everything
    assert [client.end() for client in clients] == [0, 0, 0]
    assert len(server.said) == 1


def test_a_server_that_goes_on_shows_what_was_before(hosts: Hosts) -> None:
    """Beyond this machine a token is needed, of pages and of metrics."""
    hosts.experiment(rounds=200, epochs=30)
    for name in CLIENTS:
        hosts.start(name, "client", "party.toml", "--stay")
    first = hosts.start("server", "server", "party.toml", "experiment.toml")
    first.until("round   2 of 200  completed")
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
    second.signal(signal.SIGTERM)
    assert second.end() == 130, second.everything
    assert found[2] not in (hosts.path / "server" / "state" / "logs" / "server.log").read_text()


def test_what_is_no_place_is_refused_before_a_run_begins(hosts: Hosts, tacit: Invoke) -> None:
    experiment, party = hosts.experiment(), hosts.path / "server" / "party.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for place in ("nonsense", f"127.0.0.1:{taken.getsockname()[1]}"):
            done = tacit("server", party, experiment, "--dashboard", place)
            assert done.exit_code == 2
            assert done.stderr.startswith(f"tacit: --dashboard {place}: ")
            assert done.stderr.count("\n") == 1
            assert not (hosts.path / "server" / "state").exists()

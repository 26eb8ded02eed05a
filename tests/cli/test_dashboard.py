"""`tacit simulate --dashboard`: the page of a run that is going on, and what is refused."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.session.events import RoundEnded
from tacit.protocol.core.events import Event
from tests.cli.command import Invoke


def ask(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    text = answer.read().decode()
    connection.close()
    return text


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.mark.end_to_end
def test_the_page_follows_the_run(tacit: Invoke, tmp_path: Path, small: Path, watch: Any, port: int) -> None:
    """It answers while the loop of the supervisor waits for nothing but its answer."""
    pages: dict[int, str] = {}
    metrics: dict[int, str] = {}

    def look(event: Event) -> None:
        if isinstance(event, RoundEnded):
            pages[event.round] = ask(port, "/")
            metrics[event.round] = ask(port, "/metrics")

    watch(look)
    done = tacit("simulate", small, "--dashboard", f":{port}", "--out", tmp_path / "run", "--quiet")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"live at http://127.0.0.1:{port}/\n"
    assert list(pages) == [1, 2]
    assert "<dd>2<small>completed, of 2</small>" in pages[2]
    assert "<dd>4<small>of 4 clients</small>" in pages[2]
    assert 'tacit_rounds_total{status="completed"} 1.0' in metrics[1]
    assert "tacit_accuracy " in metrics[2]
    with pytest.raises(ConnectionRefusedError):
        ask(port, "/")


def test_a_port_in_use_is_refused(tacit: Invoke, tmp_path: Path, small: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = tacit("simulate", small, "--dashboard", where, "--out", tmp_path / "run")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        f"tacit: --dashboard {where}: cannot listen there: Address already in use; "
        "use an address of this host and a port that no other process uses\n"
    )
    assert not (tmp_path / "run").exists()

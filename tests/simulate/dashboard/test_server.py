"""The page over HTTP: live, read-only, and never in the way of whoever it tells of."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.hosting.folder import Happened, Status
from tacit.parties.session.events import HeartbeatSent, SessionEnded, WaitingChanged
from tacit.protocol.session.events import RoundStarted
from tacit.simulate.dashboard import server
from tacit.simulate.dashboard.metrics import PARTY_MEASURES, Metrics
from tacit.simulate.dashboard.server import DashboardError, MetricsPage, listening
from tests.simulate.conftest import now
from tests.simulate.dashboard.conftest import Reader

TOKEN_NEEDED = "0.0.0.0:0"


def test_opened_late_the_stream_begins_with_everything(show: Any, eventful: Any) -> None:
    reader = show(eventful)
    first = next(reader.news())
    html = reader.ask("/").text
    assert list(first) == ["now", "figures", "learning", "parties", "rounds", "trouble", "seen"]
    assert all(text.strip() in html for text in first.values())


def test_news_come_as_they_happen_and_only_what_differs(show: Any, script: Any) -> None:
    run = script()
    run.session()
    reader = show(run)
    news = reader.news()
    assert "Round 1" not in next(news)["now"]
    reader.dashboard.take(now("server", RoundStarted(round=1, cohort=run.clients)))
    second = next(news)
    assert "Round 1 of 3" in second["now"]
    assert "seen" not in second
    reader.dashboard.take(now("client-1", HeartbeatSent()))
    reader.dashboard.take(now("server", WaitingChanged(on=["client-2"])))
    third = next(news)
    assert "Waits for client-2" in third["now"]
    assert set(third) == {"now", "parties"}


def test_at_the_end_readers_get_the_last_state_and_the_stream_is_over(show: Any, script: Any) -> None:
    run = script()
    run.session()
    reader = show(run)
    news = reader.news()
    next(news)
    reader.dashboard.take(now("server", SessionEnded(code=None, detail="all rounds are done")))
    reader.dashboard.close()
    assert "Ended: all rounds are done" in list(news)[-1]["now"]
    with pytest.raises(ConnectionRefusedError):
        reader.connect()
    reader.dashboard.take(now("server", HeartbeatSent()))


def test_nothing_but_reading(show: Any, script: Any) -> None:
    reader = show(script())
    for path in ("/", "/events", "/metrics", "/enter", "/dashboard.js", "/none"):
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            answer = reader.ask(path, method=method)
            assert answer.status == (404 if path == "/none" else 405), (path, method)


def test_every_answer_says_how_narrow_it_is(show: Any, script: Any) -> None:
    reader = show(script())
    for path in ("/", "/metrics", "/enter", "/enter.js", "/dashboard.css", "/dashboard.js", "/none"):
        headers = reader.ask(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"), path
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] is None


def test_a_name_that_was_made_to_lead_here_is_refused(show: Any, script: Any) -> None:
    """Else a page of somebody else's could read this one in its visitor's browser."""
    reader = show(script())
    for host in ("localhost", "127.0.0.1", f"localhost:{reader.port}", f"[::1]:{reader.port}"):
        assert reader.ask("/", Host=host).status == 200
    for host in ("evil.example", f"evil.example:{reader.port}", "127.0.0.1.evil.example", "10.0.0.7", "", "["):
        answer = reader.ask("/", Host=host)
        assert answer.status == 421
        assert answer.text == "tacit: this page is for this machine alone; open it as http://localhost\n"


@pytest.fixture
def guarded(show: Any, eventful: Any) -> Any:
    reader = show(eventful, TOKEN_NEEDED)
    return reader, reader.dashboard.link.partition("#")[2]


def test_elsewhere_a_token_is_needed(guarded: Any) -> None:
    reader, token = guarded
    assert len(token) >= 43
    for path in ("/", "/events", "/metrics", "/dashboard.js", "/none"):
        for headers in ({}, {"Authorization": f"Bearer {token[:-1]}"}, {"Authorization": f"Basic {token}"}):
            answer = reader.ask(path, **headers)
            assert answer.status == 401
            assert answer.text.startswith("tacit: open the link that was printed at the start")
            assert answer.text.count("\n") == 1
            assert "clinics" not in answer.text
    assert reader.ask("/", Authorization=f"Bearer {token}").status == 200
    assert "tacit_accuracy 0.25" in reader.ask("/metrics", Authorization=f"bearer {token}").text
    assert reader.ask(f"/?token={token}").status == 401


def test_a_token_that_was_shown_once_stays_in_a_cookie(guarded: Any) -> None:
    reader, token = guarded
    cookie = reader.ask("/", Authorization=f"Bearer {token}").headers["Set-Cookie"]
    assert cookie == f"tacit-{reader.port}={token}; HttpOnly; SameSite=Lax; Path=/"
    kept = cookie.partition(";")[0]
    again = reader.ask("/", Cookie=f"other=1; {kept}")
    assert (again.status, again.headers["Set-Cookie"]) == (200, None)
    assert "Round 3 was stopped" in next(reader.news(Cookie=kept))["now"]
    assert reader.ask("/", Cookie=f"tacit-{reader.port}=\xe4{token}").status == 401


def test_the_way_in_needs_no_token_and_tells_nothing(guarded: Any) -> None:
    reader, token = guarded
    for path in ("/enter", "/enter.js", "/dashboard.css"):
        answer = reader.ask(path)
        assert answer.status == 200
        assert "clinics" not in answer.text
        assert token not in answer.text


def test_the_health_needs_no_token(guarded: Any) -> None:
    answer = guarded[0].ask("/healthz")
    assert (answer.status, answer.text) == (200, "ok\n")


def test_a_token_in_a_file_is_the_same_at_every_start(show: Any, script: Any, tmp_path: Path) -> None:
    run, path = script(), tmp_path / "state" / "page-token"
    run.session()
    tokens = {show(run, TOKEN_NEEDED, token=path).dashboard.link.partition("#")[2] for _ in range(2)}
    assert tokens == {path.read_text()}
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(DashboardError, match="page-token: others may read this token, or it is too short: delete"):
        show(run, TOKEN_NEEDED, token=path)
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(DashboardError, match="too short"):
        show(run, TOKEN_NEEDED, token=path)


def test_a_party_of_any_role_has_metrics_of_its_status() -> None:
    status = Status(name="client-1", role="client", process=1, since=1.0, round=7, alert=Happened(3.0, "copy-detected"))
    metrics = Metrics(lambda: status, PARTY_MEASURES)
    with listening("127.0.0.1:0") as listener, MetricsPage(listener, metrics) as page:
        reader = Reader(page)
        text = reader.ask("/metrics").text
        assert reader.ask("/healthz").text == "ok\n"
        assert reader.ask("/").status == 404
    assert "tacit_round_number 7.0\n" in text
    assert "tacit_copies_detected 1.0\n" in text
    assert "tacit_last_error_timestamp_seconds 0" not in text
    assert "client-1" not in text


def test_every_start_has_another_token(show: Any, script: Any) -> None:
    run = script()
    assert show(run, TOKEN_NEEDED).dashboard.link != show(run, TOKEN_NEEDED).dashboard.link


def test_the_token_is_in_no_log(guarded: Any, capfd: Any, caplog: Any) -> None:
    reader, token = guarded
    caplog.set_level(0)
    reader.ask("/", Authorization=f"Bearer {token}")
    reader.ask("/none", Authorization=f"Bearer {token}")
    with reader.connect() as broken:
        broken.sendall(f"GARBAGE {token}\r\n\r\n".encode())
        broken.recv(4096)
    written = capfd.readouterr()
    assert token not in written.out + written.err + caplog.text


def test_a_reader_that_takes_nothing_costs_bounded_room_and_no_time(
    show: Any, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(server, "STUCK_SECONDS", 0.1)
    run = script(clients=200)
    run.session()
    reader = show(run)
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect((reader.host, reader.port))
    stuck.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    live = reader.news()
    next(live)
    gone = threading.Event()
    cut_off = server._Connection.connection_lost

    def watch(connection: Any, error: Exception | None) -> None:
        cut_off(connection, error)
        gone.set()

    monkeypatch.setattr(server._Connection, "connection_lost", watch)
    number = 0
    while not gone.is_set():
        # The other reader has all of it, one message after the other, while nobody reads here.
        number += 1
        assert number < 10_000
        reader.dashboard.take(now("server", WaitingChanged(on=[f"client-{number % 200 + 1}"])))
        assert f"Waits for client-{number % 200 + 1}<" in next(live)["now"]
    stuck.close()


def test_connections_are_few(show: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 4)
    reader = show(script())
    held = [reader.connect() for _ in range(8)]
    # The surplus is closed at once; then there is room again.
    assert [connection.recv(1) for connection in held[4:]] == [b""] * 4
    for connection in held:
        connection.close()
    assert reader.ask("/").status == 200


def test_a_connection_that_asks_for_nothing_is_closed(show: Any, script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.1)
    with show(script()).connect() as silent:
        assert silent.recv(1) == b""


def test_a_reader_that_is_gone_is_forgotten(show: Any, script: Any) -> None:
    run = script()
    run.session()
    reader = show(run)
    news: Iterator[dict[str, str]] = reader.news()
    next(news)
    news.close()  # type: ignore[attr-defined]
    reader.dashboard.take(now("server", RoundStarted(round=1, cohort=run.clients)))
    assert "Round 1" in next(reader.news())["now"]


def test_ipv6(show: Any, script: Any) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")
    reader = show(script(), "[::1]:0")
    assert reader.dashboard.link == f"http://[::1]:{reader.port}/"
    assert reader.ask("/").status == 200

"""A federation through the relays of docs/relays.md, with their configurations, and a proxy between that inspects TLS.

Skipped where haproxy and stunnel are not installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import Process, free_port, running_hosts

pytestmark = pytest.mark.end_to_end
RELAY = Path(__file__).parents[2] / "docs" / "examples" / "relay"


class InspectingProxy:
    """An HTTP proxy that answers CONNECT with TLS of its own, and keeps all that it sees inside."""

    def __init__(self, certificate: Path) -> None:
        self.seen = bytearray()
        self.targets: list[str] = []
        self._certificate = certificate
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        _, target, _ = head.split(maxsplit=2)
        self.targets.append(target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        own.load_cert_chain(self._certificate)
        await writer.start_tls(own)
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        host, _, port = target.partition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port), ssl=blind)
        with contextlib.suppress(OSError):
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.closing(sink):
            while data := await source.read(1 << 16):
                self.seen += data
                sink.write(data)
                await sink.drain()


@pytest.fixture
def folder() -> Iterator[Path]:
    if not (shutil.which("haproxy", path="/usr/sbin:/usr/bin") and shutil.which("stunnel") and shutil.which("openssl")):
        pytest.skip("haproxy, stunnel or openssl is not installed")
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=relay", "-keyout", path / "key.pem", "-out", path / "crt.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        (path / "relay.pem").write_bytes((path / "key.pem").read_bytes() + (path / "crt.pem").read_bytes())
        yield path


def configuration(name: str, folder: Path, **changes: str) -> Path:
    """A configuration of the docs, with other places: each has to be in it."""
    text = (RELAY / name).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    return folder / name


def wait_for(path: Path, relay: Process) -> None:
    while not path.exists():
        assert relay.process.poll() is None, relay.everything


def refused_beyond(port: int, most: int) -> int:
    """Connections of one source, opened until one is closed at once; how many were not."""
    with contextlib.ExitStack() as held:
        for number in range(most):
            try:
                one = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                # ZeroMQ speaks first.
                if not one.recv(1):
                    return number
            except ConnectionError:
                return number
    return most


def restart(relays: list[Process], number: int, start: str, folder: Path) -> str:
    """End a relay and start it again; what it said."""
    relays[number].signal(signal.SIGTERM)
    relays[number].end()
    said = relays[number].everything
    relays[number] = Process.of(["sh", "-c", start], folder)
    return said


def test_a_federation_through_a_proxy_that_inspects_tls(tmp_path: Path, folder: Path) -> None:
    """Both relays are started again in the run."""
    tls, plain = free_port(), free_port()
    proxy = InspectingProxy(folder / "relay.pem")
    server_socket, client_socket = folder / "server.sock", folder / "relay.sock"
    haproxy = configuration("haproxy.cfg", folder, **{
        ":443": f"127.0.0.1:{tls}", ":7007": f"127.0.0.1:{plain}",
        "/etc/tacit/relay.pem": f"{folder}/relay.pem", "/run/tacit/server.sock": str(server_socket),
    })  # fmt: skip
    stunnel = configuration("stunnel.conf", folder, **{
        "/run/tacit/relay.sock": str(client_socket), "proxy.hospital.example:3128": f"127.0.0.1:{proxy.port}",
        "wards.example:443": f"127.0.0.1:{tls}",
    })  # fmt: skip
    starts = (
        f"PATH=/usr/sbin:/usr/bin exec haproxy -f {haproxy}",
        f"umask 177; exec stunnel {stunnel}",
    )
    relays = [Process.of(["sh", "-c", start], folder) for start in starts]
    try:
        wait_for(client_socket, relays[1])
        assert client_socket.stat().st_mode & 0o777 == 0o600
        with running_hosts(tmp_path) as hosts:
            hosts.party("server", f'bind = "ipc://{server_socket}"\n')
            hosts.client("client-1", connect=f"ipc://{client_socket}")
            for name in ("client-2", "client-3"):
                hosts.client(name, connect=f"tcp://127.0.0.1:{plain}")
            hosts.experiment(rounds=4, epochs=30)
            server = hosts.start("server", "server", "party.toml", "experiment.toml")
            wait_for(server_socket, server)
            assert server_socket.stat().st_mode & 0o777 == 0o600
            reached = hosts.run("client-1", "preflight", "party.toml")
            assert re.search(r"curve +ok +it has the key of server", reached.everything), reached.everything
            clients = [hosts.start(name, "client", "party.toml") for name in hosts.names[1:]]
            server.until("round 1 of 4 completed")
            said = [restart(relays, number, start, folder) for number, start in enumerate(starts)]
            assert [one.end() for one in (server, *clients)] == [0] * 4, server.everything
            assert "round 4 of 4 completed by 3 of 3 clients" in server.everything
            again = hosts.experiment(rounds=3)
            again.write_text(again.read_text().replace('"small"', '"again"'))
            server = hosts.start("server", "server", "party.toml", "experiment.toml")
            server.until("listens at")
            assert refused_beyond(plain, 40) == 16
    finally:
        for relay in relays:
            relay.signal(signal.SIGTERM)
            relay.end()
    assert set(proxy.targets) == {f"127.0.0.1:{tls}"}
    assert b"CURVE" in proxy.seen
    assert not re.search(rb"client-|server|small|Hello|roster", bytes(proxy.seen))
    sources = re.findall(r"^127\.0\.0\.1:\d+ .* hospitals(~?) ", said[0] + relays[0].everything, re.M)
    assert sources.count("~") >= 1
    assert sources.count("") >= 2

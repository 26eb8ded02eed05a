"""The relay that makes a link slower: how late bytes are, how many pass, and that nothing else happens to them.

Times have lower bounds only: these follow from the link, on a machine however busy.
"""

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tacit.simulate.federation.relay import Relay, Shaping, relaying

DEADLINE_SECONDS = 60.0
Ends = tuple[socket.socket, socket.socket]


@contextmanager
def linked(shaping: Shaping, streams: int = 1) -> Iterator[tuple[Relay, list[Ends]]]:
    """A relay, and streams through it: of each the end that has connected and the one that was connected to."""
    with ExitStack() as stack:
        relay = stack.enter_context(relaying(shaping))
        assert relay is not None
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listening.settimeout(DEADLINE_SECONDS)
        address = ("127.0.0.1", relay.through(listening.getsockname()[1]))
        ends = []
        for _ in range(streams):
            near = stack.enter_context(socket.create_connection(address, timeout=DEADLINE_SECONDS))
            far = stack.enter_context(listening.accept()[0])
            far.settimeout(DEADLINE_SECONDS)
            ends.append((near, far))
        yield relay, ends


def received(end: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length and (more := end.recv(min(1 << 20, length - len(data)))):
        data += more
    return bytes(data)


def some_bytes(length: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(length)


@pytest.mark.parametrize("upward", [True, False])
@pytest.mark.parametrize(
    ("shaping", "length", "seconds"),
    [
        (Shaping(latency_ms=100), 1, 0.1),
        (Shaping(bandwidth_mbit=8), 200_000, 0.2),
        (Shaping(latency_ms=100, bandwidth_mbit=8), 100_000, 0.2),
    ],
)
def test_bytes_are_as_late_as_the_link_says(shaping: Shaping, length: int, seconds: float, upward: bool) -> None:
    with linked(shaping) as (_, [(near, far)]):
        source, sink = (near, far) if upward else (far, near)
        begin = time.monotonic()
        source.sendall(bytes(length))
        assert len(received(sink, length)) == length
        assert time.monotonic() - begin >= seconds


def test_streams_of_one_direction_share_its_rate() -> None:
    with linked(Shaping(bandwidth_mbit=8), streams=2) as (_, streams):
        begin = time.monotonic()
        for near, _ in streams:
            near.sendall(bytes(100_000))
        for _, far in streams:
            assert len(received(far, 100_000)) == 100_000
        assert time.monotonic() - begin >= 0.2


def test_streams_arrive_whole_and_in_order_and_are_counted() -> None:
    up, down = some_bytes(3_000_001, 1), some_bytes(2_000_003, 2)
    with linked(Shaping(latency_ms=1, bandwidth_mbit=1_000)) as (relay, [(near, far)]), ThreadPoolExecutor() as pool:

        def exchange(end: socket.socket, data: bytes) -> bytes:
            sending = pool.submit(end.sendall, data)
            got = received(end, len(up) if end is far else len(down))
            sending.result()
            return got

        above = pool.submit(exchange, far, down)
        assert exchange(near, up) == down
        assert above.result() == up
        assert relay.forwarded() == len(up) + len(down)
        # One direction ends; the other goes on.
        near.shutdown(socket.SHUT_WR)
        assert far.recv(1) == b""
        far.sendall(b"still here")
        far.close()
        assert received(near, 100) == b"still here"


def test_a_receiver_that_waits_holds_up_the_sender() -> None:
    data, most = some_bytes(1 << 20, 3), 256
    with linked(Shaping(latency_ms=1)) as (_, [(near, far)]):
        sent = 0
        near.setblocking(False)
        while sent < most << 20 and select.select([], [near], [], 0.5)[1]:
            sent += near.send(memoryview(data)[sent % len(data) :])
        # 64 MiB in the relay, and up to 36 MiB in the sockets on both of its sides.
        assert sent < 192 << 20
        near.shutdown(socket.SHUT_WR)
        whole, rest = divmod(sent, len(data))
        for _ in range(whole):
            assert received(far, len(data)) == data
        assert received(far, len(data)) == data[:rest]


@pytest.mark.parametrize("upward", [True, False])
def test_a_stream_that_breaks_ends_at_the_other_side(upward: bool) -> None:
    with linked(Shaping(latency_ms=1)) as (_, [(near, far)]):
        gone, left = (near, far) if upward else (far, near)
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # Its close is a reset.
        gone.close()
        assert left.recv(1) == b""
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            deque(iter(lambda: left.send(bytes(1 << 16)), 0), maxlen=0)


def test_nobody_at_the_port_is_the_end_of_the_stream() -> None:
    with relaying(Shaping(latency_ms=1)) as relay:
        assert relay is not None
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        address = relay.address(f"tcp://127.0.0.1:{port}")
        host, _, relayed = address.rpartition(":")
        assert host == "tcp://127.0.0.1"
        assert int(relayed) != port
        with socket.create_connection(("127.0.0.1", int(relayed)), timeout=DEADLINE_SECONDS) as near:
            assert near.recv(1) == b""


def test_a_relay_ends_with_its_block() -> None:
    with ExitStack() as stack:
        relay, [(near, far)] = stack.enter_context(linked(Shaping(latency_ms=1)))
        near, far = near.dup(), far.dup()
        stack.close()
        for end in (near, far):
            with end:
                assert end.recv(1) == b""
        with pytest.raises(OSError, match="No such file"):
            relay.forwarded()


def test_a_relay_ends_with_its_process_however_that_ends() -> None:
    program = (
        "import sys\nfrom tacit.simulate.federation.relay import Shaping, relaying\n"
        "with relaying(Shaping(latency_ms=1)) as relay:\n"
        "    print(relay.through(int(sys.argv[1])), flush=True)\n    sys.stdin.read()\n"
    )
    with (
        tempfile.TemporaryDirectory() as scratch,
        socket.create_server(("127.0.0.1", 0)) as listening,
        subprocess.Popen(
            [sys.executable, "-c", program, str(listening.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"TMPDIR": scratch},
        ) as process,
    ):
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        with socket.create_connection(address, timeout=DEADLINE_SECONDS) as near:
            process.kill()
            assert near.recv(1) == b""


def test_a_relay_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as desk, ThreadPoolExecutor() as pool:
        # A short name, since the addresses of such sockets are.
        directory = os.open(tmp_path, os.O_RDONLY)
        path = Path(f"/proc/self/fd/{directory}/d")
        desk.bind(str(path))
        desk.listen()
        asking = pool.submit(Relay(path).forwarded)
        with desk.accept()[0] as asked:
            assert asked.recv(100) == b"forwarded"
        with pytest.raises(ConnectionError, match="no answer to 'forwarded'"):
            asking.result()
        os.close(directory)


def test_without_a_shape_there_is_no_relay() -> None:
    with relaying(Shaping()) as relay:
        assert relay is None

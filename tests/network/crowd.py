"""Strangers at a server's port. `python crowd.py HOST PORT` scans ports, leaves connections half open, and opens a
thousand connections in every second; it says how many there were, as it goes.

Half-open are connections of three kinds: SYN packets of hosts that are not there, connections that never say anything,
and such that say the beginning of a ZeroMQ greeting. Of the thousand some send rubbish, others nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import sys
import time
from collections import deque
from typing import Final

A_SECOND: Final = 1_000
KEPT: Final = 5_000
"""Connections that are held open."""
GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE"
_SYN: Final = 0x02


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def half_open(host: str, port: int, count: int) -> None:
    """Send SYN packets from neighbours that do not exist, and so never answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        own = socket.inet_aton(_own_address(host, port))
        for number in range(count):
            source, target = own[:3] + bytes([100 + number % 100]), socket.inet_aton(host)
            tcp = struct.pack("!HHIIBBHHH", 1024 + number, port, number, 0, 5 << 4, _SYN, 65_535, 0, 0)
            pseudo = source + target + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(tcp))
            tcp = tcp[:16] + struct.pack("!H", _checksum(pseudo + tcp)) + tcp[18:]
            header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 40, number & 0xFFFF, 0, 64, 6, 0, source, target)
            raw.sendto(header + tcp, (host, 0))


def _own_address(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, port))
        own: str = asking.getsockname()[0]
        return own


def scan(host: str) -> None:
    for port in range(1, 10_000):
        with socket.socket() as tried:
            tried.setblocking(False)
            tried.connect_ex((host, port))


def flood(host: str, port: int) -> None:
    kept: deque[socket.socket] = deque()
    began, opened = time.monotonic(), 0
    while True:
        connection = socket.socket()
        connection.setblocking(False)
        connection.connect_ex((host, port))
        kept.append(connection)
        opened += 1
        if len(kept) > KEPT:
            kept.popleft().close()
        if opened % 10 == 0 and len(kept) > 50:
            late = kept[-50]
            with contextlib.suppress(OSError):  # It may not be open yet, or be closed by the server.
                late.send((os.urandom(200), GREETING, b"GET / HTTP/1.1\r\n\r\n")[opened // 10 % 3])
        if opened % A_SECOND == 0:
            print(f"opened {opened} in {time.monotonic() - began:.1f} s", flush=True)
        time.sleep(max(0.0, began + opened / A_SECOND - time.monotonic()))


if __name__ == "__main__":
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _host, _port = sys.argv[1], int(sys.argv[2])
    half_open(_host, _port, 5_000)
    print("half open", flush=True)
    scan(_host)
    print("scanned", flush=True)
    flood(_host, _port)

"""Addresses of links: tcp://HOST:PORT, where HOST is a name, an IPv4 address or an IPv6 address in brackets; or
ipc://PATH. ZeroMQ takes others without a word, such as port 99999, and looks for a host that is none for ever.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from typing import Final

IPC: Final = "ipc://"
_TCP: Final = re.compile(r"tcp://(?P<host>\[[^\]]*\]|.+):(?P<port>\*|[0-9]+)")
_LABEL: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?")


def host_of(address: str) -> str | None:
    """The host, an IPv6 address without its brackets; None for ipc://PATH. ValueError for what is no address."""
    if address.startswith(IPC):
        return None
    found = _TCP.fullmatch(address)
    if found is None or not (found["port"] == "*" or 0 < int(found["port"]) < 65_536):
        raise ValueError(f"{address!r} is not an address; use tcp://HOST:PORT with a port from 1 to 65535")
    host = found["host"]
    if host.startswith("["):
        if _version(host[1:-1]) != 6:
            raise ValueError(f"{address!r} is not an address; in brackets stands an IPv6 address: tcp://[fd00::5]:7007")
        return host[1:-1]
    if _version(host) == 6 or ":" in host:
        raise ValueError(f"{address!r} is not an address; write an IPv6 address in brackets: tcp://[fd00::5]:7007")
    if host != "*" and not _version(host):
        labels = host.rstrip(".").split(".")
        numbers = labels[-1].isdigit()
        if numbers or not all(_LABEL.fullmatch(label) for label in labels):
            raise ValueError(f"{address!r} is not an address; {host!r} is neither a name nor an IPv4 address")
    return host


async def resolve(address: str) -> None:
    """Look the host up, so that a name that nobody knows is told. ValueError if it is not found."""
    host = host_of(address)
    if host is None or host == "*" or _version(host):
        return
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ValueError(
            f"the name {host!r} of {address} is not known here ({error.strerror or error}): check its spelling, the "
            "name server and /etc/hosts, or use the address"
        ) from None


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).version
    except ValueError:
        return 0

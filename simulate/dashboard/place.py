"""Where the page listens, as --dashboard names it."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address


class DashboardError(Exception):
    """The page cannot be shown; the message names the address and the remedy."""


@dataclass(frozen=True)
class Place:
    """Where the page listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """HOST:PORT, with an IPv6 address in brackets; of :PORT and PORT this machine alone. DashboardError if not."""
        found = re.fullmatch(r"(?:(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:]*):)?(?P<port>\d{1,5})", text)
        if found is None or int(found["port"]) > 65_535:
            raise DashboardError(
                f"--dashboard {text}: expected HOST:PORT, such as 127.0.0.1:8080, or [::1]:8080 with IPv6"
            )
        return cls((found["host"] or "127.0.0.1").strip("[]"), int(found["port"]))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def listen(self) -> OpenPlace:
        """Listen there. DashboardError if it cannot."""
        try:
            family, kind, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            listening = socket.socket(family, kind)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(address)
                listening.listen()
            except OSError:
                listening.close()
                raise
        except OSError as error:
            raise DashboardError(
                f"--dashboard {self}: cannot listen there: {error.strerror}; use an address of this host and a port "
                "that no other process uses"
            ) from error
        listening.setblocking(False)
        return OpenPlace(Place(self.host, listening.getsockname()[1]), listening)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True)
class OpenPlace:
    """A socket that listens there, and its place with the port that the system chose."""

    place: Place
    socket: socket.socket


@contextmanager
def listening(where: str) -> Iterator[OpenPlace]:
    """Listen there, as Place.parse reads it, before there is anything to show. DashboardError if it cannot."""
    listener = Place.parse(where).listen()
    with listener.socket:
        yield listener

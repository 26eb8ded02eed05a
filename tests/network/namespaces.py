"""Network namespaces for tests: a router, and a namespace for every party, each in a subnet of its own.

A party has one interface, eth0, of which the router holds the other end: a veth pair, or a slow wire (wire.py). Taking
the router's end down cuts the party off without a word: its connections stay, and what it sends goes nowhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Literal

from tests.network.wire import Shape

Family = Literal[4, 6]

_WIRE: Final = str(Path(__file__).with_name("wire.py"))
_NUMBERS: Final = count(1)


def obstacle() -> str:
    name = f"tacit-{os.getpid()}-try"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the command `ip` is missing: install the system package iproute2"
    if made.returncode:
        return f"network namespaces are not permitted here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return ""


class Network:
    """Namespaces for these parties. Made by `network()`."""

    def __init__(self, parties: Sequence[str], shapes: Mapping[str, Shape]) -> None:
        self._prefix = f"tacit-{os.getpid()}-{next(_NUMBERS)}"
        self._numbers = {name: number for number, name in enumerate(parties, 1)}
        self._hosts = dict.fromkeys(parties, 2)
        """The last part of each party's address."""
        self._shapes = shapes
        self._wires: subprocess.Popen[str] | None = None
        self._made: list[str] = []

    def open(self) -> None:
        for name in ("router", *self._numbers):
            self._ip("", f"netns add {self.space(name)}")
            self._made.append(name)
        for name in self._made:
            # IPv6 addresses of an interface would go when it goes down.
            kept = ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1", "net.ipv6.conf.all.keep_addr_on_down=1")
            settings = kept if name == "router" else ("net.ipv6.conf.all.accept_dad=0",)
            subprocess.run([*self.within(name), "sysctl", "-q", "-w", *settings], check=True)
        if self._shapes:
            arguments = [shape.argument(self._port(name)) for name, shape in self._shapes.items()]
            self._wires = subprocess.Popen(
                [*self.within("router"), sys.executable, _WIRE, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            assert self._wires.stdout is not None
            assert self._wires.stdout.readline() == "ready\n"
        for name, number in self._numbers.items():
            port, far = self._port(name), f"{self._port(name)}-far"
            made = [] if name in self._shapes else [f"link add {port} type veth peer name {far}"]
            self._ip(
                "router",
                *made,
                f"link set {far} netns {self.space(name)}",
                f"address add 10.77.{number}.1/24 dev {port}",
                f"address add fd77:0:0:{number}::1/64 dev {port} nodad",
                f"link set {port} up",
            )
            self._ip(name, "link set lo up", f"link set {far} name eth0", "link set eth0 up", *self._settled(name))

    def within(self, name: str) -> list[str]:
        """The beginning of a command that is to run in a party's namespace, or in that of the `router`."""
        return ["ip", "netns", "exec", self.space(name)]

    def address(self, name: str, family: Family = 4) -> str:
        """Where a party is reached, as it stands in tcp://HOST:PORT."""
        number, host = self._numbers[name], self._hosts[name]
        return f"10.77.{number}.{host}" if family == 4 else f"[fd77:0:0:{number}::{host}]"

    def unplug(self, name: str) -> None:
        self._ip("router", f"link set {self._port(name)} down")

    def plug(self, name: str) -> None:
        self._ip("router", f"link set {self._port(name)} up")

    def move(self, name: str) -> None:
        """Give a party another address, as a provider does over night: nobody is told, and the old one is nobody's."""
        self._hosts[name] += 1
        self._ip(name, "address flush dev eth0 scope global", *self._settled(name))

    def call(self, name: str, host: str, address: str) -> None:
        """Let a party know the address of a host by this name; before its processes start, and whenever it changes."""
        path = Path("/etc/netns", self.space(name), "hosts")
        path.parent.mkdir(parents=True, exist_ok=True)
        # In place: it is mounted as a file.
        path.write_text(f"127.0.0.1 localhost\n{address} {host}\n")

    def narrow(self, name: str, mtu: int) -> None:
        """Let no larger packets to and from a party pass the router. The party itself has to find that out."""
        self._ip("router", f"link set {self._port(name)} mtu {mtu}")

    def close(self) -> None:
        """Take everything down. Processes in the namespaces must have ended."""
        if self._wires is not None:
            with self._wires as wires:
                wires.communicate()
        for name in self._made:
            self._ip("", f"netns delete {self.space(name)}")
            shutil.rmtree(Path("/etc/netns", self.space(name)), ignore_errors=True)

    def _settled(self, name: str) -> list[str]:
        number, host = self._numbers[name], self._hosts[name]
        return [
            f"address add 10.77.{number}.{host}/24 dev eth0",
            f"address add fd77:0:0:{number}::{host}/64 dev eth0 nodad",
            f"route replace default via 10.77.{number}.1",
            f"-6 route replace default via fd77:0:0:{number}::1",
        ]

    def space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _port(self, name: str) -> str:
        return f"port{self._numbers[name]}"

    def _ip(self, name: str, *commands: str) -> None:
        space = ["-netns", self.space(name)] if name else []
        for command in commands:
            subprocess.run(["ip", *space, *command.split()], check=True, capture_output=True)


@contextmanager
def network(parties: Sequence[str], shapes: Mapping[str, Shape] | None = None) -> Iterator[Network]:
    made = Network(parties, shapes or {})
    try:
        made.open()
        yield made
    finally:
        made.close()

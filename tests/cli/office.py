"""The operator of a roster, on a host of its own, for tests between hosts."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.cli.hosts import Hosts


class Office:
    """versions: of the roster, the first of which has these members, by the cards on the hosts; each change, the words
    of a command of `tacit roster` and its operands, makes another one. Every member has the first one."""

    def __init__(
        self,
        hosts: Hosts,
        *changes: tuple[str, ...],
        members: Sequence[str] = ("server", "client-1", "client-2", "client-3"),
        options: Sequence[str] = (),
    ) -> None:
        self._hosts = hosts
        folder = hosts.path / "office"
        folder.mkdir()
        key = ("--operator", "office.key")
        hosts.command("office", "keys", "new", "office", "--role", "operator")
        cards = [str(hosts.path / f"{name}.card") for name in members]
        hosts.command("office", "roster", "make", "--out", "roster.toml", *key, *options, *cards)
        self.versions = {1: (folder / "roster.toml").read_bytes()}
        for change, *operands in changes:
            hosts.command("office", "roster", change, "roster.toml", *operands, *key)
            self.versions[len(self.versions) + 1] = (folder / "roster.toml").read_bytes()
        for name in members:
            self.give(name, 1)

    def give(self, name: str, version: int) -> None:
        path = self._hosts.path / name / "new.toml"
        path.write_bytes(self.versions[version])
        os.replace(path, path.with_name("roster.toml"))

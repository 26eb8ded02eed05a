"""The parties of private inference in namespaces, each started by its command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from tacit.cli.main import app
from tests.cli import warm
from tests.cli.hosts import Process
from tests.cli.inference_house import ROLES, House
from tests.network.namespaces import Network, network
from tests.network.wire import Shape

PORTS: Final = {"dealer": 7008, "owner": 7009}


class NetworkHouse(House):
    """Dealer, model owner and the data owner `alice`, in namespaces of their own."""

    def __init__(self, path: Path, joined: Network, student: Path, images: Path) -> None:
        self.network = joined
        super().__init__(path, tacit, student, images)

    def at(self, name: str) -> str:
        return f"tcp://{self.network.address(name)}:{PORTS[name]}"

    def launch(self, name: str, *arguments: str) -> Process:
        process = Process(warm.start(arguments, self.path / name, namespace=self.network.space(name)))
        self._running.append(process)
        return process


def tacit(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@contextmanager
def inference(
    path: Path, student: Path, images: Path, *, shapes: Mapping[str, Shape] | None = None
) -> Iterator[NetworkHouse]:
    """Hosts in namespaces, of which nothing is left. shapes: of the wires that are slow."""
    with network(tuple(ROLES), shapes) as joined:
        house = NetworkHouse(path, joined, student, images)
        try:
            yield house
        finally:
            house.stop()

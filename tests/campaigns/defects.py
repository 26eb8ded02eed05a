"""Defects that can be planted: what a campaign must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest import mock

from tacit.models import checkpoint
from tacit.models.file_system import FILES, FileSystem
from tacit.protocol.core.machine import Output, Transmit
from tacit.simulate.world.disk import SimulatedDisk
from tacit.simulate.world.federation import MemoryFederation


@contextmanager
def journal_too_late() -> Iterator[None]:
    """A shell says first what it has to say, and then writes its journal."""
    emit = MemoryFederation.emit

    def late(self: MemoryFederation, party: str, outputs: list[Output]) -> list[Output]:
        return emit(self, party, sorted(outputs, key=lambda output: not isinstance(output, Transmit)))

    with mock.patch.object(MemoryFederation, "emit", late):
        yield


def not_synchronised(which: Callable[[Path], bool]) -> Callable[[], AbstractContextManager[Any]]:
    synchronise = SimulatedDisk.synchronise

    def some(self: SimulatedDisk, path: Path) -> None:
        if not which(path):
            synchronise(self, path)

    return lambda: mock.patch.object(SimulatedDisk, "synchronise", some)


def model_in_place() -> AbstractContextManager[Any]:
    def write(path: Path, content: bytes, files: FileSystem = FILES) -> None:
        files.write(path, content)
        files.synchronise(path)
        files.synchronise(path.parent)

    return mock.patch.object(checkpoint, "replace_file", write)


@contextmanager
def journal_forgotten() -> Iterator[None]:
    """A client that starts again has an empty journal, and a server that does so has the name of its former session."""
    start_client, start_server = MemoryFederation.start_client, MemoryFederation.start_server

    def forgetful(self: MemoryFederation, name: str) -> Any:
        self.disks[name] = SimulatedDisk()
        return start_client(self, name)

    def again(self: MemoryFederation, *, completed: int = 0) -> None:
        former = self.server.session if hasattr(self, "server") else None
        start_server(self, completed=completed)
        self.server.presence.session = former or self.server.session

    with (
        mock.patch.object(MemoryFederation, "start_client", forgetful),
        mock.patch.object(MemoryFederation, "start_server", again),
    ):
        yield


DEFECTS: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "": nullcontext,
    "journal-too-late": journal_too_late,
    "file-not-synchronised": not_synchronised(lambda path: bool(path.suffix)),
    "folder-not-synchronised": not_synchronised(lambda path: not path.suffix),
    "model-in-place": model_in_place,
    "journal-forgotten": journal_forgotten,
}

"""A simulated disk that keeps synchronised data, and an arbitrary part of the rest.

A killed process leaves its files in the state that it last saw. A power failure leaves of every file the synchronised
content and any prefix of later writes, cut anywhere; and of every folder the synchronised names and any prefix of later
changes. A rename is one such change: no reader ever sees half of it. `aftermaths` yields all disks that a failure may
leave, `fail_power` draws one of them.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from math import inf
from pathlib import Path
from random import Random

from tacit.models.file_system import FileSystem


class Killed(BaseException):
    """The process was killed: not an Exception, because nothing in it can handle that."""


@dataclass(eq=False)
class _File:
    synchronised: bytes = b""
    changes: list[tuple[int, bytes]] = field(default_factory=list)
    """Later changes: the size that the file was cut to, and the bytes added."""

    @property
    def content(self) -> bytes:
        *_, last = self.states()
        return last

    def states(self) -> Iterator[bytes]:
        """Yield the possible contents after a failure, from the synchronised one to the one that a reader sees."""
        content = self.synchronised
        yield content
        for size, added in self.changes:
            for end in range(len(added) + 1):
                yield content[:size] + added[:end]
            content = content[:size] + added


_Names = dict[Path, _File]


class SimulatedDisk(FileSystem):
    """Files of one party. kill_at: number of the operation that kills the process instead."""

    def __init__(self, names: _Names | None = None) -> None:
        self.operations = 0
        """Changes and synchronisations so far."""
        self.kill_at: float = inf
        self.room: float = inf
        """Bytes that may still be written."""
        self._locked: set[Path] = set()
        self._history: defaultdict[Path, list[_Names]] = defaultdict(lambda: [{}])
        """Keyed by folder: its names when it was synchronised, and after every change since."""
        self._replace(names or {})

    def read(self, path: Path) -> bytes:
        return self._file(path).content

    def write(self, path: Path, content: bytes) -> None:
        self._add(path, content, from_start=True)

    def append(self, path: Path, content: bytes) -> None:
        self._add(path, content, from_start=False)

    def truncate(self, path: Path, size: int) -> None:
        self._operate()
        self._file(path).changes.append((size, b""))

    def rename(self, path: Path, target: Path) -> None:
        self._operate()
        self._change(path.parent, {target: self._file(path)}, without=path)

    def remove(self, path: Path) -> None:
        self._operate()
        self._change(path.parent, {}, without=path)

    def synchronise(self, path: Path) -> None:
        self._operate()
        if path in self._history:
            self._history[path] = [self._names(path)]
        else:
            file = self._file(path)
            file.synchronised, file.changes = file.content, []

    def lock(self, path: Path) -> Callable[[], None]:
        if path in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), str(path))
        self._locked.add(path)
        return lambda: self._locked.discard(path)

    def start_again(self) -> None:
        self.kill_at = inf
        self._locked.clear()

    def fail_power(self, random: Random) -> None:
        """Lose unsynchronised data, or a part of it."""
        names = {path: file for folder in self._history.values() for path, file in random.choice(folder).items()}
        self._replace({path: _File(random.choice([*file.states()])) for path, file in names.items()})

    def aftermaths(self) -> Iterator[SimulatedDisk]:
        """Yield all disks that a power failure may leave now."""
        for folders in product(*self._history.values()):
            names = {path: file for folder in folders for path, file in folder.items()}
            for contents in product(*(dict.fromkeys(file.states()) for file in names.values())):
                yield SimulatedDisk({path: _File(content) for path, content in zip(names, contents, strict=True)})

    def _replace(self, names: _Names) -> None:
        self._history.clear()
        for path, file in names.items():
            self._history[path.parent][0][path] = file

    def _operate(self) -> None:
        if self.operations >= self.kill_at:
            raise Killed
        self.operations += 1

    def _names(self, folder: Path) -> _Names:
        return self._history[folder][-1]

    def _file(self, path: Path) -> _File:
        if path not in self._names(path.parent):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return self._names(path.parent)[path]

    def _change(self, folder: Path, names: _Names, *, without: Path | None = None) -> None:
        kept = {path: file for path, file in self._names(folder).items() if path != without}
        self._history[folder].append(kept | names)

    def _add(self, path: Path, content: bytes, *, from_start: bool) -> None:
        self._operate()
        if path not in self._names(path.parent):
            self._change(path.parent, {path: _File()})
        file, fitting = self._file(path), content[: int(min(self.room, len(content)))]
        file.changes.append((0 if from_start else len(file.content), fitting))
        self.room -= len(fitting)
        if fitting != content:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

"""A disk that keeps what was synchronised, and of the rest what it likes.

A process that is killed leaves its files as it last saw them. A failure of power leaves of every file what was
synchronised and any beginning of what was written since, cut anywhere; and of every folder the names that were
synchronised and any beginning of what became of them since. A rename is one such step: nobody ever sees half of it.
`aftermaths` are all the disks that a failure may leave, `fail_power` draws one of them.
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
    """The process is no more: not an Exception, because nothing in it can handle that."""


@dataclass(eq=False)
class _File:
    synchronised: bytes = b""
    changes: list[tuple[int, bytes]] = field(default_factory=list)
    """What was done since: the size that the file was cut to, and what was added."""

    @property
    def content(self) -> bytes:
        *_, last = self.states()
        return last

    def states(self) -> Iterator[bytes]:
        """From what was synchronised to what a reader sees, everything in between that a failure may leave."""
        content = self.synchronised
        yield content
        for size, added in self.changes:
            for end in range(len(added) + 1):
                yield content[:size] + added[:end]
            content = content[:size] + added


_Names = dict[Path, _File]


class SimulatedDisk(FileSystem):
    """The files of one party. kill_at: the number of the operation in the place of which the process is killed."""

    def __init__(self, names: _Names | None = None) -> None:
        self.operations = 0
        """Changes and synchronisations so far."""
        self.kill_at: float = inf
        self.room: float = inf
        """Bytes that may still be written."""
        self._locked: set[Path] = set()
        self._history: defaultdict[Path, list[_Names]] = defaultdict(lambda: [{}])
        """By folder: its names when it was synchronised, and after every change since."""
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
        """Lose what is not synchronised, or a part of it."""
        names = {path: file for folder in self._history.values() for path, file in random.choice(folder).items()}
        self._replace({path: _File(random.choice([*file.states()])) for path, file in names.items()})

    def aftermaths(self) -> Iterator[SimulatedDisk]:
        """All disks that a failure of power may leave now."""
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

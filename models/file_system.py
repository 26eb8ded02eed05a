"""The few things that journals and models ask of a file system, so that a simulated disk can stand in for the real one.

What was written is safe from a failure of power once the file was synchronised, and its name once its folder was. A
rename happens wholly or not at all.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final


class FileSystem:
    """That of the operating system. Methods raise OSError, which for a missing file is FileNotFoundError."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Make a file of this content that only its owner reads, in the place of one that is there."""
        self._put(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, content)

    def append(self, path: Path, content: bytes) -> None:
        """Add to the end of a file, which is made where it is missing."""
        self._put(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666, content)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def rename(self, path: Path, target: Path) -> None:
        """Give a file another name in its folder, in the place of a file that is there."""
        os.replace(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file; nothing if it is missing."""
        path.unlink(missing_ok=True)

    def synchronise(self, path: Path) -> None:
        """Return when the content of a file, or the names in a folder, are on the disk."""
        # Another descriptor than that of the writing does: what is synchronised is the file, and a failure of writing
        # that nobody was told of is told here.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> Callable[[], None]:
        """Have a file, which is made where it is missing, alone until the process ends or calls what it is given.

        BlockingIOError if another one has it, in this process or elsewhere.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return partial(os.close, descriptor)

    @staticmethod
    def _put(path: Path, flags: int, mode: int, content: bytes) -> None:
        descriptor = os.open(path, flags, mode)
        try:
            while content:
                content = content[os.write(descriptor, content) :]
        finally:
            os.close(descriptor)


FILES: Final = FileSystem()


def replace_file(path: Path, content: bytes, files: FileSystem = FILES) -> None:
    """Write a file, whole or not at all, and return when it is on the disk. OSError, which leaves an earlier file."""
    # Always the same name, so that what a killed process has left is overwritten by the next.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        files.write(temporary, content)
        files.synchronise(temporary)
        files.rename(temporary, path)
    except BaseException:
        files.remove(temporary)
        raise
    files.synchronise(path.parent)

"""File-system operations that journals and models need, so that a simulated disk can replace the real one.

Content survives a power failure once the file was synchronised, and its name once its folder was. A rename is atomic.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final


class FileSystem:
    """The operating system's file system. Methods raise OSError; for a missing file, FileNotFoundError."""

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write(self, path: Path, content: bytes) -> None:
        """Write a file of this content that only its owner can read, replacing an existing one."""
        self._put(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, content)

    def append(self, path: Path, content: bytes) -> None:
        """Append to a file, creating it if missing."""
        self._put(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666, content)

    def truncate(self, path: Path, size: int) -> None:
        os.truncate(path, size)

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file within its folder, replacing an existing target."""
        os.replace(path, target)

    def remove(self, path: Path) -> None:
        """Remove a file; do nothing if it is missing."""
        path.unlink(missing_ok=True)

    def synchronise(self, path: Path) -> None:
        """Return when the content of a file, or the names in a folder, are on the disk."""
        # A new descriptor suffices: fsync acts on the file, and reports a write error that nobody has seen yet.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> Callable[[], None]:
        """Lock a file, created if missing, until the process ends or calls the returned function.

        Raises BlockingIOError if it is already locked, in this process or elsewhere.
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
    """Replace a file atomically, and return when it is on the disk. OSError, which leaves an earlier file unchanged."""
    # Always the same name, so that the next run overwrites a killed process's leftover.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        files.write(temporary, content)
        files.synchronise(temporary)
        files.rename(temporary, path)
    except BaseException:
        files.remove(temporary)
        raise
    files.synchronise(path.parent)

"""The ledger of an owner: what its peers have used of its limits of a day, on the disk.

A restart renews nothing: the file is JSON, written anew as a whole and synchronised before the pass that it counts
begins. Entries of former days are left out; a peer without an entry counts from the latest day, so that nobody gains by
a clock that went ahead and came back.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tacit.models.file_system import FILES, replace_file
from tacit.protocol.inference.quota import Spent


class Ledger:
    """path: of the file, 0600; None: it is kept in memory alone. ValueError for a file that is none."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._spent: dict[str, Spent] = {}
        if path is not None:
            try:
                self._spent = msgspec.json.decode(FILES.read(path), type=dict[str, Spent])
            except FileNotFoundError:
                pass
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ValueError(
                    f"{path} does not say what other owners have used ({error}): restore it, or remove it, which gives "
                    "each of them its whole quota of today again"
                ) from None

    def of(self, peer: str) -> Spent:
        latest = max((spent.day for spent in self._spent.values()), default=0)
        return self._spent.get(peer, Spent(day=latest))

    def keep(self, peer: str, spent: Spent) -> None:
        """Note what a peer has used, and return when it is on the disk. OSError, and nothing is noted."""
        kept = {name: each for name, each in self._spent.items() if each.day >= spent.day} | {peer: spent}
        if self._path is not None:
            replace_file(self._path, msgspec.json.encode(kept))
        self._spent = kept

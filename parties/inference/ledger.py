"""The ledger of an owner: its peers' use of its daily limits, on disk.

A restart renews nothing: the JSON file is rewritten atomically and synchronised before the counted pass begins. Entries
of former days are dropped. A peer without an entry counts from the latest day, so that a clock that ran ahead and was
set back grants nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tacit.models.file_system import FILES, replace_file
from tacit.protocol.inference.quota import Spent


class Ledger:
    """path: of the file, 0600; None: in memory alone. ValueError for an invalid file."""

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
        """Persist a peer's use before returning. OSError, and nothing is recorded."""
        kept = {name: each for name, each in self._spent.items() if each.day >= spent.day} | {peer: spent}
        if self._path is not None:
            replace_file(self._path, msgspec.json.encode(kept))
        self._spent = kept

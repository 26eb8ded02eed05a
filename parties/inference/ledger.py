"""What every data owner has used of its quota, on the model owner's disk: so that starting again renews nothing.

One JSON file, written anew as a whole and synchronised before the pass that it counts begins. Entries of former days
are left out.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tacit.models.file_system import FILES, replace_file
from tacit.protocol.inference.quota import Spent
from tacit.protocol.inference.results import Charged


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
                    f"{path} does not say what data owners have used ({error}): restore it, or remove it, which gives "
                    "each of them its whole quota of today again"
                ) from None

    def of(self, data_owner: str) -> Spent:
        """What this one has used."""
        return self._spent.get(data_owner, Spent())

    def keep(self, charged: Charged) -> None:
        """Note it, and return when it is on the disk. OSError, and nothing is noted."""
        others = {name: spent for name, spent in self._spent.items() if spent.day >= charged.spent.day}
        spent = others | {charged.peer: charged.spent}
        if self._path is not None:
            replace_file(self._path, msgspec.json.encode(spent))
        self._spent = spent

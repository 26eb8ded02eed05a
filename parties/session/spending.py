"""Statements of clients' privacy spending, which a server and the clients of a cohort keep for each other.

One JSON file of a party: by lineage of the roster and by signing key, the highest received statement. A party that
restores its folder from a backup may lack some: the others still have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.file_system import FILES, replace_file
from tacit.parties.links.keys import decode_key, encode_key
from tacit.protocol.sum.spending import Statement

_DECODER: Final = msgspec.json.Decoder(dict[str, dict[str, Statement]])


class SpendingFileError(OSError):
    """Statements cannot be read or written; the message names the file and the remedy."""


class SpendingFile:
    def __init__(self, path: Path) -> None:
        self._path = path

    def held(self, lineage: bytes) -> dict[bytes, bytes]:
        return self._read().get(lineage.hex(), {})

    def keep(self, lineage: bytes, statements: Mapping[bytes, bytes]) -> None:
        """Persist these statements in place of lower ones. SpendingFileError."""
        kept = self._read()
        kept.setdefault(lineage.hex(), {}).update(statements)
        written = {of: {encode_key(key): said for key, said in each.items()} for of, each in kept.items()}
        try:
            replace_file(self._path, msgspec.json.encode(written))
        except OSError as error:
            raise SpendingFileError(f"{self._path} cannot be written ({error.strerror}): make room there") from None

    def _read(self) -> dict[str, dict[bytes, bytes]]:
        try:
            read = _DECODER.decode(FILES.read(self._path))
            return {of: {decode_key(key): said for key, said in each.items()} for of, each in read.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise SpendingFileError(
                f"{self._path} cannot be read ({error}): restore it, or remove it, with what it knows of others"
            ) from None

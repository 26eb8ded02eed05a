"""What an owner has laid by with one other, on its disk: material of passes to come (inference.md, *Laid by*).

stock               which material, its key, and both counters; replaced as a whole, and synchronised
ID/PIECE-PART       corrections of one part of a piece that this owner receives, and a keyed digest of them

The folder is this owner's alone (0700, files 0600): who has what is in it reads the passes that it serves. The counter
is on the disk before anything is opened that depends on a piece. What is not as it was written, or was open to others,
serves nothing: it is deleted, and whoever is told hears why.
"""

from __future__ import annotations

import hmac
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.file_system import FILES, replace_file
from tacit.protocol.core.messages import Hash
from tacit.protocol.inference.messages import Number, Stock
from tacit.protocol.inference.stock import Held

_DIGEST_BYTES: Final = 32
_PLAIN: Final = ("stock", ".stock.tmp")


class StoreError(OSError):
    """What is laid by cannot be used or kept; the message names the place and what became of it."""


class Laid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file `stock`."""

    owners: tuple[str, str]
    """Whose it is, and with whom."""
    stock: Stock
    terms: Hash
    """Digest of those on which it was dealt."""
    requests: Hash
    """Digest of the requests for a piece: another release may ask for others."""
    first: Number
    """Number of the first request of the first piece."""
    key: Hash
    """Of this owner's streams of material."""

    def __repr__(self) -> str:
        return f"Laid(owners={self.owners}, stock={self.stock}, <secret>)"


class Store:
    """What one owner has laid by with one other. told: why something is deleted, or not kept."""

    def __init__(self, folder: Path, *, own: str, peer: str, told: Callable[[str], None] = lambda reason: None) -> None:
        self.folder = folder / peer
        self._owners = own, peer
        self.told = told

    def held(self) -> Held | None:
        """What is there; what cannot be used is deleted. Of used pieces, and of incomplete ones, nothing is left."""
        try:
            laid = self._read()
        except FileNotFoundError:
            self._clear()
            return None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self.void(f"{error}")
            return None
        if laid.stock.next >= laid.stock.end:
            self._clear()
            return None
        self._sweep(laid.stock)
        return Held(laid.stock, laid.terms)

    def void(self, reason: str = "") -> None:
        """Delete what is there. reason: said, where there was something."""
        if (self.folder / "stock").exists() and reason:
            self.told(f"material that was laid by with {self._owners[1]} is void, and deleted: {reason}")
        self._clear()

    def open(self, stock: bytes, *, requests: bytes) -> Laid:
        """That of this name, if a program asks for these requests. StoreError, and it is void, if it is another one."""
        laid = self._own(stock)
        if laid.requests != requests:
            self.void("this release asks for other material")
            raise StoreError(f"{self.folder}: was dealt to another release, and is deleted; ask again")
        return laid

    def begin(self, laid: Laid) -> None:
        """Begin to lay by, in the place of what was there. OSError."""
        self._clear()
        (self.folder / laid.stock.id.hex()).mkdir(mode=0o700, parents=True)
        for part in (self.folder, *self.folder.parents[:1]):
            part.chmod(0o700)
        replace_file(self.folder / "stock", msgspec.msgpack.encode(laid))

    def mark(self, stock: bytes, piece: int) -> None:
        """Note that a piece is used, and return when that is on the disk. StoreError, and all is void, if it cannot be;
        or if it is marked already."""
        laid = self._own(stock)
        if not laid.stock.next <= piece < laid.stock.end:
            raise StoreError(f"{self.folder}: piece {piece} is used, or was never there: ask again")
        try:
            self._write(laid, next=piece + 1)
        except OSError as error:
            self.void(f"its counter cannot be written ({error.strerror})")
            raise StoreError(f"{self.folder}: the counter cannot be written ({error.strerror}); make room") from error

    def drop(self, stock: bytes, piece: int) -> None:
        """Delete a piece that is used."""
        for path in (self.folder / stock.hex()).glob(f"{piece}-*"):
            _remove(path)

    def add(self, stock: bytes) -> None:
        """Count a piece whose parts are all on the disk. OSError."""
        laid = self._own(stock)
        FILES.synchronise(self.folder / stock.hex())
        self._write(laid, end=laid.stock.end + 1)

    def part(self, laid: Laid, piece: int, part: int) -> Part:
        """A part of a piece, to be written or read."""
        return Part(self.folder / laid.stock.id.hex() / f"{piece}-{part}", laid, piece, part)

    def _own(self, stock: bytes) -> Laid:
        try:
            laid = self._read()
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise StoreError(f"{self.folder}: what was laid by is gone ({error}); ask again") from error
        if laid.stock.id != stock:
            raise StoreError(f"{self.folder}: another session has laid by something else; ask again")
        return laid

    def _read(self) -> Laid:
        path = self.folder / "stock"
        for place in (self.folder, path):
            _check_private(place)
        laid = msgspec.msgpack.decode(FILES.read(path), type=Laid)
        if laid.owners != self._owners:
            raise ValueError(f"{path}: is of {' with '.join(laid.owners)}")
        return laid

    def _write(self, laid: Laid, **changes: int) -> None:
        stock = msgspec.structs.replace(laid.stock, **changes)
        replace_file(self.folder / "stock", msgspec.msgpack.encode(msgspec.structs.replace(laid, stock=stock)))

    def _sweep(self, stock: Stock) -> None:
        """Delete what neither counter covers: of a killed process."""
        for path in (self.folder / stock.id.hex()).glob("*-*"):
            piece = path.name.partition("-")[0]
            if not piece.isdecimal() or not stock.next <= int(piece) < stock.end:
                _remove(path)

    def _clear(self) -> None:
        # The counters first: without them the rest serves nothing.
        try:
            for name in _PLAIN:
                FILES.remove(self.folder / name)
            if self.folder.exists():
                shutil.rmtree(self.folder)
        except OSError as error:
            self.told(f"{self.folder} cannot be deleted ({error.strerror}): delete it")


class Part:
    """A file of corrections, in the order of their requests."""

    def __init__(self, path: Path, laid: Laid, piece: int, part: int) -> None:
        self._path = path
        self._digest = blake2b(
            f"{piece}-{part}".encode(), digest_size=_DIGEST_BYTES, key=laid.key, salt=laid.stock.id[:16]
        )

    def begin(self) -> None:
        """Make the file. OSError, like `add` and `finish`."""
        FILES.write(self._path, b"")

    def add(self, data: bytes | bytearray) -> None:
        """The corrections of the next request."""
        FILES.append(self._path, bytes(data))
        self._digest.update(data)

    def finish(self) -> None:
        """Return when all is on the disk."""
        FILES.append(self._path, self._digest.digest())
        FILES.synchronise(self._path)

    def read(self, sizes: Sequence[int]) -> list[bytearray]:
        """The corrections of so many bytes each. StoreError if they are not what was written."""
        found = [bytearray(size) for size in sizes]
        try:
            with self._path.open("rb") as file:
                for data in found:
                    file.readinto(data)
                    self._digest.update(data)
                written = file.read(_DIGEST_BYTES + 1)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read ({error.strerror}); its piece is lost, ask again") from error
        if not hmac.compare_digest(written, self._digest.digest()):
            raise StoreError(f"{self._path} is not what was written; its piece is lost, ask again")
        return found


def _check_private(path: Path) -> None:
    """ValueError for what others can read, or could have exchanged."""
    status = path.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ValueError(f"{path} is open to others than its owner, or is somebody else's")


def _remove(path: Path) -> None:
    with suppress(OSError):
        FILES.remove(path)

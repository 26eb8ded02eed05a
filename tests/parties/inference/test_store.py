"""What an owner has laid by, on its disk: what is not as it was written, or was open to others, serves nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.models.file_system import FILES, FileSystem
from tacit.parties.inference.store import Laid, Store, StoreError
from tacit.protocol.inference.messages import Stock
from tacit.simulate.world.disk import Killed

ID = bytes(range(32))
KEY = b"k" * 32
PARTS = 2
CORRECTIONS = [b"\1" * 16, b"", b"\2" * 40]


def laid(stock: bytes = ID) -> Laid:
    return Laid(
        owners=("alice", "owner"),
        stock=Stock(id=stock, batch=2, next=0, end=0),
        terms=b"t" * 32,
        requests=b"r" * 32,
        first=7,
        key=KEY,
    )


class Told(list[str]):
    """What a store has said."""


def filled(path: Path, pieces: int = 3) -> tuple[Store, Told]:
    told = Told()
    store = Store(path, own="alice", peer="owner", told=told.append)
    store.begin(laid())
    for piece in range(pieces):
        for place in range(PARTS):
            part = store.part(laid(), piece, place)
            part.begin()
            for data in CORRECTIONS:
                part.add(data)
            part.finish()
        store.add(ID)
    return store, told


def files(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*") if found.is_file()}


def test_what_is_laid_by_is_found_again(tmp_path: Path) -> None:
    _, told = filled(tmp_path)
    again = Store(tmp_path, own="alice", peer="owner")
    held = again.held()
    assert held is not None
    assert (held.stock, held.terms) == (Stock(id=ID, batch=2, next=0, end=3), b"t" * 32)
    opened = again.open(ID, requests=b"r" * 32)
    assert (opened.key, opened.first) == (KEY, 7)
    assert again.part(opened, 2, 1).read([16, 0, 40]) == CORRECTIONS
    assert told == []
    for path in tmp_path.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert KEY not in repr(opened).encode()


def test_a_mark_is_on_the_disk_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = filled(tmp_path)
    done: list[tuple[str, str]] = []

    def noting(name: str) -> Callable[..., None]:
        original = getattr(FileSystem, name)

        def noted(self: FileSystem, path: Path, *more: Path) -> None:
            original(self, path, *more)
            done.append((name, path.name))

        return noted

    for name in ("synchronise", "rename"):
        monkeypatch.setattr(FileSystem, name, noting(name))
    store.mark(ID, 0)
    assert done == [("synchronise", ".stock.tmp"), ("rename", ".stock.tmp"), ("synchronise", "owner")]
    held = Store(tmp_path, own="alice", peer="owner").held()
    assert held is not None
    assert held.stock.next == 1
    assert not any(name.endswith("/0-0") for name in files(tmp_path))


@pytest.mark.parametrize("piece", [0, 1, 3])
def test_a_piece_is_marked_once(tmp_path: Path, piece: int) -> None:
    """One that is used, one that the other side has skipped, and one that was never there."""
    store, _ = filled(tmp_path)
    store.mark(ID, 1)
    with pytest.raises(StoreError, match=f"piece {piece} is used, or was never there"):
        store.mark(ID, piece)


def test_what_is_used_up_is_gone(tmp_path: Path) -> None:
    store, told = filled(tmp_path, 1)
    store.mark(ID, 0)
    store.drop(ID, 0)
    assert store.held() is None
    assert (files(tmp_path), told) == (set(), [])


def test_a_piece_that_a_killed_process_has_not_finished_is_gone(tmp_path: Path) -> None:
    store, _ = filled(tmp_path, 1)
    store.part(laid(), 1, 0).begin()
    assert store.held() is not None
    assert files(tmp_path) == {"owner/stock", *(f"owner/{ID.hex()}/0-{part}" for part in range(PARTS))}


def cut_off(path: Path) -> None:
    os.truncate(path / "owner" / "stock", 40)


def garbage(path: Path) -> None:
    (path / "owner" / "stock").write_bytes(b"\xc1")


def open_to_others(path: Path) -> None:
    (path / "owner" / "stock").chmod(0o640)


def open_folder(path: Path) -> None:
    (path / "owner").chmod(0o755)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_off, "truncated"),
        (garbage, "malformed"),
        (open_to_others, "open to others"),
        (open_folder, "open to others"),
    ],
)
def test_what_cannot_be_used_is_deleted_and_said(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    store, told = filled(tmp_path)
    spoil(tmp_path)
    assert store.held() is None
    assert files(tmp_path) == set()
    (line,) = told
    assert line.startswith("material that was laid by with owner is void, and deleted: ")
    assert reason in line


def test_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, told = filled(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert store.held() is None
    assert "is somebody else's" in told[0]


def test_of_another_owner(tmp_path: Path) -> None:
    filled(tmp_path)
    told = Told()
    assert Store(tmp_path, own="bob", peer="owner", told=told.append).held() is None
    assert "is of alice with owner" in told[0]


def shorter(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def other(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(b"\3" + content[1:])


def exchanged(path: Path) -> None:
    path.write_bytes(path.with_name("1-1").read_bytes())


@pytest.mark.parametrize("spoil", [shorter, longer, other, exchanged, Path.unlink])
def test_a_part_that_is_not_what_was_written(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    store, _ = filled(tmp_path)
    spoil(tmp_path / "owner" / ID.hex() / "1-0")
    with pytest.raises(StoreError, match="its piece is lost, ask again"):
        store.part(laid(), 1, 0).read([16, 0, 40])


def test_another_release(tmp_path: Path) -> None:
    store, told = filled(tmp_path)
    with pytest.raises(StoreError, match="dealt to another release"):
        store.open(ID, requests=b"o" * 32)
    assert (store.held(), files(tmp_path)) == (None, set())
    assert len(told) == 1


def test_of_a_former_session(tmp_path: Path) -> None:
    """A session that ends late does not touch what the next one has laid by."""
    store, _ = filled(tmp_path)
    newer = bytes(32)
    store.begin(laid(newer))
    for late in (lambda: store.add(ID), lambda: store.mark(ID, 0), lambda: store.open(ID, requests=b"r" * 32)):
        with pytest.raises(StoreError, match="another session has laid by something else"):
            late()
    with pytest.raises(FileNotFoundError):
        store.part(laid(), 0, 0).begin()
    store.void()
    with pytest.raises(StoreError, match="is gone"):
        store.mark(newer, 0)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A counter that cannot be written voids everything: the piece is not used, now or later."""
    store, told = filled(tmp_path)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FILES, "write", full)
    with pytest.raises(StoreError, match="the counter cannot be written \\(No space left on device\\)"):
        store.mark(ID, 0)
    assert files(tmp_path) == set()
    assert "No space left on device" in told[0]


class Life:
    """A process that lays two pieces by and uses them, and is killed in the place of one of its file operations."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch, kill_at: float) -> None:
        self.operations = 0
        self.marked = 0
        """Marks that have returned."""
        self._path = path
        self._kill_at = kill_at
        for name in ("write", "append", "rename", "remove", "synchronise"):
            patch.setattr(FileSystem, name, self._dying(getattr(FileSystem, name)))

    def _dying(self, original: Callable[..., None]) -> Callable[..., None]:
        def operate(files: FileSystem, *given: object) -> None:
            if self.operations >= self._kill_at:
                raise Killed
            self.operations += 1
            original(files, *given)

        return operate

    def live(self) -> None:
        """To the end."""
        store, _ = filled(self._path, 2)
        for piece in range(2):
            store.mark(ID, piece)
            self.marked = piece + 1
            store.drop(ID, piece)


def test_whoever_is_killed_in_any_operation_uses_no_piece_again_and_has_what_it_counts(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        whole = Life(tmp_path / "whole", patch, float("inf"))
        whole.live()
    assert (whole.marked, whole.operations > 30) == (2, True)
    found: set[tuple[int, int] | None] = set()
    for kill_at in range(whole.operations):
        path = tmp_path / str(kill_at)
        with pytest.MonkeyPatch.context() as patch:
            life = Life(path, patch, kill_at)
            with pytest.raises(Killed):
                life.live()
        store = Store(path, own="alice", peer="owner")
        held = store.held()
        if held is None:
            assert files(path) == set()
            found.add(None)
            continue
        first, end = held.stock.next, held.stock.end
        assert first >= life.marked
        for piece in range(first, end):
            for part in range(PARTS):
                assert store.part(laid(), piece, part).read([16, 0, 40]) == CORRECTIONS
        found.add((first, end))
    assert found == {None, (0, 1), (0, 2), (1, 2)}

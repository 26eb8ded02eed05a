"""What an owner keeps of images: rows on the disk or in memory, bound to what they are of."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import torch

from tacit.parties.adaptation.kept import KeptShares
from tacit.protocol.adaptation.kept import NOTHING
from tacit.protocol.inference.schedule import PLACE, STREAM

SHAPE = (2, 3, 4)
SESSION = bytes(range(32))


def outputs(images: int, seed: int = 1) -> tuple[list[torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(-(2**63), 2**63 - 1, (2, images, 3, 4), generator=generator)
    counts = torch.randint(-(2**63), 2**63 - 1, (images,), generator=generator)
    return list(words), counts


def resumed(kept: KeptShares, session: bytes = SESSION) -> KeptShares:
    kept.resumed(SHAPE, session, kept.record.last[0])
    return kept


def equal(one: torch.Tensor, other: torch.Tensor, bits: int) -> bool:
    return not bool(((one - other) << (64 - bits)).any())


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_batch_has_the_rows_of_its_images_in_its_order(tmp_path: Path, on_disk: bool) -> None:
    kept = resumed(KeptShares(tmp_path / "kept" / "bob.shares" if on_disk else None))
    one, counts = outputs(3)
    more, further = outputs(2, seed=2)
    kept.keep(SESSION, 1, one, counts)
    kept.keep(SESSION, 2, more, further)
    words, counted = torch.cat([torch.stack(one), torch.stack(more)], 1), torch.cat([counts, further])
    order = [4, 0, 2]
    found, outside = kept.batch(order)
    assert found.shape == (2, 3, 3, 4)
    assert equal(found, words[:, order], STREAM)
    assert equal(outside, counted[order].sum(), PLACE)


def test_rows_and_record_outlive_the_process_and_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "bob.shares"
    kept = resumed(KeptShares(path, bound=b"images"))
    words, counts = outputs(3)
    kept.record.terms_digest = b"terms"
    kept.keep(SESSION, 1, words, counts)
    kept.use()
    again = KeptShares(path, bound=b"images")
    assert again.record == kept.record
    assert (again.record.last[0], again.record.uses) == (3, 1)
    assert equal(resumed(again).batch([1])[0], torch.stack(words)[:, 1:2], STREAM)
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    # What was kept of other images, or under other terms, is not used.
    assert KeptShares(path, bound=b"others").record.last == (0, NOTHING)
    assert again.record.of(b"other terms").last == (0, NOTHING)


def test_what_both_do_not_have_is_forgotten(tmp_path: Path) -> None:
    kept = resumed(KeptShares(tmp_path / "bob.shares"))
    for number, images in ((1, 3), (2, 2)):
        kept.keep(SESSION, number, *outputs(images, seed=number))
    kept.record.resume(b"terms", kept.record.before, 0)
    kept.resumed(SHAPE, SESSION, 3)
    assert (tmp_path / "bob.shares").stat().st_size == 3 * (5 * 24 + 4)
    kept.keep(SESSION, 3, *outputs(1, seed=3))
    assert equal(kept.batch([3])[0], torch.stack(outputs(1, seed=3)[0]), STREAM)


def test_a_session_that_another_has_followed_keeps_nothing_more() -> None:
    kept = resumed(KeptShares())
    kept.keep(SESSION, 1, *outputs(3))
    resumed(kept, bytes(32))
    with pytest.raises(RuntimeError, match="a later session goes on"):
        kept.keep(SESSION, 2, *outputs(3))
    with pytest.raises(RuntimeError, match="3 images are kept where 2 were agreed on"):
        kept.resumed(SHAPE, SESSION, 2)


@pytest.mark.parametrize("on_disk", [True, False])
def test_a_pass_that_ends_after_the_next_session_has_compared_is_forgotten(tmp_path: Path, on_disk: bool) -> None:
    kept = resumed(KeptShares(tmp_path / "bob.shares" if on_disk else None))
    kept.keep(SESSION, 1, *outputs(3))
    agreed = kept.record.last
    kept.record.resume(kept.record.terms_digest, agreed, 0)
    kept.keep(SESSION, 2, *outputs(2, seed=2))
    later = bytes(32)
    kept.resumed(SHAPE, later, 3)
    assert kept.record.last == agreed
    kept.keep(later, 1, *outputs(1, seed=3))
    assert equal(kept.batch([3])[0], torch.stack(outputs(1, seed=3)[0]), STREAM)


def test_files_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bob.shares"
    (tmp_path / "bob.record").write_bytes(b"\xc1")
    with pytest.raises(ValueError, match=r"bob\.record cannot be used .*: remove its folder"):
        KeptShares(path)
    (tmp_path / "bob.record").unlink()
    kept = resumed(KeptShares(path))
    kept.keep(SESSION, 1, *outputs(3))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"bob\.shares is shorter than its record says"):
        kept.batch([2])

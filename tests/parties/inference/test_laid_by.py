"""Material that is laid by, over real sockets: answers are right without the dealer, and a piece serves once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.models.file_system import FILES
from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.inference.store import Store
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.quota import Quota
from tacit.simulate.world.inference import EITHER_INPUT

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Transformer
    from in_one_loop import DEALER, MODEL_OWNER, House, house
    from test_parties import BLOCK_ERROR, error_of, unusual

pytestmark = pytest.mark.asyncio


def held(path: Path, party: str) -> tuple[int, int] | None:
    """Counters of what a party has laid by with the other."""
    peer = "alice" if party == MODEL_OWNER else MODEL_OWNER
    found = Store(path / party, own=party, peer=peer).held()
    return None if found is None else (found.stock.next, found.stock.end)


async def asked(home: House, path: Path, block: Transformer, images: int, **settings: Any) -> int:
    """Ask about the first images; how many are answered, rightly."""
    given = {"laid_by": path / "alice", "batch": 1, "policy": EITHER_INPUT, **settings}
    found = await home.asks("alice", block.images[:images], **given)
    await home.waits(MODEL_OWNER, "session-over", peer="alice", code=None)
    answered = len(found.logits)
    assert error_of(found, block.friendly, block.images[:answered]) < 2 * BLOCK_ERROR
    return answered


@pytest.mark.parametrize("input", ["known", "shared"])
@pytest.mark.parametrize("ahead", [1, None])
async def test_later_sessions_take_what_is_laid_by(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, input: str, ahead: int | None
) -> None:
    async with house(tmp_path) as home:
        await home.dealer(ahead=3)
        await home.model_owner(private, input=input, laid_by=tmp_path / MODEL_OWNER, ahead=ahead)
        assert await asked(home, tmp_path, one_block, 2, ahead=ahead) == 2
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [(0, 3)] * 2
        await home.waits(DEALER, "session")
        assert await asked(home, tmp_path, one_block, 2, ahead=ahead) == 2
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [(2, 3)] * 2
        # Of three images one is left for another session; and nothing is left of what was laid by.
        assert await asked(home, tmp_path, one_block, 3, ahead=ahead) == 1
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [None] * 2
        assert not any(event == "session" for party, event, _ in home.told if party == DEALER)
        assert await asked(home, tmp_path, one_block, 1, ahead=ahead) == 1
        await home.waits(DEALER, "session")
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [(0, 3)] * 2


async def test_a_refused_pass_uses_its_piece_and_counts(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    """And so does one that the quota has refused before it began: both have marked its piece by then."""
    images = torch.stack([unusual(private), one_block.images[1], one_block.images[2]])
    async with house(tmp_path) as home:
        await home.dealer(ahead=3)
        quota = Quota(images=3, refused=2)
        await home.model_owner(private, laid_by=tmp_path / MODEL_OWNER, quota=quota)
        assert await asked(home, tmp_path, one_block, 1) == 1
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [(0, 3)] * 2
        found = await home.asks("alice", images[:2], batch=1, laid_by=tmp_path / "alice")
        assert found.refused.tolist() == [True, False]
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [(2, 3)] * 2
        with pytest.raises(InferenceError, match="3 images") as refused:
            await home.asks("alice", images[2:], batch=1, laid_by=tmp_path / "alice")
        assert (refused.value.code, refused.value.culprit) == (Code.POLICY, "alice")
        assert [held(tmp_path, party) for party in (MODEL_OWNER, "alice")] == [None] * 2


async def test_another_model_voids_what_is_laid_by(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    """The same weights under another commitment."""
    async with house(tmp_path) as home:
        await home.dealer(ahead=2)
        party = await home.model_owner(private, laid_by=tmp_path / MODEL_OWNER)
        assert await asked(home, tmp_path, one_block, 1) == 1
        first = set(tmp_path.rglob("0-0"))
        party.model = prepared_model(one_block.friendly, one_block.images, margin=1.5)
        said: list[str] = []
        assert await asked(home, tmp_path, one_block, 1, told=said.append) == 1
        void, laid = said
        assert "is void, and deleted: model-owner does not have the same, on the same terms" in void
        assert laid == "material for 2 passes is laid by"
        told = (await home.waits(MODEL_OWNER, "laid-by"))["reason"]
        assert "is void, and deleted: alice does not have the same, on the same terms" in told
        assert len(first) == 2
        assert not any(path.exists() for path in first)


@pytest.mark.parametrize("party", [MODEL_OWNER, "alice"])
async def test_a_disk_that_is_full_ends_the_laying_by_and_nothing_else(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, party: str
) -> None:
    """Two pieces fit at one of them: then both have two."""
    append = FILES.append

    def filling(path: Path, content: bytes) -> None:
        if path.is_relative_to(tmp_path / party) and path.name.startswith("2-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(path, content)

    monkeypatch.setattr(FILES, "append", filling)
    said: list[str] = []
    async with house(tmp_path) as home:
        await home.dealer(ahead=5)
        await home.model_owner(private, laid_by=tmp_path / MODEL_OWNER)
        assert await asked(home, tmp_path, one_block, 1, told=said.append) == 1
        if party == MODEL_OWNER:
            said.append((await home.waits(MODEL_OWNER, "laid-by"))["reason"])
        assert any("no more material is laid by" in line and "No space left on device" in line for line in said)
        assert held(tmp_path, party) == (0, 2)
        assert await asked(home, tmp_path, one_block, 3) == 2


@pytest.mark.parametrize("party", [MODEL_OWNER, "alice"])
async def test_who_keeps_nothing_is_served_all_the_same(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, party: str
) -> None:
    async with house(tmp_path) as home:
        await home.dealer(ahead=2)
        await home.model_owner(private, laid_by=None if party == MODEL_OWNER else tmp_path / MODEL_OWNER)
        settings = {"laid_by": None} if party == "alice" else {}
        for _ in range(2):
            assert await asked(home, tmp_path, one_block, 1, **settings) == 1
        assert [held(tmp_path, owner) for owner in (MODEL_OWNER, "alice")] == [None] * 2


async def test_a_part_that_is_spoilt_voids_what_both_have(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer(ahead=2)
        await home.model_owner(private, laid_by=tmp_path / MODEL_OWNER)
        await asked(home, tmp_path, one_block, 1)
        for part in (tmp_path / MODEL_OWNER).rglob("0-1"):
            part.write_bytes(part.read_bytes()[:-1])
        failed = home.asks("alice", one_block.images[:1], batch=1, laid_by=tmp_path / "alice")
        with pytest.raises(InferenceError, match="it cannot go on \\(StoreError\\)"):
            await failed
        reason = (await home.waits(MODEL_OWNER, "laid-by"))["reason"]
        assert "is not what was written" in reason
        await home.waits(MODEL_OWNER, "session-over", code="LOCAL")
        assert await asked(home, tmp_path, one_block, 1) == 1
        assert [held(tmp_path, owner) for owner in (MODEL_OWNER, "alice")] == [(0, 2)] * 2

"""What data owners have used outlives the model owner; what cannot be written does not begin."""

import stat
from pathlib import Path

import pytest
import torch

from tacit.models.file_system import FILES
from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.inference.ledger import Ledger
from tacit.parties.inference.private_model import PrivateModel
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import InferencePolicy
from tacit.protocol.inference.quota import Quota, Spent

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Transformer
    from in_one_loop import MODEL_OWNER, ROSTER, house


def test_it_is_read_again_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    ledger = Ledger(path)
    assert ledger.of("alice") == Spent()
    first, second = Spent(day=1, used=3, refused=1), Spent(day=1, used=2, refused=0)
    ledger.keep("alice", first)
    ledger.keep("bob", second)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Ledger(path)
    assert (again.of("alice"), again.of("bob")) == (first, second)
    again.keep("bob", Spent(day=2, used=1, refused=0))
    assert b"alice" not in path.read_bytes()
    # For a clock that comes back to the first day, alice has used that up.
    assert again.of("alice") == Spent(day=2)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"alice": {"day": -1}}', b'{"alice": {"more": 1}}', b"\xff"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ledger\.json does not say what other owners have used .* or remove it"):
        Ledger(path)


@pytest.mark.asyncio
async def test_a_model_owner_that_starts_again_goes_on_counting(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    """Of five images in a day two may be refused, which the first two are."""
    path, quota = tmp_path / "ledger.json", Quota(used=5, refused=2)
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, quota=quota, ledger=path)
        beyond = torch.full_like(one_block.images[:2], private.public.embedding.largest * 0.999)
        found = await home.asks("alice", beyond, batch=2)
        assert found.refused.all()
        await home.stop(MODEL_OWNER)
        await home.model_owner(private, quota=quota, ledger=path)
        with pytest.raises(InferenceError, match=r"2 images a day of a data owner may be refused, 0 are left") as ended:
            await home.asks("alice", one_block.images[:1], batch=1)
        # Of another data owner this says nothing.
        assert not (await home.asks("bob", one_block.images[:2], batch=1)).refused.any()
    assert ended.value.code is Code.POLICY
    kept = Ledger(path)
    assert (kept.of("alice").refused, kept.of("alice").used) == (2, 2)
    assert (kept.of("bob").refused, kept.of("bob").used) == (0, 2)


@pytest.mark.asyncio
async def test_a_data_owner_that_starts_again_goes_on_counting(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    """Two passes in a day may be out of range, which the first two are; a model owner of another key has limits of its
    own."""
    path, policy = tmp_path / "ledger.json", InferencePolicy(quota=Quota(used=5, refused=2))
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        beyond = torch.full_like(one_block.images[:2], private.public.embedding.largest * 0.999)
        found = await home.asks("alice", beyond, batch=1, policy=policy, ledger=Ledger(path))
        assert found.refused.all()
        with pytest.raises(InferenceError, match=r"alice: its limit of 2 refused passes a day with .*") as ended:
            await home.asks("alice", one_block.images[:1], batch=1, policy=policy, ledger=Ledger(path))
    assert ended.value.code is Code.POLICY
    account = ROSTER.server.signing_public.hex()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (Ledger(path).of(account).used, Ledger(path).of(account).refused) == (2, 2)
    assert Ledger(path).of("00" * 32).used == 0


@pytest.mark.asyncio
async def test_a_pass_that_cannot_be_counted_does_not_begin(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, ledger=tmp_path / "ledger.json")
        monkeypatch.setattr(FILES, "write", full)
        with pytest.raises(InferenceError):
            await home.asks("alice", one_block.images[:1], batch=1)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"])
    assert (over.code, over.culprit) == ("LOCAL", MODEL_OWNER)
    assert "OSError" in over.failure

"""What data owners have used outlives the model owner; what cannot be written does not begin."""

import stat
from pathlib import Path

import pytest

from tacit.models.file_system import FILES
from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.inference.ledger import Ledger
from tacit.parties.inference.private_model import PrivateModel
from tacit.protocol.inference.quota import Spent

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from conftest import Transformer
    from in_one_loop import MODEL_OWNER, house


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

"""The audit of the dealer, between real parties: what is used is right, and whoever lies is found with the probability
that is promised."""

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.parties.correlated.material import Dealing, Linear, Weight
from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.events import InferenceSessionEnded
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.private_model import PrivateModel
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.audit import RequestKeys, audited_of
from tacit.protocol.inference.data_owner import InferencePolicy
from tacit.protocol.inference.session import InferenceSession
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.in_one_loop import DEALER, MODEL_OWNER, House, house
from tests.parties.inference.test_parties import BLOCK_ERROR, error_of

pytestmark = pytest.mark.asyncio
QUARTER = audited_of(0.25)
AUDITING = InferencePolicy(audited=QUARTER)


async def asked(home: House, private: PrivateModel, images: torch.Tensor) -> Any:
    await home.dealer()
    await home.model_owner(private, audited=QUARTER)
    return await home.asks("alice", images, batch=2, policy=AUDITING)


async def test_what_passes_the_audit_gives_the_logits_and_no_request_serves_twice(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses: dict[int, list[tuple[str, int]]] = {}
    kinds: dict[int, AnyBlockRequest] = {}

    def watched(name: str) -> Callable[..., bytes]:
        original = getattr(RequestKeys, name)

        def watch(self: RequestKeys, number: int) -> bytes:
            uses.setdefault(id(self), []).append((name, number))
            found: bytes = original(self, number)
            return found

        return watch

    for name in ("use", "reveal"):
        monkeypatch.setattr(RequestKeys, name, watched(name))
    correction = Dealing.correction

    def noted(self: Dealing, request: AnyBlockRequest, number: int) -> Iterator[torch.Tensor]:
        kinds[number] = request
        return correction(self, request, number)

    monkeypatch.setattr(Dealing, "correction", noted)
    images = one_block.images[:5]
    async with house(tmp_path) as home:
        found = await asked(home, private, images)
        await home.waits(DEALER, InferenceSessionEnded, code=None)
    assert not found.refused.any()
    assert error_of(found, one_block.friendly, images) < 2 * BLOCK_ERROR
    assert len(uses) == 2
    revealed = [{number for name, number in each if name == "reveal"} for each in uses.values()]
    assert revealed[0] == revealed[1] != set()
    for each in uses.values():
        numbers = [number for _, number in each]
        assert len(set(numbers)) == len(numbers)
    # Whatever was not revealed was used by both, but for the masks, which the model owner alone draws.
    used = [{number for name, number in each if name == "use"} for each in uses.values()]
    masks = {number for number, request in kinds.items() if isinstance(request, Weight)}
    assert used[0] | used[1] == kinds.keys() - revealed[0]
    assert used[0] ^ used[1] == masks
    assert not any(isinstance(kinds[number], Weight | Linear) for number in revealed[0])
    assert any(isinstance(request, Linear) for request in kinds.values())


async def spoiling(
    home: House, private: PrivateModel, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> int | None:
    """A dealer whose correction of request `wrong` is off by one; the request that the audit names."""
    correction = Dealing.correction

    def spoiled(self: Dealing, request: AnyBlockRequest, number: int) -> Iterator[torch.Tensor]:
        for words in correction(self, request, number):
            yield words + (number == wrong)

    with monkeypatch.context() as patch:
        patch.setattr(Dealing, "correction", spoiled)
        (ended,) = await asyncio.gather(home.asks("alice", images, batch=1, policy=AUDITING), return_exceptions=True)
    if not isinstance(ended, InferenceError):
        return None
    assert (ended.code, ended.culprit) == (Code.SHARES, DEALER)
    found = re.search(r"request (\d+) fails the audit: the dealer's correction is wrong, or .* revealed", str(ended))
    assert found is not None
    return int(found[1])


async def test_a_dealer_that_errs_is_found_where_the_coin_picks_the_request(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coin is fixed here: it picks the requests whose numbers are divisible by 4, which are ordered again."""
    monkeypatch.setattr(
        InferenceSession,
        "_picked",
        lambda self, audit, theirs: tuple(number for number in audit.numbers if number % 4 == 0),
    )
    candidates: list[int] = []
    order = RequestKeys.order

    def noted(self: RequestKeys, openable: Any) -> int:
        first = order(self, openable)
        candidates.extend(first + place for place, each in enumerate(openable) if each)
        return first

    images = one_block.images[:1]
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, audited=QUARTER)
        with monkeypatch.context() as patch:
            patch.setattr(RequestKeys, "order", noted)
            assert await spoiling(home, private, images, monkeypatch, -1) is None
        numbers = sorted(set(candidates))
        assert len(numbers) > 8
        for wrong in numbers[:8]:
            found = await spoiling(home, private, images, monkeypatch, wrong)
            assert found == (wrong if wrong % 4 == 0 else None)


async def test_an_owner_that_reveals_another_key_ends_the_session_and_is_named_beside_the_dealer(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reveal = InferenceSession.reveal

    def lying(self: InferenceSession, keys: Any, now: float) -> Any:
        return reveal(self, [bytes(32)] * len(keys) if self.own == MODEL_OWNER else keys, now)

    monkeypatch.setattr(InferenceSession, "reveal", lying)
    async with house(tmp_path) as home:
        with pytest.raises(InferenceError, match=f"or {MODEL_OWNER} revealed another key than it had") as ended:
            await asked(home, private, one_block.images[:2])
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"])
    assert (ended.value.code, ended.value.culprit) == (Code.SHARES, DEALER)
    assert (over.code, over.culprit) == ("SHARES", DEALER)


async def test_both_owners_want_the_same_fraction(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, audited=QUARTER)
        with pytest.raises(InferenceError, match=r"audit_fraction = 0\.25; here it is 0: both owners need the same"):
            await home.asks("alice", one_block.images[:1], batch=1)

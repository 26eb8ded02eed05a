"""Model owner, dealer and data owners over real sockets: what comes out, and what each of them does not accept."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.transformer import with_parameters
from tacit.parties.inference import data_owner, model_owner
from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.data_owner import Answer, DataOwnerSettings, Inferred, open_session
from tacit.parties.inference.events import InferenceSessionEnded, PassEnded
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.passes import Course, Preparation, of_model
from tacit.parties.inference.private_model import PrivateModel, prepared_model, public_of
from tacit.parties.inference.stages import stages
from tacit.parties.links.client_endpoint import NotAdmittedError
from tacit.parties.links.keys import generate
from tacit.parties.session.events import HandshakeRefused
from tacit.protocol.core.errors import Code
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferencePolicy, InferenceRequest
from tacit.protocol.inference.dealer import MOST_ORDERS
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.schedule import LOGITS, Round, Sizes, pass_rounds, weight_bytes
from tacit.protocol.inference.session import InferenceSession
from tacit.simulate.insecure.known_input import known_plan, known_rounds
from tests.parties.inference.conftest import Transformer, transformer
from tests.parties.inference.in_one_loop import DEALER, KEYS, MODEL_OWNER, OWNERS, ROSTER, house

pytestmark = pytest.mark.asyncio
BLOCK_ERROR = 2e-3
"""What is promised for a block, of the norm of its output; the logits of one block are as in test_stages.py."""


def error_of(found: Inferred, friendly: Any, images: torch.Tensor) -> float:
    exact = with_parameters(friendly, lambda name, tensor: tensor.double())
    with torch.no_grad():
        expected = exact(images.double())
    return float((found.logits - expected).norm() / expected.norm())


@pytest.mark.parametrize("ahead", [1, 2, None])
async def test_a_data_owner_gets_the_logits(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, ahead: int | None
) -> None:
    sizes, images = private.public.sizes, one_block.images[:5]
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, ahead=ahead)
        found = await home.asks("alice", images, batch=2, ahead=ahead)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"])
        await home.waits(DEALER, InferenceSessionEnded, code=None, peers=[MODEL_OWNER, "alice"])
    assert (over.code, over.passes, over.failure) == (None, 3, "")
    assert error_of(found, one_block.friendly, images) < 2 * BLOCK_ERROR
    assert found.weights_bytes == sum(weight_bytes(sizes))
    assert [each.images for each in found.passes] == [2, 2, 1]
    for each in found.passes:
        declared = pass_rounds(sizes, each.images)
        assert [(cost.operation, cost.received, cost.sent) for cost in each.rounds] == list(declared)


@pytest.mark.parametrize("ahead", [1, None])
async def test_stages_and_rounds_of_a_pass_may_depend_on_its_number(
    one_block: Transformer,
    private: PrivateModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ahead: int | None,
) -> None:
    sizes, images = private.public.sizes, one_block.images[:5]
    terms = private.terms(most_images=5, most_batch=2)
    plans = [of_model(private.public, terms), known_plan(private.public, terms)]

    def turned(conversation: Any, sizes: Sizes, course: Course, **more: Any) -> Preparation:
        assert course(1) == course(2) == plans[0].course(1)
        return Preparation(conversation, sizes, lambda number: plans[number % 2 == 0].course(number), **more)

    def rounds(self: InferenceSession, images: int) -> tuple[Round, ...]:
        return declared_rounds(self.number, images)

    def declared_rounds(number: int, images: int) -> tuple[Round, ...]:
        return pass_rounds(sizes, images) if number % 2 else known_rounds(sizes, images)

    monkeypatch.setattr(data_owner, "Preparation", turned)
    monkeypatch.setattr(model_owner, "Preparation", turned)
    monkeypatch.setattr(InferenceSession, "_rounds_of", rounds)
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, ahead=ahead)
        found = await home.asks("alice", images, batch=2, ahead=ahead)
    assert error_of(found, one_block.friendly, images) < 2 * BLOCK_ERROR
    for number, each in enumerate(found.passes, 1):
        declared = declared_rounds(number, each.images)
        assert [(cost.operation, cost.received, cost.sent) for cost in each.rounds] == list(declared)


async def test_a_pass_out_of_range_is_refused_and_the_session_goes_on(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    images = one_block.images[:5].clone()
    images[2] = unusual(private)
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        found = await home.asks("alice", images, batch=2)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"])
        told = [await home.waits(MODEL_OWNER, PassEnded, number=number) for number in (1, 2, 3)]
    assert (over.code, over.passes) == (None, 3)
    assert [each.refused for each in told] == [each.refused for each in found.passes] == [False, True, False]
    assert found.refused.tolist() == [False, False, True, True, False]
    assert found.logits.isnan().all(dim=1).equal(found.refused)
    answered = replace(found, logits=found.logits[~found.refused])
    assert error_of(answered, one_block.friendly, images[~found.refused]) < 2 * BLOCK_ERROR
    # Nothing after the bit was said.
    for each in found.passes:
        declared = pass_rounds(private.public.sizes, each.images)
        assert len(each.rounds) == len(declared) - each.refused


def unusual(model: PrivateModel) -> torch.Tensor:
    """An image [C, S, S] within the permitted pixels, black and white in turn, whose variances are out of range."""
    side = torch.arange(model.public.sizes.side)
    return ((-1.0) ** (side[:, None] + side) * model.public.embedding.largest * 0.999)[None]


@pytest.mark.end_to_end
async def test_a_model_of_as_many_stages_as_vit_l_is_made_ready_as_a_whole(tmp_path: Path) -> None:
    """Every stage is an order, and an owner that needs no corrections is ahead of the other by all of them."""
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=24, heads=2)
    noise = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    deep = transformer(sizes, classes=3, images=noise, std=0.1)
    model = prepared_model(deep.friendly, noise, margin=1.5)
    assert len(stages(model.public)) + 2 <= MOST_ORDERS
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(model, ahead=None)
        found = await home.asks("alice", noise[:3], batch=2, ahead=None)
    assert error_of(found, deep.friendly, noise[:3]) < 25 * BLOCK_ERROR


async def test_several_data_owners_are_served_at_the_same_time(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        parts = torch.split(one_block.images[:6], [1, 2, 3])
        works = [home.asks(name, part, batch=2) for name, part in zip(OWNERS, parts, strict=True)]
        results = await asyncio.gather(*works)
        overs = [await home.waits(MODEL_OWNER, InferenceSessionEnded, code=None) for _ in OWNERS]
    for found, part in zip(results, parts, strict=True):
        assert error_of(found, one_block.friendly, part) < 2 * BLOCK_ERROR
    assert {over.peers[0]: over.passes for over in overs} == {"alice": 1, "bob": 1, "carol": 2}


async def test_a_model_that_is_replaced_ends_sessions_and_serves_new_ones(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    changed = copy.deepcopy(one_block.friendly)
    with torch.no_grad():
        changed.head.bias += 1
    other = prepared_model(changed, one_block.images, margin=1.5)
    images = one_block.images[:2]
    async with house(tmp_path) as home:
        await home.dealer()
        party = await home.model_owner(private)

        def replaced(done: int) -> None:
            party.model = other

        with pytest.raises(InferenceError, match="model-owner: the model has been replaced since") as ended:
            await home.asks("alice", images, batch=1, progress=replaced)
        assert (ended.value.code, ended.value.culprit) == (Code.MODEL, MODEL_OWNER)
        await home.waits(
            MODEL_OWNER, InferenceSessionEnded, peers=["alice"], code="MODEL", culprit=MODEL_OWNER, passes=2
        )
        await home.waits(DEALER, InferenceSessionEnded, code="MODEL", culprit=MODEL_OWNER)
        found = await home.asks("alice", images)
    assert error_of(found, changed, images) < 2 * BLOCK_ERROR
    assert error_of(found, one_block.friendly, images) > 0.1


@pytest.mark.parametrize(
    ("answers", "code", "detail"),
    [(0, "LEFT", "it has closed the session early"), (1, None, "the session is closed")],
)
async def test_a_data_owner_may_leave_before_all_is_answered(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, answers: int, code: str | None, detail: str
) -> None:
    images, found = one_block.images[:3], list[Answer]()
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        settings = DataOwnerSettings(
            model_owner_address=home.addresses[MODEL_OWNER],
            dealer_address=home.addresses[DEALER],
            keys=KEYS["alice"],
            roster=ROSTER,
        )
        request = InferenceRequest(images=3, batch=1, channels=1, side=images.shape[-1])
        async with open_session(settings, request) as session:
            assert session.terms.sizes == session.public.sizes
            if answers:
                async for answer in session.answers(images):
                    found.append(answer)
                    break
        ends = [await home.waits(party, InferenceSessionEnded, code=code) for party in (MODEL_OWNER, DEALER)]
        assert len(found) == ends[0].passes == answers
        assert ends[0].detail == detail


@dataclass(frozen=True)
class Refusal:
    """What one side brings, and how the session ends for both."""

    code: Code
    culprit: str
    text: str
    asks: dict[str, Any]
    """Settings of the data owner."""
    offers: dict[str, Any]
    """Settings of the model owner."""
    images: Callable[[torch.Tensor], torch.Tensor] = lambda images: images


MIXED = Roster((*ROSTER.members[:2], *ROSTER.members[:1:-1]))
REFUSALS = {
    "too many images": Refusal(
        Code.POLICY, MODEL_OWNER, "at most 3 images, 64 at a time; here 4 are wanted, 2 at a", {}, {"most_images": 3}
    ),
    "images of another size": Refusal(
        Code.MODEL, MODEL_OWNER, "of 1 x 8 x 8; here they are 1 x 4 x 4", {}, {}, lambda images: images[..., :4, :4]
    ),
    "another roster": Refusal(Code.ROSTER, "alice", "it holds another roster", {"roster": MIXED}, {}),
    "a model that the policy does not name": Refusal(
        Code.MODEL, MODEL_OWNER, "another model than the policy", {"policy": InferencePolicy(weights=bytes(32))}, {}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
async def test_what_does_not_go_together_is_refused_and_both_are_told(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, case: str
) -> None:
    refusal = REFUSALS[case]
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private, **refusal.offers)
        with pytest.raises(InferenceError, match=refusal.text) as ended:
            await home.asks("alice", refusal.images(one_block.images[:4]), **refusal.asks)
        assert (ended.value.code, ended.value.culprit) == (refusal.code, refusal.culprit)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, peers=["alice"], culprit=refusal.culprit, passes=0)
    assert (over.code, over.failure) == (refusal.code.name, "")
    assert refusal.text in over.detail


async def test_a_pixel_beyond_the_bounds_is_named_to_its_owner_alone(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    images = one_block.images[:4].clone()
    images[3, 0, 0, 0] = 4321.0
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(private)
        with pytest.raises(ValueError, match="an image reaches 4321"):
            await home.asks("alice", images)
        over = await home.waits(MODEL_OWNER, InferenceSessionEnded, code="LOCAL", culprit="alice")
        await home.waits(DEALER, InferenceSessionEnded, code="LOCAL", culprit="alice")
        assert (over.passes, over.detail) == (1, "it cannot go on (ValueError); its own log says why")


async def test_a_roster_without_a_dealer(private: PrivateModel, tmp_path: Path) -> None:
    alone = Roster(tuple(member for member in ROSTER.members if member.role != "dealer"))
    text = r"a dealer is needed, and exactly one; the roster has \[\]"
    settings = ModelOwnerSettings(address="", dealer_address="", keys=KEYS[MODEL_OWNER], roster=alone)
    async with house(tmp_path) as home:
        with pytest.raises(ValueError, match=text):
            ModelOwnerParty(settings, private, home.event_log(MODEL_OWNER))
        with pytest.raises(ValueError, match=text):
            await home.asks("alice", torch.zeros(1, 1, 8, 8), links=("", ""), roster=alone)


@pytest.mark.parametrize("stranger_to", [MODEL_OWNER, DEALER])
async def test_a_key_that_is_not_in_the_roster(
    one_block: Transformer, private: PrivateModel, tmp_path: Path, stranger_to: str
) -> None:
    keys = generate("alice")
    others = {member.name: member for member in ROSTER.members}
    admitting = Roster(tuple((others | {"alice": keys.member("client")}).values()))
    rosters = {name: ROSTER if name == stranger_to else admitting for name in (MODEL_OWNER, DEALER)}
    async with house(tmp_path) as home:
        await home.dealer(roster=rosters[DEALER])
        await home.model_owner(private, roster=rosters[MODEL_OWNER])
        with pytest.raises(NotAdmittedError, match="does not know this key"):
            await home.asks("alice", one_block.images[:1], keys=keys, roster=admitting)
        stranger = await home.waits(stranger_to, HandshakeRefused)
    assert stranger.reason == "this key is not in the roster"


async def test_a_dealer_that_holds_another_roster_deals_nothing(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    async with house(tmp_path) as home:
        await home.dealer(roster=MIXED)
        await home.model_owner(private)
        with pytest.raises(InferenceError, match="it holds another roster") as ended:
            await home.asks("alice", one_block.images[:1])
        assert ended.value.code is Code.ROSTER
        await home.waits(MODEL_OWNER, InferenceSessionEnded, code="ROSTER")
        await home.waits(DEALER, InferenceSessionEnded, code="ROSTER")


@dataclass(frozen=True)
class LyingModel(PrivateModel):
    arithmetic: bytes = b""

    def terms(self, **offers: Any) -> Terms:
        return msgspec.structs.replace(super().terms(**offers), arithmetic=self.arithmetic)


def changed(plain: Any, path: tuple[Any, ...], value: object) -> bytes:
    """What is public of a model, encoded, with one value changed."""
    plain = copy.deepcopy(plain)
    place = plain
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return msgspec.msgpack.encode(plain)


def told(plain: Any, **wrong: object) -> bytes:
    """The same with what people are told, of which something is wrong."""
    right = {"mean": [0.5], "std": [0.25], "white": 255, "classes": ["a", "b", "c"]}
    return changed(plain, ("interface",), right | wrong)


LIES: dict[str, Callable[[Any], bytes]] = {
    "no msgpack": lambda plain: b"\xc1",
    "cut off": lambda plain: msgspec.msgpack.encode(plain)[:-1],
    "no text": lambda plain: b"\xa1\xff",
    "nested without end": lambda plain: b"\x91" * 100_000,
    "no map": lambda plain: msgspec.msgpack.encode([plain]),
    "other sizes": lambda plain: changed(plain, ("sizes", "classes"), 4),
    "sizes that nobody can hold": lambda plain: changed(plain, ("sizes", "hidden"), 1 << 40),
    "names of other classes": lambda plain: told(plain, classes=["a", "b"]),
    "a name that a terminal obeys": lambda plain: told(plain, classes=["a", "b", "\x1b[2J"]),
    "no deviation": lambda plain: told(plain, std=[0.0]),
    "a mean that is none": lambda plain: told(plain, mean=[float("nan")]),
    "means of other channels": lambda plain: told(plain, mean=[0.5, 0.5, 0.5]),
    "no white": lambda plain: told(plain, white=0),
    "no table of cosines": lambda plain: changed(plain, ("waves",), b""),
}


async def test_arithmetic_that_nobody_can_use_is_refused_by_the_data_owner(
    one_block: Transformer, private: PrivateModel, tmp_path: Path
) -> None:
    plain = msgspec.to_builtins(private.public, builtin_types=(bytes,))
    offers = {"results": LOGITS, "most_images": 1, "most_batch": 1}
    for case, lie in LIES.items():
        model = LyingModel(private.public, private.weights, private.commitment, lie(plain))
        try:
            public_of(model.terms(**offers))
        except ValueError:
            continue
        pytest.fail(f"{case} is accepted")
    model = LyingModel(private.public, private.weights, private.commitment, LIES["other sizes"](plain))
    async with house(tmp_path) as home:
        await home.dealer()
        await home.model_owner(model)
        with pytest.raises(InferenceError, match="model-owner: its scales are not usable: ") as ended:
            await home.asks("alice", one_block.images[:1])
        assert (ended.value.code, ended.value.culprit) == (Code.MODEL, MODEL_OWNER)
        await home.waits(MODEL_OWNER, InferenceSessionEnded, code="MODEL", culprit=MODEL_OWNER)


async def test_what_is_told_of_a_model_does_not_show_it(private: PrivateModel) -> None:
    again = replace(private, commitment=bytes(32))
    assert "tensor" not in repr(private)
    assert "IntegerWeight" not in repr(again)

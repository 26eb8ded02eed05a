"""Parties of private inference that break one rule each: the kit says which."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

import tacit.parties.inference.conversation
import tacit.parties.inference.dealer
import tacit.protocol.inference.dealer
import tacit.protocol.inference.session
from tacit.parties.correlated.material import Dealing
from tacit.parties.inference.conversation import Conversation, Exchange
from tacit.parties.inference.data_owner import SessionKind
from tacit.parties.inference.model_owner import ModelOwnerParty
from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Heard, Step
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.session import PassRounds
from tacit.simulate.conformance.peer.inference_cases import COMPLETES
from tacit.simulate.conformance.peer.play import Side
from tests.cases import cases

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    import inference_bench
    from inference_bench import InferenceBench
    from live_party import SECONDS

WAIT = 10.0
"""Seconds of the kit's patience with a party that does not say what it must; one was too few on busy cores."""
SILENT = f"nothing more comes for {WAIT:g} s"
ANEW = "begins another session without a word about this one"
Patch = tuple[Any, str, Any]


class Unnumbered(Link):
    def accept(self, packet: Packet) -> Packet:
        self._received = packet.envelope.sequence
        return super().accept(packet)


class AnySender(Link):
    def accept(self, packet: Packet) -> Packet:
        peer, self.peer = self.peer, packet.envelope.sender
        try:
            return super().accept(packet)
        finally:
            self.peer = peer


class AnyModel(InferenceDataOwner):
    def on_started(self, heard: Heard[Any], now: float) -> Step[Any]:
        agreed = structs.replace(heard.message, weights=self.agreed.terms.weights)
        return super().on_started(structs.replace(heard, message=agreed), now)


class AnyTerms(InferenceDataOwner):
    def _check(self, terms: Any) -> None:
        pass


class Generous(InferenceModelOwner):
    """Computes as much as is asked for, whatever was agreed on."""

    def on_agreement(self, heard: Heard[Any], now: float) -> Step[Any]:
        offered = structs.replace(heard.message, images=min(heard.message.images, self._terms.most_images))
        return super().on_agreement(structs.replace(heard, message=offered), now)


class Persuaded(InferenceModelOwner):
    def on_start_pass(self, heard: Heard[Any], now: float) -> Step[Any]:
        agreed = structs.replace(heard.message, weights=self.agreed.terms.weights)
        return super().on_start_pass(structs.replace(heard, message=agreed), now)


class Repeating(InferenceDealer):
    def on_order(self, heard: Heard[Any], now: float) -> Step[Any]:
        ordered = structs.replace(heard.message, first=self._ordered[heard.sender])
        return super().on_order(structs.replace(heard, message=ordered), now)


class OneSided(InferenceDealer):
    """Does not compare what both order: takes the shorter order, whoever's comes first."""

    def on_order(self, heard: Heard[Any], now: float) -> Step[Any]:
        (other,) = {*self.owners} - {heard.sender}
        if waiting := self._orders[other]:
            shorter = waiting[0] = min(waiting[0], heard.message, key=lambda order: len(order.requests))
            heard = structs.replace(heard, message=shorter)
        return super().on_order(heard, now)


class Miscalculating(Dealing):
    def __init__(self, keys: Sequence[bytes], *, device: torch.device | None = None) -> None:
        super().__init__(keys[::-1], device=device)


def any_time(self: PassRounds, step: int, chunk: int, payload: Frame | None) -> None:
    self.arrivals.check(step, chunk, payload)


def to_itself(self: Conversation, ended: Any) -> None:
    """Ends without a word to the dealer, unless all went well."""
    if ended.code is None:
        end(self, ended)
    else:
        self.ended = ended
        self._changed.set()


end = Conversation._end


def patient(self: Exchange) -> None:
    """Looks at no deadline."""


MUTANTS: dict[str, tuple[Side, Patch, dict[str, str]]] = {
    "data owner: any number": (
        "model-owner", (tacit.protocol.inference.data_owner, "Link", Unnumbered),
        {"sequence": COMPLETES, "replay": "ends with UNEXPECTED, tells both"},
    ),
    "data owner: any sender": (
        "model-owner", (tacit.protocol.inference.material, "Link", AnySender),
        {"dealer-other-sender": COMPLETES},
    ),
    "data owner: any model": (
        "model-owner", (SessionKind, "MACHINE", AnyModel),
        {"other-model": COMPLETES, "model-replaced": COMPLETES},
    ),
    "data owner: any terms": (
        "model-owner", (SessionKind, "MACHINE", AnyTerms),
        {"terms-few": "breaks a rule: POLICY, it agrees to other terms than were offered"},
    ),
    "data owner: any time": (
        "model-owner", (PassRounds, "check", any_time),
        {"opening-early": SILENT},
    ),
    "data owner: nothing to the dealer": (
        "model-owner", (Conversation, "_end", to_itself),
        {"other-model": f"ends with MODEL, tells the model owner, {ANEW}", "gone": SILENT},
    ),
    "data owner: no deadline": ("model-owner", (Exchange, "expire", patient), {"silence": SILENT}),
    "model owner: any number": (
        "data-owner", (tacit.protocol.inference.model_owner, "Link", Unnumbered),
        {"sequence": COMPLETES, "replay": "ends with SESSION, tells both"},
    ),
    "model owner: any request": (
        "data-owner", (ModelOwnerParty, "MACHINE", Persuaded),
        {"other-model": COMPLETES},
    ),
    "model owner: any amount": (
        "data-owner", (ModelOwnerParty, "MACHINE", Generous),
        {"more-images": COMPLETES},
    ),
    "dealer: any number": (
        "owners", (tacit.parties.inference.dealer, "InferenceDealer", Repeating),
        {"number-twice": COMPLETES, "number-skipped": COMPLETES},
    ),
    "dealer: any order": (
        "owners", (tacit.parties.inference.dealer, "InferenceDealer", OneSided), {"other-order": COMPLETES},
    ),
    "dealer: other keys": (
        "owners", (tacit.parties.inference.dealer, "Dealing", Miscalculating),
        {"honest": f"deals other corrections than the keys of both owners give, {COMPLETES}"},
    ),
    "dealer: any number of orders": (
        "owners", (tacit.protocol.inference.dealer, "MOST_ORDERS", 100), {"far-ahead": SILENT},
    ),
}  # fmt: skip


ALWAYS = ("model owner: any amount", "data owner: any terms", "dealer: other keys")
"""In every run of the tests. All others are exhaustive, because each plays real sessions."""


def check_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    side, broken, seen = MUTANTS[mutant]
    folder = tmp_path / mutant
    folder.mkdir()
    wait = WAIT if any(SILENT in words for words in seen.values()) else SECONDS
    with monkeypatch.context() as patch:
        patch.setattr(*broken)
        verdicts = InferenceBench(folder, wait=wait).play(side, *seen)
    assert {case: verdict.seen for case, verdict in verdicts.items() if not verdict.passed} == seen


@cases("mutant", ALWAYS)
def test_a_broken_party_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    check_caught(tmp_path, monkeypatch, mutant)


@pytest.mark.exhaustive
@cases("mutant", [mutant for mutant in MUTANTS if mutant not in ALWAYS])
def test_every_broken_party_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    check_caught(tmp_path, monkeypatch, mutant)


@pytest.mark.exhaustive
@pytest.mark.parametrize("side", ["model-owner", "data-owner"])
def test_openings_that_come_early(tmp_path: Path, side: Side) -> None:
    verdicts = InferenceBench(tmp_path).play(side, "opening-early")
    assert [verdict.passed for verdict in verdicts.values()] == [True, True]


def test_a_lie_that_is_never_due_is_no_proof(tmp_path: Path) -> None:
    verdicts = InferenceBench(tmp_path, images=2).play("model-owner", "model-replaced")
    assert verdicts["honest"].passed
    assert verdicts["model-replaced"].seen == f"{COMPLETES}, it is over before the lie"


def test_a_data_owner_that_does_not_come_is_waited_for_with_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def stays_away(*arguments: Any, **more: Any) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(inference_bench, "open_session", stays_away)
    live = InferenceBench(tmp_path, wait=0.1)
    assert live.play("model-owner", "honest")["honest"].seen == "nothing more comes for 0.1 s"
    assert live.told == [f"waiting for 'clinic' to say hello at {live.address}: start it if it does not run"]


def test_without_terms_it_offers_scales_that_nobody_can_compute_with(tmp_path: Path) -> None:
    verdicts = InferenceBench(tmp_path, terms=False).play("model-owner", "honest")
    assert verdicts["honest"].seen == "ends with MODEL, tells both, blames hospital"

"""Parties that break one rule each: the kit says which."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import pytest

import tacit.protocol.session.server
import tacit.protocol.session.server_session
import tacit.protocol.sum.server
from tacit.protocol.core.codec import Frame, Packet, decode
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Output, Transmit
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.messages import MESSAGES, StartRound
from tacit.protocol.session.rounds import agree
from tacit.protocol.sum.agreement import Agreement
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.messages import UnmaskRequest, UnmaskShares
from tacit.protocol.sum.policy import Policy
from tacit.secagg.graph import GraphParameters
from tacit.secagg.keystream import Mask
from tests.cases import cases

MakeBench = Callable[[int], Any]


class UncheckedSum(AggregationClient):
    def _check_signatures(self, *arguments: Any) -> None:
        pass


class HalfMaskedSum(AggregationClient):
    def _derive_masks(self, *arguments: Any) -> list[Mask]:
        return super()._derive_masks(*arguments)[:-1]


class Credulous(TrainingClient):
    Sum: type[AggregationClient] = UncheckedSum

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        # Before any message to the sum itself: its masks are derived as soon as the shares are there.
        if self.sum is not None:
            self.sum.__class__ = self.Sum
        return super().feed(frames, now)


class HalfMasked(Credulous):
    Sum = HalfMaskedSum


class Unsigned(TrainingClient):
    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        outputs = super().feed(frames, now)
        if self.sum is not None:
            self.sum.agreement = believing(self.sum.agreement)
        return outputs


class Forgetful(TrainingClient):
    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        packet = decode(frames, MESSAGES)
        if packet.kind is StartRound:
            self._entered.clear()
            self._link.round = packet.envelope.round - 1
        return super().feed(frames, now)


class Talkative(TrainingClient):
    _answer: UnmaskShares | None = None

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        again = self._answer if decode(frames, MESSAGES).kind is UnmaskRequest else None
        outputs = super().feed(frames, now)
        if again is not None and not outputs:
            return [self._link.transmit(again)]
        said = [decode(output.frames, MESSAGES) for output in outputs if isinstance(output, Transmit)]
        self._answer = next((packet.parse() for packet in said if packet.kind is UnmaskShares), self._answer)  # type: ignore[assignment]
        return outputs


class LenientAgreement(Agreement):
    def check_signature(self, *arguments: Any) -> None:
        pass


def lenient(**arguments: Any) -> Agreement:
    return believing(agree(**arguments))


def believing(agreement: Agreement) -> Agreement:
    return LenientAgreement(**{field.name: getattr(agreement, field.name) for field in fields(Agreement)})


class Unnumbered(Link):
    def accept(self, packet: Packet) -> Packet:
        self._received = packet.envelope.sequence
        return super().accept(packet)


class AnyThreshold(Policy, frozen=True):
    def check_cohort(self, configuration: Configuration, cohort: int) -> GraphParameters:
        return configuration.parameters(cohort)


CLIENTS: dict[str, tuple[type[TrainingClient], Policy, dict[str, str]]] = {
    "believes signatures": (
        Credulous,
        Policy(),
        dict.fromkeys(("forged-signature", "signatures-cut", "replayed-signatures", "split-survivors"), "takes part"),
    ),
    "believes peers": (
        Unsigned,
        Policy(),
        {
            "replayed-adverts": "goes on with share-keys",
            "split-models": "goes on with share-keys",
            "replayed-shares": "refuses SHARES, round over, says masked-input nevertheless, "
            "says confirm-survivors nevertheless",
        },
    ),
    "forgets rounds": (
        Forgetful,
        Policy(),
        {"replayed-round": "refuses UNEXPECTED, round over, says advertise-keys nevertheless"},
    ),
    "answers twice": (Talkative, Policy(), {"asks-twice": "takes part, opens 3 times"}),
    "takes any threshold": (
        TrainingClient,
        AnyThreshold(),
        {"threshold-below-floor": "goes on with advertise-keys"},
    ),
    "takes any mode": (
        TrainingClient,
        Policy(modes=("active", "semi-honest")),
        {"downgrade": "goes on with advertise-keys"},
    ),
}


def check_client(bench: MakeBench, mutant: str) -> None:
    machine, policy, seen = CLIENTS[mutant]
    live = bench(4)
    with live.live_client(policy, make_machine=machine):
        verdicts = live.play("server", *seen)
    assert {name: verdict.seen for name, verdict in verdicts.items() if not verdict.passed} == seen
    assert verdicts["honest"].passed


def test_a_client_that_believes_signatures_is_caught(bench: MakeBench) -> None:
    check_client(bench, "believes signatures")


@pytest.mark.exhaustive
@cases("mutant", [mutant for mutant in CLIENTS if mutant != "believes signatures"])
def test_every_broken_client_is_caught(bench: MakeBench, mutant: str) -> None:
    check_client(bench, mutant)


@pytest.mark.exhaustive
def test_masks_that_do_not_fall_away_are_caught(bench: MakeBench) -> None:
    live = bench(4)
    with live.live_client(make_machine=HalfMasked):
        verdicts = live.play("server", "honest")
    assert "what it contributes to the honest round after it is no update (summed" in verdicts["honest"].seen


SERVERS: dict[str, tuple[Any, str, Any, dict[str, str]]] = {
    "believes signatures": (
        tacit.protocol.session.server,
        "agree",
        lenient,
        {"forged-confirmation": "is out with SIGNATURE, the others end with SIGNATURE"},
    ),
    "takes any share": (
        tacit.protocol.sum.server,
        "is_committed",
        lambda *arguments, **more: True,
        {"bad-share": "is out with SECRET, the others end with SECRET"},
    ),
    "takes any number": (
        tacit.protocol.session.server_session,
        "Link",
        Unnumbered,
        {
            "sequence": "sees a round through, the others finish",
            "replay": "sees a round through, the others finish",
        },
    ),
}


def check_server(bench: MakeBench, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    module, name, replacement, seen = SERVERS[mutant]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, replacement)
        live = bench(6)
        with live.live_server():
            verdicts = live.play("client", *seen)
    assert {case: verdict.seen for case, verdict in verdicts.items() if not verdict.passed} == seen
    assert verdicts["honest"].passed


def test_a_server_that_takes_any_share_is_caught(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    check_server(bench, monkeypatch, "takes any share")


@pytest.mark.exhaustive
@cases("mutant", [mutant for mutant in SERVERS if mutant != "takes any share"])
def test_every_broken_server_is_caught(bench: MakeBench, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    check_server(bench, monkeypatch, mutant)


@pytest.mark.exhaustive
def test_a_server_that_moves_its_model_elsewhere_is_caught(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    live = bench(4)
    with live.live_server(step=2.0):
        verdicts = live.play("client", "stranger")
    assert verdicts["honest"].seen == "all finish, the model is wrong"
    assert verdicts["stranger"].passed

"""The data owner in a session of private inference: it has the images, and alone learns what the model says of them.

1. It says hello and is told the terms: sizes, scales, the commitment to the weights, and how much it may ask for. It
   checks them against its own policy and agrees, stating how many images it has.
2. It receives the masked weights, once for the session.
3. For every pass it says which commitment it expects, is told which model the other computes with, and goes through
   the rounds; the last round of a pass tells it the result.
4. It closes the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tacit.protocol.core.codec import Packet, decode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Heard, Output, Step, Trigger
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.material import Arrivals
from tacit.protocol.inference.messages import (
    TERMS_LIMIT,
    AgreeTerms,
    CloseInference,
    InferenceClosed,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    PassStarted,
    StartPass,
    Terms,
)
from tacit.protocol.inference.results import Agreed, MaskedLayer
from tacit.protocol.inference.schedule import weight_bytes
from tacit.protocol.inference.session import InferenceSession
from tacit.protocol.inference.tables import DATA_OWNER_TABLE, InferenceState


@dataclass(frozen=True, kw_only=True)
class InferencePolicy:
    """What a data owner accepts."""

    bits: int = 0
    """Fractional bits that logits must have at least; 0: labels are enough."""
    labels: int = 0
    """How many labels are wanted at least where they are told alone; logits are always enough."""
    weights: bytes | None = None
    """The commitment to the only model that it wants; any if None."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a data owner comes with."""

    images: int
    batch: int
    """Images of a pass."""
    channels: int | None = None
    side: int | None = None
    """Pixels of an edge of every image. None, like `channels`: they are brought to what the model takes."""

    def __post_init__(self) -> None:
        given = (self.images, self.batch, self.channels, self.side)
        if any(number is not None and number < 1 for number in given):
            raise LocalProtocolError(f"{self}: all of these are at least 1")

    @property
    def pass_images(self) -> int:
        """Images of the greatest pass."""
        return min(self.batch, self.images)


class InferenceDataOwner(InferenceSession, tables=(DATA_OWNER_TABLE,)):
    """The data owner, towards the server of the roster."""

    terms_type: ClassVar[type[Terms]] = Terms
    """What terms it understands."""

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        wish: Wish,
        policy: InferencePolicy,
        patience: float,
    ) -> None:
        super().__init__(
            DATA_OWNER_TABLE,
            InferenceState.READY,
            own=name,
            peer=roster.server.name,
            roster=roster,
            patience=patience,
        )
        self._wish = wish
        self._policy = policy

    def start(self, now: float) -> list[Output]:
        """Say hello."""
        return self.trigger(Trigger.START, now)

    def ask(self, now: float) -> list[Output]:
        """Begin the next pass; LocalProtocolError beyond those agreed on."""
        return [] if self.over else self.trigger(Trigger.ASK, now)

    def finish(self, now: float) -> list[Output]:
        """Close the session."""
        return [] if self.over else self.trigger(Trigger.FINISH, now)

    def on_start(self, now: float) -> Step[InferenceState]:
        return Step(InferenceState.AWAIT_TERMS, (self._send(InferenceHello(roster=self._roster.hash)),))

    def on_terms(self, heard: Heard[InferenceTerms], now: float) -> Step[InferenceState]:
        message = heard.message
        if message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "it holds another roster: give all parties the same file")
        terms = decode_structure(message.terms, self.terms_type, limit=TERMS_LIMIT)
        self._check(terms)
        agreed_on, wish = digest(Label.INFERENCE_TERMS, message.terms), self._wish
        agreed = Agreed(self.peer, self._link.session, terms, agreed_on, wish.images, wish.pass_images)

        def commit() -> None:
            self._agreed = agreed

        agreement = AgreeTerms(terms=agreed_on, images=agreed.images, batch=agreed.batch)
        layers = Arrivals("layer", enumerate(weight_bytes(terms.sizes)))
        return Step(InferenceState.AWAIT_WEIGHTS, (self._send(agreement), agreed), commit, data=layers)

    def on_weights(self, heard: Heard[MaskedWeights], now: float) -> Step[InferenceState]:
        layers = self.at(Arrivals)
        layers.check(heard.message.layer, heard.message.chunk, heard.payload)

        def commit() -> list[Output]:
            complete = layers.take(heard.payload)
            return [] if complete is None else [MaskedLayer(*complete)]

        last = layers.ends_with(heard.payload)
        return Step(InferenceState.IDLE if last else InferenceState.AWAIT_WEIGHTS, (), commit)

    def on_ask(self, now: float) -> Step[InferenceState]:
        agreed = self.agreed
        if self.number == agreed.passes:
            raise LocalProtocolError(f"all {agreed.passes} passes that were agreed on are over")

        def commit() -> None:
            self.number += 1

        return Step(InferenceState.AWAIT_START, (self._send(StartPass(weights=agreed.terms.weights)),), commit)

    def on_started(self, heard: Heard[PassStarted], now: float) -> Step[InferenceState]:
        if heard.message.weights != self.agreed.terms.weights:
            raise RemoteProtocolError(
                Code.MODEL, "it computes with another model than was agreed on: open a new session for the new model"
            )
        return self._begun()

    def on_finish(self, now: float) -> Step[InferenceState]:
        return Step(InferenceState.CLOSING, (self._send(CloseInference()),))

    def on_closed(self, heard: Heard[InferenceClosed], now: float) -> Step[InferenceState]:
        return self._ended(None, "the session is closed")

    def _accept(self, packet: Packet) -> bool:
        # The session is that of the first answer; what is still under way of a former one is none.
        if self.state is InferenceState.AWAIT_TERMS:
            if packet.envelope.sequence:
                return False
            self._link = Link(self.own, self.peer, packet.envelope.session, self.traffic, self.kinds)
        return super()._accept(packet)

    def _check(self, terms: Terms) -> None:
        """Refuse terms that this side's policy, or what it comes with, rules out."""
        policy, wish, sizes = self._policy, self._wish, terms.sizes
        if terms.results.bits < policy.bits:
            told = f"logits of {terms.results.bits} fractional bits" if terms.results.bits else "labels alone"
            raise RemoteProtocolError(
                Code.POLICY, f"it tells {told}; the policy here wants logits of at least {policy.bits}"
            )
        if 0 < terms.results.labels < policy.labels:
            raise RemoteProtocolError(
                Code.POLICY,
                f"it tells the best {terms.results.labels} labels alone; the policy here wants {policy.labels} or more",
            )
        if policy.weights not in (None, terms.weights):
            raise RemoteProtocolError(Code.MODEL, "it offers another model than the policy here names")
        if wish.channels not in (None, sizes.channels) or wish.side not in (None, sizes.side):
            raise RemoteProtocolError(
                Code.MODEL,
                f"its model takes images of {sizes.channels} x {sizes.side} x {sizes.side}; here they are "
                f"{wish.channels} x {wish.side} x {wish.side}",
            )
        if wish.images > terms.most_images or wish.pass_images > terms.most_batch:
            raise RemoteProtocolError(
                Code.POLICY,
                f"it computes at most {terms.most_images} images, {terms.most_batch} at a time; here {wish.images} are "
                f"wanted, {wish.pass_images} at a time",
            )

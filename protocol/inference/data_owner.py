"""The data owner in a session of private inference: it holds the images, and only it receives the results.

1. It sends a hello and receives the terms: sizes, scales, the commitment to the weights, and request limits. It checks
   them against its own policy and agrees, stating its number of images.
2. It receives the masked weights, once per session.
3. For every pass it sends the expected commitment, receives the commitment the model owner computes with, and runs
   the rounds; the last round of a pass reveals the result.
4. It closes the session.

The model owner chooses the model and the range of every value, and learns whether each pass is in range. A verdict is
therefore one bit about the images of the pass, on a question that the model owner chose; "in range" reveals as much as
"out of range". The data owner limits a model owner's daily passes and refused passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import ClassVar, Final

from msgspec import structs

from tacit.protocol.core.codec import Packet, decode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Heard, Output, Row, Step, Table, Trigger
from tacit.protocol.core.primitives import digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.audit import WHOLE, Audit, AuditAsked, AuditPicked, commitment_of
from tacit.protocol.inference.material import Arrivals
from tacit.protocol.inference.messages import (
    TERMS_LIMIT,
    AgreeTerms,
    AuditCoin,
    AuditCommitment,
    AuditKeys,
    CloseInference,
    InferenceClosed,
    InferenceHello,
    InferenceTerms,
    MaskedWeights,
    Opening,
    PassStarted,
    StartPass,
    Terms,
)
from tacit.protocol.inference.quota import OverQuotaError, Quota, Spent, charged
from tacit.protocol.inference.results import Agreed, Charged, MaskedLayer
from tacit.protocol.inference.schedule import weight_bytes
from tacit.protocol.inference.session import InferenceSession
from tacit.protocol.inference.states import InferenceLabel, InferenceState, InferenceTrigger, ending, over

PASSES_A_DAY: Final = 10_000
REFUSED_A_DAY: Final = 500


@dataclass(frozen=True, kw_only=True)
class InferencePolicy:
    """What a data owner accepts."""

    bits: int = 0
    """Fewest fractional bits of logits that it accepts; 0: labels suffice."""
    labels: int = 0
    """Fewest labels that it accepts where no logits are revealed. Logits always suffice."""
    weights: bytes | None = None
    """Commitment to the only model that it accepts; None: any model."""
    quota: Quota = field(default_factory=lambda: Quota(used=PASSES_A_DAY, refused=REFUSED_A_DAY))
    """Daily limit of passes for one model owner."""
    audited: int = 0
    """Audited requests to the dealer, out of 65,536; both owners must want the same number."""


@dataclass(frozen=True, kw_only=True)
class InferenceRequest:
    """Number and shape of the images that a data owner wants classified."""

    images: int
    batch: int
    """Images per pass."""
    channels: int | None = None
    side: int | None = None
    """Pixels along the edge of every image. None, like `channels`: as the model's input."""

    def __post_init__(self) -> None:
        given = (self.images, self.batch, self.channels, self.side)
        if any(number is not None and number < 1 for number in given):
            raise LocalProtocolError(f"{self}: all of these are at least 1")

    @property
    def pass_images(self) -> int:
        return min(self.batch, self.images)


class InferenceDataOwner(InferenceSession):
    """The data owner, towards the server of the roster."""

    terms_type: ClassVar[type[Terms]] = Terms
    """Type of terms that it understands."""

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        request: InferenceRequest,
        policy: InferencePolicy,
        patience: float,
        spent: Spent,
    ) -> None:
        super().__init__(
            DATA_OWNER_TABLE,
            InferenceState.READY,
            own=name,
            peer=roster.server.name,
            roster=roster,
            patience=patience,
            quota=policy.quota,
            spent=spent,
        )
        self._request = request
        self._policy = policy
        self._begins = spent
        """Quota used once the requested pass begins."""

    def start(self, now: float) -> list[Output]:
        """Say hello."""
        return self.trigger(Trigger.START, now)

    def ask(self, at: float, now: float) -> list[Output]:
        """Begin the next pass. at: Unix time, for the quota. LocalProtocolError beyond the agreed passes."""
        return [] if self.over else self.trigger(InferenceTrigger.ASK, now, at)

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
        agreed_on, request = digest(InferenceLabel.INFERENCE_TERMS, message.terms), self._request
        agreed = Agreed(self.peer, self._link.session, terms, agreed_on, request.images, request.pass_images)

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

    def on_ask(self, at: float, now: float) -> Step[InferenceState]:
        agreed = self.agreed
        if self.number == agreed.passes:
            raise LocalProtocolError(f"all {agreed.passes} passes that were agreed on are over")
        try:
            spent = charged(self._quota, self._spent, self._count_of(self.number + 1), at, judged=self.judged)
        except OverQuotaError as over:
            what, key = ("refused passes", "refused_a_day") if over.refused else ("passes", "passes_a_day")
            detail = (
                f"its limit of {over.most} {what} a day with {self.peer} is reached until {over.renewed}: go on then "
                f"by the same command, or raise {key} in its [policy]; every verdict is one bit that {self.peer} chose"
            )
            return self._failed(RemoteProtocolError(Code.POLICY, detail, culprit=self.own))

        def commit() -> None:
            self.number += 1
            self._begins, self.unaudited = spent, agreed.terms.audited > 0

        return Step(InferenceState.AWAIT_START, (self._send(StartPass(weights=agreed.terms.weights)),), commit)

    def on_commitment(self, heard: Heard[AuditCommitment], now: float) -> Step[InferenceState]:
        if not self.unaudited:
            raise RemoteProtocolError(Code.UNEXPECTED, "it audits where nothing is to be audited")
        return Step(InferenceState.AUDITING, (AuditAsked(),), data=heard.message.commitment)

    def on_audit(self, contribution: bytes, numbers: tuple[int, ...], now: float) -> Step[InferenceState]:
        audit = Audit(numbers, contribution, self.at(bytes))
        return Step(InferenceState.AWAIT_COIN, (self._send(AuditCoin(contribution=contribution)),), data=audit)

    def on_coin(self, heard: Heard[AuditCoin], now: float) -> Step[InferenceState]:
        audit, theirs = self.at(Audit), heard.message.contribution
        if not compare_digest(commitment_of(theirs), audit.commitment):
            raise RemoteProtocolError(Code.SECRET, "its contribution to the coin is not the one that it committed to")
        picks = self._picked(audit, theirs)

        def commit() -> None:
            self.unaudited = bool(picks)

        after = InferenceState.REVEALING if picks else InferenceState.AWAIT_START
        return Step(after, (AuditPicked(picks),), commit, data=replace(audit, picked=picks) if picks else None)

    def on_reveal(self, keys: Sequence[bytes], now: float) -> Step[InferenceState]:
        return self._reveals(keys, InferenceState.AWAIT_KEYS)

    def on_keys(self, heard: Heard[AuditKeys], now: float) -> Step[InferenceState]:
        return Step(InferenceState.AWAIT_START, (self._revealed(heard),))

    def on_started(self, heard: Heard[PassStarted], now: float) -> Step[InferenceState]:
        if heard.message.weights != self.agreed.terms.weights:
            raise RemoteProtocolError(
                Code.MODEL, "it computes with another model than was agreed on: open a new session for the new model"
            )
        if self.unaudited:
            raise RemoteProtocolError(Code.UNEXPECTED, "it starts a pass whose randomness is not audited")
        spent = self._begins

        def commit() -> None:
            self._spent = spent

        return structs.replace(self._begun(Charged(self.peer, spent)), commit=commit)

    def _count_of(self, number: int) -> int:
        return 1

    def on_finish(self, now: float) -> Step[InferenceState]:
        return Step(InferenceState.CLOSING, (self._send(CloseInference()),))

    def on_closed(self, heard: Heard[InferenceClosed], now: float) -> Step[InferenceState]:
        return self._ended(None, "the session is closed")

    def _accept(self, packet: Packet) -> bool:
        # The first answer defines the session; ignore late answers of an earlier one.
        if self.state is InferenceState.AWAIT_TERMS:
            if packet.envelope.sequence:
                return False
            self._link = Link(self.own, self.peer, packet.envelope.session, self.traffic, self.kinds)
        return super()._accept(packet)

    def _check(self, terms: Terms) -> None:
        policy, request, sizes = self._policy, self._request, terms.sizes
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
        if terms.audited != policy.audited:
            raise RemoteProtocolError(
                Code.POLICY,
                f"it has audit_fraction = {terms.audited / WHOLE:g}; here it is {policy.audited / WHOLE:g}: both "
                "owners need the same",
            )
        if policy.weights not in (None, terms.weights):
            raise RemoteProtocolError(Code.MODEL, "it offers another model than the policy here names")
        if request.channels not in (None, sizes.channels) or request.side not in (None, sizes.side):
            raise RemoteProtocolError(
                Code.MODEL,
                f"its model takes images of {sizes.channels} x {sizes.side} x {sizes.side}; here they are "
                f"{request.channels} x {request.side} x {request.side}",
            )
        if request.images > terms.most_images or request.pass_images > terms.most_batch:
            raise RemoteProtocolError(
                Code.POLICY,
                f"it computes at most {terms.most_images} images, {terms.most_batch} at a time; here "
                f"{request.images} are wanted, {request.pass_images} at a time",
            )


_S = InferenceState
# The model owner sends the result in the last round, so the pass ends there for it, and for the data owner when the
# result arrives. A pass out of range ends for both with the later of the two openings of the range check.
DATA_OWNER_TABLE: Final[Table[InferenceState]] = {
    (_S.READY, Trigger.START): Row(InferenceDataOwner.on_start, (_S.AWAIT_TERMS,)),
    (_S.READY, Trigger.DROP): Row(InferenceDataOwner.on_drop, (_S.ABORTED,)),
    (_S.AWAIT_TERMS, InferenceTerms): Row(InferenceDataOwner.on_terms, (_S.AWAIT_WEIGHTS,)),
    (_S.AWAIT_WEIGHTS, MaskedWeights): Row(InferenceDataOwner.on_weights, (_S.AWAIT_WEIGHTS, _S.IDLE)),
    (_S.IDLE, InferenceTrigger.ASK): Row(InferenceDataOwner.on_ask, (_S.AWAIT_START, _S.ABORTED)),
    (_S.AWAIT_START, AuditCommitment): Row(InferenceDataOwner.on_commitment, (_S.AUDITING,)),
    (_S.AUDITING, InferenceTrigger.AUDIT): Row(InferenceDataOwner.on_audit, (_S.AWAIT_COIN,)),
    (_S.AWAIT_COIN, AuditCoin): Row(InferenceDataOwner.on_coin, (_S.REVEALING, _S.AWAIT_START)),
    (_S.REVEALING, InferenceTrigger.REVEAL): Row(InferenceDataOwner.on_reveal, (_S.AWAIT_KEYS,)),
    (_S.AWAIT_KEYS, AuditKeys): Row(InferenceDataOwner.on_keys, (_S.AWAIT_START,)),
    (_S.AWAIT_START, PassStarted): Row(InferenceDataOwner.on_started, (_S.COMPUTING,)),
    (_S.COMPUTING, Opening): Row(InferenceDataOwner.on_opening, (_S.COMPUTING, _S.IDLE)),
    (_S.COMPUTING, InferenceTrigger.OPEN): Row(InferenceDataOwner.on_give, (_S.COMPUTING, _S.IDLE)),
    (_S.IDLE, Trigger.FINISH): Row(InferenceDataOwner.on_finish, (_S.CLOSING,)),
    (_S.CLOSING, InferenceClosed): Row(InferenceDataOwner.on_closed, (_S.CLOSED,)),
    **ending(
        InferenceDataOwner,
        _S.ABORTED,
        own=(_S.IDLE, _S.AUDITING, _S.REVEALING),
        awaiting=(
            _S.AWAIT_TERMS,
            _S.AWAIT_WEIGHTS,
            _S.AWAIT_START,
            _S.AWAIT_COIN,
            _S.AWAIT_KEYS,
            _S.COMPUTING,
            _S.CLOSING,
        ),
    ),
    **over((_S.CLOSED,), ()),
    **over(
        (_S.ABORTED,),
        (
            InferenceTerms,
            MaskedWeights,
            AuditCommitment,
            AuditCoin,
            AuditKeys,
            PassStarted,
            Opening,
            InferenceClosed,
        ),
    ),
}

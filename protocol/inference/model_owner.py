"""The model owner in a session of private inference: it holds the weights, and learns the number of images and the
verdict of every pass.

One machine serves one data owner. It sends its terms, refuses deviations from the agreement, masks its weights with
correlated randomness, and computes. The terms commit to the model, and every pass restates the commitment: either side
refuses a model that was replaced meanwhile. A pass is charged to the data owner's daily quota before it begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from tacit.protocol.core.codec import Frame, encode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import Link
from tacit.protocol.core.machine import Entropy, Heard, Output, Row, Step, Table, Trigger
from tacit.protocol.core.primitives import KEY_BYTES, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.audit import Audit, AuditPicked, commitment_of
from tacit.protocol.inference.material import chunks
from tacit.protocol.inference.messages import (
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
from tacit.protocol.inference.results import Agreed, Charged, PassAsked
from tacit.protocol.inference.schedule import weight_bytes
from tacit.protocol.inference.session import InferenceSession
from tacit.protocol.inference.states import InferenceLabel, InferenceState, InferenceTrigger, ending, over


class InferenceModelOwner(InferenceSession):
    """The server of the roster, towards one data owner.

    entropy: source of the session identifier; quota: limits in images.
    """

    def __init__(
        self,
        peer: str,
        roster: Roster,
        *,
        terms: Terms,
        entropy: Entropy,
        patience: float,
        quota: Quota,
        spent: Spent,
    ) -> None:
        super().__init__(
            MODEL_OWNER_TABLE,
            InferenceState.AWAIT_HELLO,
            own=roster.server.name,
            peer=peer,
            roster=roster,
            patience=patience,
            quota=quota,
            spent=spent,
        )
        self._terms = terms
        self._encoded = encode_structure(terms)
        self._digest = digest(InferenceLabel.INFERENCE_TERMS, self._encoded)
        self._entropy = entropy
        self._sizes = weight_bytes(terms.sizes)
        self.charged = False
        """Whether a pass was charged."""

    def mask(self, layer: int, data: Frame, now: float) -> list[Output]:
        """Send a layer's weights minus their mask, 8 bytes a word. Layers must come in order."""
        return [] if self.over else self.trigger(Trigger.PROVIDE, now, layer, data)

    def begin(self, weights: bytes, at: float, now: float) -> list[Output]:
        """Begin the pass, whose correlated randomness has arrived. weights: commitment to the current model; at: Unix
        time, for the quota."""
        return [] if self.over else self.trigger(InferenceTrigger.BEGIN, now, weights, at)

    def on_hello(self, heard: Heard[InferenceHello], now: float) -> Step[InferenceState]:
        if self.peer not in self._roster.clients:
            raise RemoteProtocolError(Code.MEMBERS, "it is no client of the roster: only a client can be a data owner")
        if heard.message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "it holds another roster: give all parties the same file")
        link = Link(self.own, self.peer, self._entropy(KEY_BYTES), self.traffic, self.kinds)

        def commit() -> None:
            self._link = link

        terms = InferenceTerms(roster=self._roster.hash, terms=self._encoded)
        return Step(InferenceState.AWAIT_AGREEMENT, (self._send(terms),), commit)

    def on_agreement(self, heard: Heard[AgreeTerms], now: float) -> Step[InferenceState]:
        message = heard.message
        terms = self._terms
        agreed = Agreed(self.peer, self._link.session, terms, self._digest, message.images, message.batch)
        if message.terms != agreed.digest:
            raise RemoteProtocolError(Code.POLICY, "it agrees to other terms than were offered")
        if message.images > terms.most_images or message.batch > min(terms.most_batch, message.images):
            raise RemoteProtocolError(
                Code.POLICY,
                f"it wants {message.images} images, {message.batch} at a time; offered are {terms.most_images}, "
                f"{terms.most_batch} at a time",
            )

        def commit() -> None:
            self._agreed = agreed

        return Step(InferenceState.MASKING, (agreed,), commit, data=0)

    def on_masked(self, layer: int, data: Frame, now: float) -> Step[InferenceState]:
        size, due = memoryview(data).nbytes, self.at(int)
        if layer != due or size != self._sizes[layer]:
            raise LocalProtocolError(f"{size} bytes of layer {layer} where layer {due} is due")
        sends = tuple(self._send(MaskedWeights(layer=layer, chunk=chunk), piece) for chunk, piece in chunks(data))
        if layer + 1 == len(self._sizes):
            return Step(InferenceState.IDLE, sends)
        return Step(InferenceState.MASKING, sends, data=layer + 1)

    def on_start_pass(self, heard: Heard[StartPass], now: float) -> Step[InferenceState]:
        agreed = self.agreed
        if self.number == agreed.passes:
            raise RemoteProtocolError(
                Code.POLICY,
                f"it asks for pass {self.number + 1}; {agreed.images} images, which are {agreed.passes} passes, were "
                "agreed on",
            )
        if heard.message.weights != agreed.terms.weights:
            raise RemoteProtocolError(Code.MODEL, "it asks for another model than was agreed on")

        number, audited = self.number + 1, agreed.terms.audited > 0

        def commit() -> None:
            self.number, self.unaudited = number, audited

        return Step(InferenceState.PREPARING, (PassAsked(number),), commit)

    def on_audit(self, contribution: bytes, numbers: tuple[int, ...], now: float) -> Step[InferenceState]:
        if not self.unaudited:
            raise LocalProtocolError("there is nothing to audit")
        commitment = self._send(AuditCommitment(commitment=commitment_of(contribution)))
        return Step(InferenceState.AWAIT_COIN, (commitment,), data=Audit(numbers, contribution))

    def on_coin(self, heard: Heard[AuditCoin], now: float) -> Step[InferenceState]:
        audit = self.at(Audit)
        picks = self._picked(audit, heard.message.contribution)

        def commit() -> None:
            self.unaudited = bool(picks)

        said = (self._send(AuditCoin(contribution=audit.contribution)), AuditPicked(picks))
        after = InferenceState.AWAIT_KEYS if picks else InferenceState.PREPARING
        return Step(after, said, commit, data=replace(audit, picked=picks) if picks else None)

    def on_keys(self, heard: Heard[AuditKeys], now: float) -> Step[InferenceState]:
        return Step(InferenceState.REVEALING, (self._revealed(heard),), data=self.at(Audit))

    def on_reveal(self, keys: Sequence[bytes], now: float) -> Step[InferenceState]:
        return structs.replace(self._reveals(keys, InferenceState.PREPARING), data=None)

    def on_begin(self, weights: bytes, at: float, now: float) -> Step[InferenceState]:
        if self.unaudited:
            raise LocalProtocolError("the randomness of the pass is not audited")
        if weights != self.agreed.terms.weights:
            detail = "the model has been replaced since it was agreed on: open a new session for the new one"
            return self._failed(RemoteProtocolError(Code.MODEL, detail, culprit=self.own))
        try:
            spent = charged(self._quota, self._spent, self._count_of(self.number), at, judged=self.judged)
        except OverQuotaError as over:
            what = "of a data owner may be refused" if over.refused else "a data owner may ask about"
            detail = (
                f"the quota: {over.most} images a day {what}, {over.left} are left until {over.renewed}, and a pass of "
                f"{self._count_of(self.number)} is wanted: take a smaller batch, or ask again then"
            )
            return self._failed(RemoteProtocolError(Code.POLICY, detail))

        def commit() -> None:
            self._spent, self.charged = spent, True

        started = self._send(PassStarted(weights=weights))
        return structs.replace(self._begun(Charged(self.peer, spent), started), commit=commit)

    def _count_of(self, number: int) -> int:
        return self.agreed.images_of(number)

    def on_close(self, heard: Heard[CloseInference], now: float) -> Step[InferenceState]:
        return self._ended(None, "the session is closed", "", self._send(InferenceClosed()))


_S = InferenceState
MODEL_OWNER_TABLE: Final[Table[InferenceState]] = {
    (_S.AWAIT_HELLO, InferenceHello): Row(InferenceModelOwner.on_hello, (_S.AWAIT_AGREEMENT,)),
    (_S.AWAIT_HELLO, Trigger.DROP): Row(InferenceModelOwner.on_drop, (_S.ABORTED,)),
    (_S.AWAIT_AGREEMENT, AgreeTerms): Row(InferenceModelOwner.on_agreement, (_S.MASKING,)),
    (_S.MASKING, Trigger.PROVIDE): Row(InferenceModelOwner.on_masked, (_S.MASKING, _S.IDLE)),
    (_S.IDLE, StartPass): Row(InferenceModelOwner.on_start_pass, (_S.PREPARING,)),
    (_S.PREPARING, InferenceTrigger.BEGIN): Row(InferenceModelOwner.on_begin, (_S.COMPUTING, _S.ABORTED)),
    (_S.PREPARING, InferenceTrigger.AUDIT): Row(InferenceModelOwner.on_audit, (_S.AWAIT_COIN,)),
    (_S.AWAIT_COIN, AuditCoin): Row(InferenceModelOwner.on_coin, (_S.AWAIT_KEYS, _S.PREPARING)),
    (_S.AWAIT_KEYS, AuditKeys): Row(InferenceModelOwner.on_keys, (_S.REVEALING,)),
    (_S.REVEALING, InferenceTrigger.REVEAL): Row(InferenceModelOwner.on_reveal, (_S.PREPARING,)),
    (_S.COMPUTING, Opening): Row(InferenceModelOwner.on_opening, (_S.COMPUTING, _S.IDLE)),
    (_S.COMPUTING, InferenceTrigger.OPEN): Row(InferenceModelOwner.on_give, (_S.COMPUTING, _S.IDLE)),
    (_S.IDLE, CloseInference): Row(InferenceModelOwner.on_close, (_S.CLOSED,)),
    **ending(
        InferenceModelOwner,
        _S.ABORTED,
        own=(_S.MASKING, _S.PREPARING, _S.REVEALING),
        awaiting=(_S.AWAIT_AGREEMENT, _S.IDLE, _S.AWAIT_COIN, _S.AWAIT_KEYS, _S.COMPUTING),
    ),
    **over((_S.CLOSED,), ()),
    **over((_S.ABORTED,), (AgreeTerms, StartPass, AuditCoin, AuditKeys, Opening, CloseInference)),
}

"""Operations of double-blind adaptation, and those that play its owners: data owners, a model owner, or some of them.

With the dealer they speak private inference, which is not played here. Nothing is computed: what is opened, masked or
added is given. Who survives a secure sum is given, too; the model owner itself decides which sums may be told.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from tacit.protocol.adaptation.data_owner import LearningDataOwner
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES, AdaptationTerms, Purpose
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.adaptation.schedule import adaptation_rounds, sum_words
from tacit.protocol.adaptation.sums import OpeningPolicy, RoundSums, weight_of
from tacit.protocol.adaptation.tables import RoundAnswered, RoundAsked, RoundKept, SumAsked, SumTold
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferencePolicy, Wish
from tacit.protocol.inference.messages import TERMS_LIMIT
from tacit.protocol.inference.quota import Quota, Spent
from tacit.protocol.inference.results import (
    Agreed,
    Charged,
    InferenceEnded,
    MaskedLayer,
    Opened,
    PassAsked,
    PassBegun,
    PassRefused,
)
from tacit.protocol.inference.service import ModelOwnerService
from tacit.simulate.conformance.message_operations import Fields, MessageFamily, fields_of, structure_of
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.primitive_operations import MemberInput, roster_of
from tacit.simulate.conformance.stage import Done, Stage, entropy_of, event, found


class LearnerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A data owner that is played; it accepts any model."""

    name: str
    images: int
    batch: int
    channels: int
    side: int
    purpose: Purpose
    smallest_cohort: int
    count: int = 0
    entropy: Octets
    patience: float


class TeacherInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The model owner, if it is played: its policy, and what it knows of sums that were told before."""

    terms: Octets
    """Encoded."""
    entropy: Octets
    patience: float
    rounds: int
    owners: int
    smallest_cohort: int
    colluders: int
    opened: int = 0
    current: int = 0
    survivors: tuple[str, ...] = ()


def write_adaptation_terms(*, terms: Fields) -> dict[str, bytes]:
    """The encoding of terms and its digest."""
    encoding = encode_structure(structure_of(terms, AdaptationTerms))
    return {"encoding": encoding, "digest": digest(Label.INFERENCE_TERMS, encoding)}


def read_adaptation_terms(*, encoding: Octets) -> Fields:
    """Terms that are well-formed, with sizes that fit together."""
    return fields_of(decode_structure(encoding, AdaptationTerms, limit=TERMS_LIMIT))


def adaptation_schedule(*, terms: Fields, images: int) -> dict[str, Any]:
    """A pass of so many images: of every round the operation, and the bytes that the model owner and the data owner
    open. And the words of a sum."""
    read: AdaptationTerms = structure_of(terms, AdaptationTerms)
    rounds = adaptation_rounds(read, images)
    return {
        "rounds": [list(each) for each in rounds],
        "words": sum_words(read.sizes, read.learning),
    }


def draw_zeros(*, secret: Octets, words: int) -> bytes:
    """What the model owner adds to so many words of its share, 8 bytes each; the data owner subtracts it."""
    from tacit.parties.correlated.material import Keystream

    return Keystream(secret).draw((words,)).numpy().astype("<i8").tobytes()


def weigh(*, count: int, least_count: int) -> int:
    """The weight of a data owner with so many images."""
    return weight_of(count, least_count)


ADAPTATION_OPERATIONS: Final[Operations] = {
    **MessageFamily(ADAPTATION_MESSAGES).operations(),
    "write terms": write_adaptation_terms,
    "read terms": read_adaptation_terms,
    "schedule": adaptation_schedule,
    "draw zeros": draw_zeros,
    "weigh": weigh,
}
"""By the names that vectors use."""


class AdaptationStage(Stage):
    """Sessions of one model owner."""

    kinds: ClassVar[Kinds] = ADAPTATION_MESSAGES
    plain_events: ClassVar = {
        MaskedLayer: ("layer", "layer", "data"),
        PassAsked: ("pass asked", "number"),
        Opened: ("opened", "step", "data"),
        PassRefused: ("pass refused", "number"),
        RoundAsked: ("round asked", "number", "done"),
        RoundAnswered: ("round answered", "done"),
        RoundKept: ("round kept", "number", "secret"),
        SumAsked: ("sum asked", "number"),
        SumTold: ("sum told", "number", "data"),
        Charged: ("charged", "peer"),
        InferenceEnded: ("ended", "code", "culprit"),
    }

    def __init__(self) -> None:
        super().__init__()
        self._roster: Roster
        self._service: ModelOwnerService | None = None
        self._sums: RoundSums

    def begin_adaptation(
        self,
        *,
        roster: tuple[MemberInput, ...],
        data_owners: tuple[LearnerInput, ...] = (),
        model_owner: TeacherInput | None = None,
    ) -> bytes:
        """Begin, with these parties, at time 0. Returns the hash of the roster."""
        members = self._roster = roster_of(roster)
        for owner in data_owners:
            self._machines[owner.name] = LearningDataOwner(
                owner.name,
                members,
                wish=Wish(images=owner.images, batch=owner.batch, channels=owner.channels, side=owner.side),
                policy=InferencePolicy(),
                patience=owner.patience,
                purpose=owner.purpose,
                smallest_cohort=owner.smallest_cohort,
                count=owner.count,
                entropy=entropy_of(owner.entropy),
            )
        if model_owner is not None:
            own, entropy = model_owner, entropy_of(model_owner.entropy)
            policy = OpeningPolicy(
                rounds=own.rounds, owners=own.owners, smallest_cohort=own.smallest_cohort, colluders=own.colluders
            )
            self._sums = RoundSums(policy, own.opened, own.current, own.survivors)
            terms = decode_structure(own.terms, AdaptationTerms, limit=TERMS_LIMIT)
            self._service = ModelOwnerService(
                lambda data_owner: LearningModelOwner(
                    data_owner,
                    members,
                    terms=terms,
                    entropy=entropy,
                    patience=own.patience,
                    quota=Quota(),
                    spent=Spent(),
                    sums=self._sums,
                ),
                ADAPTATION_MESSAGES,
            )
        return members.hash

    def hello(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner says hello to the model owner."""
        return self.did(party, lambda owner: owner.start(now))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        if party == self._roster.server.name and self._service is not None:
            return self.done(party, *self._service.feed(sender, delivered, now))
        return self.did(party, lambda owner: owner.feed(delivered, now))

    def mask(self, *, party: str, layer: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has masked the weights of a layer."""
        return self.did(party, lambda own: own.mask(layer, data, now), self._machine(party, data_owner))

    def ask(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner wants the next pass."""
        return self.did(party, lambda owner: owner.ask(now))

    def begin_pass(self, *, party: str, weights: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has its material for the pass, and now computes with the model of this commitment."""
        return self.did(party, lambda own: own.begin(weights, 0.0, now), self._machine(party, data_owner))

    def give(self, *, party: str, step: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner opens something in a round of a pass."""
        return self.did(party, lambda own: own.give(step, data, now), self._machine(party, data_owner))

    def begin_round(self, *, party: str, number: int, based: int, done: int, now: float = 0.0) -> Done:
        """A data owner begins a round of learning."""
        return self.did(party, lambda owner: owner.begin_round(number, based, done, now))

    def answer_round(self, *, party: str, done: int, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has found out behind how many batches the round goes on."""
        return self.did(party, lambda own: own.begin_round(done, now), self._machine(party, data_owner))

    def keep_round(self, *, party: str, number: int, now: float = 0.0) -> Done:
        """A data owner ends a round of learning, and draws the secret of its zeros."""
        return self.did(party, lambda owner: owner.keep_round(number, now)[1])

    def ask_sum(self, *, party: str, number: int, survivors: tuple[str, ...], now: float = 0.0) -> Done:
        """A data owner asks for the sum of a round, of which these have survived."""
        return self.did(party, lambda owner: owner.ask_sum(number, survivors, now))

    def survivors(self, *, party: str, number: int) -> list[str] | None:
        """Over whom the model owner may tell the sum of a round; null if it may not, or does not know yet."""
        self._machine(party, None)
        return list(self._sums.survivors) if self._sums.verdict(number) == "" else None

    def tell_sum(
        self, *, party: str, number: int, data: Octets | None, data_owner: str | None = None, now: float = 0.0
    ) -> Done:
        """The model owner has the sum that was asked for; null: the patience of who waits for it is over, or it is
        known that there is none."""
        reason = "" if data is not None else self._sums.give_up(number, now)
        return self.did(party, lambda own: own.provide(number, data, now, reason), self._machine(party, data_owner))

    def close(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner has what it wanted."""
        return self.did(party, lambda owner: owner.finish(now))

    def drop(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party learns that its link to a peer is lost for good."""
        detail = "its link was lost"
        if party == self._roster.server.name and self._service is not None:
            return self.done(party, *self._service.drop(peer, detail, now))
        return self.did(party, lambda owner: owner.drop(detail, now))

    def expire(self, *, party: str, now: float, data_owner: str | None = None) -> Done:
        """A party is told the time."""
        return self.did(party, lambda own: own.expire(now), self._machine(party, data_owner))

    def _machine(self, party: str, data_owner: str | None) -> Any:
        """An owner's machine towards the other; the model owner's is that with the first data owner by default."""
        if party in self._machines or self._service is None:
            return found(self._machines, party, f"{party} is not played")
        name = data_owner or self._roster.clients[0]
        return found(self._service.sessions, name, f"{party} has no session with {name}")

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case Agreed():
                return [event("agreed", output, "images", "batch") | {"terms": output.digest}]
            case PassBegun():
                return [event("pass begun", output, "number") | {"rounds": len(output.rounds)}]
        return super()._events(party, output)

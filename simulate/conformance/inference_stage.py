"""Operations that play private inference: data owners, a model owner, a dealer, or some of them.

An owner has two exchanges in a session, with the other owner and with the dealer; the model owner and the dealer have a
session with each data owner. Nothing is computed: what is opened, masked or dealt is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from tacit.protocol.core.codec import decode, decode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Output
from tacit.protocol.core.messages import Kinds
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, Wish
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, TERMS_LIMIT, Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.quota import MOST_A_DAY, Quota, Spent
from tacit.protocol.inference.results import (
    Agreed,
    Charged,
    Deal,
    InferenceEnded,
    KeysDealt,
    MaskedLayer,
    MaterialArrived,
    MaterialKey,
    Opened,
    PassAsked,
    PassBegun,
    PassRefused,
)
from tacit.protocol.inference.service import DealerService, ModelOwnerService
from tacit.simulate.conformance.notation import Octets
from tacit.simulate.conformance.primitive_operations import MemberInput, roster_of
from tacit.simulate.conformance.stage import Done, Stage, entropy_of, event, found


class DataOwnerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A data owner that is played."""

    name: str
    images: int
    batch: int
    channels: int
    side: int
    bits: int = 0
    """Fractional bits that it wants of logits."""
    weights: Octets | None
    """The commitment to weights that it wants; any if null."""
    entropy: Octets
    patience: float


class ModelOwnerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The model owner, if it is played."""

    terms: Octets
    """Encoded."""
    entropy: Octets
    patience: float
    images_a_day: int = MOST_A_DAY
    """Of the quota."""
    refused_a_day: int = MOST_A_DAY


class InferenceDealerInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The dealer, if it is played."""

    entropy: Octets
    patience: float


class CorrectionInput(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an owner expects for one of the requests that it orders."""

    number: int
    bytes: int


class InferenceStage(Stage):
    """Sessions of one model owner."""

    kinds: ClassVar[Kinds] = INFERENCE_MESSAGES
    plain_events: ClassVar = {
        MaskedLayer: ("layer", "layer", "data"),
        PassAsked: ("pass asked", "number"),
        Opened: ("opened", "step", "data"),
        PassRefused: ("pass refused", "number"),
        MaterialKey: ("material key", "key"),
        MaterialArrived: ("material", "number", "data"),
        KeysDealt: ("keys", "owners", "keys"),
        Deal: ("deal", "first", "count"),
        InferenceEnded: ("ended", "code", "culprit"),
    }

    def __init__(self) -> None:
        super().__init__()
        self._roster: Roster
        self._dealer = ""
        self._services: dict[str, ModelOwnerService | DealerService] = {}
        # By owner and data owner.
        self._agreed: dict[tuple[str, str], Agreed] = {}
        self._material: dict[tuple[str, str], MaterialOwner] = {}
        self._spent: dict[str, Spent] = {}
        """What data owners have used of their quota."""
        self._own: dict[str, dict[str, Any]] = {}
        """What every party has by itself: what it draws, and its patience."""

    def begin_inference(
        self,
        *,
        roster: tuple[MemberInput, ...],
        data_owners: tuple[DataOwnerInput, ...] = (),
        model_owner: ModelOwnerInput | None = None,
        dealer: InferenceDealerInput | None = None,
    ) -> bytes:
        """Begin, with these parties, at time 0. Returns the hash of the roster."""
        members = self._roster = roster_of(roster)
        host = members.server.name
        self._dealer = next(member.name for member in members.members if member.role == "dealer")
        parties = [*((owner.name, owner) for owner in data_owners), (host, model_owner), (self._dealer, dealer)]
        self._own = {
            name: {"entropy": entropy_of(party.entropy), "patience": party.patience}
            for name, party in parties
            if party is not None
        }
        for owner in data_owners:
            self._machines[owner.name] = InferenceDataOwner(
                owner.name,
                members,
                wish=Wish(images=owner.images, batch=owner.batch, channels=owner.channels, side=owner.side),
                policy=InferencePolicy(bits=owner.bits, weights=owner.weights),
                patience=owner.patience,
            )
        if model_owner is not None:
            terms = decode_structure(model_owner.terms, Terms, limit=TERMS_LIMIT)
            self._services[host] = ModelOwnerService(
                lambda data_owner: InferenceModelOwner(
                    data_owner,
                    members,
                    terms=terms,
                    quota=Quota(images=model_owner.images_a_day, refused=model_owner.refused_a_day),
                    spent=self._spent.get(data_owner, Spent()),
                    **self._own[host],
                )
            )
        if dealer is not None:
            self._services[self._dealer] = DealerService(
                members,
                lambda data_owner, session, now: InferenceDealer(
                    self._dealer,
                    members,
                    data_owner=data_owner,
                    session=session,
                    now=now,
                    **self._own[self._dealer],
                ),
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
        if sender == self._dealer:
            return self.done(party, *((each, each.feed(delivered, now)) for each in self._meant(party, delivered)))
        if party in self._services:
            return self.done(party, *self._services[party].feed(sender, delivered, now))
        return self.did(party, lambda owner: owner.feed(delivered, now))

    def mask(self, *, party: str, layer: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has masked the weights of a layer."""
        return self.did(party, lambda own: own.mask(layer, data, now), self._machine(party, data_owner))

    def ask(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner wants the next pass."""
        return self.did(party, lambda owner: owner.ask(now))

    def begin_pass(
        self, *, party: str, weights: Octets, data_owner: str | None = None, at: float = 0.0, now: float = 0.0
    ) -> Done:
        """The model owner has its material for the pass, and now computes with the model of this commitment. at: Unix
        time."""
        return self.did(party, lambda own: own.begin(weights, at, now), self._machine(party, data_owner))

    def give(self, *, party: str, step: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner opens something in a round."""
        return self.did(party, lambda own: own.give(step, data, now), self._machine(party, data_owner))

    def close(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner has what it wanted."""
        return self.did(party, lambda owner: owner.finish(now))

    def hello_to_dealer(self, *, party: str, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner, once it has agreed on terms, comes to the dealer."""
        key = self._key(party, data_owner)
        agreed = found(self._agreed, key, f"{party} has not agreed on terms")
        self._material[key] = MaterialOwner(party, self._roster, dealer=self._dealer, agreed=agreed, **self._own[party])
        return self.did(party, lambda own: own.start(now), self._material[key])

    def order(
        self,
        *,
        party: str,
        requests: Octets,
        count: int,
        corrections: tuple[CorrectionInput, ...],
        data_owner: str | None = None,
        now: float = 0.0,
    ) -> Done:
        """An owner orders requests, and expects the corrections that come to it."""
        expected, machine = [(each.number, each.bytes) for each in corrections], self._at_dealer(party, data_owner)
        return self.did(party, lambda owner: owner.order(requests, count, expected, now), machine)

    def order_no_more(self, *, party: str, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner is done with the dealer."""
        return self.did(party, lambda own: own.finish(now), self._at_dealer(party, data_owner))

    def deliver(self, *, party: str, data_owner: str, owner: str, number: int, data: Octets, now: float = 0.0) -> Done:
        """The dealer has computed the corrections of a request for an owner, in the session with this data owner."""
        return self.did(party, lambda own: own.deliver(owner, number, data, now), self._machine(party, data_owner))

    def give_up(
        self, *, party: str, peer: str, code: str, culprit: str, data_owner: str | None = None, now: float = 0.0
    ) -> Done:
        """A party ends its exchange with a peer for a reason that lies elsewhere; the dealer that with both owners."""
        error = RemoteProtocolError(Code[code], "it cannot go on", culprit=culprit)
        return self.did(party, lambda own: own.give_up(error, now), self._exchange(party, peer, data_owner))

    def drop(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party learns that its link to a peer is lost for good."""
        detail = "its link was lost"
        if peer == self._dealer:
            return self.done(party, *((each, each.drop(detail, now)) for each in self._coming(party)))
        if party in self._services:
            return self.done(party, *self._services[party].drop(peer, detail, now))
        return self.did(party, lambda owner: owner.drop(detail, now))

    def expire(self, *, party: str, peer: str, now: float, data_owner: str | None = None) -> Done:
        """A party is told the time, for its exchange with a peer."""
        return self.did(party, lambda own: own.expire(now), self._exchange(party, peer, data_owner))

    def _key(self, party: str, data_owner: str | None) -> tuple[str, str]:
        """Owner and data owner; by default it is a data owner itself, or the first data owner of the roster."""
        return party, party if party in self._machines else data_owner or self._roster.clients[0]

    def _machine(self, party: str, data_owner: str | None = None) -> Any:
        """An owner's machine towards the other owner, or the dealer's for both."""
        if party not in self._services:
            return found(self._machines, party, f"{party} is not played")
        _, name = self._key(party, data_owner)
        return found(self._services[party].sessions, name, f"{party} has no session with {name}")

    def _at_dealer(self, party: str, data_owner: str | None) -> MaterialOwner:
        """An owner's machine towards the dealer."""
        return found(self._material, self._key(party, data_owner), f"{party} has not come to the dealer")

    def _exchange(self, party: str, peer: str, data_owner: str | None) -> Any:
        return self._at_dealer(party, data_owner) if peer == self._dealer else self._machine(party, peer)

    def _coming(self, party: str) -> list[MaterialOwner]:
        """All machines of an owner towards the dealer."""
        return [machine for (name, _), machine in self._material.items() if name == party]

    def _meant(self, party: str, frames: Sequence[bytes]) -> list[MaterialOwner]:
        """Whom a message of the dealer is for: the session says which; one that cannot be read is for all."""
        own = self._coming(party)
        with suppress(RemoteProtocolError):
            session = decode(frames, INFERENCE_MESSAGES).envelope.session
            return [machine for machine in own if machine.session == session]
        return own

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case Agreed():
                self._agreed[self._key(party, output.peer)] = output
                plain = {"images": output.images, "batch": output.batch}
                return [{"event": "agreed", "terms": output.digest, **plain}]
            case Charged():
                self._spent[output.peer] = output.spent
                return [event("charged", output.spent, "day", "images", "refused")]
            case PassBegun():
                return [event("pass begun", output, "number") | {"rounds": len(output.rounds)}]
        return super()._events(party, output)

"""Operations that play private inference: data owners, a model owner, a dealer, or some of them.

An owner has two exchanges in a session, with the other owner and with the dealer; the model owner and the dealer have a
session with each data owner. Nothing is computed: what is opened, masked or dealt is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tacit.protocol.core.codec import decode, decode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Output
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.data_owner import InferenceDataOwner, InferencePolicy, Wish
from tacit.protocol.inference.dealer import InferenceDealer
from tacit.protocol.inference.material import MaterialOwner
from tacit.protocol.inference.messages import INFERENCE_MESSAGES, TERMS_LIMIT, Input, Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import (
    Agreed,
    Deal,
    InferenceEnded,
    KeysDealt,
    MaskedLayer,
    MaterialArrived,
    MaterialKey,
    Opened,
    PassAsked,
    PassBegun,
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
    inputs: tuple[Input, ...]
    """Its policy: the kinds of input that it accepts."""
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

    kinds: ClassVar[Mapping[str, type[Message]]] = INFERENCE_MESSAGES

    def __init__(self) -> None:
        super().__init__()
        self._roster: Roster
        self._terms: Terms
        self._dealer_name = ""
        self._data_owners: dict[str, InferenceDataOwner] = {}
        self._services: dict[str, ModelOwnerService | DealerService] = {}
        # By owner and data owner.
        self._agreed: dict[tuple[str, str], Agreed] = {}
        self._material: dict[tuple[str, str], MaterialOwner] = {}
        self._session: dict[tuple[str, str], bytes] = {}
        """That of the exchange with the dealer."""
        self._entropy: dict[str, Entropy] = {}
        self._patience: dict[str, float] = {}

    def begin_inference(
        self,
        *,
        roster: tuple[MemberInput, ...],
        data_owners: tuple[DataOwnerInput, ...] = (),
        model_owner: ModelOwnerInput | None = None,
        dealer: InferenceDealerInput | None = None,
    ) -> bytes:
        """Begin, with these parties, at time 0. Returns the hash of the roster."""
        self._roster = roster_of(roster)
        self._dealer_name = next(member.name for member in self._roster.members if member.role == "dealer")
        for owner in data_owners:
            self._join(owner.name, owner.entropy, owner.patience)
            self._data_owners[owner.name] = InferenceDataOwner(
                owner.name,
                self._roster,
                wish=Wish(images=owner.images, batch=owner.batch, channels=owner.channels, side=owner.side),
                policy=InferencePolicy(inputs=owner.inputs, weights=owner.weights),
                patience=owner.patience,
            )
        if model_owner is not None:
            self._join(self._roster.server.name, model_owner.entropy, model_owner.patience)
            self._terms = decode_structure(model_owner.terms, Terms, limit=TERMS_LIMIT)
            self._services[self._roster.server.name] = ModelOwnerService(self._serve)
        if dealer is not None:
            self._join(self._dealer_name, dealer.entropy, dealer.patience)
            self._services[self._dealer_name] = DealerService(self._roster, self._deal)
        return self._roster.hash

    def hello(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner says hello to the model owner."""
        machine = self._own(party)
        return self.done(party, (machine, machine.start(now)))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        if sender == self._dealer_name:
            return self.done(party, *((each, each.feed(delivered, now)) for each in self._meant(party, delivered)))
        if party in self._services:
            return self.done(party, *self._services[party].feed(sender, delivered, now))
        machine = self._own(party)
        return self.done(party, (machine, machine.feed(delivered, now)))

    def mask(self, *, party: str, layer: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has masked the weights of a layer."""
        machine = self._own(party, data_owner)
        return self.done(party, (machine, machine.mask(layer, data, now)))

    def ask(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner wants the next pass."""
        machine = self._own(party)
        return self.done(party, (machine, machine.ask(now)))

    def begin_pass(self, *, party: str, weights: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has its material for the pass, and now computes with the model of this commitment."""
        machine = self._own(party, data_owner)
        return self.done(party, (machine, machine.begin(weights, now)))

    def give(self, *, party: str, step: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner opens something in a round."""
        machine = self._own(party, data_owner)
        return self.done(party, (machine, machine.give(step, data, now)))

    def close(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner has what it wanted."""
        machine = self._own(party)
        return self.done(party, (machine, machine.finish(now)))

    def hello_to_dealer(self, *, party: str, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner, once it has agreed on terms, comes to the dealer."""
        key = self._key(party, data_owner)
        agreed = found(self._agreed, key, f"{party} has not agreed on terms")
        self._session[key] = agreed.session
        machine = self._material[key] = MaterialOwner(
            party,
            self._roster,
            dealer=self._dealer_name,
            agreed=agreed,
            entropy=self._entropy[party],
            patience=self._patience[party],
        )
        return self.done(party, (machine, machine.start(now)))

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
        machine = self._at_dealer(party, data_owner)
        expected = [(each.number, each.bytes) for each in corrections]
        return self.done(party, (machine, machine.order(requests, count, expected, now)))

    def order_no_more(self, *, party: str, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner is done with the dealer."""
        machine = self._at_dealer(party, data_owner)
        return self.done(party, (machine, machine.finish(now)))

    def deliver(self, *, party: str, data_owner: str, owner: str, number: int, data: Octets, now: float = 0.0) -> Done:
        """The dealer has computed the corrections of a request for an owner, in the session with this data owner."""
        machine = self._own(party, data_owner)
        return self.done(party, (machine, machine.deliver(owner, number, data, now)))

    def give_up(
        self, *, party: str, peer: str, code: str, culprit: str, data_owner: str | None = None, now: float = 0.0
    ) -> Done:
        """A party ends its exchange with a peer for a reason that lies elsewhere; the dealer that with both owners."""
        machine = self._exchange(party, peer, data_owner)
        error = RemoteProtocolError(Code[code], "it cannot go on", culprit=culprit)
        return self.done(party, (machine, machine.give_up(error, now)))

    def drop(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party learns that its link to a peer is lost for good."""
        detail = "its link was lost"
        if peer == self._dealer_name:
            own = [machine for (name, _), machine in self._material.items() if name == party]
            return self.done(party, *((machine, machine.drop(detail, now)) for machine in own))
        if party in self._services:
            return self.done(party, *self._services[party].drop(peer, detail, now))
        machine = self._own(party)
        return self.done(party, (machine, machine.drop(detail, now)))

    def expire(self, *, party: str, peer: str, now: float, data_owner: str | None = None) -> Done:
        """A party is told the time, for its exchange with a peer."""
        machine = self._exchange(party, peer, data_owner)
        return self.done(party, (machine, machine.expire(now)))

    def _join(self, name: str, entropy: Octets, patience: float) -> None:
        self._entropy[name], self._patience[name] = entropy_of(entropy), patience

    def _serve(self, data_owner: str) -> InferenceModelOwner:
        name = self._roster.server.name
        return InferenceModelOwner(
            data_owner,
            self._roster,
            terms=self._terms,
            entropy=self._entropy[name],
            patience=self._patience[name],
        )

    def _deal(self, data_owner: str, session: bytes, now: float) -> InferenceDealer:
        name = self._dealer_name
        return InferenceDealer(
            name,
            self._roster,
            data_owner=data_owner,
            session=session,
            entropy=self._entropy[name],
            patience=self._patience[name],
            now=now,
        )

    def _key(self, party: str, data_owner: str | None) -> tuple[str, str]:
        """Owner and data owner; by default it is a data owner itself, or the first data owner of the roster."""
        return party, party if party in self._data_owners else data_owner or self._roster.clients[0]

    def _own(self, party: str, data_owner: str | None = None) -> Any:
        """An owner's machine towards the other owner, or the dealer's for both."""
        if party in self._data_owners:
            return self._data_owners[party]
        service = found(self._services, party, f"{party} is not played")
        _, name = self._key(party, data_owner)
        return found(service.sessions, name, f"{party} has no session with {name}")

    def _at_dealer(self, party: str, data_owner: str | None) -> MaterialOwner:
        """An owner's machine towards the dealer."""
        return found(self._material, self._key(party, data_owner), f"{party} has not come to the dealer")

    def _exchange(self, party: str, peer: str, data_owner: str | None) -> Any:
        return self._at_dealer(party, data_owner) if peer == self._dealer_name else self._own(party, peer)

    def _meant(self, party: str, frames: Sequence[bytes]) -> list[MaterialOwner]:
        """Whom a message of the dealer is for: the session says which; one that cannot be read is for all."""
        own = {key: machine for key, machine in self._material.items() if key[0] == party}
        try:
            session = decode(frames, INFERENCE_MESSAGES).envelope.session
        except RemoteProtocolError:
            return list(own.values())
        return [machine for key, machine in own.items() if self._session[key] == session]

    def _events(self, party: str, output: Output) -> list[dict[str, Any]]:
        match output:
            case Agreed():
                self._agreed[self._key(party, output.peer)] = output
                return [{"event": "agreed", "terms": output.digest, "images": output.images, "batch": output.batch}]
            case MaskedLayer():
                return [event("layer", output, "layer", "data")]
            case PassAsked():
                return [event("pass asked", output, "number")]
            case PassBegun():
                return [event("pass begun", output, "number") | {"rounds": len(output.rounds)}]
            case Opened():
                return [event("opened", output, "step", "data")]
            case MaterialKey():
                return [event("material key", output, "key")]
            case MaterialArrived():
                return [event("material", output, "number", "data")]
            case KeysDealt():
                return [event("keys", output, "owners", "keys")]
            case Deal():
                return [event("deal", output, "first", "count")]
            case InferenceEnded():
                return [event("ended", output, "code", "culprit")]
        raise TypeError(type(output).__name__)

"""Operations that play private inference: data owners, a model owner, a dealer, or some of them.

An owner has two exchanges in a session, with the other owner and with the dealer; the model owner and the dealer have a
session with each data owner. Nothing is computed: what is opened, masked or dealt is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from tacit.protocol.core.codec import decode, decode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Machine, Output
from tacit.protocol.core.messages import Message
from tacit.protocol.core.outputs import Transmit
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
from tacit.simulate.conformance.notation import Octets, VectorError
from tacit.simulate.conformance.operations import Operations
from tacit.simulate.conformance.primitive_operations import MemberInput, roster_of
from tacit.simulate.conformance.stage import Done, Stage, coded, entropy_of

Exchange = Machine[Any]
Answers = Iterable[tuple[Exchange, list[Output]]]


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
        self._service: ModelOwnerService | None = None
        self._dealer: DealerService | None = None
        # By owner and data owner.
        self._agreed: dict[tuple[str, str], Agreed] = {}
        self._material: dict[tuple[str, str], MaterialOwner] = {}
        self._session: dict[tuple[str, str], bytes] = {}
        """That of the exchange with the dealer."""
        self._entropy: dict[str, Entropy] = {}
        self._patience: dict[str, float] = {}

    def operations(self) -> Operations:
        """By the names that vectors use."""
        return {
            "begin inference": self.begin_inference,
            "hello": self.hello,
            "receive": self.receive,
            "mask": self.mask,
            "ask": self.ask,
            "begin pass": self.begin_pass,
            "give": self.give,
            "close": self.close,
            "hello to dealer": self.hello_to_dealer,
            "order": self.order,
            "order no more": self.order_no_more,
            "deliver": self.deliver,
            "give up": self.give_up,
            "drop": self.drop,
            "expire": self.expire,
        }

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
                policy=InferencePolicy(
                    inputs=owner.inputs, weights=None if owner.weights is None else bytes(owner.weights)
                ),
                patience=owner.patience,
            )
        if model_owner is not None:
            self._join(self._roster.server.name, model_owner.entropy, model_owner.patience)
            self._terms = decode_structure(bytes(model_owner.terms), Terms, limit=TERMS_LIMIT)
            self._service = ModelOwnerService(self._serve)
        if dealer is not None:
            self._join(self._dealer_name, dealer.entropy, dealer.patience)
            self._dealer = DealerService(self._roster, self._deal)
        return self._roster.hash

    def hello(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner says hello to the model owner."""
        machine = self._data_owner(party)
        return self._did(party, machine, lambda: machine.start(now))

    def receive(
        self, *, party: str, sender: str, message: int | None = None, frames: tuple[Octets, ...] = (), now: float = 0.0
    ) -> Done:
        """A party gets a message over the authenticated link from another."""
        delivered = self.delivered(party, sender, message, frames)
        if party == self._dealer_name:
            return self._done(party, self._dealer_service().feed(sender, delivered, now))
        if sender == self._dealer_name:
            return self._done(party, [(each, each.feed(delivered, now)) for each in self._meant(party, delivered)])
        if party == self._roster.server.name:
            return self._done(party, self._model_owner().feed(sender, delivered, now))
        machine = self._data_owner(party)
        return self._done(party, [(machine, machine.feed(delivered, now))])

    def mask(self, *, party: str, layer: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has masked the weights of a layer."""
        machine = self._serving(party, data_owner)
        return self._did(party, machine, lambda: machine.mask(layer, bytes(data), now))

    def ask(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner wants the next pass."""
        machine = self._data_owner(party)
        return self._did(party, machine, lambda: machine.ask(now))

    def begin_pass(self, *, party: str, weights: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """The model owner has its material for the pass, and now computes with the model of this commitment."""
        machine = self._serving(party, data_owner)
        return self._did(party, machine, lambda: machine.begin(bytes(weights), now))

    def give(self, *, party: str, step: int, data: Octets, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner opens something in a round."""
        own = party in self._data_owners
        machine = self._data_owner(party) if own else self._serving(party, data_owner)
        return self._did(party, machine, lambda: machine.give(step, bytes(data), now))

    def close(self, *, party: str, now: float = 0.0) -> Done:
        """A data owner has what it wanted."""
        machine = self._data_owner(party)
        return self._did(party, machine, lambda: machine.finish(now))

    def hello_to_dealer(self, *, party: str, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner, once it has agreed on terms, comes to the dealer."""
        key = self._key(party, data_owner)
        if key not in self._agreed:
            raise VectorError(f"{party} has not agreed on terms")
        agreed = self._agreed[key]
        self._session[key] = agreed.session
        machine = self._material[key] = MaterialOwner(
            party,
            self._roster,
            dealer=self._dealer_name,
            agreed=agreed,
            entropy=self._entropy[party],
            patience=self._patience[party],
        )
        return self._did(party, machine, lambda: machine.start(now))

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
        machine = self._owner_at_dealer(party, data_owner)
        expected = [(each.number, each.bytes) for each in corrections]
        return self._did(party, machine, lambda: machine.order(bytes(requests), count, expected, now))

    def order_no_more(self, *, party: str, data_owner: str | None = None, now: float = 0.0) -> Done:
        """An owner is done with the dealer."""
        machine = self._owner_at_dealer(party, data_owner)
        return self._did(party, machine, lambda: machine.finish(now))

    def deliver(self, *, party: str, data_owner: str, owner: str, number: int, data: Octets, now: float = 0.0) -> Done:
        """The dealer has computed the corrections of a request for an owner, in the session with this data owner."""
        machine = self._dealing(data_owner)
        return self._did(party, machine, lambda: machine.deliver(owner, number, bytes(data), now))

    def give_up(
        self, *, party: str, peer: str, code: str, culprit: str, data_owner: str | None = None, now: float = 0.0
    ) -> Done:
        """A party ends its exchange with a peer for a reason that lies elsewhere; the dealer that with both owners."""
        machine: Any = self._exchange(party, peer, data_owner)
        error = RemoteProtocolError(Code[code], "it cannot go on", culprit=culprit)
        return self._did(party, machine, lambda: machine.give_up(error, now))

    def drop(self, *, party: str, peer: str, now: float = 0.0) -> Done:
        """A party learns that its link to a peer is lost for good."""
        detail = "its link was lost"
        if party == self._dealer_name:
            return self._done(party, self._dealer_service().drop(peer, detail, now))
        if peer == self._dealer_name:
            own = [machine for (name, _), machine in self._material.items() if name == party]
            return self._done(party, [(machine, machine.drop(detail, now)) for machine in own])
        if party == self._roster.server.name:
            return self._done(party, self._model_owner().drop(peer, detail, now))
        machine = self._data_owner(party)
        return self._done(party, [(machine, machine.drop(detail, now))])

    def expire(self, *, party: str, peer: str, now: float, data_owner: str | None = None) -> Done:
        """A party is told the time, for its exchange with a peer."""
        machine = self._exchange(party, peer, data_owner)
        return self._did(party, machine, lambda: machine.expire(now))

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

    def _data_owner(self, party: str) -> InferenceDataOwner:
        if party not in self._data_owners:
            raise VectorError(f"{party} is not played")
        return self._data_owners[party]

    def _model_owner(self) -> ModelOwnerService:
        if self._service is None:
            raise VectorError("the model owner is not played")
        return self._service

    def _dealer_service(self) -> DealerService:
        if self._dealer is None:
            raise VectorError("the dealer is not played")
        return self._dealer

    def _serving(self, party: str, data_owner: str | None) -> InferenceModelOwner:
        sessions, (_, name) = self._model_owner().sessions, self._key(party, data_owner)
        if party != self._roster.server.name or name not in sessions:
            raise VectorError(f"{party} has no session with {name}")
        return sessions[name]

    def _dealing(self, data_owner: str) -> InferenceDealer:
        sessions = self._dealer_service().sessions
        if data_owner not in sessions:
            raise VectorError(f"the dealer has no session with {data_owner}")
        return sessions[data_owner]

    def _owner_at_dealer(self, party: str, data_owner: str | None) -> MaterialOwner:
        key = self._key(party, data_owner)
        if key not in self._material:
            raise VectorError(f"{party} has not come to the dealer")
        return self._material[key]

    def _exchange(self, party: str, peer: str, data_owner: str | None) -> Exchange:
        if party == self._dealer_name:
            return self._dealing(peer)
        if peer == self._dealer_name:
            return self._owner_at_dealer(party, data_owner)
        return self._data_owner(party) if party in self._data_owners else self._serving(party, peer)

    def _meant(self, party: str, frames: Sequence[bytes]) -> list[MaterialOwner]:
        """Whom a message of the dealer is for: the session says which; one that cannot be read is for all."""
        own = {key: machine for key, machine in self._material.items() if key[0] == party}
        try:
            session = decode(frames, INFERENCE_MESSAGES).envelope.session
        except RemoteProtocolError:
            return list(own.values())
        return [machine for key, machine in own.items() if self._session[key] == session]

    def _did(self, party: str, machine: Exchange, act: Any) -> Done:
        """What this party itself does in one exchange; ValueError where it must not."""
        try:
            outputs = act()
        except LocalProtocolError as error:
            raise ValueError(str(error)) from error
        return self._done(party, [(machine, outputs)])

    def _done(self, party: str, answers: Answers) -> Done:
        sends, events = [], []
        state, deadline = "", None
        for machine, outputs in answers:
            for output in outputs:
                if isinstance(output, Transmit):
                    sends.append(self.sent(party, output.to, output.frames))
                    continue
                if isinstance(output, Agreed):
                    data_owner = party if party in self._data_owners else output.peer
                    self._agreed[party, data_owner] = output
                events.append(_event(output))
            state, deadline = machine.state.name, machine.deadline
        return Done(sends=tuple(sends), events=tuple(events), state=state, deadline=deadline)


def _event(output: Output) -> dict[str, Any]:
    match output:
        case Agreed():
            return {"event": "agreed", "terms": output.digest, "images": output.images, "batch": output.batch}
        case MaskedLayer():
            return {"event": "layer", "layer": output.layer, "data": output.data}
        case PassAsked():
            return {"event": "pass asked", "number": output.number}
        case PassBegun():
            return {"event": "pass begun", "number": output.number, "rounds": len(output.rounds)}
        case Opened():
            return {"event": "opened", "step": output.step, "data": output.data}
        case MaterialKey():
            return {"event": "material key", "key": output.key}
        case MaterialArrived():
            return {"event": "material", "number": output.number, "data": output.data}
        case KeysDealt():
            return {"event": "keys", "owners": output.owners, "keys": output.keys}
        case Deal():
            return {"event": "deal", "first": output.first, "count": output.count}
        case InferenceEnded():
            return coded("ended", output.code, culprit=output.culprit)
    raise TypeError(type(output).__name__)

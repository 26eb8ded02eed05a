"""A client and the group key: between the rounds it agrees on keys, and encrypts the model anew when one is new.

The key of an attempt that every member confirmed is held until the server says that the attempt failed after all
(EndKey), and used in a round only with exactly the members it was agreed with, for as many rounds as the configuration
allows. An epoch is taken part in once. Keys that the server's model may still be encrypted under are kept; those
before are forgotten as soon as a round begins.

Whatever breaks a rule here ends the session: outside of rounds there is nothing to save.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tacit.protocol.core.codec import Frame, Packet
from tacit.protocol.core.errors import Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.machine import Entropy, Machine, Output, Send, Step, Trigger
from tacit.protocol.core.members import decode_members
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.model_transfer import IncomingModel, OutgoingModel, model_digest
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreement
from tacit.protocol.group_key.member import GroupKeyMember
from tacit.protocol.group_key.messages import (
    EndKey,
    FetchKeyedModel,
    KeyedModel,
    KeyedModelChunk,
    ReencryptModel,
    StartKey,
)
from tacit.protocol.group_key.session_tables import ATTEMPT_TO_MEMBER, HOLDER_TABLE, HolderState
from tacit.protocol.group_key.tables import MemberState
from tacit.protocol.sum.configuration import Configuration, Policy
from tacit.protocol.sum.results import ClientAborted


@dataclass(frozen=True)
class Reencrypt:
    """Output: encrypt this model under the key and call `provide`.

    source: "clients", make the initial model from the key; "server", `model` is in the clear; "key", it is under
    `former`. model: little-endian float32 bytes, empty for "clients".
    """

    source: Literal["clients", "server", "key"]
    key: GroupKey
    former: GroupKey | None
    model: bytes = field(repr=False)


@dataclass(frozen=True)
class LastModel:
    """Output: the model after the last round, under this key, as little-endian float32 bytes."""

    key: GroupKey
    model: bytes = field(repr=False)


class GroupKeyHolder(Machine[HolderState]):
    """The keys of one client in one session. Its outputs: Send, GroupKey, Reencrypt, LastModel, ClientAborted."""

    def __init__(
        self,
        name: str,
        roster: Roster,
        configuration: Configuration,
        *,
        session: bytes,
        policy: Policy,
        signing: SigningKey,
        entropy: Entropy,
    ) -> None:
        super().__init__(HOLDER_TABLE, HolderState.NO_KEY)
        self.name = name
        self._roster = roster
        self._server = roster.server.name
        self._configuration = configuration
        self._session = session
        self._policy = policy
        self._signing = signing
        self._entropy = entropy
        self._epoch = -1
        """Of the latest attempt that this client took part in."""
        self._attempt: GroupKeyMember | None = None
        self._keys: dict[int, GroupKey] = {}
        self._rounds = 0
        """Rounds begun under the latest key."""
        self._order: ReencryptModel | None = None
        self._incoming: IncomingModel
        self._outgoing: OutgoingModel

    @property
    def next_deadline(self) -> float | None:
        """When to call `expire`."""
        return self.deadline if self._attempt is None else self._attempt.deadline

    def for_round(self, cohort: tuple[str, ...]) -> GroupKey:
        """The key for a round with this cohort. Refuses a round for which there is none."""
        if self.state is not HolderState.KEYED:
            raise RemoteProtocolError(Code.KEYS, "a round begins, and the clients have not agreed on a group key")
        key = self._keys[self._epoch]
        if cohort != key.members:
            raise RemoteProtocolError(Code.KEYS, "the group key was agreed with other members than those of the round")
        if 0 < self._configuration.rekey_every <= self._rounds:
            raise RemoteProtocolError(Code.KEYS, f"the group key was used in {self._rounds} rounds and must be renewed")
        return key

    def round_begun(self) -> None:
        """A round begins under the latest key: no model under an older one will be seen again."""
        self._keys = {self._epoch: self._keys[self._epoch]}
        self._rounds += 1

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        if self._attempt is not None and packet.kind in ATTEMPT_TO_MEMBER:
            return self._relay(self._attempt, self._attempt.receive(sender, packet, now), now)
        return super().receive(sender, packet, now)

    def provide(self, epoch: int, model: bytes, now: float) -> list[Output]:
        """The model under the key of this epoch; without effect if the server does not want it any more."""
        wanted = self.state is HolderState.ENCRYPTING and epoch == self._epoch
        return self.trigger(Trigger.PROVIDE, now, model) if wanted else []

    def expire(self, now: float) -> list[Output]:
        if self._attempt is not None:
            return self._relay(self._attempt, self._attempt.expire(now), now)
        return super().expire(now)

    def forget(self) -> None:
        """Drop every secret."""
        if self._attempt is not None:
            self._attempt.forget()
        self._attempt, self._keys, self.deadline = None, {}, None

    def on_start_key(self, sender: str, message: StartKey, payload: None, now: float) -> Step[HolderState]:
        if message.epoch <= self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {message.epoch} of the group key is begun a second time")
        clients = self._roster.clients
        members = tuple(clients[index] for index in decode_members(message.members, len(clients)))
        if self.name not in members:
            raise RemoteProtocolError(Code.MEMBERS, "this client is not a member of the group that it is asked to join")
        self._policy.check_cohort(self._configuration, len(members))
        agreement = KeyAgreement(
            session=self._session,
            epoch=message.epoch,
            server=self._server,
            members=members,
            signing_keys=tuple(self._roster.member(name).signing_public for name in members),
            roster=self._roster.hash,
            configuration=self._configuration.hash(),
            phase_seconds=self._configuration.phase_seconds,
        )
        attempt = GroupKeyMember(agreement, self.name, signing=self._signing, entropy=self._entropy)

        def commit() -> list[Output]:
            self._epoch, self._attempt, self._rounds = message.epoch, attempt, 0
            return self._relay(attempt, attempt.start(now), now)

        return Step(HolderState.AGREEING, (), commit)

    def on_key_over(self, key: GroupKey | None, now: float) -> Step[HolderState]:
        def commit() -> list[Output]:
            self._attempt = None
            if key is None:
                return []
            self._keys[key.epoch] = key
            return [key]

        return Step(HolderState.NO_KEY if key is None else HolderState.KEYED, (), commit)

    def on_end_key(self, sender: str, message: EndKey, payload: None, now: float) -> Step[HolderState]:
        if message.epoch != self._epoch:
            raise RemoteProtocolError(Code.SESSION, f"epoch {message.epoch} of the group key is not the latest one")

        def commit() -> None:
            if self._attempt is not None:
                self._attempt.forget()
            self._attempt, self.deadline = None, None
            self._keys.pop(message.epoch, None)

        return Step(HolderState.NO_KEY, (), commit)

    def on_reencrypt(self, sender: str, message: ReencryptModel, payload: None, now: float) -> Step[HolderState]:
        self._check_encrypted()
        expected = 4 * sum(self._configuration.tensor_sizes)
        made_here = message.source == "clients"
        if message.epoch != self._epoch or message.model_bytes != (0 if made_here else expected):
            raise RemoteProtocolError(Code.MODEL, "a model is to be encrypted for another key, or has another length")
        if message.source == "key" and message.former not in self._keys:
            raise RemoteProtocolError(Code.KEYS, f"this client does not hold the key of epoch {message.former}")
        if message.source != "key" and message.source != self._configuration.initial_model:
            raise RemoteProtocolError(Code.MODEL, f"the first model is to come from {message.source}")
        if made_here:
            return Step(HolderState.ENCRYPTING, (), lambda: self._encrypt(message, b"", now))
        incoming = IncomingModel(message.model, expected)

        def commit() -> list[Output]:
            self._order = message
            return self._fetch(incoming, now)

        return Step(HolderState.FETCHING_MODEL, (), commit)

    def on_chunk(self, sender: str, message: KeyedModelChunk, payload: Frame | None, now: float) -> Step[HolderState]:
        following, order = self._incoming.take(message.chunk, payload), self._order
        if order is None:
            raise LocalProtocolError("a model came that nobody ordered")
        if self._incoming.complete:
            return Step(HolderState.ENCRYPTING, (), lambda: self._encrypt(order, self._incoming.data, now))
        return Step(HolderState.FETCHING_MODEL, self._request(following), lambda: self._wait(now))

    def on_provide(self, model: bytes, now: float) -> Step[HolderState]:
        if len(model) != 4 * sum(self._configuration.tensor_sizes):
            raise LocalProtocolError(f"a model of {len(model)} bytes does not fit the layout")
        offer = KeyedModel(epoch=self._epoch, model=model_digest(model), model_bytes=len(model))

        def commit() -> None:
            self._outgoing = OutgoingModel(model)
            self._wait(now)

        return Step(HolderState.PROVIDING, (self._send(offer),), commit)

    def on_fetch(self, sender: str, message: FetchKeyedModel, payload: None, now: float) -> Step[HolderState]:
        self._outgoing.check(message.chunk)
        last = self._outgoing.is_last(message.chunk)

        def commit() -> list[Output]:
            self.deadline = None if last else now + 2 * self._configuration.phase_seconds
            return [Send(self._server, KeyedModelChunk(chunk=message.chunk), payload=self._outgoing.advance())]

        return Step(HolderState.KEYED if last else HolderState.PROVIDING, (), commit)

    def on_last_model(self, sender: str, message: KeyedModel, payload: None, now: float) -> Step[HolderState]:
        self._check_encrypted()
        if message.epoch != self._epoch or message.model_bytes != 4 * sum(self._configuration.tensor_sizes):
            raise RemoteProtocolError(Code.MODEL, "the last model is under another key, or has another length")
        incoming = IncomingModel(message.model, message.model_bytes)
        return Step(HolderState.FETCHING_LAST, (), lambda: self._fetch(incoming, now))

    def on_last_chunk(
        self, sender: str, message: KeyedModelChunk, payload: Frame | None, now: float
    ) -> Step[HolderState]:
        following = self._incoming.take(message.chunk, payload)
        if not self._incoming.complete:
            return Step(HolderState.FETCHING_LAST, self._request(following), lambda: self._wait(now))

        def commit() -> list[Output]:
            self.deadline = None
            return [LastModel(self._keys[self._epoch], self._incoming.data)]

        return Step(HolderState.KEYED, (), commit)

    def on_expire(self, now: float) -> Step[HolderState]:
        detail = f"no word from {self._server}: still to {self.state.value}"
        return self._aborted(ClientAborted(Code.TIMEOUT, detail, self._server))

    def refuse(self, sender: str, error: RemoteProtocolError, now: float) -> Step[HolderState]:
        return self._aborted(ClientAborted(error.code, error.detail, error.culprit or sender))

    def _relay(self, attempt: GroupKeyMember, outputs: list[Output], now: float) -> list[Output]:
        """Pass on what the attempt says, and leave it when it is over.

        A client that complained of another goes on: the server ends the attempt. Any other failure is the server's.
        """
        key: GroupKey | None = None
        failed: list[Output] = []
        said: list[Output] = []
        for output in outputs:
            if isinstance(output, GroupKey):
                key = output
            elif isinstance(output, ClientAborted):
                failed.append(output)
            else:
                said.append(output)
        if attempt.state is MemberState.ABORTED:
            complained = not any(isinstance(output, Send) and isinstance(output.message, Abort) for output in said)
            timed_out = any(output.code is Code.TIMEOUT for output in failed)
            over = self.trigger(Trigger.KEY_OVER, now, None)
            if complained and not timed_out:
                return said + over
            return [*over, *failed]
        return said + (self.trigger(Trigger.KEY_OVER, now, key) if key is not None else [])

    def _check_encrypted(self) -> None:
        if not self._configuration.encrypted:
            raise RemoteProtocolError(Code.UNEXPECTED, "the models of this federation are not encrypted")

    def _encrypt(self, order: ReencryptModel, model: bytes, now: float) -> list[Output]:
        self._order, self.deadline = None, None
        former = self._keys[order.former] if order.source == "key" else None
        return [Reencrypt(order.source, self._keys[order.epoch], former, model)]

    def _fetch(self, incoming: IncomingModel, now: float) -> list[Output]:
        self._incoming = incoming
        self._wait(now)
        return [self._send(FetchKeyedModel(chunk=chunk)) for chunk in incoming.first_requests()]

    def _request(self, chunk: int | None) -> tuple[Send, ...]:
        return () if chunk is None else (self._send(FetchKeyedModel(chunk=chunk)),)

    def _wait(self, now: float) -> None:
        self.deadline = now + 2 * self._configuration.phase_seconds

    def _aborted(self, outcome: ClientAborted) -> Step[HolderState]:
        return Step(HolderState.NO_KEY, (outcome,), self.forget)

    def _send(self, message: KeyedModel | FetchKeyedModel) -> Send:
        return Send(self._server, message)

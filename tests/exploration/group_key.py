"""What the explorations of the group key share: the parties, what is remembered of them, and the rules for clients.

The machines are those that a session runs beside its rounds. What the session itself does about keys is added here in a
few lines: the server lets those who remain agree anew when an attempt failed, parts with its culprits, and starts a
round when all hold a key; a client begins the round if its holder of keys lets it. No model is encrypted.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from itertools import combinations
from typing import Any, Final

from tacit.protocol.core.codec import Packet
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Output, Send
from tacit.protocol.core.messages import Abort, Blob, Message
from tacit.protocol.core.roster import Member, Roster, decode_members, encode_members
from tacit.protocol.group_key.agreement import GroupKey, KeyFailed
from tacit.protocol.group_key.holder import GroupKeyHolder
from tacit.protocol.group_key.keeper import GroupKeyKeeper, KeyReady, Refused
from tacit.protocol.group_key.messages import ConfirmKey, EndKey, KeyCommit, KeyContribution
from tacit.protocol.group_key.states import HolderState, KeeperState
from tacit.protocol.session.messages import StartRound
from tacit.protocol.sum.exchange import ClientAborted
from tacit.protocol.sum.policy import Policy
from tacit.simulate.world.federation import small_configuration
from tests.exploration.machines import History, PostOffice, States
from tests.exploration.symbols import SymbolicEntropy, SymbolicSigningKey

FEWEST: Final = 2
"""Members of a key."""


@dataclass(frozen=True)
class Said:
    """The client sent this within an attempt of this epoch and members."""

    message: Message
    epoch: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Confirmed:
    """The client derived this key and confirmed it; `tag` and signature make its record."""

    epoch: int
    members: tuple[str, ...]
    key: bytes
    record: bytes


@dataclass(frozen=True)
class Held:
    key: GroupKey


@dataclass(frozen=True)
class CalledOff(Output):
    epoch: int


@dataclass(frozen=True)
class Begun(Output):
    """A round began under this key: for a client, or at the server with its epoch and members."""

    epoch: int
    members: tuple[str, ...]
    key: bytes = b""


@dataclass(frozen=True)
class Started(Output):
    epoch: int


@dataclass(frozen=True)
class Blamed:
    """The server ended an attempt because a client broke a rule."""

    code: str


@dataclass(frozen=True)
class Over:
    """The client's session is over."""


@dataclass(frozen=True)
class SpokeAfterwards:
    """The client sent something after that."""


class SessionHolder(GroupKeyHolder):
    over = False

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        if self.over:
            return []
        if packet.kind is Abort:
            return self.drop(sender, Code.LEFT, "", now)
        message: Any = packet.parse()
        if not isinstance(message, StartRound):
            outputs = self._noting(super().receive(sender, packet, now))
            return [*outputs, CalledOff(message.epoch)] if isinstance(message, EndKey) and not self.over else outputs
        clients = self._roster.clients
        try:
            key = self.for_round(tuple(clients[place] for place in decode_members(message.cohort, len(clients))))
        except RemoteProtocolError as error:
            return self._noting(self.reject(sender, error, now))
        self.round_begun()
        self._rounds = 1  # One round is like another where keys serve for any number.
        return [Begun(key.epoch, key.members, key.key)]

    def expire(self, now: float) -> list[Output]:
        return self._noting(super().expire(now))

    def drop(self, peer: str, code: Code, detail: str, now: float) -> list[Output]:
        """The link is lost for good, or the server says that this client is out."""
        self.forget()
        return self._noting([] if self.over else [ClientAborted(code, detail, peer)])

    def _noting(self, outputs: list[Output]) -> list[Output]:
        if any(isinstance(output, ClientAborted) for output in outputs):
            self.over, self.state = True, HolderState.NO_KEY
            self.forget()
        return outputs


class SessionKeeper(GroupKeyKeeper):
    """A server, as far as keys go. gone: the clients that are out; group: the members of the latest attempt."""

    gone: tuple[str, ...] = ()
    group: tuple[str, ...] = ()

    def start(self, now: float) -> list[Output]:
        return self._agree(self._roster.clients, now)

    def receive(self, sender: str, packet: Packet, now: float) -> list[Output]:
        return [] if sender in self.gone else self._going_on(super().receive(sender, packet, now), now)

    def expire(self, now: float) -> list[Output]:
        return self._going_on(super().expire(now), now)

    def drop(self, peer: str, code: Code, detail: str, now: float) -> list[Output]:
        if peer in self.gone:
            return []
        self.gone = (*self.gone, peer)
        return self._going_on(self.left(peer, code, detail, now), now)

    def _agree(self, members: tuple[str, ...], now: float) -> list[Output]:
        if len(members) < FEWEST:
            return []
        self.group = members
        return [Started(self._epoch + 1), *self._going_on(self.agree(members, b"", now), now)]

    def _going_on(self, outputs: list[Output], now: float) -> list[Output]:
        said: list[Output] = []
        for output in outputs:
            said.append(output)
            if isinstance(output, KeyFailed):
                out = [name for name in output.culprits if name not in self.gone]
                said += [Send(name, Abort(code=Code.LEFT, detail="", culprit=name)) for name in out]
                self.gone = (*self.gone, *out)
                said += self._agree(tuple(name for name in self._roster.clients if name not in self.gone), now)
            elif isinstance(output, KeyReady):
                said += [Send(name, start_round(self._roster, output.members)) for name in output.members]
                said.append(Begun(self._epoch, output.members))
        return said


def start_round(roster: Roster, members: tuple[str, ...]) -> StartRound:
    """A round with these clients; its model does not matter here."""
    places = [roster.clients.index(name) for name in members]
    return StartRound(cohort=encode_members(places, len(roster.clients)), model=Blob(digest=bytes(32), size=4))


@dataclass(frozen=True)
class Parties:
    """Who takes part, as the other files of this folder ask for it."""

    session: bytes
    server: str
    cohort: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.cohort)

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.cohort)}


class KeyCohort:
    """A session's parties and their numbered states. To be used within `symbolic_cryptography`.

    holder, keeper: the machines; others than the real ones show that the rules can be broken.
    """

    def __init__(
        self,
        size: int,
        *,
        holder: type[SessionHolder] = SessionHolder,
        keeper: type[SessionKeeper] = SessionKeeper,
    ) -> None:
        names = tuple(f"c{member}" for member in range(size))
        signing = {name: SymbolicSigningKey(f"{name} signing key".encode()) for name in (*names, "server")}
        self.agreement = Parties(sha256(b"session").digest(), "server", names)
        self.roster = Roster(
            tuple(
                Member(
                    name=name,
                    role="server" if name == "server" else "client",
                    curve_public=sha256(name.encode()).digest(),
                    signing_public=key.public,
                )
                for name, key in signing.items()
            )
        )
        configuration = small_configuration(size, mode="none", group_key=True, parameters=1)
        policy = Policy(modes=("none",), smallest_cohort=FEWEST)
        self.post = PostOffice(self.agreement.session)
        self.server = States(keeper(self.roster, configuration, self.agreement.session), self.post, _remember_server)
        self.clients = [
            States(
                holder(
                    name,
                    self.roster,
                    configuration,
                    session=self.agreement.session,
                    policy=policy,
                    signing=signing[name],  # type: ignore[arg-type]  # a stand-in
                    entropy=SymbolicEntropy(name),
                ),
                self.post,
                _remember_client,
            )
            for name in names
        ]

    def groups(self) -> Iterator[tuple[str, ...]]:
        for size in range(FEWEST, self.agreement.size + 1):
            yield from combinations(self.agreement.cohort, size)


def _remember_server(history: History, output: Output, cause: Message | None, server: Any) -> History:
    if isinstance(output, Begun | Started):
        return (*history, output)
    if isinstance(output, KeyFailed) and output.code not in (Code.LEFT, Code.TIMEOUT):
        return (*history, Blamed(output.code.name))
    return (*history, Blamed(output.error.code.name)) if isinstance(output, Refused) else history


def _remember_client(history: History, output: Output, cause: Message | None, client: Any) -> History:
    fact: Hashable = None
    if isinstance(output, ClientAborted):
        fact = Over()
    elif isinstance(output, Begun | CalledOff):
        fact = None if output in history else output
    elif isinstance(output, GroupKey):
        fact = Held(output)
    elif isinstance(output, Send):
        fact = SpokeAfterwards() if Over() in history else _said(output.message, client)
    return history if fact is None else (*history, fact)


def _said(message: Message, client: Any) -> Hashable:
    attempt = client.attempt
    if isinstance(message, KeyCommit | KeyContribution):
        return Said(message, message.epoch, attempt.agreement.members)
    if isinstance(message, ConfirmKey):
        record = message.tag + message.signature
        return Confirmed(message.epoch, attempt.agreement.members, attempt.data.key, record)
    return None


class KeyRules:
    """What clients may never have done, each and together, whatever they were told."""

    def __init__(self, cohort: KeyCohort) -> None:
        self._cohort = cohort
        self.of_one = cache(self._of_one)
        self.together = cache(self._together)

    def facts(self, member: int, state: int) -> History:
        """What of a client's past the rules need that concern several."""
        history = self._cohort.clients[member].histories[state]
        return tuple(fact for fact in history if isinstance(fact, Held | Confirmed | Begun))

    def _of_one(self, member: int, state: int) -> tuple[str, ...]:
        states, name = self._cohort.clients[member], self._cohort.agreement.cohort[member]
        machine: Any = states.machine(state)
        return tuple(f"{name} {fault}" for fault in self._broken(machine, states.histories[state]))

    @staticmethod
    def _broken(machine: SessionHolder, history: History) -> Iterator[str]:
        if machine.state is HolderState.AGREEING and machine.next_deadline is None:
            yield "waits for the others without a deadline"
        if machine.over and (machine._keys or machine.attempt is not None):
            yield "keeps secrets after its session"
        if SpokeAfterwards() in history:
            yield "spoke after its session was over"
        commits = [fact.epoch for fact in history if isinstance(fact, Said) and isinstance(fact.message, KeyCommit)]
        if commits != sorted({*commits}):
            yield "took part in an epoch twice, or in an earlier one"
        for place, fact in enumerate(history):
            if isinstance(fact, Begun):
                if CalledOff(fact.epoch) in history[:place]:
                    yield "began a round under a key that was called off"
                if not any(isinstance(held, Held) and held.key.key == fact.key for held in history[:place]):
                    yield "began a round under a key that it does not hold"

    def _together(self, pasts: tuple[History, ...]) -> tuple[str, ...]:
        places = self._cohort.agreement.places
        held = [fact.key for past in pasts for fact in past if isinstance(fact, Held)]
        if len({key.epoch for key in held}) != len({(key.epoch, key.key, key.members) for key in held}):
            return ("two clients hold different keys of one epoch",)
        for key in held:
            for name in key.members:
                confirmed = [fact for fact in pasts[places[name]] if isinstance(fact, Confirmed)]
                if not any((fact.epoch, fact.key) == (key.epoch, key.key) for fact in confirmed):
                    return (f"a client accepted a key that {name} has not confirmed",)
        return ()


def faults_of_server(machine: Any, history: History) -> Iterator[str]:
    if machine.state is KeeperState.AGREEING and machine.next_deadline is None:
        yield "server waits for the members without a deadline"
    started = [fact.epoch for fact in history if isinstance(fact, Started)]
    if started != sorted({*started}):
        yield "server began an epoch twice, or an earlier one"
    for fact in history:
        if isinstance(fact, Blamed):
            yield f"server ended an attempt for {fact.code}, though all kept the rules"
        if isinstance(fact, Begun) and fact.epoch != max(started):
            yield "server began a round under another key than the latest"

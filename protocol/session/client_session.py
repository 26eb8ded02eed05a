"""A client in a session: its link to the server, hello and welcome, resumption, another roster, its group, the end.

The machine of rounds (client.py) builds on this one. After a lost link is restored, the client asks the server to
resume; if the server cannot, it sends another hello, and joins the next round. A link that stays lost, or a
configuration below the client's policy, ends the session.

In all opened sums the members of a group have the same factor, as long as each of them stays in one group. So a client
stays in its own: its journal has the keys of the group's members, and it refuses another group, or none, until its
owner accepts the roster with it. Every such change discloses one difference, between a sum before it and one after it.
While a client waits for a group it is in no sum, and has nothing to accept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from tacit.protocol.core.codec import Frame, Packet, decode, decode_structure
from tacit.protocol.core.errors import DETAIL_LIMIT, Code, LocalProtocolError, RemoteProtocolError
from tacit.protocol.core.link import NO_SESSION, Link, Traffic
from tacit.protocol.core.machine import Ended, Entropy, Heard, Machine, Output, Step, Table, Transmit, Trigger
from tacit.protocol.core.messages import BODY_LIMIT, Abort, Chunk, Message, Resume
from tacit.protocol.core.primitives import SigningKey, digest
from tacit.protocol.core.roster import NoLongerMemberError, Roster, RosterLabel, check_later
from tacit.protocol.group_key.holder import GroupKeyHolder
from tacit.protocol.group_key.states import TO_HOLDER
from tacit.protocol.session.messages import MESSAGES, Finish, Hello, NewRoster, StartRound, Welcome
from tacit.protocol.session.rounds import (
    Accepted,
    GroupEntry,
    Journal,
    JournalEntry,
    JournalLine,
    RosterChanged,
    RoundOver,
    SpendingEntry,
    SpendingHeld,
)
from tacit.protocol.session.states import NO_ROUND, OUTSIDE_ROUNDS, WITHIN_ROUNDS, TrainingState
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import Policy, below_policy
from tacit.protocol.sum.spending import SpendingSeen, check_size, highest, news

FIRST_LINK_BYTES: Final = 2
"""Random bytes of a process's first link number. One restart in 65,536 repeats the former number."""


class ServerLink:
    """The link of one client. round: the present or last one that it took part in; 0 before the first."""

    def __init__(self, own: str, server: str) -> None:
        self.server = server
        self.round = 0
        self.traffic = Traffic()
        self._link = Link(own, server, NO_SESSION, self.traffic, MESSAGES)
        self._former = NO_SESSION
        """Session of the previous conversation, if any."""
        self._greeted = False

    @property
    def session(self) -> bytes:
        """Identifier of the session, 32 bytes; zeros before the server's first answer."""
        return self._link.session

    @property
    def broken(self) -> bool:
        """Whether messages of this conversation may be missing, because the transport was lost."""
        return self._link.broken

    @property
    def asking(self) -> bool:
        """Whether a resumption was requested and not yet answered."""
        return self._link.asking

    def lost(self) -> None:
        self._link.broken = True

    def hello(self, roster: bytes, entropy: Entropy) -> Transmit:
        """Begin a conversation, the first one or another, with the hash of the roster."""
        if self.session != NO_SESSION:
            self._former = self.session
        # Random, so that late messages of an earlier process of this client are on another link.
        number = self._link.number + 1 if self._greeted else int.from_bytes(entropy(FIRST_LINK_BYTES), "little")
        self._greeted = True
        # The hello itself does not count in the conversation that it begins.
        first, self._link = (
            Link(self._link.own, self.server, NO_SESSION, self.traffic, MESSAGES, number=number) for _ in range(2)
        )
        return first.transmit(Hello(roster=roster), round=0)

    def ask(self) -> Transmit:
        """Ask the server to resume the conversation over a new connection."""
        return self._link.ask()

    def rest(self) -> list[Transmit] | None:
        """Messages to repeat after the server resumed; None if they are not kept any more."""
        return self._link.rest()

    def read(self, frames: Sequence[Frame], state: TrainingState) -> Packet | None:
        """The next message of the server to a client in this state; None if it comes too late to matter."""
        packet = decode(frames, MESSAGES)
        kind, round = packet.kind, packet.envelope.round
        link = self._link
        if state is TrainingState.AWAIT_WELCOME and self.session == NO_SESSION:
            # The server's first answer names the session.
            link = link.within(packet.envelope.session)
        if packet.envelope.link != link.number or link.late(packet):
            return None
        if kind is Resume:
            link.answered(packet)
        else:
            link.accept(packet)
        if link is not self._link:
            self.round = self.round if link.session in (self._former, NO_SESSION) else 0
            self._link = link
        if kind is StartRound and round <= self.round:
            raise RemoteProtocolError(Code.SESSION, f"round {round} is started a second time")
        if kind is not StartRound and round > self.round:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} of a round that has not begun")
        outside = kind in OUTSIDE_ROUNDS or (kind is Chunk and not round and state in NO_ROUND)
        if kind is not Abort and (round == 0) != outside:
            raise RemoteProtocolError(Code.SESSION, f"{kind.TYPE} as a message of round {round}")
        over = state is TrainingState.AWAIT_ROUND and kind in (*WITHIN_ROUNDS, Abort)
        late = 0 < round < self.round or (over and 0 < round == self.round)
        return None if late else packet

    def transmit(self, message: Message, payload: Frame | None = None, *, round: int | None = None) -> Transmit:
        """A message for the server, in the present round by default."""
        return self._link.transmit(message, round=self.round if round is None else round, payload=payload)


NO_GROUP = b""


def group_hash(roster: Roster, client: str) -> bytes:
    """Hash of the signing keys of a client's group, for its journal; empty without a group."""
    if not roster.member(client).group:
        return NO_GROUP
    return digest(RosterLabel.GROUP, *sorted(roster.member(name).signing_public for name in roster.group_of(client)))


def journalled_group(journal: Iterable[JournalLine]) -> bytes | None:
    """The group of a client with this journal; None if it may join any.

    A journal with rounds and no group means that the client was in none."""
    group = None
    for line in journal:
        if isinstance(line, GroupEntry):
            group = line.group
        elif group is None:
            group = NO_GROUP
    return group


def journalled_spending(journal: Iterable[JournalLine]) -> float:
    """Spent privacy budget of a client with this journal."""
    spent = 0.0
    for line in journal:
        if isinstance(line, JournalEntry):
            spent += line.cost
        elif isinstance(line, SpendingEntry):
            spent = max(spent, line.spent)
    return spent


def check_group(former: bytes | None, roster: Roster, client: str, *, accepted: str = "") -> tuple[GroupEntry, ...]:
    """Journal entries to write before a session with this roster. Refuses a changed group.

    accepted: the fingerprint of a roster in which the client's owner accepts any group."""
    if client in roster.waiting:
        return ()
    group = group_hash(roster, client)
    if former is None:
        return (GroupEntry(group=group),) if group else ()
    if former == group:
        return ()
    if accepted == roster.fingerprint:
        return (GroupEntry(group=group),)
    raise RemoteProtocolError(
        Code.POLICY,
        f"this client was in {'another group' if former else 'no group'} before, by its journal, than in the roster: "
        "sums before and after may differ by it alone; where its owner agrees, and the others of the group have the "
        f'same fingerprint: tacit client --accept-groups "{roster.fingerprint}"',
    )


class SessionClient(Machine[TrainingState]):
    """A client of one server.

    journal: the rounds that this client entered before, from its disk; patience: seconds to wait for the server outside
    of a round before a probe, and then for its answer; grace: seconds for a lost link to reconnect; accepted_groups:
    the fingerprint of a roster in which it may change its group; held: signing keys and the kept statements of other
    clients' spending; spent: its owner's statement of its own, None: nothing."""

    holder: GroupKeyHolder | None

    def transitions(self) -> Table[TrainingState]:
        raise NotImplementedError

    def __init__(
        self,
        name: str,
        roster: Roster,
        *,
        signing: SigningKey,
        policy: Policy,
        journal: Iterable[JournalLine],
        entropy: Entropy,
        patience: float,
        grace: float,
        accepted_groups: str = "",
        held: Iterable[tuple[bytes, bytes]] = (),
        spent: float | None = None,
    ) -> None:
        super().__init__(self.transitions(), TrainingState.OFFLINE)
        self.name = name
        self._roster = roster
        self._server = roster.server.name
        self._signing = signing
        self._policy = policy
        lines = tuple(journal)
        entries = [line for line in lines if isinstance(line, JournalEntry)]
        self._entered = {(entry.session, entry.round) for entry in entries}
        """Rounds that it has entered, in the life of its keys."""
        self._former_group = journalled_group(lines)
        self._accepted_groups = accepted_groups
        self._member = roster.member(name)
        self._held = dict(held)
        self._stated = spent
        """The owner's statement, until it is in the journal."""
        self._knows = bool(lines)
        """Whether the journal has any entries."""
        self._spent = self._before = journalled_spending(lines)
        """Spent budget of its policy, with the present round and without it."""
        self._entropy = entropy
        self._patience = patience
        self._grace = grace
        self._link = ServerLink(name, self._server)
        self._configuration: Configuration | None = None
        self._lost_until: float | None = None
        self._open = False
        """Whether the outcome of the round is still to be reported."""

    @property
    def configuration(self) -> Configuration:
        """The configuration of all members. LocalProtocolError before it is accepted."""
        if self._configuration is None:
            raise LocalProtocolError(f"{self.name!r} has accepted no configuration")
        return self._configuration

    @property
    def session(self) -> bytes:
        """Identifier of the session, 32 bytes; zeros before the server's first answer."""
        return self._link.session

    @property
    def round(self) -> int:
        """The present or last round that this client took part in; 0 before the first."""
        return self._link.round

    @property
    def traffic(self) -> Traffic:
        return self._link.traffic

    @property
    def untold(self) -> bool:
        """Whether a peer may reconnect to learn that this machine has ended: never a server."""
        return False

    @property
    def lost(self) -> bool:
        return self._lost_until is not None

    def deadlines(self) -> Iterator[float]:
        yield from super().deadlines()
        if self._lost_until is not None:
            yield self._lost_until

    def start(self, now: float) -> list[Output]:
        """Say hello."""
        return self.trigger(Trigger.START, now)

    def feed(self, frames: Sequence[Frame], now: float) -> list[Output]:
        """Process one multipart message from the server."""
        if self.state is TrainingState.ENDED:
            return []
        try:
            packet = self._link.read(frames, self.state)
        except RemoteProtocolError as error:
            return self._take(self._end(error), now)
        if packet is None:
            self.ignored += 1
            return []
        if self.state is TrainingState.AWAIT_ROUND and packet.kind in TO_HOLDER:
            self.deadline = now + self._patience
        return self.receive(self._server, packet, now)

    def server_lost(self, now: float) -> None:
        """The link is down; the grace begins."""
        if self.state not in (TrainingState.OFFLINE, TrainingState.ENDED):
            self._lost_until = now + self._grace
            self._link.lost()

    def server_back(self) -> list[Output]:
        """The link is restored: ask the server to resume, if it was lost."""
        if self._lost_until is None:
            return []
        self._lost_until = None
        return [self._link.ask()]

    def give_up(self, detail: str, now: float, *, code: Code = Code.LOCAL) -> list[Output]:
        """This party cannot continue (its own disk, data or device), or is stopped (LEFT): inform the server, and
        end."""
        if self.state is TrainingState.ENDED:
            return []
        return self._take(self._end(RemoteProtocolError(code, detail, culprit=self.name)), now)

    def expire(self, now: float) -> list[Output]:
        if self._lost_until is not None and now >= self._lost_until:
            return self.trigger(Trigger.DROP, now)
        return super().expire(now)

    def on_start(self, now: float) -> Step[TrainingState]:
        hello = self._link.hello(self._roster.hash, self._entropy)
        return Step(TrainingState.AWAIT_WELCOME, (hello,), deadline=now + self._patience)

    def on_welcome(self, heard: Heard[Welcome], now: float) -> Step[TrainingState]:
        if heard.message.roster != self._roster.hash:
            raise RemoteProtocolError(Code.ROSTER, "the server holds another roster: give all parties the same file")
        configuration = decode_structure(heard.message.configuration, Configuration, limit=BODY_LIMIT)
        self._policy.check(configuration, clients=len(self._roster.clients), groups=self._roster.group_sizes)
        lines = self._check_group(self._roster)
        learnt, spent = self._learn(configuration, heard.message.spent)
        holder = GroupKeyHolder(
            self.name,
            self._roster,
            configuration,
            session=heard.envelope.session,
            policy=self._policy,
            signing=self._signing,
            entropy=self._entropy,
        )

        def commit() -> None:
            self._configuration = configuration
            self._former_group = journalled_group(lines) if lines else self._former_group
            self.holder = holder if configuration.group_key else None
            self._spent = self._before = spent
            self._knows, self._stated = self._knows or bool(learnt), None

        outputs = (*map(Journal, lines), *learnt, Accepted(configuration))
        return Step(TrainingState.AWAIT_ROUND, outputs, commit, deadline=now + self._patience)

    def on_abort(self, heard: Heard[Abort], now: float) -> Step[TrainingState]:
        code, detail = heard.message.code, heard.message.detail
        if heard.envelope.round:
            return self._over(code, detail, now)
        in_conversation = self.state is not TrainingState.AWAIT_WELCOME or self._link.asking
        if in_conversation and code in (Code.LEFT, Code.TIMEOUT) and heard.message.culprit == self.name:
            return self._new_conversation(detail, now)
        return self._ended(code, detail)

    def on_resume(self, heard: Heard[Resume], now: float) -> Step[TrainingState]:
        rest = self._link.rest()
        if rest is None:
            return self._new_conversation(f"what {self._server} lacks is not kept any more", now)
        waits = self.state is TrainingState.AWAIT_ROUND
        return Step(self.state, tuple(rest), deadline=now + self._patience if waits else None)

    def on_new_roster(self, heard: Heard[NewRoster], now: float) -> Step[TrainingState]:
        held, message = self._roster, heard.message
        if not held.operator:
            raise RemoteProtocolError(Code.ROSTER, "another roster, where this client's has no operator")
        offered = Roster.decode(message.roster, message.signature, held=held)
        try:
            difference = check_later(held, offered, self.name)
        except NoLongerMemberError as error:
            return self._end(error, final=True)
        self._policy.check_changes(difference.changes)
        self._check_group(offered)
        ended = self._ended(Code.ROSTER, f"it goes on with version {offered.version} of the roster")
        return replace(ended, outputs=(RosterChanged(offered, difference), *ended.outputs))

    def on_finish(self, heard: Heard[Finish], now: float) -> Step[TrainingState]:
        return self._ended(None, "the federation is finished")

    def on_expire(self, now: float) -> Step[TrainingState]:
        detail = f"no word from {self._server} while it was to {self.state.value}"
        if self._link.broken:
            return self._new_conversation(detail, now)
        if self.lost:
            # For so long as the grace lasts.
            return Step(self.state, deadline=now + self._patience)
        if self.state is TrainingState.AWAIT_ROUND and not self._link.asking:
            # A server that waits for other clients sends nothing, but it answers.
            return Step(self.state, (self._link.ask(),), deadline=now + self._patience)
        return self._ended(Code.TIMEOUT, detail)

    def on_drop(self, now: float) -> Step[TrainingState]:
        return self._ended(Code.LEFT, f"the link to {self._server} is lost and did not come back in {self._grace:g} s")

    def _learn(self, configuration: Configuration, statement: bytes) -> tuple[tuple[Output, ...], float]:
        """Journal entries for budget spending that the server and the owner state, and the total spending. Refuses to
        begin if the spending is unknown."""
        cost, stated = self._policy.cost(configuration), self._stated
        if cost and not configuration.spending:
            raise below_policy("spending", False, "true: with a privacy budget all clients state what they have spent")
        check_size(statement, spending=configuration.spending)
        witnessed = highest([statement] if statement else [], self._roster.lineage, self._member)
        if cost and not self._knows and not witnessed and stated is None:
            raise RemoteProtocolError(
                Code.POLICY,
                "this client has a privacy budget, and neither its journal nor the server knows what was spent of it: "
                "state that once, as the epsilon of all former updates, 0 if there were none: tacit client --spent X",
            )
        spent = max(self._spent, witnessed, stated or 0.0)
        if spent == self._spent and (self._knows or stated is None or not cost):
            return (), spent
        return (Journal(SpendingEntry(spent=spent, by_owner=stated == spent)),), spent

    def on_spending_seen(self, seen: SpendingSeen, now: float) -> Step[TrainingState]:
        """Keep other clients' statements, and adopt their highest one of this client, which a journal from a backup
        lacks."""
        clients = {name: self._roster.member(name).signing_public for name, _ in seen.statements}
        others = [(clients[name], said) for name, said in seen.statements if name != self.name]
        known = highest(
            (said for name, said in seen.statements if name == self.name), self._roster.lineage, self._member
        )
        kept = news(self._held, others)
        step = Step(self.state, (SpendingHeld(kept),) * bool(kept), lambda: self._held.update(kept))
        if known <= self._before:
            return step
        spent = known + self._spent - self._before
        try:
            self._policy.check_budget(spent)
        except RemoteProtocolError as error:
            step = self.refuse(self._server, error.within(self.round), now)
        following = step.commit

        def commit() -> Sequence[Output] | None:
            self._before, self._spent = known, spent
            return following()

        return replace(step, outputs=(Journal(SpendingEntry(spent=spent)), *step.outputs), commit=commit)

    def _check_group(self, roster: Roster) -> tuple[GroupEntry, ...]:
        return check_group(self._former_group, roster, self.name, accepted=self._accepted_groups)

    def _over(self, code: Code | None, detail: str, now: float) -> Step[TrainingState]:
        reports = (RoundOver(self.round, code, detail),) if self._open else ()

        def commit() -> None:
            self._open = False

        return Step(TrainingState.AWAIT_ROUND, reports, commit, deadline=now + self._patience)

    def _new_conversation(self, detail: str, now: float) -> Step[TrainingState]:
        """The conversation cannot resume: begin another one."""
        over = self._over(Code.LEFT, detail, now)

        def commit() -> Sequence[Output]:
            over.commit()
            return self.on_start(now).outputs

        return replace(over, state=TrainingState.AWAIT_WELCOME, commit=commit)

    def _end(self, error: RemoteProtocolError, *, final: bool = False) -> Step[TrainingState]:
        culprit = error.culprit or self._server
        ended = self._ended(error.code, f"{culprit}: {error.detail}", final=final)
        abort = Abort(code=error.code, detail=error.detail[:DETAIL_LIMIT], culprit=culprit)
        return replace(ended, outputs=(self._link.transmit(abort, round=0), *ended.outputs))

    def _ended(self, code: Code | None, detail: str, *, final: bool = False) -> Step[TrainingState]:
        def commit() -> None:
            self._lost_until = None

        return Step(TrainingState.ENDED, (Ended(code, detail, final),), commit)

"""Agreements on group keys within a session: over a network that fails, and against a server that lies.

In the first, the server keeps the rules, and a state is as in network_world.py. In the second, the clients are alone
with a server that may start any epoch with any members, call off any, start a round with any, and pass on whatever the
clients said, to anybody, at any time. It cannot make up a signature, so that of all lists that it could put together
only those of one epoch and group are of use to it: any other ends the session of who hears it, without another word.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

from tacit.protocol.core.errors import Code
from tacit.protocol.core.machine import Trigger
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import encode_members
from tacit.protocol.group_key.agreement import PACKET_BYTES
from tacit.protocol.group_key.messages import (
    EndKey,
    KeyCommit,
    KeyContribution,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
    StartKey,
)
from tacit.protocol.group_key.states import KeeperState
from tests.exploration.group_key import (
    Begun,
    Confirmed,
    Held,
    KeyCohort,
    KeyRules,
    Over,
    Said,
    faults_of_server,
    start_round,
)
from tests.exploration.machines import Event, History
from tests.exploration.network_world import NetworkState, NetworkWorld

Facts = tuple[History, ...]


class KeyNetworkWorld(NetworkWorld):
    cohort: KeyCohort  # type: ignore[assignment]

    def __init__(self, cohort: KeyCohort, *, copies: int, interruptions: int | None) -> None:
        super().__init__(cohort, copies=copies, interruptions=interruptions)  # type: ignore[arg-type]
        self._key_rules = KeyRules(cohort)

    def initial(self) -> NetworkState:
        server, sets, left = super().initial()
        started = self._after(server, sets, Trigger.START, "")
        return (server, sets, left) if started is None else (*started, left)

    def faults(self, state: NetworkState) -> Iterator[str]:
        server, sets, _ = state
        if server not in self._server_faults:
            states = self.cohort.server
            self._server_faults[server] = [*faults_of_server(states.machine(server), states.histories[server])]
        yield from self._server_faults[server]
        pasts = []
        for member, number in enumerate(sets):
            possible = self.possibilities[member].states[number]
            for client in possible:
                yield from self._key_rules.of_one(member, client)
            pasts.append({self._key_rules.facts(member, client) for client in possible})
        begun = [fact for fact in self.cohort.server.histories[server] if isinstance(fact, Begun)]
        for combination in product(*pasts):
            yield from self._key_rules.together(combination)
            yield from self._rounds(begun, combination)

    def outcome(self, state: NetworkState) -> str:
        for fact in self.cohort.server.histories[state[0]]:
            if isinstance(fact, Begun):
                return f"epoch {fact.epoch}, {len(fact.members)} members"
        waits = self.cohort.server.machine(state[0]).state is not KeeperState.IDLE
        return "the server waits" if waits else "too few are left"

    def _rounds(self, begun: list[Begun], pasts: Facts) -> Iterator[str]:
        """A round begins only where the server began it, and when all its members hold the key."""
        for fact in begun:
            for name in fact.members:
                held = (key.key for key in pasts[self.cohort.agreement.places[name]] if isinstance(key, Held))
                if not any((key.epoch, key.members) == (fact.epoch, fact.members) for key in held):
                    yield f"server began a round under a key that {name} does not hold"
        allowed = {(fact.epoch, fact.members) for fact in begun}
        rounds = {(fact.epoch, fact.members) for past in pasts for fact in past if isinstance(fact, Begun)}
        if not rounds <= allowed:
            yield "a client began a round that the server did not start"


LyingState = tuple[int, ...]
"""The state of every client."""


class KeyLyingWorld:
    def __init__(self, cohort: KeyCohort, *, epochs: int) -> None:
        self.cohort = cohort
        self._rules = KeyRules(cohort)
        self._made_up = [*self._without_help(epochs)]
        self._said = cache(self._what_was_said)
        self._effect = cache(self._what_becomes)

    def initial(self) -> LyingState:
        return (0,) * self.cohort.agreement.size

    def moves(self, state: LyingState) -> Iterator[tuple[str, LyingState]]:
        said = tuple(map(self._said, range(len(state)), state))
        for member, client in enumerate(state):
            events: list[Event] = [*self._made_up, *self._passed_on(member, client, said), Trigger.EXPIRE]
            for event in events:
                following = self._effect(member, client, event)
                if following != client:
                    name = self.cohort.agreement.cohort[member]
                    yield f"{name}: {self.cohort.post.name(event)}", (*state[:member], following, *state[member + 1 :])

    def faults(self, state: LyingState) -> Iterator[str]:
        for member, client in enumerate(state):
            yield from self._rules.of_one(member, client)
        yield from self._rules.together(tuple(map(self._rules.facts, range(len(state)), state)))

    def outcome(self, state: LyingState) -> str:
        pasts = [self.cohort.clients[member].histories[client] for member, client in enumerate(state)]
        return f"{sum(any(isinstance(fact, Begun) for fact in past) for past in pasts)} clients began a round"

    def _without_help(self, epochs: int) -> Iterator[int]:
        names, letter = self.cohort.agreement.cohort, self.cohort.post.letter
        for epoch in range(epochs):
            yield letter(EndKey(epoch=epoch, code=Code.LEFT, detail="", culprit=""))
            for group in self.cohort.groups():
                members = encode_members([names.index(name) for name in group], len(names))
                yield letter(StartKey(epoch=epoch, members=members))
        for group in self.cohort.groups():
            yield letter(start_round(self.cohort.roster, group))

    def _what_was_said(self, member: int, client: int) -> History:
        history = self.cohort.clients[member].histories[client]
        return tuple(fact for fact in history if isinstance(fact, Said | Confirmed))

    def _passed_on(self, member: int, client: int, said: Facts) -> Iterator[int]:
        """Letters made of what the members of this client's attempt said in it."""
        machine: Any = self.cohort.clients[member].machine(client)
        attempt = machine.attempt
        if attempt is None:
            return
        names, places = attempt.agreement.members, self.cohort.agreement.places
        here = attempt.agreement.epoch, names
        own = names.index(self.cohort.agreement.cohort[member])
        records: dict[type[Message], list[bytes]] = {KeyCommit: [], KeyContribution: [], Message: []}
        for owner, name in enumerate(names):
            for fact in said[places[name]]:
                if not isinstance(fact, Said | Confirmed) or (fact.epoch, fact.members) != here:
                    continue
                if isinstance(fact, Confirmed):
                    records[Message].append(fact.record)
                elif isinstance(message := fact.message, KeyCommit):
                    records[KeyCommit].append(message.channel_key + message.commitment + message.signature)
                elif isinstance(message, KeyContribution) and owner != own:
                    place = (own - (own > owner)) * PACKET_BYTES
                    records[KeyContribution].append(message.packets[place : place + PACKET_BYTES])
        size = len(names)
        if len(records[KeyCommit]) == size:
            yield self.cohort.post.letter(PeerKeyCommits(commits=b"".join(records[KeyCommit])))
        if len(records[KeyContribution]) == size - 1:
            yield self.cohort.post.letter(PeerKeyContributions(packets=b"".join(records[KeyContribution])))
        if len(records[Message]) == size:
            yield self.cohort.post.letter(PeerKeyConfirmations(confirmations=b"".join(records[Message])))

    def _what_becomes(self, member: int, client: int, event: Event) -> int:
        """The state that follows; the same where the client gives up, which a liar gains nothing by."""
        states = self.cohort.clients[member]
        following, _ = states.after(client, event, self.cohort.agreement.server)
        return client if Over() in states.histories[following] else following

"""The real server and the real clients over a network that delays, reorders, repeats and loses.

A state is the server's, with the set of what every client and its link may be meanwhile (possibilities.py). What moves
it is what the server can notice: a letter arrives, a link is lost, a deadline passes, at any time and in any order. A
letter that leaves the server as it was is passed over, for everything possible after it was possible before.
"""

from __future__ import annotations

from collections.abc import Iterator

from tacit.protocol.core.machine import Trigger
from tacit.protocol.sum.states import ServerState
from tests.exploration.machines import Event
from tests.exploration.possibilities import Possibilities
from tests.exploration.secure_sum import Blamed, ClientRules, Cohort, NoSum, Opened, Sum, waits_forever

NetworkState = tuple[int, tuple[int, ...], int | None]
"""The server's state, the clients' sets, and how many links may still be lost and deadlines pass at the server."""


class NetworkWorld:
    """copies: how often a letter may arrive, 2 if the network repeats. interruptions: how many links may be lost
    and deadlines pass at the server in one run; None: any number."""

    def __init__(self, cohort: Cohort, *, copies: int, interruptions: int | None) -> None:
        self.cohort = cohort
        self.interruptions = interruptions
        self.possibilities = [Possibilities(states, cohort.agreement.server, copies) for states in cohort.clients]
        self._rules = ClientRules(cohort)
        self._server_faults: dict[int, list[str]] = {}

    def initial(self) -> NetworkState:
        return 0, (0,) * self.cohort.agreement.size, self.interruptions

    def moves(self, state: NetworkState) -> Iterator[tuple[str, NetworkState]]:
        server, sets, left = state
        fewer = None if left is None else left - 1
        for member, (name, number) in enumerate(zip(self.cohort.agreement.cohort, sets, strict=True)):
            for letter in self.possibilities[member].letters[number]:
                if (reached := self._after(server, sets, letter, name)) is not None:
                    yield f"{self.cohort.post.letters[letter].message.TYPE} of {name} arrives", (*reached, left)
            if left != 0 and (reached := self._after(server, sets, Trigger.DROP, name)) is not None:
                yield f"the link to {name} is lost", (*reached, fewer)
        if left != 0 and (reached := self._after(server, sets, Trigger.EXPIRE, "")) is not None:
            yield "the server's deadline passes", (*reached, fewer)

    def faults(self, state: NetworkState) -> Iterator[str]:
        server, sets, _ = state
        if server not in self._server_faults:
            self._server_faults[server] = [*self._faults_of_server(server)]
        yield from self._server_faults[server]
        told = []
        for member, number in enumerate(sets):
            possible = self.possibilities[member].states[number]
            for client in possible:
                yield from self._rules.of_one(member, client)
            told.append(frozenset(self._rules.told(member, client) for client in possible))
        yield from self._rules.together(tuple(told), True)
        for result in self.cohort.server.histories[server]:
            if isinstance(result, Sum):
                survivors = frozenset(map(self._place, result.survivors))
                facts = (fact for pasts in told for past in pasts for fact in past if isinstance(fact, Opened))
                if any(fact.survivors != survivors for fact in facts):
                    yield "a client opened another sum than the server published"

    def outcome(self, state: NetworkState) -> str:
        for result in self.cohort.server.histories[state[0]]:
            if isinstance(result, Sum):
                return f"sum over {len(result.survivors)}"
            if isinstance(result, NoSum):
                return f"no sum: {result.code}"
        return "the server waits"

    def _place(self, name: str) -> int:
        return self.cohort.agreement.places[name]

    def _faults_of_server(self, number: int) -> Iterator[str]:
        machine, history = self.cohort.server.machine(number), self.cohort.server.histories[number]
        yield from (f"server {fault}" for fault in waits_forever(machine))
        results = sum(isinstance(fact, Sum | NoSum) for fact in history)
        if results != (machine.state in (ServerState.COMPLETED, ServerState.ABORTED)):
            yield f"server has {results} results in {machine.state.name}"
        for fact in history:
            if isinstance(fact, Blamed):
                yield f"server excluded {fact.member} for {fact.code}, though it kept the rules"
            if isinstance(fact, Sum) and len(fact.survivors) < self.cohort.agreement.fewest_summed:
                yield "server published a sum over too few members"
            if isinstance(fact, Sum) and self.cohort.cuts(frozenset(map(self._place, fact.survivors))):
                yield "server published a sum that cuts a group in two"
            if isinstance(fact, Sum) and fact.words != self.cohort.plain_sum(fact.survivors):
                yield "server published another sum than that of its survivors"
            if isinstance(fact, NoSum) and fact.shares >= self.cohort.threshold:
                yield "server gave up with shares enough to open a secret"

    def _after(self, server: int, sets: tuple[int, ...], event: Event, peer: str) -> tuple[int, tuple[int, ...]] | None:
        """What an event leads to; None if it leaves the server as it was."""
        following, sent = self.cohort.server.after(server, event, peer)
        if following == server and not sent:
            return None
        places, reached = self.cohort.agreement.places, [*sets]
        if isinstance(event, int):
            reached[places[peer]] = self.possibilities[places[peer]].heard(reached[places[peer]], event)
        for receiver, letter in sent:
            reached[places[receiver]] = self.possibilities[places[receiver]].told(reached[places[receiver]], letter)
        return following, tuple(reached)

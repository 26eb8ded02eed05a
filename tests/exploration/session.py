"""What the explorations of a session share: a client's host, with the real client and its journal on a disk.

A host does what the shell does: it writes down what the client wants written, and lets out what it says, in that order.
Killed in between, it has done a part of that; what is on the disk stays, and the next process begins with it. Time
stands still, as everywhere in this folder. Numbers of messages are left out of states: a peer can always count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import numpy as np

from tacit.protocol.core.codec import decode
from tacit.protocol.core.machine import Output, Transmit
from tacit.protocol.core.messages import Message
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.session.client import TrainingClient
from tacit.protocol.session.client_session import ServerLink
from tacit.protocol.session.messages import MESSAGES
from tacit.protocol.session.rounds import Journal, JournalEntry, JournalLine
from tacit.protocol.session.states import TrainingState
from tacit.protocol.sum.messages import AdvertiseKeys, ShareKeys, UnmaskShares
from tacit.protocol.sum.policy import Policy
from tacit.secagg.shamir import SHARE_BYTES
from tacit.simulate.world.federation import small_configuration
from tests.exploration.machines import duplicate, fingerprint
from tests.exploration.symbols import SymbolicEntropy, SymbolicShare, SymbolicSigningKey

SERVER: Final = "server"
FEWEST: Final = 2
"""Clients of a round."""
MODEL: Final = bytes(4)
"""One parameter."""


@duplicate.register
def _(value: ServerLink) -> Any:
    copied = object.__new__(ServerLink)
    copied.__dict__.update(value.__dict__, _link=copy(value._link))
    copied._link._kept = copy(value._link._kept)
    return copied


@fingerprint.register
def _(value: ServerLink) -> Any:
    # Numbers of messages are left out, and what a liar has received: it can always count.
    return value.round, value._former, value.session, value.broken, value.asking


Event = Callable[[TrainingClient], Sequence[Output]]
Round = tuple[bytes, int]
"""Session and round."""


@dataclass(frozen=True)
class Host:
    """A client's computer, at a moment. Two are equal if they behave alike.

    said: its keys and shares in the sum that goes on; facts: what of its past the rules need; starts: how often its
    process was started.
    """

    client: TrainingClient
    disk: tuple[JournalLine, ...] = ()
    said: tuple[Message, ...] = ()
    facts: frozenset[Any] = frozenset()
    starts: int = 1

    def key(self) -> Any:
        return fingerprint(self.client), frozenset(self.disk), self.said, self.facts, self.starts


@dataclass(frozen=True)
class Entered:
    round: Round


@dataclass(frozen=True)
class Gave:
    """The client gave its share of a secret of somebody, the mask key (0) or the seed of the self mask (1).

    keys: whose, and under which start of its process or, of who is played, in which sum.
    """

    round: Round
    keys: str
    kind: int


class Clients:
    """The clients of a session: who they are and how their processes begin. To be used within `symbolic_cryptography`.

    client: the machine; others than the real one show that the rules can be broken.
    """

    def __init__(self, size: int, *, client: type[TrainingClient] = TrainingClient) -> None:
        self.names = tuple(f"c{member}" for member in range(size))
        self.signing = {name: SymbolicSigningKey(f"{name} signing key".encode()) for name in (*self.names, SERVER)}
        self.roster = Roster(
            tuple(
                Member(
                    name=name,
                    role="server" if name == SERVER else "client",
                    curve_public=sha256(name.encode()).digest(),
                    signing_public=key.public,
                )
                for name, key in self.signing.items()
            )
        )
        self.configuration = small_configuration(size, mode="semi-honest", parameters=1)
        self._client = client

    def process(self, name: str, disk: tuple[JournalLine, ...], starts: int) -> TrainingClient:
        """A client that starts with this journal; what it draws no other process drew."""
        return self._client(
            name,
            self.roster,
            signing=self.signing[name],  # type: ignore[arg-type]  # a stand-in
            policy=Policy(modes=("semi-honest",), smallest_cohort=FEWEST),
            journal=disk,
            entropy=SymbolicEntropy(f"{name} start {starts}"),
            patience=1.0,
            grace=1.0,
        )

    def new_host(self, name: str) -> Host:
        host = Host(self.process(name, (), 1))
        return self.after(host, lambda client: client.start(0.0))

    def killed(self, host: Host) -> Host:
        """The same after its process was killed and started again."""
        starts = host.starts + 1
        new = Host(self.process(host.client.name, host.disk, starts), host.disk, (), host.facts, starts)
        return self.after(new, lambda client: client.start(0.0))

    def after(self, host: Host, event: Event, *, part: int | None = None) -> Host:
        """The host after an event. part: how many of the outputs it took care of, if then it was killed."""
        client = duplicate(host.client)
        before = client.sum
        disk, facts, said = host.disk, host.facts, [*host.said]
        for output in event(client)[:part]:
            if isinstance(output, Journal):
                disk = (*disk, output.entry)
            elif isinstance(output, Transmit):
                packet = decode(output.frames, MESSAGES)
                if packet.envelope.sequence < host.client._link._link._sent:
                    continue  # Said again, or a hello.
                message = packet.parse()
                facts |= learnt(client if isinstance(message, AdvertiseKeys) else host.client, message, disk, facts)
                if isinstance(message, (AdvertiseKeys, ShareKeys)):
                    said.append(message)
        if client.sum is None:
            client._entropy = SymbolicEntropy(f"{client.name} start {host.starts}")
        said = said if client.sum is not None and client.sum is before else said[len(host.said) :]
        following = replace(host, client=client, disk=disk, facts=facts, said=tuple(said if client.sum else ()))
        return following if part is None else self.killed(following)

    @staticmethod
    def copied(client: TrainingClient) -> TrainingClient:
        copy: TrainingClient = duplicate(client)
        return copy

    @staticmethod
    def contribute(client: TrainingClient) -> Sequence[Output]:
        agreement = client._agreement(client.data, client.round)
        return client.contribute(client.round, np.ones(agreement.length, agreement.ring.word), 0.0)


def round_of(client: TrainingClient) -> Round:
    return client.session, client.round


def learnt(
    client: TrainingClient, message: Message, disk: tuple[JournalLine, ...], facts: frozenset[Any]
) -> set[Hashable]:
    """What the rules need to know of what this client says next. Strings are rules that it breaks."""
    if isinstance(message, AdvertiseKeys):
        round = round_of(client)
        entered = Entered(round)
        faults = {f"entered round {round[1]} twice"} if entered in facts else set()
        if round not in {(line.session, line.round) for line in disk if isinstance(line, JournalEntry)}:
            faults.add("spoke before its journal was written")
        return {entered, *faults}
    if isinstance(message, UnmaskShares):
        round = round_of(client)
        shares = [SymbolicShare.decode(message.shares[place:]) for place in range(0, len(message.shares), SHARE_BYTES)]
        gave = {Gave(round, share.secret.partition(b" secret ")[0].decode(), share.kind) for share in shares}
        known = facts | gave
        both = {f"gave both shares of {fact.keys}" for fact in gave if replace(fact, kind=1 - fact.kind) in known}
        return {*gave, *both}
    return set()


def waits_forever(client: TrainingClient) -> bool:
    alone = (TrainingState.OFFLINE, TrainingState.ENDED, TrainingState.TRAINING)
    return client.state not in alone and client.next_deadline is None

"""The server's side in Flower: a grid between a strategy of Flower and its messages (docs/flower.md).

    strategy.start(grid=SecureGrid(grid, "roster.toml"), ...)

A strategy gives the messages of a round to a grid and works with the replies, so the exchanges of a secure sum take
place in the grid, and every strategy that uses the mean of the replies is unchanged. The grid feeds the replies to the
server's machine and sends its outputs in the next messages, until it has a sum or gives up. Once no replies are
outstanding, the machine's own deadline ends its waiting: Flower's time limit is that of the phase.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from logging import getLogger
from os import urandom
from pathlib import Path
from typing import Any, Final

import msgspec
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from tacit.parties.flower.records import (
    BEGIN,
    EXAMPLES,
    FRAMES,
    GO_ON,
    MOD_FAILED,
    RECORD,
    STEP,
    WHO,
    RefusedError,
    arrays_of,
    content_digest,
    frames_of,
    is_training,
    moved,
    ours,
    sum_title,
    summed,
    taken,
)
from tacit.parties.links.keys import check_node
from tacit.parties.links.roster import read_roster
from tacit.protocol import Roster, ServerAborted, SumResult, SumServer, SumSettings

_TRAINING: Final = 2
"""Exchange of a sum, from 0, that delivers the clients' shares: they train in it."""
_NOW: Final = 0.0
_NONCE_BYTES: Final = 32


class NobodyThereError(RuntimeError):
    """No node of a run is a client of the roster; the message quotes the first node's error."""


class Exchange:
    """The nodes that a strategy wants to train, by its messages, and their replies.

    lost: nodes that dropped out, and the reasons."""

    def __init__(self, grid: Grid, training: list[Message], timeout: float | None) -> None:
        self._grid = grid
        self._timeout = timeout
        self.training = {message.metadata.dst_node_id: message for message in training}
        self.lost: dict[int, str] = {}

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(node for node in self.training if node not in self.lost)

    def ask(self, records: Mapping[int, Mapping[str, Any]], *, train: bool = False) -> dict[int, ConfigRecord]:
        """Send these records to these nodes and return the replies. Silent nodes are lost. train: include the model."""
        messages = []
        for node, record in records.items():
            about = self.training[node]
            content = dict(about.content) if train else {}
            messages.append(
                Message(
                    RecordDict({**content, RECORD: ConfigRecord(dict(record))}),
                    node,
                    about.metadata.message_type,
                    ttl=about.metadata.ttl,
                    group_id=about.metadata.group_id,
                )
            )
        answers = {}
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                self.lost[node] = str(reply.error.reason)
            elif (answer := ours(reply.content)) is None:
                self.lost[node] = "it replies without the secure sum: its app needs the mod secure_sum_mod"
            else:
                answers[node] = answer
        for node in records.keys() - answers.keys():
            self.lost.setdefault(node, "no reply in time")
        return answers

    def hold(self, server: SumServer, nodes: Mapping[str, int], settings: SumSettings) -> None:
        """Run all exchanges of a sum, until the server has its outcome. nodes: of the clients, by their names."""
        names = {node: name for name, node in nodes.items()}
        begin = {STEP: BEGIN, "settings": msgspec.msgpack.encode(settings)}
        records: dict[int, dict[str, Any]] = dict.fromkeys(names, begin)
        number = 0
        while records:
            answers = self.ask(records, train=number == _TRAINING)
            said = []
            for node, answer in answers.items():
                try:
                    frames = frames_of(answer)
                except RefusedError as error:
                    self.lost[node] = str(error)
                    continue
                for frame in frames:
                    said += server.receive(names[node], frame, _NOW)
            for node in records.keys() & self.lost.keys():
                said += server.drop(names[node], _NOW)
            while server.outcome is None:
                records = {}
                for name, frame in said:
                    if nodes[name] not in self.lost:
                        go_on = {STEP: GO_ON, "title": settings.title, FRAMES: []}
                        records.setdefault(nodes[name], go_on)[FRAMES].append(frame)
                if records or server.deadline is None:
                    break
                said = server.expire(server.deadline)
            else:
                return
            number += 1


class Nodes:
    """The nodes of a run, by the names that they have signed."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._named: dict[str, int] = {}

    def learn(self, exchange: Exchange, run: int) -> dict[str, int]:
        """Return the nodes of this exchange by their names, after asking unknown ones; nodes without a name are lost to
        it. NobodyThereError if no node of the run was ever known."""
        known = set(self._named.values())
        claims = self._claims(exchange, run, [node for node in exchange.nodes if node not in known])
        doubtful = [self._named[name] for name in claims.values() if self._named.get(name) in exchange.nodes]
        there = self._claims(exchange, run, doubtful)
        for node, name in claims.items():
            former = self._named.get(name)
            if former in there or former in claims:
                exchange.lost[node] = f"node {node} says that it is {name!r}, which is node {former} in this run"
            else:
                self._named[name] = node
        if not self._named:
            first = next(iter(exchange.lost.values()), "Flower knows none")
            raise NobodyThereError(
                f"none of {len(exchange.training)} nodes is a client of the roster; the first: {first}"
            )
        return {name: node for name, node in self._named.items() if node in exchange.nodes}

    def _claims(self, exchange: Exchange, run: int, nodes: Iterable[int]) -> dict[int, str]:
        nonces = {node: urandom(_NONCE_BYTES) for node in nodes}
        if not nonces:
            return {}
        claims = {}
        for node, record in exchange.ask({node: {STEP: WHO, "nonce": nonce} for node, nonce in nonces.items()}).items():
            try:
                name, signature = taken(record, "name", str), taken(record, "signature", bytes)
                self._roster.index(name)
                check_node(
                    self._roster.member(name),
                    signature,
                    roster=self._roster.hash,
                    run=run,
                    node=node,
                    nonce=nonces[node],
                )
            except (ValueError, LookupError) as error:
                exchange.lost[node] = str(error)
            else:
                claims[node] = name
        return claims


_LOG: Final = getLogger("flwr")


class SecureGrid(Grid):  # type: ignore[misc]
    """A grid whose rounds of training are secure sums.

    roster: that of all clients, or its file. clip: the largest absolute value of the update of a parameter; larger ones
    are clipped. max_weight: the most examples of one client. value_bits: the resolution of an update times its weight.
    corrupt: fraction of the roster's clients that may collude with the server. dropout: fraction of the clients of a
    round that may be lost."""

    def __init__(
        self,
        grid: Grid,
        roster: Roster | str | Path,
        *,
        clip: float = 1.0,
        max_weight: int = 1000,
        value_bits: int = 24,
        corrupt: float = 0.33,
        dropout: float = 0.33,
    ) -> None:
        self._grid = grid
        self._roster = roster if isinstance(roster, Roster) else read_roster(Path(roster))
        self._terms = SumSettings(
            length=1, clip=clip, max_weight=max_weight, value_bits=value_bits, corrupt=corrupt, dropout=dropout
        )
        self._nodes = Nodes(self._roster)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Return replies to messages. Training messages are one sum. ValueError if their contents differ, or if these
        clients have no sum although all are present; NobodyThereError if no node of the run is a client.

        timeout: the longest time of one exchange, in seconds."""
        training: list[Message] = []
        others: list[Message] = []
        for message in messages:
            (training if is_training(message.metadata.message_type) else others).append(message)
        replies = list(self._grid.send_and_receive(others, timeout=timeout)) if others else []
        return [*replies, *self._round(training, timeout)] if training else replies

    def _round(self, training: list[Message], timeout: float | None) -> list[Message]:
        contents = {content_digest(message.content) for message in training}
        if len(contents) != 1:
            raise ValueError(f"{len(contents)} different messages to train from: in a secure sum all get the same one")
        model = arrays_of(training[0].content)
        exchange = Exchange(self._grid, training, timeout)
        run = self._grid.run.run_id
        named = self._nodes.learn(exchange, run)
        ordered = [name for name in self._roster.clients if name in named]
        settings = replace(
            self._terms,
            length=sum(array.size for array in summed(model).values()),
            title=sum_title(run, contents.pop()),
            clients=self._roster.gather(ordered, len(ordered)),
        )
        nodes = {name: named[name] for name in settings.clients}
        outcome: SumResult | ServerAborted | None = None
        detail = "nobody is there"
        # Without names in them the settings would be of all clients.
        if nodes:
            try:
                server = SumServer(settings, self._roster, now=0.0)
            except ValueError as error:
                # With all clients present the next round would fail alike.
                if not exchange.lost:
                    raise
                detail = str(error)
            else:
                exchange.hold(server, nodes, settings)
                outcome = server.outcome
        if not isinstance(outcome, SumResult) or not outcome.weight:
            detail = outcome.detail if isinstance(outcome, ServerAborted) else detail
            _LOG.warning("no secure sum of %s clients: %s", len(training), detail)
            return _errors(exchange, {}, detail)
        _LOG.info("secure sum: %s of %s clients are in it", len(outcome.contributors), len(training))
        dropped = {nodes[name]: detail for name, detail in outcome.dropped.items()}
        first, *others = (nodes[name] for name in outcome.contributors)
        metrics = MetricRecord({EXAMPLES: outcome.weight})
        mean = RecordDict({"arrays": moved(model, outcome.mean), "metrics": metrics})
        return [
            Message(mean, reply_to=exchange.training[first]),
            *_errors(exchange, dropped, "it is not in the sum", besides={first, *others}),
        ]

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self._grid.create_message(*arguments, **named)

    def get_node_ids(self) -> Any:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Any:
        """See the grid: messages sent this way are no secure sum, so clients refuse to train."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        return self._grid.pull_messages(message_ids)


def _errors(
    exchange: Exchange, dropped: Mapping[int, str], otherwise: str, *, besides: Collection[int] = ()
) -> list[Message]:
    """An error for every client that was to train, except `besides`: from its node, from the sum, or `otherwise`."""
    return [
        Message(Error(MOD_FAILED, exchange.lost.get(node) or dropped.get(node, otherwise)), reply_to=message)
        for node, message in exchange.training.items()
        if node not in besides
    ]

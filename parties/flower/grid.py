"""The server's side: a grid, which stands between a strategy of Flower and its messages.

    strategy.start(grid=SecureGrid(grid, "roster.toml"), ...)

Flower's Message API has no workflows any more: a strategy gives the messages of a round to a grid, and works with the
replies. So this is where a sum of many exchanges fits in, and every strategy that works with the mean of the replies
stays as it is. Of a round of training it gets one reply, with the mean of the models and the sum of the weights, and an
error for every client that is not in it. A strategy that compares replies (Krum, a median) finds one, and cannot work:
that is what a secure sum is for. Messages of other types pass unchanged.

An exchange is one message to everybody who is still there, and their replies; who does not reply in time, or with an
error, is dropped from the sum. Five exchanges make a sum: keys, shares, the masked update with the training before it,
and the check and the opening. A model of more than a MiB of ring words takes more of the third kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from tacit.parties.flower.exchange import Exchange
from tacit.parties.flower.nodes import Nodes
from tacit.parties.flower.records import EXAMPLES, arrays_of, content_digest, is_training, moved, sum_title, summed
from tacit.parties.links.roster import read_roster
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.one_sum import SumResult, SumServer, SumSettings
from tacit.protocol.sum.exchange import ServerAborted

_LOG: Final = getLogger("flwr")
_NOT_IN_IT: Final = 6
"""Flower's code of an error of a mod."""


class SecureGrid(Grid):  # type: ignore[misc]
    """A grid whose rounds of training are secure sums.

    roster: that of all clients, or its file. clip: the largest absolute value of the update of a parameter; larger ones
    are cut. max_weight: the most examples of one client. value_bits: the resolution of an update times its weight.
    corrupt, dropout: fractions of the clients of a round that may collude with the server, and that may be lost.
    """

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
        """Replies to messages. Those of training are one sum. ValueError if these do not all say the same.

        timeout: the longest time of one exchange, in seconds.
        """
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
        try:
            # Without names in them the settings would be of all clients.
            if nodes:
                server = SumServer(settings, self._roster, now=0.0)
                exchange.hold(server, nodes, settings)
                outcome = server.outcome
        except ValueError as error:
            detail = str(error)
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
        """As of the grid."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """As of the grid."""
        return self._grid.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        """As of the grid."""
        return self._grid.create_message(*arguments, **named)

    def get_node_ids(self) -> Any:
        """As of the grid."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        """As of the grid."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Any:
        """As of the grid: no secure sum, so that clients refuse to train."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        """As of the grid."""
        return self._grid.pull_messages(message_ids)


def _errors(
    exchange: Exchange, dropped: Mapping[int, str], otherwise: str, *, besides: Collection[int] = ()
) -> list[Message]:
    """An error for every client that was to train, besides these: what its node, the sum, or nobody said of it."""
    return [
        Message(Error(_NOT_IN_IT, exchange.lost.get(node) or dropped.get(node, otherwise)), reply_to=message)
        for node, message in exchange.training.items()
        if node not in besides
    ]

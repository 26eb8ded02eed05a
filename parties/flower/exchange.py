"""The exchanges of one round: everybody who is still there gets one message of Flower's, and replies.

The machine of the server is fed with the frames of the replies, and what it says goes out with the next messages, until
it has come to a sum or given it up. Who does not reply in time, or replies with an error, is dropped: Flower's time
limit is that of the phase. What a machine waits for and nobody owes any more, its own deadline ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from tacit.parties.flower.records import BEGIN, FRAMES, GO_ON, RECORD, STEP, frames_of, ours
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.session.one_sum import SumServer, SumSettings

_TRAINING: Final = 2
"""The exchange of a sum, from 0, in which clients hear of each other's shares: they train in it."""
_NOW: Final = 0.0


class Exchange:
    """The nodes that a strategy wants to train, by its messages, and what is heard of them.

    lost: who is not there any more, and why.
    """

    def __init__(self, grid: Grid, training: list[Message], timeout: float | None) -> None:
        self._grid = grid
        self._timeout = timeout
        self.training = {message.metadata.dst_node_id: message for message in training}
        self.lost: dict[int, str] = {}

    @property
    def nodes(self) -> tuple[int, ...]:
        """Who is still there."""
        return tuple(node for node in self.training if node not in self.lost)

    def ask(self, records: Mapping[int, Mapping[str, Any]], *, train: bool = False) -> dict[int, ConfigRecord]:
        """Say this to these nodes; what they reply. Who does not is lost. train: with what there is to train from."""
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
        """All exchanges of a sum, until the server has its outcome.

        nodes: of the clients, by their names. ValueError for a sum that was opened and is none.
        """
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
                except RemoteProtocolError as error:
                    self.lost[node] = error.detail
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

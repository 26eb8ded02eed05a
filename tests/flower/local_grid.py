"""A grid of Flower whose nodes are in this process: every message is written and read as Flower does it on the way, an
app that raises makes an error of its node, a node that is gone does not reply, and what both sides took is counted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from copy import deepcopy

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN = 7
# Flower sets these in each of its processes; messages cannot be made without.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1


def on_the_wire(content: RecordDict) -> tuple[int, RecordDict]:
    """The bytes that Flower moves for a content, and what it makes of them at the other end."""
    objects = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
    arrived = inflate_object_from_contents(content.object_id, dict(objects))
    return sum(map(len, objects.values())), arrived


class LocalGrid(Grid):
    """So many nodes around one ClientApp; node 101 has partition 0, and so on."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self._app = app
        self.contexts = {
            101 + number: Context(
                RUN, 101 + number, {"partition-id": number, "num-partitions": nodes}, RecordDict(), {}
            )
            for number in range(nodes)
        }
        self.bytes_sent = self.bytes_received = 0
        self.client_seconds = self.wire_seconds = 0.0
        self.replies: list[Message] = []
        self._pushed: dict[str, Message] = {}
        self._run = Run.create_empty(RUN)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self.answer(message) for message in messages if message.metadata.dst_node_id in self.contexts]
        self.replies += replies
        return replies

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        began = time.perf_counter()
        size, content = on_the_wire(message.content)
        self.bytes_sent += size
        received = Message(content, metadata=deepcopy(message.metadata))
        called = time.perf_counter()
        self.wire_seconds += called - began
        try:
            reply = self._app(received, self.contexts[node])
        except Exception as error:
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        finally:
            answered = time.perf_counter()
            self.client_seconds += answered - called
        if reply.has_error():
            return reply
        size, content = on_the_wire(reply.content)
        self.bytes_received += size
        self.wire_seconds += time.perf_counter() - answered
        return Message(content, metadata=reply.metadata)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        new = {f"message {len(self._pushed) + number}": message for number, message in enumerate(messages)}
        self._pushed |= new
        return list(new)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.send_and_receive([self._pushed[name] for name in message_ids])

"""Mods around ours that lose a node in one phase of a secure sum: a message to it, or its answer, never comes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from flwr.app import Context, Message

from tacit.parties.flower.records import BEGIN, FRAMES, STEP, ours
from tacit.protocol.core.codec import decode
from tacit.protocol.core.messages import Kinds
from tacit.protocol.sum.messages import SUM_MESSAGES, PeerKeys, PeerShares, Survivors, UnmaskRequest
from tacit.protocol.sum.states import VERSION

KINDS = Kinds(protocol="a secure sum", version=VERSION, types=SUM_MESSAGES)


class Lost(Enum):
    ADVERTISE_KEYS = "advertise keys", False
    SHARE_KEYS = "share keys", False
    BEFORE_TRAINING = "before training", False
    TRAIN = "in training", False
    MASKED_INPUT = "with its masked input", False
    CONSISTENCY_CHECK = "consistency check", True
    UNMASK = "unmask", True

    @property
    def included(self) -> bool:
        return self.value[1]


STARTS = {
    PeerKeys: Lost.SHARE_KEYS,
    PeerShares: Lost.BEFORE_TRAINING,
    Survivors: Lost.CONSISTENCY_CHECK,
    UnmaskRequest: Lost.UNMASK,
}


class LinkLostError(Exception):
    """What a node says that is lost; Flower makes an error of it."""


def phase_of(message: Message) -> Lost | None:
    record = ours(message.content)
    if record is None or record[STEP] == BEGIN:
        return Lost.ADVERTISE_KEYS if record else None
    if not record.get(FRAMES):
        return None
    return STARTS.get(decode(msgspec.msgpack.decode(record[FRAMES][0], type=list[bytes]), KINDS).kind)


@dataclass
class Loses:
    """Loses the node of one partition: in round n in the n-th of these phases. counter: a file, as processes change."""

    partition: int
    phases: tuple[Lost | None, ...]
    counter: Path

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        if context.node_config["partition-id"] != self.partition or message.metadata.message_type != "train":
            return call_next(message, context)
        phase = phase_of(message)
        if phase is Lost.ADVERTISE_KEYS:
            with self.counter.open("a") as file:
                file.write("begun\n")
        begun = len(self.counter.read_text().splitlines()) if self.counter.exists() else 0
        lost = self.phases[begun - 1] if begun else None
        if lost is not None and lost is phase:
            raise LinkLostError(f"lost: {lost.value[0]}")
        answer = call_next(message, context)
        if lost is Lost.MASKED_INPUT and phase is Lost.BEFORE_TRAINING:
            raise LinkLostError(f"lost: {lost.value[0]}")
        return answer


@dataclass
class FailsToTrain(Loses):
    """A mod inside of ours, that sees a message only when it is to train: then the app fails."""

    def __call__(self, message: Message, context: Context, call_next: Any) -> Message:
        if context.node_config["partition-id"] == self.partition and message.metadata.message_type == "train":
            begun = len(self.counter.read_text().splitlines())
            if self.phases[begun - 1] is Lost.TRAIN:
                raise LinkLostError(f"lost: {Lost.TRAIN.value[0]}")
        return call_next(message, context)

"""Phases, inputs and states of a secure sum. The tables stand below the machines (client.py, server.py, plain.py)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tacit.protocol.core.machine import Input, State
from tacit.protocol.core.messages import SESSION, TRAIN
from tacit.protocol.core.primitives import Label

VERSION: Final = 5
"""Of session, secure sum and group key together. Numbers come from one series for all protocols."""


class SumLabel:
    """Labels of a secure sum and of its rounds' contents."""

    CONFIGURATION: Final = Label(b"tacit/1 configuration")
    MODEL: Final = Label(b"tacit/1 model")
    FIXED: Final = Label(b"tacit/1 fixed part")
    ROUND: Final = Label(b"tacit/1 round")
    ADVERTS: Final = Label(b"tacit/1 adverts")
    SHARING: Final = Label(b"tacit/1 sharing")
    RING_SEED: Final = Label(b"tacit/1 ring seed")
    KEY_SHARE: Final = Label(b"tacit/1 commitment to a share of the mask key")
    SEED_SHARE: Final = Label(b"tacit/1 commitment to a share of the self-mask seed")
    SEED: Final = Label(b"tacit/1 commitment to the self-mask seed")
    SHARE_CHANNEL: Final = Label(b"tacit/1 share encryption")
    PAIRWISE_SEED: Final = Label(b"tacit/1 pairwise mask seed")
    SELF_SEED: Final = Label(b"tacit/1 self mask seed")
    SIGN_ADVERT: Final = Label(b"tacit/1 sign ADVERTISE_KEYS")
    SIGN_SHARES: Final = Label(b"tacit/1 sign SHARE_KEYS")
    SIGN_COMPLAINT: Final = Label(b"tacit/1 sign complaint in MASKED_INPUT")
    SIGN_SURVIVORS: Final = Label(b"tacit/1 sign CONSISTENCY_CHECK")
    SIGN_SPENDING: Final = Label(b"tacit/1 sign spending of a privacy budget")


class Phase(StrEnum):
    """Phases of a round, for deadlines, reports and fault injection."""

    SESSION = SESSION
    """Outside of a round's phases."""
    ADVERTISE_KEYS = "ADVERTISE_KEYS"
    SHARE_KEYS = "SHARE_KEYS"
    TRAIN = TRAIN
    """Begins with the round, beside the phases before this one."""
    MASKED_INPUT = "MASKED_INPUT"
    ANSWER_COMPLAINTS = "ANSWER_COMPLAINTS"
    CONSISTENCY_CHECK = "CONSISTENCY_CHECK"
    UNMASK = "UNMASK"


class SumTrigger(Input):
    """Inputs of a secure sum."""

    CONTRIBUTE = "contribute"


class ClientState(State):
    """Input that the client awaits."""

    READY = "ready to start"
    AWAIT_PEER_KEYS = "await the keys of the others"
    AWAIT_PEER_SHARES = "await the shares of the others"
    AWAIT_VECTOR = "await its own vector"
    AWAIT_SURVIVORS = "await the list of survivors"
    AWAIT_UNMASK_REQUEST = "await the signatures over the survivors"
    DONE = "done"
    ABORTED = "aborted"


class ServerState(State):
    """Input that the server collects."""

    ADVERTISE_KEYS = Phase.ADVERTISE_KEYS.value
    SHARE_KEYS = Phase.SHARE_KEYS.value
    MASKED_INPUT = Phase.MASKED_INPUT.value
    ANSWER_COMPLAINTS = Phase.ANSWER_COMPLAINTS.value
    CONSISTENCY_CHECK = Phase.CONSISTENCY_CHECK.value
    UNMASK = Phase.UNMASK.value
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


PHASES: Final = {
    ClientState.READY: Phase.SESSION,
    ClientState.AWAIT_PEER_KEYS: Phase.ADVERTISE_KEYS,
    ClientState.AWAIT_PEER_SHARES: Phase.SHARE_KEYS,
    ClientState.AWAIT_VECTOR: Phase.TRAIN,
    ClientState.AWAIT_SURVIVORS: Phase.MASKED_INPUT,
    ClientState.AWAIT_UNMASK_REQUEST: Phase.CONSISTENCY_CHECK,
    ClientState.DONE: Phase.UNMASK,
    ClientState.ABORTED: Phase.SESSION,
}
"""The phase whose message a client has sent and whose end it awaits; TRAIN while only its vector is missing."""

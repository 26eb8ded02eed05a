"""Labels, inputs and states of group keys: of clients and of their relay, the server.

During an agreement, the machine of the attempt (of a member, of the relay) is inside that of the session (holder.py,
keeper.py), which relays its messages. The tables stand below the machines.
"""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.machine import Input, State
from tacit.protocol.core.messages import Chunk, Fetch
from tacit.protocol.core.primitives import Label
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    EndKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    KeyedModel,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
    ReencryptModel,
    StartKey,
)

ATTEMPT_TO_MEMBER: Final = (PeerKeyCommits, PeerKeyContributions, PeerKeyConfirmations)
ATTEMPT_TO_RELAY: Final = (KeyCommit, KeyContribution, ConfirmKey, KeyAccepted, KeyComplaint)
"""Messages of the two sides within one attempt at a key."""

TO_HOLDER: Final = (*ATTEMPT_TO_MEMBER, StartKey, EndKey, ReencryptModel, KeyedModel, Fetch, Chunk)
TO_KEEPER: Final = (*ATTEMPT_TO_RELAY, KeyedModel, Fetch, Chunk)
"""All messages about group keys from a server to a client, and from a client to a server."""


class KeyLabel:
    """Labels of group keys."""

    KEY_AGREEMENT: Final = Label(b"tacit/1 group key agreement")
    KEY_TRANSCRIPT: Final = Label(b"tacit/1 group key transcript")
    CONTRIBUTION: Final = Label(b"tacit/1 commitment to a contribution to the group key")
    CONTRIBUTION_CHANNEL: Final = Label(b"tacit/1 contribution encryption")
    GROUP_KEY: Final = Label(b"tacit/1 group key")
    KEY_CONFIRMATION: Final = Label(b"tacit/1 confirmation of the group key")
    SIGN_KEY_COMMIT: Final = Label(b"tacit/1 sign commitment to a contribution")
    SIGN_CONTRIBUTION: Final = Label(b"tacit/1 sign contribution to the group key")
    SIGN_CONFIRMATION: Final = Label(b"tacit/1 sign confirmation of the group key")


class KeyTrigger(Input):
    """Inputs of the server about group keys."""

    AGREE = "agree on a group key"
    DISTRIBUTE = "distribute the last model"


class MemberState(State):
    """Input that a member awaits."""

    READY = "ready to start"
    AWAIT_PEER_COMMITS = "await what the others commit to"
    AWAIT_PEER_CONTRIBUTIONS = "await the contributions of the others"
    AWAIT_PEER_CONFIRMATIONS = "await the confirmations of the others"
    ACCEPTED = "accepted"
    ABORTED = "aborted"


class RelayState(State):
    """Input that the relay collects."""

    KEY_COMMIT = "KEY_COMMIT"
    KEY_CONTRIBUTE = "KEY_CONTRIBUTE"
    KEY_CONFIRM = "KEY_CONFIRM"
    KEY_ACCEPT = "KEY_ACCEPT"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


class HolderState(State):
    """Whether a client has a key, and its present activity."""

    NO_KEY = "no key"
    AGREEING = "agree on a key"
    KEYED = "hold a key"
    FETCHING_MODEL = "fetch the model to encrypt"
    ENCRYPTING = "encrypt the model"
    PROVIDING = "provide the encrypted model"
    FETCHING_LAST = "fetch the last model"


class KeeperState(State):
    """Present activity of the server for the clients' key."""

    IDLE = "nothing to do"
    AGREEING = "let the members agree"
    AWAIT_MODEL = "await the model under the new key"
    FETCHING_MODEL = "fetch the model under the new key"
    DISTRIBUTING = "let the members fetch the last model"

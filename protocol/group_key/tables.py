"""Group keys, at clients and at the server, its relay: states and transition tables of one attempt, and between rounds.

While they agree, the machine of the attempt (of a member, of the relay) is inside of that of the session (holder.py,
keeper.py), which hands its messages on. What is not in a table is refused. The diagrams in docs/ are drawn from these.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Inside, Row, Table, Trigger
from tacit.protocol.core.messages import Abort, Chunk, Fetch, Message
from tacit.protocol.group_key.agreement import GroupKey, KeyAgreed, KeyFailed
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
from tacit.protocol.sum.exchange import ClientAborted

ATTEMPT_TO_MEMBER: Final = (PeerKeyCommits, PeerKeyContributions, PeerKeyConfirmations)
ATTEMPT_TO_RELAY: Final = (KeyCommit, KeyContribution, ConfirmKey, KeyAccepted, KeyComplaint)
"""What the two sides say within one attempt at a key."""

TO_HOLDER: Final = (*ATTEMPT_TO_MEMBER, StartKey, EndKey, ReencryptModel, KeyedModel, Fetch, Chunk)
TO_KEEPER: Final = (*ATTEMPT_TO_RELAY, KeyedModel, Fetch, Chunk)
"""Everything about group keys that a server says to a client, and a client to a server."""


class MemberState(Enum):
    """What a member awaits."""

    READY = "ready to start"
    AWAIT_PEER_COMMITS = "await what the others commit to"
    AWAIT_PEER_CONTRIBUTIONS = "await the contributions of the others"
    AWAIT_PEER_CONFIRMATIONS = "await the confirmations of the others"
    ACCEPTED = "accepted"
    ABORTED = "aborted"


class RelayState(Enum):
    """What the relay collects."""

    KEY_COMMIT = "KEY_COMMIT"
    KEY_CONTRIBUTE = "KEY_CONTRIBUTE"
    KEY_CONFIRM = "KEY_CONFIRM"
    KEY_ACCEPT = "KEY_ACCEPT"
    COMPLETED = "COMPLETED"
    ABORTED = "ABORTED"


class HolderState(Enum):
    """Whether a client has a key, and what it does with it."""

    NO_KEY = "no key"
    AGREEING = "agree on a key"
    KEYED = "hold a key"
    FETCHING_MODEL = "fetch the model to encrypt"
    ENCRYPTING = "encrypt the model"
    PROVIDING = "provide the encrypted model"
    FETCHING_LAST = "fetch the last model"


class KeeperState(Enum):
    """What the server does about the key of the clients."""

    IDLE = "nothing to do"
    AGREEING = "let the members agree"
    AWAIT_MODEL = "await the model under the new key"
    FETCHING_MODEL = "fetch the model under the new key"
    DISTRIBUTING = "let the members fetch the last model"


def _member_table() -> Table[MemberState]:
    s = MemberState
    rows: list[tuple[MemberState, type[Message], str, MemberState]] = [
        (s.AWAIT_PEER_COMMITS, PeerKeyCommits, "on_peer_commits", s.AWAIT_PEER_CONTRIBUTIONS),
        (s.AWAIT_PEER_CONTRIBUTIONS, PeerKeyContributions, "on_peer_contributions", s.AWAIT_PEER_CONFIRMATIONS),
        (s.AWAIT_PEER_CONFIRMATIONS, PeerKeyConfirmations, "on_peer_confirmations", s.ACCEPTED),
    ]
    table: dict[Any, Any] = {(s.READY, Trigger.START): Row("on_start", (s.AWAIT_PEER_COMMITS,))}
    for state, kind, handler, following in rows:
        # A member that complains of another ends the attempt; nobody can complain before there are contributions.
        table[state, kind] = Row(handler, (following,) if state is s.AWAIT_PEER_COMMITS else (following, s.ABORTED))
        table[state, Abort] = Row("on_abort", (s.ABORTED,))
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.ABORTED,))
    table[s.ACCEPTED, Abort] = IGNORE
    # What was under way when this member gave up.
    table.update({(s.ABORTED, kind): IGNORE for kind in (Abort, *ATTEMPT_TO_MEMBER)})
    return table


def _relay_table() -> Table[RelayState]:
    s = RelayState
    rows: list[tuple[RelayState, type[Message], str, str, RelayState]] = [
        (s.KEY_COMMIT, KeyCommit, "on_commit", "close_commits", s.KEY_CONTRIBUTE),
        (s.KEY_CONTRIBUTE, KeyContribution, "on_contribution", "close_contributions", s.KEY_CONFIRM),
        (s.KEY_CONFIRM, ConfirmKey, "on_confirmation", "close_confirmations", s.KEY_ACCEPT),
        (s.KEY_ACCEPT, KeyAccepted, "on_accepted", "close_acceptance", s.COMPLETED),
    ]
    table: dict[Any, Any] = {}
    past: list[type[Message]] = []
    for state, kind, handler, close, following in rows:
        table.update({(state, earlier): IGNORE for earlier in past})
        table[state, kind] = Row(handler, (state,))
        table[state, Trigger.COMPLETE] = Row(close, (following,))
        table[state, Abort] = Row("on_abort", (s.ABORTED,))
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.ABORTED,))
        table[state, Trigger.DROP] = Row("on_drop", (s.ABORTED,))
        past.append(kind)
    for state in (s.KEY_CONFIRM, s.KEY_ACCEPT):
        table[state, KeyComplaint] = Row("on_complaint", (s.ABORTED,))
    for state in (s.COMPLETED, s.ABORTED):
        table.update({(state, cause): IGNORE for cause in (*past, KeyComplaint, Abort, Trigger.DROP)})
    return table


def _holder_table() -> Table[HolderState]:
    s = HolderState
    table: dict[Any, Any] = {
        **{(s.AGREEING, kind): Inside("attempt") for kind in ATTEMPT_TO_MEMBER},
        (s.AGREEING, GroupKey): Row("on_key", (s.KEYED,)),
        (s.AGREEING, ClientAborted): Row("on_attempt_aborted", (s.NO_KEY,)),
        (s.KEYED, ReencryptModel): Row("on_reencrypt", (s.FETCHING_MODEL, s.ENCRYPTING)),
        (s.KEYED, KeyedModel): Row("on_last_model", (s.FETCHING_LAST,)),
        (s.FETCHING_MODEL, Chunk): Row("on_chunk", (s.FETCHING_MODEL, s.ENCRYPTING)),
        (s.ENCRYPTING, Trigger.PROVIDE): Row("on_provide", (s.PROVIDING, s.KEYED)),
        (s.PROVIDING, Fetch): Row("on_fetch", (s.PROVIDING, s.KEYED)),
        (s.FETCHING_LAST, Chunk): Row("on_chunk", (s.FETCHING_LAST, s.KEYED)),
    }
    # No deadline while encrypting: that waits for this client itself, and the server's limit is for the whole of it.
    for state in (s.FETCHING_MODEL, s.PROVIDING, s.FETCHING_LAST):
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.NO_KEY,))
    for state in s:
        if state is not s.FETCHING_LAST:
            table[state, EndKey] = Row("on_end_key", (s.NO_KEY,))
        if state in (s.NO_KEY, s.KEYED):
            table[state, StartKey] = Row("on_start_key", (s.AGREEING,))
    # What was under way when this client complained of another, or had its attempt ended.
    table.update({(s.NO_KEY, kind): IGNORE for kind in ATTEMPT_TO_MEMBER})
    return table


def _keeper_table() -> Table[KeeperState]:
    s = KeeperState
    table: dict[Any, Any] = {
        (s.IDLE, Trigger.AGREE): Row("on_agree", (s.AGREEING,)),
        (s.IDLE, Trigger.DISTRIBUTE): Row("on_distribute", (s.DISTRIBUTING,)),
        (s.IDLE, Trigger.DROP): IGNORE,
        **{(s.AGREEING, cause): Inside("attempt") for cause in (*ATTEMPT_TO_RELAY, Trigger.DROP)},
        (s.AGREEING, KeyAgreed): Row("on_agreed", (s.AWAIT_MODEL, s.IDLE)),
        (s.AGREEING, KeyFailed): Row("on_failed", (s.IDLE,)),
        (s.AWAIT_MODEL, Fetch): Row("on_fetch", (s.AWAIT_MODEL,)),
        (s.AWAIT_MODEL, KeyedModel): Row("on_keyed_model", (s.FETCHING_MODEL, s.AWAIT_MODEL, s.IDLE)),
        (s.FETCHING_MODEL, Chunk): Row("on_chunk", (s.FETCHING_MODEL, s.IDLE)),
        (s.DISTRIBUTING, Fetch): Row("on_fetch", (s.DISTRIBUTING,)),
        (s.DISTRIBUTING, Trigger.COMPLETE): Row("on_distributed", (s.IDLE,)),
        (s.DISTRIBUTING, Trigger.EXPIRE): Row("on_distributed", (s.IDLE,)),
        (s.DISTRIBUTING, Trigger.DROP): Row("on_receiver_gone", (s.DISTRIBUTING,)),
    }
    for state in (s.AWAIT_MODEL, s.FETCHING_MODEL):
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.IDLE,))
        table[state, Trigger.DROP] = Row("on_drop", (s.IDLE,))
    # What was under way when an attempt, or the fetching of a model, was given up.
    for state in s:
        for kind in TO_KEEPER:
            table.setdefault((state, kind), IGNORE)
    return table


MEMBER_TABLE: Final = _member_table()
RELAY_TABLE: Final = _relay_table()
HOLDER_TABLE: Final = _holder_table()
KEEPER_TABLE: Final = _keeper_table()

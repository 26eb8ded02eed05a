"""The states and transition tables of an agreement on a group key, for its members and for the server, its relay.

What is not in a table is refused. The diagrams in docs/ are drawn from these tables.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from tacit.protocol.core.machine import IGNORE, Row, Table, Trigger
from tacit.protocol.core.messages import Abort, Message
from tacit.protocol.group_key.messages import (
    ConfirmKey,
    KeyAccepted,
    KeyCommit,
    KeyComplaint,
    KeyContribution,
    PeerKeyCommits,
    PeerKeyConfirmations,
    PeerKeyContributions,
)


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


def _member_table() -> Table[MemberState]:
    s = MemberState
    rows: list[tuple[MemberState, type[Message], str, MemberState]] = [
        (s.AWAIT_PEER_COMMITS, PeerKeyCommits, "on_peer_commits", s.AWAIT_PEER_CONTRIBUTIONS),
        (s.AWAIT_PEER_CONTRIBUTIONS, PeerKeyContributions, "on_peer_contributions", s.AWAIT_PEER_CONFIRMATIONS),
        (s.AWAIT_PEER_CONFIRMATIONS, PeerKeyConfirmations, "on_peer_confirmations", s.ACCEPTED),
    ]
    table: dict[Any, Any] = {
        (s.READY, Trigger.START): Row("on_start", (s.AWAIT_PEER_COMMITS,)),
        (s.READY, Trigger.DROP): Row("on_drop", (s.ABORTED,)),
    }
    for state, kind, handler, following in rows:
        # A member that complains of another ends the attempt; nobody can complain before there are contributions.
        table[state, kind] = Row(handler, (following,) if state is s.AWAIT_PEER_COMMITS else (following, s.ABORTED))
        table[state, Abort] = Row("on_abort", (s.ABORTED,))
        table[state, Trigger.EXPIRE] = Row("on_expire", (s.ABORTED,))
        table[state, Trigger.DROP] = Row("on_drop", (s.ABORTED,))
    for state in (s.ACCEPTED, s.ABORTED):
        table.update({(state, cause): IGNORE for cause in (Abort, Trigger.DROP)})
    # What was under way when this member gave up.
    table.update({(s.ABORTED, kind): IGNORE for _, kind, _, _ in rows})
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


MEMBER_TABLE: Final = _member_table()
RELAY_TABLE: Final = _relay_table()

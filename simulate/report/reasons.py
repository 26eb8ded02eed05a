"""The codes of the protocol for operators of federations: cause and remedy."""

from __future__ import annotations

from typing import Final

from tacit.protocol.core.errors import Code

REASONS: Final[dict[Code, tuple[str, str]]] = {
    Code.MALFORMED: (
        "A message could not be read.",
        "Install the same release on both sides; if that is so, distrust its sender.",
    ),
    Code.VERSION: ("A party speaks another version of the protocol.", "Install the same release on all hosts."),
    Code.UNEXPECTED: ("A party said what it may not say at that moment.", "Distrust it, or report a defect."),
    Code.SESSION: ("A message was of another session or round.", "Start that party again."),
    Code.SENDER: ("A party called itself by the name of another one.", "Distrust it."),
    Code.SEQUENCE: (
        "A message was replayed, or came out of order.",
        "Start that party again; if it recurs, distrust it.",
    ),
    Code.ROSTER: (
        "Two parties hold different rosters.",
        "Give all hosts the same roster, and compare its fingerprint; a later version goes around by itself.",
    ),
    Code.POLICY: (
        "A client's policy accepts less than what was proposed.",
        "Compare the experiment with the policy of that client; one of them has to change.",
    ),
    Code.MODEL: ("A model was not the announced one, or cannot be used.", "Look into the server's log."),
    Code.KEYS: ("The list of public keys broke a rule.", "Distrust the server, if it was a client who refused."),
    Code.SIGNATURE: ("A signature does not verify.", "Compare the rosters; if they are the same, distrust the sender."),
    Code.MEMBERS: ("A list of members was not what it must be.", "Distrust the sender."),
    Code.THRESHOLD: (
        "Fewer clients were left than are needed to open the sum.",
        "See below who was lost and why. The model is as it was before the round.",
    ),
    Code.SHARES: ("Shares of secrets were missing, or not those committed to.", "Distrust the sender."),
    Code.VECTOR: (
        "A vector, or the sum, is not one that honest clients can make.",
        "Nobody can tell whose it was: look at the clients that joined last.",
    ),
    Code.SECRET: ("A secret that was put together is not the one that its owner committed to.", "Distrust its owner."),
    Code.TIMEOUT: (
        "The time for a phase was over.",
        "Look after the clients that were waited for, or raise the deadlines of the experiment.",
    ),
    Code.LEFT: ("A party left, or lost its link for too long.", "Look into its log."),
    Code.LOCAL: ("A party could not go on by itself: its disk, data or device.", "Look into its log."),
}
"""Keyed by code: cause and remedy."""


def reason(code: str | None) -> tuple[str, str]:
    """Return cause and remedy of an event's code; empty for None, and for an unknown code."""
    known = Code.__members__.get(code or "")
    return REASONS[known] if known is not None else ("", "")

"""Errors of the protocol, and their codes on the wire.

Local misuse (a caller requests something that the machine cannot do now) raises LocalProtocolError: a bug on this side.
A peer's fault is a RemoteProtocolError: it has the code for the wire, the member at fault and a sentence for the log.
Machines catch RemoteProtocolError themselves and turn it into a verdict (exclude the sender, or abort the round); it
never reaches the shell as an exception. An input that the tables do not list ends the exchange.
"""

from __future__ import annotations

from enum import IntEnum

DETAIL_LIMIT = 300
"""Longest explanation, in characters, that an Abort message may carry."""


def printable(words: str) -> str:
    """The text with a space for every character that is not printable: other parties may send control sequences."""
    return words if words.isprintable() else "".join(one if one.isprintable() else " " for one in words)


class Code(IntEnum):
    """Reason of a refusal. The numbers are part of the wire format and are never reused."""

    MALFORMED = 1
    """Bytes that are no canonical encoding of any message."""
    VERSION = 2
    """Another version of the protocol."""
    UNEXPECTED = 3
    """A message that this state does not admit."""
    SESSION = 4
    """A message of another session or round."""
    SENDER = 5
    """The sender field is not the authenticated member."""
    SEQUENCE = 6
    """A message replayed, reordered or lost."""
    ROSTER = 7
    """The two sides hold different rosters."""
    POLICY = 8
    """The proposal violates this client's policy."""
    MODEL = 9
    """The model is not the announced one, or not usable."""
    KEYS = 11
    """The list of public keys breaks a rule (own key missing, equal keys, invalid point)."""
    SIGNATURE = 12
    """A signature that does not verify."""
    MEMBERS = 13
    """A set of members that is not within the set it must be drawn from."""
    THRESHOLD = 14
    """Fewer members than the threshold."""
    SHARES = 15
    """Shares missing, surplus, undecryptable or not those committed to."""
    VECTOR = 16
    """A vector of wrong length, or with words outside the ring; of a round, that its sum is none of updates."""
    SECRET = 17
    """A reconstructed secret is not the one that its owner committed to."""
    TIMEOUT = 18
    """The deadline of a phase passed."""
    LEFT = 19
    """A party left, or was stopped."""
    LOCAL = 20
    """The party itself could not continue (its own disk, data or device)."""


class ProtocolError(Exception):
    """Base of both kinds."""


class LocalProtocolError(ProtocolError):
    """This side requested something that the state does not allow: a bug in the caller."""


class RemoteProtocolError(ProtocolError):
    """A peer broke a rule.

    culprit: the member at fault, if the rule identifies one; detail: one sentence for people; round: 0 outside of
    rounds."""

    def __init__(self, code: Code, detail: str, *, culprit: str | None = None, round: int = 0) -> None:
        super().__init__(f"{culprit or 'peer'}: {detail} [{code.name}]")
        self.code = code
        self.detail = detail[:DETAIL_LIMIT]
        self.culprit = culprit
        self.round = round

    def within(self, round: int) -> RemoteProtocolError:
        """The same error, in a message of this round."""
        return RemoteProtocolError(self.code, self.detail, culprit=self.culprit, round=round)

    def blaming(self, member: str) -> RemoteProtocolError:
        """The same error with a culprit, unless it names one already."""
        return self if self.culprit else RemoteProtocolError(self.code, self.detail, culprit=member, round=self.round)

"""Codes keep their numbers, messages show no secret, and errors name a culprit."""

import pytest

from tacit.protocol.core.errors import (
    DETAIL_LIMIT,
    Code,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from tacit.protocol.core.messages import Fetch
from tacit.protocol.sum.messages import AnswerComplaints, UnmaskRequest, UnmaskShares


def test_codes_are_never_renumbered() -> None:
    names = (
        "MALFORMED VERSION UNEXPECTED SESSION SENDER SEQUENCE ROSTER POLICY MODEL - KEYS SIGNATURE MEMBERS"
        " THRESHOLD SHARES VECTOR SECRET TIMEOUT LEFT LOCAL"
    )
    numbered = [(number, name) for number, name in enumerate(names.split(), start=1) if name != "-"]
    assert [(code.value, code.name) for code in Code] == numbered


def test_messages_are_immutable_and_do_not_show_shares() -> None:
    with pytest.raises(AttributeError):
        Fetch(chunk=1).chunk = 2  # type: ignore[misc]
    assert repr(UnmaskShares(owners=b"o", shares=b"very secret")) == "UnmaskShares(<secret>)"
    assert repr(AnswerComplaints(shares=b"very secret")) == "AnswerComplaints(<secret>)"
    request = UnmaskRequest(survivors=b"", signers=b"", signatures=b"", answered=b"o", answers=b"very secret")
    assert repr(request) == "UnmaskRequest(<secret>)"


def test_errors_name_the_culprit_once() -> None:
    error = RemoteProtocolError(Code.KEYS, "x" * (DETAIL_LIMIT + 1))
    assert len(error.detail) == DETAIL_LIMIT
    assert (error.culprit, str(error)[:5]) == (None, "peer:")
    blamed = error.blaming("client-3")
    assert (blamed.code, blamed.detail, blamed.culprit) == (Code.KEYS, error.detail, "client-3")
    assert blamed.blaming("client-4") is blamed
    assert str(blamed).startswith("client-3: xxx")
    assert str(blamed).endswith("[KEYS]")
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)

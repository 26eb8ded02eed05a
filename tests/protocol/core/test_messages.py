"""The wire cannot drift unnoticed: names, phases and bytes of the messages are written down here a second time."""

import msgspec
import pytest

from tacit.protocol.core.codec import Envelope, decode_structure, encode_structure
from tacit.protocol.core.errors import (
    DETAIL_LIMIT,
    Code,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
)
from tacit.protocol.core.messages import Abort, Blob, Fetch
from tacit.protocol.session.messages import MESSAGES, EndRound, Hello, StartRound
from tacit.protocol.sum.messages import AnswerComplaints, MaskedInput, UnmaskRequest, UnmaskShares
from tacit.protocol.sum.states import Phase
from tests.cases import cases

COUNTING = bytes(range(32))
COUNTING_HEX = "c420" + COUNTING.hex()

GOLDEN: list[tuple[msgspec.Struct, str]] = [
    (
        Envelope(
            version=5, type="hello", session=COUNTING, round=0, sender="client-1", sequence=200, link=3, received=9
        ),
        "88 a776657273696f6e 05 a474797065 a568656c6c6f a773657373696f6e "
        + COUNTING_HEX
        + "a5726f756e64 00 a673656e646572 a8636c69656e742d31 a873657175656e6365 ccc8 a46c696e6b 03 "
        + "a87265636569766564 09",
    ),
    (Hello(roster=COUNTING), f"81 a6726f73746572 {COUNTING_HEX}"),
    (Fetch(chunk=65536), "81 a56368756e6b ce00010000"),
    (
        MaskedInput(complaints=b"\x00", signatures=b""),
        "82 aa636f6d706c61696e7473 c40100 aa7369676e617475726573 c400",
    ),
    (EndRound(code=None, detail=""), "82 a4636f6465 c0 a664657461696c a0"),
    (
        Abort(code=Code.TIMEOUT, detail="é", culprit="client-1"),
        "83 a4636f6465 12 a664657461696c a2c3a9 a763756c70726974 a8636c69656e742d31",
    ),
    (
        StartRound(cohort=b"\x07", model=Blob(digest=COUNTING, size=2**33)),
        f"82 a6636f686f7274 c40107 a56d6f64656c 82 a6646967657374 {COUNTING_HEX} a473697a65 cf0000000200000000",
    ),
]


@cases(("structure", "expected"), GOLDEN)
def test_golden_bytes(structure: msgspec.Struct, expected: str) -> None:
    assert encode_structure(structure) == bytes.fromhex(expected)
    assert decode_structure(bytes.fromhex(expected), type(structure), limit=1000) == structure


TYPES = {
    "SESSION": "hello welcome resume end-round new-roster finish abort key-commit peer-key-commits key-contribution"
    " peer-key-contributions confirm-key peer-key-confirmations key-accepted key-complaint start-key end-key"
    " reencrypt-model keyed-model",
    "TRAIN": "start-round fetch-fixed fetch chunk",
    "ADVERTISE_KEYS": "advertise-keys",
    "SHARE_KEYS": "peer-keys share-keys",
    "MASKED_INPUT": "peer-shares masked-input fetch-vector vector-chunk",
    "ANSWER_COMPLAINTS": "peer-complaints answer-complaints",
    "CONSISTENCY_CHECK": "survivors confirm-survivors",
    "UNMASK": "unmask-request unmask-shares",
}


def test_every_message_has_its_name_and_phase() -> None:
    expected = {(name, Phase(phase)) for phase, names in TYPES.items() for name in names.split()}
    assert {(name, kind.PHASE) for name, kind in MESSAGES.items()} == expected
    with_array = {"chunk", "masked-input", "vector-chunk"}
    assert {name for name, kind in MESSAGES.items() if kind.PAYLOAD} == with_array
    assert set(TYPES) == {phase.value for phase in Phase}


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

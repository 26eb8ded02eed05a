"""A client contributes to a model once, unless the earlier round provably can never be opened."""

from typing import Any

import pytest

from tacit.protocol.aggregation_results import Contribution
from tacit.protocol.errors import Code, RemoteProtocolError
from tacit.protocol.messages import (
    MOST_PROMISES,
    Promise,
    VoidedRound,
    VoidRound,
)
from tacit.protocol.primitives import Label, SigningKey
from tacit.protocol.roster import Member, Roster
from tacit.protocol.voiding import Promises, check_model_is_fresh, check_promise, promise

KEYS = {name: SigningKey(bytes([number + 1]) * 32) for number, name in enumerate(("server", *"abcdef"))}
ROSTER = Roster(
    tuple(
        Member(
            name=name,
            role="server" if name == "server" else "client",
            curve_public=bytes([200 + position]) * 32,
            signing_public=key.public,
        )
        for position, (name, key) in enumerate(KEYS.items())
    )
)
SESSION, MODEL = b"s" * 32, b"m" * 32
EARLIER = Contribution(
    session=SESSION, round=3, model=MODEL, sharers=("a", "b", "c", "d", "e"), threshold=4, unmasked=False
)
"""Four of five open it: it is void once two promise."""


def given(name: str, *, session: bytes = SESSION, round: int = 3, signer: str | None = None) -> Promise:
    earlier = Contribution(session=session, round=round, model=MODEL, sharers=(), threshold=0, unmasked=False)
    return Promise(member=name, signature=promise(earlier, name, KEYS[signer or name]).signature)


def proof(*promises: Promise, session: bytes = SESSION, round: int = 3) -> VoidedRound:
    return VoidedRound(session=session, round=round, promises=promises)


def check(*voided: VoidedRound, model: bytes = MODEL, **changes: Any) -> None:
    fields = {name: getattr(EARLIER, name) for name in EARLIER.__struct_fields__}
    check_model_is_fresh(ROSTER, [Contribution(**(fields | changes))], model, voided)


@pytest.mark.parametrize("promisers", ["ab", "bc", "de", "abc", "abcde", "abf"])
def test_enough_promises_settle_it(promisers: str) -> None:
    check(proof(*map(given, promisers)))


def test_another_model_needs_no_proof() -> None:
    check(model=b"o" * 32)
    check(model=b"o" * 32, unmasked=True)
    check_model_is_fresh(ROSTER, [], MODEL, ())


@pytest.mark.parametrize(
    ("voided", "changes", "code"),
    [
        pytest.param((), {}, Code.REPEATED_MODEL, id="no proof"),
        pytest.param((proof(),), {}, Code.REPEATED_MODEL, id="no promises"),
        pytest.param((proof(given("a")),), {}, Code.REPEATED_MODEL, id="too few"),
        pytest.param((proof(given("a"), given("a")),), {}, Code.REPEATED_MODEL, id="one twice"),
        pytest.param((proof(given("a"), given("f")),), {}, Code.REPEATED_MODEL, id="one did not share"),
        pytest.param((proof(given("a"), given("server")),), {}, Code.REPEATED_MODEL, id="the server's own"),
        pytest.param((proof(given("a"), Promise(member="zoe", signature=bytes(64))),), {}, Code.REPEATED_MODEL,
                     id="a stranger's"),
        pytest.param((proof(given("a"), given("b")),), {"threshold": 3}, Code.REPEATED_MODEL, id="lower threshold"),
        pytest.param((proof(given("a"), given("b")),), {"unmasked": True}, Code.REPEATED_MODEL, id="unmasked here"),
        pytest.param((proof(given("a"), given("b"), round=4),), {}, Code.REPEATED_MODEL, id="proof of another round"),
        pytest.param((proof(given("a"), given("b"), session=MODEL),), {}, Code.REPEATED_MODEL, id="another session"),
        pytest.param((proof(given("a"), given("b", signer="c")),), {}, Code.SIGNATURE, id="forged"),
        pytest.param((proof(given("a"), given("b", round=4)),), {}, Code.SIGNATURE, id="promise of another round"),
        pytest.param((proof(given("a"), given("b", session=MODEL)),), {}, Code.SIGNATURE, id="of another session"),
        pytest.param((proof(given("a"), Promise(member="b", signature=b"")),), {}, Code.SIGNATURE, id="unsigned"),
    ],
)  # fmt: skip
def test_proofs_that_do_not_settle_it(voided: tuple[VoidedRound, ...], changes: dict[str, Any], code: Code) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        check(*voided, **changes)
    assert caught.value.code is code


def test_promises_of_former_members_do_not_count() -> None:
    sharers = (*EARLIER.sharers[:4], "gone")
    with pytest.raises(RemoteProtocolError, match="1 clients promise never to open round 3; 2 are needed"):
        check(proof(given("a"), Promise(member="gone", signature=bytes(64))), sharers=sharers)


def test_every_earlier_round_needs_its_proof() -> None:
    second = Contribution(session=SESSION, round=4, model=MODEL, sharers=("a", "b", "c"), threshold=3, unmasked=False)
    proofs = [proof(given("a"), given("b")), proof(given("c", round=4), round=4)]
    check_model_is_fresh(ROSTER, [EARLIER, second], MODEL, proofs)
    for kept in proofs:
        with pytest.raises(RemoteProtocolError, match="already contributed to an update of this model, in round"):
            check_model_is_fresh(ROSTER, [EARLIER, second], MODEL, [kept])


def test_a_promise_speaks_of_one_round_of_one_member() -> None:
    message = promise(EARLIER, "a", KEYS["a"])
    check_promise(ROSTER, "a", message, message.signature)
    assert (message.session, message.round) == (SESSION, 3)
    with pytest.raises(RemoteProtocolError):
        check_promise(ROSTER, "b", message, message.signature)
    signature = KEYS["a"].sign(Label.SIGN_SURVIVORS, SESSION, (3).to_bytes(4, "little"), b"a")
    with pytest.raises(RemoteProtocolError):
        check_promise(ROSTER, "a", message, signature)


def void(round: int, session: bytes = SESSION) -> VoidRound:
    return VoidRound(session=session, round=round, signature=b"signature")


def test_promises_are_counted_among_those_who_shared() -> None:
    promises = Promises()
    for name in "aabf":
        promises.add(name, void(3))
    promises.add("c", void(4))
    assert promises.count(SESSION, 3, ("a", "b", "c")) == 2
    assert promises.count(SESSION, 4, ("a", "b", "c")) == 1
    assert promises.count(MODEL, 3, ("a", "b", "c")) == 0
    assert [(proof.round, [p.member for p in proof.promises]) for proof in promises.proofs()] == [
        (3, ["a", "b", "f"]),
        (4, ["c"]),
    ]


def test_no_member_fills_the_memory_or_crowds_out_the_others() -> None:
    promises = Promises()
    for name in "ab":
        promises.add(name, void(1, MODEL))
    for round in range(3 * MOST_PROMISES):
        promises.add("f", void(round))
    assert sum(promises.count(SESSION, round, ("f",)) for round in range(3 * MOST_PROMISES)) == MOST_PROMISES
    assert promises.count(SESSION, 3 * MOST_PROMISES - 1, ("f",)) == 1
    proofs = promises.proofs()
    assert len(proofs) == MOST_PROMISES
    assert (proofs[0].session, proofs[0].round, len(proofs[0].promises)) == (MODEL, 1, 2)

"""A client contributes to a model once, unless the earlier round provably can never be opened."""

from typing import Any

import pytest

from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT, Blob
from tacit.protocol.core.primitives import Label, SigningKey
from tacit.protocol.core.roster import Member, Roster
from tacit.protocol.session.messages import MOST_PROMISES, Promise, StartRound, VoidedRound, VoidRound
from tacit.protocol.session.voiding import (
    LARGEST_PROOFS,
    Promises,
    check_model_is_fresh,
    check_promise,
    promise,
    promises_needed,
)
from tacit.protocol.sum.results import Contribution

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


@pytest.mark.parametrize(("corrupt", "promisers"), [(1, "abc"), (3, "abcde"), (4, "abcde")])
def test_more_promises_settle_it_where_some_may_be_broken(corrupt: int, promisers: str) -> None:
    check(proof(*map(given, promisers)), corrupt=corrupt)


def test_promises_leave_too_few_who_would_open_it() -> None:
    for sharers in range(1, 12):
        for threshold in range(1, sharers + 1):
            for corrupt in range(threshold):
                needed = promises_needed(sharers, threshold, corrupt)
                # The worst case: all corrupt sharers promise, and open it with the honest ones that did not.
                for promised in range(needed, sharers + 1):
                    honest = sharers - corrupt - max(promised - corrupt, 0)
                    assert honest + corrupt < threshold
                settles = [n for n in range(sharers + 1) if sharers - max(n - corrupt, 0) < threshold]
                assert needed == min([*settles, sharers])


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
        pytest.param((proof(given("a"), given("b")),), {"corrupt": 1}, Code.REPEATED_MODEL, id="one may break it"),
        pytest.param((proof(*map(given, "abcd")),), {"corrupt": 3}, Code.REPEATED_MODEL, id="three may break it"),
        pytest.param((proof(*map(given, "ab")), proof(*map(given, "ab"))), {}, Code.REPEATED_MODEL, id="round twice"),
        pytest.param((proof(*map(given, "abb")),), {}, Code.REPEATED_MODEL, id="enough, but one twice"),
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


def test_proofs_fit_a_message_however_many_members_there_are() -> None:
    promises = Promises()
    rounds = MOST_PROMISES
    for member in range(LARGEST_PROOFS // rounds + 1):
        for round in range(rounds):
            promises.add(f"{member:064}", VoidRound(session=SESSION, round=round, signature=bytes(64)))
    proofs = promises.proofs()
    assert len(proofs) == rounds - 1
    largest = StartRound(cohort=bytes(1250), model=Blob(digest=MODEL, size=2**40), voided=proofs)
    assert len(encode_structure(largest)) < BODY_LIMIT

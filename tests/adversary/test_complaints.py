"""Complaints about shares: a false one costs nobody anything, a right one its accused, and no server learns by them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Message
from tacit.protocol.core.primitives import SIGNATURE_BYTES
from tacit.protocol.core.roster import encode_members
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.agreement import complaint_signed, packet_signed
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AnswerComplaints,
    MaskedInput,
    PeerComplaints,
    PeerKeys,
    PeerShares,
    ShareKeys,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sum.sharing import BOTH_BYTES, PACKET_BYTES
from tacit.protocol.sum.states import ClientState, SumLabel
from tacit.secagg.graph import GraphParameters
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
Change = Callable[[MemorySum, Any], Message]
ACCUSED = 2
SIZES = cases("clients", [3, 4, 5, 10])
modes = cases("active", [True, False])


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def complaint(run: MemorySum, holder: int, *owners: int, sharing: bytes | None = None) -> bytes:
    """The signatures of a holder over complaints of these owners, rightly made."""
    name = run.agreement.cohort[holder]
    sharing = run.clients[name].data.sharing if sharing is None else sharing
    signed = [complaint_signed(sharing, owner=owner, holder=holder) for owner in owners]
    active = run.agreement.active
    return b"".join(run.signing[name].sign(SumLabel.SIGN_COMPLAINT, *parts) for parts in signed if active)


def without_answers(request: UnmaskRequest) -> UnmaskRequest:
    return msgspec.structs.replace(request, answered=bytes(len(request.answered)), answers=b"")


def complaining(run: MemorySum, accused: dict[int, tuple[int, ...]]) -> Callable[[Delivery], list[Delivery]]:
    """These members complain of those owners for no reason, and do not care about the answers."""

    def hook(delivery: Delivery) -> list[Delivery]:
        places = run.agreement.places
        if isinstance(delivery.message, MaskedInput) and (holder := places[delivery.sender]) in accused:
            owners = accused[holder]
            signatures = complaint(run, holder, *owners)
            said = MaskedInput(complaints=encode_members(owners, run.agreement.size), signatures=signatures)
            return [replace(delivery, message=said)]
        if isinstance(delivery.message, UnmaskRequest) and places[delivery.receiver] in accused:
            return [replace(delivery, message=without_answers(delivery.message))]
        return [delivery]

    return hook


def told_and_said(run: MemorySum, kind: type[Message]) -> list[tuple[str, str]]:
    return [(d.sender, d.receiver) for d in run.log if isinstance(d.message, kind)]


def others(clients: int, member: int) -> tuple[int, ...]:
    return tuple(other for other in range(clients) if other != member)


def told_answers(run: MemorySum) -> list[str]:
    return [d.receiver for d in run.log if isinstance(d.message, UnmaskRequest) and d.message.answers]


FALSE: dict[str, Callable[[int, int], dict[int, tuple[int, ...]]]] = {
    "one of one": lambda clients, most: {1: (ACCUSED,)},
    "one of all others": lambda clients, most: {1: others(clients, 1)},
    "as many as may lie of one": lambda clients, most: dict.fromkeys(others(clients, ACCUSED)[:most], (ACCUSED,)),
    "two of each other": lambda clients, most: {0: (1,), 1: (0,)},
}


@pytest.mark.threat("client/false-complaint")
@modes
@SIZES
@cases("name", FALSE)
def test_a_false_complaint_costs_nobody_anything(
    name: str, clients: int, active: bool, summed: ExactSum, sums: Any
) -> None:
    run = memory_sum(clients, active=active)
    run.hook = complaining(run, FALSE[name](clients, run.agreement.most_complaints))
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert run.server.drops == []
    assert told_and_said(run, AnswerComplaints)
    assert sums.revealed(run) == [run.agreement.cohort]
    sums.check_next_round(run)


@pytest.mark.threat("client/false-complaint")
def test_all_other_holders_may_complain_where_they_may_all_be_answered(summed: ExactSum, sums: Any) -> None:
    """Of two members, with a server that follows the protocol, one."""
    run = memory_sum(2, active=False)
    assert run.agreement.most_complaints == 1
    run.hook = complaining(run, {1: (0,)})
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert told_and_said(run, AnswerComplaints) == [("c0", "server")]
    sums.check_next_round(run)


@pytest.mark.threat("client/false-complaint")
@cases("clients", [4, 5, 10])
@cases("kind", ["share-keys", "masked-input", "confirm-survivors", "unmask-shares"])
def test_a_false_complaint_and_a_dropout(kind: str, clients: int, summed: ExactSum, sums: Any) -> None:
    run = memory_sum(clients, active=True)
    lying = complaining(run, {1: (ACCUSED,)})

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind) == ("c3", kind):
            run.kill("c3")
            return []
        return lying(delivery)

    run.hook = hook
    run.run()
    present = kind in ("confirm-survivors", "unmask-shares")
    assert summed(run).survivors == tuple(name for name in run.agreement.cohort if name != "c3" or present)
    assert [(drop.member, drop.code) for drop in run.server.drops] == [("c3", Code.LEFT)]
    sums.check_next_round(run)


@pytest.mark.threat("client/false-complaint")
@cases("clients", [3, 4, 5, 10])
@cases("lost", [True, False])
def test_an_accused_that_does_not_answer_is_not_to_blame(lost: bool, clients: int, audit: Audit, sums: Any) -> None:
    run = memory_sum(clients, active=True)
    lying = complaining(run, {1: (ACCUSED,)})

    def hook(delivery: Delivery) -> list[Delivery]:
        if isinstance(delivery.message, AnswerComplaints):
            if lost:
                run.kill(delivery.sender)
            return []
        return lying(delivery)

    run.hook = hook
    run.run()
    (drop,) = (drop for drop in run.server.drops if drop.member != "c1")
    code = Code.LEFT if lost else Code.TIMEOUT
    assert (drop.member, drop.phase, drop.code, drop.included) == (f"c{ACCUSED}", "ANSWER_COMPLAINTS", code, True)
    # Neither the accused nor who complains returns a share of its seed: one is too few but among ten.
    outcome = audit(run)
    assert isinstance(outcome, Summed) if clients == 10 else isinstance(outcome, ServerAborted)
    assert isinstance(outcome, Summed) or outcome.culprit == ""
    sums.check_next_round(run)


@pytest.mark.threat("client/false-complaint")
@cases("clients", [4, 5, 10])
def test_who_complains_falsely_and_goes_is_a_dropout(clients: int, summed: ExactSum, sums: Any) -> None:
    run = memory_sum(clients, active=True)
    lying = complaining(run, {1: (ACCUSED,)})

    def hook(delivery: Delivery) -> list[Delivery]:
        if isinstance(delivery.message, PeerComplaints):
            run.kill("c1")
        return lying(delivery)

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert [(drop.member, drop.phase, drop.code) for drop in run.server.drops] == [
        ("c1", "ANSWER_COMPLAINTS", Code.LEFT)
    ]
    sums.check_next_round(run)


@pytest.mark.threat("client/false-complaint")
@modes
@cases("length", [5, 400_000])
def test_a_false_complaint_in_a_regular_graph(active: bool, length: int, summed: ExactSum, sums: Any) -> None:
    run = memory_sum(9, active=active, parameters=GraphParameters(6, 5), length=length)
    run.start()
    run.advance(lambda: run.clients["c0"].state is ClientState.AWAIT_PEER_SHARES)
    holder, *_ = run.clients["c0"].data.neighbourhood.holders
    run.hook = complaining(run, {holder: (0,)})
    run.settle()
    assert summed(run).survivors == run.agreement.cohort
    assert run.server.drops == []
    assert told_and_said(run, AnswerComplaints) == [("c0", "server")]
    sums.check_next_round(run)


PLACES = {"commitment to the key share": 0, "commitment to the seed share": 32, "sealed shares": 64, "tag": 151}


@pytest.mark.threat("client/commitment-mismatch")
@modes
@SIZES
@cases("place", PLACES)
def test_an_owner_of_a_bad_packet_answers_or_is_out_by_proof(
    place: str, clients: int, active: bool, audit: Audit, spoil: Any, sums: Any
) -> None:
    run = memory_sum(clients, active=active)
    run.hook = lambda delivery: spoil(run, delivery, {ACCUSED: (1,)}, PLACES[place])
    run.run()
    outcome, name = audit(run), f"c{ACCUSED}"
    if not place.startswith("commitment"):
        # What it committed to is what it answers: the holder uses that.
        assert isinstance(outcome, Summed)
        assert run.server.drops == []
        assert told_answers(run) == ["c1"]
    else:
        (drop,) = run.server.drops
        assert (drop.member, drop.phase, drop.code, drop.included) == (name, "ANSWER_COMPLAINTS", Code.SHARES, True)
        enough = clients - 2 >= run.agreement.parameters.threshold
        assert isinstance(outcome, Summed) if enough else isinstance(outcome, ServerAborted)
        assert isinstance(outcome, Summed) or (outcome.code, outcome.culprit) in {
            (Code.SHARES, name),
            (Code.THRESHOLD, ""),
        }
        assert told_answers(run) == []
    sums.check_next_round(run)


@pytest.mark.threat("client/commitment-mismatch")
@modes
@cases("clients", [4, 5, 10])  # Of three, two may lie about the third.
def test_who_sends_bad_packets_to_more_than_may_lie_is_out(
    clients: int, active: bool, audit: Audit, spoil: Any, sums: Any
) -> None:
    run = memory_sum(clients, active=active)
    holders = others(clients, ACCUSED)[: run.agreement.most_complaints + 1]
    assert len(holders) == run.agreement.most_complaints + 1
    run.hook = lambda delivery: spoil(run, delivery, {ACCUSED: holders})
    run.run()
    (drop,) = run.server.drops
    assert (drop.member, drop.phase, drop.code) == (f"c{ACCUSED}", "MASKED_INPUT", Code.SHARES)
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) in {(Code.SHARES, f"c{ACCUSED}"), (Code.THRESHOLD, "")}
    assert told_and_said(run, PeerComplaints) == []
    sums.check_next_round(run)


ANSWERS: dict[str, Callable[[bytes], bytes]] = {
    "another share of the key": lambda shares: flipped(shares, 0),
    "another share of the seed": lambda shares: flipped(shares, 36),
    "swapped": lambda shares: shares[36:] + shares[:36],
    "cut": lambda shares: shares[:-1],
    "surplus": lambda shares: shares + bytes(BOTH_BYTES),
    "none": lambda shares: b"",
}


@pytest.mark.threat("client/commitment-mismatch")
@modes
@cases("name", ANSWERS)
def test_other_answers_are_proof(name: str, active: bool, summed: ExactSum, sums: Any) -> None:
    run = memory_sum(10, active=active)
    lying = complaining(run, {1: (ACCUSED,)})

    def hook(delivery: Delivery) -> list[Delivery]:
        if isinstance(delivery.message, AnswerComplaints):
            return [replace(delivery, message=AnswerComplaints(shares=ANSWERS[name](delivery.message.shares)))]
        return lying(delivery)

    run.hook = hook
    run.run()
    (answered,) = (drop for drop in run.server.drops if drop.member == f"c{ACCUSED}")
    assert (answered.phase, answered.code) == ("ANSWER_COMPLAINTS", Code.SHARES)
    assert summed(run).survivors == run.agreement.cohort
    sums.check_next_round(run)


COMPLAINTS: dict[str, tuple[Callable[[MemorySum], tuple[tuple[int, ...], bytes]], Code]] = {
    "no signature": (lambda run: ((2,), b""), Code.SIGNATURE),
    "a bent signature": (lambda run: ((2,), flipped(complaint(run, 1, 2), 0)), Code.SIGNATURE),
    "a signature of another": (lambda run: ((2,), complaint(run, 0, 2)), Code.SIGNATURE),
    "a signature over another owner": (lambda run: ((2,), complaint(run, 1, 3)), Code.SIGNATURE),
    "a signature of another sum": (lambda run: ((2,), complaint(run, 1, 2, sharing=bytes(32))), Code.SIGNATURE),
    "a signature too many": (lambda run: ((), complaint(run, 1, 2)), Code.SIGNATURE),
    "of itself": (lambda run: ((1,), complaint(run, 1, 1)), Code.MEMBERS),
}


def check_complaints_that_are_not_signed_are_refused(name: str, summed: ExactSum, cheats: Any) -> None:
    made, code = COMPLAINTS[name]

    def change(run: MemorySum, message: MaskedInput) -> MaskedInput:
        owners, signatures = made(run)
        return MaskedInput(complaints=encode_members(owners, 5), signatures=signatures)

    run = cheats.play(True, MaskedInput, change)
    assert summed(run).survivors == ("c0", "c2", "c3", "c4")
    cheats.caught(run, "MASKED_INPUT", code)
    assert told_and_said(run, PeerComplaints) == []


@pytest.mark.threat("client/false-complaint")
def test_complaints_that_are_not_signed_are_refused_and_signed_ones_in_semi_honest_mode(
    summed: ExactSum, cheats: Any
) -> None:
    for name in COMPLAINTS:
        check_complaints_that_are_not_signed_are_refused(name, summed, cheats)

    said = MaskedInput(complaints=encode_members((2,), 5), signatures=bytes(SIGNATURE_BYTES))
    run = cheats.play(False, MaskedInput, lambda run, message: said)
    assert summed(run).survivors == ("c0", "c2", "c3", "c4")
    cheats.caught(run, "MASKED_INPUT", Code.SIGNATURE)


@pytest.mark.threat("server/bends-shares")
@SIZES
@cases("place", ["packets", "signatures"])
def test_a_server_that_bends_the_packets_of_an_owner_learns_no_share_of_it(
    place: str, clients: int, audit: Audit, sums: Any
) -> None:
    """It bends as many as the threshold; their holders end the round, and nobody tells anything about them."""
    run = memory_sum(clients, active=True)
    threshold, size = (
        run.agreement.parameters.threshold,
        {"packets": PACKET_BYTES, "signatures": SIGNATURE_BYTES}[place],
    )
    deceived = [member for member in range(clients) if member != ACCUSED][:threshold]

    def hook(delivery: Delivery) -> list[Delivery]:
        message = delivery.message
        if isinstance(message, PeerShares) and run.agreement.places[delivery.receiver] in deceived:
            bent = flipped(getattr(message, place), ACCUSED * size + 60)
            return [replace(delivery, message=msgspec.structs.replace(message, **{place: bent}))]
        return [delivery]

    run.hook = hook
    run.run()
    for member in deceived:
        (aborted,) = run.outcome(ClientAborted, f"c{member}")[:1]
        assert (aborted.code, aborted.culprit) == (Code.SIGNATURE, "server")
    assert isinstance(audit(run), ServerAborted)
    said = {d.kind for d in run.log if d.receiver == "server"}
    assert not said & {"answer-complaints", "unmask-shares"}
    assert sums.revealed(run) == []
    sums.check_next_round(run)


def invented(run: MemorySum, *holders: int, **others: Any) -> PeerComplaints:
    """Complaints of c0 that these members signed: who is with the server does."""
    signatures = b"".join(complaint(run, holder, 0, **others) for holder in holders)
    return PeerComplaints(holders=encode_members(holders, run.agreement.size), signatures=signatures)


def unsigned(run: MemorySum, *holders: int, signature: bytes = bytes(SIGNATURE_BYTES)) -> PeerComplaints:
    return PeerComplaints(holders=encode_members(holders, run.agreement.size), signatures=signature * len(holders))


def of_another_round(run: MemorySum) -> bytes:
    other = MemorySum(replace(run.agreement, round=1), run.signing, run.vectors, run.streams)
    other.run()
    return other.agreement.sharing_digest(bytes(32), b"\x1f")


INVENTED: dict[str, tuple[Callable[[MemorySum], PeerComplaints], Code]] = {
    "without a signature": (lambda run: unsigned(run, 1, signature=b""), Code.SIGNATURE),
    "with a forged signature": (lambda run: unsigned(run, 1), Code.SIGNATURE),
    "one of two is forged": (
        lambda run: PeerComplaints(
            holders=encode_members((1, 2), 5), signatures=complaint(run, 1, 0) + bytes(SIGNATURE_BYTES)
        ),
        Code.SIGNATURE,
    ),
    "of another owner": (
        lambda run: PeerComplaints(holders=encode_members((1,), 5), signatures=complaint(run, 1, 2)),
        Code.SIGNATURE,
    ),
    "of another holder": (
        lambda run: PeerComplaints(holders=encode_members((1,), 5), signatures=complaint(run, 2, 0)),
        Code.SIGNATURE,
    ),
    "of another round": (lambda run: invented(run, 1, sharing=of_another_round(run)), Code.SIGNATURE),
    "a signature too many": (
        lambda run: PeerComplaints(holders=encode_members((1,), 5), signatures=complaint(run, 1, 0, 2)),
        Code.SIGNATURE,
    ),
    "of itself": (lambda run: invented(run, 0), Code.MEMBERS),
    "of somebody who is not there": (lambda run: PeerComplaints(holders=b"\xff", signatures=b""), Code.MEMBERS),
    "of more than may lie": (lambda run: invented(run, 1, 2, 3), Code.THRESHOLD),
}


@pytest.mark.threat("server/invents-complaints")
def test_invented_complaints_are_not_answered_and_others_once(sums: Any) -> None:
    for name in INVENTED:
        run = memory_sum(5, active=True)
        server = sums.Server(run)
        message, code = INVENTED[name]
        (abort,) = server.say("c0", message(run))
        assert (abort.code, abort.culprit) == (code, "server")
        assert server.say("c0", invented(run, 1)) == []
        assert run.clients["c0"].state is ClientState.ABORTED
        sums.check_next_round(run)

    run = memory_sum(5, active=True)
    server = sums.Server(run)
    (answer,) = server.say("c0", invented(run, 1))
    held = run.clients["c1"].data.held[0]
    # The one who signed knew as much.
    assert answer == AnswerComplaints(shares=held.key + held.seed)
    (abort,) = server.say("c0", invented(run, 2))
    assert (abort.code, abort.culprit) == (Code.MEMBERS, "server")
    sums.check_next_round(run)


@pytest.mark.threat("server/invents-complaints")
def test_with_all_complaints_that_are_answered_the_server_has_no_vector(sums: Any) -> None:
    """Of everybody as many holders as may lie complain, for the server; then it splits the others."""
    run = memory_sum(5, active=True)
    server = sums.Server(run)
    for owner in range(5):
        liars = others(5, owner)[: run.agreement.most_complaints]
        signatures = b"".join(complaint(run, liar, owner) for liar in liars)
        message = PeerComplaints(holders=encode_members(liars, 5), signatures=signatures)
        assert isinstance(server.say(f"c{owner}", message)[0], AnswerComplaints)
    server.split({name: encode_members((0, 1, 2, 3), 5) for name in run.agreement.cohort[:4]})
    assert sums.revealed(run) == [("c0", "c1", "c2", "c3")]
    sums.check_next_round(run)


Request = Callable[[dict[int, bytes], UnmaskRequest], UnmaskRequest]


def answering(*owners: int, change: Callable[[bytes], bytes] = bytes) -> Request:
    def made(answered: dict[int, bytes], request: UnmaskRequest) -> UnmaskRequest:
        shares = b"".join(answered.get(owner, bytes(BOTH_BYTES)) for owner in owners)
        return msgspec.structs.replace(request, answered=encode_members(owners, 5), answers=change(shares))

    return made


BAD_ANSWERS: dict[str, tuple[Request, Code]] = {
    "to no complaint": (answering(2, 3), Code.MEMBERS),
    "of itself": (answering(0), Code.MEMBERS),
    "of nobody there": (lambda answered, request: msgspec.structs.replace(request, answered=b"\xff"), Code.MEMBERS),
    "zeros": (answering(2, change=lambda shares: bytes(BOTH_BYTES)), Code.SHARES),
    "first bent": (answering(2, change=lambda shares: flipped(shares, 0)), Code.SHARES),
    "last bent": (answering(2, change=lambda shares: flipped(shares, BOTH_BYTES - 1)), Code.SHARES),
    "swapped": (answering(2, change=lambda shares: shares[36:] + shares[:36]), Code.SHARES),
    "cut": (answering(2, change=lambda shares: shares[:-1]), Code.SHARES),
}


@pytest.mark.threat("server/invents-complaints")
@modes
@cases("name", BAD_ANSWERS)
def test_invented_answers_are_refused(name: str, active: bool, summed: ExactSum, spoil: Any, sums: Any) -> None:
    """c2's seal for c0 is bent by c2 itself, so that c0 complains; the server makes up what c2 answers."""
    run = memory_sum(6, active=active)
    (change, code), answered = BAD_ANSWERS[name], dict[int, bytes]()

    def hook(delivery: Delivery) -> list[Delivery]:
        if isinstance(delivery.message, AnswerComplaints):
            answered[run.agreement.places[delivery.sender]] = delivery.message.shares
        if isinstance(delivery.message, UnmaskRequest) and delivery.receiver == "c0":
            return [replace(delivery, message=change(answered, delivery.message))]
        return spoil(run, delivery, {2: (0,)})  # type: ignore[no-any-return]

    run.hook = hook
    run.run()
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert (aborted.code, aborted.culprit) == (code, "server")
    assert summed(run).survivors == run.agreement.cohort
    assert ("c0", "server") not in told_and_said(run, UnmaskShares)
    sums.check_next_round(run)


@pytest.mark.threat("client/false-complaint")
@pytest.mark.threat("client/commitment-mismatch")
def test_over_a_session_only_who_lies_provably_is_barred() -> None:
    """Round 1: client-1 complains of client-2 for no reason. Round 2: client-2 commits to other shares. Round 3."""
    one, keys = MemoryFederation(small_configuration(5), 5, rounds=3), list[PeerKeys]()

    def hook(parcel: Parcel) -> list[Parcel]:
        said, link = parcel.message, (one.server.round, parcel.sender, parcel.receiver)
        client = one.clients["client-1"].sum
        if link == (1, "client-1", SERVER) and isinstance(said, MaskedInput) and client is not None:
            parts = complaint_signed(client.data.sharing, owner=2, holder=1)
            signature = one.signing["client-1"].sign(SumLabel.SIGN_COMPLAINT, *parts)
            return [altered(parcel, message=MaskedInput(complaints=b"\x04", signatures=signature))]
        if link == (1, SERVER, "client-1") and isinstance(said, UnmaskRequest):
            return [altered(parcel, message=without_answers(said))]
        if link == (2, SERVER, "client-2") and isinstance(said, PeerKeys):
            keys.append(said)
        client = one.clients["client-2"].sum
        if link == (2, "client-2", SERVER) and isinstance(said, ShareKeys) and client is not None:
            packet = flipped(said.packets, PACKET_BYTES)[PACKET_BYTES : 2 * PACKET_BYTES]
            parts = packet_signed(client.agreement, keys[0].digest, owner=2, holder=1, packet=packet)
            signature = one.signing["client-2"].sign(SumLabel.SIGN_SHARES, *parts)
            packets = said.packets[:PACKET_BYTES] + packet + said.packets[2 * PACKET_BYTES :]
            signatures = said.signatures[:SIGNATURE_BYTES] + signature + said.signatures[2 * SIGNATURE_BYTES :]
            lie = msgspec.structs.replace(said, packets=packets, signatures=signatures)
            return [altered(parcel, message=lie)]
        return [parcel]

    one.hook = hook
    one.run()
    first, second, third = one.outcome(RoundDone)
    everybody = one.roster.clients
    assert (first.survivors, first.dropped) == (everybody, ())
    assert (second.code, second.culprit) == (Code.SHARES, "client-2")
    assert third.survivors == tuple(name for name in everybody if name != "client-2")
    assert one.server.presence.barred == {"client-2"}
    for done in (first, third):
        np.testing.assert_array_equal(done.total, one.plain_sum(done))

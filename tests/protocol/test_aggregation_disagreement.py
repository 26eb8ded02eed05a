"""A server that tells different clients different things learns nothing more, or nothing at all."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.protocol.adverts import adverts_digest, check_advert, split_records
from tacit.protocol.aggregation_client import AggregationClient
from tacit.protocol.aggregation_results import ClientAborted, ServerAborted, Summed
from tacit.protocol.aggregation_server import AggregationServer
from tacit.protocol.aggregation_tables import ClientState
from tacit.protocol.agreement import Agreement
from tacit.protocol.codec import VERSION, Envelope, Packet, encode_structure
from tacit.protocol.errors import Code, RemoteProtocolError
from tacit.protocol.machine import Output, Report, Send
from tacit.protocol.members import decode_members, encode_members
from tacit.protocol.messages import (
    AdvertiseKeys,
    ConfirmSurvivors,
    Message,
    PeerKeys,
    PeerShares,
    Survivors,
    UnmaskRequest,
    UnmaskShares,
)
from tacit.protocol.sharing import PACKET_BYTES
from tacit.simulate.memory import Delivery, MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
VICTIM = "c0"
modes = pytest.mark.parametrize("active", [True, False], ids=["active", "semi-honest"])


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


def packet(run: MemorySum, message: Message) -> Packet:
    envelope = Envelope(
        version=VERSION,
        type=message.TYPE,
        session=run.agreement.session,
        round=run.agreement.round,
        sender="server",
        sequence=0,
    )
    return Packet(envelope, encode_structure(message), None)


def reply(outputs: list[Output], kind: type[Any]) -> Any:
    return next((o.message for o in outputs if isinstance(o, Send) and isinstance(o.message, kind)), None)


@modes
def test_a_second_request_to_unmask_is_not_answered(active: bool, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    run.run()
    summed(run)
    again = next(d.message for d in run.log if d.receiver == VICTIM and isinstance(d.message, UnmaskRequest))
    others = msgspec.structs.replace(again, survivors=bitmap(0, 1, 2, 3))
    for request in (again, others):
        outputs = run.clients[VICTIM].receive("server", packet(run, request), run.now)
        assert [type(output) for output in outputs] == [Report]
    assert run.clients[VICTIM].state is ClientState.DONE


@pytest.mark.parametrize("told_less", list(product((False, True), repeat=CLIENTS - 1)))
@modes
def test_different_survivors_for_different_clients(active: bool, told_less: tuple[bool, ...]) -> None:
    # The server has all vectors, tells some that c4 survived and others that it dropped out, and passes on every
    # signature that fits.
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    run.start()
    after = ClientState.AWAIT_SURVIVORS
    assert run.advance(lambda: all(client.state is after for client in run.clients.values()))
    told = {
        name: bitmap(0, 1, 2, 3) if less else bitmap(0, 1, 2, 3, 4)
        for name, less in zip(run.agreement.cohort, (*told_less, False), strict=True)
    }
    threshold = run.agreement.parameters.threshold
    signatures: dict[str, bytes] = {}
    if active:
        for name, survivors in told.items():
            outputs = run.clients[name].receive("server", packet(run, Survivors(survivors=survivors)), run.now)
            signatures[name] = reply(outputs, ConfirmSurvivors).signature
    kinds: dict[str, list[str]] = {"seed": [], "key": []}
    for name, survivors in told.items():
        held = run.clients[name]._held[4]
        signers = [other for other in signatures if told[other] == survivors]
        if bitmap(4)[0] & ~survivors[0]:
            signers = [signer for signer in signers if signer != "c4"]
        request = UnmaskRequest(
            survivors=survivors,
            signers=bitmap(*(run.agreement.cohort.index(signer) for signer in signers)),
            signatures=b"".join(signatures[signer] for signer in signers),
        )
        answer = reply(run.clients[name].receive("server", packet(run, request), run.now), UnmaskShares)
        assert (answer is not None) == (not active or len(signers) >= threshold)
        if answer is not None:
            share = answer.shares[-36:]
            kinds["seed" if share == held.seed else "key"].append(name)
            assert share == (held.key if survivors == bitmap(0, 1, 2, 3) else held.seed)
    if active:
        assert not kinds["seed"] or not kinds["key"]
    assert min(len(names) for names in kinds.values()) < threshold


OTHER_HASH = bytes(range(32))
DIFFERENT: dict[str, Any] = {
    "session": OTHER_HASH,
    "round": 1,
    "roster": OTHER_HASH,
    "configuration": OTHER_HASH,
    "model": OTHER_HASH,
    "cohort": ("c0", "c1", "c2", "c3", "cX"),
    "neighbours": 3,
    "threshold": 5,
}


def told_otherwise(run: MemorySum, field: str) -> Agreement:
    """The agreement of a client whom the server told something else, which that client believes."""
    value = DIFFERENT[field]
    if field in ("neighbours", "threshold"):
        parameters = replace(run.agreement.parameters, **{field: value})
        return replace(run.agreement, parameters=parameters)
    return replace(run.agreement, **{field: value})


def believe(run: MemorySum, agreement: Agreement) -> None:
    run.clients[VICTIM] = AggregationClient(
        agreement, VICTIM, signing=run.signing[VICTIM], vector=run.vectors[VICTIM], entropy=run.entropy
    )


@pytest.mark.parametrize("field", DIFFERENT)
def test_active_clients_refuse_who_was_told_something_else(field: str, summed: ExactSum) -> None:
    run = memory_sum(CLIENTS, active=True, seed=b"lies")
    other = told_otherwise(run, field)
    assert other.context != run.agreement.context
    believe(run, other)
    run.run()
    assert summed(run).survivors == ("c1", "c2", "c3", "c4")
    (drop,) = run.server.drops
    assert (drop.member, drop.phase, drop.code) == (VICTIM, "ADVERTISE_KEYS", Code.SIGNATURE)
    # A server that lets it pass only brings the others to refuse.
    advert = next(d.message for d in run.log if d.sender == VICTIM and isinstance(d.message, AdvertiseKeys))
    with pytest.raises(RemoteProtocolError, match="SIGNATURE"):
        check_advert(run.agreement, 0, advert)


@pytest.mark.parametrize("helpful", [False, True], ids=["plain", "server mends the digest"])
@pytest.mark.parametrize("field", DIFFERENT)
def test_semi_honest_clients_cannot_sum_with_who_was_told_something_else(
    field: str, helpful: bool, audit: Audit
) -> None:
    run = memory_sum(CLIENTS, active=False, seed=b"lies")
    other = told_otherwise(run, field)
    believe(run, other)

    def hook(delivery: Delivery) -> list[Delivery]:
        if helpful and delivery.receiver == VICTIM and isinstance(delivery.message, PeerKeys):
            included = decode_members(delivery.message.included, CLIENTS)
            adverts = split_records(run.agreement, delivery.message.adverts, included)
            message = msgspec.structs.replace(delivery.message, digest=adverts_digest(other, adverts))
            return [replace(delivery, message=message)]
        return [delivery]

    run.hook = hook
    run.run()
    outcome = audit(run)
    if helpful:
        # Not even the shares open: nobody can ever take the victim's masks off.
        assert isinstance(outcome, ServerAborted)
        assert (outcome.code, outcome.culprit) == (Code.SHARES, VICTIM)
    else:
        assert isinstance(outcome, Summed)
        assert outcome.survivors == ("c1", "c2", "c3", "c4")
        (aborted,) = run.outcome(ClientAborted, VICTIM)
        assert (aborted.code, "digest" in aborted.detail) == (Code.KEYS, True)


@pytest.mark.parametrize("field", DIFFERENT)
def test_masks_do_not_cancel_between_clients_told_different_things(field: str) -> None:
    run = memory_sum(CLIENTS, active=False, seed=b"lies")
    agreements = [run.agreement, told_otherwise(run, field)]
    salts = {agreement.sharing_digest(OTHER_HASH, bitmap(*range(CLIENTS))) for agreement in agreements}
    assert len(salts) == 2


def test_other_sharers_or_keys_are_another_salt() -> None:
    agreement = memory_sum(CLIENTS, active=False).agreement
    salts = {
        agreement.sharing_digest(digest, sharers)
        for digest in (bytes(32), OTHER_HASH)
        for sharers in (bitmap(0, 1, 2), bitmap(0, 1, 3))
    }
    assert len(salts) == 4


def test_different_sharers_for_one_client_are_noise(summed: ExactSum) -> None:
    # In semi-honest mode one client is told that c4 did not share; its masks then cancel with nobody's.
    run = memory_sum(CLIENTS, active=False, seed=b"lies")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver == VICTIM and isinstance(delivery.message, PeerShares):
            four = bitmap(0, 1, 2, 3)
            packets = delivery.message.packets[: 4 * PACKET_BYTES]
            return [replace(delivery, message=PeerShares(sharers=four, owners=four, packets=packets))]
        if delivery.receiver == VICTIM and isinstance(delivery.message, UnmaskRequest):
            return [replace(delivery, message=msgspec.structs.replace(delivery.message, survivors=bitmap(0, 1, 2, 3)))]
        return [delivery]

    run.hook = hook
    server: AggregationServer = run.run()
    (outcome,) = run.outcome(Summed)
    difference = outcome.total - run.plain_sum(outcome.survivors)
    # Each of the five words is right by chance once in 2^32.
    assert np.count_nonzero(difference) == run.agreement.length
    assert [(drop.member, drop.code) for drop in server.drops] == [(VICTIM, Code.SHARES)]

"""Secure sums in which nobody knows everybody: the ring of semi-honest mode, the chosen graph of active mode."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from tacit.protocol.core.errors import Code
from tacit.protocol.core.roster import decode_members, encode_members
from tacit.protocol.sum.agreement import Advert, Graph, choose_holders, read_choices, sign_advert, split_adverts
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import (
    AdvertiseKeys,
    MaskedInput,
    PeerKeys,
    ShareKeys,
    Survivors,
    UnmaskRequest,
)
from tacit.secagg.graph import GraphParameters, regular_parameters, ring_order
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.secagg.harary import ring_neighbours
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
RING = regular_parameters(25, colluders=5, dropouts=2, active=False)
CHOSEN = regular_parameters(40, colluders=2, dropouts=2, active=True)
VICTIM = "c3"


def sparse(active: bool, **arguments: Any) -> MemorySum:
    clients, parameters = (40, CHOSEN) if active else (25, RING)
    assert parameters.neighbours < clients - 1
    return memory_sum(clients, active=active, parameters=parameters, seed=b"sparse b", **arguments)


def adverts_told(run: MemorySum, receiver: str) -> tuple[PeerKeys, dict[int, Advert]]:
    message = next(d.message for d in run.log if d.receiver == receiver and isinstance(d.message, PeerKeys))
    included = decode_members(message.included, run.agreement.size)
    return message, split_adverts(run.agreement, message.adverts, included)


modes = cases("active", [True, False])


@modes
def test_the_sum_is_exact_and_everybody_knows_only_neighbours(active: bool, summed: ExactSum) -> None:
    run = sparse(active)
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    size, neighbours = run.agreement.size, run.agreement.parameters.neighbours
    told = {member: adverts_told(run, f"c{member}") for member in range(size)}
    holders = {
        int(d.sender[1:]): decode_members(d.message.holders, size) for d in run.log if isinstance(d.message, ShareKeys)
    }
    if active:
        sent = {d.sender: d.message.choices for d in run.log if isinstance(d.message, AdvertiseKeys)}
        named = {member: tuple(np.frombuffer(sent[f"c{member}"], "<u2").tolist()) for member in range(size)}
        assert all(len(set(chosen)) == neighbours and member not in chosen for member, chosen in named.items())
    else:
        digests = {message.digest for message, _ in told.values()}
        assert len(digests) == 1
        edges = [{(a, b) for b in others} for a, others in ((m, holders[m]) for m in holders)]
        assert all((b, a) in edges[b] for pairs in edges for a, b in pairs)
        named = holders
    for member, (_, adverts) in told.items():
        assert holders[member] == named[member]
        known = {member, *named[member], *(other for other in named if member in named[other])}
        assert set(adverts) == known
        assert len(known) < size


def test_the_ring_is_the_harary_graph_on_an_order_that_follows_from_the_transcript() -> None:
    # The order is not observable, but the graph is: it must be some Harary graph, and another in another round.
    graphs = []
    for number in (0, 1):
        run = sparse(False, round=number)
        run.run()
        holders = {
            int(d.sender[1:]): decode_members(d.message.holders, 25)
            for d in run.log
            if isinstance(d.message, ShareKeys)
        }
        assert {len(others) for others in holders.values()} == {RING.neighbours}
        graphs.append(holders)
    assert graphs[0] != graphs[1]
    reference = ring_neighbours(ring_order(np.arange(25), bytes(32)), RING.neighbours)

    def common(graph: dict[int, tuple[int, ...]]) -> list[int]:
        """How many neighbours pairs of neighbours share: the same on every ring."""
        return sorted(len(set(graph[a]) & set(graph[b])) for a in graph for b in graph[a])

    assert common(graphs[0]) == common(graphs[1]) == common(reference)


def test_the_ring_depends_on_agreement_and_adverts() -> None:
    agreement = sparse(False).agreement
    everybody = tuple(range(25))
    rings = {
        tuple(Graph(changed, everybody, digest, {}).of(member).peers for member in everybody)
        for changed in (agreement, replace(agreement, round=1))
        for digest in (bytes(32), bytes(range(32)))
    }
    assert len(rings) == 4


@modes
@cases("kind", ["advertise-keys", "share-keys", "masked-input", "confirm-survivors", "unmask-shares"])
def test_a_few_drop_out_in_any_phase(kind: str, active: bool, summed: ExactSum) -> None:
    if kind == "confirm-survivors" and not active:
        kind = "unmask-shares"
    run = sparse(active)
    gone = ("c7", "c20")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender in gone and delivery.kind == kind:
            run.kill(delivery.sender)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    included = kind in ("confirm-survivors", "unmask-shares")
    assert set(summed(run).survivors) == set(run.agreement.cohort) - (set() if included else set(gone))
    assert {drop.member for drop in run.server.drops} == set(gone)


def test_a_client_whose_holders_are_gone_cannot_be_summed(audit: Audit) -> None:
    # Its neighbours vanish before they return shares: the round ends and says that too few came back.
    run = sparse(False)
    gone: set[str] = set()

    def hook(delivery: Delivery) -> list[Delivery]:
        if isinstance(delivery.message, ShareKeys) and delivery.sender == VICTIM:
            gone.update(f"c{holder}" for holder in decode_members(delivery.message.holders, 25))
        if delivery.sender in gone and delivery.kind == "unmask-shares":
            run.kill(delivery.sender)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert outcome.code is Code.THRESHOLD
    assert "came back" in outcome.detail


def test_a_client_refuses_too_few_holders(summed: ExactSum) -> None:
    # Among those who advertised too few were chosen by the victim.
    run = sparse(True)
    holders: set[str] = set()

    def hook(delivery: Delivery) -> list[Delivery]:
        message = delivery.message
        if isinstance(message, AdvertiseKeys) and delivery.sender == VICTIM:
            chosen = np.frombuffer(message.choices, "<u2").tolist()
            spare = CHOSEN.neighbours - CHOSEN.threshold + 1
            holders.update(f"c{holder}" for holder in chosen if holder != 3)
            for name in sorted(holders)[:spare]:
                run.kill(name)
        return [delivery]

    run.hook = hook
    run.run()
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert (aborted.code, "would hold" in aborted.detail) == (Code.THRESHOLD, True)
    assert VICTIM not in summed(run).survivors


def rewritten(run: MemorySum, message: PeerKeys, adverts: dict[int, Advert], **changes: Any) -> PeerKeys:
    return msgspec.structs.replace(
        message,
        included=encode_members(adverts, run.agreement.size),
        adverts=b"".join(adverts[member].record for member in sorted(adverts)),
        **changes,
    )


def neighbour_withheld(run: MemorySum, message: PeerKeys, adverts: dict[int, Advert]) -> PeerKeys:
    chosen = run.clients[VICTIM].data.advert.choices
    holder = int(np.frombuffer(chosen, "<u2")[0]) if chosen else max(set(adverts) - {3})
    return rewritten(run, message, {member: advert for member, advert in adverts.items() if member != holder})


def stranger_added(run: MemorySum, message: PeerKeys, adverts: dict[int, Advert]) -> PeerKeys:
    everybody = {int(d.sender[1:]): d.message for d in run.log if isinstance(d.message, AdvertiseKeys)}
    stranger = min(set(everybody) - set(adverts))
    sent = everybody[stranger]
    return rewritten(
        run,
        message,
        {**adverts, stranger: Advert(sent.channel_key, sent.mask_key, sent.choices, sent.signature)},
    )


def other_digest(run: MemorySum, message: PeerKeys, adverts: dict[int, Advert]) -> PeerKeys:
    return msgspec.structs.replace(message, digest=bytes(32))


def other_choices(run: MemorySum, message: PeerKeys, adverts: dict[int, Advert]) -> PeerKeys:
    other = min(set(adverts) - {3})
    choices = choose_holders(run.agreement, other, Streams(b"other").of(""))
    return rewritten(run, message, {**adverts, other: replace(adverts[other], choices=choices)})


@cases(
    ("change", "active", "code"),
    [
        (neighbour_withheld, True, Code.MEMBERS),
        (neighbour_withheld, False, Code.MEMBERS),
        (stranger_added, True, Code.MEMBERS),
        (stranger_added, False, Code.MEMBERS),
        (other_choices, True, Code.SIGNATURE),
        # The digest makes the ring: with another one the neighbours are others.
        (other_digest, False, Code.MEMBERS),
    ],
)
def test_a_client_refuses_another_neighbourhood(
    change: Callable[..., PeerKeys], active: bool, code: Code, summed: ExactSum
) -> None:
    run = sparse(active)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver == VICTIM and isinstance(delivery.message, PeerKeys):
            included = decode_members(delivery.message.included, run.agreement.size)
            adverts = split_adverts(run.agreement, delivery.message.adverts, included)
            return [replace(delivery, message=change(run, delivery.message, adverts))]
        return [delivery]

    run.hook = hook
    run.run()
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert aborted.code is code
    assert VICTIM not in summed(run).survivors


def test_another_digest_opens_no_shares_in_a_chosen_graph(audit: Audit) -> None:
    # Nobody recomputes the digest there, but it is in every key: the victim's shares open for nobody, and its for it.
    run = sparse(True)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver == VICTIM and isinstance(delivery.message, PeerKeys):
            return [replace(delivery, message=msgspec.structs.replace(delivery.message, digest=bytes(32)))]
        return [delivery]

    run.hook = hook
    run.run()
    # The signature over the shares covers the digest too, so the server itself would have to look away.
    outcome = audit(run)
    assert isinstance(outcome, Summed)
    assert [(drop.member, drop.code) for drop in run.server.drops] == [(VICTIM, Code.SIGNATURE)]


def test_signers_are_surviving_neighbours(summed: ExactSum) -> None:
    run = sparse(True)

    def hook(delivery: Delivery) -> list[Delivery]:
        message = delivery.message
        if delivery.receiver == VICTIM and isinstance(message, UnmaskRequest):
            signers = decode_members(message.signers, 40)
            stranger = min(set(range(40)) - set(signers))
            changed = msgspec.structs.replace(
                message,
                signers=encode_members((*signers, stranger), 40),
                signatures=message.signatures + bytes(64),
            )
            return [replace(delivery, message=changed)]
        return [delivery]

    run.hook = hook
    run.run()
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert (aborted.code, "no holders" in aborted.detail) == (Code.MEMBERS, True)
    assert VICTIM in summed(run).survivors


@cases("active", [True, False])
def test_a_regular_graph_opens_no_sum_of_fewer_than_the_tolerated_dropouts_leave(
    active: bool, summed: ExactSum
) -> None:
    run = memory_sum(20, active=active, parameters=GraphParameters(neighbours=6, threshold=4))
    tolerant = replace(run.agreement, fewest_survivors=18)
    for lost, opened in ((2, True), (3, False)):
        run = MemorySum(tolerant, run.signing, run.vectors, run.streams)
        gone = {f"c{member}" for member in range(lost)}
        run.hook = lambda delivery, gone=gone: (
            [] if delivery.sender in gone and isinstance(delivery.message, MaskedInput) else [delivery]
        )
        run.run()
        if opened:
            assert len(summed(run).survivors) == 18
        else:
            (aborted,) = run.outcome(ServerAborted)
            assert (aborted.code, "only 17 clients sent a vector; 18 are" in aborted.detail) == (Code.THRESHOLD, True)


@cases("active", [True, False])
def test_a_client_opens_no_sum_of_fewer_either(active: bool) -> None:
    run = memory_sum(20, active=active, parameters=GraphParameters(neighbours=6, threshold=4))
    run = MemorySum(replace(run.agreement, fewest_survivors=18), run.signing, run.vectors, run.streams)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver == VICTIM and isinstance(delivery.message, Survivors | UnmaskRequest):
            few = encode_members(range(17), 20)
            return [replace(delivery, message=msgspec.structs.replace(delivery.message, survivors=few))]
        return [delivery]

    run.hook = hook
    run.run()
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert (aborted.code, aborted.detail) == (Code.THRESHOLD, "only 17 clients survived; 18 are needed")


def choices(*members: int) -> bytes:
    return np.array(members, "<u2").tobytes()


FOUR = GraphParameters(neighbours=4, threshold=3)
BAD_CHOICES = {
    "too few": choices(0, 1, 2),
    "too many": choices(0, 1, 2, 4, 5),
    "none": b"",
    "odd": choices(0, 1, 2, 4)[:-1],
    "out of order": choices(1, 0, 2, 4),
    "twice": choices(0, 1, 1, 2),
    "itself": choices(0, 1, 2, 3),
    "outside the cohort": choices(0, 1, 2, 10),
    "far outside": choices(0, 1, 2, 65535),
}


@cases("name", BAD_CHOICES)
def test_bad_choices_are_refused(name: str, summed: ExactSum) -> None:
    run = memory_sum(10, active=True, parameters=FOUR)

    def hook(delivery: Delivery) -> list[Delivery]:
        message = delivery.message
        if delivery.sender == VICTIM and isinstance(message, AdvertiseKeys):
            advert = sign_advert(
                run.agreement,
                3,
                run.signing[VICTIM],
                channel_key=message.channel_key,
                mask_key=message.mask_key,
                choices=BAD_CHOICES[name],
            )
            return [replace(delivery, message=advert.message())]
        return [delivery]

    run.hook = hook
    run.run()
    assert VICTIM not in summed(run).survivors
    assert (run.server.drops[0].member, run.server.drops[0].code) == (VICTIM, Code.MEMBERS)


def test_choices_are_uniform_valid_and_differ() -> None:
    agreement = memory_sum(10, active=True, parameters=FOUR).agreement
    entropy = Streams(b"choices").of("")
    counts = np.zeros(10)
    draws = 900
    for _ in range(draws):
        counts[list(read_choices(agreement, 3, choose_holders(agreement, 3, entropy)))] += 1
    assert counts[3] == 0
    # Each of the other nine is chosen with probability 4/9; six standard deviations, so wrong once in 10^8.
    expected, deviation = draws * 4 / 9, np.sqrt(draws * 4 / 9 * 5 / 9)
    assert (np.abs(np.delete(counts, 3) - expected) < 6 * deviation).all()


@cases(("clients", "gone", "masks"), [(7, 0, 5), (6, 0, 5), (7, 2, 5), (7, 3, 4)])
def test_a_ring_of_fewer_than_there_were_to_be(clients: int, gone: int, masks: int) -> None:
    """Four neighbours each; where fewer are left, all the others, and nobody twice."""
    run = memory_sum(clients, active=False, parameters=GraphParameters(4, 3))
    for member in range(clients - gone, clients):
        run.kill(f"c{member}")
    run.run()
    left = run.agreement.cohort[: clients - gone]
    (summed,) = run.outcome(Summed)
    assert summed.survivors == left
    assert {run.clients[name].masks for name in left} == {masks}

"""A server that wants to surround a victim in a regular graph: with its own clients, by what it leaves out, or by lies.

Of a victim's k holders, c of them the server's own, it needs t shares for the seed of the self mask and, to take off a
mask towards a peer, t shares of that peer's key. It gets both kinds for one client only from holders who were told
different things: (t - c) + (t - c) <= k - c, hence c >= 2t - k. That is the bound of the active rule; in semi-honest
mode, where nobody is told different things, it is c >= t.

In active mode holders are drawn by the client and signed with its keys, before anybody's keys are seen. In semi-honest
mode the ring follows from the digest of all adverts: a server that lies may try other adverts of its clients, or leave
some out, one digest and one sort for a try, until the ring suits it. At a probability of 2^-40 that is 2^40 digests,
which a lying server can pay; so the ring serves semi-honest mode alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array
from scipy.stats import hypergeom

from tacit.protocol.core.errors import Code
from tacit.protocol.core.roster import encode_members, split_records
from tacit.protocol.sum.agreement import Advert, Graph
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import AdvertiseKeys, PeerKeys, PeerShares
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.secagg.graph import GraphParameters, regular_parameters
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
Holders = Mapping[int, tuple[int, ...]]
FOUR = GraphParameters(neighbours=4, threshold=3)
pytestmark = pytest.mark.threat("server/surrounds-victim")


@cases("active", [True, False])
@cases("clients", [20, 40, 100, 1000, 10_000])
@cases("one_in", [20, 10, 5])
def test_enough_corrupt_holders_are_improbable(clients: int, one_in: int, active: bool) -> None:
    adversaries = clients // one_in
    found = regular_parameters(clients, colluders=adversaries, dropouts=clients // 20, active=active)
    needed = 2 * found.threshold - found.neighbours if active else found.threshold
    # A client draws its holders among the others; the bound over all victims is the sum of theirs.
    surrounded = clients * hypergeom.sf(needed - 1, clients - 1, adversaries, found.neighbours)
    assert surrounded <= 2.0**-40


def choices_of(run: MemorySum) -> dict[int, tuple[int, ...]]:
    return {
        run.agreement.places[d.sender]: tuple(np.frombuffer(d.message.choices, "<u2").tolist())
        for d in run.log
        if isinstance(d.message, AdvertiseKeys)
    }


def subsets(members: Sequence[int]) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(members, size) for size in range(len(members) + 1)))


def test_no_list_of_adverts_gives_a_victim_other_holders_than_it_chose() -> None:
    # The server tries every set of clients that it may say advertised, and digests besides.
    run = memory_sum(10, active=True, parameters=FOUR, seed=b"graph")
    run.run()
    choices = choices_of(run)
    for victim, others in ((victim, subsets([m for m in range(10) if m != victim])) for victim in (0, 9)):
        for present in others:
            advertised = tuple(sorted((victim, *present)))
            graph = Graph(run.agreement, advertised, bytes([len(present)] * 32), {m: choices[m] for m in advertised})
            assert graph.of(victim).holders == tuple(holder for holder in choices[victim] if holder in present)


def test_trying_digests_surrounds_a_victim_on_the_ring_only() -> None:
    # Four of ten are the server's; four neighbours of one victim are all its own once in C(9, 4) = 126 tries.
    agreement = memory_sum(10, active=False, parameters=FOUR).agreement
    own, everybody, tries = {6, 7, 8, 9}, tuple(range(10)), 2520
    surrounded = sum(
        set(Graph(agreement, everybody, attempt.to_bytes(32, "little"), {}).of(0).holders) == own
        for attempt in range(tries)
    )
    # Binomial with mean 20 and deviation 4.5, at six deviations.
    assert 0 < surrounded < 20 + 6 * 4.5


def told(run: MemorySum, receiver: str) -> PeerKeys:
    return next(d.message for d in run.log if d.receiver == receiver and isinstance(d.message, PeerKeys))


def relisted(run: MemorySum, message: PeerKeys, members: Sequence[int], of: Mapping[int, int]) -> PeerKeys:
    """The list of these members' adverts, in the place of each that of `of`."""
    said = {run.agreement.places[d.sender]: d.message for d in run.log if isinstance(d.message, AdvertiseKeys)}
    chosen = [said[of.get(member, member)] for member in sorted(members)]
    records = [Advert(a.channel_key, a.mask_key, a.choices, a.signature).record for a in chosen]
    return msgspec.structs.replace(
        message, included=encode_members(members, run.agreement.size), adverts=b"".join(records)
    )


def deceived(change: Callable[[MemorySum, PeerKeys], PeerKeys], *, cut: int | None = None) -> MemorySum:
    """c0 is told another list of keys, and not of the packet of the member `cut`."""
    run = memory_sum(10, active=True, parameters=FOUR, seed=b"graph")

    def hook(delivery: Delivery) -> list[Delivery]:
        message = delivery.message
        if delivery.receiver == "c0" and isinstance(message, PeerKeys):
            return [replace(delivery, message=change(run, message))]
        if delivery.receiver == "c0" and isinstance(message, PeerShares) and cut is not None:
            owners = [member for member in range(10) if message.owners[member // 8] >> member % 8 & 1]
            packets = split_records(message.packets, PACKET_BYTES, owners)
            signatures = run.agreement.split_signatures(message.signatures, owners)
            kept = [owner for owner in owners if owner != cut]
            fewer = PeerShares(
                sharers=message.sharers,
                owners=encode_members(kept, 10),
                packets=b"".join(packets[owner] for owner in kept),
                signatures=b"".join(signatures[owner] for owner in kept),
            )
            return [replace(delivery, message=fewer)]
        return [delivery]

    run.hook = hook
    run.run()
    return run


HONEST = memory_sum(10, active=True, parameters=FOUR, seed=b"graph")
HONEST.run()
CHOSEN = choices_of(HONEST)
CHOSE_VICTIM = [member for member in CHOSEN if 0 in CHOSEN[member] and member not in CHOSEN[0]]
KNOWN = sorted({0, *CHOSEN[0], *CHOSE_VICTIM})
STRANGERS = [member for member in CHOSEN if member not in KNOWN]


def check_a_chosen_holder_is_left_out(holder: int, sums: Any) -> None:
    run = deceived(lambda run, message: relisted(run, message, [m for m in KNOWN if m != holder], {}))
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert (aborted.code, aborted.culprit) == (Code.MEMBERS, "server")
    assert "c0" not in next(iter(run.outcome(Summed))).survivors
    sums.check_next_round(run)


def check_a_holder_is_added(stranger: int, sums: Any) -> None:
    run = deceived(lambda run, message: relisted(run, message, [*KNOWN, stranger], {}))
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert (aborted.code, aborted.culprit) == (Code.MEMBERS, "server")
    sums.check_next_round(run)


def check_the_advert_of_another_takes_a_neighbours_place(member: int, sums: Any) -> None:
    run = deceived(lambda run, message: relisted(run, message, KNOWN, {member: STRANGERS[0]}))
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert aborted.code in (Code.SIGNATURE, Code.MEMBERS)
    assert aborted.culprit == "server"
    sums.check_next_round(run)


def check_who_chose_the_victim_is_left_out(owner: int, audit: Audit, sums: Any) -> None:
    # It masks towards the victim, and the victim does not mask towards it: noise, if all else is as it should be. With
    # the packet of that owner the victim sees that something is missing.
    def change(run: MemorySum, message: PeerKeys) -> PeerKeys:
        return relisted(run, message, [m for m in KNOWN if m != owner], {})

    run = deceived(change)
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert (aborted.code, aborted.culprit) == (Code.SHARES, "server")
    assert isinstance(audit(run), Summed)
    quiet = deceived(change, cut=owner)
    assert not [names for names in sums.revealed(quiet) if "c0" in names]
    sums.check_next_round(quiet)


def test_lists_that_change_who_is_around_a_victim_are_refused(sums: Any, audit: Audit) -> None:
    for holder in CHOSEN[0]:
        check_a_chosen_holder_is_left_out(holder, sums)

    for stranger in STRANGERS:
        check_a_holder_is_added(stranger, sums)

    for member in KNOWN[1:]:
        check_the_advert_of_another_takes_a_neighbours_place(member, sums)

    for owner in CHOSE_VICTIM:
        check_who_chose_the_victim_is_left_out(owner, audit, sums)


def two_worlds(holders: Holders, threshold: int, victim: int, *, all_neighbours: bool) -> list[set[int]] | None:
    """Two disjoint sets of clients for two lists of survivors that together strip the victim; None if there are none.

    The first world has the threshold of the victim's holders: they open its seed. The second has the threshold of the
    holders of each of its peers, and none of these peers: they open the peers' keys, hence every mask towards the
    victim. Whoever answers must find the threshold of signers in its own world, among its holders, or, with
    `all_neighbours`, among all whose keys it knows. Solved as an integer program over four truth values per client:
    in the first world, in the second, answers in the first, answers in the second.
    """
    size = len(holders)
    owners = {member: {other for other in holders if member in holders[other]} for member in holders}
    peers = owners[victim] | set(holders[victim])
    rows: list[tuple[dict[int, float], float]] = []
    for member in holders:
        signers = {member, *owners[member], *holders[member]} if all_neighbours else set(holders[member])
        rows.append(({member: -1, size + member: -1}, -1))
        for world in (0, size):
            answers = 2 * size + world + member
            rows.append(({world + member: 1, answers: -1}, 0))
            rows.append(({**{world + signer: 1.0 for signer in signers}, answers: -threshold}, 0))
    rows.append(({2 * size + holder: 1 for holder in holders[victim]}, threshold))
    rows += [({3 * size + holder: 1 for holder in holders[peer]}, threshold) for peer in peers]
    matrix = lil_array((len(rows), 4 * size))
    for row, (terms, _) in enumerate(rows):
        for column, factor in terms.items():
            matrix[row, column] = factor
    possible = np.ones(4 * size)
    possible[[size + member for member in (victim, *peers)]] = 0
    found = milp(
        np.zeros(4 * size),
        integrality=np.ones(4 * size),
        bounds=Bounds(0, possible),
        constraints=LinearConstraint(matrix.tocsr(), [least for _, least in rows], np.inf),
    )
    if found.x is None:
        return None
    return [{member for member in holders if found.x[world + member] > 0.5} for world in (0, size)]


TWENTY = regular_parameters(20, colluders=1, dropouts=1, active=True)


@pytest.mark.threat("server/splits-survivors")
def test_no_two_worlds_strip_a_victim_whose_neighbours_listen_to_their_holders() -> None:
    # 2t > k: who answers was told the same as t of its k holders, so that t others cannot open its key.
    run = memory_sum(20, active=True, parameters=TWENTY, seed=b"\x01")
    run.run()
    holders = choices_of(run)
    for victim in holders:
        assert two_worlds(holders, TWENTY.threshold, victim, all_neighbours=False) is None


@pytest.mark.threat("server/splits-survivors")
def test_two_worlds_do_not_strip_a_victim(sums: Any) -> None:
    # The parameters are those of the rule, and no client is corrupt.
    run = memory_sum(20, active=True, parameters=TWENTY, seed=b"\x01")
    server = sums.Server(run)
    holders = choices_of(run)
    possible = {
        victim: worlds
        for victim in holders
        if (worlds := two_worlds(holders, TWENTY.threshold, victim, all_neighbours=True))
    }
    victim, (first, second) = next(iter(possible.items()))
    survivors = [encode_members(first | {victim}, 20), encode_members(second, 20)]
    server.split({f"c{member}": survivors[member in second] for member in sorted(first | second)})
    name = f"c{victim}"
    assert not np.array_equal(sums.unmasked_vectors(run)[name], run.vectors[name])
    sums.check_next_round(run)

"""A server that tells different clients different things learns no more, or nothing at all.

What the server gets is computed, not argued: with every share that left a holder it reconstructs what it can, takes off
every mask that it can, and each set of clients is tried whether its plain sum then appears.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import Advert, Agreement, adverts_digest, check_advert
from tacit.protocol.sum.client import AggregationClient
from tacit.protocol.sum.exchange import ClientAborted, ServerAborted, Summed
from tacit.protocol.sum.messages import AdvertiseKeys, PeerKeys, PeerShares, UnmaskRequest, UnmaskShares
from tacit.protocol.sum.sharing import PACKET_BYTES
from tacit.protocol.sum.states import SumLabel
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

Audit = Callable[[MemorySum], Summed | ServerAborted]
ExactSum = Callable[[MemorySum], Summed]
CLIENTS = 5
VICTIM = "c0"
OTHERS = ("c1", "c2", "c3", "c4")
modes = cases("active", [True, False])
OTHER_HASH = bytes(range(32))


def bitmap(*members: int) -> bytes:
    return encode_members(members, CLIENTS)


DIFFERENT: dict[str, Any] = {
    "model": OTHER_HASH,
    "configuration": OTHER_HASH,
    "neighbours": 3,
    "threshold": 5,
    "roster": OTHER_HASH,
    "cohort": ("c0", "c1", "c2", "c3", "cX"),
    "session": OTHER_HASH,
    "round": 1,
}
told_differently = cases("field", DIFFERENT)


def believing(run: MemorySum, field: str) -> Agreement:
    """The victim was told something else than the others, and believes it."""
    change = {field: DIFFERENT[field]}
    if field in ("neighbours", "threshold"):
        change = {"parameters": replace(run.agreement.parameters, **change)}
    agreement = replace(run.agreement, **change)
    run.clients[VICTIM] = AggregationClient(agreement, VICTIM, signing=run.signing[VICTIM], entropy=run.streams.of("x"))
    return agreement


def mended(run: MemorySum, other: Agreement) -> None:
    """The server makes the list of keys look right to the victim."""

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver != VICTIM or not isinstance(delivery.message, PeerKeys):
            return [delivery]
        sent = {run.agreement.places[d.sender]: d.message for d in run.log if isinstance(d.message, AdvertiseKeys)}
        adverts = {
            member: Advert(said.channel_key, said.mask_key, said.choices, said.signature)
            for member, said in sent.items()
        }
        message = msgspec.structs.replace(delivery.message, digest=adverts_digest(other, adverts))
        return [replace(delivery, message=message)]

    run.hook = hook


@pytest.mark.threat("server/splits-models")
@pytest.mark.threat("server/splits-configurations")
@pytest.mark.threat("server/splits-rosters")
@told_differently
def test_active_clients_refuse_who_was_told_something_else(field: str, summed: ExactSum, sums: Any) -> None:
    run = memory_sum(CLIENTS, active=True, seed=b"lies")
    other = believing(run, field)
    assert other.context != run.agreement.context
    run.run()
    assert sums.revealed(run) == [summed(run).survivors] == [OTHERS]
    (drop,) = run.server.drops
    assert (drop.member, drop.phase, drop.code) == (VICTIM, "ADVERTISE_KEYS", Code.SIGNATURE)
    # A server that lets it pass only brings the others to refuse.
    advert = next(d.message for d in run.log if d.sender == VICTIM and isinstance(d.message, AdvertiseKeys))
    with pytest.raises(RemoteProtocolError, match="SIGNATURE"):
        check_advert(run.agreement, 0, advert)
    sums.check_next_round(run)


@pytest.mark.threat("server/splits-models")
@pytest.mark.threat("server/splits-configurations")
@pytest.mark.threat("server/splits-rosters")
@told_differently
def test_a_semi_honest_client_finds_another_digest(field: str, summed: ExactSum, sums: Any) -> None:
    run = memory_sum(CLIENTS, active=False, seed=b"lies")
    believing(run, field)
    run.run()
    assert sums.revealed(run) == [summed(run).survivors] == [OTHERS]
    (aborted,) = run.outcome(ClientAborted, VICTIM)
    assert (aborted.code, "digest" in aborted.detail) == (Code.KEYS, True)
    sums.check_next_round(run)


@pytest.mark.threat("server/splits-models")
@pytest.mark.threat("server/splits-configurations")
@pytest.mark.threat("server/splits-rosters")
@cases(
    "survivors",
    [
        (0, 1, 2, 3, 4),  # all
        (1, 2, 3, 4),  # without the victim
    ],
)
@told_differently
def test_no_sum_with_who_was_told_something_else(
    field: str, survivors: tuple[int, ...], audit: Audit, sums: Any
) -> None:
    # In semi-honest mode a server that mends the digest brings the victim to mask its vector. Nobody's shares open for
    # it or from it, so that its masks stay on, whatever survivors the others are told.
    run = memory_sum(CLIENTS, active=False, seed=b"lies")
    mended(run, believing(run, field))
    run.run()
    outcome = audit(run)
    assert isinstance(outcome, ServerAborted)
    assert (outcome.code, outcome.culprit) == (Code.SHARES, VICTIM)
    again = memory_sum(CLIENTS, active=False, seed=b"lies")
    mended(again, believing(again, field))
    sums.Server(again).split(dict.fromkeys(again.agreement.cohort, bitmap(*survivors)))
    assert len(sums.unmasked_vectors(again)) == CLIENTS
    assert sums.revealed(again) == []
    sums.check_next_round(run)


@pytest.mark.threat("server/splits-models")
@pytest.mark.threat("server/splits-configurations")
@pytest.mark.threat("server/splits-rosters")
@told_differently
def test_masks_do_not_cancel_between_clients_told_different_things(field: str) -> None:
    run = memory_sum(CLIENTS, active=False, seed=b"lies")
    before = run.agreement
    agreements = [before, believing(run, field)]
    everybody = bitmap(*range(CLIENTS))
    assert len({agreement.sharing_digest(OTHER_HASH, everybody) for agreement in agreements}) == 2


@modes
@pytest.mark.threat("server/splits-survivors")
@pytest.mark.threat("server/alive-and-dropped")
@cases("told_less", list(product((False, True), repeat=CLIENTS - 1)))
def test_different_survivors_for_different_clients(
    active: bool, told_less: tuple[bool, ...], opened: Any, sums: Any
) -> None:
    # The server has all vectors, tells some that c4 survived and others that it dropped out, and passes on every
    # signature that fits.
    run = memory_sum(CLIENTS, active=active, seed=b"lies")
    lists = [bitmap(0, 1, 2, 3) if less else bitmap(0, 1, 2, 3, 4) for less in (*told_less, False)]
    sums.Server(run).split(dict(zip(run.agreement.cohort, lists, strict=True)))
    agreeing = Counter(lists)
    threshold = run.agreement.parameters.threshold
    answered = {name for name, survivors in zip(run.agreement.cohort, lists, strict=True)
                if not active or agreeing[survivors] >= threshold}  # fmt: skip
    assert {d.sender for d in run.log if isinstance(d.message, UnmaskShares)} == answered
    kinds = opened(run)[4]
    held = [len(kinds[SumLabel.SEED_SHARE]), len(kinds[SumLabel.KEY_SHARE])]
    assert held == [sum(run.agreement.cohort[place] in answered and bitmap(4)[0] & told[0] == alive
                        for place, told in enumerate(lists)) for alive in (16, 0)]  # fmt: skip
    # At most one of the two sums comes out, in active mode only if at least four of the five were told the same.
    expected = {(True, False): [run.agreement.cohort], (False, True): [(VICTIM, "c1", "c2", "c3")], (False, False): []}
    assert sums.revealed(run) == expected[held[0] >= threshold, held[1] >= threshold]
    if active:
        assert 0 in held
    sums.check_next_round(run)


def lists_told(clients: int, threshold: int) -> set[tuple[tuple[int, ...], ...]]:
    """For every client a list that it would sign, itself and enough others; one attack of all that are alike."""
    everybody = range(clients)
    lists = [names for size in range(threshold, clients + 1) for names in combinations(everybody, size)]
    attacks = product(*([names for names in lists if member in names] for member in everybody))
    renamings = list(permutations(everybody))

    def renamed(attack: tuple[tuple[int, ...], ...], names: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        told = {names[member]: tuple(sorted(names[alive] for alive in attack[member])) for member in everybody}
        return tuple(told[member] for member in everybody)

    return {min(renamed(attack, names) for names in renamings) for attack in attacks}


@pytest.mark.threat("server/splits-survivors")
def test_every_choice_of_lists_for_a_small_active_cohort(sums: Any) -> None:
    outcomes = Counter[int]()
    for attack in lists_told(4, 3):
        run = memory_sum(4, active=True, seed=b"lies", length=1)
        told = {f"c{member}": encode_members(alive, 4) for member, alive in enumerate(attack)}
        sums.Server(run).split(told)
        found = sums.revealed(run)
        # One sum at most, over the list that three of the four were told.
        agreed = [names for names, clients in Counter(attack).items() if clients >= 3]
        assert found == [tuple(f"c{member}" for member in names) for names in agreed]
        outcomes[len(found)] += 1
    assert set(outcomes) == {0, 1}


@pytest.mark.threat("server/splits-survivors")
def test_different_sharers_for_one_client_are_noise(sums: Any) -> None:
    # In semi-honest mode one client is told that c4 did not share; its masks then cancel with nobody's.
    run = memory_sum(CLIENTS, active=False, seed=b"lies")

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver == VICTIM and isinstance(delivery.message, PeerShares):
            four = bitmap(0, 1, 2, 3)
            packets = delivery.message.packets[: 4 * PACKET_BYTES]
            told = PeerShares(sharers=four, owners=four, packets=packets, signatures=b"")
            return [replace(delivery, message=told)]
        if delivery.receiver == VICTIM and isinstance(delivery.message, UnmaskRequest):
            return [replace(delivery, message=msgspec.structs.replace(delivery.message, survivors=bitmap(0, 1, 2, 3)))]
        return [delivery]

    run.hook = hook
    run.run()
    (outcome,) = run.outcome(Summed)
    # Each of the five words is right by chance once in 2^32.
    assert np.count_nonzero(outcome.total - run.plain_sum(outcome.survivors)) == run.agreement.length
    assert sums.revealed(run) == []
    assert [(drop.member, drop.code) for drop in run.server.drops] == [(VICTIM, Code.SHARES)]
    sums.check_next_round(run)

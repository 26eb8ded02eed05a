"""Every dropout schedule of five clients, against a model that knows nothing but sets and a threshold.

A schedule says for each client the phase before whose message it is gone, or that it stays. Up to renaming there are
few; the complete enumeration is marked exhaustive.
"""

from collections.abc import Callable, Iterable
from itertools import combinations_with_replacement, product

import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.primitives import Label
from tacit.protocol.sum.exchange import ServerAborted, Summed
from tacit.protocol.sum.states import ClientState, ServerState, SumLabel
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

CLIENTS = 5
PHASES = {
    True: ("advertise-keys", "share-keys", "masked-input", "confirm-survivors", "unmask-shares"),
    False: ("advertise-keys", "share-keys", "masked-input", "unmask-shares"),
}
PHASE_OF = {
    "advertise-keys": "ADVERTISE_KEYS",
    "share-keys": "SHARE_KEYS",
    "masked-input": "MASKED_INPUT",
    "confirm-survivors": "CONSISTENCY_CHECK",
    "unmask-shares": "UNMASK",
}
THRESHOLD = {True: 4, False: 3}
"""floor(2 * 5 / 3) + 1 and floor(5 / 2) + 1."""
VECTOR = 2
"""Place of the phase in which vectors are sent."""

Opened = Callable[[MemorySum], dict[int, dict[Label, set[int]]]]
Audit = Callable[[MemorySum], Summed | ServerAborted]
Schedule = tuple[int, ...]


def play(schedule: Schedule, *, active: bool, noticed: bool) -> MemorySum:
    """Noticed: the link is lost; otherwise the client falls silent and a deadline passes."""
    run = memory_sum(CLIENTS, active=active, seed=b"dropouts")
    last_words = {
        f"c{member}": PHASES[active][phase] for member, phase in enumerate(schedule) if phase < len(PHASES[active])
    }

    def hook(delivery: Delivery) -> list[Delivery]:
        if last_words.get(delivery.sender) != delivery.kind:
            return [delivery]
        if noticed:
            run.kill(delivery.sender)
        else:
            run.dead.add(delivery.sender)
        return []

    run.hook = hook
    run.run()
    return run


def expect(run: MemorySum, schedule: Schedule, *, active: bool, noticed: bool, audit: Audit, opened: Opened) -> None:
    phases = PHASES[active]
    staying = [sum(gone > phase for gone in schedule) for phase in range(len(phases))]
    failed = next((phase for phase, count in enumerate(staying) if count < THRESHOLD[active]), None)
    last = len(phases) - 1 if failed is None else failed
    assert [(drop.member, drop.phase, drop.code, drop.included) for drop in run.server.drops] == [
        (f"c{member}", PHASE_OF[phases[gone]], Code.LEFT if noticed else Code.TIMEOUT, gone > VECTOR)
        for member, gone in enumerate(schedule)
        if gone <= last
    ]
    outcome = audit(run)
    survivors = tuple(f"c{member}" for member, gone in enumerate(schedule) if gone > VECTOR)
    remaining = [client for name, client in run.clients.items() if name not in run.dead]
    shares = opened(run)
    if failed is None:
        assert isinstance(outcome, Summed)
        assert outcome.survivors == survivors
        assert run.server.state is ServerState.COMPLETED
        assert {client.state for client in remaining} == {ClientState.DONE}
        for owner, gone in enumerate(schedule):
            if gone >= VECTOR:
                kind = SumLabel.SEED_SHARE if gone > VECTOR else SumLabel.KEY_SHARE
                assert len(shares[owner][kind]) == staying[-1]
    else:
        assert isinstance(outcome, ServerAborted)
        assert outcome.code is Code.THRESHOLD
        assert run.server.state is ServerState.ABORTED
        # In the last phase some had answered already; too few to open anything.
        if failed < len(phases) - 1:
            assert not shares
            assert {client.state for client in remaining} <= {ClientState.ABORTED}
        assert all(len(holders) < THRESHOLD[active] for kinds in shares.values() for holders in kinds.values())


def renamed(schedule: Schedule, number: int) -> Schedule:
    """Another naming of the clients for each schedule, so that early and late members drop out alike."""
    turn = number % CLIENTS
    return schedule[turn:] + schedule[:turn]


def multisets(active: bool) -> Iterable[Schedule]:
    schedules = list(combinations_with_replacement(range(len(PHASES[active]) + 1), CLIENTS))
    assert len(schedules) == {True: 252, False: 126}[active]
    return (renamed(schedule, number) for number, schedule in enumerate(schedules))


@cases("active", [True, False])
def test_every_schedule_up_to_renaming(active: bool, audit: Audit, opened: Opened) -> None:
    """Lost links and silence by turns."""
    for number, schedule in enumerate(multisets(active)):
        noticed = number % 2 == 0
        run = play(schedule, active=active, noticed=noticed)
        expect(run, schedule, active=active, noticed=noticed, audit=audit, opened=opened)


@pytest.mark.exhaustive
@cases("noticed", [True, False])
@cases("active", [True, False])
def test_every_schedule(active: bool, noticed: bool, audit: Audit, opened: Opened) -> None:
    for schedule in product(range(len(PHASES[active]) + 1), repeat=CLIENTS):
        run = play(schedule, active=active, noticed=noticed)
        expect(run, schedule, active=active, noticed=noticed, audit=audit, opened=opened)


def test_who_answered_is_neither_waited_for_nor_out() -> None:
    run = memory_sum(5, active=False)
    run.start()
    run.kill("c4")
    assert run.server.answered == 0
    assert run.advance(lambda: run.server.answered == 1)
    assert len(run.server.waiting) == 3


@cases("gone", ["c0", "c1"])
def test_a_long_vector_that_its_group_keeps_out_is_not_waited_for(gone: str) -> None:
    """It would have been fetched when the last of its group was ready; that one is gone, before or after it was."""
    run = memory_sum(4, active=False, groups=((0, 1), (2, 3)), length=200_000, ring_bits=64)

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.kind) == (gone, "masked-input"):
            run.kill(gone)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    (summed,) = run.outcome(Summed)
    assert (summed.survivors, run.now) == (("c2", "c3"), 0.0)

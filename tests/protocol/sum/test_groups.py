"""Sums with groups: their members are in it all or none, and who is left out with its group still helps to open it."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, combinations, combinations_with_replacement, product

import msgspec
import numpy as np
import pytest

from tacit.protocol.core.errors import Code
from tacit.protocol.core.primitives import Label
from tacit.protocol.core.roster import encode_members
from tacit.protocol.sum.agreement import UPLOADS
from tacit.protocol.sum.events import GroupsExcluded
from tacit.protocol.sum.exchange import ClientAborted, Contributed, ServerAborted, Summed
from tacit.protocol.sum.messages import FetchVector, Survivors, UnmaskRequest, VectorChunk
from tacit.protocol.sum.states import ClientState, SumLabel
from tacit.protocol.sum.vector_sum import VectorSum
from tacit.secagg.graph import GraphParameters
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

ExactSum = Callable[[MemorySum], Summed]
Audit = Callable[[MemorySum], Summed | ServerAborted]
Opened = Callable[[MemorySum], dict[int, dict[Label, set[int]]]]
Groups = tuple[tuple[int, ...], ...]
PHASES = {
    True: ("advertise-keys", "share-keys", "masked-input", "confirm-survivors", "unmask-shares"),
    False: ("advertise-keys", "share-keys", "masked-input", "unmask-shares"),
}
VECTOR = 2
"""Place of the phase in which vectors are sent."""
modes = cases("active", [True, False])


def of(size: int, clients: int) -> Groups:
    """Groups of so many members each."""
    return tuple(tuple(range(first, first + size)) for first in range(0, clients, size))


def play(run: MemorySum, last_words: dict[str, str]) -> MemorySum:
    """These clients are lost before that message."""

    def hook(delivery: Delivery) -> list[Delivery]:
        if last_words.get(delivery.sender) != delivery.kind:
            return [delivery]
        run.kill(delivery.sender)
        return []

    run.hook = hook
    run.run()
    return run


@modes
@cases("groups", [((0, 2), (1, 3)), ((0, 4), (1, 2, 3))])
def test_every_loss_up_to_renaming_takes_whole_groups(
    active: bool, groups: Groups, audit: Audit, opened: Opened
) -> None:
    """Against a model of sets alone, for every phase before which members of every group may be lost."""
    phases = PHASES[active]
    stays = len(phases)
    within = [list(combinations_with_replacement(range(stays + 1), len(group))) for group in groups]
    size = sum(map(len, groups))
    for schedule in product(*within):
        gone = dict(zip(chain(*groups), chain(*schedule), strict=True))
        if sum(phase < stays for phase in gone.values()) > 2:
            continue  # More than one is below the threshold anyhow.
        run = memory_sum(size, active=active, seed=b"groups", groups=groups, fewest_survivors=2)
        threshold = run.agreement.parameters.threshold
        play(run, {f"c{member}": phases[phase] for member, phase in gone.items() if phase < stays})
        outcome = audit(run)
        answering = [sum(phase > place for phase in gone.values()) for place in range(len(phases))]
        whole = {member for group in groups if all(gone[m] > VECTOR for m in group) for member in group}
        if min(answering) >= threshold and len(whole) >= 2:
            assert isinstance(outcome, Summed)
            assert outcome.survivors == tuple(f"c{member}" for member in sorted(whole))
            shares = opened(run)
            for owner, phase in gone.items():
                if phase >= VECTOR:
                    kind = SumLabel.SEED_SHARE if owner in whole else SumLabel.KEY_SHARE
                    other = SumLabel.KEY_SHARE if owner in whole else SumLabel.SEED_SHARE
                    assert len(shares[owner][kind]) == answering[-1]
                    assert not shares[owner][other]
            for member in (member for member, phase in gone.items() if phase == stays):
                (contributed,) = run.outcome(Contributed, f"c{member}")
                assert contributed.opened == outcome.survivors
        else:
            assert isinstance(outcome, ServerAborted)
            assert outcome.code is Code.THRESHOLD


@modes
def test_twelve_in_groups_of_three_lose_a_client_and_still_two_more(active: bool, summed: ExactSum) -> None:
    """Those who are left out with the first answer: so two others may go when they have sent their vectors."""
    run = memory_sum(12, active=active, groups=of(3, 12), fewest_survivors=9)
    assert run.agreement.parameters.threshold == (9 if active else 7)
    play(run, {"c0": "masked-input", "c4": PHASES[active][-2 if active else -1], "c8": "unmask-shares"})
    assert summed(run).survivors == tuple(f"c{member}" for member in range(3, 12))
    assert [drop.included for drop in run.server.drops] == [False, True, True]
    assert run.outcome(GroupsExcluded, "server") == [GroupsExcluded(members=["c1", "c2"])]
    assert {run.clients[name].state for name in ("c1", "c2")} == {ClientState.DONE}


def test_the_signatures_of_those_who_are_left_out_open_the_sum(summed: ExactSum) -> None:
    run = memory_sum(12, active=True, groups=of(3, 12), fewest_survivors=9)
    play(run, {"c0": "masked-input"})
    summed(run)
    requests = [d.message for d in run.log if isinstance(d.message, UnmaskRequest)]
    assert len(requests) == 11
    assert all(request.signers == encode_members(range(1, 10), 12) for request in requests)


@modes
def test_a_sum_over_fewer_than_the_fewest_is_not_opened(active: bool) -> None:
    run = memory_sum(12, active=active, groups=of(3, 12), fewest_survivors=9)
    play(run, {"c0": "masked-input", "c4": "masked-input"})
    (aborted,) = run.outcome(ServerAborted)
    assert aborted.code is Code.THRESHOLD
    assert "6 clients of whole groups sent a vector; 9 are needed" in aborted.detail
    assert not [d for d in run.log if d.kind in ("survivors", "unmask-request")]


def test_in_a_regular_graph_left_out_holders_answer(summed: ExactSum) -> None:
    groups = of(3, 12)
    run = memory_sum(12, active=True, groups=groups, fewest_survivors=9, parameters=GraphParameters(6, 4))
    play(run, {"c3": "masked-input"})
    assert summed(run).survivors == tuple(f"c{member}" for member in range(12) if member not in (3, 4, 5))


TOLD = [(4, 5), (0,), (0, 1, 2, 3, 4), (3, 4, 5), (0, 1, 2), range(6), (0, 1, 2, 4, 5), ()]
"""What a client may be told of six in two groups: survivors that cut a group, that lack its own, all, none."""


@modes
@cases("told", TOLD)
def test_survivors_that_cut_a_group_are_refused(active: bool, told: tuple[int, ...]) -> None:
    """c0 is told it as the survivors: in active mode it signs, in semi-honest mode it opens, whole groups alone."""
    run = memory_sum(6, active=active, groups=of(3, 6), fewest_survivors=3)
    kind = Survivors if active else UnmaskRequest

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver != "c0" or not isinstance(delivery.message, kind):
            return [delivery]
        names = {name: getattr(delivery.message, name) for name in delivery.message.__struct_fields__}
        return [replace(delivery, message=kind(**names | {"survivors": encode_members(told, 6)}))]

    run.hook = hook
    run.run()
    cut = any(0 < len({*group} & {*told}) < 3 for group in run.agreement.groups)
    answers = [d for d in run.log if d.sender == "c0" and d.kind in ("confirm-survivors", "unmask-shares")]
    aborted = run.outcome(ClientAborted, "c0")
    if cut or not told:
        assert not answers
        assert aborted[0].code is (Code.MEMBERS if cut else Code.THRESHOLD)
    else:
        assert answers


def test_survivors_are_checked_again_before_they_are_opened() -> None:
    """A client that signed whole groups refuses a request that cuts one."""
    run = memory_sum(6, active=True, groups=of(3, 6), fewest_survivors=3)

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.receiver != "c0" or not isinstance(delivery.message, UnmaskRequest):
            return [delivery]
        said = delivery.message
        cut = msgspec.structs.replace(said, survivors=encode_members(range(5), 6))
        return [replace(delivery, message=cut)]

    run.hook = hook
    run.run()
    (aborted,) = run.outcome(ClientAborted, "c0")
    assert aborted.code is Code.MEMBERS
    assert "of a group" in aborted.detail


CHUNK_WORDS = 16
LENGTH = 6 * CHUNK_WORDS + 5


@pytest.mark.usefixtures("small_chunks")
@cases("turn", range(4))
def test_long_vectors_are_fetched_group_by_group(turn: int, summed: ExactSum) -> None:
    """Whatever the order in which members are ready: one group after the other, as they were ready."""
    run = memory_sum(12, active=False, groups=of(3, 12), fewest_survivors=3, length=LENGTH)
    held: list[Delivery] = []
    order = [*range(turn, 12, 4), *(member for member in range(12) if member % 4 != turn)]

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.kind != "masked-input" or len(held) == 12:
            return [delivery]
        held.append(delivery)
        by_sender = {one.sender: one for one in held}
        return [by_sender[f"c{member}"] for member in order] if len(held) == 12 else []

    run.hook = hook
    run.run()
    assert len(summed(run).survivors) == 12
    asked = list(dict.fromkeys(int(d.receiver[1:]) for d in run.log if isinstance(d.message, FetchVector)))
    assert [asked[place] // 3 for place in range(0, 12, 3)] == list(dict.fromkeys(member // 3 for member in asked))
    ready = {group: max(order.index(3 * group + place) for place in range(3)) for group in range(4)}
    assert asked[0] // 3 == min(ready, key=ready.__getitem__)


@pytest.mark.usefixtures("small_chunks")
@cases("sent", [0, 3, 6, 7])
@cases("who", ["c0", "c5"])
def test_who_vanishes_while_it_uploads_takes_its_group_out_and_nobody_else(
    who: str, sent: int, summed: ExactSum
) -> None:
    """The others of its group may be uploading, done or waiting: nobody is blamed, and all of them answer."""
    run = memory_sum(12, active=True, groups=of(3, 12), fewest_survivors=3, length=LENGTH)

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.message) == (who, VectorChunk(chunk=sent)):
            run.kill(who)
            return []
        return [delivery]

    run.hook = hook
    run.run()
    out = {3 * (int(who[1:]) // 3) + place for place in range(3)} if sent < 7 else set()
    assert summed(run).survivors == tuple(f"c{member}" for member in range(12) if member not in out)
    assert [drop.member for drop in run.server.drops] == ([who] if sent < 7 else [])


@pytest.mark.usefixtures("small_chunks")
@modes
def test_a_vector_that_came_counts_although_its_sender_goes_before_its_group_is_whole(
    active: bool, summed: ExactSum
) -> None:
    run = memory_sum(6, active=active, groups=of(3, 6), fewest_survivors=3, length=LENGTH)

    def hook(delivery: Delivery) -> list[Delivery]:
        if (delivery.sender, delivery.message) == ("c1", VectorChunk(chunk=6)):
            assert run.server._vectors.included == set()
            run.kill("c0")
        return [delivery]

    run.hook = hook
    run.run()
    assert summed(run).survivors == run.agreement.cohort
    assert [(drop.member, drop.included) for drop in run.server.drops] == [("c0", True)]


@cases(("size", "most"), [(50, 4 * UPLOADS + 1), (1, 2 * UPLOADS + 1)])
def test_memory_does_not_grow_with_the_clients(size: int, most: int) -> None:
    """A thousand clients in groups or without upload, some of whom stall or are invited: so many vectors, no more."""
    clients, length = 1000, 2**18 + 16
    made = memory_sum(3, active=False, length=length).agreement
    groups = of(size, clients) if size > 1 else ()
    agreement = replace(made, cohort=tuple(f"c{member}" for member in range(clients)), groups=groups)
    vectors, generator = VectorSum(agreement), np.random.default_rng(7)
    vector_bytes = length * agreement.ring.word.itemsize
    assert agreement.chunks == 2
    tracemalloc.start()
    try:
        order = generator.permutation(clients).tolist()
        requests = vectors.invite(0.0)
        requests += [request for member in order for request in vectors.take(member, None, 0.0)]
        stalled = {2 * place: 50 for place in range(3)}
        turn = 0
        while requests:
            member, chunk = requests.pop(turn % len(requests))
            turn += 1
            if len(stalled) > turn % 97 and member % 50 in stalled and stalled[member % 50] and requests:
                stalled[member % 50] -= 1
                requests.append((member, chunk))
                continue
            span = agreement.chunk_span(chunk)
            requests += vectors.store(member, chunk, np.ones(span.stop - span.start, agreement.ring.word), 0.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(vectors.included) == clients
    assert (vectors.total == clients).all()
    # One chunk that has come is there beside them.
    assert peak < (most + 1 + 0.5) * vector_bytes


def test_groups_are_no_part_of_what_is_told_but_of_the_roster(summed: ExactSum) -> None:
    """The context depends on the roster, which has them; the sum itself sends nothing of them."""
    plain, grouped = (memory_sum(6, active=True, groups=groups, fewest_survivors=3) for groups in ((), of(3, 6)))
    for run in (plain, grouped):
        run.run()
        assert summed(run).survivors == run.agreement.cohort
    assert plain.agreement.context == grouped.agreement.context
    assert [d.message for d in plain.log] == [d.message for d in grouped.log]


def test_group_of_and_the_fewest() -> None:
    grouped = memory_sum(6, active=True, groups=of(3, 6), fewest_survivors=3).agreement
    alone = memory_sum(6, active=True, fewest_survivors=3).agreement
    assert (grouped.fewest_summed, alone.fewest_summed) == (3, 5)
    assert {len(grouped.group_of[member]) for member in range(6)} == {3}
    assert {alone.group_of[member] for member in range(6)} == {(member,) for member in range(6)}
    assert [pair for pair in combinations(range(6), 2) if grouped.group_of[pair[0]] == grouped.group_of[pair[1]]] == [
        (0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5),
    ]  # fmt: skip


@pytest.mark.usefixtures("small_chunks")
@cases("silent", ["never ready", "stalls"])
def test_who_is_late_takes_its_group_out_and_the_rest_of_it_is_not_late(silent: str, summed: ExactSum) -> None:
    """c4 says nothing when its vector should be ready, or sends no chunk; c3 and c5 answer all the same."""
    run = memory_sum(12, active=True, groups=of(3, 12), fewest_survivors=9, length=LENGTH)
    if silent == "never ready":
        run.training = {"c4"}
    run.hook = lambda delivery: [] if (delivery.sender, delivery.kind) == ("c4", "vector-chunk") else [delivery]
    run.run()
    assert summed(run).survivors == tuple(f"c{member}" for member in range(12) if member not in (3, 4, 5))
    assert [(drop.member, drop.code, drop.included) for drop in run.server.drops] == [("c4", Code.TIMEOUT, False)]
    assert {run.clients[name].state for name in ("c3", "c5")} == {ClientState.DONE}
    agreement = run.server.agreement
    training = agreement.train_seconds if silent == "never ready" else 0.0
    assert run.now == agreement.phase_seconds + training

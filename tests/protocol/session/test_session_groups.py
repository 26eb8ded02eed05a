"""Federations whose roster has groups: cohorts are of whole groups, and a client keeps to its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.machine import Ended
from tacit.protocol.core.roster import Roster, encode_members
from tacit.protocol.group_key.messages import StartKey
from tacit.protocol.session.client_session import group_hash, journalled_group
from tacit.protocol.session.messages import StartRound, Welcome
from tacit.protocol.session.rounds import GroupEntry, JournalEntry, RoundDone, RoundOver, agree
from tacit.protocol.sum.events import GroupsExcluded
from tacit.protocol.sum.messages import MaskedInput
from tacit.secagg.packing import WeightForm
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

PAIRS = (1, 1, 2, 2, 3, 3)
BINARY = {"min_contributors": 2, "form": WeightForm.COORDINATE, "max_weight": 1, "value_bits": 12}


def federation(groups: Sequence[int] = PAIRS, *, rounds: int = 1, **changes: Any) -> MemoryFederation:
    """Six clients in pairs, of whom two may be missing from a sum."""
    settings = {"colluders": 0, "dropout": 0.34, "parameters": 60} | changes
    clients = settings.pop("clients", len(groups))
    return MemoryFederation(small_configuration(clients, **settings), len(groups), rounds=rounds, groups=groups)


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"client-{number}" for number in numbers)


def check_sums(one: MemoryFederation, *survivors: tuple[str, ...]) -> None:
    """The rounds had these survivors, and their sums were exact."""
    done = one.outcome(RoundDone)
    assert [round.survivors for round in done] == list(survivors)
    for round in done:
        np.testing.assert_array_equal(round.total, one.plain_sum(round))


def regrouped(roster: Roster, groups: Sequence[int]) -> Roster:
    numbers = dict(zip(roster.clients, groups, strict=True))
    return Roster(tuple(replace(member, group=numbers.get(member.name, 0)) for member in roster.members))


@cases("changes", [{}, {"mode": "semi-honest"}, {"group_key": True}])
def test_rounds_of_all_groups(changes: dict[str, Any]) -> None:
    one = federation(rounds=2, **changes).run()
    check_sums(one, one.roster.clients, one.roster.clients)
    assert one.ended(SERVER) == Ended(None, "all rounds are done")


@cases("mode", ["active", "semi-honest"])
def test_who_is_lost_takes_its_group_out_of_one_sum(mode: str) -> None:
    """The other of its group is told like everybody, and both are in the next round."""
    one = federation(rounds=2, mode=mode)
    lost: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.packet.kind) == ("client-2", MaskedInput) and not lost:
            lost.append(parcel)
            one.kill("client-2")
            one.server.link_lost("client-2", one.now)
            return []
        return [parcel]

    one.hook, one.paused = hook, True
    one.start()
    one.settle(until=60.0)
    one.start("client-2")
    one.paused = False
    one.settle()
    check_sums(one, names(0, 1, 4, 5), one.roster.clients)
    assert [over.code for over in one.outcome(RoundOver, "client-3")] == [None, None]
    assert one.outcome(GroupsExcluded, SERVER) == [GroupsExcluded(members=["client-3"])]


@cases("changes", [{}, {"group_key": True}])
def test_a_round_takes_those_whose_groups_are_there(changes: dict[str, Any]) -> None:
    one = federation(rounds=1, **changes)
    one.start(*names(0, 1, 2, 4, 5))
    one.settle()
    check_sums(one, names(0, 1, 4, 5))


def test_a_round_takes_whole_groups_up_to_its_largest_cohort() -> None:
    """Seven at most are three pairs; the server does not wait for a fourth one."""
    one = federation((1, 1, 2, 2, 3, 3, 4, 4), clients=7)
    one.paused = True
    one.start(*names(0, 3, 4, 5, 6, 7))
    assert not one.outcome(RoundDone)
    one.start("client-2")
    (done,) = one.outcome(RoundDone)
    assert (one.now, done.survivors) == (0.0, names(2, 3, 4, 5, 6, 7))


def test_too_few_whole_groups_end_the_session() -> None:
    one = federation()
    one.start(*names(0, 2, 4, 5))
    one.settle()
    ended = one.ended(SERVER)
    assert ended is not None
    assert ended == Ended(Code.THRESHOLD, "only 2 clients are there with their whole groups; a round takes at least 3")


def test_a_barred_member_keeps_its_group_out_for_the_session() -> None:
    one = federation(rounds=3)

    def hook(parcel: Parcel) -> list[Parcel]:
        if (parcel.sender, parcel.packet.kind) == ("client-2", MaskedInput):
            return [altered(parcel, payload=b"\0" * 3)]
        return [parcel]

    one.hook = hook
    one.run()
    check_sums(one, *[names(0, 1, 4, 5)] * 3)
    assert [round.cohort for round in one.outcome(RoundDone)] == [one.roster.clients, *[names(0, 1, 4, 5)] * 2]
    assert one.ended("client-3") == Ended(None, "the federation is finished")


CUT = [(0, 1, 2, 4, 5), (0, 2, 3, 4, 5), (0, 1, 2, 3, 4)]


@cases("cohort", CUT)
@cases("kind", [StartRound, StartKey])
def test_a_cohort_that_cuts_a_group_is_refused(kind: Any, cohort: tuple[int, ...]) -> None:
    """By whoever is told so; an honest round follows where the session goes on."""
    one = federation(rounds=2, group_key=kind is StartKey)
    field = "members" if kind is StartKey else "cohort"
    lies: list[str] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is not kind or parcel.receiver != "client-0" or lies:
            return [parcel]
        lies.append(parcel.receiver)
        return [altered(parcel, message=replace(parcel.message, **{field: encode_members(cohort, 6)}))]

    one.hook = hook
    one.run()
    assert lies
    if kind is StartKey:
        ended = one.ended("client-0")
        assert ended is not None
        assert (ended.code, "of a group" in ended.detail) == (Code.MEMBERS, True)
        check_sums(one, *[names(2, 3, 4, 5)] * 2)
        return
    (first, second) = one.outcome(RoundOver, "client-0")
    assert (first.code, "of a group" in first.detail, second.code) == (Code.MEMBERS, True, None)
    check_sums(one, names(2, 3, 4, 5), one.roster.clients)


@cases(
    ("groups", "changes", "why"),
    [
        (PAIRS, {"colluders": 1, "dropout": 0.33}, "a group of 2 clients, of whom 1 may collude: .* at least 3"),
        ((1, 1, 1, 2, 2, 2), {"colluders": 1, "dropout": 0.33}, r"takes its group of 3 .* and 3 are left, where 5"),
        (PAIRS, {"dropout": 0.33}, r"its group of 2 .* of 6 clients, and 4 are left, where 5 .* tolerates 1"),
        ((1, 1, 2, 2), {"dropout": 0.5}, "2 are left, where 3 are needed"),
        ((1, 1, 1), {"dropout": 0.9}, "0 are left, where 3 are needed"),
        (PAIRS, {"threshold": 6}, "when one of 6 clients is lost, 5 answer, and 6 must"),
    ],
)
def test_groups_with_which_no_client_could_be_lost_are_refused_before_anything(
    groups: tuple[int, ...], changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        federation(groups, **changes)


@cases("clients", [8, 20, 100, 1000])
def test_with_the_default_fractions_no_groups_fit(clients: int) -> None:
    configuration = small_configuration(clients)
    for size in range(1, clients + 1):
        with pytest.raises(ValueError, match=r"a group needs at least|are left, where"):
            configuration.check_groups([size] * (clients // size), clients // size * size, 3)


@cases(
    ("clients", "size", "colluders", "dropout"),
    [(12, 3, 1, 0.33), (6, 2, 0, 0.34), (20, 4, 2, 0.2), (100, 12, 10, 0.2), (1000, 52, 50, 0.1)],
)
def test_values_that_fit(clients: int, size: int, colluders: int, dropout: float) -> None:
    configuration = small_configuration(clients, colluders=colluders, dropout=dropout)
    sizes = [size + (group < clients % size) for group in range(clients // size)]
    configuration.check_groups([min(sizes), size + -(-(clients % size) // (clients // size))], clients, 3)


def test_a_group_too_small_for_what_may_collude_is_refused_by_every_client() -> None:
    one = federation()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.packet.kind is not Welcome:
            return [parcel]
        return [altered(parcel, message=replace(parcel.message, configuration=proposed))]

    proposed = encode_structure(replace(one.configuration, colluders=1))
    one.hook = hook
    one.start()
    for name in one.roster.clients:
        ended = one.ended(name)
        assert ended is not None
        assert ended.code is Code.POLICY
        assert "a group of 2 clients; of 6, 1 may collude, and a group needs at least 3" in ended.detail


@cases(("clients", "dropout"), [(6, 0.34), (12, 0.5), (24, 0.4)])
@cases("mode", ["active", "semi-honest"])
def test_what_may_be_missing_from_a_sum_is_what_coordinated_weights_spare(
    mode: Any, clients: int, dropout: float
) -> None:
    """Whole groups are missing from it: so every party's fewest survivors leave no more than that, in every graph."""
    groups = [1 + 3 * number // clients for number in range(clients)]
    for graph in ("complete", "auto"):
        one = federation(groups, mode=mode, dropout=dropout, graph=graph, **BINARY)
        made = agree(
            session=bytes(32),
            round=1,
            roster=one.roster,
            configuration=one.configuration,
            cohort=one.roster.clients,
            model=bytes(32),
            fewest_survivors=3,
        )
        spared = clients - one.configuration.fewest_survivors(clients)
        assert clients - made.fewest_summed == spared == int(dropout * clients)


def restarted(one: MemoryFederation, groups: Sequence[int]) -> MemoryFederation:
    """All start again with a roster that has other groups, and their journals."""
    one.roster = regrouped(one.roster, groups)
    one.rounds_left = 1
    one.start_server()
    one.start()
    return one.settle()


def test_a_client_keeps_to_its_group_until_its_owner_accepts_another() -> None:
    """client-2 and client-3 change places with nobody; client-0 and client-4 do."""
    one = federation().run()
    hashes = {name: group_hash(one.roster, name) for name in one.roster.clients}
    assert len(set(hashes.values())) == 3
    for name, lines in one.journals.items():
        assert lines[0] == GroupEntry(group=hashes[name])
        assert isinstance(lines[1], JournalEntry)
    restarted(one, (9, 1, 2, 2, 1, 9))
    for name in names(0, 1, 4, 5):
        ended = one.ended(name)
        assert ended is not None
        assert ended.code is Code.POLICY
        assert "another group before, by its journal, than in the roster" in ended.detail
        assert f'tacit client --accept-groups "{one.roster.fingerprint}"' in ended.detail
    assert one.outcome(RoundDone)[-1].total is None
    one.accepted_groups = one.roster.fingerprint
    restarted(one, (9, 1, 2, 2, 1, 9))
    assert one.outcome(RoundDone)[-1].survivors == one.roster.clients
    assert one.journals["client-0"][-2] == GroupEntry(group=group_hash(one.roster, "client-0"))
    # What is accepted is one roster: the way back is another change.
    restarted(one, PAIRS)
    ended = one.ended("client-0")
    assert ended is not None
    assert ended.code is Code.POLICY


@cases(
    ("before", "after"),
    [
        (PAIRS, (0,) * 6),  # left
        ((0,) * 6, PAIRS),  # begun
    ],
)
def test_to_have_no_group_is_a_group_too(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    one = federation(before, mode="semi-honest").run()
    restarted(one, after)
    for name in one.roster.clients:
        ended = one.ended(name)
        assert ended is not None
        assert ended.code is Code.POLICY
    one.accepted_groups = one.roster.fingerprint
    restarted(one, after)
    restarted(one, after)
    assert [round.survivors for round in one.outcome(RoundDone)[-2:]] == [one.roster.clients] * 2


def test_a_group_is_who_is_in_it_by_their_keys() -> None:
    one, other = (
        federation(),
        MemoryFederation(small_configuration(6, colluders=0, dropout=0.34), 6, groups=PAIRS, seed=b"other"),
    )
    first = group_hash(one.roster, "client-0")
    assert first == group_hash(one.roster, "client-1")
    assert first == group_hash(regrouped(one.roster, (7, 7, 1, 1, 1, 1)), "client-0")
    assert first != group_hash(regrouped(one.roster, (1, 1, 1, 2, 2, 2)), "client-0")
    assert first != group_hash(other.roster, "client-0")
    assert group_hash(regrouped(one.roster, (0,) * 6), "client-0") == b""


ENTRY = JournalEntry(session=bytes(32), round=1)


@cases(
    ("lines", "group"),
    [
        ([], None),
        ([ENTRY], b""),
        ([GroupEntry(group=b"a")], b"a"),
        ([GroupEntry(group=b"a"), ENTRY], b"a"),
        ([GroupEntry(group=b"a"), ENTRY, GroupEntry(group=b"b")], b"b"),
        ([ENTRY, GroupEntry(group=b"a")], b"a"),
    ],
)
def test_the_group_that_a_journal_has(lines: list[Any], group: bytes | None) -> None:
    assert journalled_group(lines) == group

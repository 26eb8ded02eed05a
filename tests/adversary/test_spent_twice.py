"""A client that was restored from a backup has forgotten what it spent of its privacy budget: the others have not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tacit.protocol.core.errors import Code
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.session.messages import Welcome
from tacit.protocol.session.rounds import JournalEntry, RoundDone, RoundOver, SpendingEntry, Train
from tacit.protocol.sum.messages import AdvertiseKeys, MaskedInput
from tacit.protocol.sum.spending import NOTHING_SPENT, amount_of, highest, state_spending
from tacit.simulate.world.disk import SimulatedDisk
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tests.parties.learning.test_budget import Three

VICTIM = "client-0"


def spent_up(*, rounds: int = 3, **given: Any) -> MemoryFederation:
    """A federation in which the victim has spent so much of its budget; its journal has been lost since, or is that of
    a backup that was made before the first round."""
    one = MemoryFederation(small_configuration(5, spending=True), 5, rounds=rounds, policies={VICTIM: Three()}, **given)
    one.stated = {VICTIM: 0.0}
    one.run()
    assert len(sent(one)) == rounds
    one.stated, one.rounds_left = {}, 2
    return one


def restore(one: MemoryFederation, *lines: JournalEntry | SpendingEntry, name: str = VICTIM) -> None:
    """The client's folder as it was with these lines in its journal, before it held anything of others."""
    one.kill(name)
    one.disks[name] = SimulatedDisk()
    one.spending.pop(name, None)
    for line in lines:
        one.journal(name).write(line)


BACKUP = SpendingEntry(spent=0.0, by_owner=True)


def sent(one: MemoryFederation, name: str = VICTIM) -> list[Any]:
    return [parcel for parcel in one.log if parcel.sender == name and parcel.packet.kind is MaskedInput]


def go_on(one: MemoryFederation) -> MemoryFederation:
    one.start_server(completed=one.server.round)
    return one.run()


@pytest.mark.threat("stranger/restores-a-backup")
def test_what_a_backup_has_forgotten_is_told_by_the_server() -> None:
    one = spent_up()
    restore(one, BACKUP)
    go_on(one)
    assert len(sent(one)) == 3
    assert one.journals[VICTIM][-1] == SpendingEntry(spent=3.0)
    refusals = [over.code for over in one.outcome(RoundOver, VICTIM)[3:]]
    assert set(refusals) == {Code.POLICY}
    assert len(one.outcome(Train, VICTIM)) == 3
    # The others go on without it.
    assert [VICTIM in done.survivors for done in one.outcome(RoundDone)[3:]] == [False, False]


@pytest.mark.threat("server/forgets-spending")
def test_what_the_server_withholds_is_told_by_the_cohort() -> None:
    """Sealed beside the shares, where the server can neither read nor leave it out: the round is over for the client
    before its vector leaves, and it enters no other one."""
    one = spent_up()
    restore(one, BACKUP)
    one.spending.pop(SERVER)
    go_on(one)
    welcome = [parcel.message for parcel in one.log if parcel.receiver == VICTIM and parcel.packet.kind is Welcome][-1]
    assert welcome.spent == NOTHING_SPENT
    assert len(sent(one)) == 3
    assert one.journals[VICTIM][-1] == SpendingEntry(spent=4.0)
    assert {over.code for over in one.outcome(RoundOver, VICTIM)[3:]} == {Code.POLICY}
    assert all(done.total is not None and VICTIM not in done.survivors for done in one.outcome(RoundDone)[3:])


@pytest.mark.threat("server/forgets-spending")
def test_where_all_witnesses_are_withheld_a_backup_is_believed() -> None:
    """No promise is made here: nobody but server and cohort could know."""
    one = spent_up()
    restore(one, BACKUP)
    one.spending.clear()
    go_on(one)
    assert len(sent(one)) == 5


@pytest.mark.threat("stranger/restores-a-backup")
def test_part_of_a_budget_is_left_after_a_restore() -> None:
    one = spent_up(rounds=2)
    restore(one, BACKUP)
    one.spending.pop(SERVER)
    go_on(one)
    assert len(sent(one)) == 3
    assert [VICTIM in done.survivors for done in one.outcome(RoundDone)] == [True, True, True, False]


@pytest.mark.threat("stranger/restores-a-backup")
def test_where_nobody_knows_the_owner_is_asked() -> None:
    one = spent_up(rounds=1)
    restore(one)
    one.spending.pop(SERVER)
    go_on(one)
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is Code.POLICY
    assert "--spent" in ended.detail
    assert len(sent(one)) == 1
    # Its word counts, and so does what others know beyond it.
    one.stated, one.rounds_left = {VICTIM: 0.5}, 3
    go_on(one)
    lines = [line for line in one.journals[VICTIM] if isinstance(line, SpendingEntry)]
    assert lines == [SpendingEntry(spent=0.5, by_owner=True), SpendingEntry(spent=2.0)]
    assert len(sent(one)) == 3


def renewed(one: MemoryFederation, name: str) -> None:
    key = SigningKey(bytes(range(32)))
    former = one.roster.member(VICTIM)
    member = replace(former, name=name, signing_public=key.public, previous=(former.signing_public,))
    one.roster = Roster((*(other for other in one.roster.members if other is not former), member))
    one.signing = {**one.signing, name: key}
    one.policies = {name: Three()}


@pytest.mark.threat("stranger/restores-a-backup")
@pytest.mark.parametrize("witness", [SERVER, "cohort"])
@pytest.mark.parametrize("name", [VICTIM, "client-9"])
def test_other_keys_and_another_name_begin_no_new_budget(name: str, witness: str) -> None:
    one = spent_up()
    renewed(one, name)
    restore(one, BACKUP, name=name)
    if witness != SERVER:
        one.spending.pop(SERVER)
    go_on(one)
    assert len(sent(one)) + len(sent(one, name)) == (6 if name == VICTIM else 3)
    assert {over.code for over in one.outcome(RoundOver, name)[3 * (name == VICTIM) :]} == {Code.POLICY}


@pytest.mark.threat("client/lies-about-spending")
def test_nobody_else_can_state_what_a_client_has_spent() -> None:
    """Neither server nor cohort: a statement that the client has not signed, for this federation, counts nothing."""
    one = spent_up(rounds=1)
    lie = state_spending(one.signing["client-1"], one.roster.lineage, 100.0)
    foreign = state_spending(one.signing[VICTIM], bytes(32), 100.0)
    key = one.roster.member(VICTIM).signing_public
    for party, said in ((SERVER, lie), ("client-1", lie), ("client-2", foreign)):
        one.spending.setdefault(party, {})[key] = said
    go_on(one)
    assert all(VICTIM in done.survivors for done in one.outcome(RoundDone))
    assert not [line for line in one.journals[VICTIM][1:] if isinstance(line, SpendingEntry)]


@pytest.mark.threat("client/lies-about-spending")
@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf"), 2.0])
def test_an_advert_with_a_statement_that_its_client_has_not_signed_is_refused(amount: float) -> None:
    one = MemoryFederation(small_configuration(5, spending=True), 5)
    signed = state_spending(one.signing[VICTIM], one.roster.lineage, amount)
    forged = signed if amount != 2.0 else signed[:-1] + bytes([signed[-1] ^ 1])

    def lying(parcel: Any) -> list[Any]:
        if parcel.sender != VICTIM or parcel.packet.kind is not AdvertiseKeys:
            return [parcel]
        return [one.forge(VICTIM, SERVER, replace(parcel.message, spent=forged), round=1)]

    one.hook = lying
    one.run()
    (done,) = one.outcome(RoundDone)
    assert [(dropped.member, dropped.code) for dropped in done.dropped] == [(VICTIM, Code.SIGNATURE)]


@pytest.mark.threat("client/lies-about-spending")
@pytest.mark.parametrize("spending", [False, True])
def test_an_advert_with_a_statement_where_there_is_none_or_without_is_refused(*, spending: bool) -> None:
    """The signature over the advert is no obstacle: it is the client's own, and here there is none."""
    one = MemoryFederation(small_configuration(5, mode="semi-honest", spending=spending), 5)
    other = b"" if spending else NOTHING_SPENT

    def lying(parcel: Any) -> list[Any]:
        if parcel.sender != VICTIM or parcel.packet.kind is not AdvertiseKeys:
            return [parcel]
        return [one.forge(VICTIM, SERVER, replace(parcel.message, spent=other), round=1)]

    one.hook = lying
    one.run()
    (done,) = one.outcome(RoundDone)
    assert [(dropped.member, dropped.code) for dropped in done.dropped] == [(VICTIM, Code.SIGNATURE)]


@pytest.mark.threat("server/forgets-spending")
def test_a_client_with_a_budget_refuses_a_configuration_without_statements() -> None:
    one = MemoryFederation(small_configuration(5), 5, policies={VICTIM: Three()})
    one.stated = {VICTIM: 0.0}
    one.run()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is Code.POLICY
    assert "spending = False" in ended.detail
    assert not sent(one)
    assert not one.journals[VICTIM]


@pytest.mark.threat("server/forgets-spending")
@pytest.mark.parametrize("spending", [False, True])
def test_a_welcome_has_a_statement_where_the_configuration_says_so(*, spending: bool) -> None:
    one = MemoryFederation(small_configuration(5, spending=spending), 5)

    def lying(parcel: Any) -> list[Any]:
        if parcel.receiver != VICTIM or parcel.packet.kind is not Welcome:
            return [parcel]
        return [one.forge(SERVER, VICTIM, replace(parcel.message, spent=b"" if spending else NOTHING_SPENT), round=0)]

    one.hook = lying
    one.run()
    ended = one.ended(VICTIM)
    assert ended is not None
    assert ended.code is Code.SIGNATURE
    assert not sent(one)


@pytest.mark.threat("client/lies-about-spending")
def test_the_highest_statement_that_is_its_own_counts() -> None:
    one = MemoryFederation(small_configuration(5, spending=True), 5)
    key, member, lineage = one.signing[VICTIM], one.roster.member(VICTIM), one.roster.lineage
    said = [state_spending(key, lineage, amount) for amount in (1.0, 3.0, 2.0)]
    nonsense = [NOTHING_SPENT, b"\xff" * len(NOTHING_SPENT), said[1][:8] + said[0][8:]]
    assert highest([*nonsense, *said], lineage, member) == 3.0
    assert highest(nonsense, lineage, member) == 0.0
    assert amount_of(state_spending(key, lineage, 0.0)) == 0.0

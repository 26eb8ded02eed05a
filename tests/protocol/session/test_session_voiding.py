"""Whole federations whose server repeats a round, or tries to: honestly after an abort, and as an attack."""

from collections.abc import Callable

import pytest

from tacit.protocol.core.codec import decode
from tacit.protocol.core.errors import Code
from tacit.protocol.core.messages import Abort
from tacit.protocol.core.outputs import Ended, Transmit
from tacit.protocol.session.messages import MESSAGES, MOST_PROMISES, EndRound, Hello, StartRound, VoidRound
from tacit.protocol.session.rounds import RoundDone, RoundOver
from tacit.protocol.session.tables import SessionState
from tacit.protocol.sum.messages import MaskedInput, UnmaskRequest
from tacit.protocol.sum.results import Contribution, Journal
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.network import Parcel


def federation(mode: str = "active", rounds: int = 2, clients: int = 5) -> MemoryFederation:
    return MemoryFederation(small_configuration(clients, mode=mode), clients, rounds=rounds)


def silent(one: MemoryFederation, kind: type, *names: str) -> Callable[[Parcel], list[Parcel]]:
    """A hook that loses everything that these members say from their first message of this type on, in round 1."""
    lost: set[str] = set()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.sender in names and parcel.packet.kind is kind and one.server.round == 1:
            lost.add(parcel.sender)
        return [] if parcel.sender in lost else [parcel]

    return hook


def test_an_aborted_round_is_repeated_thanks_to_promises() -> None:
    """Only three of the four vectors that are needed come; their senders promise, which is one more than enough."""
    one = federation()
    one.hook = silent(one, MaskedInput, "client-0", "client-1")
    one.start()
    one.settle(until=15.0)
    (first,) = one.outcome(RoundDone)
    assert (first.code, one.server.state, one.server.round) == (Code.THRESHOLD, SessionState.IN_ROUND, 2)
    starts = [p.message for p in one.log if p.packet.kind is StartRound and p.packet.envelope.round == 2]
    assert {tuple(given.member for given in start.voided[0].promises) for start in starts} == {one.roster.clients[2:]}
    assert {over.round for over in one.outcome(RoundOver)} == {1}


def test_an_aborted_round_is_not_repeated_with_too_few_promises() -> None:
    """Semi-honest: two of the three vectors that are needed come; three promises are needed, two are made."""
    one = federation("semi-honest")
    one.hook = silent(one, MaskedInput, "client-0", "client-1", "client-2")
    one.start()
    one.settle(until=15.0)
    assert one.server.state is SessionState.AWAIT_PROMISES
    one.settle(until=200.0)
    ended = one.ended(SERVER)
    assert ended is not None
    assert ended.code is Code.REPEATED_MODEL


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
def test_an_aborted_round_is_repeated_with_everybody(mode: str) -> None:
    """The vectors come too late for the round; their senders promise like the others, and all take part again."""
    one = federation(mode)
    held: list[Parcel] = []

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver != SERVER and parcel.packet.kind is Abort and parcel.receiver in late:
            one.hook = forward
        if parcel.sender in late and parcel.packet.kind is MaskedInput and one.server.round == 1:
            held.append(parcel)
            return []
        return [parcel]

    def forward(parcel: Parcel) -> list[Parcel]:
        released = [kept for kept in held if kept.sender == parcel.sender]
        held[:] = [kept for kept in held if kept.sender != parcel.sender]
        return [*released, parcel]

    late = one.roster.clients[:3]
    one.hook = hook
    one.run()
    first, second = one.outcome(RoundDone)
    assert (first.code, first.total) == (Code.THRESHOLD, None)
    assert second.survivors == one.roster.clients
    assert (second.total == one.plain_sum(second)).all()
    assert [over.code for over in one.outcome(RoundOver, "client-4")] == [Code.THRESHOLD, None]
    assert one.ended(SERVER) == Ended(None, "all rounds are done")
    for name in one.roster.clients:
        journal = [written.contribution for written in one.outcome(Journal, name)]
        assert [(entry.round, entry.unmasked) for entry in journal] == [(1, False), (2, False), (2, True)], name


def aborted_after(one: MemoryFederation, unmasked: int) -> None:
    """A first round that is aborted in UNMASK after this many clients sent their shares."""
    names = one.roster.clients
    lost: set[str] = set()

    def hook(parcel: Parcel) -> list[Parcel]:
        if parcel.receiver in names[unmasked:] and parcel.packet.kind is UnmaskRequest and one.server.round == 1:
            lost.add(parcel.receiver)
        return [] if lost & {parcel.receiver, parcel.sender} else [parcel]

    one.hook = hook
    one.start()
    one.settle(until=9.0)
    for name in names[unmasked:]:
        one.clients[name].server_lost(one.now)


def test_the_server_ends_where_too_few_can_promise() -> None:
    """Three of five have opened their shares, two have not but are gone: nobody can show that the sum stays closed."""
    one = federation()
    aborted_after(one, 3)
    one.settle(until=200.0)
    assert one.outcome(RoundDone)[0].code is Code.THRESHOLD
    ended = one.ended(SERVER)
    assert ended is not None
    assert ended.code is Code.REPEATED_MODEL
    assert "too few clients promised" in ended.detail
    assert [parcel for parcel in one.log if parcel.packet.kind is VoidRound] == []


def test_a_client_promises_what_it_masked_and_nothing_else() -> None:
    """Before its vector is masked there is nothing to promise, after unmasking it would be a lie."""
    for kind, code, promised in (
        ("peer-keys", Code.THRESHOLD, 0),
        ("peer-shares", Code.THRESHOLD, 0),
        ("survivors", Code.THRESHOLD, 1),
        ("unmask-request", Code.THRESHOLD, 1),
        ("end-round", Code.THRESHOLD, 0),
        ("unmask-request", None, 0),
    ):
        one = federation(rounds=1)
        one.paused = True
        reached: set[str] = set()

        def hook(parcel: Parcel, kind: str = kind, reached: set[str] = reached) -> list[Parcel]:
            if parcel.receiver == "client-0" and kind == parcel.packet.kind.TYPE:
                reached.add("client-0")
            return [] if "client-0" in reached and "client-0" in (parcel.receiver, parcel.sender) else [parcel]

        one.hook = hook
        one.start()
        outputs = one.put(one.forge(SERVER, "client-0", EndRound(code=code, detail=""), round=1))
        sent = [decode(output.frames, MESSAGES).kind for output in outputs if isinstance(output, Transmit)]
        assert sent == [VoidRound] * promised, (kind, code)


def test_a_long_journal_is_promised_from_its_end() -> None:
    one = federation(rounds=1)
    entries = [
        Contribution(session=bytes(32), round=round, model=bytes(32), sharers=(), threshold=1, unmasked=round % 2 == 0)
        for round in range(1, 4 * MOST_PROMISES)
    ]
    for entry in entries:
        one.journal("client-0").write(entry)
    one.run()
    hello = next(p.message for p in one.log if p.sender == "client-0" and p.packet.kind is Hello)
    rounds = [promise.round for promise in hello.promises]
    assert rounds == [entry.round for entry in entries if not entry.unmasked][-MOST_PROMISES:]
    assert one.outcome(RoundDone)[0].survivors == one.roster.clients

"""What links do to messages: keep their order, hold them while they are cut; on request lose, repeat or swap them."""

from dataclasses import dataclass
from math import inf
from random import Random

import pytest

from tacit.simulate.world.world import Conduct, Network


@dataclass(frozen=True)
class Note:
    sender: str
    receiver: str
    number: int
    kind: str = "note"


def sent(network: Network[Note], count: int = 40) -> list[Note]:
    notes = [Note(sender, "s", number) for number in range(count) for sender in "ab"]
    for note in notes:
        network.send(note, 0.0)
    return notes


def received(network: Network[Note], now: float = inf) -> list[Note]:
    notes = []
    while (note := network.take(now)) is not None:
        notes.append(note)
    return notes


def test_without_delay_everything_arrives_in_the_order_of_sending() -> None:
    network = Network[Note](Random(1))
    assert (received(network), network.next_arrival) == ([], inf)
    notes = sent(network)
    assert network.under_way() == notes
    assert network.under_way("b", "s") == notes[1::2]
    assert (received(network, 0.0), network.faults) == (notes, 0)


def test_delay_keeps_the_order_of_a_link_and_no_other() -> None:
    network = Network[Note](Random(1))
    network.conduct = Conduct(most_delay=5.0)
    notes = sent(network)
    first = network.next_arrival
    assert 0.0 < first < 5.0
    assert received(network, first / 2) == []
    early = received(network, first)
    arrived = [*early, *received(network, 5.0)]
    assert arrived != notes
    for sender in "ab":
        assert [note for note in arrived if note.sender == sender] == [note for note in notes if note.sender == sender]


def test_what_is_sent_over_a_cut_link_waits_and_what_is_forgotten_never_comes() -> None:
    network = Network[Note](Random(1))
    network.cut.add("a")
    notes = sent(network)
    assert received(network) == notes[1::2]
    network.cut.clear()
    assert network.pull("a", "s") == notes[0]
    network.forget(lambda link: link == ("s", "a"))
    assert received(network) == notes[2::2]
    sent(network)
    network.forget(lambda link: "a" in link)
    assert {note.sender for note in received(network)} == {"b"}


@pytest.mark.parametrize("fault", ["loss", "repetition", "overtaking"])
def test_every_fault_is_counted(fault: str) -> None:
    network = Network[Note](Random(1))
    network.conduct = Conduct(**{fault: 0.25})
    notes = sent(network)
    arrived = received(network)
    missing = len(set(notes)) - len(set(arrived))
    extra = len(arrived) - len(set(arrived))
    assert network.faults > 5
    assert (missing, extra) == {
        "loss": (network.faults, 0), "repetition": (0, network.faults), "overtaking": (0, 0)
    }[fault]  # fmt: skip
    for sender in "ab":
        order = [note.number for note in arrived if note.sender == sender]
        assert (order == sorted(order)) == (fault != "overtaking")


def test_a_choice_says_which_link_speaks_next() -> None:
    network = Network[Note](Random(1))
    network.choose = max
    notes = sent(network)
    assert received(network) == [*notes[1::2], *notes[::2]]

"""One member floods the server of a session with every kind of message, and with every field of the envelope varied.

What the server holds, says and logs does not grow with the flood, and the others' round takes no longer than if that
member said nothing. The server's machine runs on a virtual clock.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.protocol.core.events import Event
from tacit.protocol.core.messages import Message
from tacit.protocol.core.rate_limit import HELLOS
from tacit.protocol.session.messages import MESSAGES, Hello
from tacit.protocol.session.rounds import RoundDone
from tacit.protocol.sum.states import Phase
from tacit.simulate.world.federation import SERVER, MemoryFederation, small_configuration
from tacit.simulate.world.world import Parcel, altered
from tests.cases import cases

CHEAT = "client-3"
HONEST = ("client-0", "client-1", "client-2")
SHORT, LONG = 30, 60
SECONDS = 3.0
"""Of a flood, well below the time that training takes."""

SLACK = 2_000
"""Bytes by which a machine may be larger after a longer flood: numbers grow by a digit, tables when they are full."""
MOST_SAID = 4 * HELLOS
"""Messages to the member in that time: as many answers as it has, and the end of the round for each."""
MOST_LOGGED = 4_000

Plain = Callable[[type[Message]], Message]
Variation = Callable[[int, int], dict[str, Any]]
"""Fields of the envelope, by the sequence number that is due and the number of the message in the flood."""

VARIATIONS: dict[str, Variation] = {
    "nothing": lambda due, number: {},
    "the session": lambda due, number: {"session": number.to_bytes(32, "big")},
    "the round": lambda due, number: {"round": 1000 + number},
    "the round, downwards": lambda due, number: {"round": max(0, 2 - number)},
    "the link": lambda due, number: {"link": number},
    "the number of the message": lambda due, number: {"sequence": due + number},
    "the message that it has received": lambda due, number: {"received": number},
    "the link, in no session": lambda due, number: {"session": bytes(32), "link": number, "sequence": 0, "received": 0},
}


SHOWN_TO_THE_END = ("nothing", "the link, in no session")
"""Variations after which the round is played to its end, which takes as long as all of a flood."""


def sizes(machine: object) -> int:
    """Bytes of everything that a machine holds, as Python counts them: all tables, and what is in them."""
    seen: set[int] = set()
    waiting, total = [machine], 0
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        total += sys.getsizeof(item)
        waiting += gc.get_referents(item)
    return total


def in_round() -> MemoryFederation:
    """A federation in its one round, while all train. What the member says is said by the test."""
    one = federation()
    one.start()
    one.settle(until=1.0)
    del one.clients[CHEAT]
    return one


def gathering() -> MemoryFederation:
    """A federation that waits for the member, which has said nothing."""
    one = federation()
    one.start(*HONEST)
    one.settle(until=1.0)
    return one


def federation() -> MemoryFederation:
    one = MemoryFederation(small_configuration(4), 4, rounds=1)
    one.training_seconds = lambda: 60.0
    return one


SITUATIONS = {"in a round": in_round, "before one": gathering}


@dataclass
class Flooded:
    begun: int
    """Bytes of what the server holds after the first messages."""
    size: int
    """The same at its end."""
    said: int
    """Messages to the member."""
    logged: int
    """Bytes of what the server reports."""


def flooded(messages: Iterator[Parcel], one: MemoryFederation) -> Flooded:
    said, parcels = len(one.outputs), list(messages)
    told = sum(parcel.receiver == CHEAT for parcel in one.log)
    for number, parcel in enumerate(parcels):
        one.at(one.now + SECONDS * number / LONG, partial(one.put, parcel))
    one.settle(until=one.now + SECONDS * SHORT / LONG)
    begun = sizes(one.server)
    one.settle(until=one.now + 2 * SECONDS)
    size = sizes(one.server)
    logged = sum(len(msgspec.json.encode(output)) for _, output in one.outputs[said:] if isinstance(output, Event))
    told = sum(parcel.receiver == CHEAT for parcel in one.log) - told
    return Flooded(begun, size, told, logged)


def finished(one: MemoryFederation) -> tuple[RoundDone, float]:
    one.settle()
    (done,) = one.outcome(RoundDone)
    np.testing.assert_array_equal(done.total, one.plain_sum(done))
    return done, one.now


def flood(one: MemoryFederation, kind: type[Message], varied: str, plain_message: Plain) -> Flooded:
    message = Hello(roster=one.roster.hash) if kind is Hello else plain_message(kind)
    first = {"sequence": 0, "received": 0, "session": bytes(32)} if kind is Hello else {}
    begun = 0 if kind.PHASE is Phase.SESSION else 1
    parcel = one.forge(CHEAT, SERVER, message, round=begun, payload=bytes(4) if kind.PAYLOAD else None, **first)
    due = parcel.packet.envelope.sequence
    changes = VARIATIONS[varied]
    return flooded((altered(parcel, **changes(due, number)) for number in range(LONG)), one)


@pytest.mark.threat("client/flood", "client/endless-hellos", "client/endless-resumptions")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_flood_makes_the_server_grow(situation: str, plain_message: Plain) -> None:
    begin = SITUATIONS[situation]
    _, quiet = finished(begin())

    @cases("varied", VARIATIONS)
    @cases("kind", MESSAGES.values())
    def check(kind: type[Message], varied: str) -> None:
        one = begin()
        found = flood(one, kind, varied, plain_message)
        assert found.size <= found.begun + SLACK
        assert found.said <= MOST_SAID
        assert found.logged <= MOST_LOGGED
        if varied in SHOWN_TO_THE_END:
            done, ended = finished(one)
            assert set(HONEST) <= set(done.survivors)
            assert ended <= quiet

    check()

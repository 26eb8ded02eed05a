"""Figures of a report: which parties they show, and that equal data give equal bytes."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from tacit.parties.runs.reading import read_state
from tacit.parties.runs.state import PartyState
from tacit.protocol.sum.states import Phase
from tacit.simulate.report.figures import COLOURS, MOST_ROWS, PHASES, party_bars, sample, timeline


def test_of_many_clients_a_few_are_drawn_and_the_same_data_give_the_same_bytes(script: Any) -> None:
    run = script(clients=40)
    run.session()
    run.round(1, dropped={"client-37": False}, killed=["client-37"])
    run.end()
    state = read_state(run.run.path / "events")
    bars = partial(party_bars, None, state.clients, "sent", title="Sent", axis="sent", name="sent")
    sent = bars()
    assert bars() == sent
    (round,) = state.rounds
    lines = timeline(round, "server", window=(round.began, round.ended), title="Round 1", axis="time", name="line")
    for figure in (sent, lines):
        assert len(re.findall(r">client-\d+<", figure)) == MOST_ROWS
    assert ">client-37</text>" in lines


def test_a_sample_is_evenly_spaced() -> None:
    parties = [PartyState(str(number)) for number in range(31)]
    assert [party.name for party in sample(parties, 16)] == [str(number) for number in range(0, 31, 2)]
    assert sample(parties[:16], 16) == parties[:16]


def test_every_phase_has_a_colour_of_its_own() -> None:
    assert set(PHASES) == set(COLOURS) == set(Phase)
    assert len(set(COLOURS.values())) == len(Phase)

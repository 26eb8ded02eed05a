"""Figures of a report: which parties they show, and that equal data give equal bytes."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from tacit.parties.runs.reading import read_state
from tacit.simulate.report.figures import MOST_ROWS, party_bars, timeline


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

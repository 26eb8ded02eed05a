"""Tables on narrow screens: columns go, names and figures stay whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tacit.cli.output import table
from tacit.cli.screen import PartyTable
from tacit.parties.runs.state import RunState
from tacit.parties.session.events import PhaseEnded, WaitingChanged
from tacit.protocol.core.messages import Phase
from tests.simulate.conftest import at


def drawn(made: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as caught:
        console.print(made)
    return caught.get()


def parties() -> PartyTable:
    state = RunState(server="server")
    for number in range(1, 6):
        began = PhaseEnded(round=1, phase=Phase.TRAIN, seconds=1.0, next=Phase.MASKED_INPUT)
        state.take(at(1000.0, f"client-{number}", began))
    state.take(at(1000.0, "server", WaitingChanged(on=["client-1", "client-2"])))
    return PartyTable(state, 10, lambda: 1000.0)


@pytest.mark.parametrize("width", [40, 80])
def test_a_client_is_one_line_and_its_name_is_whole(width: int) -> None:
    lines = drawn(parties(), width).splitlines()
    assert all(len(line) <= width for line in lines)
    for number in range(1, 6):
        assert sum(f" client-{number} " in line and "masked" in line for line in lines) == 1


def test_without_an_order_they_go_from_the_right() -> None:
    made = table(
        ("party", "sent", "received", "training"), [("a long name of a client", "1.00 MB", "2.00 MB", "3.0 s")]
    )
    text = drawn(made, 50)
    assert "a long name of a client" in text
    assert "1.00 MB" in text
    assert "3.0 s" not in text
    assert text.splitlines()[-1] == "on a wider screen: training"


def test_cells_are_no_markup() -> None:
    made = table(("name", "key"), [("client-1", "[/(o>V2<] [bold]")], left=("key",))
    assert "[/(o>V2<] [bold]" in drawn(made, 60)

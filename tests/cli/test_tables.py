"""Tables on narrow screens: columns go, names and figures stay whole."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from tacit.cli.output import terminal
from tacit.cli.screen import PartyTable
from tacit.parties.runs.results import Column, Table, decimals, markdown, percent, prose, write_csv
from tacit.parties.runs.state import RunState
from tacit.parties.session.events import PhaseEnded, WaitingChanged
from tacit.protocol.sum.states import Phase
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


TABLE = Table(
    columns=(Column("party"), Column("sent", decimals(2), 1), Column("share", percent()), Column("reason", prose)),
    rows=[("a long name of a client", 1234.5, 0.25, None), ("client-2", None, 0.5, "lost | its link")],
)


def test_minor_columns_go_first_and_the_others_from_the_right() -> None:
    wide = drawn(terminal(TABLE), 80)
    assert "1,234.50" in wide
    assert "25%" in wide
    without_minor = drawn(terminal(TABLE), 50)
    assert without_minor.splitlines()[-1] == "on a wider screen: sent"
    narrow = drawn(terminal(TABLE), 40)
    assert "a long name of a client" in narrow
    assert "25%" in narrow
    assert narrow.splitlines()[-1] == "on a wider screen: sent, reason"


def test_cells_are_no_markup() -> None:
    made = Table(columns=(Column("name"), Column("key", prose)), rows=[("client-1", "[/(o>V2<] [bold]")])
    assert "[/(o>V2<] [bold]" in drawn(terminal(made), 60)


def test_one_declaration_gives_markdown_and_csv(tmp_path: Path) -> None:
    assert markdown(TABLE) == [
        "| party | sent | share | reason |",
        "| --- | ---: | ---: | --- |",
        "| a long name of a client | 1,234.50 | 25% | \N{EN DASH} |",
        "| client-2 | \N{EN DASH} | 50% | lost \\| its link |",
    ]
    write_csv(TABLE, tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == (
        "party,sent,share,reason\na long name of a client,1234.5,0.25,\nclient-2,,0.5,lost | its link\n"
    )

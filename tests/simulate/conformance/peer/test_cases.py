"""The table of cases in the documentation is that of the code."""

from pathlib import Path

import pytest

from tacit.simulate.conformance.peer.play import CASES, Side

PAGE = Path(__file__).parents[4] / "docs" / "conformance.md"


def table(side: Side) -> str:
    """The cases in Markdown."""
    rows = [f"| `{case.name}` | {case.does} | {case.expected} |" for case in CASES[side]]
    return "\n".join([f"| case | our {side.replace('-', ' ')} | a conforming party |", "|---|---|---|", *rows]) + "\n"


@pytest.mark.parametrize("side", CASES)
def test_the_documentation_lists_the_cases(side: Side) -> None:
    assert table(side) in PAGE.read_text(encoding="utf-8")
    assert len({case.name for case in CASES[side]}) == len(CASES[side])

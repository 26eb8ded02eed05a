"""The table of cases in the documentation is that of the code."""

from pathlib import Path

from tacit.simulate.conformance.peer.play import CASES, Side

PAGE = Path(__file__).parents[4] / "docs" / "conformance.md"


def table(side: Side) -> str:
    """The cases in Markdown."""
    rows = [f"| `{case.name}` | {case.does} | {case.expected} |" for case in CASES[side]]
    return "\n".join([f"| case | our {side.replace('-', ' ')} | a conforming party |", "|---|---|---|", *rows]) + "\n"


def test_the_documentation_lists_the_cases() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for side in CASES:
        assert table(side) in page
        assert len({case.name for case in CASES[side]}) == len(CASES[side])

"""docs/results.md takes over tables, and its links lead somewhere."""

import json
import re
from pathlib import Path

import pytest

from docs.generate.results import marks, take_over
from tacit.simulate.experiments.adaptation import AdaptationTable
from tacit.simulate.experiments.catalogue import STUDIES
from tacit.simulate.experiments.tastan_reveal import REVEAL, ROWS
from tacit.simulate.experiments.tastan_tables import TABLE1, TABLE3

NAMES = ("aso-table1", "fedrsm-table2", "sawada-fig5", "sawada-fig6")
DOCS = Path(__file__).parents[3] / "docs"


def results(directory: Path, name: str, text: str, size: str = "small") -> Path:
    directory.mkdir()
    (directory / "table.json").write_text(json.dumps({"study": name, "size": size}))
    (directory / "table.md").write_text(f"## {name}\n\n![plot](plot.svg)\n\n{text}\n")
    (directory / "plot.svg").write_text(f"<svg>{text}</svg>")
    return directory


def test_a_table_replaces_the_former_one_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    blocks = ["\n".join(marks(name)) for name in ("one", "other")]
    page.write_text("top\n\n{}\n\nmiddle\n\n{}\n\nbottom\n".format(*blocks))
    for text in ("old", "new"):
        take_over(page, results(tmp_path / text, "one", text))
    begin, end = marks("one")
    table = f"{begin}\n## one\n\n![plot](images/one.svg)\n\nnew\n{end}"
    assert page.read_text() == f"top\n\n{table}\n\nmiddle\n\n{blocks[1]}\n\nbottom\n"
    assert (tmp_path / "images" / "one.svg").read_text() == "<svg>new</svg>"


def test_the_full_size_has_a_place_of_its_own(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    blocks = ["\n".join(marks(name)) for name in ("one", "one-full")]
    page.write_text("\n".join(blocks))
    take_over(page, results(tmp_path / "run", "one", "large", "full"))
    begin, end = marks("one-full")
    assert page.read_text() == f"{blocks[0]}\n{begin}\n## one\n\n![plot](images/one-full.svg)\n\nlarge\n{end}"


@pytest.mark.parametrize("line", marks("one"))
def test_a_page_without_a_place_is_left_alone(tmp_path: Path, line: str) -> None:
    page = tmp_path / "results.md"
    page.write_text(line)
    with pytest.raises(ValueError, match="has no place for one"):
        take_over(page, results(tmp_path / "run", "one", "new"))
    assert page.read_text() == line
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_results(name: str) -> None:
    """The twin as it is declared now: its arms, its settings, and the full size, which was not run."""
    declared = STUDIES[name]
    begin, end = marks(name)
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    table = page.partition(begin)[2].partition(end)[0]
    for arm in declared.small.arms:
        assert f"| {arm.name} | {arm.published} | not run | " in table
    for what, value in declared.settings:
        assert f"| {what} | {value} |" in table
    for sentence in (*declared.silent, *declared.small.differences):
        assert f"- {sentence}" in table
    assert f"`tacit experiment {name} --small --seeds " in table


@pytest.mark.parametrize("table", [TABLE1, TABLE3], ids=lambda table: table.name)
def test_the_page_has_the_tables_of_adaptation(table: AdaptationTable) -> None:
    begin, end = marks(table.name)
    found = (DOCS / "results.md").read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    size = table.size(small=True)
    assert f"| digits | {' | '.join(column.name for column in table.columns)} |" in found
    for row in size.rows:
        assert f"| {row.name} | 0." in found
    for sentence in size.differences:
        assert f"- {sentence}" in found
    assert f"`tacit experiment {table.name} --small --seeds " in found


def test_the_page_has_what_outputs_of_blocks_give_away() -> None:
    begin, end = marks(REVEAL.name)
    found = (DOCS / "results.md").read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    for row in ROWS:
        assert f"| {row} | 0." in found
    for sentence in REVEAL.small.differences:
        assert f"- {sentence}" in found
    assert f"`tacit experiment {REVEAL.name} --small --seeds " in found


@pytest.mark.parametrize("name", ["results.md", "experiments.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", (DOCS / name).read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []

"""docs/results.md takes over tables."""

import json
from pathlib import Path

import pytest

from docs.generate.results import marks, take_over


def results(directory: Path, name: str, text: str, size: str = "small") -> Path:
    directory.mkdir()
    texts = dict.fromkeys(("shows", "paper", "claim", "command", "machine", "date", "data", "device"), "")
    lists = {key: [] for key in ("seeds", "columns", "rows", "verdicts", "silent", "differences")}
    table = {"schema": "tacit.study.2", "study": name, "size": size, "settings": {}} | texts | lists
    (directory / "table.json").write_text(json.dumps(table))
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

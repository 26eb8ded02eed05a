"""docs/results.md: takes over the tables of studies.

`python -m docs.generate.results docs/results.md DIRECTORY ...` puts the table.md of every directory
between the marks of its study, and its plot beside the page as images/NAME.svg; the full size has marks of its own,
NAME-full.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec

from tacit.simulate.experiments.results import StudyResult


def marks(name: str) -> tuple[str, str]:
    """The lines before and after the table of a study."""
    return f"<!-- begin {name} -->", f"<!-- end {name} -->"


def take_over(page: Path, directory: Path) -> None:
    """Put the results in a directory of a study onto the page. ValueError if the page has no place for them."""
    table = msgspec.json.decode((directory / "table.json").read_bytes(), type=StudyResult)
    name = table.study + ("-full" if table.size == "full" else "")
    begin, end = marks(name)
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page} has no place for {name}: it needs the lines {begin} and {end}")
    text = (directory / "table.md").read_text(encoding="utf-8").replace("(plot.svg)", f"(images/{name}.svg)")
    page.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
    (page.parent / "images").mkdir(exist_ok=True)
    shutil.copyfile(directory / "plot.svg", page.parent / "images" / f"{name}.svg")


if __name__ == "__main__":
    for results in sys.argv[2:]:
        take_over(Path(sys.argv[1]), Path(results))

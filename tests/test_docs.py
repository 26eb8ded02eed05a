"""Pages: every one is found from docs/README.md, every link leads somewhere, and every file that is named exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDERS = ("secagg", "protocol", "models", "parties", "simulate", "cli", "tests", "docs")
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))
DECISIONS = sorted((DOCS / "decisions").glob("*.md"))


def links(page: Path) -> list[Path]:
    """What the page links to within the repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)\s]*)?\)", text)
    return [(page.parent / target).resolve() for target in targets]


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    assert [str(target) for target in links(ROOT / name) if not target.exists()] == []


def test_every_page_is_found_from_the_first() -> None:
    pages = {path.resolve() for path in DOCS.rglob("*.md")} - {DOCS / "README.md"}
    assert len(pages) > 40
    missing = pages - set(links(DOCS / "README.md"))
    assert not missing, f"docs/README.md does not link {', '.join(sorted(map(str, missing)))}"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_every_file_that_is_named_exists(name: str) -> None:
    code = re.findall(r"`([^`\n]+)`", (ROOT / name).read_text(encoding="utf-8"))
    paths = [path for path in code if path.split("/")[0] in FOLDERS and "/" in path and " " not in path]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_decisions_are_numbered_and_have_one_form() -> None:
    assert [path.name[:4] for path in DECISIONS] == [f"{number:03}-" for number in range(1, len(DECISIONS) + 1)]
    for path in DECISIONS:
        headings = re.findall(r"^#+ .*$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert headings[1:] == ["## Context", "## Decision", "## Consequence"], path.name


def test_words_are_in_order_and_their_papers_are_found() -> None:
    page = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| .+? \| (.*?) \| \[", page, flags=re.MULTILINE)
    assert len(rows) > 30
    assert [word for word, _ in rows] == sorted((word for word, _ in rows), key=str.casefold)
    # A paper has a number somewhere on the page, or its title at the end.
    papers = {paper.split(", arXiv")[0].split(", ePrint")[0] for _, cell in rows for paper in cell.split("; ") if paper}
    for paper in papers:
        name, year = re.findall(r"\b[A-Z]\w+", paper)[0], paper[-4:]
        assert re.search(rf"\b{name}\b[^|\n]*{year}(, (arXiv:|ePrint )\d|, \")", page), paper

"""Pages: every one is found from docs/README.md, every link leads somewhere, and every file that is named exists."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FOLDERS = ("secagg", "protocol", "models", "parties", "simulate", "cli", "tests", "docs")
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))


def links(page: Path) -> list[Path]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)(?:#[^)\s]*)?\)", text)
    return [(page.parent / target).resolve() for target in targets]


def test_every_link_leads_somewhere() -> None:
    assert [(page, str(target)) for page in PAGES for target in links(ROOT / page) if not target.exists()] == []


def test_every_page_is_found_from_the_first() -> None:
    pages = {path.resolve() for path in DOCS.rglob("*.md")} - {DOCS / "README.md"}
    assert len(pages) > 40
    missing = pages - set(links(DOCS / "README.md"))
    assert not missing, f"docs/README.md does not link {', '.join(sorted(map(str, missing)))}"


def test_every_file_that_is_named_exists() -> None:
    for name in ("CONTRIBUTING.md", "README.md"):
        code = re.findall(r"`([^`\n]+)`", (ROOT / name).read_text(encoding="utf-8"))
        paths = [path for path in code if path.split("/")[0] in FOLDERS and "/" in path and " " not in path]
        assert paths
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_units_are_understood_by_systemd() -> None:
    """But for the program, which is not installed where they expect it."""
    units = sorted((DOCS / "examples" / "systemd").glob("*.service"))
    asked = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    complaints = (asked.stdout + asked.stderr).splitlines()
    assert [line for line in complaints if "/opt/tacit/.venv/bin/tacit is not executable" not in line] == []
    assert len(complaints) == len(units) == 4

"""A release has one version and one date, wherever they are told."""

import json
import re
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSION = version("tacit")


def test_the_citation_and_the_list_of_a_release_are_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [VERSION]
    # Between releases the list names none.
    assert json.loads((ROOT / "docs" / "spec" / "versions.json").read_bytes())["release"] in (VERSION, None)


def test_the_changelog_has_this_version_with_the_date_of_the_citation() -> None:
    dates = re.findall(r"^date-released: (\d{4}-\d\d-\d\d)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert len(dates) == 1
    assert f"## [{VERSION}] - {dates[0]}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

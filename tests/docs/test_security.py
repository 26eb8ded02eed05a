"""The page on what leaks, where an audit played a server that cheats and where it did not."""

from __future__ import annotations

import json
from pathlib import Path

from docs.generate.security import FIGURES, security_page

HEAD = "## What a server that cheats tries"


def test_attempts_are_listed_where_there_are_any(tmp_path: Path) -> None:
    figures = json.loads(FIGURES.read_bytes())
    tried = {"case": "downgrade", "does": "proposes less", "expected": "refuses POLICY", "seen": "refuses POLICY"}
    path = tmp_path / "audit.json"
    for none in ({}, {"attempts": []}):
        path.write_text(json.dumps({key: value for key, value in figures.items() if key != "attempts"} | none))
        assert HEAD not in security_page(path)
    path.write_text(
        json.dumps({**figures, "attempts": [{**tried, "holds": True}, {**tried, "seen": "takes part", "holds": False}]})
    )
    page = security_page(path)
    assert "1 of 2 hold." in page.partition(HEAD)[2]
    assert "| `downgrade` | proposes less | refuses POLICY | refuses POLICY | holds |\n" in page
    assert "| `downgrade` | proposes less | refuses POLICY | takes part | **does not hold** |\n" in page

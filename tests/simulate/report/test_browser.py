"""The page in a real browser: nothing logged, nothing loaded, no sideways scrolling on a desktop or a telephone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from tacit.simulate.report.page import make_report

WIDTHS = (1280, 390)
PROBE = """() => ({
  scroll: document.documentElement.scrollWidth,
  loaded: performance.getEntriesByType("resource").length,
  text: [...document.querySelectorAll("details[open] svg text, #cost svg text")].map(text =>
    parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getBoundingClientRect().width
    / text.ownerSVGElement.viewBox.baseVal.width),
  hidden: [...document.querySelectorAll(".cards")].filter(box => box.scrollWidth > box.clientWidth + 1).length,
  figures: [...document.querySelectorAll("details[open] svg, #cost svg")].map(svg => svg.getBoundingClientRect().right),
})"""
BRIGHTNESS = """selector => getComputedStyle(document.querySelector(selector))
  [selector == "body" ? "backgroundColor" : "fill"].match(/\\d+/g).map(Number).reduce((a, b) => a + b) / 3"""


@pytest.mark.end_to_end
def test_the_page_fits_stays_silent_and_is_dark_by_night(script: Any, browser: Browser, tmp_path: Path) -> None:
    run = script(clients=17)
    run.session()
    run.log("server", "stranger", reason="not in the roster", public_key="Z" * 400, address="fe80::1")
    run.round(1, dropped={"client-2": False}, clipped=40, killed=["client-2"])
    run.round(2, status="aborted")
    run.end()
    path = tmp_path / "report.html"
    path.write_text(make_report(run.run))
    said: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.on("console", lambda message: said.append(message.text))
    page.goto(path.as_uri())
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        seen = page.evaluate(PROBE)
        assert seen["scroll"] <= width
        assert seen["loaded"] == 0
        assert max(seen["figures"]) <= width
        assert min(seen["text"]) >= 11
    assert seen["hidden"] == 0, "on a telephone every row is a card"
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        ground, ink = (page.evaluate(BRIGHTNESS, selector) for selector in ("body", "svg text"))
        assert abs(ground - ink) > 180
        assert (ground < ink) == (scheme == "dark")
    assert said == []
    page.close()

"""The page in a real browser: nothing logged, nothing loaded, no sideways scrolling on a desktop or a telephone."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import playwright.sync_api

from tacit.simulate.report.page import make_report

WIDTHS = (1280, 390)
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--v=0", "--dump-dom",
)  # fmt: skip
PROBE = """
const seen = [...document.querySelectorAll("iframe")].map(frame => {
  const page = frame.contentDocument.documentElement;
  return {
    width: frame.contentWindow.innerWidth,
    scroll: page.scrollWidth,
    loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
    text: [...page.querySelectorAll("details[open] svg text, #cost svg text")].map(text =>
      parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getBoundingClientRect().width
      / text.ownerSVGElement.viewBox.baseVal.width),
    hidden: [...page.querySelectorAll(".cards")].filter(box => box.scrollWidth > box.clientWidth + 1).length,
    figures: [...page.querySelectorAll("details[open] svg, #cost svg")].map(svg => svg.getBoundingClientRect().right),
  };
});
document.body.innerHTML = "<pre id=seen></pre>";
document.getElementById("seen").textContent = JSON.stringify(seen);
"""


def test_the_page_fits_and_stays_silent(script: Any, chromium: str, tmp_path: Path) -> None:
    run = script(clients=17)
    run.session()
    run.log("server", "stranger", reason="not in the roster", public_key="Z" * 400, address="fe80::1")
    run.round(1, dropped={"client-2": False}, clipped=40, killed=["client-2"])
    run.round(2, status="aborted")
    run.end()
    report = html.escape(make_report(run.run))
    # Frames, because a browser window cannot be made as narrow as a telephone.
    frames = "".join(f'<iframe style="width:{width}px;border:0" srcdoc="{report}"></iframe>' for width in WIDTHS)
    wrapper = tmp_path / "wrapper.html"
    # The page allows no scripts, so the probe is outside of it.
    wrapper.write_text(f"<!doctype html><meta charset=utf-8>{frames}<script>onload = () => {{{PROBE}}}</script>")
    command = [chromium, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout)
    assert found is not None, done.stderr
    seen = json.loads(html.unescape(found[1]))
    assert [page["width"] for page in seen] == list(WIDTHS)
    for page in seen:
        assert page["scroll"] <= page["width"]
        assert page["loaded"] == 0
        assert page["figures"]
        assert max(page["figures"]) <= page["width"]
        assert min(page["text"]) >= 11
    assert seen[1]["hidden"] == 0, "on a telephone every row is a card"


def test_by_night_it_is_dark_and_its_figures_too(script: Any, chromium: str, tmp_path: Path) -> None:
    run = script()
    run.session()
    run.round(1)
    path = tmp_path / "report.html"
    path.write_text(make_report(run.run))
    brightness = """selector => getComputedStyle(document.querySelector(selector))
      [selector == "body" ? "backgroundColor" : "fill"].match(/\\d+/g).map(Number).reduce((a, b) => a + b) / 3"""
    with playwright.sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=120_000)
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme)
            page.set_default_timeout(120_000)
            page.goto(path.as_uri())
            ground, ink = (page.evaluate(brightness, selector) for selector in ("body", "svg text"))
            assert abs(ground - ink) > 180
            assert (ground < ink) == (scheme == "dark")
        browser.close()

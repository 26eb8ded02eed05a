"""`python -m docs.generate.picture docs`: the picture of a report in the README, of a run that is made for it.

It takes a minute, and a browser. The run loses a client on purpose, so that the report has something to tell.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import sync_playwright

RUN: Final = ("simulate", "--seed", "7", "--rounds", "8", "--drop", "client-3@MASKED_INPUT:5")
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
WIDTH: Final = 1100
HEIGHT: Final = 1150


def draw(docs: Path) -> None:
    """Make the run and its picture, images/report.png. CalledProcessError if the run fails."""
    tacit = Path(sys.executable).with_name("tacit")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with TemporaryDirectory() as folder, sync_playwright() as play:
        run = Path(folder) / "run"
        subprocess.run([tacit, *RUN, "--out", run], check=True)
        opened = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto((run / "report.html").as_uri())
        page.screenshot(path=docs / "images" / "report.png")
        opened.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))

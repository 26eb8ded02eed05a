"""`python -m docs.generate.picture docs`: pictures of the report in the README, and of an alert in the runbook.

Each is of a run that is made for it, in which something goes wrong on purpose. It takes minutes, and a browser.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.text import Text

from tacit.parties.session.event_log import REPEAT_SECONDS
from tests.cli.hosts import TACIT, running_hosts

RUN: Final = ("simulate", "--seed", "7", "--rounds", "8", "--drop", "client-3@MASKED_INPUT:5")
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
WIDTH: Final = 1100
HEIGHT: Final = 1150
COLUMNS: Final = 110


def draw_report(page: Page, images: Path, folder: Path) -> None:
    """Lose a client: report.png. CalledProcessError if the run fails."""
    run = folder / "run"
    subprocess.run([TACIT, *RUN, "--out", run], check=True)
    page.goto((run / "report.html").as_uri())
    page.screenshot(path=images / "report.png")


def draw_alert(page: Page, images: Path, folder: Path) -> None:
    """Start a copy of a client's folder, then lose another client: alert-dashboard.png, alert-status.png."""
    with running_hosts(folder) as hosts:
        hosts.experiment(rounds=100, epochs=60)
        server = hosts.start("server", "server", "party.toml", "experiment.toml", "--dashboard", "127.0.0.1:0")
        clients = {name: hosts.start(name, "client", "party.toml") for name in hosts.names[1:]}
        server.until("round 4 of .* completed")
        shutil.copytree(hosts.path / "client-1", hosts.path / "copy")
        hosts.start("copy", "client", "party.toml")
        clients["client-1"].end()
        hosts.run("client-1", "client", "party.toml")
        server.until("client-1 .*copy")
        # Where links come and go the log is behind by that.
        time.sleep(REPEAT_SECONDS + 2)
        clients["client-3"].signal(signal.SIGKILL)
        server.until("only 2 clients are there")
        page.goto(next(line.removeprefix("live at ") for line in server.said if line.startswith("live at ")))
        page.wait_for_selector("#connection.live")
        page.screenshot(path=images / "alert-dashboard.png")
        coloured = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
        command = [TACIT, "status", "party.toml"]
        asked = subprocess.run(command, cwd=hosts.path / "server", env=coloured, capture_output=True, text=True)
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text("$ tacit status party.toml", "bold"), Text.from_ansi(asked.stdout), sep="\n")
        # The dashboard's page allows no styles of others.
        page.goto("about:blank")
        page.set_content(console.export_html())
    page.locator("pre").screenshot(path=images / "alert-status.png")


def draw(docs: Path) -> None:
    """All pictures, into the folder images."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for make in (draw_report, draw_alert):
            with TemporaryDirectory() as folder:
                page = opened.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
                make(page, docs / "images", Path(folder))
        opened.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))

"""Record the state that a server and three clients of this release have after two rounds of three.

    python -m tests.upgrade.record

It goes to tests/upgrade/RELEASE, in the place of what is there. Keys are of this recording alone, and encrypted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tacit.parties.links.keys import encrypt
from tacit.parties.runs.directory import STATE_RELEASE

HERE: Final = Path(__file__).parent
PARTIES: Final = ("server", "ward-a", "ward-b", "ward-c")
ADDRESS: Final = "127.0.0.1:7407"
"""Stands in the recording; whoever goes on with it writes another one."""
EXPERIMENT: Final = """
name = "wards"
[federation]
rounds = 3
[data]
classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]
mean = [0.0192]
std = [0.0236]
[model]
image_size = 8
patch_size = 4
width = 8
depth = 1
heads = 2
[training]
epochs = 10
[deadlines]
join = 600
"""
LEFT_OUT: Final = ("*.card", "logs", "report.html", "*.lock", "answers", "office.key")


@contextmanager
def passphrases() -> Iterator[str]:
    """A folder with the passphrases of all, for $CREDENTIALS_DIRECTORY."""
    with tempfile.TemporaryDirectory() as folder:
        for name in PARTIES:
            Path(folder, f"{name}.passphrase").write_text("upgrade")
        yield folder


def command(folder: Path, *words: str) -> list[str]:
    """Run `tacit` there; the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", "from tacit.cli.entry import main; main()", *words],
        cwd=folder, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def main() -> None:
    with passphrases() as credentials, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CREDENTIALS_DIRECTORY"] = credentials
        cards = command(folder, "init", "server", "--address", ADDRESS)[-1:]
        for ward in PARTIES[1:]:
            cards += command(folder, "init", "client", ward, "--address", ADDRESS, "--images", "digits")[-1:]
        roster = command(folder, "roster", "make", *cards, "--operator", "office.key")[-1]
        (folder / "server" / "experiment.toml").write_text(EXPERIMENT)
        for party in PARTIES:
            encrypt(folder / party / f"{party}.key")
        words = [sys.executable, "-c", "from tacit.cli.entry import main; main()", "up", *PARTIES, "--roster", roster]
        with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                print(line, end="")
                if "round 2 of 3 completed" in line:
                    running.send_signal(signal.SIGTERM)
        rounds = (folder / "server" / "state" / "runs" / "0001-wards" / "rounds.csv").exists()
        journal = (folder / "ward-a" / "state" / "journal" / "ward-a.jsonl").read_text()
        if rounds or journal.count("\n") > 3:
            sys.exit("the third round was completed: record it again")
        target = HERE / STATE_RELEASE
        shutil.rmtree(target, ignore_errors=True)
        for party in PARTIES:
            shutil.copytree(folder / party, target / party, ignore=shutil.ignore_patterns(*LEFT_OUT))


if __name__ == "__main__":
    main()

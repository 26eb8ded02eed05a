"""Progress of long work: in place on a terminal, as lines in a pipe."""

from __future__ import annotations

import io
import threading

from rich.console import Console

from tacit.cli.progress import Progress


class Lines(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count


def test_a_pipe_gets_lines_of_the_present_step_and_a_quiet_console_none() -> None:
    for quiet in (False, True):
        file = Lines()
        with Progress(Console(file=file, quiet=quiet), "loading", first=0.0) as progress:
            assert quiet or file.written.wait(60)
            progress.update("training")
        assert file.getvalue() == ("" if quiet else "loading (0 s)\n")


def test_a_terminal_has_the_step_in_place() -> None:
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=True), "loading"):
        pass
    assert "loading" in file.getvalue()
    assert "(0 s)" not in file.getvalue()

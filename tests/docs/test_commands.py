"""Every command that a page shows is one that there is, and is run, or says why not.

What stands in blocks marked `sh`, and after `tacit` in running text, is parsed by the command's own parser, without
being run. Blocks are run page by page, in the environment that `make setup` makes, by `test_the_commands_of_a_page` of
`make end-to-end`, or by the test that BY names. A comment before a block takes it out, and says what is instead:

    <!-- run by tests/cli/test_audit.py -->      that test runs these commands, smaller or with other files
    <!-- not run: hours -->                      or another reason
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from tacit.cli.main import app
from tacit.cli.usage import UsageError
from tests.cases import cases

ROOT: Final = Path(__file__).parent.parent.parent
PAGES: Final = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")))
BY: Final = {
    "README.md": "tests/test_readme.py",
    "docs/hosts.md": "tests/cli/test_hosts_tutorial.py",
    "docs/tutorials/model-owner.md": "tests/cli/test_hosts_tutorial.py",
}
"""Pages whose blocks a test of their own runs, word for word."""
_BLOCK: Final = re.compile(r"(?:^<!-- (?P<note>[^>]*) -->\n\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_HERE: Final = re.compile(r"(<<\s*(\w+)[^\n]*)\n.*?^\2$", re.M | re.S)
_UNFINISHED: Final = re.compile(r": Missing |: $|requires an argument|\b[A-Z]+: Invalid value")
_ENDS: Final = {"&&", "||", "|", ";", "&", "(", ")"}


@dataclass(frozen=True)
class Block:
    page: str
    note: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(page, one["note"] or "", one["text"]) for one in _BLOCK.finditer(text) if one["language"] == "sh"]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every simple command of a shell's text, without what is read from or written to."""
    for line in _HERE.sub(r"\1", text).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        tokens = iter(lexer)
        for token in tokens:
            if token in _ENDS:
                yield words
                words = []
            elif set(token) <= set("<>&"):
                next(tokens, None)
            else:
                words.append(token)
        yield words


def parse(words: list[str]) -> None:
    """Parse what comes after `tacit` down to the last option, and run nothing. UsageError where it would not do."""
    command = COMMAND
    context, name = None, "tacit"
    # That would be done at once, while it is parsed.
    rest = [word for word in words if word != "--install-completion"]
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, command, rest = command.resolve_command(context, rest)


def parsed(words: list[str]) -> str:
    try:
        parse(words)
    except typer.Exit:
        return ""
    except UsageError as error:
        return f"tacit {' '.join(words)}: {error.format_message()}"
    return ""


COMMAND: Final[Any] = typer.main.get_command(app)
ALL: Final = [block for page in PAGES for block in blocks(page)]


def test_commands_in_blocks_are_commands() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for block in ALL:
        for first, *rest in filter(None, commands(block.text)):
            if first == "tacit":
                assert parsed(rest) == "", block.page
            elif first == "make":
                assert {word for word in rest if "=" not in word} <= targets, block.page
            elif first == "python" and rest[0] == "-m":
                assert find_spec(rest[1]) is not None, f"{block.page}: {rest[1]}"


@cases("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_commands_in_running_text_are_commands(page: str) -> None:
    """Arguments may be missing there, or be words in capitals. The changelog tells of commands that are gone, too."""
    text = _BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    wrong = []
    for span in re.findall(r"`tacit\s+([^`]+)`", text):
        wrong.append(parsed(next(commands(" ".join(span.split())))))
    assert [one for one in wrong if one and not _UNFINISHED.search(one)] == []


def test_every_command_is_on_a_page() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES if page != "CHANGELOG.md")
    assert [name for name in COMMAND.commands if not re.search(rf"\btacit {name}\b", text)] == []


def test_a_block_is_run_or_says_why_not() -> None:
    for block in ALL:
        by = re.fullmatch(r"run by (tests/\S+(?:, tests/\S+)*)", block.note)
        assert by or not block.note or block.note.startswith("not run: "), f"{block.page}: {block.note}"
        if by:
            sources = "".join((ROOT / path).read_text(encoding="utf-8") for path in by[1].split(", "))
            shown = [words for words in commands(block.text) if words[:1] == ["tacit"]]
            groups = {words[1] for words in shown if hasattr(COMMAND.commands[words[1]], "commands")}
            names = {words[1] for words in shown} | {words[2] for words in shown if words[1] in groups}
            missing = {name for name in names if f'"{name}"' not in sources}
            assert not missing, f"{block.page}: {by[1]} runs no tacit {', '.join(sorted(missing))}"
    for page, test in BY.items():
        assert blocks(page)
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def left(page: str) -> str:
    return "" if page in BY else "".join(block.text for block in blocks(page) if not block.note)


@pytest.mark.end_to_end
@pytest.mark.parametrize("page", [page for page in PAGES if left(page)])
def test_the_commands_of_a_page(page: str, tmp_path: Path) -> None:
    if not (ROOT / ".venv").is_dir():
        pytest.skip("the commands run in the environment that `make setup` makes")
    for name in ("docs", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = f". .venv/bin/activate\n{left(page)}"
    done = subprocess.run(["sh", "-e", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

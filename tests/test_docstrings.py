"""What stands under an attribute is a whole sentence: it can be read alone, in a reference or where the cursor is."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("secagg", "protocol", "models", "parties", "simulate", "cli")
BEGINNING = re.compile(r"[A-Z0-9`(]|u?int\d|float\d")
"""A sentence begins with a capital, a number, or something in code, such as a dtype."""


def attribute_docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that stands right after an assignment."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for before, after in pairwise(body):
                match before, after:
                    case (ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str(text)))):
                        yield after.lineno, text


def is_whole(text: str) -> bool:
    return bool(BEGINNING.match(text)) and text.rstrip().endswith((".", ".)"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_of_attributes_are_whole_sentences(folder: str) -> None:
    broken = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in attribute_docstrings(path.read_text(encoding="utf-8"))
        if not is_whole(text)
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("text", ["Images that one session may ask for,", "and one pass.", "No stop", "", "of it."])
def test_half_sentences_are_found(text: str) -> None:
    source = f'class A:\n    x: int\n    """{text}"""\n    y: int\n'
    assert [(line, is_whole(found)) for line, found in attribute_docstrings(source)] == [(3, False)]

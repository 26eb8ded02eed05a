"""docs/outputs.md: the files for programs, from the types that write them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tacit.cli.commands.schema import json_schema, result_files

HEAD: Final = """# Files for programs

With `--json FILE` a command writes its result as JSON; some write such a file into their directory too. Each begins
with `schema`, the name and number of its form, such as `tacit.summary.2`, and `tacit schema NAME` prints the JSON
Schema of it. Keys keep their name and meaning, and others may join them; when one is taken away or changes, the number
rises. What the keys of `summary.json` mean is on a [page of its own](run-directory.md).

This page is generated from the same types: `make docs`.
"""


def outputs_page() -> str:
    """Return the page."""
    lines = [HEAD]
    for name, output in result_files().items():
        types = json_schema(name)["$defs"]
        kinds = {kind.__name__: kind for kind in _structs(output.type)}
        whole = types.pop(output.type.__name__)
        lines += [f"## {name}", "", f"{_paragraph(output.type)} Written by: {output.written_by}.", ""]
        lines += [*_keys(whole, output.type), ""]
        for part, about in sorted(types.items()):
            if part in kinds:
                lines += [f"`{part}`: {_paragraph(kinds[part])}", "", *_keys(about, kinds[part]), ""]
            else:
                lines += [f"`{part}`: {_words(about)}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _structs(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """All structs that a struct consists of, itself included."""
    seen: set[Any] = set()
    waiting = [msgspec.inspect.type_info(kind)]
    while waiting:
        found = waiting.pop()
        if isinstance(found, msgspec.inspect.StructType):
            if found.cls in seen:
                continue
            seen.add(found.cls)
            yield found.cls
            waiting += [field.type for field in found.fields]
        else:
            nested = (getattr(found, name, ()) for name in ("types", "item_types", "item_type", "value_type"))
            waiting += [one for each in nested for one in (each if isinstance(each, tuple) else (each,))]


def _paragraph(kind: type) -> str:
    """The first paragraph of its docstring, on a line."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _meanings(kind: type) -> dict[str, str]:
    """The docstrings below fields, of the struct and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for pair in zip(tree.body, tree.body[1:], strict=False):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split()).replace("|", "\\|")
    return found


def _keys(about: dict[str, Any], kind: type) -> list[str]:
    required, meanings = about.get("required", ()), _meanings(kind)
    rows = [
        f"| `{key}` | {_words(value)}{'' if key in required else ', or not there'} | {meanings.get(key, '')} |"
        for key, value in about.get("properties", {}).items()
    ]
    return ["| key | value | meaning |", "|---|---|---|", *rows]


def _words(kind: dict[str, Any]) -> str:
    """A type of JSON Schema in words."""
    match kind:
        case {"const": value}:
            return f'`"{value}"`'
        case {"enum": values}:
            return " or ".join(f'`"{value}"`' for value in values)
        case {"$ref": place}:
            return f"`{place.rpartition('/')[2]}`"
        case {"anyOf": kinds}:
            return " or ".join(map(_words, kinds))
        case {"type": "array", "items": dict() as each}:
            return f"list of {_words(each)}"
        case {"type": "array"}:
            return "list"
        case {"type": "object", "additionalProperties": dict() as each} if each:
            return f"by name {_words(each)}"
        case {"type": str() as name}:
            return name
    return "any value"

"""docs/outputs.md: the files for programs, from the types that `tacit schema` prints."""

from __future__ import annotations

from typing import Any, Final

from tacit.cli.schema import OUTPUTS, json_schema

HEAD: Final = """# Files for programs

With `--json FILE` a command writes what it found as JSON; some write such a file into their directory too. Each begins
with `schema`, the name and number of its form, such as `tacit.summary.1`, and `tacit schema NAME` prints the JSON
Schema of it. Keys keep their name and meaning, and others may join them; when one is taken away or changes, the number
rises. What the keys of `summary.json` mean is on a [page of its own](run-directory.md).

This page is generated from the same types: `make docs`.
"""


def outputs_page() -> str:
    """The page."""
    lines = [HEAD]
    for name, output in OUTPUTS.items():
        found = json_schema(name)
        types = found["$defs"]
        whole = types.pop(output.type_name)
        lines += [f"## {name}", "", f"{whole['description']} Written by: {output.written_by}.", "", *_keys(whole), ""]
        for part, about in sorted(types.items()):
            lines += [f"`{part}`: {_paragraph(about['description'])}", "", *_keys(about), ""]
    return "\n".join(lines).rstrip() + "\n"


def _paragraph(text: str) -> str:
    """The first one of a docstring, on a line."""
    return " ".join(text.split("\n\n")[0].split())


def _keys(about: dict[str, Any]) -> list[str]:
    required = about.get("required", ())
    rows = [
        f"| `{key}` | {_words(kind)}{'' if key in required else ', or not there'} |"
        for key, kind in about["properties"].items()
    ]
    return ["| key | value |", "|---|---|", *rows]


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

"""One name, one thing: no two classes of the packages have the same name, but for what a module keeps to itself."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("secagg", "protocol", "models", "parties", "simulate", "cli")


def test_no_class_name_means_two_things() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert places
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, "\n".join(f"{name}: {', '.join(found)}" for name, found in twice.items())

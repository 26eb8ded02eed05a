"""Imports between our folders go one way only; what must stay light stays light."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "secagg": set(),
    "protocol": {"secagg"},
    "models": set(),
    "parties": {"protocol", "secagg", "models"},
    "simulate": {"parties", "protocol", "secagg", "models"},
    "cli": {"simulate", "parties", "protocol", "secagg", "models"},
}

NEVER_IN = {
    "secagg": {"torch", "zmq", "asyncio", "socket", "time", "random", "secrets", "os"},
    "protocol": {"torch", "zmq", "asyncio", "socket", "time", "random", "secrets", "os", "pathlib", "threading"},
}
"""Pure folders: no I/O, no clock, no randomness of their own. secagg asks os only for the number of cores."""

ALLOWED = {("secagg", "keystream.py", "os")}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_imports_go_downwards(folder: str) -> None:
    for path in sources(folder):
        for name in imports(path):
            if name.startswith("tacit"):
                target = name.split(".")[1]
                assert target in MAY_IMPORT[folder] | {folder}, f"{path.relative_to(ROOT)} imports {name}"
            assert name.split(".")[0] not in MAY_IMPORT, f"{path.relative_to(ROOT)} imports {name} without tacit."


@pytest.mark.parametrize("folder", NEVER_IN)
def test_pure_folders_are_pure(folder: str) -> None:
    for path in sources(folder):
        for name in imports(path):
            top = name.split(".")[0]
            if (folder, path.name, top) not in ALLOWED:
                assert top not in NEVER_IN[folder], f"{path.relative_to(ROOT)} imports {name}"


def test_every_folder_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    setuptools = project["tool"]["setuptools"]
    packaged = {setuptools["package-dir"][package] for package in setuptools["packages"]}
    with_code = {str(path.parent.relative_to(ROOT)) for folder in MAY_IMPORT for path in sources(folder)}
    assert with_code <= packaged, f"packages missing from pyproject.toml: {with_code - packaged}"
    for folder in packaged:
        assert (ROOT / folder / "py.typed").exists(), f"{folder}/py.typed"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("tacit.cli.main", {"torch", "numpy", "timm", "crypten", "zmq"}),
        ("tacit.cli.simulation", {"torch", "timm", "crypten", "torchvision"}),
        ("tacit.protocol.training_server", {"torch", "zmq"}),
    ],
)
def test_light_modules_stay_light(module: str, forbidden: set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not forbidden & set(loaded)

"""Imports between our folders go one way only; what must stay light stays light."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import tacit.protocol
from tests.cases import cases

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "secagg": set(),
    "protocol": {"secagg"},
    "models": set(),
    "parties": {"protocol", "secagg", "models"},
    "simulate": {"parties", "protocol", "secagg", "models"},
    "cli": {"simulate", "parties", "protocol", "secagg", "models"},
}

LAYERS = (
    "secagg",
    "protocol",
    "protocol.core",
    "protocol.sum",
    "protocol.group_key",
    "protocol.session",
    "protocol.inference",
    "protocol.adaptation",
    "models.datasets",
    "models",
    "models.friendly",
    "models.adapters",
    "models.attacks",
    "parties",
    "parties.links",
    "parties.correlated",
    "parties.protections",
    "parties.session",
    "parties.learning",
    "parties.flower",
    "parties.inference",
    "parties.crypten",
    "parties.adaptation",
    "parties.runs",
    "parties.hosting",
    "simulate",
    "simulate.report",
    "simulate.dashboard",
    "simulate.world",
    "simulate.federation",
    "simulate.conformance",
    "simulate.conformance.peer",
    "simulate.audit",
    "simulate.insecure",
    "simulate.adaptation",
    "simulate.adaptation_audit",
    "simulate.experiments",
    "simulate.private_inference",
    "simulate.bench",
    "cli",
    "cli.commands",
)
"""Every sub-package; one may import those before it, and of them only what its folder may."""

NEVER_IN = {
    "secagg": {"torch", "zmq", "asyncio", "socket", "time", "random", "secrets", "os"},
    "protocol": {"torch", "zmq", "asyncio", "socket", "time", "random", "secrets", "os", "pathlib", "threading"},
}
"""Pure folders: no I/O, no clock, no randomness of their own. secagg asks os only for the number of cores."""

ALLOWED = {("secagg", "threads.py", "os")}


@cache
def import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path: Path) -> Iterator[str]:
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def sources(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


@cases("folder", MAY_IMPORT)
def test_imports_go_downwards(folder: str) -> None:
    for path in sources(folder):
        for name in imports(path):
            if name.startswith("tacit"):
                target = name.split(".")[1]
                assert target in MAY_IMPORT[folder] | {folder}, f"{path.relative_to(ROOT)} imports {name}"
            assert name.split(".")[0] not in MAY_IMPORT, f"{path.relative_to(ROOT)} imports {name} without tacit."


def test_flower_builds_on_the_public_names_of_the_protocol() -> None:
    for path in sources("parties/flower"):
        assert not [name for name in imports(path) if name.startswith("tacit.protocol.")], path


def layer(path: Path) -> str:
    return ".".join(path.parent.relative_to(ROOT).parts)


def modules() -> dict[str, Path]:
    found = {}
    for folder in MAY_IMPORT:
        for path in sources(folder):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("tacit", *parts)).removesuffix(".__init__")] = path
    return found


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """Our modules that a file imports, by `import`, or by `from` as a module or as a name in one."""
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module or "")
        else:
            found |= {alias.name for alias in node.names}
    return found & known.keys()


def test_sub_packages_import_downwards() -> None:
    known = modules()
    assert {layer(path) for path in known.values()} == {*LAYERS}
    for path in known.values():
        if path.name == "__init__.py" and path.parent.name in MAY_IMPORT:
            continue  # The front door of a folder names what is anywhere in it.
        above = LAYERS.index(layer(path))
        for name in imported_modules(path, known):
            assert LAYERS.index(layer(known[name])) <= above, f"{path.relative_to(ROOT)} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {name: imported_modules(path, known) - {name} for name, path in known.items()}
    TopologicalSorter(graph).prepare()  # Raises CycleError, which names the circle.


@cases("folder", NEVER_IN)
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
    for folder in MAY_IMPORT:
        assert (ROOT / folder / "py.typed").exists(), f"{folder}/py.typed"


@cases(
    ("module", "forbidden"),
    [
        ("tacit.cli.main", {"torch", "numpy", "timm", "crypten", "zmq"}),
        ("tacit.cli.commands.simulation", {"torch", "timm", "crypten", "torchvision"}),
        ("tacit.protocol.session.server", {"torch", "zmq"}),
    ],
)
def test_light_modules_stay_light(module: str, forbidden: set[str]) -> None:
    assert not forbidden & loaded_after(f"import {module}")


def loaded_after(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@cases("package", ["parties", "protocol", "simulate"])
def test_public_names_are_there_and_cost_nothing_before_they_are_used(package: str) -> None:
    listed = (
        f"import tacit.{package} as package; assert package.__all__; [getattr(package, n) for n in package.__all__]"
    )
    assert "torch" not in loaded_after(listed)
    assert not {"numpy", "cryptography", "msgspec"} & loaded_after(f"import tacit.{package}")


def test_a_sum_is_held_without_torch() -> None:
    code = "from tacit.simulate import secure_sum; assert abs(secure_sum([[1], [2], [3]]).values[0] - 6) < 1e-4"
    assert not {"torch", "zmq", "tacit.models.layout"} & loaded_after(code)


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tacit.protocol.__version__ == project["version"]

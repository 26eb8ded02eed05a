"""What needs CrypTen says so in one line where CrypTen is not installed, and everything else does without.

Here CrypTen is hidden by what Python itself does with a module that is not there; `make wheel` runs the same where it
is not.
"""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.command import invoke

NEED_IT = {f"tacit.parties.crypten.{name}" for name in ("compatibility", "computation", "passes")}
IMPORT_ALL = """
import pkgutil, sys
from importlib import import_module
sys.modules["crypten"] = None
import tacit
from tacit.parties.crypten.errors import CryptenMissingError
from tests.cli.command import invoke
for module in pkgutil.walk_packages(tacit.__path__, "tacit."):
    try:
        import_module(module.name)
    except CryptenMissingError:
        print(module.name)
    except ModuleNotFoundError as error:
        assert error.name == "flwr" and module.name.startswith("tacit.parties.flower"), error
"""


def test_a_command_that_needs_crypten_says_so_at_once(
    distilled: tuple[Result, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "crypten", None)
    for name in NEED_IT & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)
        # `from package import module` would find it there.
        monkeypatch.delattr(sys.modules["tacit.parties.crypten"], name.rpartition(".")[2], raising=False)
    file = tmp_path / "figures.json"
    for command in (
        ["infer", distilled[1] / "out", "--protocol", "crypten"],
        ["bench", "inference", "--against", "crypten"],
    ):
        done = invoke(*command, "--json", str(file))
        assert done.exit_code == 2, done.output
        (line,) = done.stderr.splitlines()
        assert line.startswith("tacit: this needs CrypTen, which cannot be imported (")
        assert line.endswith("pip install omegaconf onnx pyyaml tensorboard, then pip install --no-deps crypten==0.4.1")
        assert not file.exists()


@pytest.mark.end_to_end
def test_no_other_module_needs_crypten() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == NEED_IT


def test_what_is_for_apps_of_flower_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("tacit.parties.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"tacit\.parties\.flower needs flwr: pip install 'flwr"):
        importlib.import_module("tacit.parties.flower")

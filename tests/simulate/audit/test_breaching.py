"""`tacit audit --attack breaching:NAME`: what is refused, what is handed over, and breaching itself where an
interpreter is named.

The environment variable TACIT_BREACHING_PYTHON names the interpreter of an environment that has breaching 0.1.2.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from torch import nn
from torch.nn.functional import cross_entropy
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.models.configuration import DataConfiguration
from tacit.models.convolutional import LeNet
from tacit.models.data import load
from tacit.simulate.audit.attacks import Budget
from tacit.simulate.audit.breaching import attacker
from tacit.simulate.audit.subjects import Sight

PYTHON = os.environ.get("TACIT_BREACHING_PYTHON")
real = pytest.mark.skipif(PYTHON is None, reason="TACIT_BREACHING_PYTHON names no interpreter with breaching")
QUICK = Budget(full=False, seed=1)
GET_IT = "give the python of an environment in which `pip install breaching==0.1.2` was run"


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], Path]:
    """interpreter(program): one that has a package breaching with two configurations, and whose attack is this program:
    it finds `folder`, where observed.npz lies."""

    def make(program: str) -> Path:
        package = tmp_path / "packages" / "breaching"
        configurations = package / "config" / "attack"
        configurations.mkdir(parents=True)
        for name in ("_default", "deepleakage", "wei"):
            (configurations / f"{name}.yaml").touch()
        (package / "__init__.py").write_text(
            f"import sys\nfrom pathlib import Path\nimport numpy as np\nfolder = Path(sys.argv[-1])\n{program}\n"
            "sys.exit(0)\n"
        )
        path = tmp_path / "python"
        path.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/packages" exec "{sys.executable}" "$@"\n')
        path.chmod(0o755)
        return path

    return make


def audit(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def said(result: Result) -> str:
    assert result.exit_code == 2
    return " ".join(result.output.split())


def seen(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Sight:
    """What a server has of these images under this model, in the clear."""
    parameters = dict(model.eval().named_parameters())
    gradients = torch.autograd.grad(cross_entropy(model(images), labels), list(parameters.values()))
    count, channels, height, width = images.shape
    return Sight(
        model=model,
        gradients=dict(zip(parameters, gradients, strict=True)),
        plain=None,
        first={},
        encrypted=False,
        key=None,
        former=None,
        shape=(count, channels, height, width),
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
    )


def sight_of(*, channels: int = 1, images: int = 1) -> Sight:
    """Of LeNet and random images."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        images_in_it = torch.rand(images, channels, 8, 8)
        return seen(LeNet(channels=channels, image_size=8, classes=10), images_in_it, torch.arange(images) + 3)


class Branching(LeNet):
    """Computes something else for dark images."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(input)
        return result if input.sum() > 0 else -result


def test_it_needs_an_interpreter() -> None:
    told = said(audit("--attack", "breaching:wei"))
    assert "--attack breaching:wei is run by another interpreter: add --breaching-python PATH" in told
    assert GET_IT in told


def test_an_interpreter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "python"
    told = said(audit("--attack", "breaching:wei", "--breaching-python", missing))
    assert f"--breaching-python {missing}: it cannot be run: No such file or directory; {GET_IT}" in told
    missing.parent.mkdir()
    missing.touch()
    assert f"{missing}: it cannot be run: Permission denied" in said(
        audit("--attack", "breaching:wei", "--breaching-python", missing)
    )


def test_an_interpreter_of_somebody_who_is_not_there_is_refused() -> None:
    told = said(audit("--attack", "breaching:wei", "--breaching-python", "~nobody-here/python"))
    assert f"--breaching-python ~nobody-here/python: there is no such home; {GET_IT}" in told


def test_an_interpreter_without_breaching_is_refused() -> None:
    told = said(audit("--attack", "breaching:wei", "--breaching-python", sys.executable))
    assert f"{sys.executable}: ImportError: there is no package breaching; {GET_IT}" in told


def test_a_name_that_breaching_does_not_have_is_refused(interpreter: Callable[[str], Path]) -> None:
    told = said(audit("--attack", "breaching:guess", "--breaching-python", interpreter("")))
    assert "there is no attack 'breaching:guess': expected breaching:deepleakage, breaching:wei" in told
    assert "_default" not in told


def test_an_interpreter_is_not_named_for_nothing() -> None:
    assert "give --attack breaching:NAME with it" in said(audit("--attack", "dlg", "--breaching-python", "python"))


def test_it_is_listed() -> None:
    assert "breaching:NAME" in audit("--attack", "list").output


def test_arrays_go_there_and_back(interpreter: Callable[[str], Path]) -> None:
    sight = sight_of()
    python = interpreter(
        "arrays = dict(np.load(folder / 'observed.npz'))\n"
        "image = arrays['gradient/conv1.weight'][:1, :, :2, :2] + arrays['labels'] + arrays['longest']\n"
        "np.savez(folder / 'found.npz', images=np.resize(image, arrays['shape']).astype(np.float64))"
    )
    found = attacker("breaching:wei", python).recover(sight, QUICK)
    first = sight.gradients["conv1.weight"][0, 0, 0, 0]
    assert found.shape == (1, 1, 8, 8)
    assert found.dtype == torch.float32
    assert found[0, 0, 0, 0] == np.float32(first + 3 + 1000)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("raise RuntimeError('line\\nno gradient')", "no gradient"),
        ("sys.exit(3)", "exit status 3"),
        ("", "it wrote no images"),
        ("np.savez(folder / 'found.npz', images=np.zeros((1, 1, 4, 4)))", r"of shape \(1, 1, 4, 4\).*\(1, 1, 8, 8\)"),
        ("np.savez(folder / 'found.npz', images=np.full((1, 1, 8, 8), np.nan))", "not finite"),
        ("np.savez(folder / 'found.npz', images=np.array([[None]]))", "it wrote no images"),
        ("(folder / 'found.npz').write_bytes(b'no archive')", "it wrote no images"),
        ("(folder / 'found.npz').write_bytes(b'PK\\3\\4')", "it wrote no images"),
    ],
)
def test_what_fails_there_is_told_with_its_interpreter(
    interpreter: Callable[[str], Path], program: str, reason: str
) -> None:
    python = interpreter(program)
    with pytest.raises(ValueError, match=f"{python}: .*{reason}"):
        attacker("breaching:wei", python).recover(sight_of(), QUICK)


def test_what_it_cannot_be_given_is_said_before_it_runs(interpreter: Callable[[str], Path]) -> None:
    attack = attacker("breaching:wei", interpreter("sys.exit(3)"))
    with pytest.raises(ValueError, match="it is for one image, and the gradient is of 2"):
        attack.recover(sight_of(images=2), QUICK)
    with pytest.raises(ValueError, match="3 channels or 1, and these have 2"):
        attack.recover(sight_of(channels=2), QUICK)
    with pytest.raises(ValueError, match="cannot follow it: symbolically traced variables"):
        attack.recover(replace(sight_of(), model=Branching(channels=1, image_size=8, classes=10)), QUICK)


@real
@pytest.mark.end_to_end
def test_breaching_finds_a_digit_without_the_gradients_of_two_tensors() -> None:
    digits = load(DataConfiguration(), image_size=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LeNet(channels=1, image_size=8, classes=10)
    true = digits.x_test[:1]
    sight = seen(model, true, digits.y_test[:1])
    left = {name: value for name, value in sight.gradients.items() if name not in ("conv1.bias", "conv3.weight")}
    found = attacker("breaching:deepleakage", Path(str(PYTHON))).recover(replace(sight, gradients=left), QUICK)
    error = float((found - true).square().mean() / (true.max() - true.min()) ** 2)
    assert -10 * math.log10(error) > 40

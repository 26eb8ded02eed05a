"""`tacit simulate --tensorboard` in full: figures of the run, and of the run that goes on, are those of its summary."""

import sys
from pathlib import Path

import pytest

from tests.cli.command import Invoke


def test_what_is_not_installed_is_said_before_anything_starts(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    refused = tacit("simulate", "--tensorboard", tmp_path / "board", "--out", tmp_path / "run")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("tacit: --tensorboard needs tensorboard, which cannot be imported (")
    assert refused.stderr.endswith("): pip install tensorboard\n")
    assert list(tmp_path.iterdir()) == []

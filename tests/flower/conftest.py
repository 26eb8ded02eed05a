"""Tests of the extra `flower`, in an environment of its own: `make flower`. Elsewhere they are skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tacit.parties.links.roster import enrol_partitions

# Neither Flower nor Ray tells its makers of these tests.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
if find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A folder for each of six clients, 0 and so on, and the roster."""
    enrol_partitions(tmp_path, 6)
    return tmp_path

"""Tests of the extra `flower`, in an environment of its own: `make flower`. Elsewhere they are skipped."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import make_roster, write_roster

# Neither Flower nor Ray tells its makers of these tests.
os.environ.update(FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0")
if find_spec("flwr") is None:
    collect_ignore_glob = ["test_*.py"]


def make_folders(place: Path, clients: int) -> Path:
    """A folder for each client, 0 and so on, as the mod wants it, and the roster."""
    keys = [generate(f"client-{number}") for number in range(clients)]
    roster = make_roster([generate("server").member("server"), *(own.member("client") for own in keys)])
    write_roster(roster, place / "roster.toml")
    for number, own in enumerate(keys):
        folder = place / str(number)
        folder.mkdir()
        save(own, folder, role="client")
        write_roster(roster, folder / "roster.toml")
    return place


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Those of six clients."""
    return make_folders(tmp_path, 6)

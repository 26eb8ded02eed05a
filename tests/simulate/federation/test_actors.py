"""Actors of Ray that cannot be had: what is said, and what is left."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from tacit.simulate.federation.actors import Actors
from tacit.simulate.federation.processes import ProcessError


@pytest.mark.asyncio
async def test_without_ray_nothing_begins_and_no_thread_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    before = set(threading.enumerate())
    with pytest.raises(ProcessError, match="Ray cannot be used: import of ray halted"):
        async with Actors(tmp_path, address="", alone=(), grace_seconds=1.0):
            pass
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=30)
        assert not thread.is_alive()

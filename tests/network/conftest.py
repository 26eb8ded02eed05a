"""Every test of this folder needs namespaces, and is marked so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.network.namespaces import obstacle

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.is_relative_to(HERE)]
    for item in own:
        item.add_marker(pytest.mark.network)


@pytest.fixture(scope="session", autouse=True)
def permitted() -> None:
    if why := obstacle():
        pytest.skip(why)

"""Explorations compute with symbols."""

from collections.abc import Iterator

import pytest

from tests.exploration.symbols import symbolic_cryptography


@pytest.fixture(autouse=True)
def symbols() -> Iterator[None]:
    with symbolic_cryptography():
        yield

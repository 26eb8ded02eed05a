"""What tests of several folders need: a browser; and for all, that no example of hypothesis is too slow on a machine
that is at other work too, and that no signature and no shared secret is computed twice."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from functools import lru_cache

import nacl.bindings
import pytest
from hypothesis import settings

from tacit.protocol.core import primitives

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

# Worlds of one seed sign and verify the same bytes again and again; Ed25519 is deterministic.
nacl.bindings.crypto_sign = lru_cache(1 << 14)(nacl.bindings.crypto_sign)
nacl.bindings.crypto_sign_open = lru_cache(1 << 14)(nacl.bindings.crypto_sign_open)
# X25519 is deterministic too.
primitives.crypto_scalarmult = lru_cache(1 << 16)(nacl.bindings.crypto_scalarmult)
primitives.crypto_scalarmult_base = lru_cache(1 << 14)(nacl.bindings.crypto_scalarmult_base)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--checkpoint", help="weights of timm's vit_small_patch14_dinov2")
    parser.addoption("--pictures", help="a folder of 20 pictures or more, .png or .jpg")
    parser.addoption("--crops", type=int, default=200, help="how many parts of them are asked about")
    parser.addoption("--labelled", help="an .npz file of small labelled images, for a linear probe")
    parser.addoption("--crop-seed", type=int, default=2, help="of the crops that are asked about")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Let SIGINT interrupt this process, and the processes that it starts: shells ignore it in what they start in the
    background, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser. Where there is none a test is skipped, or fails if TACIT_BROWSER says `required`."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None and os.environ.get("TACIT_BROWSER") == "required":
        pytest.fail("no chromium or google-chrome is installed, and TACIT_BROWSER=required asks for one")
    if found is None:
        pytest.skip("no chromium or google-chrome is installed: apt-get install chromium")
    return found

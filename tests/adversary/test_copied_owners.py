"""Copied folders of the parties of private inference: noticed on both sides, as those of a federation are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tacit.parties.inference.conversation import InferenceError
from tacit.parties.links.client_endpoint import CopyError
from tacit.parties.links.tokens import TokenFile
from tacit.parties.session.events import CopyDetected
from tacit.protocol.core.errors import Code
from tests.parties.inference import conftest as _inference
from tests.parties.inference.in_one_loop import DEALER, MODEL_OWNER, House, house

one_block, private = _inference.one_block, _inference.private
pytestmark = [pytest.mark.asyncio, pytest.mark.threat("stranger/copied-folder")]


def tokens(home: House, folder: str) -> dict[str, Any]:
    return {"tokens": TokenFile(home.directory / folder)}


def copy(home: House, folder: str, to: str) -> None:
    shutil.copy(home.directory / folder, home.directory / to)


async def serving(home: House, private: Any) -> None:
    await home.dealer(**tokens(home, "dealer.tokens"))
    await home.model_owner(private, **tokens(home, "owner.tokens"))


async def test_a_copy_of_a_data_owners_folder_asks_nothing(one_block: Any, private: Any, tmp_path: Path) -> None:
    images = one_block.images[:1]
    async with house(tmp_path) as home:
        await serving(home, private)
        await home.asks("alice", images, **tokens(home, "alice"))
        copy(home, "alice", "backup")
        await home.asks("alice", images, **tokens(home, "alice"))
        found: list[CopyError] = []
        with pytest.raises(InferenceError, match="'alice' started elsewhere since") as refusal:
            await home.asks("alice", images, **tokens(home, "backup"), on_copy=found.append)
        assert refusal.value.code is Code.SENDER
        assert {error.server for error in found} == {""}
        detected = await home.waits(MODEL_OWNER, CopyDetected, peer="alice")
        assert "its folder is a copy or a backup" in detected.detail
        # The other one goes on.
        await home.asks("alice", images, **tokens(home, "alice"))


async def test_a_copy_of_a_model_owners_folder_serves_nobody(one_block: Any, private: Any, tmp_path: Path) -> None:
    images = one_block.images[:1]
    async with house(tmp_path) as home:
        await serving(home, private)
        await home.asks("alice", images, **tokens(home, "alice"))
        copy(home, "owner.tokens", "owner.copy")
        await home.asks("alice", images, **tokens(home, "alice"))
        await home.stop(MODEL_OWNER)
        # The dealer takes the copy for the party, since it has the token of its last start. The data owner does not.
        await home.model_owner(private, **tokens(home, "owner.copy"))
        found: list[CopyError] = []
        with pytest.raises(InferenceError, match="is a copy, or was restored from a backup"):
            await home.asks("alice", images, **tokens(home, "alice"), on_copy=found.append)
        assert [error.server for error in found] == [MODEL_OWNER]
        await home.waits(MODEL_OWNER, CopyDetected)
        await home.stop(MODEL_OWNER)
        # The dealer refuses who has started before that.
        with pytest.raises(CopyError, match=f"'{MODEL_OWNER}' started elsewhere since"):
            await _until_it_ends(home, private)
        await home.waits(DEALER, CopyDetected, peer=MODEL_OWNER)
        await home.waits(MODEL_OWNER, CopyDetected, peer=MODEL_OWNER)


async def _until_it_ends(home: House, private: Any) -> None:
    await home.model_owner(private, **tokens(home, "owner.tokens"))
    await home.tasks[MODEL_OWNER]

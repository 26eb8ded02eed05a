"""Live parties of private inference for the kit: our own, with a transformer of a few numbers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
import torch

import tacit.parties.links.endpoint
import tacit.protocol.core.rate_limit
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert
from tacit.models.networks import build
from tacit.parties.inference.conversation import InferenceError
from tacit.parties.inference.data_owner import DataOwnerSettings, open_session
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.private_model import PrivateModel, prepared_model
from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import write_roster
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import LocalProtocolError
from tacit.protocol.core.roster import Role, Roster
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.messages import Terms
from tacit.simulate.conformance.peer.play import Addresses, Side, play
from tacit.simulate.conformance.peer.script import PeerVerdict

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from live_party import SECONDS, free_address, running

ROLES: Final[dict[str, Role]] = {"hospital": "server", "ward": "client", "clinic": "client", "trent": "dealer"}
LIVE: Final[dict[Side, str]] = {
    "model-owner": "clinic",
    "data-owner": "hospital",
    "owners": "trent",
    "adapting-model-owner": "clinic",
    "adapting-data-owner": "hospital",
}
"""Whom the kit tests as what."""
IMAGES: Final = torch.randn(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
"""Noise."""


MOST: Final = {"most_images": 8, "most_batch": 2}
"""That a model owner computes, ours and the live one."""


@cache
def transformer() -> FriendlyTransformer:
    sizes = ModelConfiguration(image_size=4, patch_size=2, width=4, depth=1, heads=1)
    friendly = convert(build(sizes, classes=2, channels=1, seed=1), Approximation())
    calibrate(friendly, IMAGES, margin=2.0)
    return friendly.requires_grad_(False)


@cache
def private_model() -> PrivateModel:
    return prepared_model(transformer(), IMAGES, margin=2.0)


@dataclass
class InferenceBench:
    """A roster, the directory of the kit, and a live party. patience: of the live party."""

    directory: Path
    patience: float = SECONDS
    wait: float = SECONDS
    """Of the kit."""
    terms: bool = True
    """Whether the kit is given terms that our data owner can compute with."""
    images: int = len(IMAGES)
    """Of a live data owner, two in a pass."""
    told: list[str] = field(default_factory=list)
    """What the kit asked its user to do."""
    roles: ClassVar[dict[str, Role]] = ROLES

    def __post_init__(self) -> None:
        self.keys = {name: generate(name) for name in self.roles}
        self.roster = Roster(tuple(own.member(self.roles[name]) for name, own in self.keys.items()))
        self.address, self.dealer_address = free_address(), free_address()

    def give_keys(self, side: Side) -> Path:
        """The kit's directory, with the keys of those that it plays."""
        kit = self.directory / "kit"
        kit.mkdir()
        write_roster(self.roster, kit / "roster.toml")
        for name, own in self.keys.items():
            if name != LIVE[side] and not (side == "owners" and name == LIVE["model-owner"]):
                save(own, kit, role=self.roles[name])
        if self.terms:
            (kit / "terms.msgpack").write_bytes(encode_structure(self._terms()))
        return kit

    def play(self, side: Side, *names: str) -> dict[str, PeerVerdict]:
        kit = self.give_keys(side)
        with self.live(side, sessions=len({"honest", *names})):
            playing = play(self._addresses(side), side, kit, names=names, wait=self.wait, tell=self.told.append)
            return {verdict.case: verdict for verdict in asyncio.run(playing).cases}

    @contextlib.contextmanager
    def live(self, side: Side, sessions: int = 0) -> Iterator[None]:
        """The party that the kit tests on this side; sessions: how many a data owner begins, one for each case."""
        common: dict[str, Any] = {"keys": self.keys[LIVE[side]], "roster": self.roster, "patience": self.patience}
        with pytest.MonkeyPatch.context() as patch, EventFile(self.directory / "live.jsonl", LIVE[side]) as log:
            # What a live party still has to say to a kit that is gone need not be waited for.
            patch.setattr(tacit.parties.links.endpoint, "_LINGER_MS", 100)
            # Nor that each case begins with a hello of its own, of which a party answers one in ten seconds.
            patch.setattr(tacit.protocol.core.rate_limit, "HELLO_SECONDS", 0.1)
            event_log = EventLog(log, lambda event: None)
            with running(self._party(side, sessions, event_log, common)):
                yield

    def _addresses(self, side: Side) -> Addresses:
        return Addresses(self.address, None if side == "owners" else self.dealer_address)

    def _terms(self) -> Terms:
        return private_model().terms(**MOST)

    def _party(
        self, side: Side, sessions: int, event_log: EventLog, common: dict[str, Any]
    ) -> Callable[[], Awaitable[Any]]:
        addresses = {"dealer_address": self.dealer_address}
        if side == "owners":
            return DealerParty(DealerSettings(address=self.address, **common), event_log).run
        if side == "data-owner":
            settings = ModelOwnerSettings(address=self.address, **addresses, **common, **MOST)
            return ModelOwnerParty(settings, private_model(), event_log).run
        found = DataOwnerSettings(model_owner_address=self.address, **addresses, **common)
        left = [*range(sessions)]

        async def session() -> None:
            if not left:
                await asyncio.Event().wait()
            with contextlib.suppress(InferenceError, LocalProtocolError):
                images = IMAGES[: self.images]
                request = InferenceRequest(images=len(images), batch=2, channels=1, side=images.shape[-1])
                async with open_session(found, request) as asked:
                    async for _ in asked.answers(images):
                        pass
            left.pop()

        return session

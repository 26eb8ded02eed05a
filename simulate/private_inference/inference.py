"""Private inference on this machine: model owner, data owners and dealer, each a process, over CURVE on loopback TCP.

Keys are made for the run. The model owner's process gets the model, a data owner's process its images and nothing of
the model; what each of them did comes back as its figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import torch

from tacit.parties.inference.data_owner import DataOwnerSettings, Inferred, PassCosts, infer
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.owner import AHEAD
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.session.diary import Diary
from tacit.parties.session.event_log import EventLog
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.messages import Input
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import Exit, ProcessError, Processes

DEALER: Final = "dealer"
MODEL_OWNER: Final = "model-owner"
DATA_OWNER: Final = "data-owner"
_LISTEN: Final = "tcp://127.0.0.1:*"


class InferenceFailed(RuntimeError):
    """A party failed; the text names it and the reason."""


@dataclass(frozen=True, kw_only=True)
class InferencePlan:
    """How to run."""

    input: Input = "known"
    batch: int
    ahead: int | None = AHEAD
    """As of DataOwnerSettings."""
    patience: float = 120.0
    device: str = "cpu"
    """Where both owners compute."""
    relayed: Callable[[str], str] = str
    """From the model owner's address, the one at which data owners find it."""


def data_owner_names(count: int) -> tuple[str, ...]:
    """Of so many data owners."""
    return (DATA_OWNER,) if count == 1 else tuple(f"{DATA_OWNER}-{number}" for number in range(1, count + 1))


def run(
    model: PrivateModel, images: Sequence[torch.Tensor], plan: InferencePlan, progress: Callable[[str, int], None]
) -> list[Inferred]:
    """What each data owner learns of its images [N, C, S, S], all served at the same time.

    `progress` gets the name of a data owner and how many of its images are done. InferenceFailed names the party that
    failed, and says what it knows itself of the reason; or that this process could not run them.
    """
    try:
        return asyncio.run(_run(model, images, plan, progress))
    except (OSError, ProcessError) as error:
        raise InferenceFailed(f"the parties cannot be run here: {error}") from error


async def _run(
    model: PrivateModel, images: Sequence[torch.Tensor], plan: InferencePlan, progress: Callable[[str, int], None]
) -> list[Inferred]:
    owners = data_owner_names(len(images))
    keys = {name: generate(name) for name in (MODEL_OWNER, DEALER, *owners)}
    clients = (keys[name].member("client") for name in owners)
    roster = Roster((keys[MODEL_OWNER].member("server"), keys[DEALER].member("dealer"), *clients))
    found: dict[str, Inferred] = {}
    addresses: dict[str, str] = {}
    reasons: list[str] = []
    with TemporaryDirectory() as logs:
        async with Processes(Path(logs), grace_seconds=0.5) as processes:

            async def start(name: str, target: Any, **arguments: Any) -> None:
                seat = _Seat(keys[name], roster, Path(logs), replace(plan, relayed=str), dict(addresses))
                await processes.start(name, target, seat=seat, **arguments)

            await start(DEALER, _dealer)
            async for name, message in processes.messages():
                if isinstance(message, Exit):
                    if name not in found:
                        raise InferenceFailed(f"{name}: its process ended unexpectedly: {message}")
                elif "address" in message:
                    addresses[name] = plan.relayed(message["address"]) if name == MODEL_OWNER else message["address"]
                    if name == DEALER:
                        await start(MODEL_OWNER, _model_owner, model=model)
                        continue
                    for owner, mine in zip(owners, images, strict=True):
                        await start(owner, _data_owner, images=mine)
                elif "failure" in message:
                    # Its peers, who only hear that it cannot go on, are heard here after it.
                    reasons.append(f"{name}: {message['failure']}")
                elif "done" in message:
                    progress(name, message["done"])
                elif "finished" in message:
                    plain = message["finished"]
                    logits = torch.tensor(plain["logits"], dtype=torch.float64)
                    passes = msgspec.convert(plain["passes"], tuple[PassCosts, ...])
                    found[name] = Inferred(logits, passes, plain["weights_bytes"])
                    if len(found) == len(owners):
                        break
                else:
                    raise InferenceFailed("; ".join([f"{name}: {message.get('failed', message)}", *reasons]))
    return [found[name] for name in owners]


@dataclass(frozen=True)
class _Seat:
    """What every process is started with."""

    keys: PartyKeys
    roster: Roster
    logs: Path
    plan: InferencePlan
    addresses: dict[str, str]
    """Where those listen who have started before."""

    def settings(self) -> dict[str, Any]:
        """What all parties are set up with."""
        return {"keys": self.keys, "roster": self.roster, "patience": self.plan.patience}

    def owner_settings(self) -> dict[str, Any]:
        """What both kinds of owners are set up with."""
        dealer, device = self.addresses[DEALER], torch.device(self.plan.device)
        return self.settings() | {"dealer_address": dealer, "ahead": self.plan.ahead, "device": device}

    def diary(self, control: Control) -> Diary:
        """Its event log, which does not last; for the supervisor its address, and why it could not go on."""

        def tell(event: str, fields: dict[str, Any]) -> None:
            if event == "listening":
                control.send({"address": fields["address"]})
            elif fields.get("failure") is not None:
                control.send({"failure": fields["failure"]})

        return Diary(EventLog(self.logs / f"{self.keys.name}.jsonl", self.keys.name), tell)


async def _dealer(control: Control, *, seat: _Seat) -> None:
    await DealerParty(DealerSettings(address=_LISTEN, **seat.settings()), seat.diary(control)).run()


async def _model_owner(control: Control, *, seat: _Seat, model: PrivateModel) -> None:
    settings = ModelOwnerSettings(
        address=_LISTEN, input=seat.plan.input, most_batch=seat.plan.batch, **seat.owner_settings()
    )
    await ModelOwnerParty(settings, model, seat.diary(control)).run()


async def _data_owner(control: Control, *, seat: _Seat, images: torch.Tensor) -> dict[str, Any]:
    settings = DataOwnerSettings(model_owner_address=seat.addresses[MODEL_OWNER], **seat.owner_settings())
    found = await infer(settings, images, batch=seat.plan.batch, progress=lambda done: control.send({"done": done}))
    return {"logits": found.logits.tolist(), "weights_bytes": found.weights_bytes, "passes": found.passes}

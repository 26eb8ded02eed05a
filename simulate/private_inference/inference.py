"""Private inference on this machine: model owner, data owners and dealer, each a process, over CURVE on loopback TCP.

Keys are made for the run. The model owner's process gets the model, a data owner's process its images and nothing of
the model; answers and costs of the data owners come back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import torch

from tacit.models.adapters.parallel import AdapterParameters
from tacit.parties.adaptation.predicting import PredictingParty, PredictionSession, PredictionSettings
from tacit.parties.adaptation.public import PublicLearning
from tacit.parties.inference.conversation import AHEAD
from tacit.parties.inference.data_owner import (
    Answer,
    DataOwnerSettings,
    Inferred,
    PassCosts,
    SessionKind,
    open_session,
    request_for,
)
from tacit.parties.inference.dealer import DealerParty, DealerSettings
from tacit.parties.inference.events import InferenceSessionEnded, PreprocessingFailed
from tacit.parties.inference.model_owner import ModelOwnerParty, ModelOwnerSettings
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.events import ListeningStarted
from tacit.protocol.core.events import Event
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.schedule import LOGITS, Results
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import Message, ProcessError, Program, results
from tacit.simulate.insecure import Input
from tacit.simulate.insecure.known_input import KnownInputParty, KnownSession

DEALER: Final = "dealer"
MODEL_OWNER: Final = "model-owner"
DATA_OWNER: Final = "data-owner"
_LISTEN: Final = "tcp://127.0.0.1:*"


@dataclass(frozen=True, kw_only=True)
class InferencePlan:
    """How to run."""

    input: Input = "shared"
    batch: int
    results: Results = LOGITS
    """What data owners are told."""
    ahead: int | None = AHEAD
    """As of DataOwnerSettings."""
    patience: float = 120.0
    device: str = "cpu"
    """Where both owners compute."""
    cores: frozenset[int] | None = None
    """Of the processor, where all parties run; None: wherever they may."""
    learned: PublicLearning | None = field(default=None, repr=False)
    """What data owners have learned beside the model, where they have."""
    relayed: Callable[[str], str] = str
    """From the model owner's address, the one at which data owners find it."""


def data_owner_names(count: int) -> tuple[str, ...]:
    """Of so many data owners."""
    return (DATA_OWNER,) if count == 1 else tuple(f"{DATA_OWNER}-{number}" for number in range(1, count + 1))


def run(
    model: PrivateModel,
    images: Sequence[torch.Tensor],
    plan: InferencePlan,
    progress: Callable[[str, int], None],
    *,
    parameters: AdapterParameters | None = None,
) -> list[Inferred]:
    """What each data owner learns of its images [N, C, S, S], all served at the same time. parameters: what all data
    owners have learned, where the plan has a learning.

    `progress` gets the name of a data owner and how many of its images are done. ProcessError names the party that
    failed, and says what it knows itself of the reason; or that this process could not run them.
    """
    owners = data_owner_names(len(images))
    keys = {name: generate(name) for name in (MODEL_OWNER, DEALER, *owners)}
    roster = Roster(
        (
            keys[MODEL_OWNER].member("server"),
            keys[DEALER].member("dealer"),
            *(keys[name].member("client") for name in owners),
        )
    )
    reasons: list[str] = []

    def told(name: str, message: Message) -> None:
        if "failure" in message:
            # Its peers, who only hear that it cannot go on, are heard here after it.
            reasons.append(f"{name}: {message['failure']}")
        else:
            progress(name, message["done"])

    try:
        with TemporaryDirectory() as logs:

            def program(name: str, target: Any, **arguments: Any) -> Program:
                # The relay is asked here alone.
                seat = _Seat(keys[name], roster, Path(logs), replace(plan, relayed=str))
                return target, {"seat": seat, **arguments}

            programs = {
                DEALER: program(DEALER, _dealer),
                MODEL_OWNER: program(MODEL_OWNER, _model_owner, model=model),
                **{
                    name: program(name, _data_owner, images=mine, parameters=parameters)
                    for name, mine in zip(owners, images, strict=True)
                },
            }
            listening: dict[str, Callable[[str], str]] = {DEALER: str, MODEL_OWNER: plan.relayed}
            found = asyncio.run(results(programs, told, listening=listening, wanted=owners))
    except OSError as error:
        raise ProcessError(f"the parties cannot be run here: {error}") from error
    except ProcessError as error:
        raise ProcessError("; ".join([str(error), *reasons])) from error
    return [_inferred(found[name]) for name in owners]


@dataclass(frozen=True)
class _Seat:
    """What every process is started with."""

    keys: PartyKeys
    roster: Roster
    logs: Path
    plan: InferencePlan

    @property
    def settings(self) -> dict[str, Any]:
        """Of every party."""
        return {"keys": self.keys, "roster": self.roster, "patience": self.plan.patience}

    @property
    def owner_settings(self) -> dict[str, Any]:
        """Of both owners."""
        return {**self.settings, "ahead": self.plan.ahead, "device": torch.device(self.plan.device)}

    def take(self) -> None:
        """Once in the party's process."""
        if self.plan.cores is not None:
            os.sched_setaffinity(0, self.plan.cores)

    def event_log(self, control: Control) -> EventLog:
        """Its event log, which does not last; for the supervisor its address, and why it could not go on."""

        def tell(event: Event) -> None:
            if isinstance(event, ListeningStarted):
                control.send({"address": event.address})
            elif isinstance(event, InferenceSessionEnded | PreprocessingFailed) and event.failure:
                control.send({"failure": event.failure})

        return EventLog(EventFile(self.logs / f"{self.keys.name}.jsonl", self.keys.name), tell)


async def _dealer(control: Control, *, seat: _Seat, addresses: dict[str, str]) -> None:
    seat.take()
    await DealerParty(DealerSettings(address=_LISTEN, **seat.settings), seat.event_log(control)).run()


async def _model_owner(control: Control, *, seat: _Seat, addresses: dict[str, str], model: PrivateModel) -> None:
    seat.take()
    plan = seat.plan
    settings: dict[str, Any] = {
        "address": _LISTEN,
        "dealer_address": addresses[DEALER],
        "results": plan.results,
        **seat.owner_settings,
    }
    if plan.learned is not None:
        learning = PredictionSettings(learning=plan.learned, **settings)
        await PredictingParty(learning, model, seat.event_log(control)).run()
    serving = ModelOwnerSettings(most_batch=plan.batch, **settings)
    kind = KnownInputParty if plan.input == "known" else ModelOwnerParty
    await kind(serving, model, seat.event_log(control)).run()


async def _data_owner(
    control: Control,
    *,
    seat: _Seat,
    addresses: dict[str, str],
    images: torch.Tensor,
    parameters: AdapterParameters | None,
) -> dict[str, Any]:
    seat.take()
    kind = KnownSession() if seat.plan.input == "known" else SessionKind()
    if parameters is not None:
        kind = PredictionSession(parameters)
    settings = DataOwnerSettings(
        model_owner_address=addresses[MODEL_OWNER],
        dealer_address=addresses[DEALER],
        **seat.owner_settings,
    )
    answers: list[Answer] = []
    async with open_session(settings, request_for(images, seat.plan.batch), kind) as session:
        async for answer in session.answers(images):
            answers.append(answer)
            control.send({"done": sum(each.costs.images for each in answers)})
    found = Inferred.collected(session, answers)
    return {
        "logits": found.logits.tolist(),
        "labels": found.labels.tolist(),
        "passes": msgspec.to_builtins(found.passes),
        "weights_bytes": found.weights_bytes,
    }


def _inferred(plain: dict[str, Any]) -> Inferred:
    """What a data owner's process has sent."""
    passes = msgspec.convert(plain["passes"], tuple[PassCosts, ...])
    logits, labels = torch.tensor(plain["logits"], dtype=torch.float64), torch.tensor(plain["labels"])
    return Inferred(logits, labels, passes, plain["weights_bytes"])

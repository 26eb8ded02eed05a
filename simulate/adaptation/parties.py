"""The processes of an adaptation on one machine: the dealer, the model owner, and a data owner each."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import torch

from tacit.parties.adaptation import standing
from tacit.parties.adaptation.data_owner import DataOwnerParty, RoundLearned
from tacit.parties.adaptation.rounds import deal_and_sum
from tacit.parties.hosting.server import describe
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.session.event_log import Diary, EventLog
from tacit.parties.session.shell import Surroundings
from tacit.simulate.adaptation.plan import DEALER, MODEL_OWNER, Seat, tell
from tacit.simulate.adaptation.setting import Labelled
from tacit.simulate.federation.child import Control
from tacit.simulate.insecure.revealed_outputs import forget
from tacit.simulate.insecure.revealing_parties import learner, teacher


async def run_dealer(control: Control, *, seat: Seat, addresses: dict[str, str]) -> dict[str, Any]:
    """Deal material, and serve the sums until the rounds are over; how they ended."""
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    say = tell(control, seat.keys.name)

    def listening(service: str) -> Any:
        def told(event: str, fields: dict[str, Any]) -> None:
            if event == "listening":
                found[service] = fields["address"]
                if len(found) == 2:
                    control.send({"address": f"{found['dealing']} {found['summing']}"})
            else:
                say(event, fields)

        return told

    settings = seat.dealer()
    with EventLog(seat.folder.run.events(DEALER), DEALER) as log:
        log.write("configuration", **describe(settings.summing.configuration))
        log.write("provenance", **msgspec.to_builtins(seat.origin))
        ended = await deal_and_sum(
            settings, dealt=Diary(log, listening("dealing")), summed=Diary(log, listening("summing"))
        )
    return {"code": ended.code.name if ended.code else None, "detail": ended.detail}


async def run_model_owner(control: Control, *, seat: Seat, addresses: dict[str, str], model: PrivateModel) -> None:
    """Serve until it is ended."""
    torch.set_num_threads(1)
    say = tell(control, seat.keys.name)

    def told(event: str, fields: dict[str, Any]) -> None:
        if event == "listening":
            control.send({"address": fields["address"]})
        else:
            say(event, fields)

    dealing, _ = addresses[DEALER].split()
    with EventLog(seat.folder.run.events(MODEL_OWNER), MODEL_OWNER) as log:
        try:
            settings = seat.model_owner(dealing, seat.recording() or Surroundings())
            await teacher(seat.revealing, settings, model, Diary(log, told)).run()
        except asyncio.CancelledError:
            log.write("ended", code=None, detail="nobody learns any more")
            raise


async def run_data_owner(control: Control, *, seat: Seat, addresses: dict[str, str], own: Labelled) -> dict[str, Any]:
    """Learn until the rounds are over; how that ended."""
    torch.set_num_threads(1)
    name, folder = seat.keys.name, seat.folder
    dealing, summing = addresses[DEALER].split()

    def keep(told: RoundLearned) -> None:
        standing.save(folder.of_owner(name), told.parameters, round=told.round)

    with EventLog(folder.run.events(name), name) as log:
        diary = Diary(log, tell(control, name))
        recording = seat.recording()
        settings = seat.learner(
            model_owner_address=addresses[MODEL_OWNER],
            dealer_address=dealing,
            surroundings=recording or Surroundings(),
        )
        learns = learner(
            seat.revealing,
            settings,
            own.images,
            own.labels,
            diary,
            keep=forget if recording is None else recording.keep_revealed,
            on_told=keep,
        )
        try:
            ended = await DataOwnerParty(seat.client(summing), learns, diary).run()
        finally:
            await asyncio.shield(learns.close())
    return {"code": ended.code.name if ended.code else None, "detail": ended.detail}

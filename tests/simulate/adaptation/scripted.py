"""The folder of an adaptation as its parties would leave it, and its summary, without any of them running."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tacit.models.adapters.configuration import AdaptationConfiguration, LinearProbeConfiguration, Reveal
from tacit.models.adapters.parallel import initial
from tacit.parties.adaptation.events import (
    AdaptersUpdated,
    BatchEnded,
    ImagesKept,
    LearningRoundLost,
    LearningSessionOpened,
)
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.directory import Seed
from tacit.parties.runs.events import InvocationRecorded
from tacit.parties.session.event_log import EventFile
from tacit.parties.session.events import (
    ConfigurationProposed,
    Dropout,
    PhaseEnded,
    RoundEnded,
    SessionEnded,
    TrafficCounted,
)
from tacit.protocol.core.events import Event
from tacit.protocol.session.events import RoundStarted
from tacit.protocol.sum.events import ClientDropped
from tacit.protocol.sum.states import Phase
from tacit.simulate.adaptation.plan import DEALER, MODEL_OWNER, Folder, owner_names
from tacit.simulate.adaptation.results import AdaptationSummary, AdaptersMetrics
from tacit.simulate.adaptation.summary import Known, summarise

ROUNDS: Final = 2
OWNERS: Final = owner_names(4)
JUDGED: Final = {
    number: AdaptersMetrics(accuracy=0.2 + number / 8, balanced_accuracy=0.25 + number / 8, loss=1.75 - number / 4)
    for number in range(ROUNDS + 1)
}


class Script:
    def __init__(self, path: Path, reveal: Reveal = "none") -> None:
        self.folder = Folder(path)
        (path / "events").mkdir(parents=True)
        base = AdaptationExperiment()
        federation = msgspec.structs.replace(base.federation, rounds=ROUNDS)
        self.experiment = msgspec.structs.replace(
            base,
            federation=federation,
            adapter=LinearProbeConfiguration(),
            adaptation=AdaptationConfiguration(reveal=reveal, batch=8),
        )
        self._logs = {name: EventFile(self.folder.run.events(name), name) for name in (DEALER, MODEL_OWNER, *OWNERS)}
        self.log(
            DEALER,
            ConfigurationProposed(
                parameters=100,
                ring_bits=32,
                vector_bytes=400,
                step=1.0,
                max_weight=1,
                colluders=0,
                cohort=len(OWNERS),
                threshold=3,
                neighbours=3,
                configuration_hash="00",
            ),
        )
        seed = Seed(value=5, drawn=False, repeats="everything")
        self.log(DEALER, InvocationRecorded.now("tacit adapt --seed 5", started=time.time(), device="cpu", seed=seed))
        for name in OWNERS:
            self.log(name, LearningSessionOpened(peer=MODEL_OWNER, images=16, weights_bytes=1000))
            for images in (8, 16):
                kept = ImagesKept(images=images, of=16, preprocessing_bytes=70, peer=name)
                self.log(MODEL_OWNER, kept)
                own = {"seconds": 0.25, "preprocessing_wait_seconds": 0.125, "sent": 200, "received": 300}
                own["openings"] = 99
                self.log(name, msgspec.structs.replace(kept, peer="", preprocessing_bytes=500, **own))

    def log(self, party: str, event: Event) -> None:
        self._logs[party].write(event)

    def round(self, number: int, *, dropped: str = "", lost: str = "", aborted: str = "", refused: int = 0) -> None:
        """A round with a batch of every data owner; lost, aborted: why it has no result; refused: so many batches of
        all rounds, which is told with the last one."""
        survivors = [name for name in OWNERS if name != dropped]
        self.log(DEALER, RoundStarted(round=number, cohort=list(OWNERS)))
        for place, name in enumerate(OWNERS):
            batch = BatchEnded(round=number, number=1, preprocessing_bytes=700, peer=name)
            self.log(MODEL_OWNER, batch)
            own: dict[str, Any] = {"preprocessing_wait_seconds": 0.5, "seconds": 1.0 + place}
            own |= {"sent": 2000, "received": 3000, "openings": 21}
            self.log(name, msgspec.structs.replace(batch, peer="", preprocessing_bytes=5000, **own))
            self.log(name, PhaseEnded(round=number, phase=Phase.TRAIN, seconds=2.0, next=Phase.MASKED_INPUT))
            self.log(name, TrafficCounted(round=number, phase=Phase.MASKED_INPUT, sent=400, received=40))
        self.log(DEALER, PhaseEnded(round=number, phase=Phase.TRAIN, seconds=2.5, next=Phase.UNMASK))
        why: dict[str, Any] = {"phase": Phase.TRAIN, "code": "LEFT", "detail": "it vanished"}
        if dropped:
            self.log(DEALER, ClientDropped(member=dropped, **why))
        self.log(
            DEALER,
            RoundEnded(
                round=number,
                status="aborted" if aborted else "completed",
                code="THRESHOLD" if aborted else None,
                detail=aborted,
                culprit=None,
                cohort=list(OWNERS),
                absent={},
                repeated=False,
                survivors=survivors,
                dropped=[Dropout(party=dropped, included_in_sum=False, **why)] if dropped else [],
                seconds=4.0,
            ),
        )
        images = 8 * len(survivors)
        told = refused if number == self.experiment.federation.rounds else None
        for name in survivors:
            if lost:
                self.log(name, LearningRoundLost(round=number, detail=lost))
            elif not aborted:
                learned = AdaptersUpdated(
                    round=number,
                    owners=len(survivors),
                    images=images,
                    train_loss=1.5,
                    train_accuracy=0.375,
                    refused_batches=told,
                )
                self.log(name, learned)

    def summary(self, judged: Mapping[int, AdaptersMetrics] = JUDGED) -> AdaptationSummary:
        ended = SessionEnded(code=None, detail="all rounds are done")
        for name in self._logs:
            self.log(name, ended)
        return summarise(
            self.folder,
            self.experiment,
            self.known(judged),
            ends=dict.fromkeys((DEALER, *OWNERS), ended.detail),
            wall_seconds=12.0,
        )

    def known(self, judged: Mapping[int, AdaptersMetrics] = JUDGED) -> Known:
        first = initial(self.experiment.adapter, blocks=2, tokens=5, width=16, classes=5, seed=1)
        classes = ("5", "6", "7", "8", "9")
        return Known(began=time.time(), classes=classes, parameters=first.count, judged=dict(judged))

"""Private inference on this machine: model owner, data owners and dealer, each a process, over CURVE on loopback TCP.

The parties are files in a temporary folder, and run as on hosts. A data owner's process gets its images and nothing of
the model; the data owners return answers and costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, Self, cast

import msgspec
import torch
from msgspec import structs

from tacit.parties.hosting.data_owner import DataOwnerHooks, OwnImages
from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.party_file import (
    DataOwnerFile,
    DealerFile,
    LearningSection,
    ModelOwnerFile,
    PartyFile,
    TeachingSection,
)
from tacit.parties.hosting.protocols import ProtocolName
from tacit.parties.hosting.running import PartyOutcome
from tacit.parties.inference.conversation import AHEAD
from tacit.parties.inference.data_owner import Answer, DataOwnerSession, Inferred, PassCosts, SessionKind
from tacit.parties.inference.events import ImagesAnswered, InferenceSessionEnded, PreprocessingFailed
from tacit.parties.inference.model import Interface
from tacit.parties.inference.private_model import PrivateModel
from tacit.parties.runs.served import Checkpoint
from tacit.parties.runs.state import parse_event
from tacit.protocol.inference.schedule import LOGITS, Results
from tacit.simulate.adaptation.plan import SimulatedDealer, SimulatedModelOwner
from tacit.simulate.federation.party_files import (
    DEALER,
    LISTEN,
    MODEL_OWNER,
    NO_QUOTA,
    NOT_YET,
    HeldParty,
    PartyFiles,
    PartyProgram,
    hold_party,
)
from tacit.simulate.federation.processes import Message, ProcessError, Program, results
from tacit.simulate.insecure import Input
from tacit.simulate.insecure.known_input import KnownInputParty, KnownSession

DATA_OWNER: Final = "data-owner"


@dataclass(frozen=True, kw_only=True)
class InferencePlan:
    input: Input = "shared"
    batch: int
    results: Results = LOGITS
    protocol: ProtocolName = "tacit"
    ahead: int | None = AHEAD
    patience: float = 120.0
    device: str = "cpu"
    cores: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Processor cores by party name; parties without an entry may use all."""
    relayed: Callable[[str], str] = str
    """Maps the model owner's address to the one that data owners use."""


def data_owner_names(count: int) -> tuple[str, ...]:
    return (DATA_OWNER,) if count == 1 else tuple(f"{DATA_OWNER}-{number}" for number in range(1, count + 1))


@dataclass(frozen=True)
class LearnedFolders:
    model_owner: PartyFolder
    data_owner: PartyFolder
    section: TeachingSection
    """Settings of predictions at the model owner."""


def run(
    model: PrivateModel | Path | Checkpoint,
    images: Sequence[torch.Tensor],
    plan: InferencePlan,
    progress: Callable[[str, int], None],
    *,
    learned: LearnedFolders | None = None,
) -> list[Inferred]:
    """Return each data owner's results on its images [N, C, S, S], all served at the same time. model: prepared, or a
    directory or checkpoint for the model owner; learned: set where data owners use the adapters of one of them.

    `progress` receives the name of a data owner and its number of completed images. ValueError for an unsuitable model.
    ProcessError names the failed party with its own reason, or says that this process could not run them.
    """
    owners = data_owner_names(len(images))
    reasons: list[str] = []

    def told(name: str, message: Message) -> None:
        event = parse_event(message["event"])
        if isinstance(event, ImagesAnswered):
            progress(name, event.images)
        elif isinstance(event, InferenceSessionEnded | PreprocessingFailed) and event.failure:
            # Its peers report only that it stopped; their messages arrive after its own.
            reasons.append(f"{name}: {event.failure}")
        elif isinstance(event, InferenceSessionEnded) and name in owners:
            # On hosts it would retry.
            raise ProcessError(f"{name}: {event.detail}")

    try:
        with TemporaryDirectory() as folder:
            files = PartyFiles(Path(folder))
            files.enrol({MODEL_OWNER: "server", DEALER: "dealer", **dict.fromkeys(owners, "client")})
            programs = _programs(files, model, dict(zip(owners, images, strict=True)), plan, learned)
            found = asyncio.run(
                results(
                    programs,
                    told,
                    listening={DEALER: (DEALER,), MODEL_OWNER: (MODEL_OWNER,)},
                    reached=lambda service, address: plan.relayed(address) if service == MODEL_OWNER else address,
                    wanted=owners,
                )
            )
    except OSError as error:
        raise ProcessError(f"the parties cannot be run here: {error}") from error
    except ProcessError as error:
        raise ProcessError("; ".join([str(error), *reasons])) from error
    return [_inferred(found[name]) for name in owners]


def _programs(
    files: PartyFiles,
    model: PrivateModel | Path | Checkpoint,
    images: Mapping[str, torch.Tensor],
    plan: InferencePlan,
    learned: LearnedFolders | None,
) -> dict[str, Program]:
    known = plan.input == "known"
    common: dict[str, Any] = {"answer": plan.patience}
    device = cast("Literal['cpu', 'cuda']", plan.device)
    revealed, asks = plan.results, LearningSection(purpose="prediction") if learned else None

    def program(name: str, file: PartyFile, hooks: Callable[[], HeldParty]) -> Program:
        return hold_party, {"program": PartyProgram(files, name, file, hooks, plan.cores.get(name))}

    owner = ModelOwnerFile(
        bind=LISTEN,
        dealer=NOT_YET,
        **_named(model),
        device=device,
        protocol=plan.protocol,
        most_batch=plan.batch,
        policy=structs.replace(NO_QUOTA, labels=revealed.labels, logits_bits=revealed.bits or LOGITS.bits),
        adaptation=None if learned is None else learned.section,
        **common,
        **files.common(MODEL_OWNER),
    )
    given = _with_interface(model) if isinstance(model, PrivateModel) else None
    hooks = partial(SimulatedModelOwner, given, KnownInputParty if known else None, ahead=plan.ahead)
    programs = {
        DEALER: program(
            DEALER, DealerFile(bind=LISTEN, device=device, **common, **files.common(DEALER)), SimulatedDealer
        ),
        MODEL_OWNER: program(MODEL_OWNER, owner, hooks),
    }
    for name, own in images.items():
        file = DataOwnerFile(
            model_owner=NOT_YET,
            dealer=NOT_YET,
            images="given by this process",
            batch=plan.batch,
            device=device,
            protocol=plan.protocol,
            adaptation=asks,
            **common,
            **files.common(name),
        )
        programs[name] = program(name, file, partial(SimulatedDataOwner, own, known=known, ahead=plan.ahead))
    if learned is not None:
        for name in programs:
            if name != DEALER:
                source = learned.model_owner if name == MODEL_OWNER else learned.data_owner
                files.take_state(name, source)
    return programs


def _named(model: PrivateModel | Path | Checkpoint) -> dict[str, Any]:
    if isinstance(model, Checkpoint):
        return {
            "model": str(model.path),
            "architecture": model.architecture,
            "calibration": str(model.calibration),
            "image_size": model.image_size,
        }
    return {"model": str(model) if isinstance(model, Path) else "given by this process"}


def _with_interface(model: PrivateModel) -> PrivateModel:
    """Add the data owners' interface to a model whose images are already prepared."""
    public = model.public
    if public.interface is not None:
        return model
    sizes = public.sizes
    names = tuple(str(number) for number in range(sizes.classes))
    told = Interface(mean=(0.0,) * sizes.channels, std=(1.0,) * sizes.channels, white=255, classes=names)
    return replace(model, public=structs.replace(public, interface=told))


@dataclass(frozen=True, eq=False)
class GivenImages(OwnImages):
    pixels: torch.Tensor = field(repr=False)
    """float32 [N, C, S, S]."""

    @classmethod
    def of(cls, pixels: torch.Tensor) -> Self:
        names = tuple(str(number) for number in range(len(pixels)))
        return cls(names, None, "given", (), None, pixels)

    def prepared(self, interface: Interface, *, side: int, first: int) -> torch.Tensor:
        return self.pixels[first:]


class SimulatedDataOwner(DataOwnerHooks, HeldParty):
    """A data owner with given images, which keeps answers and their costs for the supervisor."""

    def __init__(self, images: torch.Tensor, *, known: bool, ahead: int | None) -> None:
        super().__init__()
        self.ahead = ahead
        self._images = GivenImages.of(images)
        self._known = known
        self._answers: list[Answer] = []
        self._session: DataOwnerSession

    def images(self, file: DataOwnerFile) -> OwnImages:
        return self._images

    def session(self, usual: SessionKind) -> SessionKind:
        return KnownSession() if self._known else usual

    def answered(self, answer: Answer, session: DataOwnerSession) -> None:
        self._answers.append(answer)
        self._session = session

    def told(self, outcome: PartyOutcome) -> Any:
        found = Inferred.collected(self._session, self._answers)
        return {
            "logits": found.logits.tolist(),
            "labels": found.labels.tolist(),
            "passes": msgspec.to_builtins(found.passes),
            "weights_bytes": found.weights_bytes,
        }


def _inferred(plain: dict[str, Any]) -> Inferred:
    passes = msgspec.convert(plain["passes"], tuple[PassCosts, ...])
    logits, labels = torch.tensor(plain["logits"], dtype=torch.float64), torch.tensor(plain["labels"])
    return Inferred(logits, labels, passes, plain["weights_bytes"])

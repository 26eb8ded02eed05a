"""From what somebody asks of an audit of an adaptation to what it does. Refusals say what would be accepted."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import load_as
from tacit.simulate.adaptation.plan import MODEL_OWNER, owner_names
from tacit.simulate.adaptation.setting import BACKBONE
from tacit.simulate.adaptation_audit.extraction import COPIED_BLOCKS, IMITATION
from tacit.simulate.adaptation_audit.openings import FITTED_WORDS, READ_WORDS
from tacit.simulate.audit.adversaries import AdversaryError, images_of

DATA_OWNER: Final = "data-owner"
MODEL_ATTACKS: Final = {
    COPIED_BLOCKS: "a data owner matches outputs of blocks, and copies blocks from pairs of them",
    IMITATION: "a data owner teaches a model on its images with all that it was told",
}
IMAGE_ATTACKS: Final = {
    READ_WORDS: "the model owner takes the words of masked pixels for pixels",
    FITTED_WORDS: "the model owner learns from the other data owners' words and images to read those of one",
}
SOURCES: Final = {
    COPIED_BLOCKS: "this project, on Tastan and Nandakumar 2025",
    IMITATION: "this project, on Tastan and Nandakumar 2025",
    READ_WORDS: "this project",
    FITTED_WORDS: "this project",
}


@dataclass(frozen=True, kw_only=True)
class AdaptationOrder:
    """What an audit of an adaptation is to do."""

    experiment: AdaptationExperiment
    data_owners: tuple[str, ...]
    """Who attack the model."""
    model_owner: bool
    """Whether it attacks images."""
    attacks: tuple[str, ...]
    images: int
    """So many of each row of the model owner are attacked, at most."""
    seed: int
    backbone: Path | None
    """The folder of a model that was trained for a run before."""
    out: Path

    @property
    def recorded(self) -> tuple[str, ...]:
        """Who is recorded: whoever attacks."""
        return (*self.data_owners, *((MODEL_OWNER,) if self.model_owner else ()))


def adaptation_order(
    path: Path,
    run: Path | None,
    *,
    adversaries: Sequence[str],
    attacks: Sequence[str],
    images: int,
    data: Path | None,
    full: bool,
    seed: int | None,
    out: Path,
) -> AdaptationOrder:
    """What to do; without adversaries, by the first data owner and the model owner.

    path: the file of the experiment; run: the folder of the run that it is of, whose model is attacked then, if it was
    trained for it and data names no other images. AdversaryError, ExperimentError, OSError.
    """
    experiment = load_as(AdaptationExperiment, path)
    if full:
        raise AdversaryError("--full is of audits of federations: an adaptation has no attack that takes it")
    if experiment.adaptation.selection == "enrolment":
        raise AdversaryError(
            'an audit cannot read runs with adaptation.selection = "enrolment" yet: leave it out of what is audited'
        )
    if data is not None:
        section = images_of(experiment.data, data)
        experiment = msgspec.structs.replace(experiment, data=section)
    try:
        experiment.check_place()
    except ValueError as error:
        raise AdversaryError(str(error)) from None
    if seed is None:
        seed = secrets.randbits(31) if experiment.federation.seed is None else experiment.federation.seed
    federation = msgspec.structs.replace(experiment.federation, seed=seed)
    names = owner_names(experiment.federation.clients)
    parties = [_party(given, names) for given in dict.fromkeys(adversaries or (DATA_OWNER, MODEL_OWNER))]
    data_owners = tuple(dict.fromkeys(name for name in parties if name != MODEL_OWNER))
    own = {**(MODEL_ATTACKS if data_owners else {}), **(IMAGE_ATTACKS if MODEL_OWNER in parties else {})}
    for name in attacks:
        if name not in own:
            raise AdversaryError(f"there is no attack {name!r} of {' or '.join(parties)}: expected {', '.join(own)}")
    return AdaptationOrder(
        experiment=msgspec.structs.replace(experiment, federation=federation),
        data_owners=data_owners,
        model_owner=MODEL_OWNER in parties,
        attacks=tuple(dict.fromkeys(attacks or own)),
        images=images,
        seed=seed,
        backbone=run / BACKBONE if data is None and run is not None and (run / BACKBONE).is_dir() else None,
        out=out,
    )


def _party(given: str, names: Sequence[str]) -> str:
    """The party of that name. "data-owner" is the first one. AdversaryError for others."""
    name = names[0] if given == DATA_OWNER else given
    if name not in (*names, MODEL_OWNER):
        raise AdversaryError(
            f"--as {given}: there is no party {given!r} that an audit of an adaptation plays; expected {DATA_OWNER}, "
            f"{', '.join(names)}, {MODEL_OWNER}, one at a time"
        )
    return name

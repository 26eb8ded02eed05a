"""What an audit found: the form of audit.json, whose schema follows from these types.

They need none of what finds the figures, so that a schema is printed without loading it.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

RECOVERED: Final = "recovered"
FOUND: Final = "told from others, not recovered"
NOT_RECOVERED: Final = "not recovered by the attacks listed"
NOT_ATTACKED: Final = "not attacked"
NOTHING_SEEN: Final = "nothing of others"
"""What an adversary has whose rounds all ended too early."""

CHANNEL, BATCH, STEPS, COHORT = "channel", "batch", "local steps", "cohort"


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One recovered image, or one that was picked among candidates without having any."""

    client: str
    round: int
    psnr: float | None
    """Decibels; None of an attack that has no image."""
    ssim: float | None
    identified: bool
    """Whether it is nearest to the true image, of all candidates; or whether that was picked."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Several images beside those of the blind attacker, with intervals of 95 %."""

    images: int
    psnr: float | None
    """Mean; None of an attack that has no images."""
    ssim: float | None
    """Mean."""
    better_by: float | None
    """Decibels above the blind attacker, mean."""
    better_by_interval: tuple[float | None, float | None]
    """Of the mean, 95 %, by Student's t; None for one image, and where there is none."""
    identified: float
    """Share of the images."""
    identified_interval: tuple[float, float]
    """Of the share, 95 % (Clopper and Pearson)."""
    chance: float
    """The share that picking any candidate would identify; larger where the images of several clients are sought."""
    found: bool
    """Whether more are identified than by chance: the interval lies above it."""
    recovered: bool
    """Whether that is so, and the images are better than the blind attacker's: that interval lies above 0."""

    @property
    def floor(self) -> float:
        """Decibels of the blind attacker, mean; nan of an attack that has no images."""
        return math.nan if self.psnr is None or self.better_by is None else self.psnr - self.better_by

    @property
    def decibels(self) -> str:
        """The mean, in words; empty of an attack that has no images."""
        return "" if self.psnr is None else f"{self.psnr:.1f}"

    @property
    def succeeded(self) -> bool:
        """Whether it did all that such an attack can."""
        return self.found if self.psnr is None else self.recovered

    @property
    def verdict(self) -> str:
        """In words."""
        if self.recovered:
            return RECOVERED
        return FOUND if self.found else NOT_RECOVERED


class AttackRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attack on one kind of observation in one arm."""

    attack: str
    arm: str
    about: str
    adversary: str
    what: str
    """What was observed."""
    cohort: int
    """Honest clients whose images are in it."""
    verdict: str
    why: str
    """Why it was not attacked; else empty."""
    seconds: float
    """Of the attack, for all images."""
    figures: Judged | None
    scores: tuple[Score, ...]


class LabelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Labels counted by the gradient of the classifier, beside a blind attacker's guess."""

    observations: int
    right: float
    """Share of the labels, mean."""
    blind: float
    """The same of who guesses as labels are among other images."""
    better_by_interval: tuple[float | None, float | None]
    """Of the difference of the two, 95 %, by Student's t; None for one observation."""
    recovered: bool
    """Whether that lies above 0."""


class ObservationRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of observation tells beside images."""

    arm: str
    about: str
    adversary: str
    what: str
    cohort: int
    """Honest clients in it."""
    alone: float
    """Share of the coordinates at which it is the value of one of them alone, encrypted if the model is."""
    labels: LabelFigures | None
    verdict: str
    """Of the labels."""
    why: str
    """Why they were not attacked; else empty."""


class ClosedFormLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The closed form on what clients would send in one setting."""

    factor: str
    """Which of the constants above is varied; of all else there is one: image, step, client."""
    setting: str
    figures: Judged
    """An image of which nothing was left in a gradient counts as guessed blindly."""


class ServerAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One cheat of a server with a client, a case of the conformance kit."""

    case: str
    does: str
    """What the server does, as the verb of a sentence about it."""
    expected: str
    """What the specification has a client do then."""
    seen: str
    """What the client did."""
    holds: bool
    """Whether that is the same."""


class ModelJudged(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a data owner put together, beside one of somebody who was told nothing; shares of test images."""

    images: int
    """Of the test."""
    agreement: float
    """Share with the label of the adapted model."""
    floor: float
    """The same of the better of two who have nothing: a model of the same sizes that was taught with the data owner's
    own labelled images, and what is attacked with the blocks in question left out."""
    better_by_interval: tuple[float | None, float | None]
    """Of the difference of the two, 95 %, by Student's t; None for one image."""
    accuracy: float
    floor_accuracy: float
    """Of the same one."""
    errors: tuple[float, ...]
    """Of each copy of blocks, on pairs that were held out, relative to what the blocks add; empty: none was made."""
    ordered: float | None
    """Share of the outputs that were given to their own image; None: none was told."""
    recovered: bool
    """Whether that interval lies above 0, and no error reaches 1, which a block that does nothing has."""

    @property
    def verdict(self) -> str:
        """In words."""
        return RECOVERED if self.recovered else NOT_RECOVERED


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attack of a data owner on the model that it adapts, in one arm."""

    attack: str
    arm: str
    about: str
    adversary: str
    what: str
    """What it was told."""
    told: int
    """Outputs of blocks, of single images."""
    verdict: str
    why: str
    """Why it was not attacked; else empty."""
    seconds: float
    figures: ModelJudged | None


class AuditFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What came back: all rows, and where the closed form stops."""

    seed: int
    full: bool
    rows: tuple[AttackRow, ...]
    blind: Judged | None
    """The blind attacker, judged beside itself; None if no attack gave an image."""
    observations: tuple[ObservationRow, ...]
    limits: tuple[ClosedFormLimit, ...]
    """Empty where the closed form was not asked for, or cannot be used on the model."""
    no_limits: str
    """Why it cannot be used; else empty."""
    attempts: tuple[ServerAttempt, ...]
    """Of a server that cheats; empty where no configuration has a secure sum, or somebody else attacks."""
    no_attempts: str
    """Why a secure sum was not tried so; else empty."""
    models: list[ModelRow] = msgspec.field(default_factory=list)
    """Of an adaptation, whose model is attacked too."""


def ends(limits: tuple[ClosedFormLimit, ...]) -> str:
    """The last setting of batch, local steps and cohort up to which images are recovered; 0 where the first is not."""
    last, over = dict[str, str](), set[str]()
    for one in limits:
        if not one.figures.recovered:
            over.add(one.factor)
        last[one.factor] = last.get(one.factor, "0") if one.factor in over else one.setting
    return ", ".join(f"{factor} {setting}" for factor, setting in last.items() if factor != CHANNEL)

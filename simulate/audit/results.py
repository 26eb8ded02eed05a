"""Results of an audit: every attack beside a baseline, and their tables.

This module imports nothing that attacks need, so that the schema is printed without loading torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tacit.parties.runs.results import NOTHING, Column, Result, Table, decimals, percent, prose

RECONSTRUCTED: Final = "reconstructed"
RE_IDENTIFIED: Final = "re-identified, not reconstructed"
NOT_RECONSTRUCTED: Final = "not reconstructed by the attacks listed"
NOT_ATTACKED: Final = "not attacked"
NOTHING_OBSERVED: Final = "nothing observed"
"""Observation of an adversary all of whose rounds ended too early."""

CHANNEL, BATCH, STEPS, COHORT = "channel", "batch", "local steps", "cohort"

Interval = tuple[float | None, float | None]


class ImageScore(msgspec.Struct, frozen=True, kw_only=True):
    """One image from an attack, or its choice among candidates."""

    client: str
    round: int
    psnr: float | None
    """Decibels; None where the attack has no image."""
    ssim: float | None
    re_identified: bool
    """Whether the true image is nearest of all candidates, or was chosen among them."""


class ImageMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Images from one attack, compared with the baseline, which observes nothing and gives the mean of other images.

    All intervals have a confidence of 95 %.
    """

    images: int
    psnr: float | None
    """Mean, in decibels; None where the attack has no images."""
    ssim: float | None
    """Mean."""
    advantage_db: float | None
    """Mean PSNR above the baseline, in decibels."""
    advantage_db_interval: Interval
    """Interval of that mean, by Student's t; None for one image, and where there is none."""
    re_identification_rate: float
    """Share of the images that are re-identified among 100 candidates."""
    re_identification_interval: tuple[float, float]
    """Interval of that share (Clopper and Pearson)."""
    chance: float
    """The rate of a random guess; it is larger where an image of any of several clients counts."""
    re_identified: bool
    """Whether the interval of the rate lies above chance."""
    reconstructed: bool
    """Whether images are re-identified, and the interval of the advantage lies above 0."""

    @property
    def baseline_psnr(self) -> float | None:
        """Mean PSNR of the baseline; None where the attack has no images."""
        return None if self.psnr is None or self.advantage_db is None else self.psnr - self.advantage_db

    @property
    def succeeded(self) -> bool:
        """Whether the attack reached its goal: one without images can only re-identify."""
        return self.re_identified if self.psnr is None else self.reconstructed

    @property
    def verdict(self) -> str:
        if self.reconstructed:
            return RECONSTRUCTED
        return RE_IDENTIFIED if self.re_identified else NOT_RECONSTRUCTED


class ImageAttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """One attack on one kind of observation in one configuration."""

    attack: str
    arm: str
    """Name of the configuration, and of its run directory."""
    configuration: str
    """The configuration in words."""
    adversary: str
    """Name of the party, or names of the colluding parties."""
    observation: str
    """Attacked data."""
    honest_clients: int
    """Clients whose images are in the observation."""
    verdict: str = NOT_ATTACKED
    reason: str = ""
    """Reason why it was not attacked; otherwise empty."""
    seconds: float = 0.0
    """Duration of the attack on all images."""
    metrics: ImageMetrics | None = None
    scores: tuple[ImageScore, ...] = ()


class Unattackable(msgspec.Struct, frozen=True, kw_only=True):
    """Attacks that the configuration rules out, known before anything runs."""

    attacks: tuple[str, ...]
    reason: str
    remedy: str
    """The change to the configuration, or to the command, that makes it attackable."""

    @property
    def text(self) -> str:
        return f"{', '.join(self.attacks)}: not attacked, because {self.reason}; {self.remedy}"


class LabelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Labels counted from the gradient of the classifier, compared with the shares that they have in other images."""

    observations: int
    accuracy: float
    """Mean fraction of correct labels."""
    baseline_accuracy: float
    """Accuracy of the baseline."""
    advantage_interval: Interval
    """95 % interval of the mean difference, by Student's t; None for one observation."""
    reconstructed: bool
    """Whether that interval lies above 0."""


class ObservationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Disclosures of one kind of observation beside images: labels, and values of single clients."""

    arm: str
    configuration: str
    adversary: str
    observation: str
    honest_clients: int
    """Clients whose images are in the observation."""
    single_client_share: float
    """Fraction of coordinates with a single contributing honest client: they equal its value, encrypted if the model
    is."""
    labels: LabelMetrics | None
    verdict: str
    """Verdict on the labels."""
    reason: str
    """Reason why they were not attacked; otherwise empty."""


class ClosedFormResult(msgspec.Struct, frozen=True, kw_only=True):
    """The closed form on the updates of clients in one setting."""

    factor: str
    """The varied quantity: channel, batch, local steps or cohort; the others are one image, one step and one client."""
    setting: str
    metrics: ImageMetrics
    """The baseline represents an image whose gradient has vanished."""


class ModelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a data owner extracted, compared with the baseline; shares of test images.

    The baseline has received no output. It is the better of two models: one of the same sizes trained on the data
    owner's own labelled images, and the attacked one without the blocks in question.
    """

    images: int
    """Size of the test set."""
    agreement: float
    """Share of images with the label of the adapted model."""
    baseline_agreement: float
    advantage_interval: Interval
    """95 % interval of the difference of the two, by Student's t; None for one image."""
    accuracy: float
    baseline_accuracy: float
    copy_errors: tuple[float, ...]
    """Error of each copy of blocks on held-out pairs, relative to the blocks' increment; empty if none was made."""
    matching_accuracy: float | None
    """Share of the outputs that were matched to their own image; None if none was received."""
    reconstructed: bool
    """Whether that interval lies above 0, and no error reaches 1, the error of an identity block."""

    @property
    def verdict(self) -> str:
        return RECONSTRUCTED if self.reconstructed else NOT_RECONSTRUCTED


class ModelAttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """One attack by a data owner on the model of an adaptation, in one configuration."""

    attack: str
    arm: str
    configuration: str
    adversary: str
    observation: str
    received_outputs: int
    """Number of received outputs of blocks, of single images."""
    verdict: str = NOT_ATTACKED
    reason: str = ""
    """Reason why it was not attacked; otherwise empty."""
    seconds: float = 0.0
    metrics: ModelMetrics | None = None


def _points(interval: Interval) -> str:
    low, high = interval
    return NOTHING if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}"


def _verdict(verdict: str, reason: str) -> str:
    return f"{verdict}: {reason}" if reason else verdict


class AuditResult(Result, frozen=True, kw_only=True, tag="tacit.audit.3"):
    """Attacks on a configuration, on parts of it, and on the same without protection."""

    seed: int
    full: bool
    """Whether attacks searched as long as in their papers."""
    image_attacks: tuple[ImageAttackResult, ...]
    baseline: ImageMetrics | None
    """The baseline, compared with itself; None if no attack gave an image."""
    observations: tuple[ObservationResult, ...] = ()
    closed_form: tuple[ClosedFormResult, ...] = ()
    """Empty if the closed form was not requested, or cannot be used on the model."""
    closed_form_unusable: str = ""
    """Reason why it cannot be used; otherwise empty."""
    model_attacks: tuple[ModelAttackResult, ...] = ()
    """Attacks on the model of an adaptation."""
    configured: str = ""
    """Name of the configuration that was given; empty if none was."""
    unattackable: tuple[Unattackable, ...] = ()

    @property
    def not_observed(self) -> list[str]:
        """Configurations in which some adversary observed nothing, because its rounds ended too early."""
        missing = (row.configuration for row in self.image_attacks if row.observation == NOTHING_OBSERVED)
        return list(dict.fromkeys(missing))

    def view(self) -> Iterable[Table | str]:
        """All tables that have rows, and at the end the headlines."""
        tables = self.summary_table(), self.model_table(), *self.closed_form_tables()
        yield from (table for table in tables if table.rows)
        if self.closed_form:
            yield f"the closed form reconstructs images up to {closed_form_reach(self.closed_form)}"
        yield from (one.text for one in self.unattackable)
        yield from self.headlines()

    def places(self) -> dict[tuple[str, str], tuple[list[ImageAttackResult], list[ObservationResult]]]:
        found: dict[tuple[str, str], tuple[list[ImageAttackResult], list[ObservationResult]]] = {}
        for row in self.image_attacks:
            found.setdefault((row.configuration, row.adversary), ([], []))[0].append(row)
        for seen in self.observations:
            found.setdefault((seen.configuration, seen.adversary), ([], []))[1].append(seen)
        return found

    def headlines(self) -> list[str]:
        """The outcome for the given configuration, by adversary, and for servers that cheat in it."""
        lines = []
        for (configuration, adversary), (attacks, seen) in self.places().items():
            arm = next(iter({*(row.arm for row in attacks), *(row.arm for row in seen)}))
            whose = "your configuration" if arm == self.configured else configuration
            if self.configured and (arm == self.configured or arm.startswith("subtraction")):
                labels = "; labels reconstructed" if any(one.verdict == RECONSTRUCTED for one in seen) else ""
                lines.append(f"{whose}: {_headline('images', adversary, attacks)}{labels}")
        models = [row for row in self.model_attacks if row.arm == self.configured]
        for adversary in dict.fromkeys(row.adversary for row in models):
            rows = [row for row in models if row.adversary == adversary]
            lines.append(f"your configuration: {_headline('model', adversary, rows)}")
        return lines

    def summary_table(self) -> Table:
        """Table of each adversary's best result in each configuration."""
        columns = (
            Column("configuration", prose),
            Column("adversary", prose),
            Column("images", prose),
            Column("labels right", percent()),
            Column("baseline", percent(), minor=2),
            Column("coordinates of one client alone", percent(1), minor=3),
        )
        rows = []
        for place, (attacks, seen) in self.places().items():
            labels = max((one.labels for one in seen if one.labels), key=lambda one: one.accuracy, default=None)
            share = max((one.single_client_share for one in seen), default=None)
            best = best_of(attacks)
            rows.append(
                (
                    *place,
                    NOT_ATTACKED if best is None else f"{outcome(best)}: {best.attack}",
                    *((None, None) if labels is None else (labels.accuracy, labels.baseline_accuracy)),
                    share,
                )
            )
        return Table(columns=columns, rows=rows)

    def heat_map(self) -> tuple[list[str], list[tuple[str, str, list[HeatCell]]]]:
        """Headings, and a row of cells for each configuration and adversary."""
        names = list(dict.fromkeys(row.attack for row in self.image_attacks))
        lines = []
        for place, (attacks, seen) in self.places().items():
            cells = [_cell([row for row in attacks if row.attack == name]) for name in names]
            if self.observations:
                right = [one for one in seen if one.labels]
                best = max(right, key=lambda one: one.labels.accuracy if one.labels else 0.0, default=None)
                text = f"{best.labels.accuracy:.0%}" if best and best.labels else ""
                cells.append(HeatCell(text, best.verdict if best else NOT_ATTACKED, best.observation if best else ""))
            lines.append((*place, cells))
        return [*names, *(["labels right"] if self.observations else [])], lines

    def model_table(self) -> Table:
        columns = (
            *_place("received"),
            Column("attack"),
            Column("verdict", prose),
            Column("matched outputs", percent(1), minor=8),
            Column("largest error", decimals(3), minor=4),
            Column("agreement", percent(1)),
            Column("baseline", percent(1)),
            Column("advantage (95%, points)", _points, minor=7),
            Column("accuracy", percent(1), minor=6),
            Column("baseline accuracy", percent(1), minor=5),
        )
        rows = []
        for row in self.model_attacks:
            found = row.metrics
            measured: tuple[Any, ...] = (None,) * 7
            if found is not None:
                measured = (
                    found.matching_accuracy,
                    max(found.copy_errors, default=None),
                    found.agreement,
                    found.baseline_agreement,
                    found.advantage_interval,
                    found.accuracy,
                    found.baseline_accuracy,
                )
            place = (row.configuration, row.adversary, row.observation, row.attack)
            rows.append((*place, _verdict(row.verdict, row.reason), *measured))
        return Table(columns=columns, rows=rows)

    def closed_form_tables(self) -> tuple[Table, Table]:
        """The closed form by the precision of the channel, and by the images, steps and clients in an update."""
        sent = [one for one in self.closed_form if one.factor == CHANNEL]
        changed = [one for one in self.closed_form if one.factor != CHANNEL]
        return (
            _closed_form_table("sent for one image of one client", ((one.setting, one.metrics) for one in sent)),
            _closed_form_table("update of", ((f"{one.factor}: {one.setting}", one.metrics) for one in changed)),
        )


def closed_form_reach(results: Sequence[ClosedFormResult]) -> str:
    """Describe the last setting of each factor up to which images are reconstructed; 0 if the first fails."""
    last, over = dict[str, str](), set[str]()
    for one in results:
        if not one.metrics.reconstructed:
            over.add(one.factor)
        last[one.factor] = last.get(one.factor, "0") if one.factor in over else one.setting
    return ", ".join(f"{factor} {setting}" for factor, setting in last.items() if factor != CHANNEL)


def _place(observation: str) -> Iterator[Column]:
    yield Column("configuration", prose)
    yield Column("adversary", minor=2)
    yield Column(observation, prose, minor=3)


class HeatCell(NamedTuple):
    """A cell of the heat map: the best result in a few characters, its verdict, and the rest in words."""

    text: str
    verdict: str
    about: str


def best_of(rows: Sequence[ImageAttackResult]) -> ImageAttackResult | None:
    """Return the strongest result against the configuration; None for none."""

    def strength(row: ImageAttackResult) -> tuple[bool, bool, bool, float]:
        found = row.metrics
        if found is None or row.verdict == NOT_ATTACKED:
            return False, False, False, 0.0
        return found.reconstructed, found.re_identified, True, found.psnr or 0.0

    return max(rows, key=strength, default=None)


def outcome(row: ImageAttackResult) -> str:
    """Return the verdict with its metrics, or with the reason for its absence."""
    found = row.metrics
    if found is None or row.verdict == NOT_ATTACKED:
        return _verdict(row.verdict, row.reason)
    image = "" if found.psnr is None else f"{found.psnr:.1f} dB, "
    return f"{row.verdict} ({image}{found.re_identification_rate:.0%} re-identified)"


def _cell(rows: Sequence[ImageAttackResult]) -> HeatCell:
    best = best_of(rows)
    if best is None:
        return HeatCell("", NOT_ATTACKED, "")
    found = None if best.verdict == NOT_ATTACKED else best.metrics
    text = ""
    if found is not None:
        text = f"{found.re_identification_rate:.0%}" if found.psnr is None else f"{found.psnr:.1f} dB"
    return HeatCell(text, best.verdict, f"{best.observation}: {outcome(best)}")


def _headline(what: str, adversary: str, rows: Sequence[ImageAttackResult | ModelAttackResult]) -> str:
    for verdict, words in (
        (RECONSTRUCTED, RECONSTRUCTED),
        (RE_IDENTIFIED, f"{RE_IDENTIFIED},"),
        (NOT_RECONSTRUCTED, "not reconstructed"),
    ):
        if attacks := dict.fromkeys(row.attack for row in rows if row.verdict == verdict):
            return f"{what} {words} by {adversary} ({', '.join(attacks)})"
    return f"{what} not attacked by {adversary}"


def _closed_form_table(first: str, settings: Iterable[tuple[str, ImageMetrics]]) -> Table:
    columns = (
        Column(first, prose),
        Column("PSNR (dB)", decimals(1)),
        Column("baseline (dB)", decimals(1), minor=2),
        Column("re-identified", percent()),
        Column("chance", percent(), minor=1),
        Column("verdict", prose),
    )
    rows = [
        (setting, found.psnr, found.baseline_psnr, found.re_identification_rate, found.chance, found.verdict)
        for setting, found in settings
    ]
    return Table(columns=columns, rows=rows)

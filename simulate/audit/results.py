"""Results of an audit: every attack beside a baseline, and the tables that people see of them.

This module imports nothing that attacks need, so that the schema is printed without loading torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from tacit.parties.runs.results import NOTHING, Column, Result, Table, decimals, percent, plain, prose

RECONSTRUCTED: Final = "reconstructed"
RE_IDENTIFIED: Final = "re-identified, not reconstructed"
NOT_RECONSTRUCTED: Final = "not reconstructed by the attacks listed"
NOT_ATTACKED: Final = "not attacked"
NOTHING_OBSERVED: Final = "nothing observed"
"""The observation of an adversary all of whose rounds ended too early."""

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
        """Whether the attack did all that it can: one without images can only re-identify."""
        return self.re_identified if self.psnr is None else self.reconstructed

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if self.reconstructed:
            return RECONSTRUCTED
        return RE_IDENTIFIED if self.re_identified else NOT_RECONSTRUCTED


class ImageAttackResult(msgspec.Struct, frozen=True, kw_only=True):
    """One attack on one kind of observation in one configuration."""

    attack: str
    arm: str
    """Name of the configuration, which its run directory has too."""
    configuration: str
    """The configuration in words."""
    adversary: str
    """Name of the party, or names of the colluding parties."""
    observation: str
    """What the adversary attacks."""
    honest_clients: int
    """Clients whose images are in the observation."""
    verdict: str = NOT_ATTACKED
    reason: str = ""
    """Why it was not attacked; else empty."""
    seconds: float = 0.0
    """Duration of the attack on all images."""
    metrics: ImageMetrics | None = None
    scores: tuple[ImageScore, ...] = ()


class LabelMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Labels counted from the gradient of the classifier, compared with the shares that they have in other images."""

    observations: int
    accuracy: float
    """Share of the labels that is right, mean."""
    baseline_accuracy: float
    """The same of the baseline."""
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
    """Share of the coordinates to which one honest client contributed alone: they have its value, encrypted if the
    model is."""
    labels: LabelMetrics | None
    verdict: str
    """Verdict on the labels."""
    reason: str
    """Why they were not attacked; else empty."""


class ClosedFormResult(msgspec.Struct, frozen=True, kw_only=True):
    """The closed form on the updates of clients in one setting."""

    factor: str
    """The quantity that the setting changes: channel, batch, local steps or cohort; the others are one image, one step
    and one client."""
    setting: str
    metrics: ImageMetrics
    """The baseline stands for an image of which the gradient has nothing left."""


class ServerCheat(msgspec.Struct, frozen=True, kw_only=True):
    """A cheating server with an honest client, in a case of the conformance kit."""

    case: str
    action: str
    """What the server does, as the verb of a sentence about it."""
    expected: str
    """What the specification has a client do then."""
    observed: str
    """What the client did."""
    passed: bool
    """Whether both are the same."""


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
    """Error of each copy of blocks on held-out pairs, relative to what the blocks add; empty if none was made."""
    matching_accuracy: float | None
    """Share of the outputs that were matched to their own image; None if none was received."""
    reconstructed: bool
    """Whether that interval lies above 0, and no error reaches 1, the error of a block that does nothing."""

    @property
    def verdict(self) -> str:
        """The verdict in words."""
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
    """Why it was not attacked; else empty."""
    seconds: float = 0.0
    metrics: ModelMetrics | None = None


def _points(interval: Interval) -> str:
    low, high = interval
    return NOTHING if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}"


def _verdict(verdict: str, reason: str) -> str:
    return f"{verdict}: {reason}" if reason else verdict


class AuditResult(Result, frozen=True, kw_only=True, tag="tacit.audit.2"):
    """Attacks on a configuration, on parts of it, and on the same without protection."""

    seed: int
    full: bool
    """Whether attacks searched as long as in their papers."""
    image_attacks: tuple[ImageAttackResult, ...]
    baseline: ImageMetrics | None
    """The baseline, compared with itself; None if no attack gave an image."""
    observations: tuple[ObservationResult, ...] = ()
    closed_form: tuple[ClosedFormResult, ...] = ()
    """Empty if the closed form was not asked for, or cannot be used on the model."""
    closed_form_unusable: str = ""
    """Why it cannot be used; else empty."""
    server_cheats: tuple[ServerCheat, ...] = ()
    """Empty if no configuration has a secure sum, or the server is not among the adversaries."""
    server_cheats_skipped: str = ""
    """Why no server cheated, in a configuration with a secure sum; else empty."""
    model_attacks: tuple[ModelAttackResult, ...] = ()
    """Attacks on the model of an adaptation."""

    @property
    def not_observed(self) -> list[str]:
        """Configurations in which some adversary observed nothing, because its rounds ended too early."""
        missing = (row.configuration for row in self.image_attacks if row.observation == NOTHING_OBSERVED)
        return list(dict.fromkeys(missing))

    def view(self) -> Iterable[Table | str]:
        """All tables that have rows."""
        yield from (
            table
            for table in (self.image_table(), self.observation_table(), self.model_table(), *self.closed_form_tables())
            if table.rows
        )
        if self.closed_form:
            yield f"the closed form reconstructs images up to {closed_form_reach(self.closed_form)}"
        if self.server_cheats:
            yield self.cheat_table()
        elif self.server_cheats_skipped:
            yield f"no cheating server was played: {self.server_cheats_skipped}"

    def image_table(self) -> Table:
        """Attacks on images."""
        columns = (
            *_place("observation"),
            Column("honest clients", plain, minor=5),
            Column("attack"),
            Column("PSNR (dB)", decimals(1)),
            Column("re-identified", percent(), minor=4),
            Column("verdict", prose),
        )
        rows = []
        for row in self.image_attacks:
            measured = (None, None) if row.metrics is None else (row.metrics.psnr, row.metrics.re_identification_rate)
            place = (row.configuration, row.adversary, row.observation, row.honest_clients)
            rows.append((*place, row.attack, *measured, _verdict(row.verdict, row.reason)))
        return Table(columns=columns, rows=rows)

    def image_matrix(self) -> Table:
        """The same with a column for every attack."""
        attacks = list(dict.fromkeys(row.attack for row in self.image_attacks))
        lines: dict[tuple[Any, ...], dict[str, str]] = {}
        for row in self.image_attacks:
            place = (row.configuration, row.adversary, row.observation, row.honest_clients)
            lines.setdefault(place, {})[row.attack] = _outcome(row)
        columns = (*_place("observation"), Column("honest clients", plain), *(Column(name, prose) for name in attacks))
        return Table(
            columns=columns,
            rows=[(*place, *(found.get(name, "") for name in attacks)) for place, found in lines.items()],
        )

    def observation_table(self) -> Table:
        """Disclosed labels, and coordinates of single clients."""
        columns = (
            *_place("observation"),
            Column("honest clients", plain, minor=4),
            Column("coordinates of one client alone", percent(1)),
            Column("labels right", percent()),
            Column("baseline", percent()),
            Column("labels", prose),
        )
        rows = []
        for row in self.observations:
            labels = (None, None) if row.labels is None else (row.labels.accuracy, row.labels.baseline_accuracy)
            place = (row.configuration, row.adversary, row.observation, row.honest_clients)
            rows.append((*place, row.single_client_share, *labels, _verdict(row.verdict, row.reason)))
        return Table(columns=columns, rows=rows)

    def model_table(self) -> Table:
        """Attacks on the model of an adaptation."""
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

    def cheat_table(self) -> Table:
        """Cases of a cheating server, with failed ones flagged."""
        columns = (
            Column("case"),
            Column("the server", prose),
            Column("a client must", prose),
            Column("the client", prose),
            Column("verdict"),
        )
        rows = [
            (one.case, one.action, one.expected, one.observed, "passed" if one.passed else "FAILED")
            for one in self.server_cheats
        ]
        flagged = {place for place, one in enumerate(self.server_cheats) if not one.passed}
        return Table(columns=columns, rows=rows, flagged=flagged)


def closed_form_reach(results: Sequence[ClosedFormResult]) -> str:
    """The last setting of each factor up to which images are reconstructed; 0 if the first fails."""
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


def _outcome(row: ImageAttackResult) -> str:
    found = row.metrics
    if found is None:
        return row.verdict
    image = "" if found.psnr is None else f"{found.psnr:.1f} dB, SSIM {found.ssim:.2f}, "
    return f"{row.verdict} ({image}{found.re_identification_rate:.0%} re-identified)"


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

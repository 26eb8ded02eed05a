"""Tables 1 to 3 of Tastan and Nandakumar 2025: adapters beside a frozen model, and alternatives for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tacit.models.adapters.configuration import LinearProbeConfiguration
from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.simulate.experiments.adaptation import (
    AdaptationRow,
    AdaptationSettings,
    adaptations,
    as_good,
    better,
    loses_less,
)
from tacit.simulate.experiments.adaptation_images import (
    ByCentre,
    ByDirichlet,
    DataBlock,
    DataPart,
    Division,
    Pooled,
)
from tacit.simulate.experiments.adaptation_methods import BesideBlocks, LowRankThroughout, Method, Throughout
from tacit.simulate.experiments.measures import Prepared, Request, Row
from tacit.simulate.experiments.page import across
from tacit.simulate.experiments.results import Quantity
from tacit.simulate.experiments.study import Claim, Size, Study

PAPER: Final = (
    'Tastan and Nandakumar 2025, "A Framework for Double-Blind Federated Adaptation of Foundation Models" '
    "(arXiv:2502.01289v1)"
)
PROBING, TUNING, LORA, OURS, SAMPLED = (
    "linear probing",
    "full fine-tuning",
    "LoRA",
    "ours",
    "ours, blocks sampled",
)
VIT: Final = ModelConfiguration(name="vit_base_patch16_384", image_size=384, pretrained=True)
TWIN: Final = ModelConfiguration(image_size=16, patch_size=4, width=32, depth=4, heads=4)
TINY_IMAGENET: Final = DataPart(source="tiny-imagenet", most_per_class=100)
CIFAR10, CIFAR100, SVHN = (
    DataBlock(name=name, owned=TINY_IMAGENET, adapted_to=DataPart(source=source))
    for name, source in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"), ("SVHN", "svhn"))
)
HOSPITALS: Final = DataPart(source="fed-isic2019", centres=(1, 2, 3, 4, 5))
IN_DISTRIBUTION, OUT_OF_DISTRIBUTION = (
    DataBlock(name=f"Fed-ISIC2019, owner: {name}", owned=owned, adapted_to=HOSPITALS)
    for name, owned in (("centre 0", DataPart(source="fed-isic2019", centres=(0,))), ("Tiny-ImageNet", TINY_IMAGENET))
)


TWIN_BLOCK: Final = DataBlock(owned=DataPart(half=0), adapted_to=DataPart(half=1))
METHODS: Final[dict[str, Method]] = {
    TUNING: Throughout(),
    LORA: LowRankThroughout(),
    PROBING: BesideBlocks(configuration=LinearProbeConfiguration()),
    OURS: BesideBlocks(),
    SAMPLED: BesideBlocks(sampled=True),
}
FULL_RATES: Final = {TUNING: 5e-5, LORA: 5e-5, PROBING: 1e-3, OURS: 1e-3, SAMPLED: 1e-3}
SMALL_RATES: Final = {TUNING: 0.05, LORA: 0.1, PROBING: 0.1, OURS: 0.1, SAMPLED: 0.1}
RATES_WITH_DATA: Final = {PROBING: 0.05, OURS: 0.05, SAMPLED: 0.05}
"""With 0.1 the adapters diverge on CIFAR-10."""
Published = Mapping[tuple[str, str], tuple[float | None, ...]]
"""The paper's balanced accuracy by data set and row, for each column; None if not given."""


READING: Final = (
    "in a round every client goes once through its images, batch by batch, and then weights are averaged, all clients "
    "alike; the paper's text gives a round one batch, with which 50 rounds would be 50 steps",
    "rows start with a head of zeros, on the same backbone of polynomials; full fine-tuning and LoRA are judged with "
    "polynomials that are scaled to each batch, since weights that move have no calibrated intervals",
    "the activation of the adapters is the paper's quadratic polynomial for GELU, as on shares",
    "LoRA has rank 8, on queries, keys and values; its settings are not the paper's, of which only the figures are "
    "known here",
    "in the clear: neither encryption nor masks, which change what is learnt by rounding at most",
)
FULL_DIFFERENCES: Final = (
    *READING,
    "the backbone is made on 100 training and at most as many test images of each class of Tiny-ImageNet, which are 53 "
    "GB as tensors; its teacher is trained on them for 5 epochs, which the paper does not say",
    "polynomials are calibrated on the owner's images with intervals three times as wide as what these need",
)
SMALL_DIFFERENCES: Final = (
    *READING,
    "the first half of the classes of digits, or of the images of --data, is the owner's, and the clients adapt to the "
    "second half; resized to 16 x 16",
    "a vision transformer of width 32, depth 4 and 4 x 4 patches in place of ViT-B/16 at 384 x 384, trained for 20 "
    "epochs and distilled for 6 and 6 on the owner's images",
    "polynomials are calibrated on the owner's images with intervals three times as wide as what these need",
)


@dataclass(frozen=True, kw_only=True)
class Adaptation(AdaptationSettings):
    def summary(self, rows: Sequence[Row]) -> str:
        given = any(row.block.adapted_to.source for row in adaptations(rows))
        data = "a directory with the data sets" if given else "digits or --data"
        return f"{self.model.name}, {self.rounds} rounds, {data}"

    def prepare(self, name: str, rows: Sequence[Row], request: Request) -> Prepared:
        # Imported here: it loads torch.
        from tacit.simulate.experiments.adaptation_runs import prepare

        return prepare(self, adaptations(rows), request)


@dataclass(frozen=True, kw_only=True)
class _Table:
    divisions: Mapping[str, Division]
    methods: Sequence[str]
    batch_size: int

    @property
    def columns(self) -> tuple[Quantity, ...]:
        """Return balanced accuracy on the test images after the last round: the mean over the classes, 0 to 1."""
        return tuple(Quantity(name=name, decimals=3) for name in self.divisions)

    def full(self, blocks: Sequence[DataBlock], published: Published) -> Size:
        measure = Adaptation(
            model=VIT,
            teacher=TrainingConfiguration(epochs=5, batch_size=16, learning_rate=1e-5),
            distillation=DistillationConfiguration(
                layer_learning_rate=1e-4, prediction_learning_rate=1e-5, batch_size=16, margin=3.0
            ),
            rounds=50,
            decay_rounds=(25, 40),
            batch_size=self.batch_size,
            divisions=self.divisions,
            keeps_outputs=False,
        )
        rows = tuple(
            AdaptationRow(
                name=block.row(name),
                published={
                    column: "none" if value is None else f"{value:.4f}"
                    for column, value in zip(self.divisions, published.get((block.name, name), ()), strict=False)
                },
                block=block,
                method=METHODS[name],
                learning_rate=FULL_RATES[name],
            )
            for block in blocks
            for name in self.methods
        )
        return Size(rows=rows, measure=measure, differences=FULL_DIFFERENCES)

    def small(self, rounds: int) -> Size:
        """Return the twin's size; the paper's values are those of other data."""
        measure = Adaptation(
            model=TWIN,
            teacher=TrainingConfiguration(epochs=20, batch_size=32, learning_rate=2e-3),
            distillation=DistillationConfiguration(layer_epochs=6, prediction_epochs=6, margin=3.0),
            rounds=rounds,
            decay_rounds=(rounds // 2, rounds * 4 // 5),
            batch_size=self.batch_size,
            divisions=self.divisions,
            keeps_outputs=True,
        )
        rows = tuple(
            AdaptationRow(
                name=name,
                block=TWIN_BLOCK,
                method=METHODS[name],
                learning_rate=SMALL_RATES[name],
                rate_with_data=RATES_WITH_DATA.get(name),
            )
            for name in self.methods
        )
        steps = (
            f"{rounds} rounds, the learning rate 0.1, for full fine-tuning 0.05, as with --data for linear probing and "
            "ours, a tenth of it after half of the rounds and again after four fifths, as in the paper"
        )
        return Size(rows=rows, measure=measure, differences=(*SMALL_DIFFERENCES, steps))


def claims(blocks: Sequence[DataBlock], *more: Callable[[DataBlock], Claim]) -> tuple[Claim, ...]:
    """Return the paper's sentences, for every data set: those of all tables, and others."""
    every = (lambda block: better(block, OURS, PROBING), lambda block: better(block, TUNING, OURS), *more)
    return tuple(claim(block) for block in blocks for claim in every)


_BY_ALPHA: Final = _Table(
    divisions={"central": Pooled()}
    | {f"alpha = {alpha:g}": ByDirichlet(clients=5, alpha=alpha) for alpha in (100.0, 1.0, 0.01)},
    methods=(TUNING, LORA, PROBING, OURS),
    batch_size=16,
)
TABLE1: Final = Study(
    name="tastan-table1",
    paper=PAPER,
    shows="Table 1, balanced accuracy by heterogeneity of five clients",
    claim="full fine-tuning is the most accurate; the adapters beat linear probing everywhere, and withstand clients "
    "that differ extremely",
    columns=_BY_ALPHA.columns,
    full=_BY_ALPHA.full(
        (CIFAR10, CIFAR100, SVHN),
        {
            ("CIFAR-10", TUNING): (0.9635, 0.9759, 0.9725, 0.8857),
            ("CIFAR-10", LORA): (0.9592, 0.9736, 0.9718, 0.8979),
            ("CIFAR-10", PROBING): (0.9226, 0.9203, 0.9191, 0.7447),
            ("CIFAR-10", OURS): (0.9428, 0.9471, 0.9413, 0.8540),
            ("CIFAR-100", TUNING): (0.8361, 0.8684, 0.8611, 0.7882),
            ("CIFAR-100", LORA): (0.8349, 0.8593, 0.8568, 0.7647),
            ("CIFAR-100", PROBING): (0.7476, 0.7486, 0.7414, 0.5317),
            ("CIFAR-100", OURS): (0.7930, 0.7929, 0.7808, 0.6620),
            ("SVHN", TUNING): (0.9680, 0.9763, 0.9692, 0.7601),
            ("SVHN", PROBING): (0.5938, 0.5879, 0.5732, 0.3385),
            ("SVHN", OURS): (0.9232, 0.9329, 0.9249, 0.7431),
        },
    ),
    small=_BY_ALPHA.small(30),
    claims=claims(
        (TWIN_BLOCK, CIFAR10, CIFAR100, SVHN),
        lambda block: loses_less(block, OURS, PROBING, before="alpha = 100", after="alpha = 0.01"),
    ),
    draw=across,
)
_BY_OWNER: Final = _Table(
    divisions={"central": Pooled(), "federated": ByCentre()},
    methods=(TUNING, LORA, PROBING, OURS),
    batch_size=16,
)
TABLE2: Final = Study(
    name="tastan-table2",
    paper=PAPER,
    shows="Table 2, balanced accuracy on Fed-ISIC2019 by what the owner has",
    claim="the adapters beat linear probing, and lose little where the owner has images of another kind",
    columns=_BY_OWNER.columns,
    full=_BY_OWNER.full(
        (IN_DISTRIBUTION, OUT_OF_DISTRIBUTION),
        {
            (IN_DISTRIBUTION.name, TUNING): (0.7811, 0.6752),
            (IN_DISTRIBUTION.name, PROBING): (0.6599, 0.5856),
            (IN_DISTRIBUTION.name, OURS): (0.7090, 0.6679),
            (OUT_OF_DISTRIBUTION.name, TUNING): (0.7817, 0.6985),
            (OUT_OF_DISTRIBUTION.name, PROBING): (0.6372, 0.5789),
            (OUT_OF_DISTRIBUTION.name, OURS): (0.7051, 0.6481),
        },
    ),
    claims=claims((IN_DISTRIBUTION, OUT_OF_DISTRIBUTION)),
    draw=across,
)
_BY_CLIENTS: Final = _Table(
    divisions={f"K = {clients}": ByDirichlet(clients=clients, alpha=1.0) for clients in (10, 20, 50)},
    methods=(TUNING, LORA, PROBING, OURS, SAMPLED),
    batch_size=8,
)
TABLE3: Final = Study(
    name="tastan-table3",
    paper=PAPER,
    shows="Table 3, balanced accuracy by number of clients",
    claim="the adapters beat linear probing with any number of clients; blocks that are sampled cost little",
    columns=_BY_CLIENTS.columns,
    full=_BY_CLIENTS.full(
        (CIFAR10,),
        {
            ("CIFAR-10", TUNING): (0.9739, 0.9513, None),
            ("CIFAR-10", LORA): (0.9661, 0.9584, 0.9482),
            ("CIFAR-10", PROBING): (0.9167, 0.9142, 0.9007),
            ("CIFAR-10", OURS): (0.9446, 0.9422, 0.9287),
            ("CIFAR-10", SAMPLED): (0.9425, 0.9411, 0.9388),
        },
    ),
    small=_BY_CLIENTS.small(20),
    claims=claims((TWIN_BLOCK, CIFAR10), lambda block: as_good(block, SAMPLED, OURS)),
    draw=across,
)

"""Images, ways to adapt, and the cells of a table: what is learnt is what the settings say."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.federated import OneEpoch, Schedule, balanced_accuracy, federated
from tacit.models.adapters.methods import AdaptedTransformer, Adapters, FullFineTuning
from tacit.models.adapters.parallel import final_norm, initial
from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.data import Dataset, load
from tacit.models.friendly.configuration import DistillationConfiguration
from tacit.models.networks import build
from tacit.models.training import CPU
from tacit.simulate.experiments.adaptation import AdaptationSettings, adaptations
from tacit.simulate.experiments.adaptation_images import ByCentre, ByDirichlet, DataPart, LabelledImages, Pooled, task
from tacit.simulate.experiments.adaptation_methods import (
    BesideBlocks,
    federated_model,
    model_accuracy,
)
from tacit.simulate.experiments.adaptation_runs import (
    ComputedOutputs,
    PreparedAdaptation,
    prepare,
)
from tacit.simulate.experiments.measures import Request
from tacit.simulate.experiments.results import Run
from tacit.simulate.experiments.tastan_tables import IN_DISTRIBUTION, OURS, PROBING, TABLE1, TABLE2, TUNING

pytestmark = pytest.mark.usefixtures("one_thread")
TWIN = TABLE1.size(small=True)
SHAPE = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2)


def arrays(path: Path, *, classes: int, train: int = 64, test: int = 16) -> Path:
    """Images of 8 x 8, whose brightness tells their class; a class has train / classes of them."""
    generator = np.random.default_rng(1)
    found = {}
    for part, count in (("train", train), ("test", test)):
        found[f"y_{part}"] = np.arange(count) % classes
        noise = generator.integers(0, 60, (count, 8, 8))
        found[f"x_{part}"] = (noise + 40 * found[f"y_{part}"][:, None, None]).astype(np.uint8)
    np.savez(path, **found)
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = arrays(tmp_path_factory.mktemp("data") / "four.npz", classes=4)
    return load(DataConfiguration(source=str(path)), image_size=8)


@pytest.fixture(scope="module")
def clients(dataset: Dataset) -> list[LabelledImages]:
    train = task(dataset, DataPart(half=1)).train
    return [train.part(np.arange(20)), train.part(np.arange(20, 32))]


def prepared(data: Path | None, **settings: object) -> PreparedAdaptation:
    """The twin of Table 1, with settings of seconds and these."""
    assert isinstance(TWIN.measure, AdaptationSettings)
    measure = replace(
        TWIN.measure,
        model=SHAPE,
        teacher=TrainingConfiguration(epochs=1),
        distillation=DistillationConfiguration(layer_epochs=1, prediction_epochs=1, margin=3.0),
        rounds=1,
        **settings,
    )
    return prepare(measure, adaptations(TWIN.rows), request(data))


def request(data: Path | None) -> Request:
    return Request(seeds=(3,), data=data, device="cpu", out=Path("nowhere"))


def measured(work: PreparedAdaptation, *names: str) -> dict[str, Run]:
    rows = [row for row in work.rows if row.name in names]
    return {row.name: work.measure(row, 3, lambda event: None) for row in rows}


def test_a_half_of_the_classes_is_numbered_from_zero(dataset: Dataset) -> None:
    owned, target = (task(dataset, DataPart(half=half)) for half in (0, 1))
    labels = dataset.source.train.labels
    for found, classes in ((owned, (0, 1)), (target, (2, 3))):
        assert found.classes == 2
        assert found.train.indices.tolist() == [at for at, label in enumerate(labels) if label in classes]
        assert found.train.labels.tolist() == [label - classes[0] for label in labels if label in classes]
    assert torch.equal(target.test.tensors(), dataset.x_test[torch.from_numpy(target.test.indices)])


def test_a_part_may_be_centres(dataset: Dataset) -> None:
    source = dataset.source
    marked = {
        kind: replace(samples, centres=np.arange(len(samples.labels)) // 8)
        for kind, samples in (("train", source.train), ("test", source.test))
    }
    found = task(replace(dataset, source=replace(source, **marked)), DataPart(centres=(0, 1)))
    assert found.train.indices.tolist() == list(range(16))
    shares = ByCentre().divide(found.train.labels.numpy(), found.train.centres, seed=0)
    assert [share.tolist() for share in shares] == [list(range(8)), list(range(8, 16))]


@pytest.mark.parametrize("part", [DataPart(centres=(0,)), DataPart(half=0, centres=(1, 2))])
def test_centres_that_are_not_known_are_refused(dataset: Dataset, part: DataPart) -> None:
    with pytest.raises(ValueError, match="does not say at which centre"):
        task(dataset, part)
    with pytest.raises(ValueError, match="do not say at which centre"):
        ByCentre().divide(np.zeros(4, np.int64), None, seed=0)


def test_clients_share_all_images() -> None:
    labels = np.arange(200) % 5
    for division, count in ((Pooled(), 1), (ByDirichlet(clients=5, alpha=0.01), 5)):
        shares = division.divide(labels, None, seed=1)
        assert len(shares) == count
        assert sorted(np.concatenate(shares).tolist()) == list(range(200))


def test_one_step_of_one_client_is_that_of_torch(clients: list[LabelledImages]) -> None:
    model, other = (
        FullFineTuning().adapt(build(SHAPE, classes=2, channels=1, seed=1), classes=2, seed=0) for _ in "ab"
    )
    client = clients[0]
    federated_model(model, [client], Schedule(rounds=1, learning_rate=0.1), OneEpoch(20), seed=1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    torch.autograd.backward(cross_entropy(other(client.tensors()), client.labels))
    optimizer.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        # The order of the images changes sums of 20 float32 numbers, of size 1 at most, by 20 roundings.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=20 * 2**-23)


def test_by_autograd_adapters_learn_what_is_written_out(clients: list[LabelledImages]) -> None:
    backbone = build(SHAPE, classes=2, channels=1, seed=1)
    adapters = ParallelConfiguration(rank=2)
    schedule = Schedule(rounds=3, learning_rate=0.1, decay_rounds=(1,))
    model = Adapters(configuration=adapters).adapt(backbone, classes=2, seed=0)
    assert isinstance(model, AdaptedTransformer)
    federated_model(model, clients, schedule, OneEpoch(8), seed=5)
    outputs = [ComputedOutputs(backbone=backbone, images=client, device=CPU) for client in clients]
    start = initial(adapters, blocks=2, tokens=5, width=8, classes=2, seed=0)
    norm = final_norm(backbone)
    *_, last = federated(start, norm, outputs, schedule, OneEpoch(8), seed=5)
    for ours, theirs in zip(model.parameters_of_adapters.tensors.values(), last.tensors.values(), strict=True):
        # 15 steps, in each of which a gradient adds up 8 images x 5 tokens x 8 channels in float32, numbers around 1.
        torch.testing.assert_close(ours, theirs, rtol=0, atol=15 * 320 * 2**-23)
        assert not torch.equal(ours, torch.zeros_like(ours))
    assert model_accuracy(model, clients[0]) == balanced_accuracy(last, norm, outputs[0])


def test_a_training_that_diverges_is_named(clients: list[LabelledImages]) -> None:
    model = FullFineTuning().adapt(build(SHAPE, classes=2, channels=1, seed=1), classes=2, seed=0)
    schedule = Schedule(rounds=9, learning_rate=math.inf)
    with pytest.raises(FloatingPointError, match=r"round 1, client 0: .*take a smaller learning rate"):
        federated_model(model, clients, schedule, OneEpoch(8), seed=5)


def test_outputs_that_are_kept_give_what_computed_ones_do(tmp_path: Path) -> None:
    path = arrays(tmp_path / "images.npz", classes=4)
    names = [row.name for row in adaptations(TWIN.rows) if isinstance(row.method, BesideBlocks)]
    kept, computed = (measured(prepared(path, keeps_outputs=keeps), *names) for keeps in (True, False))
    assert [list(run.values) for run in kept.values()] == [[column.name for column in TABLE1.columns]] * len(names)
    assert {name: run.values for name, run in kept.items()} == {name: run.values for name, run in computed.items()}


def test_images_that_are_given_are_learned_in_smaller_steps(tmp_path: Path) -> None:
    rates = {}
    for data in (None, arrays(tmp_path / "images.npz", classes=4)):
        work = prepared(data)
        rates[data] = {row.name: work.schedule(row).learning_rate for row in work.rows}
    digits, given = rates.values()
    assert {name: given[name] / rate for name, rate in digits.items() if given[name] != rate} == {
        OURS: 0.5,
        PROBING: 0.5,
    }


@pytest.mark.parametrize(
    ("classes", "train", "reason"),
    [
        (3, 60, "of 3 classes, one side takes 1, of which 1 have training images"),
        (4, 8, "5 clients cannot share 4 images"),
    ],
)
def test_too_few_images_are_refused_before_anything_starts(
    tmp_path: Path, classes: int, train: int, reason: str
) -> None:
    path = arrays(tmp_path / "images.npz", classes=classes, train=train)
    with pytest.raises(ValueError, match=reason):
        prepared(path)


def test_hospitals_adapt_what_another_one_owns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 2 on files of the form of Fed-ISIC2019: eight classes at six centres, an image of each for either fold."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    folder = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir()
    lines = ["image,target,center,fold"]
    for number in range(96):
        target, centre, fold = number % 8, number // 8 % 6, ("train", "test")[number // 48]
        Image.new("RGB", (8, 8), (30 * target, 10 * centre, 0)).save(folder / f"{number}.jpg")
        lines.append(f"{number},{target},{centre},{fold}")
    (tmp_path / "train_test_split").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert isinstance(TABLE2.full.measure, AdaptationSettings)
    measure = replace(
        TABLE2.full.measure,
        model=SHAPE,
        teacher=TrainingConfiguration(epochs=1),
        distillation=DistillationConfiguration(layer_epochs=1, prediction_epochs=1, margin=100.0),
        rounds=1,
    )
    rows = [row for row in adaptations(TABLE2.full.rows) if row.block == IN_DISTRIBUTION]
    work = prepare(measure, rows, request(tmp_path))
    owned, hospitals = work.tasks[IN_DISTRIBUTION.owned].train, work.tasks[IN_DISTRIBUTION.adapted_to].train
    assert (len(owned.labels), len(hospitals.labels)) == (8, 40)
    shares = measure.divisions["federated"].divide(hospitals.labels.numpy(), hospitals.centres, seed=0)
    assert [len(share) for share in shares] == [8] * 5
    names = [IN_DISTRIBUTION.row(name) for name in (TUNING, PROBING, OURS)]
    found = measured(work, *names)
    assert list(found) == names
    assert all(list(run.values) == ["central", "federated"] for run in found.values())

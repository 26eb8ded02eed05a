"""The global model of a run can be asked as it is; where a run has none that could be, one line says what it has."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from safetensors.torch import load_file, save_file

from tacit.models import checkpoint
from tacit.models.configuration import SIZES
from tacit.models.description import OWN_VIT, ModelDescription, header_of
from tacit.models.layout import Layout
from tacit.models.networks import arguments, build
from tacit.parties.runs.directory import Progress, RunDirectory
from tacit.parties.runs.experiment import built, load
from tacit.parties.runs.reference import experiment_toml
from tacit.parties.runs.served import checkpoint_of_run, read_served
from tacit.simulate.private_inference.private_images import in_the_clear
from tests.cli.command import Invoke
from tests.cli.outputs import check_output
from tests.models.friendly.reaching import reach_of


@pytest.fixture(scope="module")
def run(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that has a model after three rounds; no federation has trained it."""
    made = RunDirectory.create(tmp_path_factory.mktemp("served") / "run")
    made.keep_experiment(experiment_toml(load(small)))
    model = build(load(small).model, classes=3, channels=1, seed=4)
    layout, metadata = Layout.of(model), Progress(round=3, split_seed=1).metadata()
    checkpoint.save(made.model, layout=layout, flat=layout.flatten(model), metadata=metadata)
    return made.path


def changed(run: Path, directory: Path, **sections: dict[str, Any]) -> Path:
    shutil.copytree(run, directory / "run")
    content = msgspec.to_builtins(load(run / "experiment.toml"))
    for name, keys in sections.items():
        content[name] = {**(content[name] or {}), **keys}
    (directory / "run" / "experiment.toml").write_text(experiment_toml(built(content, "changed")))
    return directory / "run"


def test_the_global_model_of_a_run_is_read_as_it_is(run: Path) -> None:
    served = read_served(run)
    trained: Any = build(served.experiment.model, classes=3, channels=1, seed=0)
    layout = Layout.of(trained)
    layout.load_into(trained, checkpoint.load(run / "model.safetensors", layout)[0])
    images = served.data.x_test
    with torch.no_grad():
        expected = trained.eval()(images)
    clear = in_the_clear(served.transformer, images, batch=5)
    assert torch.allclose(clear, expected, rtol=0, atol=1e-5)
    assert served.white == 255


def test_a_model_whose_head_was_trained_alone_is_read_as_any(run: Path, tmp_path: Path) -> None:
    served = read_served(changed(run, tmp_path, model={"tune": "head", "checkpoint": "given.safetensors"}))
    expected = read_served(run)
    images = expected.data.x_test
    assert torch.equal(
        in_the_clear(served.transformer, images, batch=5), in_the_clear(expected.transformer, images, batch=5)
    )


@pytest.mark.end_to_end
def test_the_accuracy_of_what_is_served_is_that_of_the_run(held_run: tuple[Result, Path]) -> None:
    served = read_served(held_run[1])
    clear = in_the_clear(served.transformer, served.data.x_test, batch=5)
    summary = json.loads((held_run[1] / "summary.json").read_bytes())
    accuracy = (clear.argmax(dim=1) == served.data.y_test).double().mean().item()
    assert accuracy == pytest.approx(summary["final_accuracy"])


def test_its_training_images_tell_what_its_values_reach(run: Path) -> None:
    served = read_served(run)
    assert len(served.typical()) == 60
    found = reach_of(served.transformer, served.typical(), margin=1.5)["pixel"].high
    assert found == pytest.approx(1.5 * served.data.x_train.abs().max().item())
    assert served.prepared().public.embedding.largest == pytest.approx(found)


def described(run: Path, directory: Path, **changes: Any) -> Path:
    """The run as a server of hosts leaves it: of images it knows classes, mean and deviation."""
    copy = changed(run, directory, data={"source": "digits", "classes": ("a", "b", "c"), "mean": (0.3,), "std": (0.2,)})
    experiment, path = load(copy / "experiment.toml"), copy / "model.safetensors"
    about = ModelDescription(
        **{
            "architecture": OWN_VIT,
            "arguments": arguments(experiment.model.architecture, classes=3, channels=1),
            "image_size": experiment.model.image_size,
            "channels": 1,
            "classes": experiment.data.classes,
            "mean": experiment.data.mean,
            "std": experiment.data.std,
            "trained": "all",
            "trained_values": 1,
        }
        | changes
    )
    metadata, _ = header_of(path)
    save_file(load_file(path), path, metadata={**metadata, **about.metadata()})
    return copy


def test_typical_images_of_ones_own_serve_where_those_of_training_are_elsewhere(
    tacit: Invoke, run: Path, images: Path, tmp_path: Path
) -> None:
    hosted = described(run, tmp_path)
    refused = tacit("infer", hosted)
    assert refused.exit_code == 2
    assert "calibration" in refused.stderr
    served = checkpoint_of_run(hosted, images).read()
    expected = read_served(run)
    assert (served.data.image_size, served.interface.classes) == (expected.data.image_size, ("a", "b", "c"))
    assert served.data.mean == pytest.approx(255 * 0.3)
    given = expected.data.x_test
    assert torch.equal(
        in_the_clear(served.transformer, given, batch=5), in_the_clear(expected.transformer, given, batch=5)
    )
    assert len(served.typical()) == 60


def test_pictures_have_the_range_of_what_the_model_has_learned_from(run: Path, images: Path, tmp_path: Path) -> None:
    """Pixels of the digits go up to 16, those of pictures to 255."""
    white, dark = tmp_path / "white", tmp_path / "dark"
    for folder, value in ((white, 255), (dark, 16)):
        folder.mkdir()
        Image.new("L", (8, 8), value).save(folder / "1.png")
        Image.new("L", (8, 8), 0).save(folder / "2.png")
    for number in "12":
        (tmp_path / number).mkdir()
    digits = checkpoint_of_run(described(run, tmp_path / "1", white=16), white).read()
    assert digits.interface.white == 16
    expected = ((torch.tensor([16.0, 0.0]) - 255 * 0.3) / (255 * 0.2)).tolist()
    assert digits.typical().flatten(1).amax(1).tolist() == pytest.approx(expected)
    narrow = {"mean": (0.02,), "std": (0.025,)}
    unknown = described(run, tmp_path / "2", **narrow)
    assert checkpoint_of_run(unknown, dark).read().prepared()
    with pytest.raises(ValueError, match="another range"):
        checkpoint_of_run(unknown, white).read().prepared()


def test_a_model_file_that_is_not_what_it_says_is_refused(run: Path, images: Path, tmp_path: Path) -> None:
    for number, (changes, reason) in enumerate(
        (
            ({"encrypted": True}, "encrypted under a key"),
            ({"trained": "lora", "rank": 8}, "tacit models merge"),
            ({"trained": "parallel", "rank": 8}, "adapters beside"),
            ({"arguments": {"num_classes": 4}}, "does not hold the"),
            ({"arguments": {"banana": 4}}, "describes no"),
            ({"architecture": "resnet18", "arguments": {}}, "not supported"),
            ({"architecture": "nothing", "arguments": {}}, "nothing"),
        )
    ):
        (tmp_path / str(number)).mkdir()
        hosted = described(run, tmp_path / str(number), **changes)
        with pytest.raises(ValueError, match=reason) as refused:
            checkpoint_of_run(hosted, images).read()
        assert len(str(refused.value)) < 500
    with pytest.raises(ValueError, match="does not say what model it holds"):
        checkpoint_of_run(run, images).read()


def test_the_margin_of_a_student_is_that_of_its_distillation(distilled: tuple[Result, Path]) -> None:
    served = read_served(distilled[1] / "out")
    largest = served.prepared().public.embedding.largest
    assert largest == pytest.approx(3.0 * served.typical().abs().max().item())


def test_pixels_that_clients_have_summed_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    copy = changed(run, tmp_path, data={"statistics": "sum", "channels": 1})
    told = {"clients": 4, "pixels": 3840, "mean": [0.25], "std": [0.5]}
    (copy / "statistics.json").write_text(json.dumps(told))
    mean, std = read_served(copy).data.normalisation
    assert (mean, std) == (pytest.approx([0.25]), pytest.approx([0.5]))


def test_where_a_student_is_not_valid_there_is_nothing_in_the_clear(distilled: tuple[Result, Path]) -> None:
    served = read_served(distilled[1] / "out")
    white = (255 - torch.from_numpy(served.data.mean)) / torch.from_numpy(served.data.deviation)
    images = torch.cat([served.data.x_test[:3], white.reshape(1, 1, 1, 1).expand(1, 1, 8, 8)])
    clear = in_the_clear(served.transformer, images, batch=4)
    assert clear.isnan().all(dim=1).tolist() == [False, False, False, True]
    assert torch.equal(clear[:3], in_the_clear(served.transformer, images[:3], batch=1))


def adapted(run: Path, directory: Path) -> Path:
    copy = changed(run, directory)
    (copy / "experiment.toml").write_text('[adaptation]\nadapter = "parallel"\n')
    return copy


def without_model(run: Path, directory: Path) -> Path:
    copy = changed(run, directory)
    (copy / "model.safetensors").unlink()
    return copy


def untrained(run: Path, directory: Path) -> Path:
    copy = changed(run, directory)
    served = read_served(run)
    layout = Layout.of(served.transformer)
    metadata = Progress(round=0, split_seed=1).metadata()
    checkpoint.save(
        copy / "model.safetensors", layout=layout, flat=layout.flatten(served.transformer), metadata=metadata
    )
    return copy


def no_model_at_all(run: Path, directory: Path) -> Path:
    copy = changed(run, directory)
    (copy / "model.safetensors").write_bytes(b"nothing")
    return copy


def spoiled_statistics(run: Path, directory: Path) -> Path:
    copy = changed(run, directory)
    (copy / "statistics.json").write_text("{}")
    return copy


DIGITS = """
name = "digits"
[federation]
clients = 3
rounds = 8
seed = 1
[data]
source = "digits"
partition = "iid"
[model]
image_size = 8
patch_size = 4
width = 32
depth = 2
heads = 2
[training]
epochs = 3
batch_size = 16
"""


@pytest.fixture(scope="module")
def digits(tacit: Invoke, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the data set of real digits. Tests only read it."""
    directory = tmp_path_factory.mktemp("digits")
    (directory / "digits.toml").write_text(DIGITS)
    result = tacit("simulate", directory / "digits.toml", "--out", directory / "run")
    assert result.exit_code == 0, result.stderr
    return directory / "run"


@pytest.mark.exhaustive
def test_a_run_is_asked_as_it_is_about_all_digits(tacit: Invoke, digits: Path, tmp_path: Path) -> None:
    """Its softmax, GELU and LayerNorm are those of the clear, and no digit of the test images is out of range."""
    served = read_served(digits)
    count = len(served.data.y_test)
    assert count == 360
    result = tacit("infer", digits, "--images", count, "--batch", 20, "--json", tmp_path / "figures.json")
    assert (result.exit_code, result.stderr) == (0, "")
    figures = check_output(tmp_path / "figures.json", "inference")
    clear = in_the_clear(served.transformer, served.data.x_test, batch=60)
    assert not any(row["refused"] for row in figures["images"])
    assert figures["input"] == "shared"
    # Not one label for all of them.
    assert figures["accuracy"] > 0.8
    # The promise for a block, of two blocks and both ends.
    assert figures["largest_difference"] < 4e-3 * clear.norm(dim=1).max()
    # Two logits that differ by less than both errors have no order; of 360 images a model has one such at most now and
    # then: the second smallest difference was 60 times as large.
    best = clear.topk(2, dim=1).values
    told_apart = best[:, 0] - best[:, 1] > 2 * figures["largest_difference"]
    assert told_apart.sum() >= count - 2
    for row, label, certain in zip(figures["images"], clear.argmax(dim=1), told_apart, strict=True):
        assert row["label"] == served.data.source.class_names[label] or not certain, row


NOT_SERVED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "a convolutional network": (
        lambda run, tmp: changed(run, tmp, model=dict.fromkeys(SIZES, 0) | {"name": "lenet"}),
        "has no vision transformer of timm's that could be asked: model.name = 'lenet': the architecture LeNet is not",
    ),
    "a transformer with other norms": (
        lambda run, tmp: changed(run, tmp, model={"name": "test_vit4", "image_size": 32}),
        "model.name = 'test_vit4': blocks.0.norm1 (RmsNorm) is not supported; supported are ",
    ),
    "low-rank products": (
        lambda run, tmp: changed(run, tmp, model={"tune": "lora", "checkpoint": "given.safetensors"}),
        'model.tune = "lora": `tacit models merge`, and ask the merged file as a checkpoint',
    ),
    "parallel adapters": (
        lambda run, tmp: changed(run, tmp, model={"tune": "parallel", "checkpoint": "given.safetensors"}),
        'model.tune = "parallel": it has adapters beside its blocks',
    ),
    "a model of one's own": (
        lambda run, tmp: changed(run, tmp, model={"factory": "some:made"}, policy={"factories": ["some:made"]}),
        "could be asked: model.factory = 'some:made': it is a model of one's own",
    ),
    "an encrypted model": (
        lambda run, tmp: changed(run, tmp, encryption={}),
        "could be asked: [encryption]: its global model is encrypted under a key of the clients",
    ),
    "a model of each client": (
        lambda run, tmp: changed(run, tmp, protection={"scheme": "fedsplit"}),
        'could be asked: protection.scheme = "fedsplit": every client has a model of its own',
    ),
    "an adaptation": (adapted, "its data owners have what was learned, and ask with it: `tacit predict "),
    "no model yet": (without_model, "model.safetensors: wait until the run has finished a round"),
    "no round yet": (untrained, "model.safetensors is as the run began with it: wait until a round is finished"),
    "no model": (no_model_at_all, "model.safetensors is no model of a run ("),
    "no statistics": (spoiled_statistics, "statistics.json has no statistics ("),
    "no images any more": (
        lambda run, tmp: changed(run, tmp, data={"source": "gone.npz"}),
        "gone.npz' is no file",
    ),
    "another architecture": (
        lambda run, tmp: changed(run, tmp, model={"width": 16}),
        "model.safetensors' holds another architecture: ",
    ),
    "a file of something else": (
        lambda run, tmp: changed(run, tmp, data={"source": str(no_images(tmp))}), "none.npz",
    ),
}  # fmt: skip


def no_images(directory: Path) -> Path:
    np.savez(directory / "none.npz", x_test=np.zeros((2, 8, 8), np.uint8), y_test=np.arange(2))
    return directory / "none.npz"


@pytest.mark.parametrize("case", NOT_SERVED)
def test_a_run_without_a_model_to_ask_is_refused_in_one_line(
    tacit: Invoke, run: Path, tmp_path: Path, case: str
) -> None:
    make, reason = NOT_SERVED[case]
    result = tacit("infer", make(run, tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("tacit: ")
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1

"""What was learned between hosts says of images, by private inference: real processes and sockets."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from msgspec import structs

from tacit.models.adapters.configuration import ParallelConfiguration
from tacit.models.adapters.parallel import initial
from tacit.parties.adaptation import standing
from tacit.parties.hosting import preflight
from tacit.parties.hosting.folder import PartyFolder
from tacit.parties.hosting.learner import read_kept, read_learned
from tacit.parties.runs.served import read_served
from tacit.simulate.adaptation.clear import Judge
from tacit.simulate.adaptation.setting import Labelled
from tests.cli.adaptation_house import CLASSES, DATA_OWNERS, AdaptationHouse, complaint, forget
from tests.cli.command import Invoke
from tests.cli.inference_house import BOUND
from tests.cli.outputs import check_output

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, tacit: Invoke, student: Path) -> Iterator[AdaptationHouse]:
    """Two rounds were learned; the model owner and a dealer of inference alone serve."""
    made = AdaptationHouse(tmp_path_factory.mktemp("house"), tacit, student)
    try:
        running = made.start_all()
        for name in (*DATA_OWNERS, "dealer"):
            assert running[name].end() == 0, running[name].everything
        running["owner"].process.kill()
        running["owner"].end()
        made.model_owner(purpose="prediction")
        made.inference_dealer()
        for name in ("dealer", "owner"):
            made.start(name).until("listens at")
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def asked(house: AdaptationHouse) -> Path:
    """An .npz file with seven images of the two classes to ask about, which the last pass does not fill."""
    labels = np.arange(7) % len(CLASSES)
    noise = np.random.default_rng(5).integers(0, 60, (len(labels), 8, 8))
    arrays = {"x_test": (noise + 60 * labels[:, None, None]).astype(np.uint8), "y_test": labels}
    arrays |= {"x_train": arrays["x_test"][:2], "y_train": arrays["y_test"][:2]}
    np.savez(house.path / "asked.npz", **arrays)
    return house.path / "asked.npz"


def in_the_clear(house: AdaptationHouse, name: str, student: Path, images: Path) -> torch.Tensor:
    """What the adapters of this data owner say: logits [N, classes]."""
    learned, served = read_learned(PartyFolder(house.path / name / "state")), read_served(student)
    pixels = np.load(images)["x_test"][:, None].astype(np.float32)
    mean, deviation = (np.float32(part) for part in (served.data.mean, served.data.deviation))
    test = Labelled(torch.from_numpy((pixels - mean) / deviation), torch.zeros(len(pixels), dtype=torch.int64))
    return Judge(learned.kept.learning, served.transformer, test).logits(learned.parameters)


def test_predictions_are_those_of_the_adapters_in_the_clear(
    house: AdaptationHouse, student: Path, asked: Path, tacit: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are those of private inference, by the classes that were learned."""
    path = house.predictor("alice", asked)
    monkeypatch.setattr(preflight, "ANSWER_SECONDS", 60.0)
    tested = tacit("preflight", path)
    assert tested.exit_code == 0, tested.output
    alice = house.start("alice", "--json", "answers.json")
    assert alice.end() == 0, alice.everything
    figures = check_output(house.path / "alice" / "answers.json", "answers")
    clear = in_the_clear(house, "alice", student, asked)
    logits = torch.tensor([row["logits"] for row in figures["images"]], dtype=torch.float64)
    assert 0 < (logits - clear).abs().max() < BOUND
    # Where two logits are further apart than both may be off, the label is that of the larger one.
    sure = (clear[:, 0] - clear[:, 1]).abs() > 2 * BOUND
    assert torch.equal(logits.argmax(1)[sure], clear.argmax(1)[sure])
    assert [row["label"] for row in figures["images"]] == [CLASSES[number] for number in logits.argmax(1)]
    assert (figures["classes"], figures["passes"]) == (list(CLASSES), 2)
    assert "7 images; the adapters after round 2 are known" in alice.said
    again = house.start("alice", "--json", "again.json")
    assert again.end() == 0, again.everything
    assert check_output(house.path / "alice" / "again.json", "answers") == figures


def other_rank(house: AdaptationHouse, state: Path) -> None:
    like = initial(ParallelConfiguration(rank=3), blocks=2, tokens=5, width=8, classes=2, seed=1)
    standing.save(state / "adapters.safetensors", like, round=2)


def other_classes(house: AdaptationHouse, state: Path) -> None:
    like = initial(ParallelConfiguration(rank=2), blocks=2, tokens=5, width=8, classes=3, seed=1)
    standing.save(state / "adapters.safetensors", like, round=2)


def nothing_learned(house: AdaptationHouse, state: Path) -> None:
    (state / "adapters.safetensors").unlink()


def no_images(house: AdaptationHouse, state: Path) -> None:
    np.savez(house.path / "other.npz", x_train=np.zeros((1, 8, 8), np.uint8), y_train=np.zeros(1, np.int64))
    house.predictor("bob", house.path / "other.npz")


def other_channels(house: AdaptationHouse, state: Path) -> None:
    coloured = {f"x_{part}": np.zeros((2, 8, 8, 2), np.uint8) for part in ("train", "test")}
    np.savez(house.path / "other.npz", **coloured, y_train=np.arange(2), y_test=np.arange(2))
    house.predictor("bob", house.path / "other.npz")


def torn(house: AdaptationHouse, state: Path) -> None:
    content = (state / "adapters.safetensors").read_bytes()
    (state / "adapters.safetensors").write_bytes(content[:-1])


WRONG: dict[str, tuple[Callable[[AdaptationHouse, Path], object], str]] = {
    "adapters of another rank": (
        other_rank,
        "adapters.safetensors holds adapters of another model: .* is not a float64",
    ),
    "a head of other classes": (
        other_classes,
        "adapters.safetensors holds adapters of another model: .* is not a float64",
    ),
    "half of a file": (torn, "adapters.safetensors holds no adapters"),
    "nothing learned": (nothing_learned, "adapters.safetensors is missing: nothing was learned here"),
    "no images": (no_images, "other.npz': there are no test images in it"),
    "other channels": (other_channels, "has 1 channels, and the images have 2"),
}


def test_wrong_files_are_refused_in_a_line(house: AdaptationHouse, asked: Path) -> None:
    state = house.path / "bob" / "state"
    kept = house.path / "kept"
    shutil.copytree(state, kept)
    for make, pattern in WRONG.values():
        shutil.rmtree(state)
        shutil.copytree(kept, state)
        house.predictor("bob", asked)
        make(house, state)
        complaint(house.start("bob"), 2, pattern)


def test_what_does_not_go_with_the_model_owner_is_refused(house: AdaptationHouse, asked: Path) -> None:
    """What was learned in another learning, or beside another model; and who comes to learn."""
    state = house.path / "carol" / "state"
    house.predictor("carol", asked)
    kept = read_kept(state / "learning.msgpack")
    assert kept is not None
    swapped = structs.replace(kept, learning=structs.replace(kept.learning, names=CLASSES[::-1]))
    longer = structs.replace(kept, learning=structs.replace(kept.learning, seed=kept.learning.seed ^ 1))
    for changed, pattern in (
        (swapped, "the model owner has the classes 0, 1, and here are 1, 0; .*: name the `directory`"),
        (longer, "the model owner goes by another learning; .*: name the `directory`"),
        (structs.replace(kept, weights=bytes(32)), "owner: .* another model .*: name the `directory`"),
    ):
        (state / "learning.msgpack").write_bytes(msgspec.msgpack.encode(changed))
        complaint(house.start("carol"), 2, pattern)
    forget(state)
    house.data_owner("carol")
    complaint(house.start("carol"), 1, "owner: it offers prediction; here learning is wanted: agree on a purpose")

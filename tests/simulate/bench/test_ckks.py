"""One block under CKKS: its slots in the clear always, the encryption where the extra is installed (`make ckks`)."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.blocks import Approximation
from tacit.models.friendly.calibration import calibrate
from tacit.models.friendly.convert import convert
from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.models.vision_transformer import build
from tacit.simulate.bench import ckks
from tacit.simulate.bench.encrypted_tensor import check_fits, from_slots, to_slots
from tacit.simulate.bench.slots import LEVELS, MARGIN, SLOTS, Rehearsal, refresh_bounds
from tests.cli.outputs import check_output


def calibrated(**sizes: int) -> tuple[FriendlyTransformer, torch.Tensor]:
    """A friendly model with random weights, float64, and the images [4, 1, 32, 32] that it is calibrated for."""
    torch.manual_seed(5)
    model = convert(build(ModelConfiguration(**sizes), classes=10, channels=1, seed=1), Approximation()).double()
    for part in model.modules():
        # What starts as one or zero would hide where it is not applied.
        if isinstance(part, nn.Module) and isinstance(getattr(part, "bias", None), nn.Parameter):
            nn.init.normal_(part.bias, std=0.1)
    images = torch.rand(4, 1, 32, 32, dtype=torch.float64)
    calibrate(model, images, margin=1.5)
    return model.requires_grad_(False), images


@pytest.mark.parametrize(
    "sizes",
    [
        {},  # 17 tokens in ciphertexts of 8 blocks: a last one with a single token.
        {"width": 64, "heads": 2, "patch_size": 16},  # 5 tokens in 64 blocks: one ciphertext, most of it empty.
        {"width": 256, "heads": 8},  # 4 blocks; queries, keys and values of 768 channels do not repeat over the slots.
    ],
)
def test_a_block_in_slots_is_the_block(sizes: dict[str, int]) -> None:
    model, images = calibrated(**sizes)
    for image in images.split(1):
        tokens = model.embed(model.patches(image))
        found, machine = ckks.rehearse(model.blocks[0], tokens)
        # Sums in another order, in float64: 1e3 operations deep at most.
        assert (found - model.blocks[0](tokens)).abs().max() < 1e-10
        # LayerNorm's variances, what leaves each LayerNorm, the sums of the softmax, and what leaves it.
        assert len(machine.largest) == 6


def test_levels_are_spent_and_never_overdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = LEVELS

    class Watched(Rehearsal):
        def multiply(self, a: object, b: object) -> object:
            return self.watched(super().multiply(a, b))

        def scale(self, a: object, by: object) -> object:
            return self.watched(super().scale(a, by))  # type: ignore[arg-type]

        def watched(self, a: object) -> object:
            nonlocal lowest
            lowest = min(lowest, self.level(a))
            return a

    monkeypatch.setattr(ckks, "Rehearsal", Watched)
    model, images = calibrated()
    ckks.rehearse(model.blocks[0], model.embed(model.patches(images[:1])))
    # One is left for the division before a refresh.
    assert lowest == 1


def test_the_bounds_of_refreshes_hold_what_all_rehearsals_had_with_a_margin() -> None:
    first, second = Rehearsal(), Rehearsal()
    first.largest, second.largest = [0.2, 3.0], [0.4, 1.0]
    assert refresh_bounds([first, second]) == [math.ceil(0.4 * MARGIN), math.ceil(3.0 * MARGIN)]


def test_tokens_come_back_from_slots() -> None:
    tokens = torch.randn(1, 17, 128, dtype=torch.float64)
    slots = to_slots(tokens)
    assert slots.shape == (SLOTS,)
    assert torch.equal(from_slots(slots, 17, 128), tokens)


@pytest.mark.parametrize(
    ("tokens", "width", "hidden", "heads", "said"),
    [
        (17, 96, 192, 3, "the width 96 is no power of two"),
        (17, 128, 384, 4, "the hidden width 384 is no power of two"),
        (197, 128, 256, 4, "197 tokens of width 256 take 65536 slots, and a ciphertext has 32768"),
    ],
)
def test_a_block_that_slots_cannot_hold_is_refused(tokens: int, width: int, hidden: int, heads: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_fits(tokens, width, hidden, heads)


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What Python itself does with a module that is not there.
    monkeypatch.setitem(sys.modules, "desilofhe", None)
    done = CliRunner().invoke(app, ["bench", "ckks", str(tmp_path)])
    assert done.exit_code == 2
    assert "pip install 'tacit[ckks]'" in " ".join(done.stderr.split())
    assert "not commercial" in " ".join(done.stderr.split())


@pytest.mark.ckks
@pytest.mark.skipif(
    importlib.util.find_spec("desilofhe") is None, reason="desilofhe is not installed; make ckks installs and runs this"
)
def test_the_first_block_of_the_default_student_is_right_when_it_is_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tmp_path / "brief.toml"
    # The default sizes; what the student is good for does not matter here.
    experiment.write_text(
        "[federation]\nseed = 4\n[distillation]\nteacher_epochs = 2\nlayer_epochs = 2\nprediction_epochs = 1\n"
    )
    student, file = tmp_path / "student", tmp_path / "figures.json"
    done = CliRunner().invoke(app, ["distill", str(experiment), "--out", str(student)])
    assert done.exit_code == 0, done.output
    with monkeypatch.context() as small:
        small.setattr(ckks, "available_memory", lambda: 17_000_000_000)
        done = CliRunner().invoke(app, ["bench", "ckks", str(student)])
    assert done.exit_code == 2
    assert "take 19 GB of memory, and 17.0 GB are free here" in " ".join(done.stderr.split())
    done = CliRunner().invoke(app, ["bench", "ckks", str(student), "--json", str(file)])
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-ckks")
    assert 0 < figures["relative_error"] <= 1e-2
    assert figures["bootstraps"] == figures["per_operation"]["bootstraps"]["count"] == 6
    assert f"levels ended {figures['bootstraps']} times" in " ".join(done.stdout.split())
    assert figures["bytes_to_data_owner"] < figures["bytes_to_model_owner"]
    assert json.loads(file.read_bytes())["asked_of_data_owner"] == 0

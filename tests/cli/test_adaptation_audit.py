"""`tacit audit` of an adaptation: attacks of its owners, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.outputs import check_output

Tacit = Callable[..., Result]
SMALL = """
name = "small"
[federation]
clients = 3
rounds = 3
[data]
partition = "iid"
[model]
image_size = 8
patch_size = 4
width = 16
depth = 3
heads = 2
[training]
batch_size = 32
learning_rate = 2e-3
[adapter]
kind = "parallel"
rank = 4
[adaptation]
batch = 32
backbone_epochs = 4
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "adapt.toml"
    path.write_text(SMALL)
    return path


@pytest.mark.exhaustive
def test_revealed_outputs_disclose_the_model_and_masks_hide_images(tacit: Tacit, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = tacit("audit", small, "--images", "20", "--seed", "1", "--out", out)
    assert result.exit_code == 0, result.output
    audited = check_output(out / "audit.json", "audit")
    models = {(row["arm"], row["attack"]): row for row in audited["model_attacks"]}
    assert {row["adversary"] for row in models.values()} == {"data-owner-1"}
    for arm in ("unprotected", "reveal-all"):
        for attack in ("copied-blocks", "imitation"):
            assert models[arm, attack]["verdict"] == "reconstructed", models[arm, attack]
            # Of 3 rounds 32 images, each with outputs of 3 blocks.
            assert models[arm, attack]["received_outputs"] == 288
    # Secret orders are found without being given.
    assert models["reveal-all", "copied-blocks"]["metrics"]["matching_accuracy"] == 1
    nothing = models["reveal-none", "copied-blocks"]
    assert (nothing["verdict"], nothing["received_outputs"]) == ("not attacked", 0)
    assert models["reveal-none", "imitation"]["verdict"] == "not reconstructed by the attacks listed"
    images = {(row["arm"], row["attack"]): row for row in audited["image_attacks"]}
    assert {row["adversary"] for row in images.values()} == {"model-owner"}
    for (arm, attack), row in images.items():
        # Now and then a guess re-identifies an image.
        assert row["metrics"]["reconstructed"] is (arm == "unprotected"), (arm, attack)
    page = (out / "audit.html").read_text()
    assert "The model, attacked by data owners" in page
    assert "data:image/png;base64," in page
    # What parties drew was in them.
    assert not (out / "recordings").exists()
    again = tmp_path / "again"
    run = out / "runs" / "reveal-none"
    result = tacit("audit", run, "--as", "model-owner", "--attack", "read-words", "--images", "2", "--out", again)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = check_output(again / "audit.json", "audit")
    assert found["model_attacks"] == []
    assert len(found["image_attacks"]) == 4
    # The model of the run is that which is audited.
    model = Path("backbone") / "model.safetensors"
    assert (again / "runs" / "reveal-all" / model).read_bytes() == (run / model).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--as", "server"), "there is no party 'server' that an audit of an adaptation plays; expected data-owner, "),
        (("--as", "data-owner-4"), "data-owner-3, model-owner, one at a time"),
        (("--as", "data-owner+model-owner"), "one at a time"),
        (("--as", "wire"), "there is no party 'wire'"),
        (("--attack", "dlg"), "there is no attack 'dlg' of data-owner-1 or model-owner: expected copied-blocks"),
        (("--as", "model-owner", "--attack", "imitation"), "expected read-words, fitted-words"),
        (("--full",), "--full is of audits of federations"),
        (("--data", "nowhere.npz"), "there is nothing; give an .npz file"),
    ],
)
def test_refusals_of_an_adaptation_say_what_would_do(
    tacit: Tacit, small: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = tacit("audit", small, *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('selection = "enrolment"\nreveal = "all"\n', "cannot read runs with adaptation.selection"),
        ('backbone = "nowhere"\n', "nowhere"),
        ("known_classes = [0, 12]\n", "adaptation.known_classes has 12"),
        ("batch = 0\n", "batch"),
    ],
)
def test_adaptations_that_cannot_be_audited_are_refused(tacit: Tacit, tmp_path: Path, more: str, said: str) -> None:
    path = tmp_path / "adapt.toml"
    path.write_text(f"[adaptation]\n{more}")
    result = tacit("audit", path, "--out", tmp_path / "out")
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())

"""What commands say of images that were out of range; that passes are refused is tested where the parties are."""

from pathlib import Path

import pytest
import typer
from PIL import Image
from rich.console import Console

from tacit.cli.output import all_answered, show
from tacit.parties.hosting.data_owner import (
    AnsweredBy,
    AnsweredPass,
    AnswersFile,
    answers_of,
    own_images,
)
from tacit.parties.runs.answers import MOST_SHOWN, REFUSED, AnsweredImage
from tacit.simulate.private_inference import private_images
from tacit.simulate.private_inference.inference_request import InferenceRequest
from tacit.simulate.private_inference.results import InferenceResult, OperationMetrics
from tests.cli.command import invoke

COSTS = {"online_seconds": 1.0, "offline_seconds": 1.0, "sent": 1, "received": 1}


def inferred(refused: int, of: int) -> InferenceResult:
    none = None if refused == of else 1.0
    return InferenceResult(
        images=[
            AnsweredImage.of(f"test {number}", (), None, None)
            if number < refused
            else AnsweredImage.of(f"test {number}", "7", [1.0], None)
            for number in range(of)
        ],
        protocol="tacit",
        beyond=0,
        accuracy=none,
        passes=1,
        online_seconds=1.0,
        preprocessing_wait_seconds=1.0,
        agreement=none,
        largest_difference=none,
        relative_error=none,
        weights_bytes=1,
        per_operation={"head": OperationMetrics(seconds=1.0, data_owner_bytes=1, model_owner_bytes=1, rounds=1)},
        batch=2,
        labels=0,
        input="shared",
        data_owners=1,
    )


@pytest.mark.parametrize("refused", [1, 2])
def test_infer_shows_which_images_were_refused_and_ends_with_1(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InferenceRequest, "__post_init__", lambda request: None)
    monkeypatch.setattr(private_images, "infer", lambda *given, **options: inferred(refused, 2))
    done = invoke("infer", str(tmp_path), "--json", str(tmp_path / "figures.json"))
    assert done.exit_code == 1
    assert done.stdout.count(REFUSED) == refused
    assert f"{refused} of 2 images refused: out of range, ask again with another image" in done.output
    assert (tmp_path / "figures.json").read_text().count('"refused": true') == refused


def test_answers_keep_what_was_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = own_images("digits")
    count = len(images.names)
    path = tmp_path / "answers.jsonl"
    kept = AnswersFile(path, images=count)
    kept.write(AnsweredBy(weights="ab", classes=("0", "1")))
    kept.write(AnsweredPass(logits=(None,) * 3, **COSTS))
    kept.write(AnsweredPass(logits=((0.0, 1.0),) * (count - 3), **COSTS))
    again = AnswersFile(path, images=count)
    assert (again.count, again.rows[:3]) == (count, [(None, None)] * 3)
    assert again.by == kept.by
    found = answers_of(images, again)
    assert [one.refused for one in found.images] == [True] * 3 + [False] * (count - 3)
    assert found.images[0] == AnsweredImage.of(images.names[0], (), None, None)
    assert images.labels is not None
    assert found.accuracy == sum(label == "1" for label in images.labels[3:]) / (count - 3)
    show(Console(width=120), found)
    assert capsys.readouterr().out.count(REFUSED) == 3


def test_files_that_cannot_be_read_stand_beside_the_answers_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "images" / "ward" / "deep").mkdir(parents=True)
    for name in ("a.png", "ward/b.png", "ward/deep/c.png"):
        Image.new("L", (8, 8), len(name)).save(tmp_path / "images" / name)
    (tmp_path / "images" / "ward" / "b.png").write_bytes(b"cut off")
    images = own_images(str(tmp_path / "images"))
    assert images.names == ("a.png", "ward/deep/c.png")
    assert any("b.png is not a readable image" in note for note in images.notes)
    kept = AnswersFile(tmp_path / "answers.jsonl", images=2)
    kept.write(AnsweredBy(weights="ab", classes=("0", "1")))
    kept.write(AnsweredPass(logits=((0.0, 1.0),) * 2, **COSTS))
    found = answers_of(images, kept)
    assert [(one.image, one.label) for one in found.images] == [
        ("a.png", "1"),
        ("ward/deep/c.png", "1"),
        ("ward/b.png", None),
    ]
    with pytest.raises(typer.Exit):
        all_answered(found)
    (tmp_path / "images" / "a.png").unlink()
    (tmp_path / "images" / "ward" / "deep" / "c.png").unlink()
    with pytest.raises(ValueError, match=r"b\.png is not a readable image"):
        own_images(str(tmp_path / "images"))


def test_answers_keep_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = own_images("digits")
    count = len(images.names)
    kept = AnswersFile(tmp_path / "answers.jsonl", images=count)
    kept.write(AnsweredBy(weights="ab", classes=("0", "1", "2")))
    kept.write(AnsweredPass(logits=(None,) * 3, **COSTS))
    kept.write(AnsweredPass(logits=(None,) * (count - 3), labels=((2, 0),) * (count - 3), **COSTS))
    found = answers_of(images, AnswersFile(tmp_path / "answers.jsonl", images=count))
    assert [one.refused for one in found.images] == [True] * 3 + [False] * (count - 3)
    assert found.images[3] == AnsweredImage.of(images.names[3], "20", None, (0, 1))
    show(Console(width=120), found)
    shown = capsys.readouterr().out
    assert shown.count("2, 0") == MOST_SHOWN - 3
    assert "reveals labels alone" in shown

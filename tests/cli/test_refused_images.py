"""What commands say of images that were out of range; that passes are refused is tested where the parties are."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tacit.cli import host
from tacit.cli.output import REFUSED
from tacit.parties.hosting.data_owner_host import AnsweredBy, AnsweredPass, Answers, AnswersError, figures, own_images
from tacit.simulate.private_inference import private_images
from tacit.simulate.private_inference.inference_request import InferenceRequest
from tests.cli.command import invoke

OPERATION = {"seconds": 1.0, "data_owner_bytes": 1, "model_owner_bytes": 1, "rounds": 1}
COSTS = {"online_seconds": 1.0, "offline_seconds": 1.0, "sent": 1, "received": 1}


def inferred(refused: int, of: int) -> dict[str, Any]:
    rows = [
        {"image": f"test {number}", "refused": number < refused}
        | ({"label": None, "confidence": None} if number < refused else {"label": "7", "confidence": 0.9})
        | {"labels": None}
        for number in range(of)
    ]
    none = None if refused == of else 1.0
    return {
        "images": rows, "agreement": none, "largest_difference": none, "accuracy": none, "relative_error": none,
        "weights_bytes": 1, "passes": 1, "online_seconds": 1.0, "waited_for_material_seconds": 1.0,
        "per_operation": {"head": OPERATION}, "input": "shared", "batch": 2, "data_owners": 1, "labels": 0,
    }  # fmt: skip


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
    kept = Answers(path, images=count)
    kept.write(AnsweredBy(weights="ab", classes=("0", "1")))
    kept.write(AnsweredPass(logits=(None,) * 3, **COSTS))
    kept.write(AnsweredPass(logits=((0.0, 1.0),) * (count - 3), **COSTS))
    again = Answers(path, images=count)
    assert (again.count, again.rows[:3]) == (count, [(None, None)] * 3)
    assert again.by == kept.by
    found = figures(images, again)
    assert [row["refused"] for row in found["images"]] == [True] * 3 + [False] * (count - 3)
    assert found["images"][0] == {
        "image": images.names[0], "label": None, "labels": None, "confidence": None, "logits": None, "refused": True,
    }  # fmt: skip
    assert images.labels is not None
    assert found["accuracy"] == sum(label == "1" for label in images.labels[3:]) / (count - 3)
    host._show_answers(Console(width=120), found)
    assert capsys.readouterr().out.count(REFUSED) == 3


def test_answers_keep_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = own_images("digits")
    count = len(images.names)
    kept = Answers(tmp_path / "answers.jsonl", images=count)
    kept.write(AnsweredBy(weights="ab", classes=("0", "1", "2")))
    kept.write(AnsweredPass(logits=(None,) * 3, **COSTS))
    kept.write(AnsweredPass(logits=(None,) * (count - 3), labels=((2, 0),) * (count - 3), **COSTS))
    found = figures(images, Answers(tmp_path / "answers.jsonl", images=count))
    assert [row["refused"] for row in found["images"]] == [True] * 3 + [False] * (count - 3)
    assert found["images"][3] == {
        "image": images.names[3], "label": "2", "labels": ["2", "0"], "confidence": None, "logits": None,
        "refused": False,
    }  # fmt: skip
    host._show_answers(Console(width=120), found)
    shown = capsys.readouterr().out
    assert shown.count("2, 0") == shown.count("not told") > 0


@pytest.mark.parametrize("labels", [((0,),), ((0,), (2,)), ((0,), (-1,)), ((0,), ())])
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, labels: tuple[tuple[int, ...], ...]) -> None:
    kept = Answers(tmp_path / "answers.jsonl", images=2)
    kept.write(AnsweredBy(weights="ab", classes=("0", "1")))
    entry = AnsweredPass(logits=(None, None), labels=labels, **COSTS)
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(entry) + b"\n")
    with pytest.raises(AnswersError, match="it does not fit the images"):
        Answers(tmp_path / "answers.jsonl", images=2)

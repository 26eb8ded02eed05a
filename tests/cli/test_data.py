import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

from tacit.cli.commands.data import app
from tacit.models.configuration import DataConfiguration
from tacit.models.data import load
from tacit.models.partition import divide
from tests.cli.outputs import check_output


def inspect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def rows(output: str) -> list[list[str]]:
    """The cells of the tables on the screen, without their headings."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if "│" in line]


@pytest.fixture
def isic(tmp_path: Path) -> Path:
    """Fed-ISIC2019 with 24 training images of two sizes in three centres, and two test images."""
    folder = tmp_path / "ISIC_2019_Training_Input_preprocessed"
    folder.mkdir()
    lines = ["image,target,center,fold,fold2"]
    for number in range(26):
        fold, height = ("train" if number < 24 else "test"), 8 + number % 2
        Image.fromarray(np.zeros((height, 10, 3), dtype=np.uint8)).save(folder / f"i{number}.jpg")
        lines.append(f"i{number},{number % 8},{number % 3},{fold},{fold}_{number % 3}")
    (tmp_path / "train_test_split").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_without_arguments_it_shows_what_the_default_simulation_uses(tmp_path: Path) -> None:
    result = inspect("--json", tmp_path / "figures.json")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "digits: 1,437 training and 360 test images in 10 classes; 1 channel; 8 x 8\n" in result.stdout
    assert "dirichlet, alpha 1.0, seed 0" in result.stdout
    assert "the split below is that of seed 0: the experiment sets no federation.seed, and so each" in result.stdout
    assert "largest weight of a client: 384; aggregation.max_weight is not set, and computed from" in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("for an experiment between hosts: "))
    assert line.endswith(
        'mean = [0.0192], std = [0.0236], classes = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]'
    )

    labels = load(DataConfiguration(), image_size=8).y_train.numpy()
    shares = divide(labels, DataConfiguration(), clients=5, seed=0)
    counts = [np.bincount(labels[share], minlength=10).tolist() for share in shares]
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert figures["clients_by_class"] == counts
    assert figures["train_by_class"] == np.bincount(labels).tolist()
    shown = rows(result.stdout)
    assert [[int(cell) for cell in row[3:]] for row in shown[:10]] == np.transpose(counts).tolist()
    assert shown[10] == ["all", "1,437", "360", *(f"{sum(count):,}" for count in counts)]


def test_the_json_file_has_all_figures(tmp_path: Path, isic: Path) -> None:
    source = ("--source", "fed-isic2019", "--directory", isic)
    result = inspect(*source, "--partition", "centre", "--clients", "3", "--json", tmp_path / "figures.json")
    assert result.exit_code == 0
    figures = check_output(tmp_path / "figures.json", "data")
    assert figures == {
        "source": "fed-isic2019",
        "channels": 3,
        "train": 24,
        "test": 2,
        "image_sizes": [{"height": 8, "width": 10, "images": 13}, {"height": 9, "width": 10, "images": 13}],
        "class_names": ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"],
        "mean": [0.0, 0.0, 0.0],
        "std": [0.0039, 0.0039, 0.0039],
        "train_by_class": [3] * 8,
        "test_by_class": [1, 1, 0, 0, 0, 0, 0, 0],
        "train_by_centre": [8, 8, 8],
        "partition": "centre",
        "alpha": None,
        "seed": None,
        "seed_is_set": False,
        "max_weight": 0,
        "largest_weight": 8,
        "clients_by_class": [[1] * 8] * 3,
        "notes": [],
    }
    assert "3 channels; 2 sizes from 8 x 10 to 9 x 10\n" in result.stdout
    assert "training images by centre: 0: 8, 1: 8, 2: 8\n" in result.stdout


MISTAKES = [
    (["--source", "cifar10"], 'command line: data.source "cifar10" needs data.directory'),
    (["--source", "gtsrb", "--directory", "/nowhere"], "/nowhere is no folder; expected data.directory with gtsrb"),
    (["--source", "absent.npz"], "'absent.npz' is no file"),
    (["absent.toml"], "absent.toml: cannot be read"),
    (["--json", "-"], "--json -: name a file, or /dev/stdout"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=[" ".join(case[0]) for case in MISTAKES])
def test_a_mistake_is_one_line_and_status_2(arguments: list[str], message: str) -> None:
    result = inspect(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.startswith("tacit: ")
    assert result.stderr.count("\n") == 1


def test_what_no_run_would_take_is_looked_at_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tests.npz"
    np.savez(path, x_test=np.full((6, 8, 8), 51, np.uint8), y_test=np.arange(6) % 3)
    result = inspect("--source", path)
    assert result.exit_code == 0, result.stderr
    assert "mean = [0.2]" in result.stdout
    assert "nan" not in result.stdout
    assert inspect("--clients", "2").exit_code == 0


def test_the_parts_of_a_division_become_files(tmp_path: Path) -> None:
    def divided(*arguments: str | Path) -> Result:
        return CliRunner().invoke(app, ["divide", *map(str, arguments)])

    result = divided("--clients", "3", "--seed", "5", "--out", tmp_path / "parts")
    assert result.exit_code == 0
    whole = load(DataConfiguration(), image_size=8)
    shares = divide(whole.y_train.numpy(), DataConfiguration(), clients=3, seed=5)
    for number, share in enumerate(shares, start=1):
        with np.load(tmp_path / "parts" / f"client-{number}.npz") as part:
            assert set(part) == {"x_train", "y_train"}
            assert (part["y_train"] == whole.y_train.numpy()[share]).all()
            assert (part["x_train"] == whole.source.train.images.pixels(share, size=8)).all()
    with np.load(tmp_path / "parts" / "server.npz") as part:
        assert set(part) == {"x_test", "y_test"}
        assert len(part["x_test"]) == 360
    assert result.stdout.splitlines()[-1] == f"{tmp_path / 'parts' / 'server.npz'}: 360 images"
    again = divided("--out", tmp_path / "parts")
    assert (again.exit_code, "choose another directory" in again.stderr) == (2, True)

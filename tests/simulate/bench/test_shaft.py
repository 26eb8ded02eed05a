"""`tacit bench inference --against shaft`: what is refused, what is scaled, and SHAFT itself where a checkout is named.

The environment variable TACIT_SHAFT_CHECKOUT names a checkout of github.com/andeskyl/SHAFT.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.simulate.bench import shaft
from tests.cli.outputs import check_output

CHECKOUT = os.environ.get("TACIT_SHAFT_CHECKOUT")
BENCH = ["bench", "inference", "--against", "shaft"]
GET_IT = "git clone https://github.com/andeskyl/SHAFT"


def stand_in(path: Path, *, setting: str = "softmax_ode_iter_num: 16", package: bool = True) -> Path:
    """A folder that looks like a checkout, with a package that computes nothing."""
    (path / "configs").mkdir(parents=True)
    (path / "configs" / "default.yaml").write_text(f"functions:\n  {setting}\n")
    (path / "crypten").mkdir()
    if package:
        (path / "crypten" / "__init__.py").touch()
    return path


def test_a_path_that_is_no_checkout_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    wrong = {
        tmp_path / "nowhere": "there is no such folder",
        file: "there is no such folder",
        Path("~nobody-here/SHAFT"): "there is no such folder",
        tmp_path: "this is no checkout of SHAFT",
        stand_in(tmp_path / "stock", setting="exp_method: limit"): "this is no checkout of SHAFT",
        stand_in(tmp_path / "part", package=False): "this is no checkout of SHAFT",
    }
    for path, reason in wrong.items():
        done = CliRunner().invoke(app, [*BENCH, "--checkout", str(path)])
        assert done.exit_code == 2
        assert done.output.count("\n") == 1
        assert f"--checkout {path}: {reason}" in done.output
        assert GET_IT in done.output


def test_a_checkout_is_found_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(stand_in(tmp_path / "here"))
    assert shaft.checked(link) == (tmp_path / "here").resolve()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--checkout", "."], "--checkout is of SHAFT: give --against shaft with it"),
        (["--against", "crypten", "--checkout", "."], "--checkout is of SHAFT: give --against shaft with it"),
        ([".", "--checkout", "."], "--checkout: of blocks with random weights only"),
        (["--against", "shaft", "--batch", "2"], "without --checkout, figures of SHAFT are there for blocks of"),
        (["--against", "shaft", "--model", "vit_base_patch16_224"], "without --checkout"),
        (["--against", "shaft", "--latency", "1"], "without --checkout"),
        (["--against", "shaft", "--bandwidth", "100"], "without --checkout"),
        (["--against", "shaft", "--device", "cuda"], "without --checkout"),
    ],
)
def test_what_cannot_be_compared_is_refused(options: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["bench", "inference", *options])
    assert done.exit_code == 2
    assert reason in done.output


def test_the_help_says_what_is_compared_without_a_checkout() -> None:
    done = CliRunner().invoke(app, ["bench", "inference", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 0
    for words in ("--checkout", "andeskyl/SHAFT", "measured once, scaled by", "CrypTen's time here"):
        assert words in done.output


def test_published_figures_are_scaled_by_the_time_of_crypten() -> None:
    same = shaft.published(blocks=1, crypten_seconds=shaft.CRYPTEN_SECONDS)
    assert same == {"scale": 1.0, "seconds": shaft.SECONDS, "bytes": shaft.BYTES, "rounds": shaft.ROUNDS}
    # Twelve blocks on a machine of half the speed; bytes and rounds are those of the protocol on any machine.
    slow = shaft.published(blocks=12, crypten_seconds=24 * shaft.CRYPTEN_SECONDS)
    assert slow["scale"] == pytest.approx(2.0)
    assert slow["seconds"] == pytest.approx(24 * shaft.SECONDS)
    assert (slow["bytes"], slow["rounds"]) == (12 * shaft.BYTES, 12 * shaft.ROUNDS)


class Clear(torch.Tensor):
    """In the clear, with SHAFT's names of what torch calls otherwise."""

    def gelu(self) -> torch.Tensor:
        return torch.nn.functional.gelu(self)

    def inv_sqrt(self) -> torch.Tensor:
        return self.rsqrt()


@pytest.mark.parametrize("images", [1, 2])
def test_the_block_is_that_of_the_model(images: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = timm.create_model("vit_tiny_patch16_224", pretrained=False, depth=2).eval().double()
        stream = torch.randn(images, 5, 192, dtype=torch.float64)
    blocks = shaft.ShaftBlocks.of(Path(), model.blocks)
    found: Any = stream.as_subclass(Clear)
    for block in blocks.shared(lambda tensor: tensor.as_subclass(Clear)):
        found = block(found)
    with torch.no_grad():
        assert torch.allclose(found.as_subclass(torch.Tensor), model.blocks(stream), rtol=0, atol=1e-12)


def imported(checkout: Path) -> "subprocess.CompletedProcess[str]":
    """What a process says that has CrypTen loaded, and then takes the checkout's."""
    program = (
        "import tacit.parties.crypten.computation\n"
        "from pathlib import Path\n"
        "from tacit.simulate.bench.shaft import ShaftBlocks\n"
        f"print(ShaftBlocks(Path({str(checkout)!r}), (), 1, 1.0).library().__file__)\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_package_of_the_checkout_takes_the_place_of_crypten(tmp_path: Path) -> None:
    checkout = stand_in(tmp_path / "shaft")
    done = imported(checkout)
    assert Path(done.stdout.strip()) == checkout / "crypten" / "__init__.py", done.stderr
    (tmp_path / "empty").mkdir()
    failed = imported(tmp_path / "empty")
    assert failed.returncode == 1
    assert "ImportError: crypten comes from" in failed.stderr


@pytest.mark.end_to_end
def test_without_a_checkout_the_published_figures_are_scaled_and_named_so(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = CliRunner().invoke(app, [*BENCH, "--repeats", "1", "--input", "shared", "--json", str(file)])
    assert done.exit_code == 0, done.output
    figures = check_output(file, "bench-blocks")
    row, here = figures["shaft"], figures["crypten"]["online_seconds"]
    assert row["scale"] == pytest.approx(here / shaft.CRYPTEN_SECONDS)
    assert row["sustained_seconds"] / here == pytest.approx(shaft.SECONDS / shaft.CRYPTEN_SECONDS)
    assert row["total"] == {"bytes": shaft.BYTES, "rounds": shaft.ROUNDS}
    assert figures["checkout"] is None
    text = " ".join(done.output.split())
    assert "SHAFT was not run, as no --checkout is given" in text
    assert f"multiplied by {row['scale']:.2f}" in text


@pytest.mark.end_to_end
@pytest.mark.skipif(CHECKOUT is None, reason="TACIT_SHAFT_CHECKOUT names no checkout of SHAFT")
def test_shaft_runs_beside_crypten_from_its_checkout(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = ["--checkout", str(CHECKOUT), "--model", "vit_small_patch32_224", "--repeats", "1", "--json", str(file)]
    done = CliRunner().invoke(app, [*BENCH, *options])
    assert done.exit_code == 0, done.output
    assert "SHAFT was not run" not in done.output
    figures = check_output(file, "bench-blocks")
    row = figures["shaft"]
    assert row["scale"] is None
    # Its count does not depend on the number of tokens; CrypTen's, which is loaded in every process too, is another.
    assert row["rounds"] == shaft.ROUNDS
    assert figures["crypten"]["rounds"] < row["rounds"]
    assert row["total"]["bytes"] > figures["crypten"]["total"]["bytes"]
    assert set(row["peak_bytes"]) == {"model-owner", "data-owner"}
    # Wrong functions are wrong by all of it; its own error is that of inverse roots far from 1.
    assert row["relative_error"] < 0.6

"""Every wrong input is one line on standard error, without a traceback, with the documented exit status."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result

from tacit.cli.output import outcome
from tacit.parties.runs.directory import mark_release
from tacit.parties.runs.experiment import Experiment, parse
from tests.cli.command import Invoke, WriteExperiment
from tests.simulate.conftest import summed_up


def complaint(result: Result, status: int = 2) -> str:
    assert result.exit_code == status, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("tacit: ")
    assert "Traceback" not in result.output
    return line.removeprefix("tacit: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[federation]\nclient = 3", "federation.client = 3: there is no such key; did you mean federation.clients?"),
        ('[federation]\nrounds = "ten"', 'federation.rounds = "ten": expected an integer from 1 to 100000'),
        ("[aggregation]\nclip = 2.0", "aggregation.clip = 2.0: [policy] accepts at most 1.0"),
        ("rounds", "is not TOML"),
        ("\xff", "is not UTF-8 text"),
    ],
    ids=["unknown key", "wrong type", "contradiction", "no TOML", "no UTF-8"],
)
def test_a_bad_experiment_file(tacit: Invoke, tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="latin-1")
    line = complaint(tacit("simulate", file, "--out", tmp_path / "run"))
    assert line.startswith(f"{file}: {expected}")
    assert not (tmp_path / "run").exists()


def test_a_name_that_leads_out_of_the_folder_of_runs(
    tacit: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("bad.toml").write_text('name = "x/../../../escape"')
    assert complaint(tacit("simulate", "bad.toml")).startswith(
        'bad.toml: name = "x/../../../escape": it is part of the'
    )
    assert [path.name for path in tmp_path.rglob("*")] == ["work", "bad.toml"]


@pytest.mark.parametrize("command", ["simulate", "distill"])
def test_a_model_that_no_memory_holds(tacit: Invoke, tmp_path: Path, command: str) -> None:
    (tmp_path / "huge.toml").write_text(
        "[policy]\nlargest_model = 1000000000000\n[model]\nwidth = 8192\ndepth = 128\nmlp_ratio = 4.0"
    )
    line = complaint(tacit(command, tmp_path / "huge.toml", "--out", tmp_path / "run"))
    assert line.startswith("model.width = 8192, model.depth = 128: 103,094 million parameters take at least ")
    assert line.endswith(" GB are available; take a smaller model, or a larger machine")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--clients", 1], "command line: federation.clients = 1: expected an integer from 2 to 1000"),
        (["--clients", 2], "command line: federation.clients = 2: [policy] accepts at least 3"),
        (["--rounds", 0], "command line: federation.rounds = 0: expected an integer from 1 to 100000"),
        (["--seed", -1], "command line: federation.seed = -1: expected an integer from 0 to 9223372036854775807, or"),
        (["--device", "tpu"], "--device tpu: choose cpu or cuda"),
        (["--seeds", "1,0"], "--seeds 1,0: every seed once, in ascending order"),
        (["--seeds", "0,1", "--seed", 1], "--seeds makes a run of its own for every seed: leave out --seed"),
        (["--seeds", "0", "--rounds", 0], "command line: federation.rounds = 0: expected an integer from 1 to 100000"),
    ],
)
def test_a_bad_option(tacit: Invoke, tmp_path: Path, arguments: list[object], expected: str) -> None:
    line = complaint(tacit("simulate", *arguments, "--out", tmp_path / "run"))
    assert line.startswith(expected)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "arguments", "expected"),
    [
        ("simulate", ["--rounds", "many"], "invalid value for '--rounds': "),
        ("simulate", ["--colour"], "no such option: --colour"),
        ("simulate", ["one.toml", "two.toml"], "got unexpected extra argument"),
        ("", ["simulat"], "no such command 'simulat'"),
        ("bench", ["ckks"], "no such command 'ckks'"),
        ("report", [], "missing argument 'DIR'"),
        ("data inspect", ["--alpha", "x"], "invalid value for '--alpha': "),
        ("bench secagg", ["--clients", "1"], "invalid value for '--clients': "),
        ("config", ["--party", "nobody"], "invalid value for '--party': "),
    ],
)
def test_arguments_that_are_none(tacit: Invoke, command: str, arguments: list[str], expected: str) -> None:
    """In the one style of all refusals; the rest of the reason is the parser's."""
    words = command.split()
    line = complaint(tacit(*words, *arguments))
    assert line.startswith(expected)
    assert line.endswith(f"; `{' '.join(['tacit', *words])} --help` lists what there is")


def test_an_output_directory_in_use(tacit: Invoke, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("run", "file"):
        path = tmp_path / name
        line = complaint(tacit("simulate", "--out", path))
        assert line.startswith(f"{path} exists already: choose another directory with --out, or continue that run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_resuming_a_damaged_run(
    tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment, content: bytes
) -> None:
    write_experiment(tmp_path / "experiment.toml")
    (tmp_path / "model.safetensors").write_bytes(content)
    mark_release(tmp_path)
    line = complaint(tacit("simulate", "--resume", tmp_path))
    assert line.startswith(f"{tmp_path}/model.safetensors is no model of a run (")
    assert line.endswith("): restore it, or start anew")


@pytest.mark.end_to_end
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_cuda_where_there_is_none(tacit: Invoke, tmp_path: Path, write_experiment: WriteExperiment) -> None:
    file = write_experiment(tmp_path / "small.toml")
    line = complaint(tacit("simulate", file, "--device", "cuda", "--out", tmp_path / "run"))
    assert line == "server: no CUDA device here; use --device cpu"
    assert not (tmp_path / "run").exists()


def test_the_printed_configuration_is_the_default(tacit: Invoke) -> None:
    result = tacit("config")
    assert result.exit_code == 0
    assert parse(result.stdout, "config") == Experiment()


def test_what_is_asked_first_loads_nothing_slow() -> None:
    """Help must answer at once; the file it would need most is torch, which takes seconds."""
    slow = {"torch", "timm", "sklearn", "crypten", "numpy", "zmq"}
    program = (
        "import sys\n"
        "from tacit.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        f"    print('loaded', sorted({slow!r} & sys.modules.keys()), file=sys.stderr)\n"
    )
    asked = [sys.executable, "-c", program, "simulate", "--help"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "loaded []"
    assert done.stdout


def test_a_run_without_enough_clients_names_the_key_that_says_how_long_they_are_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = "only 0 clients are there; a round takes at least 3"
    assert outcome(summed_up(ended=ended), Path("run")).exit_code == 3
    assert capsys.readouterr().err == (
        f"tacit: 0 of 2 rounds were completed; {ended} (clients are waited for as long as deadlines.join says, 60 s); "
        "see run/report.html\n"
    )

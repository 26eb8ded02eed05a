"""docs/api.md lists the public names, and its examples run."""

from __future__ import annotations

import csv
import doctest
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import write_roster
from tacit.protocol.core.roster import Roster
from tests.cases import cases
from tests.cli.hosts import Process, free_port

DOCS = Path(__file__).parent.parent.parent / "docs"
EXAMPLES = DOCS / "examples"
PAGE = (DOCS / "api.md").read_text(encoding="utf-8")
NAMES = ("server", "client-1", "client-2", "client-3")


@cases("package", ["simulate", "parties", "protocol"])
def test_the_page_lists_what_is_public(package: str) -> None:
    (row,) = re.findall(rf"^\| `tacit\.{package}` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    door = importlib.import_module(f"tacit.{package}")
    version = {"__version__"} if package == "protocol" else set()
    assert set(re.findall(r"`(\w+)`", row)) == set(door.__all__) | version
    for name in door.__all__:
        assert (getattr(door, name).__doc__ or "").strip()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        door.nothing  # noqa: B018


def test_every_example_is_named() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(re.findall(r"\(examples/(\w+\.py)\)", PAGE))


def test_the_sum_in_one_line_is_what_the_page_says() -> None:
    (block,) = (found for found in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if ">>>" in found)
    test = doctest.DocTestParser().get_doctest(block, {}, "api.md", "api.md", 0)
    assert doctest.DocTestRunner().run(test).failed == 0


def example(name: str, *arguments: str, folder: Path) -> Process:
    return Process.of([sys.executable, str(EXAMPLES / name), *arguments], folder)


def test_a_sum_between_clients_on_three_ports(tmp_path: Path) -> None:
    ports = [str(free_port()) for _ in range(3)]
    vectors = (("1.5", "2", "3"), ("4", "5", "6"), ("7", "8", "9.5"))
    clients = [
        example("secure_sum.py", "client", name, port, *vector, folder=tmp_path)
        for name, port, vector in zip(("ann", "bob", "cid"), ports, vectors, strict=True)
    ]
    server = example("secure_sum.py", "server", *ports, folder=tmp_path)
    assert server.end() == 0, server.everything
    assert [client.end() for client in clients] == [0, 0, 0]
    assert [client.said for client in clients] == [[f"{name}: Contributed"] for name in ("ann", "bob", "cid")]
    found = re.findall(r"[\d.]+", server.said[-1])
    assert np.abs(np.array(found, float) - (12.5, 15.0, 18.5)).max() < 1e-3


def accuracy(done: Process) -> float:
    assert done.end() == 0, done.everything
    (found,) = re.findall(r"accuracy ([\d.]+) after \d+ rounds", done.everything)
    return float(found)


@pytest.mark.end_to_end
def test_an_mlp_learns_images_as_mnist_has_them(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = (digits.images * 15.9).astype(np.uint8), digits.target
    np.savez(tmp_path / "mnist.npz", x_train=x[:1400], y_train=y[:1400], x_test=x[1400:], y_test=y[1400:])
    assert accuracy(example("mlp.py", "mnist.npz", folder=tmp_path)) > 0.4
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "report.html").is_file()


@pytest.mark.exhaustive
@pytest.mark.end_to_end
def test_a_model_of_timm_goes_through_a_loop_of_its_own(tmp_path: Path) -> None:
    assert accuracy(example("timm_loop.py", "3", folder=tmp_path)) > 0.15


@pytest.mark.end_to_end
def test_lora_on_a_model_of_timm_is_resumed_and_loaded_into_timm(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed (extra dev)")
    assert len((EXAMPLES / "lora.py").read_text().splitlines()) <= 40
    done = example("lora.py", folder=tmp_path)
    assert accuracy(done) > 0.15
    assert [line.split()[0] for line in done.said if "loss" in line] == ["3", "4", "5"]
    assert len(list(csv.DictReader((tmp_path / "runs" / "lora" / "rounds.csv").open()))) == 5


@pytest.mark.exhaustive
@pytest.mark.end_to_end
def test_the_same_functions_between_hosts(tmp_path: Path) -> None:
    keys = {name: generate(name) for name in NAMES}
    roster = Roster(tuple(own.member("server" if name == "server" else "client") for name, own in keys.items()))
    address = f"tcp://127.0.0.1:{free_port()}"
    hosts = {}
    for number, (name, own) in enumerate(keys.items()):
        folder, role = tmp_path / name, "server" if name == "server" else "client"
        folder.mkdir()
        save(own, folder, role="server" if name == "server" else "client")
        write_roster(roster, folder / "roster.toml")
        listens = "bind" if name == "server" else "connect"
        (folder / "party.toml").write_text(f'role = "{role}"\nkey = "{name}.key"\n{listens} = "{address}"\n')
        x = np.random.default_rng(number).normal(size=(30, 4)).astype(np.float32)
        np.savez(folder / "own.npz", x=x, y=(x.sum(1) > 0).astype(np.int64))
        hosts[name] = example("between_hosts.py", role, "party.toml", folder=folder)
    assert [host.end() for host in hosts.values()] == [0] * 4, [host.everything for host in hosts.values()]
    assert hosts["server"].said[-1].startswith("2 rounds, in ")
    assert {hosts[name].said[-1] for name in NAMES[1:]} == {"the federation is finished"}

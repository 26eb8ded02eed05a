"""The tutorials between hosts, word for word: hosts' folders, their commands, and a stand-in for scp."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parent)
    from hosts import free_port

pytestmark = pytest.mark.end_to_end

PAGE = Path(__file__).parents[2] / "docs" / "hosts.md"
MODEL_OWNER = PAGE.with_name("tutorials") / "model-owner.md"
INFERENCE = re.compile(r"^## Private inference between hosts$.*?(?=^## )", re.M | re.S)
ADAPTATION = re.compile(r"^## Adapting a model between hosts$.*?(?=^## )", re.M | re.S)
PREDICTION = re.compile(r"^## Asking with what was learned$.*?(?=^## )", re.M | re.S)
BLOCK = re.compile(
    r"^On `(?P<host>[a-z-]+)`(?P<how>, at the same time|, in the background)?:\n\n"
    r"```sh\n(?P<commands>.*?)```$",
    re.M | re.S,
)
SCP = """#!/bin/sh -e
# scp FILE HOST:PLACE between folders that stand for hosts.
exec cp "$1" "$HOSTS/${2%%:*}/${2#*:}"
"""
SECONDS = 400


class Hosts:
    def __init__(self, path: Path, *addresses: str) -> None:
        self.path = path
        tools = path / "tools"
        tools.mkdir()
        (tools / "scp").write_text(SCP)
        (tools / "scp").chmod(0o755)
        self._environment = {
            **os.environ,
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOSTS": str(path),
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
            **{name: f"127.0.0.1:{free_port()}" for name in addresses},
            # What timm has downloaded before; there is no network.
            "HF_HOME": str(path / "hub"),
            "HF_HUB_OFFLINE": "1",
        }
        self.together: list[subprocess.Popen[str]] = []
        self.background: list[subprocess.Popen[str]] = []
        self._outputs: dict[int, Path] = {}
        """By process, the file of what it says on stdout; beside it, with the suffix .err, that of stderr."""

    def play(self, text: str) -> str:
        """Run all commands of a text, those in the background until the others have ended; what was said."""
        blocks = list(BLOCK.finditer(text))
        assert len(blocks) == text.count("```sh\n")
        said = ""
        for block in blocks:
            (self.path / block["host"]).mkdir(exist_ok=True)
        for block in blocks:
            host, commands = block["host"], block["commands"]
            if block["how"]:
                row = self.background if "background" in block["how"] else self.together
                row += [self._start(command, host) for command in commands.splitlines()]
                continue
            said += self._finish()
            self.together.append(self._start(commands, host))
            said += self._finish()
            # What people send each other as lines.
            self._environment["CARDS"] = "\n".join(re.findall("^tacit-card:.*$", said, re.M))
            self._environment["ROSTER"] = "".join(re.findall("^tacit-roster:.*$", said, re.M)[-1:])
        return said

    def stop(self, number: signal.Signals) -> list[int]:
        for process in (*self.together, *self.background):
            if process.returncode is None:
                process.send_signal(number)
                process.wait(timeout=SECONDS)
        return [process.returncode for process in self.background]

    def _start(self, command: str, host: str) -> subprocess.Popen[str]:
        # One command takes the shell's place, and gets its signals.
        shell = ["sh", "-e", "-c", command if "\n" in command else f"exec {command}"]
        out = self.path / "tools" / f"{len(self._outputs)}.out"
        with out.open("w") as stdout, out.with_suffix(".err").open("w") as stderr:
            process = subprocess.Popen(
                shell, cwd=self.path / host, env=self._environment, stdout=stdout, stderr=stderr, text=True
            )
        self._outputs[process.pid] = out
        return process

    def _finish(self) -> str:
        """Wait until the commands at the same time have ended; what they said.

        None may fail, and none in the background may end: the others would wait for it, an hour at times."""
        ends = {os.pidfd_open(process.pid): process for process in (*self.together, *self.background)}
        end, waiting = time.monotonic() + SECONDS, list(self.together)
        try:
            while waiting:
                ready, _, _ = select.select([*ends], [], [], max(end - time.monotonic(), 0))
                ended = [ends.pop(descriptor) for descriptor in ready if not os.close(descriptor)]
                waiting = [process for process in waiting if process not in ended]
                failed = [each for each in ended if each.wait() or each in self.background]
                if failed or not ready:
                    # Who has waited in vain shows where.
                    self.stop(signal.SIGTERM if failed else signal.SIGABRT)
                    pytest.fail("\n".join(map(self._log, (*self.together, *self.background))))
        finally:
            for descriptor in ends:
                os.close(descriptor)
        said = "".join(self._outputs[process.pid].read_text() for process in self.together)
        self.together.clear()
        return said

    def _log(self, process: subprocess.Popen[str]) -> str:
        out = self._outputs[process.pid]
        said = out.read_text() + out.with_suffix(".err").read_text()
        return f"{process.args!r} ended with {process.returncode}:\n{said}"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path, "SERVER", "LAB", "NOTARY", "SUMS")
    try:
        yield made
    finally:
        made.stop(signal.SIGKILL)


def fingerprints(said: str) -> list[str]:
    return re.findall(r"^fingerprint (.*)$", said, re.M)


@pytest.mark.smoke
def test_the_commands_of_the_tutorial(hosts: Hosts) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for other in (INFERENCE, ADAPTATION, PREDICTION):
        text = other.sub("", text)
    said = hosts.play(text)
    (first, *later), shown = fingerprints(said), re.findall(r"roster (\d{5}(?: \d{5}){7})$", said, re.M)
    assert (len(set(later)), len(later)) == (3, 3)
    assert first not in later
    assert shown == 4 * [first]
    names = {"ward-a", "ward-b", "ward-c", "ward-d"}
    assert {path.parent.parent.name for path in hosts.path.glob("*/client/party.toml")} == names
    for host in names:
        assert {path.name for path in (hosts.path / host).rglob("*.key")} <= {f"{host}.key", "server.key", "office.key"}


@pytest.mark.smoke
def test_the_commands_of_private_inference(hosts: Hosts) -> None:
    (section,) = INFERENCE.findall(PAGE.read_text(encoding="utf-8"))
    said = hosts.play(section)
    assert len(fingerprints(said)) == 3
    assert len(set(fingerprints(said))) == 1
    answers = json.loads((hosts.path / "clinic" / "answers.json").read_bytes())
    assert len(answers["images"]) == 360
    assert "360 images, " in said
    assert {path.name for path in hosts.path.rglob("*.key")} == {"lab.key", "notary.key", "clinic.key"}
    for host in ("lab", "notary", "clinic"):
        assert [path.name for path in (hosts.path / host).glob("*.key")] == [f"{host}.key"]
    assert hosts.stop(signal.SIGTERM) == [130, 130]


@pytest.mark.smoke
def test_the_commands_of_an_adaptation_and_of_its_predictions(hosts: Hosts) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (section,) = ADAPTATION.findall(text)
    said = hosts.play(section)
    assert len(fingerprints(said)) == 5
    assert len(set(fingerprints(said))) == 1
    clinics = ("clinic-a", "clinic-b", "clinic-c")
    learned = json.loads((hosts.path / "clinic-a" / "learned.json").read_bytes())
    assert (learned["round"], learned["planned"]) == (2, 2)
    assert [row["owners"] for row in learned["rounds"]] == [3, 3]
    assert len({(hosts.path / name / "state" / "adapters.safetensors").read_bytes() for name in clinics}) == 1
    for host in ("lab", "notary", *clinics):
        assert [path.name for path in (hosts.path / host).glob("*.key")] == [f"{host}.key"]
    assert hosts.stop(signal.SIGTERM) == [130]
    hosts.background.clear()
    (section,) = PREDICTION.findall(text)
    said = hosts.play(section)
    answers = json.loads((hosts.path / "clinic-a" / "answers.json").read_bytes())
    assert (len(answers["images"]), answers["classes"]) == (360, learned["classes"])
    assert answers["weights"] == learned["weights"]
    assert "360 images; the adapters after round 2 are known" in said
    assert hosts.stop(signal.SIGTERM) == [130, 130]


def put_weights(hub: Path) -> None:
    """Random weights in the place of the pretrained ones of vit_tiny_patch16_224, as the hub keeps a download."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        model = timm.create_model("vit_tiny_patch16_224")
        model.head.weight.normal_(std=0.1)
    folder = hub / "hub" / f"models--{model.pretrained_cfg['hf_hub_id'].replace('/', '--')}"
    (folder / "snapshots" / "1").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1")
    save_file(model.state_dict(), folder / "snapshots" / "1" / "model.safetensors")


def put_images(folder: Path, count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        blocks = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(blocks).resize((240, 230)).save(folder / f"{number}.png")


def test_the_commands_of_the_model_owner(hosts: Hosts) -> None:
    put_weights(hosts.path / "hub")
    put_images(hosts.path / "lab" / "typical", 3, seed=1)
    put_images(hosts.path / "clinic" / "photos", 2, seed=2)
    said = hosts.play(MODEL_OWNER.read_text(encoding="utf-8"))
    assert (len(fingerprints(said)), len(set(fingerprints(said)))) == (4, 1)
    assert json.loads((hosts.path / "lab" / "rehearsal.json").read_bytes())
    answers = json.loads((hosts.path / "clinic" / "answers.json").read_bytes())
    assert len(answers["classes"]) == 1000
    assert [image["refused"] for image in answers["images"]] == [False, False]
    assert not list((hosts.path / "clinic").rglob("*.safetensors"))
    assert hosts.stop(signal.SIGTERM) == [130, 130]


@pytest.mark.smoke
def test_a_first_round_takes_eight_commands_and_one_file() -> None:
    section = re.search(r"^## The first round$.*?(?=^Afterwards, or meanwhile:$)", PAGE.read_text("utf-8"), re.M | re.S)
    assert section is not None
    text = "".join(block["commands"] for block in BLOCK.finditer(section[0]))
    written = re.findall(r"^cat > .*?^EOF$\n", text, re.M | re.S)
    assert len(written) == 1
    assert len(text.replace(written[0], "").splitlines()) <= 8

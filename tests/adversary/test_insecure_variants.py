"""Variants that give the model away are for simulation alone: no file of a host asks for them, and a peer that offers
them is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tacit.parties.hosting.party_file import PartyFileError, read_any
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.data_owner import InferenceRequest
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.results import InferenceEnded
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.inference import MODEL_OWNER, MemoryInference, data_owner_names

(DATA_OWNER,) = data_owner_names(1)
OWNER = 'role = "model-owner"\nkey = "m.key"\nbind = "tcp://0.0.0.0:7009"\ndealer = "tcp://d:7008"\nmodel = "student"\n'
ASKER = (
    'role = "data-owner"\nkey = "a.key"\nmodel_owner = "tcp://m:7009"\ndealer = "tcp://d:7008"\nimages = "images"\n'
    "[data]\n"
)
TEACHES = OWNER + '[adaptation]\nclasses = ["a", "b"]\n'
LEARNS = ASKER + '[adaptation]\nsums = "tcp://d:7010"\n'


def offering(run: MemoryInference, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]) -> InferenceEnded | None:
    """How the session with a model owner whose terms have these fields more ends for the data owner."""
    begin = InferenceModelOwner.__init__

    def offer(machine: InferenceModelOwner, *given: Any, **named: Any) -> None:
        begin(machine, *given, **named)
        machine._encoded = msgpack.packb(msgpack.unpackb(machine._encoded) | fields)

    with monkeypatch.context() as patch:
        patch.setattr(InferenceModelOwner, "__init__", offer)
        return run.run().ended(DATA_OWNER)


@pytest.mark.threat("data-owner/known-input")
@pytest.mark.parametrize(
    ("file", "key"),
    [
        (OWNER, 'input = "known"'),
        (OWNER + "[policy]\n", "known = true"),
        (ASKER.replace("[data]\n", ""), 'input = "known"'),
        (ASKER.replace("[data]", "[policy]"), 'inputs = ["known", "shared"]'),
    ],
)
def test_no_file_of_a_host_asks_for_the_input_of_blocks(tmp_path: Path, file: str, key: str) -> None:
    path = tmp_path / "party.toml"
    path.write_text(file)
    read_any(path)
    path.write_text(f"{file}{key}\n")
    place = "policy." if "[policy]" in file else ""
    with pytest.raises(PartyFileError, match=re.escape(f"party.toml: {place}{key}: there is no such key")):
        read_any(path)


@pytest.mark.threat("data-owner/known-input")
@pytest.mark.parametrize("mode", ["known", "shared"])
def test_terms_that_speak_of_the_input_of_blocks_are_refused(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    asking = MemoryInference({DATA_OWNER: InferenceRequest(images=1, batch=1, channels=1, side=4)})
    learning = MemoryAdaptation({DATA_OWNER: round_plan(1, [DATA_OWNER])})
    for run in (asking, learning):
        ended = offering(run, monkeypatch, {"input": mode})
        assert ended is not None
        assert (ended.code, ended.culprit) == (Code.MALFORMED, MODEL_OWNER)


@pytest.mark.threat("data-owner/permuted-blocks")
def test_no_file_of_a_host_asks_for_outputs_of_blocks(tmp_path: Path) -> None:
    path = tmp_path / "party.toml"
    for text in (TEACHES, LEARNS):
        path.write_text(text)
        read_any(path)
        for key in ('reveal = "all"', 'reveal = "sampled"', 'selection = "enrolment"'):
            path.write_text(f"{text}{key}\n")
            with pytest.raises(PartyFileError, match=f"adaptation.{key}: there is no such key"):
                read_any(path)


@pytest.mark.threat("data-owner/permuted-blocks")
@pytest.mark.parametrize("fields", [{"reveal": "all"}, {"reveal": "sampled"}, {"selection": "enrolment"}])
def test_terms_that_reveal_outputs_of_blocks_are_refused(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, str]
) -> None:
    ended = offering(MemoryAdaptation({DATA_OWNER: round_plan(1, [DATA_OWNER])}), monkeypatch, fields)
    assert ended is not None
    assert (ended.code, ended.culprit) == (Code.MALFORMED, MODEL_OWNER)

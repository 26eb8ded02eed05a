"""Variants that give the model away are for simulation alone: no file of a host asks for them, and a peer that offers
them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from tacit.parties.hosting.party_file import PartyFileError, read_any
from tacit.protocol.adaptation.model_owner import LearningModelOwner
from tacit.protocol.core.errors import Code
from tacit.simulate.world.adaptation import MemoryAdaptation, round_plan
from tacit.simulate.world.inference import MODEL_OWNER, data_owner_names

(DATA_OWNER,) = data_owner_names(1)
OWNER = 'role = "model-owner"\nkey = "m.key"\nbind = "tcp://0.0.0.0:7009"\ndealer = "tcp://d:7008"\nmodel = "student"\n'
ASKER = (
    'role = "data-owner"\nkey = "a.key"\nmodel_owner = "tcp://m:7009"\ndealer = "tcp://d:7008"\nimages = "images"\n'
    "[data]\n"
)
TEACHES = OWNER + '[adaptation]\nclasses = ["a", "b"]\n'
LEARNS = ASKER + '[adaptation]\nsums = "tcp://d:7010"\n'


class Offering(MemoryAdaptation):
    """A model owner whose terms have more fields."""

    fields: dict[str, Any]

    def serve(self, data_owner: str) -> LearningModelOwner:
        machine = super().serve(data_owner)
        machine._encoded = msgpack.packb(msgpack.unpackb(machine._encoded) | self.fields)
        return machine


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
def test_terms_that_reveal_outputs_of_blocks_are_refused(fields: dict[str, str]) -> None:
    run = Offering({DATA_OWNER: round_plan(1, [DATA_OWNER])})
    run.fields = fields
    ended = run.run().ended(DATA_OWNER)
    assert ended is not None
    assert (ended.code, ended.culprit) == (Code.MALFORMED, MODEL_OWNER)

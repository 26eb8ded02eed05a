"""Version 2 of the wire is frozen: its vectors stay as they are, and further ones may come beside them.

A change of what federation, secure sum or group key say, or compute, is another version, with vectors of its own.
Private inference is open, and protections are not part of the wire.
"""

import json
from hashlib import sha256
from pathlib import Path

import pytest

FROZEN = json.loads(Path(__file__).with_name("frozen.json").read_text(encoding="utf-8"))
VECTORS = Path(__file__).parents[1] / "vectors"


def digest_of(name: str) -> str:
    """Of what is computed in a file, and not of the words about it."""
    operations = json.loads((VECTORS / name).read_bytes())["operations"]
    return sha256(json.dumps(operations, sort_keys=True).encode()).hexdigest()


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_vector_stays_as_it_is(name: str) -> None:
    assert digest_of(name) == FROZEN[name], (
        f"{name} is part of version 2 of the wire, which is frozen: what changes it is a later version"
    )


def test_what_is_frozen_is_all_that_parties_of_federations_say() -> None:
    protocols = {json.loads((VECTORS / name).read_bytes())["protocol"] for name in FROZEN}
    assert protocols == {"federation", "secure sum", "group key"}
    assert len(FROZEN) >= 300

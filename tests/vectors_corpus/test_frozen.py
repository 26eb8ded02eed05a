"""Version 2 of the wire is frozen: its vectors stay as they are, and further ones may come beside them.

A change of what federation, secure sum or group key say, or compute, is another version, with vectors of its own.
Private inference is open, and protections are not part of the wire.
"""

from tests.cases import cases
from tests.vectors_corpus.frozen import FROZEN, digest_of, protocol_of


@cases("name", FROZEN)
def test_a_frozen_vector_stays_as_it_is(name: str) -> None:
    assert digest_of(name) == FROZEN[name], (
        f"{name} is part of version 2 of the wire, which is frozen: what changes it is a later version"
    )


def test_what_is_frozen_is_all_that_parties_of_federations_say() -> None:
    assert {protocol_of(name) for name in FROZEN} == {"federation", "secure sum", "group key"}
    assert len(FROZEN) >= 300

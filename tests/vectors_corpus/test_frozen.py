"""What is frozen of the wire: its vectors stay as they are, and further ones may come beside them.

A change of what a frozen protocol says, or computes, is another version, with vectors of its own.
"""

from tests.vectors_corpus.frozen import FROZEN, digest_of


def test_frozen_vectors_stay_as_they_are() -> None:
    changed = [name for name, digest in FROZEN.items() if digest_of(name) != digest]
    assert changed == [], "these are of a frozen version of the wire: what changes them is a later version"

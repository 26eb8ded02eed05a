"""The file in which a party keeps what clients state of their spending."""

from pathlib import Path

import pytest

from tacit.parties.links.keys import encode_key
from tacit.parties.session.spending import SpendingFile, SpendingFileError

KEYS = [bytes([number]) * 32 for number in (1, 2)]
LINEAGE, OTHER = bytes(32), b""


def test_statements_are_kept_by_lineage_and_key(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    for number, key in enumerate(KEYS):
        SpendingFile(path).keep(LINEAGE, {key: bytes([number]) * 72})
    SpendingFile(path).keep(OTHER, {KEYS[0]: bytes(72)})
    SpendingFile(path).keep(LINEAGE, {KEYS[0]: b"\x09" * 72})
    assert SpendingFile(path).held(LINEAGE) == {KEYS[0]: b"\x09" * 72, KEYS[1]: bytes([1]) * 72}
    assert SpendingFile(path).held(OTHER) == {KEYS[0]: bytes(72)}
    assert SpendingFile(tmp_path / "none.json").held(LINEAGE) == {}


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spending.json"
    for content in (b"{", b'{"": {"short": "aGk="}}', b'{"": {"%s": "aGk="}}' % encode_key(KEYS[0]).encode()):
        path.write_bytes(content)
        with pytest.raises(SpendingFileError, match=r"spending\.json cannot be read .* restore it, or remove it"):
            SpendingFile(path).held(OTHER)

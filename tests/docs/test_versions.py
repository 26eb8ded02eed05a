"""The signed list of the wire's versions: who signed it, and that frozen versions are still what it says."""

import json
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from docs.generate.versions import LIST, SIGNATURE, public_key, versions, write_signed

ROOT = Path(__file__).parents[2]
SPECIFICATION = ROOT / "docs" / "spec"
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def stored(key: Ed25519PrivateKey, directory: Path) -> Path:
    file = directory / "release.key"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


def page_of(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def test_the_list_is_signed_by_the_key_that_the_page_names() -> None:
    listed, signature = (SPECIFICATION / LIST).read_bytes(), (SPECIFICATION / SIGNATURE).read_bytes()
    public_key(PAGE).verify(signature, listed)
    with pytest.raises(InvalidSignature):
        public_key(PAGE).verify(signature, listed.replace(b'"frozen"', b'"open"'))


def test_what_was_frozen_in_a_release_is_so_still() -> None:
    # What was open may have changed since: only at a release are both lists the same.
    listed = json.loads((SPECIFICATION / LIST).read_bytes())["versions"]
    frozen = [row for row in listed if row["state"] == "frozen"]
    assert [row["version"] for row in frozen] == [2]
    assert [row for row in frozen if row not in versions()["versions"]] == []


def test_numbers_are_those_of_one_series() -> None:
    numbers = [row["version"] for row in versions()["versions"]]
    assert len(set(numbers)) == len(numbers)


def test_a_list_is_written_with_its_signature(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    write_signed(tmp_path, stored(key, tmp_path), page_of(key))
    listed = (tmp_path / LIST).read_bytes()
    assert json.loads(listed) == versions()
    key.public_key().verify((tmp_path / SIGNATURE).read_bytes(), listed)


def test_another_key_than_that_of_the_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"release\.key is not the private key of the public key in SECURITY\.md"):
        write_signed(tmp_path, stored(Ed25519PrivateKey.generate(), tmp_path), PAGE)
    assert not (tmp_path / LIST).exists()

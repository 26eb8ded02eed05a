"""The list of the wire's versions: signed in a release, and up to date between releases."""

import json
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from docs.generate.versions import LIST, SIGNATURE, public_key, versions, write_signed, write_unsigned

ROOT = Path(__file__).parents[2]
SPECIFICATION = ROOT / "docs" / "spec"
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def stored(key: Ed25519PrivateKey, directory: Path) -> Path:
    file = directory / "release.key"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


def page_of(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def test_the_list_is_that_of_this_tree_and_a_released_one_is_signed() -> None:
    content, signature = (SPECIFICATION / LIST).read_bytes(), SPECIFICATION / SIGNATURE
    listed, signed = json.loads(content), signature.exists()
    assert listed == versions(released=signed), "run `python -m docs.generate.versions docs/spec`"
    if not signed:
        assert listed["release"] is None
        return
    public_key(PAGE).verify(signature.read_bytes(), content)
    with pytest.raises(InvalidSignature):
        public_key(PAGE).verify(signature.read_bytes(), content + b" ")


def test_numbers_are_those_of_one_series() -> None:
    numbers = [row["version"] for row in versions(released=False)["versions"]]
    assert len(set(numbers)) == len(numbers)
    assert 2 not in numbers, "that was the federation of release 0.2.0, and is frozen"


def test_a_list_is_written_with_its_signature(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    write_signed(tmp_path, stored(key, tmp_path), page_of(key))
    listed = (tmp_path / LIST).read_bytes()
    assert json.loads(listed) == versions(released=True)
    key.public_key().verify((tmp_path / SIGNATURE).read_bytes(), listed)
    write_unsigned(tmp_path)
    assert json.loads((tmp_path / LIST).read_bytes()) == versions(released=False)
    assert not (tmp_path / SIGNATURE).exists()


def test_another_key_than_that_of_the_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"release\.key is not the private key of the public key in SECURITY\.md"):
        write_signed(tmp_path, stored(Ed25519PrivateKey.generate(), tmp_path), PAGE)
    assert not (tmp_path / LIST).exists()

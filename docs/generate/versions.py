"""The versions of the wire, as a list that the maintainers sign when they make a release.

`python -m docs.generate.versions DIRECTORY KEY` writes versions.json and versions.json.sig, the Ed25519 signature
(RFC 8032) of its bytes by the key in the file KEY (PEM, PKCS 8, without a passphrase). SECURITY.md has the public key,
and how to check. Without KEY the list is that between releases: it names no release, has no digests of open versions,
which change, and no signature.

The digest of a version is over its vectors, as lines `NAME DIGEST` in the order of their names, with the digests of
tests/vectors_corpus/frozen.py. A frozen version counts those that were there when it was frozen, so its digest stays.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from tacit.protocol import __version__
from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.messages import Kinds
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tests.vectors_corpus.frozen import FROZEN, VECTORS, digest_of, protocol_of

LIST: Final = "versions.json"
SIGNATURE: Final = "versions.json.sig"

_VECTORS: Final[tuple[tuple[Kinds, frozenset[str]], ...]] = (
    (MESSAGES, frozenset({"federation", "secure sum", "group key"})),
    (INFERENCE_MESSAGES, frozenset({"private inference"})),
    (ADAPTATION_MESSAGES, frozenset({"double-blind adaptation"})),
)
"""What is spoken on a link, and the protocols of its vectors."""


def versions(*, released: bool) -> dict[str, Any]:
    """The list as versions.json has it, of a release or between two of them."""
    there = sorted(path.name for path in VECTORS.glob("*.json") if path.name != "schema.json")
    protocols = {name: protocol_of(name) for name in there}
    rows = []
    for kinds, headings in _VECTORS:
        frozen = [name for name in FROZEN if protocols[name] in headings]
        names = frozen or [name for name in there if protocols[name] in headings]
        state = "frozen" if frozen else "open"
        row = {"version": kinds.version, "protocol": kinds.protocol, "state": state}
        rows.append(row | ({"vectors": len(names), "digest": _digest(names)} if released or frozen else {}))
    return {"release": __version__ if released else None, "versions": rows}


def _digest(names: Iterable[str]) -> str:
    return sha256("".join(f"{name} {digest_of(name)}\n" for name in sorted(names)).encode()).hexdigest()


def public_key(page: str) -> Ed25519PublicKey:
    """The one public key on a page. ValueError if there is none, several, or one of another kind."""
    found = re.findall(r"-----BEGIN PUBLIC KEY-----\n.*?-----END PUBLIC KEY-----\n", page, flags=re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"SECURITY.md has {len(found)} public keys; it must have the one of the releases")
    key = load_pem_public_key(found[0].encode())
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("the public key in SECURITY.md is not of Ed25519; make one as that page says")
    return key


def write_signed(directory: Path, key: Path, page: str) -> None:
    """Write the list and its signature. ValueError if the file has another key than the page names."""
    secret = load_pem_private_key(key.read_bytes(), password=None)
    if not isinstance(secret, Ed25519PrivateKey) or secret.public_key() != public_key(page):
        raise ValueError(f"{key} is not the private key of the public key in SECURITY.md; give that one, or rotate it")
    (directory / SIGNATURE).write_bytes(secret.sign(_write_list(directory, released=True)))


def write_unsigned(directory: Path) -> None:
    """Write the list between releases, and remove the signature of the last release."""
    _write_list(directory, released=False)
    (directory / SIGNATURE).unlink(missing_ok=True)


def _write_list(directory: Path, *, released: bool) -> bytes:
    encoded = msgspec.json.format(msgspec.json.encode(versions(released=released)), indent=1) + b"\n"
    (directory / LIST).write_bytes(encoded)
    return encoded


if __name__ == "__main__":
    if len(sys.argv) == 2:
        write_unsigned(Path(sys.argv[1]))
    else:
        write_signed(Path(sys.argv[1]), Path(sys.argv[2]), Path("SECURITY.md").read_text(encoding="utf-8"))

"""The long-lived keys of a party and the two files that hold them.

`NAME.key` holds everything and stays with its owner; it is created for the owner alone and never overwritten.
`NAME.card` is for whoever makes the roster: name, role and public keys, signed with the key that they name, so that
nobody else can put another name, role or link key to it. Both are TOML, bytes in Z85 (ZeroMQ RFC 32).
"""

import os
import stat
import struct
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

import msgspec
from zmq.utils import z85

from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES, Label, SigningKey, verify
from tacit.protocol.core.roster import Member, Role, new_keys
from tacit.protocol.core.roster import PartyKeys as PartyKeys


class KeysLabel:
    """Labels of what the key of a party signs outside of protocols."""

    CARD: Final = Label(b"tacit/1 card of a member")
    SIGN_NODE: Final = Label(b"tacit/1 sign node of another framework")


class KeyFileError(Exception):
    """A key file cannot be written, read or trusted; the message names the file and the remedy, never a key."""


def generate(name: str) -> PartyKeys:
    """New keys from the operating system's randomness. Raises ValueError for an invalid name."""
    return new_keys(name, entropy=os.urandom)


def save(keys: PartyKeys, directory: Path, *, role: Role) -> tuple[Path, Path]:
    """Write `NAME.key`, readable by its owner only, and `NAME.card` for this role; return both paths.

    Raises KeyFileError when either file exists already (nothing is overwritten) or cannot be written.
    """
    secret_path, card_path = directory / f"{keys.name}.key", directory / f"{keys.name}.card"
    _check_new(secret_path, card_path)
    signature = SigningKey(keys.signing_secret).sign(KeysLabel.CARD, *_signed(keys.member(role)))
    card = f'name = "{keys.name}"\nrole = "{role}"\n{_public_lines(keys)}signature = "{_z85(signature)}"\n'
    _save_secret(keys, secret_path)
    _create(card_path, "# Public: hand it to whoever makes the roster.\n" + card, mode=0o644)
    return secret_path, card_path


def save_operator(keys: PartyKeys, directory: Path) -> Path:
    """Write `NAME.key` of an operator, who is no member: the rosters that it signs have its public key. KeyFileError as
    of `save`."""
    path = directory / f"{keys.name}.key"
    _check_new(path)
    _save_secret(keys, path)
    return path


def sign_node(keys: PartyKeys, *, roster: bytes, run: int, node: int, nonce: bytes) -> bytes:
    """Sign that the owner of these keys is the node of this number in a run of another framework. roster: its hash."""
    signed = _node(keys.name, roster=roster, run=run, node=node, nonce=nonce)
    return SigningKey(keys.signing_secret).sign(KeysLabel.SIGN_NODE, *signed)


def check_node(member: Member, signature: bytes, *, roster: bytes, run: int, node: int, nonce: bytes) -> None:
    """Check such a signature. ValueError for one that the member did not make."""
    try:
        verify(
            member.signing_public,
            signature,
            KeysLabel.SIGN_NODE,
            *_node(member.name, roster=roster, run=run, node=node, nonce=nonce),
        )
    except RemoteProtocolError:
        raise ValueError(
            f"node {node} says that it is {member.name!r}, and has no signature of {member.name!r} for it: the "
            "rosters, or the keys, of the two sides differ"
        ) from None


def _node(name: str, *, roster: bytes, run: int, node: int, nonce: bytes) -> tuple[bytes, ...]:
    return name.encode(), roster, run.to_bytes(8, "little"), node.to_bytes(8, "little"), nonce


def _check_new(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise KeyFileError(
                f"{path}: exists already and is never overwritten; move it away or use another directory"
            )


def _public_lines(keys: PartyKeys) -> str:
    return f'curve = "{encode_key(keys.curve_public)}"\nsigning = "{encode_key(keys.signing_public)}"\n'


def _save_secret(keys: PartyKeys, path: Path) -> None:
    secret = f'curve_secret = "{encode_key(keys.curve_secret)}"\nsigning_secret = "{encode_key(keys.signing_secret)}"\n'
    title = f'# Private keys: never leave this host.\nname = "{keys.name}"\n'
    _create(path, title + _public_lines(keys) + secret, mode=0o600)


def load(path: Path) -> PartyKeys:
    """Read a `.key` file.

    Raises KeyFileError when the file is missing, open to others than its owner, malformed, or its keys do not match.
    """
    try:
        with path.open("rb") as file:
            # The permissions of the open file: between two looks at a path, somebody could exchange what is there.
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise KeyFileError(
                    f"{path}: others than its owner may use it (mode {mode:o}); run: chmod 600 {path}\n"
                    "and make new keys if somebody may have read them"
                )
            content = file.read()
    except FileNotFoundError as error:
        remedy = "make keys with `tacit keys new`, or restore it from a backup"
        raise KeyFileError(f"{path}: no such file; {remedy}") from error
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from error
    # `from None`: the cause could quote the file, and with it a secret.
    try:
        entry = msgspec.toml.decode(content.removeprefix(BOM_UTF8), type=_KeyFile)
        return PartyKeys(
            name=entry.name,
            curve_public=decode_key(entry.curve),
            curve_secret=decode_key(entry.curve_secret),
            signing_public=decode_key(entry.signing),
            signing_secret=decode_key(entry.signing_secret),
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise KeyFileError(f"{path}: not a key file; restore it from a backup or make new keys") from None
    except ValueError as error:
        raise KeyFileError(f"{path}: {error}; restore it from a backup or make new keys") from None


def load_card(path: Path) -> Member:
    """Read a `.card` file. Raises KeyFileError when it is missing, malformed, or not signed with the key it names."""
    try:
        entry = msgspec.toml.decode(path.read_bytes().removeprefix(BOM_UTF8), type=_CardFile)
        member = Member(
            name=entry.name,
            role=entry.role,
            curve_public=decode_key(entry.curve),
            signing_public=decode_key(entry.signing),
        )
        verify(member.signing_public, _decode(entry.signature, SIGNATURE_BYTES), KeysLabel.CARD, *_signed(member))
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from error
    except RemoteProtocolError:
        raise KeyFileError(
            f"{path}: its signature is not that of its own keys, so it was changed; ask its owner for NAME.card again"
        ) from None
    except (ValueError, msgspec.DecodeError) as error:
        raise KeyFileError(f"{path}: not a card: {error}; ask its owner for NAME.card") from error
    return member


def encode_key(key: bytes) -> str:
    """A 32-byte key in Z85: 40 characters, none of them a quote or a backslash."""
    return _z85(key)


def decode_key(text: str) -> bytes:
    """The 32 bytes of a key in Z85. Raises ValueError, which does not quote the text, when it is anything else."""
    return _decode(text, KEY_BYTES)


def encode_signature(signature: bytes) -> str:
    """A 64-byte signature in Z85: 80 characters."""
    return _z85(signature)


def decode_signature(text: str) -> bytes:
    """The 64 bytes of a signature in Z85. Raises ValueError when it is anything else."""
    return _decode(text, SIGNATURE_BYTES)


def _z85(value: bytes) -> str:
    return z85.encode(value).decode("ascii")


def _decode(text: str, length: int) -> bytes:
    try:
        value = z85.decode(text)
    except (KeyError, ValueError, struct.error):
        value = b""
    if len(value) != length:
        what = "key" if length == KEY_BYTES else "signature"
        raise ValueError(f"a {what} must be {length * 5 // 4} characters of Z85")
    return value


def _signed(member: Member) -> tuple[bytes, ...]:
    """What the signature of a card is over."""
    return member.name.encode(), member.role.encode(), member.curve_public, member.signing_public


class _PublicKeys(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    curve: str
    signing: str


class _CardFile(_PublicKeys, forbid_unknown_fields=True):
    role: Role
    signature: str


class _KeyFile(_PublicKeys, forbid_unknown_fields=True):
    curve_secret: str
    signing_secret: str


def _create(path: Path, text: str, *, mode: int) -> None:
    """Write a file that did not exist before, or leave none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be created: {error.strerror}") from error
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        path.unlink()
        raise KeyFileError(f"{path}: cannot be written: {error.strerror}") from error

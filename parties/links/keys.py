"""The long-lived keys of a party and the two files that hold them.

`NAME.key` holds everything and stays with its owner; it is created for the owner alone and never overwritten.
`NAME.card` goes to the maker of the roster: name, role and public keys, signed with the signing key itself, so that
nobody else can bind another name, role or link key to it. Both are TOML, bytes in Z85 (ZeroMQ RFC 32). A card is also a
line to paste, in base64, which mail and shells do not alter.

A key file may be encrypted, its secrets by ChaCha20-Poly1305 under a key that scrypt derives from a passphrase. The
passphrase comes from the file NAME.passphrase in $CREDENTIALS_DIRECTORY, where systemd puts credentials, or from a
terminal prompt.
"""

import getpass
import os
import re
import stat
import struct
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt
from zmq.utils import z85

from tacit.models.file_system import replace_file
from tacit.protocol.core.errors import RemoteProtocolError, printable
from tacit.protocol.core.primitives import KEY_BYTES, SIGNATURE_BYTES, Label, SigningKey, verify
from tacit.protocol.core.roster import Member, Role, new_keys
from tacit.protocol.core.roster import PartyKeys as PartyKeys


class KeysLabel:
    """Labels of a party's signatures outside of protocols."""

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
    in `save`."""
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
    _create(path, _secret_text(keys), mode=0o600)


def _secret_text(keys: PartyKeys) -> str:
    secret = f'curve_secret = "{encode_key(keys.curve_secret)}"\nsigning_secret = "{encode_key(keys.signing_secret)}"\n'
    return f'# Private keys: never leave this host.\nname = "{keys.name}"\n{_public_lines(keys)}{secret}'


def load(path: Path) -> PartyKeys:
    """Read a `.key` file.

    Raises KeyFileError when the file is missing, accessible to others than its owner, malformed, or its keys do not
    match; if it is encrypted, also without a passphrase, or with a wrong one."""
    try:
        with path.open("rb") as file:
            # The permissions of the open file: the file at a path could be exchanged between two accesses.
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
        curve_public, signing_public = decode_key(entry.curve), decode_key(entry.signing)
        if entry.sealed:
            sealed, salt = _decode(entry.sealed, _SEALED_BYTES), decode_key(entry.scrypt)
            secrets = _unseal(path, entry, sealed, salt)
        else:
            secrets = decode_key(entry.curve_secret) + decode_key(entry.signing_secret)
        return PartyKeys(
            name=entry.name,
            curve_public=curve_public,
            curve_secret=secrets[:KEY_BYTES],
            signing_public=signing_public,
            signing_secret=secrets[KEY_BYTES:],
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise KeyFileError(f"{path}: not a key file; restore it from a backup or make new keys") from None
    except ValueError as error:
        raise KeyFileError(f"{path}: {error}; restore it from a backup or make new keys") from None


_SEALED_BYTES: Final = 12 + 2 * KEY_BYTES + 16
"""Nonce, both secret keys, and the tag of ChaCha20-Poly1305 (RFC 8439)."""
_passphrases: dict[str, str] = {}
"""Passphrases that this process has asked for, by the name of the party."""


def encrypt(path: Path) -> None:
    """Rewrite a key file encrypted under a prompted passphrase; an encrypted one under a new one. Raises KeyFileError
    as `load` does, and without a passphrase."""
    keys = load(path)
    _passphrases.pop(keys.name, None)
    passphrase = _passphrase(keys.name, path, new=True)
    salt, nonce, secrets = os.urandom(KEY_BYTES), os.urandom(12), keys.curve_secret + keys.signing_secret
    sealed = nonce + ChaCha20Poly1305(_stretched(passphrase, salt)).encrypt(nonce, secrets, _public(keys))
    title = f'# Private keys, encrypted: never leave this host.\nname = "{keys.name}"\n{_public_lines(keys)}'
    _rewrite(path, f'{title}scrypt = "{encode_key(salt)}"\nsealed = "{_z85(sealed)}"\n')
    _passphrases[keys.name] = passphrase


def decrypt(path: Path) -> None:
    """Rewrite an encrypted key file without encryption. Raises KeyFileError as `load` does."""
    _rewrite(path, _secret_text(load(path)))


def _rewrite(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode("ascii"))
        path.chmod(0o600)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written: {error.strerror}") from error


def _unseal(path: Path, entry: "_KeyFile", sealed: bytes, salt: bytes) -> bytes:
    passphrase = _passphrases.get(entry.name) or _passphrase(entry.name, path)
    public = _public_bytes(entry.name, decode_key(entry.curve), decode_key(entry.signing))
    try:
        secrets = ChaCha20Poly1305(_stretched(passphrase, salt)).decrypt(sealed[:12], sealed[12:], public)
    except InvalidTag:
        raise KeyFileError(
            f"{path}: this is not its passphrase, or the file is damaged: try again, or restore it from a backup"
        ) from None
    _passphrases[entry.name] = passphrase
    return secrets


def _passphrase(name: str, path: Path, *, new: bool = False) -> str:
    """The passphrase of a key file, from systemd or from the keyboard. KeyFileError."""
    if folder := os.environ.get("CREDENTIALS_DIRECTORY"):
        try:
            found = (Path(folder) / f"{name}.passphrase").read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError):
            found = ""
        if found:
            return found
    if not sys.stdin.isatty():
        raise KeyFileError(
            f"{path}: it needs a passphrase: start the command at a terminal, or give it the credential "
            f"{name}.passphrase (LoadCredential= of systemd)"
        )
    found = getpass.getpass(f"{'new ' if new else ''}passphrase of {name}: ")
    if not found or (new and getpass.getpass("once more: ") != found):
        raise KeyFileError(f"{path}: no passphrase, or two that differ: try again")
    return found


def _stretched(passphrase: str, salt: bytes) -> bytes:
    """Derive the key of a passphrase. 128 MiB and a third of a second: the first of OWASP's parameters for scrypt."""
    return Scrypt(salt=salt, length=KEY_BYTES, n=1 << 17, r=8, p=1).derive(passphrase.encode())


def _public(keys: PartyKeys) -> bytes:
    return _public_bytes(keys.name, keys.curve_public, keys.signing_public)


def _public_bytes(name: str, curve: bytes, signing: bytes) -> bytes:
    return b"tacit/1 key file" + curve + signing + name.encode()


def load_card(path: Path) -> Member:
    """Read a `.card` file. Raises KeyFileError when it is missing, malformed, or not signed with the key it names."""
    return _read_card(path)[0]


def _read_card(path: Path) -> tuple[Member, bytes]:
    try:
        entry = msgspec.toml.decode(path.read_bytes().removeprefix(BOM_UTF8), type=_CardFile)
        signature = _decode(entry.signature, SIGNATURE_BYTES)
        return _verified(entry.name, entry.role, decode_key(entry.curve), decode_key(entry.signing), signature)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be read: {error.strerror}") from error
    except RemoteProtocolError:
        raise KeyFileError(
            f"{path}: its signature is not that of its own keys, so it was changed; ask its owner for NAME.card again"
        ) from None
    except (ValueError, msgspec.DecodeError) as error:
        raise KeyFileError(f"{path}: not a card: {error}; ask its owner for NAME.card") from error


def _verified(name: str, role: Role, curve: bytes, signing: bytes, signature: bytes) -> tuple[Member, bytes]:
    """ValueError for an invalid member, RemoteProtocolError for an invalid signature."""
    member = Member(name=name, role=role, curve_public=curve, signing_public=signing)
    verify(member.signing_public, signature, KeysLabel.CARD, *_signed(member))
    return member, signature


CARD_LINE: Final = "tacit-card:"
_LINE: Final = re.compile(CARD_LINE + r"(?P<role>[a-z-]+):(?P<name>[a-z0-9-]+):(?P<keys>[A-Za-z0-9_-]{171})")


def card_line(path: Path) -> str:
    """A `.card` file as one line. KeyFileError as in `load_card`."""
    member, signature = _read_card(path)
    keys = urlsafe_b64encode(member.curve_public + member.signing_public + signature).decode("ascii").rstrip("=")
    return f"{CARD_LINE}{member.role}:{member.name}:{keys}"


def read_card_lines(text: str) -> list[Member]:
    """Read the cards of pasted lines, which a mail may have wrapped or quoted. KeyFileError for other content."""
    joined = re.sub(r"[\s>]+", "", text)
    damaged = _LINE.sub("", joined)
    cards = []
    for found in _LINE.finditer(joined):
        keys = urlsafe_b64decode(found["keys"] + "=")
        curve, signing, signature = keys[:KEY_BYTES], keys[KEY_BYTES : 2 * KEY_BYTES], keys[2 * KEY_BYTES :]
        try:
            role = msgspec.convert(found["role"], Role)
            cards.append(_verified(found["name"], role, curve, signing, signature)[0])
        except (ValueError, msgspec.ValidationError, RemoteProtocolError):
            damaged = damaged or found.group()
    if damaged or not cards:
        raise KeyFileError(
            f"{printable(damaged[:48])!r} is no card, or one that was damaged on its way: paste the whole line that "
            "`tacit init` printed, or give NAME.card"
        )
    return cards


def encode_key(key: bytes) -> str:
    """A 32-byte key in Z85: 40 characters, none of them a quote or a backslash."""
    return _z85(key)


def decode_key(text: str) -> bytes:
    """The 32 bytes of a key in Z85. Raises ValueError, which does not quote the text, for other values."""
    return _decode(text, KEY_BYTES)


def encode_signature(signature: bytes) -> str:
    """A 64-byte signature in Z85: 80 characters."""
    return _z85(signature)


def decode_signature(text: str) -> bytes:
    """The 64 bytes of a signature in Z85. Raises ValueError for other values."""
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
    """Signed content of a card."""
    return member.name.encode(), member.role.encode(), member.curve_public, member.signing_public


class _PublicKeys(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    curve: str
    signing: str


class _CardFile(_PublicKeys, forbid_unknown_fields=True):
    role: Role
    signature: str


class _KeyFile(_PublicKeys, forbid_unknown_fields=True):
    curve_secret: str = ""
    signing_secret: str = ""
    scrypt: str = ""
    """Salt, if the secrets are encrypted."""
    sealed: str = ""


def _create(path: Path, text: str, *, mode: int) -> None:
    """Create a file that did not exist before, atomically."""
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

"""Key files: only for their owner, never overwritten, never quoted, and refused when anything about them is wrong."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from zmq.utils import z85

from tacit.parties.links.keys import (
    KeyFileError,
    PartyKeys,
    check_node,
    decode_key,
    decrypt,
    encode_key,
    encrypt,
    generate,
    load,
    load_card,
    save,
    sign_node,
)


def test_generated_keys_work_and_differ() -> None:
    first, second = generate("a"), generate("a")
    assert zmq.curve_public(z85.encode(first.curve_secret)) == z85.encode(first.curve_public)
    signature = Ed25519PrivateKey.from_private_bytes(first.signing_secret).sign(b"text")
    Ed25519PublicKey.from_public_bytes(first.signing_public).verify(signature, b"text")
    fields = [set(vars(keys).values()) - {"a"} for keys in (first, second)]
    assert len(fields[0] | fields[1]) == 8


def test_a_node_is_a_member_by_its_signature_alone() -> None:
    keys, claim = generate("ann"), {"roster": bytes(32), "run": 7, "node": 101, "nonce": bytes([1]) * 32}
    signature = sign_node(keys, **claim)
    check_node(keys.member("client"), signature, **claim)
    changes = ({"roster": bytes([1]) * 32}, {"run": 8}, {"node": 102}, {"nonce": bytes(32)})
    for other, signed, change in (
        *((keys, signature, change) for change in changes),
        (generate("ann"), signature, {}),
        (replace(keys, name="bob"), signature, {}),
        (keys, signature[:-1], {}),
        (keys, b"", {}),
    ):
        with pytest.raises(ValueError, match=r"node \d+ says that it is '\w+', and has no signature"):
            check_node(other.member("client"), signed, **{**claim, **change})


def test_invalid_name() -> None:
    with pytest.raises(ValueError, match=r"'\.\./a'"):
        generate("../a")


def test_saved_keys_are_loaded(tmp_path: Path) -> None:
    keys = generate("hospital-7")
    secret_path, card_path = save(keys, tmp_path, role="client")
    assert (secret_path.name, card_path.name) == ("hospital-7.key", "hospital-7.card")
    assert load(secret_path) == keys
    assert load_card(card_path) == keys.member("client")


def test_private_file_is_for_its_owner_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        secret_path, card_path = save(generate("a"), tmp_path, role="client")
    finally:
        os.umask(umask)
    assert secret_path.stat().st_mode & 0o777 == 0o600
    assert card_path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("existing", ["a.key", "a.card"])
def test_nothing_is_overwritten(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_text("precious")
    with pytest.raises(KeyFileError, match=f"{existing}: exists already and is never overwritten"):
        save(generate("a"), tmp_path, role="client")
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "precious"


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match=r"a\.key: cannot be created"):
        save(generate("a"), tmp_path, role="client")
    assert not (tmp_path / "elsewhere").exists()


def test_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.open

    def onto_full_disk(path: Path, flags: int, mode: int) -> int:
        os.close(create(path, flags, mode))
        return create("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(os, "open", onto_full_disk)
    with pytest.raises(KeyFileError, match=r"a\.key: cannot be written: No space left on device"):
        save(generate("a"), tmp_path, role="client")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o666, 0o610, 0o700 | 0o001])
def test_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path, _ = save(generate("a"), tmp_path, role="client")
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:o}.*run: chmod 600 {path}"):
        load(path)


@pytest.fixture
def credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A passphrase as systemd gives it, for a party that was not asked for one before."""
    (tmp_path / "credentials").mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    monkeypatch.setattr("tacit.parties.links.keys._passphrases", {})
    path = tmp_path / "credentials" / "a.passphrase"
    path.write_text("correct horse\n")
    return path


def test_an_encrypted_file_has_no_secret_and_the_same_keys(
    tmp_path: Path, credential: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = generate("a")
    path, _ = save(keys, tmp_path, role="client")
    plain = path.read_bytes()
    encrypt(path)
    content = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(encode_key(secret) in content for secret in (keys.curve_secret, keys.signing_secret))
    monkeypatch.setattr("tacit.parties.links.keys._passphrases", {})
    assert load(path) == keys
    # Not asked for again in this process.
    credential.unlink()
    assert load(path) == keys
    decrypt(path)
    assert path.read_bytes() == plain


def test_an_encrypted_file_that_is_damaged_or_of_another_passphrase(
    tmp_path: Path, credential: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = save(generate("a"), tmp_path, role="client")
    other, _ = save(generate("a"), credential.parent, role="client")
    encrypt(path)
    encrypt(other)
    sound, lines = path.read_text(), other.read_text().splitlines(keepends=True)
    credential.with_name("b.passphrase").write_text(credential.read_text())
    for damage in ("name", "curve", "signing", "scrypt", "sealed", "passphrase"):
        if damage == "passphrase":
            credential.write_text("correct horses")
            path.write_text(sound)
        else:
            (changed,) = (one for one in lines if one.startswith(f"{damage} ="))
            path.write_text(line_of(damage)(sound) + ('name = "b"\n' if damage == "name" else changed))
        monkeypatch.setattr("tacit.parties.links.keys._passphrases", {})
        with pytest.raises(
            KeyFileError, match=r"a\.key: this is not its passphrase, or the file is damaged: try again"
        ):
            load(path)


def test_an_encrypted_file_without_anybody_to_ask(
    tmp_path: Path, credential: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = save(generate("a"), tmp_path, role="client")
    encrypt(path)
    monkeypatch.setattr("tacit.parties.links.keys._passphrases", {})
    credential.unlink()
    with pytest.raises(KeyFileError, match=r"start the command at a terminal, or give it the credential a\.passphrase"):
        load(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"a\.key: no such file; make keys with `tacit keys new`, or restore"):
        load(tmp_path / "a.key")
    with pytest.raises(KeyFileError, match=r"a\.card: cannot be read: No such file"):
        load_card(tmp_path / "a.card")


def line_of(field: str) -> Callable[[str], str]:
    return lambda text: "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{field} ="))


CORRUPTIONS: dict[str, Callable[[str], str]] = {
    "empty": lambda _: "",
    "no TOML": lambda text: text.replace('name = "', "name = "),
    "cut": lambda text: text[:-10],
    "no text": lambda text: "\udcff" + text,
    "extra field": lambda text: text + "more = 1\n",
    "bad name": lambda text: text.replace('"a"', '"A"'),
    "wrong type": lambda text: text.replace('"a"', "7"),
    **{f"no {field}": line_of(field) for field in ("name", "curve", "curve_secret", "signing", "signing_secret")},
    **{
        f"short {field}": lambda text, field=field: text.replace(f'\n{field} = "', f'\n{field} = "00000')
        for field in ("curve", "curve_secret", "signing", "signing_secret")
    },
    **{
        f"other {field}": lambda text, field=field: line_of(field)(text) + f'{field} = "{encode_key(bytes(32))}"\n'
        for field in ("curve", "curve_secret", "signing", "signing_secret")
    },
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_malformed_private_file(tmp_path: Path, corruption: str) -> None:
    keys = generate("a")
    path, _ = save(keys, tmp_path, role="client")
    path.write_bytes(CORRUPTIONS[corruption](path.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(KeyFileError, match=r"a\.key: .*; restore it from a backup or make new keys") as caught:
        load(path)
    assert not quotes_secret(caught.value, keys)


@pytest.mark.parametrize("corruption", [name for name in CORRUPTIONS if "secret" not in name and "other" not in name])
def test_malformed_public_file(tmp_path: Path, corruption: str) -> None:
    _, path = save(generate("a"), tmp_path, role="client")
    path.write_bytes(CORRUPTIONS[corruption](path.read_text()).encode(errors="surrogateescape"))
    with pytest.raises(KeyFileError, match=r"a\.card: not a card: .*; ask its owner"):
        load_card(path)


def test_private_file_is_not_a_public_one(tmp_path: Path) -> None:
    keys = generate("a")
    path, _ = save(keys, tmp_path, role="client")
    with pytest.raises(KeyFileError, match="not a card") as caught:
        load_card(path)
    assert not quotes_secret(caught.value, keys)


@pytest.mark.parametrize("field", ["curve_secret", "signing_secret", "curve_public", "signing_public"])
@pytest.mark.parametrize("value", [b"", bytes(31), bytes(32), bytes(33)], ids=len)
def test_keys_that_do_not_match_are_refused(field: str, value: bytes) -> None:
    with pytest.raises(ValueError, match="keys of 'a'"):
        replace(generate("a"), **{field: value})


def test_secrets_are_not_shown() -> None:
    keys = generate("a")
    assert not quotes_secret(keys, keys)
    assert repr(keys.curve_public) in repr(keys)


def quotes_secret(shown: object, keys: PartyKeys) -> bool:
    text = repr(shown) + str(shown)
    return any(
        form in text for key in (keys.curve_secret, keys.signing_secret) for form in (repr(key)[2:-1], encode_key(key))
    )


def test_key_text_is_z85() -> None:
    # The server secret key of ZeroMQ's CURVE test programs (RFC 32 alphabet), as the C library decodes it.
    text = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
    assert encode_key(decode_key(text)) == text
    assert decode_key(text)[:4] == bytes.fromhex("8e0bdd69")


@pytest.mark.parametrize("text", ["", "0" * 35, "0" * 45, "0" * 39, "0" * 39 + '"', "0" * 39 + "é", "#" * 40])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(ValueError, match="a key must be 40 characters of Z85"):
        decode_key(text)

"""Cards and rosters that are pasted as lines, and key files that are stolen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tacit.parties.links.keys import KeyFileError, card_line, encode_key, encrypt, generate, load, read_card_lines, save
from tacit.parties.links.roster import RosterFileError, given_roster, make_roster, roster_line


@pytest.mark.threat("stranger/changes-card")
def test_no_character_of_a_line_can_be_changed(tmp_path: Path) -> None:
    """A card is refused then; a roster too, or it has another fingerprint."""
    keys = [generate(name) for name in ("server", "a", "b", "c")]
    cards = [save(one, tmp_path, role="client" if one.name != "server" else "server")[1] for one in keys]
    line, roster = card_line(cards[1]), make_roster([read_card_lines(card_line(card))[0] for card in cards])
    whole, draw = roster_line(roster), random.Random(1)
    # The last character of a card has two bits that are none of its 128 bytes.
    for at in range(len(line) - 1):
        changed = line[:at] + ("b" if line[at] != "b" else "c") + line[at + 1 :]
        with pytest.raises(KeyFileError, match="is no card, or one that was damaged on its way"):
            read_card_lines(changed)
    for at in draw.sample(range(13, len(whole)), 200):
        changed = whole[:at] + ("b" if whole[at] != "b" else "c") + whole[at + 1 :]
        try:
            found = given_roster(changed)
        except RosterFileError:
            continue
        assert found == roster or found.fingerprint != roster.fingerprint


@pytest.mark.threat("stranger/steals-key-file")
def test_an_encrypted_key_file_gives_nothing_without_its_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = generate("a")
    path, _ = save(keys, tmp_path, role="client")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "a.passphrase").write_text("correct horse battery staple")
    encrypt(path)
    stolen = path.read_bytes()
    for secret in (keys.curve_secret, keys.signing_secret):
        assert secret not in stolen
        assert encode_key(secret).encode() not in stolen
    monkeypatch.setattr("tacit.parties.links.keys._passphrases", {})
    (tmp_path / "a.passphrase").write_text("correct horse battery")
    with pytest.raises(KeyFileError, match="this is not its passphrase"):
        load(path)

"""Tokens that detect a copied folder of a party.

A key admits its holder, and also a copy of the folder with the key: a clone of a machine, an old backup, a stolen disk.
So a starting client presents the token of its last start, and a fresh one to replace it; the server keeps the fresh
one. Of two folders with one key only the one that started last has the token that the server knows. Both sides count
the starts. A client that presents an older token is a copy; a server to which a client presents a newer one than it
knows is a copy itself.

Either side has its tokens in a JSON file, by the names of its peers. It is written before the other side sees a token.
An owner who has verified that there is one folder removes the peer from the file, or the file itself.

The file of a client also counts the lines of its journal. So a journal that was restored alone is shorter than this
file states, and a folder that was restored whole has an old token.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Collection
from enum import Enum
from hmac import compare_digest
from pathlib import Path
from typing import Final

import msgspec

from tacit.models.file_system import FILES, FileSystem, replace_file
from tacit.parties.links.keys import encode_key
from tacit.protocol.core.roster import Member

TOKEN_BYTES: Final = 16
_NONE: Final = bytes(TOKEN_BYTES)
_PRESENTED: Final = struct.Struct(f"<Q{TOKEN_BYTES}s{TOKEN_BYTES}s")


class TokenFileError(OSError):
    """Tokens cannot be read or written; the message names the file and the remedy."""


class Verdict(Enum):
    """The server's verdict on a token. The values are those of the wire."""

    CURRENT = b""
    COPY = b"copy"
    """The client started elsewhere since: its folder is a copy, or a backup."""
    OLD_SERVER = b"old"
    """The client was at another server of this key since: the server's own folder is a copy."""
    REPLACED = b"replaced"
    """Sent to a link in use: a process with the current token has replaced it."""


class _Token(msgspec.Struct):
    signing: str
    """The peer's public key. Another key starts a new history; a server's new keys keep the client's tokens."""
    count: int = 0
    """Starts known to both sides."""
    token: bytes = _NONE
    fresh: bytes = _NONE
    """Presented by a client with the next start, and not yet accepted."""
    confirmed: bool = False
    """At a server: the client has presented the token since, so its folder has it."""
    admitted: str = ""
    """At a client: its own public key at the last accepted start."""


class _TokensState(msgspec.Struct, omit_defaults=True):
    peers: dict[str, _Token] = {}
    journal: int = 0
    """Least number of lines in a client's journal."""


class TokenFile:
    """The tokens of one party. probe: presented tokens are not consumed, for a check whether this party would be
    admitted. Raises TokenFileError."""

    def __init__(self, path: Path, files: FileSystem = FILES, *, probe: bool = False) -> None:
        self._path = path
        self._probe = probe
        # The journal is written by another thread than the one that serves peers.
        self._turn = threading.Lock()
        self._files = files
        try:
            self._kept = msgspec.json.decode(files.read(path), type=_TokensState)
        except FileNotFoundError:
            self._kept = _TokensState()
        except (OSError, msgspec.MsgspecError) as error:
            raise TokenFileError(f"{path} cannot be read ({error}): make it accessible, or restore it") from None

    def present(self, server: Member) -> bytes:
        """The token of a client's greeting to its server."""
        own = self._of(server, server.previous)
        if self._probe and own.fresh == _NONE:
            return _PRESENTED.pack(own.count, own.token, own.token)
        if own.fresh == _NONE:
            own.fresh = os.urandom(TOKEN_BYTES)
            self._save()
        return _PRESENTED.pack(own.count, own.token, own.fresh)

    def accepted(self, server: Member, signing_public: bytes) -> bytes:
        """Record that the server accepted the last token; returns the token for further links of this process.

        signing_public: this party's own key."""
        own = self._of(server, server.previous)
        if own.fresh != _NONE and not self._probe:
            own.count, own.token, own.fresh = own.count + 1, own.fresh, _NONE
            own.admitted = encode_key(signing_public)
            self._save()
        return _PRESENTED.pack(own.count, own.token, own.token)

    def admitted(self, server: Member, signing_public: bytes) -> bool:
        """Whether this server has accepted a start of this client with this key."""
        return self._of(server, server.previous).admitted == encode_key(signing_public)

    def judge(self, client: Member, presented: bytes) -> Verdict:
        """Judge the token of a client's greeting, and keep its fresh token."""
        known = self._of(client)
        if len(presented) != _PRESENTED.size:
            # It shows no token: none was ever agreed on with it, or it is another program with its key.
            return Verdict.COPY if known.count else Verdict.CURRENT
        count, token, fresh = _PRESENTED.unpack(presented)
        if compare_digest(fresh, known.token):
            # A backup of a folder that waited for its server has the fresh token too, and not the acceptance.
            stale = known.confirmed and not compare_digest(token, known.token)
            return Verdict.COPY if stale else Verdict.CURRENT
        if known.count and not compare_digest(token, known.token):
            return Verdict.OLD_SERVER if count > known.count else Verdict.COPY
        known.count, known.token, known.confirmed = count + 1, fresh, False
        self._save()
        return Verdict.CURRENT

    def confirm(self, client: Member, presented: bytes) -> None:
        """Note that a greeting of the client shows the accepted token as its own."""
        known = self._of(client)
        if not known.confirmed and compare_digest(presented[-2 * TOKEN_BYTES :], 2 * known.token):
            known.confirmed = True
            self._save()

    @property
    def journal(self) -> int:
        """Least number of lines in this client's journal."""
        return self._kept.journal

    def journal_written(self, lines: int) -> None:
        """Record that so many lines of the journal are on disk."""
        if lines > self._kept.journal:
            self._kept.journal = lines
            self._save()

    def _of(self, peer: Member, earlier: Collection[bytes] = ()) -> _Token:
        """The token shared with this peer. earlier: its former keys, whose token it keeps."""
        signing = encode_key(peer.signing_public)
        found = self._kept.peers.get(peer.name)
        if found is None or found.signing not in {signing, *map(encode_key, earlier)}:
            found = self._kept.peers[peer.name] = _Token(signing)
        found.signing = signing
        return found

    def _save(self) -> None:
        try:
            with self._turn:
                replace_file(self._path, msgspec.json.encode(self._kept), self._files)
        except OSError as error:
            raise TokenFileError(f"{self._path} cannot be written ({error.strerror}): make room there") from None

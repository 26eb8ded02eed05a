"""The directory that the kit is given: the roster, the keys of our side, and what our server proposes.

roster.toml             the roster that the party under test holds too
NAME.key                keys of the members that we play, made like those of any party
configuration.msgpack   canonical encoding of the configuration that our server proposes; without it a small one
                        with an empty task
terms.msgpack           canonical encoding of the terms that our model owner offers; without it those of a small model
                        with scales that nobody can compute with, or of a small learning beside it
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from tacit.parties.links.keys import PartyKeys, load
from tacit.parties.links.roster import read_roster
from tacit.protocol.core.codec import decode_structure
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.messages import TERMS_LIMIT
from tacit.protocol.sum.configuration import Configuration
from tacit.simulate.conformance.peer.script import PeerError
from tacit.simulate.world.federation import small_configuration

T = TypeVar("T", bound=msgspec.Struct)
ROSTER_FILE, CONFIGURATION_FILE, TERMS_FILE = "roster.toml", "configuration.msgpack", "terms.msgpack"


@dataclass(frozen=True)
class Keyring:
    """Whom we play."""

    roster: Roster
    keys: dict[str, PartyKeys] = field(repr=False)
    directory: Path

    @property
    def signing(self) -> dict[str, SigningKey]:
        """The keys that we sign with."""
        return {name: SigningKey(own.signing_secret) for name, own in self.keys.items()}

    @property
    def ours(self) -> tuple[str, ...]:
        """The clients that we play."""
        return tuple(name for name in self.roster.clients if name in self.keys)


def read_keyring(directory: Path, *, fewest: int) -> Keyring:
    """Read the roster, with as many clients as scripts need, and every key file. Raises RosterFileError, KeyFileError
    or PeerError."""
    roster = read_roster(directory / ROSTER_FILE)
    keys = {}
    for path in sorted(directory.glob("*.key")):
        own = load(path)
        members = {member.name: member for member in roster.members}
        if own.name not in members or own.member(members[own.name].role) != members[own.name]:
            raise PeerError(f"{path}: {ROSTER_FILE} has no {own.name!r} with these keys; use the files that fit it")
        keys[own.name] = own
    if len(roster.clients) < fewest:
        raise PeerError(f"{directory / ROSTER_FILE}: {len(roster.clients)} clients; the scripts need {fewest} or more")
    return Keyring(roster, keys, directory)


def needed(keyring: Keyring, *names: str, clients: int = 0) -> None:
    """Check that we have the keys of these members, and of so many clients. Raises PeerError."""
    for name in names:
        if name not in keyring.keys:
            raise PeerError(f"{keyring.directory}: {name}.key is missing; put the keys of everybody that we play there")
    if len(keyring.ours) < clients:
        raise PeerError(
            f"{keyring.directory}: keys of {len(keyring.ours)} clients of the roster; put the .key files of {clients} "
            "or more there"
        )


def live_client(keyring: Keyring) -> str:
    """The one client that we do not play, and which is under test. Raises PeerError."""
    others = [name for name in keyring.roster.clients if name not in keyring.keys]
    if len(others) != 1:
        raise PeerError(
            f"{keyring.directory}: the clients without a .key file here are {', '.join(others) or 'none'}; to test a "
            "client, put the keys of all others here and not its own"
        )
    return others[0]


def offer(keyring: Keyring, otherwise: T) -> T:
    """What our model owner offers; otherwise: without a file. Raises PeerError."""
    remedy = "write the encoding of terms that a model owner sends in inference-terms"
    return _read(keyring, TERMS_FILE, type(otherwise), TERMS_LIMIT, remedy) or otherwise


def proposal(keyring: Keyring) -> Configuration:
    """What our server proposes. Raises PeerError."""
    clients, path = len(keyring.roster.clients), keyring.directory / CONFIGURATION_FILE
    remedy = "write the encoding that a server sends in its welcome"
    configuration = _read(keyring, CONFIGURATION_FILE, Configuration, BODY_LIMIT, remedy)
    if configuration is None:
        return small_configuration(clients, graph="complete")
    try:
        configuration.packing()
        complete = not configuration.regular(clients)
    except ValueError as error:
        raise PeerError(f"{path}: {error}; {remedy}") from None
    if not configuration.active or not complete or configuration.threshold or configuration.clients < clients:
        raise PeerError(
            f"{path}: use mode = active, graph = complete, threshold = 0, and clients = {clients} or more: "
            "the scripts are written for these"
        )
    return configuration


def _read(keyring: Keyring, name: str, kind: type[T], limit: int, remedy: str) -> T | None:
    path = keyring.directory / name
    try:
        return decode_structure(path.read_bytes(), kind, limit=limit) if path.exists() else None
    except OSError as error:
        raise PeerError(f"{path}: cannot be read: {error.strerror}") from error
    except RemoteProtocolError as error:
        raise PeerError(f"{path}: {error.detail}; {remedy}") from None

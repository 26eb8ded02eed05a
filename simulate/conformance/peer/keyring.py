"""The directory that the kit is given: the roster, the keys of our side, and what our server proposes.

roster.toml             the roster that the party under test holds too
NAME.key                keys of the members that we play, made like those of any party
configuration.msgpack   canonical encoding of the configuration that our server proposes; without it a small one
                        with an empty task
terms.msgpack           canonical encoding of the terms that our model owner offers; without it those of a small model
                        with scales that nobody can compute with
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tacit.parties.links.keys import PartyKeys, load
from tacit.parties.links.roster import read_roster
from tacit.protocol.core.codec import decode_structure
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.messages import TERMS_LIMIT, Terms
from tacit.protocol.sum.configuration import Configuration
from tacit.simulate.conformance.peer.script import FEWEST_CLIENTS, PeerError
from tacit.simulate.world.federation import small_configuration
from tacit.simulate.world.inference import small_terms

ROSTER_FILE, CONFIGURATION_FILE, TERMS_FILE = "roster.toml", "configuration.msgpack", "terms.msgpack"


@dataclass(frozen=True)
class Keyring:
    """Whom we play."""

    roster: Roster
    keys: dict[str, PartyKeys] = field(repr=False)
    directory: Path

    @property
    def ours(self) -> tuple[str, ...]:
        """The clients that we play."""
        return tuple(name for name in self.roster.clients if name in self.keys)


def read_keyring(directory: Path, *, fewest: int = FEWEST_CLIENTS) -> Keyring:
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


def keys_of_clients(keyring: Keyring) -> None:
    """Check that we can play the clients of a live server. Raises PeerError."""
    if len(keyring.ours) < FEWEST_CLIENTS:
        raise PeerError(
            f"{keyring.directory}: keys of {len(keyring.ours)} clients of the roster; to test a server, "
            f"put the .key files of {FEWEST_CLIENTS} or more there"
        )


def keys_of_server(keyring: Keyring) -> str:
    """The one client that we do not play, and which is under test. Raises PeerError."""
    server = keyring.roster.server.name
    if server not in keyring.keys:
        raise PeerError(f"{keyring.directory}: {server}.key is missing; to test a client, we play its server")
    others = [name for name in keyring.roster.clients if name not in keyring.keys]
    if len(others) != 1:
        raise PeerError(
            f"{keyring.directory}: the clients without a .key file here are {', '.join(others) or 'none'}; to test a "
            "client, put the keys of all others here and not its own"
        )
    return others[0]


def dealer_of_roster(keyring: Keyring) -> str:
    """The one dealer of the roster. Raises PeerError."""
    dealers = [member.name for member in keyring.roster.members if member.role == "dealer"]
    if len(dealers) != 1:
        raise PeerError(
            f"{keyring.directory / ROSTER_FILE}: {len(dealers)} dealers; private inference needs exactly one member "
            'with role = "dealer"'
        )
    return dealers[0]


def keys_of_data_owner(keyring: Keyring) -> str:
    """The first client that we play. Raises PeerError."""
    if not keyring.ours:
        raise PeerError(
            f"{keyring.directory}: no key of a client of the roster; put the .key file of a data owner there"
        )
    return keyring.ours[0]


def needed(keyring: Keyring, *names: str) -> None:
    """Check that we have the keys of these members. Raises PeerError."""
    missing = [name for name in names if name not in keyring.keys]
    if missing:
        raise PeerError(
            f"{keyring.directory}: {missing[0]}.key is missing; put the keys of everybody that we play there"
        )


def offer(keyring: Keyring) -> Terms:
    """What our model owner offers. Raises PeerError."""
    path = keyring.directory / TERMS_FILE
    if not path.exists():
        return small_terms()
    try:
        return decode_structure(path.read_bytes(), Terms, limit=TERMS_LIMIT)
    except OSError as error:
        raise PeerError(f"{path}: cannot be read: {error.strerror}") from error
    except RemoteProtocolError as error:
        raise PeerError(
            f"{path}: {error.detail}; write the encoding of terms that a model owner sends in inference-terms"
        ) from None


def proposal(keyring: Keyring) -> Configuration:
    """What our server proposes. Raises PeerError."""
    clients, path = len(keyring.roster.clients), keyring.directory / CONFIGURATION_FILE
    if not path.exists():
        return small_configuration(clients, graph="complete")
    try:
        configuration = decode_structure(path.read_bytes(), Configuration, limit=BODY_LIMIT)
        configuration.packing()
        complete = not configuration.regular(clients)
    except OSError as error:
        raise PeerError(f"{path}: cannot be read: {error.strerror}") from error
    except (RemoteProtocolError, ValueError) as error:
        raise PeerError(f"{path}: {error}; write the encoding that a server sends in its welcome") from None
    if not configuration.active or not complete or configuration.threshold or configuration.clients < clients:
        raise PeerError(
            f"{path}: use mode = active, graph = complete, threshold = 0, and clients = {clients} or more: "
            "the scripts are written for these"
        )
    return configuration

"""Who takes part: the names, roles and public keys that all parties agreed on out of band.

Every party holds the same roster, received by a channel that it trusts and never from the server. Its hash enters every
signature and every mask seed, so that parties with different rosters cannot understand each other by accident or fraud.
The order of the members matters: it gives every client its index.

Clients may be in groups, which are in a sum all or none: so that no two sums, over however many rounds, differ by
single clients (docs/spec/security.md). The roster alone says who is in which; who is in none, where others are, waits.

A roster may have versions, which an operator signs: whoever holds one can be told the next by anybody, also by the
server (membership.py). One without an operator stays as it is.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from typing import Literal, get_args

import msgspec

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.primitives import Label, SigningKey, verify

Role = Literal["server", "client", "dealer"]

NAME_PATTERN = re.compile(r"[a-z0-9-]{1,64}")
PUBLIC_KEY_BYTES = 32
LARGEST_GROUP_NUMBER = 10_000
LARGEST_VERSION = 2**31
_HASH_LABEL = "tacit/1 roster"
_FINGERPRINT_DIGITS = 40


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One party of the federation, as all others know it.

    Raises ValueError when the name, the role or the length of a key is not valid.
    """

    name: str
    """1 to 64 characters out of a-z, 0-9 and the hyphen; unique in the roster."""
    role: Role
    curve_public: bytes
    """CURVE (Curve25519) public key of the party's links, 32 bytes."""
    signing_public: bytes
    """Ed25519 public key (RFC 8032) of the party's signatures, 32 bytes."""
    group: int = 0
    """Number of the client's group; 0 where clients are in none, or where this one waits for a group."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.role not in get_args(Role):
            raise ValueError(f"member {self.name!r}: role {self.role!r} is not one of {', '.join(get_args(Role))}")
        most = LARGEST_GROUP_NUMBER if self.role == "client" else 0
        if not isinstance(self.group, int) or isinstance(self.group, bool) or not 0 <= self.group <= most:
            accepted = f"1 to {most}, or 0 for none" if most else "only clients are in groups"
            raise ValueError(f"member {self.name!r}: group {self.group!r}; {accepted}")
        for purpose, key in (("curve", self.curve_public), ("signing", self.signing_public)):
            if not isinstance(key, bytes) or len(key) != PUBLIC_KEY_BYTES:
                length = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise ValueError(
                    f"member {self.name!r}: the {purpose} public key must be {PUBLIC_KEY_BYTES} bytes, got {length}; "
                    "copy it again from the member's card"
                )


class Roster(msgspec.Struct, frozen=True, dict=True):
    """All members of a federation, in the order that numbers its clients.

    Raises ValueError, naming the member, when two share a name or a key, or when there is not exactly one server, and
    for an operator without a version, or without a signature of its own.
    """

    members: tuple[Member, ...]
    version: int = 0
    """From 1 on; 0 without an operator."""
    operator: bytes = b""
    """Ed25519 public key of whoever may change it, 32 bytes; empty if nobody may."""
    signature: bytes = b""
    """The operator's, of the hash."""

    def __post_init__(self) -> None:
        holder_of_key: dict[bytes, str] = {}
        names: set[str] = set()
        for member in self.members:
            if member.name in names:
                raise ValueError(f"member {member.name!r} is in the roster twice; remove one entry or rename it")
            names.add(member.name)
            for key in (member.curve_public, member.signing_public):
                if key in holder_of_key:
                    raise ValueError(
                        f"member {member.name!r} has a public key that {holder_of_key[key]!r} also has; "
                        "every key serves one member and one purpose: generate new keys"
                    )
                holder_of_key[key] = member.name
        servers = [member.name for member in self.members if member.role == "server"]
        if len(servers) != 1:
            raise ValueError(
                f"a roster has exactly one member with the role 'server', not {servers}: correct the roles"
            )
        if not self.operator:
            if self.version or self.signature:
                raise ValueError(
                    "a version or a signature, and no operator: only an operator makes versions of a roster"
                )
            return
        if self.operator in holder_of_key:
            raise ValueError(f"{holder_of_key[self.operator]!r} has the operator's key: an operator has one of its own")
        if not 1 <= self.version <= LARGEST_VERSION:
            raise ValueError(f"version {self.version}: 1 to {LARGEST_VERSION}")
        try:
            verify(self.operator, self.signature, Label.SIGN_ROSTER, self.hash)
        except RemoteProtocolError:
            raise ValueError(
                "its signature is not that of its operator, so it was changed: get it again from its operator"
            ) from None

    @classmethod
    def signed(cls, members: tuple[Member, ...], *, version: int, operator: SigningKey) -> "Roster":
        """The roster of these members as its operator makes it. ValueError as of the class."""
        hashed = sha256(_encode(members, version, operator.public)).digest()
        return cls(members, version, operator.public, operator.sign(Label.SIGN_ROSTER, hashed))

    @classmethod
    def decode(cls, encoded: bytes, signature: bytes, *, operator: bytes) -> "Roster":
        """The roster with this encoding, which came over the network. Refuses what this operator did not sign."""
        verify(operator, signature, Label.SIGN_ROSTER, sha256(encoded).digest())
        try:
            _, rows, version, named = msgspec.msgpack.decode(encoded, type=_Encoded)
            names = Member.__struct_fields__
            found = cls(tuple(Member(**dict(zip(names, row, strict=True))) for row in rows), version, named, signature)
        except (ValueError, msgspec.DecodeError) as error:
            raise RemoteProtocolError(Code.MALFORMED, f"a roster that is none: {error}") from None
        if found.encoded != encoded:
            raise RemoteProtocolError(Code.MALFORMED, "a roster that is not in canonical form")
        return found

    @cached_property
    def encoded(self) -> bytes:
        """What the hash is of: the msgpack encoding, every item in its shortest form, of the array
        ["tacit/1 roster", [[name, role, curve_public, signing_public, group], ...], version, operator] in roster order:
        str, rows of str, str, bin 32, bin 32, int, then int, bin 32. Without an operator the array ends with the rows.
        """
        return _encode(self.members, self.version, self.operator)

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 (32 bytes) that identifies this roster."""
        return sha256(self.encoded).digest()

    @property
    def fingerprint(self) -> str:
        """The hash for people: nobody finds two rosters that have the same.

        Eight groups of five decimal digits, of the hash as a big-endian number modulo 10^40 (132 bits).
        """
        digits = f"{int.from_bytes(self.hash, 'big') % 10**_FINGERPRINT_DIGITS:0{_FINGERPRINT_DIGITS}}"
        return " ".join(re.findall(".{5}", digits))

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients in roster order."""
        return tuple(member.name for member in self.members if member.role == "client")

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of clients, each in roster order, by their first members; none where clients are in none."""
        groups: dict[int, list[str]] = {}
        for member in self.members:
            if member.group:
                groups.setdefault(member.group, []).append(member.name)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def _group_of(self) -> dict[str, tuple[str, ...]]:
        return {name: group for group in self.groups for name in group}

    def group_of(self, client: str) -> tuple[str, ...]:
        """Who is in a sum only together with this client, itself included; it alone where there are no groups."""
        return self._group_of.get(client, (client,))

    @cached_property
    def waiting(self) -> tuple[str, ...]:
        """The clients that are in no group while others are: they are in no sum."""
        return tuple(name for name in self.clients if self.groups and name not in self._group_of)

    def gather(self, names: Sequence[str], most: int) -> tuple[str, ...]:
        """The clients whose whole groups are among these, at most so many: the first of these, in roster order."""
        there, gathered = set(names).difference(self.waiting), set[str]()
        for name in names:
            group = self.group_of(name)
            if name not in gathered and len(gathered) + len(group) <= most and there.issuperset(group):
                gathered.update(group)
        return tuple(name for name in self.clients if name in gathered)

    def check_whole(self, cohort: tuple[str, ...]) -> None:
        """Refuse a cohort, in roster order, that cuts a group in two."""
        if self.gather(cohort, len(cohort)) != cohort:
            raise RemoteProtocolError(
                Code.MEMBERS, "the cohort has some clients of a group without the others of it, or one that waits"
            )

    @cached_property
    def server(self) -> Member:
        """The one server."""
        return next(member for member in self.members if member.role == "server")

    @cached_property
    def dealer(self) -> Member:
        """The one dealer of private inference; ValueError if there is none, or several."""
        dealers = [member for member in self.members if member.role == "dealer"]
        if len(dealers) != 1:
            names = [member.name for member in dealers]
            raise ValueError(f"private inference has exactly one dealer; the roster has {names}: correct the roles")
        return dealers[0]

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    def member(self, name: str) -> Member:
        """The member of this name; LookupError when the roster has none."""
        if name not in self._by_name:
            raise LookupError(f"{name!r} is not in the roster; its members are {', '.join(self._by_name)}")
        return self._by_name[name]

    def index(self, name: str) -> int:
        """Position of a client among the clients, from 0; LookupError when it is not one of them."""
        if name not in self.clients:
            raise LookupError(f"{name!r} is not a client of the roster; its clients are {', '.join(self.clients)}")
        return self.clients.index(name)


_Encoded = tuple[Literal["tacit/1 roster"], list[tuple[str, Role, bytes, bytes, int]], int, bytes]


def _encode(members: tuple[Member, ...], version: int, operator: bytes) -> bytes:
    rows = [msgspec.structs.astuple(member) for member in members]
    return msgspec.msgpack.encode((_HASH_LABEL, rows, version, operator) if operator else (_HASH_LABEL, rows))


def group_numbers(clients: int, size: int, first: int = 1) -> tuple[int, ...]:
    """The group of each of so many clients: as many groups as there can be of at least `size`, numbered from `first`.

    Neighbours are together, and sizes differ by one at most. All 0 where size is, or where not one group is full.
    """
    count = clients // size if size else 0
    return tuple(first + client * count // clients if count else 0 for client in range(clients))


def check_name(name: str) -> None:
    """Raise ValueError unless `name` can name a member."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise ValueError(f"member name {name!r}: use 1 to 64 characters out of a-z, 0-9 and the hyphen")

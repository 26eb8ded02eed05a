"""The roster: members with their roles, groups and public keys; its versions; and sets of members.

Every party holds the same roster, received over a trusted channel and never from the server. Its hash enters every
signature and every mask seed. The order of the members gives every client its index. docs/spec/encoding.md has the
encodings, and docs/spec/security.md the reason for whole groups in sums.

The standby key named in the roster can replace the operator's key: a version that it has signed is later, regardless of
its number. So a former operator's key may not become standby, and an operator does not change its standby.

A party accepts a later version of its operator and lineage, with any number of versions between, if the server keeps
its name, every remaining member keeps its role and names all its former keys, clients are in groups or in none as
before, and nobody moves from one group to another: a group is unchanged, or is retired, and its remaining clients wait
for a new one. A member with another key changes its group too; its clients ask their owners about that
(protocol/session/client_session.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import chain, islice
from typing import Final, Literal, get_args

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.machine import Entropy
from tacit.protocol.core.primitives import KEY_BYTES, Label, SigningKey, verify


class RosterLabel:
    """Labels of rosters and their parts."""

    GROUP: Final = Label(b"tacit/1 group of clients")
    SIGN_ROSTER: Final = Label(b"tacit/1 sign version of a roster")


def encode_members(members: Iterable[int], size: int) -> bytes:
    """The bitmap, ceil(size/8) bytes, of member positions within 0..size-1 (IndexError outside)."""
    return encode_each((tuple(members),), size)[0]


def encode_each(sets: Iterable[Sequence[int]], size: int) -> list[bytes]:
    """The bitmap of each of these sets."""
    bitmaps: list[bytes] = []
    remaining = iter(sets)
    # A few at a time: unpacked, those of a large cohort take a hundred megabytes.
    while some := list(islice(remaining, _SETS_AT_ONCE)):
        rows = np.repeat(np.arange(len(some)), [len(members) for members in some])
        chosen = np.fromiter(chain.from_iterable(some), np.int64)
        if chosen.size and chosen.min() < 0:
            raise IndexError(f"member {chosen.min()} is negative")
        bits = np.zeros((len(some), size), np.uint8)
        bits[rows, chosen] = 1
        bitmaps += map(bytes, np.packbits(bits, axis=1, bitorder="little"))
    return bitmaps


_SETS_AT_ONCE: Final = 256


class Members:
    """A set of members as it was sent, for sets that may be the whole cohort, which a client compares but never lists.

    Refuses a bitmap of another length or with bits beyond `size`."""

    __slots__ = ("_bits", "_size", "bitmap")

    def __init__(self, bitmap: bytes, size: int) -> None:
        if len(bitmap) != (size + 7) // 8:
            raise RemoteProtocolError(
                Code.MEMBERS, f"a set of {size} members has {(size + 7) // 8} bytes, not {len(bitmap)}"
            )
        self.bitmap = bitmap
        self._bits = int.from_bytes(bitmap, "little")
        self._size = size
        if self._bits >> size:
            raise RemoteProtocolError(
                Code.MEMBERS, f"a set of members has bits beyond the {size} members of the cohort"
            )

    def __contains__(self, member: object) -> bool:
        return isinstance(member, int) and member >= 0 and bool(self._bits >> member & 1)

    def __iter__(self) -> Iterator[int]:
        if not self._bits:
            return iter(())
        bits = np.unpackbits(np.frombuffer(self.bitmap, np.uint8), bitorder="little").view(np.bool_)
        return iter(bits.nonzero()[0].tolist())

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __le__(self, other: Members) -> bool:
        return not self._bits & ~other._bits

    def cuts(self, group: Members) -> bool:
        """Whether some of the group are in this set, and others are not."""
        return self._bits & group._bits not in (0, group._bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and (self.bitmap, self._size) == (other.bitmap, other._size)

    def __hash__(self) -> int:
        return hash((self.bitmap, self._size))


def decode_members(bitmap: bytes, size: int) -> tuple[int, ...]:
    """Positions in rising order. Refuses a bitmap of another length or with bits beyond `size`."""
    return tuple(Members(bitmap, size))


def check_records(records: bytes, size: int, members: Collection[int], code: Code = Code.SHARES) -> None:
    """Refuse a number of bytes other than that of one record for each of these members."""
    if len(records) != size * len(members):
        raise RemoteProtocolError(code, f"{len(members)} records have {size * len(members)} bytes, not {len(records)}")


def split_records(records: bytes, size: int, members: Collection[int], code: Code = Code.SHARES) -> dict[int, bytes]:
    """The record of each of these members; refuses any other number of bytes."""
    check_records(records, size, members, code)
    return {member: records[place * size : (place + 1) * size] for place, member in enumerate(members)}


def records_by_receiver(
    records: Mapping[int, bytes], receivers: Mapping[int, Sequence[int]], size: int
) -> dict[int, bytes]:
    """The records for each receiver, of rising senders; `records`, of rising senders, are for their receivers."""
    to = np.fromiter(chain.from_iterable(receivers[sender] for sender in records), np.int64)
    order = np.argsort(to, kind="stable")
    rows = np.frombuffer(b"".join(records.values()), f"V{size}")
    known, first = np.unique(to[order], return_index=True)
    bounds = [*first.tolist(), len(order)]
    # One receiver at a time: all records of a large cohort are a hundred megabytes, and would be kept twice more.
    return {member: rows[order[bounds[at] : bounds[at + 1]]].tobytes() for at, member in enumerate(known.tolist())}


Role = Literal["server", "client", "dealer"]

NAME_PATTERN = re.compile(r"[a-z0-9-]{1,64}")
PUBLIC_KEY_BYTES = 32
MOST_PREVIOUS: Final = 64
LARGEST_GROUP_NUMBER = 10_000
LARGEST_VERSION = 2**31
LINEAGE_BYTES: Final = 32
_HASH_LABEL = "tacit/1 roster"
_FINGERPRINT_DIGITS = 40


class Member(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One party of the federation, as all others know it.

    Raises ValueError for an invalid name, role or key length."""

    name: str
    """1 to 64 characters out of a-z, 0-9 and the hyphen; unique in the roster."""
    role: Role
    curve_public: bytes
    """CURVE (Curve25519) public key of the party's links, 32 bytes."""
    signing_public: bytes
    """Ed25519 public key (RFC 8032) of the party's signatures, 32 bytes."""
    group: int = 0
    """Number of the client's group; 0 without groups, and for a client that waits for one."""
    previous: tuple[bytes, ...] = ()
    """Former signing keys of the party in this lineage, also under another name, the oldest first: privacy budget spent
    with them counts for it."""

    @property
    def signing_keys(self) -> tuple[bytes, ...]:
        """All its keys, the present one last."""
        return (*self.previous, self.signing_public)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.role not in get_args(Role):
            raise ValueError(f"member {self.name!r}: role {self.role!r} is not one of {', '.join(get_args(Role))}")
        most = LARGEST_GROUP_NUMBER if self.role == "client" else 0
        if not isinstance(self.group, int) or isinstance(self.group, bool) or not 0 <= self.group <= most:
            accepted = f"1 to {most}, or 0 for none" if most else "only clients are in groups"
            raise ValueError(f"member {self.name!r}: group {self.group!r}; {accepted}")
        if len(self.previous) > MOST_PREVIOUS:
            raise ValueError(
                f"member {self.name!r}: {len(self.previous)} keys before; at most {MOST_PREVIOUS} are named"
            )
        earlier = (("earlier signing", key) for key in self.previous)
        for purpose, key in (("curve", self.curve_public), ("signing", self.signing_public), *earlier):
            if not isinstance(key, bytes) or len(key) != PUBLIC_KEY_BYTES:
                length = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise ValueError(
                    f"member {self.name!r}: the {purpose} public key must be {PUBLIC_KEY_BYTES} bytes, got {length}; "
                    "copy it again from the member's card"
                )


class Roster(msgspec.Struct, frozen=True, dict=True):
    """All members of a federation, in the order that numbers its clients.

    Raises ValueError, naming the member, for a shared name or key, and unless there is exactly one server; also for an
    operator without a version, a lineage, or its own signature."""

    members: tuple[Member, ...]
    version: int = 0
    """From 1 on; 0 without an operator."""
    operator: bytes = b""
    """Ed25519 public key of the operator, who may change it, 32 bytes; empty if nobody may."""
    signature: bytes = b""
    """The operator's signature of the hash."""
    lineage: bytes = b""
    """32 random bytes of the first version, which all later ones have; empty without an operator."""
    standby: bytes = b""
    """Ed25519 public key that may replace the operator's, 32 bytes; empty if none may."""
    former: tuple[Member, ...] = ()
    """Removed members, whose spent privacy budget counts when they return."""

    def __post_init__(self) -> None:
        holder_of_key: dict[bytes, str] = {}
        names: set[str] = set()
        for member in (*self.members, *self.former):
            if member.name in names:
                raise ValueError(f"member {member.name!r} is in the roster twice; remove one entry or rename it")
            names.add(member.name)
            for key in (member.curve_public, member.signing_public, *member.previous):
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
            if self.version or self.signature or self.lineage or self.standby:
                raise ValueError(
                    "a version, a lineage or a signature, and no operator: only an operator makes versions of a roster"
                )
            return
        if self.operator in holder_of_key:
            raise ValueError(f"{holder_of_key[self.operator]!r} has the operator's key: an operator has one of its own")
        if self.standby and (len(self.standby) != PUBLIC_KEY_BYTES or self.standby in (self.operator, *holder_of_key)):
            raise ValueError("the standby key of the operator has 32 bytes, and nobody else has it: make a new one")
        if not 1 <= self.version <= LARGEST_VERSION:
            raise ValueError(f"version {self.version}: 1 to {LARGEST_VERSION}")
        if len(self.lineage) != LINEAGE_BYTES:
            raise ValueError(
                f"its lineage has {len(self.lineage)} bytes, not {LINEAGE_BYTES}: rosters up to release 0.2.0 "
                "have none; its operator has to make it anew"
            )
        try:
            verify(self.operator, self.signature, RosterLabel.SIGN_ROSTER, self.hash)
        except RemoteProtocolError:
            raise ValueError(
                "its signature is not that of its operator, so it was changed: get it again from its operator"
            ) from None

    @classmethod
    def signed(
        cls,
        members: tuple[Member, ...],
        *,
        version: int,
        operator: SigningKey,
        lineage: bytes,
        standby: bytes = b"",
        former: tuple[Member, ...] = (),
    ) -> Roster:
        """Make and sign a roster of these members as its operator. ValueError as for the class."""
        hashed = sha256(_encode(members, version, operator.public, lineage, standby, former)).digest()
        signature = operator.sign(RosterLabel.SIGN_ROSTER, hashed)
        return cls(members, version, operator.public, signature, lineage, standby, former)

    @classmethod
    def decode(cls, encoded: bytes, signature: bytes, *, held: Roster) -> Roster:
        """The roster with this encoding, received over the network. Refuses one that neither the operator nor the
        standby key of the held one signed."""
        hashed = sha256(encoded).digest()
        try:
            verify(held.operator, signature, RosterLabel.SIGN_ROSTER, hashed)
        except RemoteProtocolError:
            if not held.standby:
                raise
            verify(held.standby, signature, RosterLabel.SIGN_ROSTER, hashed)
        try:
            read = msgspec.msgpack.decode(encoded, type=_Encoded)
            members, former = (
                tuple(Member(**msgspec.structs.asdict(row)) for row in rows) for rows in (read.rows, read.former)
            )
            found = cls(members, read.version, read.operator, signature, read.lineage, read.standby, former)
        except (ValueError, msgspec.DecodeError) as error:
            raise RemoteProtocolError(Code.MALFORMED, f"a roster that is none: {error}") from None
        if found.encoded != encoded:
            raise RemoteProtocolError(Code.MALFORMED, "a roster that is not in canonical form")
        return found

    @cached_property
    def encoded(self) -> bytes:
        """The hashed encoding: docs/spec/encoding.md."""
        return _encode(self.members, self.version, self.operator, self.lineage, self.standby, self.former)

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 (32 bytes) that identifies this roster."""
        return sha256(self.encoded).digest()

    @property
    def fingerprint(self) -> str:
        """The hash for people: finding two rosters with the same fingerprint is infeasible.

        Eight groups of five decimal digits, of the hash as a big-endian number modulo 10^40 (132 bits)."""
        digits = f"{int.from_bytes(self.hash, 'big') % 10**_FINGERPRINT_DIGITS:0{_FINGERPRINT_DIGITS}}"
        return " ".join(re.findall(".{5}", digits))

    @cached_property
    def clients(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members if member.role == "client")

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The groups of clients, each in roster order, by their first members; empty without groups."""
        groups: dict[int, list[str]] = {}
        for member in self.members:
            if member.group:
                groups.setdefault(member.group, []).append(member.name)
        return tuple(map(tuple, groups.values()))

    @property
    def group_sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.groups))

    @cached_property
    def _group_of(self) -> dict[str, tuple[str, ...]]:
        return {name: group for group in self.groups for name in group}

    def group_of(self, client: str) -> tuple[str, ...]:
        """The clients that are in a sum only together with this one, which is included; it alone without groups."""
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
        return next(member for member in self.members if member.role == "server")

    @cached_property
    def dealer(self) -> Member:
        dealers = [member for member in self.members if member.role == "dealer"]
        if len(dealers) != 1:
            names = [member.name for member in dealers]
            raise ValueError(f"a dealer is needed, and exactly one; the roster has {names}: correct the roles")
        return dealers[0]

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    def member(self, name: str) -> Member:
        if name not in self._by_name:
            raise LookupError(f"{name!r} is not in the roster; its members are {', '.join(self._by_name)}")
        return self._by_name[name]

    def index(self, name: str) -> int:
        """Position of a client among the clients, from 0; LookupError when it is not one of them."""
        if name not in self.clients:
            raise LookupError(f"{name!r} is not a client of the roster; its clients are {', '.join(self.clients)}")
        return self.clients.index(name)


class _Row(msgspec.Struct, array_like=True, omit_defaults=True):
    name: str
    role: Role
    curve_public: bytes
    signing_public: bytes
    group: int
    previous: tuple[bytes, ...] = ()


class _Encoded(msgspec.Struct, array_like=True):
    label: Literal["tacit/1 roster"]
    rows: list[_Row]
    version: int
    operator: bytes
    lineage: bytes
    standby: bytes = b""
    former: list[_Row] = []


def _encode(
    members: tuple[Member, ...],
    version: int,
    operator: bytes,
    lineage: bytes,
    standby: bytes,
    former: tuple[Member, ...],
) -> bytes:
    rows, gone = (
        [row if row[-1] else row[:-1] for row in map(msgspec.structs.astuple, some)] for some in (members, former)
    )
    items = [_HASH_LABEL, rows, version, operator, lineage, standby, gone]
    while not items[-1]:
        items.pop()
    return msgspec.msgpack.encode(items)


def group_numbers(clients: int, size: int, first: int = 1) -> tuple[int, ...]:
    """The group of each of so many clients: as many groups of at least `size` as possible, numbered from `first`.

    Neighbours are together, and sizes differ by at most one. All 0 if size is, or if not one group is full."""
    count = clients // size if size else 0
    return tuple(first + client * count // clients if count else 0 for client in range(clients))


def check_name(name: str) -> None:
    """Raise ValueError for an invalid member name."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise ValueError(f"member name {name!r}: use 1 to 64 characters out of a-z, 0-9 and the hyphen")


RosterChange = Literal["add", "remove", "rotate", "regroup"]
ROSTER_CHANGES: Final[tuple[RosterChange, ...]] = ("add", "remove", "rotate", "regroup")


@dataclass(frozen=True)
class Difference:
    """Changes of a later version of a roster, by the names of members."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    rotated: tuple[str, ...]
    """Remaining members with other keys."""
    regrouped: tuple[str, ...]
    """Remaining clients that now wait, or are in a new group."""

    @property
    def changes(self) -> tuple[RosterChange, ...]:
        happened = zip(ROSTER_CHANGES, (self.added, self.removed, self.rotated, self.regrouped), strict=True)
        return tuple(change for change, names in happened if names)


class NoLongerMemberError(RemoteProtocolError):
    """A later version of the roster lacks this party, or has other keys of it."""


def check_version(held: Roster, offered: Roster) -> None:
    """Refuse (ROSTER) a roster that is not a later version of this one."""
    if not held.operator:
        raise _refused(
            "this party holds a roster without an operator, which has no versions: give everybody the new one"
        )
    takes_over = bool(held.standby) and offered.operator == held.standby
    if offered.operator != held.operator and not takes_over:
        raise _refused("another operator has signed it")
    if offered.lineage != held.lineage:
        raise _refused(
            f"version {offered.version} is of another lineage: of another federation, or older than the roster that "
            "its operator has made anew"
        )
    if takes_over:
        # Regardless of its version: a thief of the operator's key can use the highest number.
        if offered.standby == held.operator:
            raise _refused("its standby key is that of the operator before, who would take the place back")
        return
    if held.standby and offered.standby != held.standby:
        # Otherwise a thief of the operator's key could remove it.
        raise _refused("its standby key is another one: only that key itself replaces it")
    if offered.version <= held.version:
        same = offered.version == held.version
        raise _refused(
            f"it is {'another' if same else 'the older'} version {offered.version}; this party holds version "
            f"{held.version}: {'its operator has made two' if same else 'give the server the newer one'}"
        )


def check_later(held: Roster, offered: Roster, own: str) -> Difference:
    """Changes that a party of this name adopts. Refuses (ROSTER) a roster that is not a later version for it, and
    (MEMBERS) one that breaks the rules; NoLongerMemberError, one of the former, if its operator has removed this
    party."""
    check_version(held, offered)
    mine = {member.name: member for member in offered.members}.get(own)
    if mine is None:
        raise _refused(
            f"version {offered.version} is without {own!r}: its operator has removed it", NoLongerMemberError
        )
    former = held.member(own)
    if (mine.curve_public, mine.signing_public) != (former.curve_public, former.signing_public):
        raise _refused(
            f"version {offered.version} has other keys of {own!r} than this party: its operator rotated them",
            NoLongerMemberError,
        )
    check_rules(held, offered)
    return difference(held, offered)


def check_follows(held: Roster, offered: Roster) -> None:
    """Refuse, as `check_later` does, a roster that no party adopts."""
    check_version(held, offered)
    check_rules(held, offered)


def check_rules(held: Roster, offered: Roster) -> None:
    """Refuse (MEMBERS) changes that no operator may make during a federation."""
    if offered.server.name != held.server.name:
        raise _broken(f"the server was {held.server.name!r}, and is {offered.server.name!r}: it keeps its name")
    roles = {member.name: member.role for member in held.members}
    for member in offered.members:
        if roles.get(member.name, member.role) != member.role:
            raise _broken(f"{member.name!r} was a {roles[member.name]}, and is a {member.role}")
    names = {member.name: member for member in (*offered.members, *offered.former)}
    heirs = {key: member for member in names.values() for key in member.signing_keys}
    for former in (*held.members, *held.former):
        heir = heirs.get(former.signing_public) or names.get(former.name)
        # Another member that names the server's keys is not the server.
        heir = offered.server if former is held.server else heir
        if heir is None:
            raise _broken(f"{former.name!r} has gone, and is not named in it as former")
        if heir.signing_keys[: len(former.signing_keys)] != former.signing_keys:
            raise _broken(f"{heir.name!r} has other keys, and not all that it had before are named in it")
    if held.clients and bool(held.groups) != bool(offered.groups):
        raise _broken("clients were in groups, and are in none, or the reverse")
    stay = set(map(frozenset, offered.groups))
    in_groups = {name for group in offered.groups for name in group}
    for group in held.groups:
        if frozenset(group) not in stay and in_groups.issuperset(group):
            raise _broken(f"the group of {', '.join(group)} is another one, and none of them has gone")


def difference(held: Roster, offered: Roster) -> Difference:
    """Changes of a later version."""
    before, after = ({member.name: member for member in roster.members} for roster in (held, offered))
    stay = [name for name in after if name in before]
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        rotated=tuple(
            name
            for name in stay
            if (before[name].curve_public, before[name].signing_public)
            != (after[name].curve_public, after[name].signing_public)
        ),
        regrouped=tuple(
            name
            for name in stay
            if (name in held.waiting, frozenset(held.group_of(name)))
            != (name in offered.waiting, frozenset(offered.group_of(name)))
        ),
    )


def _refused(detail: str, kind: type[RemoteProtocolError] = RemoteProtocolError) -> RemoteProtocolError:
    return kind(Code.ROSTER, f"a roster that cannot be taken up: {detail}")


def _broken(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(Code.MEMBERS, f"a roster that cannot be taken up: {detail}")


@dataclass(frozen=True, kw_only=True)
class PartyKeys:
    """One party's key pairs, each key 32 raw bytes: X25519 for the link, as CURVE takes it, and Ed25519.

    Raises ValueError for an invalid name, a wrong key length, or a public key that does not match its secret."""

    name: str
    curve_public: bytes
    curve_secret: bytes = field(repr=False)
    signing_public: bytes
    signing_secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        for key in (self.curve_public, self.curve_secret, self.signing_public, self.signing_secret):
            if len(key) != KEY_BYTES:
                raise ValueError(f"keys of {self.name!r}: every key must have {KEY_BYTES} bytes, not {len(key)}")
        if _curve_public(self.curve_secret) != self.curve_public:
            raise ValueError(f"keys of {self.name!r}: the curve public key does not belong to the curve secret key")
        if _signing_public(self.signing_secret) != self.signing_public:
            raise ValueError(f"keys of {self.name!r}: the signing public key does not belong to the signing secret key")

    def member(self, role: Role, group: int = 0) -> Member:
        """The roster's entry for the owner of these keys."""
        return Member(
            name=self.name,
            role=role,
            curve_public=self.curve_public,
            signing_public=self.signing_public,
            group=group,
        )


def new_keys(name: str, *, entropy: Entropy) -> PartyKeys:
    """New keys. name: of small letters, digits and hyphens, else ValueError; entropy: os.urandom."""
    check_name(name)
    curve_secret, signing_secret = entropy(KEY_BYTES), entropy(KEY_BYTES)
    return PartyKeys(
        name=name,
        curve_public=_curve_public(curve_secret),
        curve_secret=curve_secret,
        signing_public=_signing_public(signing_secret),
        signing_secret=signing_secret,
    )


def _curve_public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _signing_public(secret: bytes) -> bytes:
    return SigningKey(secret).public

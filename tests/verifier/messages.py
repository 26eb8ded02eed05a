"""Every message, field by field (docs/spec/messages.md); their frames; the roster and the configuration."""

import re
from typing import Any

from constants import (
    BODY_LIMIT,
    CHUNK_BYTES,
    CODES,
    DETAIL_LIMIT,
    ENVELOPE_LIMIT,
    LARGEST_COHORT,
    NAMES,
    STATEMENT_BYTES,
    VERSION,
    Refused,
    require,
)
from encoding import Array, Binary, Boolean, Integer, Listed, Map, Reader, Real, Text, choice, decode

NUMBER = Integer(0, 2**31)
NAME = Text(64)
HASH = Binary(32, 32)
SIGNATURE = Binary(64)
STATEMENT = Binary(STATEMENT_BYTES)
BITMAP = Binary(LARGEST_COHORT // 8)
LARGE = Binary(BODY_LIMIT)
STATE = Map(type=choice("float32", "uint64"), count=Integer(0, 2**40))
BLOB = Map(digest=HASH, size=Integer(0, 2**40))

ENVELOPE = Map(
    version=Integer(0, 255), type=Text(32), session=HASH, round=NUMBER, sender=NAME, sequence=NUMBER, link=NUMBER,
    received=NUMBER,
)  # fmt: skip

BODIES = {
    "hello": Map(roster=HASH),
    "welcome": Map(roster=HASH, configuration=LARGE, spent=STATEMENT),
    "start-round": Map(cohort=BITMAP, model=BLOB),
    "fetch-fixed": Map(chunk=NUMBER),
    "fetch": Map(chunk=NUMBER),
    "chunk": Map(chunk=NUMBER),
    "advertise-keys": Map(
        channel_key=HASH, mask_key=HASH, choices=Binary(2 * LARGEST_COHORT), spent=STATEMENT, signature=SIGNATURE
    ),
    "peer-keys": Map(advertised=BITMAP, digest=HASH, included=BITMAP, adverts=LARGE),
    "share-keys": Map(seed_commitment=HASH, holders=BITMAP, packets=LARGE, signatures=LARGE),
    "peer-shares": Map(sharers=BITMAP, owners=BITMAP, packets=LARGE, signatures=LARGE),
    "masked-input": Map(complaints=BITMAP, signatures=LARGE),
    "fetch-vector": Map(chunk=NUMBER),
    "vector-chunk": Map(chunk=NUMBER),
    "peer-complaints": Map(holders=BITMAP, signatures=LARGE),
    "answer-complaints": Map(shares=LARGE),
    "survivors": Map(survivors=BITMAP),
    "confirm-survivors": Map(signature=SIGNATURE),
    "unmask-request": Map(survivors=BITMAP, signers=BITMAP, signatures=LARGE, answered=BITMAP, answers=LARGE),
    "unmask-shares": Map(owners=BITMAP, shares=LARGE),
    "end-round": Map(code=Listed(NAMES, or_nil=True), detail=Text(DETAIL_LIMIT)),
    "new-roster": Map(roster=LARGE, signature=SIGNATURE),
    "finish": Map(),
    "abort": Map(code=Listed(NAMES), detail=Text(DETAIL_LIMIT), culprit=NAME),
    "resume": Map(),
    "start-key": Map(epoch=NUMBER, members=BITMAP),
    "end-key": Map(epoch=NUMBER, code=Listed(NAMES), detail=Text(DETAIL_LIMIT), culprit=NAME),
    "reencrypt-model": Map(
        epoch=NUMBER,
        source=choice("clients", "key", "remembered", "server"),
        former=NUMBER,
        model=BLOB,
        round=NUMBER,
    ),
    "keyed-model": Map(epoch=NUMBER, model=BLOB),
    "key-commit": Map(epoch=NUMBER, channel_key=HASH, commitment=HASH, signature=SIGNATURE),
    "peer-key-commits": Map(commits=LARGE),
    "key-contribution": Map(epoch=NUMBER, packets=LARGE),
    "peer-key-contributions": Map(packets=LARGE),
    "confirm-key": Map(epoch=NUMBER, tag=HASH, signature=SIGNATURE),
    "peer-key-confirmations": Map(confirmations=LARGE),
    "key-accepted": Map(epoch=NUMBER),
    "key-complaint": Map(epoch=NUMBER, accused=NUMBER, channel_private=HASH),
}
WITH_RAW_FRAME = ("chunk", "masked-input", "vector-chunk")

CONFIGURATION = Map(
    mode=choice("active", "none", "semi-honest"),
    graph=choice("auto", "complete", "regular"),
    colluders=Integer(0, LARGEST_COHORT),
    dropout=Real(lambda value: 0.0 <= value < 1.0),
    threshold=Integer(0, LARGEST_COHORT),
    clients=Integer(1, LARGEST_COHORT),
    clip=Real(lambda value: value > 0),
    value_bits=Integer(2, 32),
    max_weight=Integer(1, 2**31),
    train_seconds=Real(lambda value: 0 < value <= 86400),
    phase_seconds=Real(lambda value: 0 < value <= 86400),
    scheme=choice("fedavg", "fedsgd", "statistics", "adaptation"),
    min_contributors=Integer(0, LARGEST_COHORT),
    group_key=Boolean(),
    rekey_every=Integer(0, 100000),
    encrypted=Boolean(),
    initial_model=choice("clients", "server"),
    single_vectors=Boolean(),
    spending=Boolean(),
    ring_bits=Integer(8, 64),
    form=choice("scalar", "tensor", "coordinate", "words"),
    tensor_sizes=Array(100000, Integer(1, 2**40)),
    metrics=Array(32, Text(32)),
    state=STATE,
    layout=HASH,
    fixed=BLOB,
    task=LARGE,
)


class Family:
    """The types of one kind of link, those of them that may have a raw frame, and the version in their envelopes."""

    def __init__(self, bodies: dict[str, Map], with_raw_frame: tuple[str, ...], version: int) -> None:
        self.bodies, self.with_raw_frame, self.version = bodies, with_raw_frame, version


FEDERATION = Family(BODIES, WITH_RAW_FRAME, VERSION)


def write_message(
    kind: str,
    session: bytes,
    round_number: int,
    sender: str,
    sequence: int,
    body: dict[str, Any],
    raw: bytes | None,
    family: Family = FEDERATION,
    link: int = 0,
    received: int = 0,
) -> list[bytes]:
    envelope = {
        "version": family.version,
        "type": kind,
        "session": session,
        "round": round_number,
        "sender": sender,
        "sequence": sequence,
        "link": link,
        "received": received,
    }
    return [ENVELOPE.write(envelope), family.bodies[kind].write(body)] + ([] if raw is None else [raw])


def read_envelope(frames: list[bytes], family: Family = FEDERATION) -> dict[str, Any]:
    """Steps 1 to 5 of the checks on a received message."""
    require(len(frames) in (2, 3), "MALFORMED")
    envelope = decode(ENVELOPE, frames[0], ENVELOPE_LIMIT)
    require(envelope["version"] == family.version, "VERSION")
    require(envelope["type"] in family.bodies, "MALFORMED")
    if len(frames) == 3:
        require(envelope["type"] in family.with_raw_frame and len(frames[2]) <= CHUNK_BYTES, "MALFORMED")
    return envelope


def read_body(envelope: dict[str, Any], frames: list[bytes], family: Family = FEDERATION) -> dict[str, Any]:
    """Step 11."""
    return decode(family.bodies[envelope["type"]], frames[1], BODY_LIMIT)


def read_configuration(encoded: bytes) -> dict[str, Any]:
    """A configuration whose fields do not contradict each other."""
    found = decode(CONFIGURATION, encoded, BODY_LIMIT)
    require(found["group_key"] or not found["encrypted"], "MALFORMED")
    require(found["mode"] == "none" or not found["single_vectors"], "MALFORMED")
    return found


def raw_frame(frames: list[bytes]) -> bytes | None:
    return frames[2] if len(frames) == 3 else None


def abort_body(code: str, culprit: str) -> dict[str, Any]:
    """The text is free; this one says the code again."""
    return {"code": CODES[code], "detail": code.lower(), "culprit": culprit}


ROSTER_FIELDS = ("name", "role", "curve_public", "signing_public", "group")
ROSTER_ROW = (NAME, choice("server", "client", "dealer"), HASH, HASH, Integer(0, LARGEST_COHORT))
PREVIOUS = Array(64, HASH)


class Row:
    """A member of a roster, an array of its fields; who had other keys has one more, `previous`."""

    def read(self, reader: Reader) -> dict[str, Any]:
        size = reader.take(1)[0] - 0x90 - len(ROSTER_FIELDS)
        require(size in (0, 1), "MALFORMED")
        found = {field: kind.read(reader) for field, kind in zip(ROSTER_FIELDS, ROSTER_ROW, strict=True)}
        found["previous"] = PREVIOUS.read(reader) if size else []
        require(bool(size) == bool(found["previous"]), "MALFORMED")
        return found

    def write(self, member: dict[str, Any]) -> bytes:
        rows = [kind.write(member[field]) for field, kind in zip(ROSTER_FIELDS, ROSTER_ROW, strict=True)]
        previous = member.get("previous")
        rows += [PREVIOUS.write(list(previous))] if previous else []
        return bytes([0x90 + len(rows)]) + b"".join(rows)


ROSTER_HEAD = Text(16).write("tacit/1 roster")
ROWS = Array(2**32, Row())
ROSTER_VERSION = Integer(1, 2**31)


def check_roster(members: list[dict[str, Any]], operator: bytes, standby: bytes, former: list[dict[str, Any]]) -> None:
    require([member["role"] for member in members].count("server") == 1, "INVALID")
    members = members + former
    require(all(member["role"] == "client" or not member["group"] for member in members), "INVALID")
    require(all(member["group"] <= LARGEST_COHORT for member in members), "INVALID")
    names = [member["name"] for member in members]
    require(all(len(member.get("previous", ())) <= 64 for member in members), "INVALID")
    keys = [member[kind] for member in members for kind in ("curve_public", "signing_public")]
    keys += [key for member in members for key in member.get("previous", ())]
    keys += [operator, *([standby] if standby else [])]
    require(len(set(names)) == len(names) and len(set(keys)) == len(keys), "INVALID")
    require(all(re.fullmatch("[a-z0-9-]{1,64}", name) for name in names), "INVALID")


Rows = list[dict[str, Any]]
EMPTY = b"\xc4\x00"


def write_roster(
    members: Rows, version: int, operator: bytes, lineage: bytes, standby: bytes = b"", former: Rows | None = None
) -> bytes:
    """["tacit/1 roster", rows of members, version, operator, lineage, standby, rows of former members], without the
    empty items at its end."""
    check_roster(members, operator, standby, former or [])
    require(len(standby) in ((0, 32) if operator else (0,)), "INVALID")
    require(bool(operator) == (1 <= version <= 2**31) and (operator or not version), "INVALID")
    require(len(lineage) == (32 if operator else 0), "INVALID")
    items = [ROSTER_HEAD, ROWS.write(members)]
    if operator or former:
        items += [ROSTER_VERSION.write(version) if operator else b"\0"]
        items += [HASH.write(key) if key else EMPTY for key in (operator, lineage)]
    if standby or former:
        items += [HASH.write(standby) if standby else EMPTY]
    items += [ROWS.write(former)] if former else []
    return bytes([0x90 + len(items)]) + b"".join(items)


def read_roster(encoded: bytes, operator: bytes) -> tuple[Rows, int, bytes, bytes, Rows]:
    """The members, the version, the lineage, the standby key and the former members of a roster with this operator."""
    reader = Reader(encoded)
    head = reader.take(1 + len(ROSTER_HEAD))
    require(head[:1] in (b"\x95", b"\x96", b"\x97") and head[1:] == ROSTER_HEAD, "MALFORMED")
    members, version, named = ROWS.read(reader), ROSTER_VERSION.read(reader), HASH.read(reader)
    lineage = HASH.read(reader)
    standby, former = b"", []
    if head[:1] == b"\x97" and encoded[reader.position : reader.position + 2] == EMPTY:
        reader.take(2)
    elif head[:1] != b"\x95":
        standby = HASH.read(reader)
    if head[:1] == b"\x97":
        former = ROWS.read(reader)
        require(former != [], "MALFORMED")
    require(reader.position == len(encoded) and named == operator, "MALFORMED")
    try:
        check_roster(members, operator, standby, former)
    except Refused:
        raise Refused("MALFORMED") from None
    return members, version, lineage, standby, former

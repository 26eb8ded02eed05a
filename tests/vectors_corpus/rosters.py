"""Transcripts of versions of a roster: how they are signed, handed on and taken up, and what nobody takes up."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import Any, Final

from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Member, RosterLabel
from tacit.protocol.session.messages import Hello, NewRoster
from tests.vectors_corpus.faults import Reframe, envelope, fields, first_bit, instead, to
from tests.vectors_corpus.groups import CHANGES, CLIENTS, PAIRS, all_there
from tests.vectors_corpus.play import SERVER, Parcel, Play, ending
from tests.vectors_corpus.primitives import drawn, vectors
from tests.vectors_corpus.script import Script
from tests.vectors_corpus.session_faults import SessionFault
from tests.vectors_corpus.sessions import (
    CHEAT,
    MODEL,
    begun,
    hold_round,
    policy_of,
    roster,
    roster_of,
    session_client,
    session_server,
)

OPERATOR: Final = drawn("operator")
LINEAGE: Final = drawn("lineage")
FIRST: Final[dict[str, Any]] = {"version": 1, "operator": OPERATOR, "lineage": LINEAGE}
SECOND: Final[dict[str, Any]] = FIRST | {"version": 2}
STANDBY: Final = drawn("standby key")
WITH_STANDBY: Final[dict[str, Any]] = FIRST | {"standby": SigningKey(STANDBY).public}
Rows = list[dict[str, Any]]


def changed() -> Rows:
    """The second version: client-2 is gone, client-3 has come."""
    return [row for row in roster(4) if row["name"] != "client-2"]


def with_row(rows: Rows, name: str, **changes: Any) -> Rows:
    return [row | changes if row["name"] == name else row for row in rows]


def rotated(rows: Rows, name: str) -> Rows:
    (former,) = (row["signing_public"] for row in rows if row["name"] == name)
    return with_row(
        rows, name, curve_public=drawn(f"{name} other curve"), signing_public=drawn(f"{name} other key"),
        previous=(former,),
    )  # fmt: skip


def gone(rows: Rows) -> tuple[Member, ...]:
    """Who was in the first version, and is not in these rows."""
    there = {row[field] for row in rows for field in ("name", "signing_public")}
    return tuple(Member(**row) for row in roster() if there.isdisjoint((row["name"], row["signing_public"])))


def signed(rows: Rows, version: int = 2, **named: Any) -> dict[str, bytes]:
    """The fields of new-roster; named: another operator or lineage, or other former members."""
    fields = SECOND | {"version": version, "former": gone(rows)} | named
    made = roster_of(rows, **fields)
    return {"roster": made.encoded, "signature": made.signature}


@vectors("Versions of rosters, with an operator's signature.")
def rosters(script: Script) -> None:
    for version in (1, 2, 127, 128, 2**31):
        script.do("roster", members=roster(3), **FIRST | {"version": version})
    script.do("sign roster", members=roster(3), **SECOND)
    other = {"operator": drawn("another operator"), "lineage": drawn("another lineage")}
    script.do("sign roster", members=roster(3, (1, 1, 0)), version=3, **other)
    script.do("sign roster", members=with_row(roster(3), CHEAT, previous=[drawn("first"), drawn("second")]), **SECOND)
    script.do("roster", members=roster(3), **WITH_STANDBY)
    script.do("sign roster", members=roster(3), **WITH_STANDBY)
    former = [row | {"previous": [drawn(row["name"])]} for row in roster(5)[-2:]]
    for given in ({}, FIRST, WITH_STANDBY):
        script.do("roster", members=roster(3), **given, former=former)
    script.do("sign roster", members=roster(3), **FIRST, former=former[:1])


@vectors("Versions and lineages that no roster has, and an operator with the key of a member.")
def rosters_bad_version(script: Script) -> None:
    for version in (0, 2**31 + 1):
        script.refuse("INVALID", "roster", members=roster(3), **FIRST | {"version": version})
    script.refuse("INVALID", "roster", members=roster(3), version=1)
    script.refuse("INVALID", "roster", members=roster(3), lineage=LINEAGE)
    for lineage in (b"", LINEAGE[:31], LINEAGE + b"\0"):
        script.refuse("INVALID", "roster", members=roster(3), **FIRST | {"lineage": lineage})
    script.refuse("INVALID", "roster", members=roster(3), **FIRST | {"operator": drawn(f"{CHEAT} signing")})
    for standby in (SigningKey(OPERATOR).public, roster(3)[1]["signing_public"], drawn("standby")[:31]):
        script.refuse("INVALID", "roster", members=roster(3), **FIRST | {"standby": standby})
    script.refuse("INVALID", "roster", members=roster(3), standby=drawn("standby"))
    for former in (roster(3)[-1:], [roster(4)[-1] | {"signing_public": roster(3)[1]["signing_public"]}]):
        script.refuse("INVALID", "roster", members=roster(3), **FIRST, former=former)


@cache
def session_changed() -> Play:
    play = begun(
        "Between two rounds the server is given the next version of the roster, with a newcomer and without client-2: "
        "the others take it up, client-2 is in it no more, and the session is over.",
        signed=FIRST,
    )
    hold_round(play, 1)
    play.act(SERVER, "change_roster", roster=roster_of(changed(), **SECOND, former=gone(changed())), model=MODEL)
    play.deliver()
    return ending(ending(play, "roster changed"), "ended", "ROSTER")


def session_changed_early() -> Play:
    play = begun("While the server waits for one client its roster is changed: another one has other keys.",
                 signed=FIRST, silent=("client-2",))  # fmt: skip
    play.deliver()
    play.act(SERVER, "change_roster", roster=roster_of(rotated(roster(), "client-0"), **SECOND), model=b"")
    play.deliver()
    return ending(ending(play, "roster changed"), "ended", "ROSTER")


def session_server_rotated() -> Play:
    play = begun("While the server waits for one client it is given other keys: the clients take that up.",
                 signed=FIRST, silent=("client-2",))  # fmt: skip
    play.deliver()
    play.act(SERVER, "change_roster", roster=roster_of(rotated(roster(), SERVER), **SECOND), model=b"")
    play.deliver()
    return ending(ending(play, "roster changed"), "ended", "ROSTER")


@cache
def session_taken_over() -> Play:
    play = begun(
        "While the server waits for one client it is given a roster of the same version that the standby key has "
        "signed, and that names another one: the clients take it up.",
        signed=WITH_STANDBY, silent=("client-2",),
    )  # fmt: skip
    play.deliver()
    by_standby = FIRST | {"operator": STANDBY, "standby": drawn("next standby")}
    play.act(SERVER, "change_roster", roster=roster_of(roster(), **by_standby), model=b"")
    play.deliver()
    return ending(ending(play, "roster changed"), "ended", "ROSTER")


def session_handed() -> Play:
    play = Play(
        "federation",
        "A client with another roster is handed the server's, five times at once and then from time to time; with the "
        "server's it is welcome.",
    )
    members = roster_of(roster(), **SECOND)
    play.make(SERVER, session_server(members))
    hello = session_changed().said("hello", CHEAT, SERVER)
    frames = instead(Hello(roster=drawn("another roster")))
    for now in (0.0, 0.0, 0.0, 0.0, 4.0, 6.0, 7.0):
        play.now = now
        play.give(hello, frames(None, hello))
    play.expire(SERVER, 10.0)
    play.now = 30.0
    play.give(hello, fields(roster=to(members.hash))(None, hello))
    return ending(ending(play, "message-refused", "ROSTER"), "client-joined")


def session_taken_up() -> Play:
    play = Play("federation", "A client that was away says hello with the first version, and is handed the third.")
    play.make(CHEAT, session_client(CHEAT, roster_of(roster(), **FIRST)))
    play.act(CHEAT, "start")
    parcel = session_changed().said("welcome", SERVER, CHEAT)
    play.give(parcel, instead(NewRoster(**signed(changed(), 3)))(None, parcel))
    return ending(ending(play, "roster changed"), "ended", "ROSTER")


GROUPED: Final = roster(CLIENTS, PAIRS)
RETIRED: Final = [
    with_group for row in GROUPED if row["name"] != "client-0"
    for with_group in [row | {"group": 0} if row["name"] == "client-2" else row]
]  # fmt: skip
"""client-0 is gone, and the other one of its group waits."""


@cache
def grouped() -> Play:
    """A session with groups, the roster of which is changed in one of them."""
    play = begun(
        "A group of six clients in pairs loses a member: it is retired, and who is left of it waits.",
        groups=PAIRS, signed=FIRST, draws=128, mode="semi-honest", silent=("client-5",), **CHANGES,
    )  # fmt: skip
    play.deliver()
    play.act(SERVER, "change_roster", roster=roster_of(RETIRED, **SECOND, former=gone(RETIRED)), model=b"")
    play.deliver()
    return ending(play, "roster changed")


def session_waiting() -> Play:
    play = begun(
        "Eight clients, of whom two wait for a group: the server begins with the others.",
        clients=8, groups=(1, 1, 2, 2, 3, 3, 0, 0), draws=128, mode="semi-honest", colluders=0, dropout=0.34,
    )  # fmt: skip
    play.deliver()
    return ending(play, "journal group")


def _telling(rows: Callable[[], Rows], version: int = 2, **named: Any) -> Reframe:
    return lambda _, parcel: fields(**{name: to(value) for name, value in signed(rows(), version, **named).items()})(
        None, parcel
    )


def _signing(change: Callable[[bytes], bytes]) -> Reframe:
    def reframe(_: Any, parcel: Parcel) -> tuple[bytes, ...]:
        encoded = change(signed(changed())["roster"])
        signature = SigningKey(OPERATOR).sign(RosterLabel.SIGN_ROSTER, sha256(encoded).digest())
        return fields(roster=to(encoded), signature=to(signature))(None, parcel)

    return reframe


_KEYS: Final = [drawn(f"client-{number} curve") for number in (1, 3)]


def _as_sent(_: Any, parcel: Parcel) -> tuple[bytes, ...]:
    return parcel.frames


def _regrouped(*numbers: int) -> Callable[[], Rows]:
    return lambda: roster(CLIENTS, numbers)


def _fault(
    about: str,
    code: str,
    frames: Reframe,
    play: Callable[[], Play] = session_changed,
    kind: str = "new-roster",
    **client: Any,
) -> SessionFault:
    return SessionFault(about, code, kind, frames, to=CHEAT, play=play, client=client)


FAULTS: Final[dict[str, SessionFault]] = {
    "new_roster_bad_signature": _fault("A signature that does not verify.", "SIGNATURE", fields(signature=first_bit)),
    "new_roster_bad_operator": _fault(
        "Another operator than that of the client's roster.", "SIGNATURE",
        _telling(changed, operator=drawn("another operator")),
    ),
    "new_roster_bad_content": _fault("Another roster than was signed.", "SIGNATURE", fields(roster=first_bit)),
    "new_roster_bad_form": _fault("A byte behind the roster.", "MALFORMED", _signing(lambda encoded: encoded + b"\0")),
    "new_roster_bad_number": _fault(
        "A version that is not in its shortest form.", "MALFORMED",
        _signing(lambda encoded: encoded.replace(b"\2\xc4\x20", b"\xcc\2\xc4\x20")),
    ),
    "new_roster_bad_maker": _fault(
        "A roster with another operator than signed it.", "MALFORMED",
        _signing(lambda encoded: signed(changed(), operator=drawn("another operator"))["roster"]),
    ),
    "new_roster_bad_equal": _fault(
        "A key that two members have.", "MALFORMED", _signing(lambda encoded: encoded.replace(_KEYS[0], _KEYS[1])),
    ),
    "new_roster_bad_absence": _fault(
        "The client's roster has no operator.", "ROSTER",
        lambda _, parcel: instead(NewRoster(**signed(changed())))(None, parcel), play=all_there, kind="welcome",
    ),
    "new_roster_bad_version": _fault(
        "Another roster of the client's own version.", "ROSTER", _telling(changed, 1)
    ),
    "new_roster_bad_lineage": _fault(
        "A later version of another lineage.", "ROSTER", _telling(changed, lineage=drawn("another lineage"))
    ),
    "new_roster_bad_member": _fault(
        "A roster without the client.", "ROSTER",
        _telling(lambda: [row for row in changed() if row["name"] != CHEAT]),
    ),
    "new_roster_bad_keys": _fault("Other keys of the client.", "ROSTER", _telling(lambda: rotated(changed(), CHEAT))),
    "new_roster_bad_server": _fault(
        "Another name of the server.", "MEMBERS",
        _telling(lambda: [row | {"name": "another"} if row["name"] == SERVER else row for row in changed()]),
    ),
    "new_roster_bad_server_keys": _fault(
        "Other keys of the server, whose earlier ones are not named.", "MEMBERS",
        _telling(lambda: with_row(rotated(changed(), SERVER), SERVER, previous=())),
    ),
    "new_roster_bad_heir": _fault(
        "Other keys of the server, whose earlier ones a client names.", "MEMBERS",
        _telling(lambda: with_row(with_row(rotated(rows := changed(), SERVER), SERVER, previous=()), "client-3",
                                  previous=[row["signing_public"] for row in rows if row["name"] == SERVER])),
    ),
    "new_roster_bad_previous": _fault(
        "Other keys of a client, whose earlier ones are not named.", "MEMBERS",
        _telling(lambda: with_row(rotated(changed(), "client-0"), "client-0", previous=())),
    ),
    "new_roster_bad_former": _fault(
        "A roster without a client, which is not named as former.", "MEMBERS", _telling(changed, former=())
    ),
    "new_roster_bad_standby": _fault(
        "Another standby key, which the operator has signed.", "ROSTER",
        _telling(roster, standby=drawn("next standby")), play=session_taken_over,
    ),
    "new_roster_bad_no_standby": _fault(
        "No standby key any more, which the operator has signed.", "ROSTER", _telling(roster), play=session_taken_over,
    ),
    "new_roster_bad_return": _fault(
        "The standby key names the operator before as the next one.", "ROSTER",
        _telling(roster, operator=STANDBY, standby=SigningKey(OPERATOR).public), play=session_taken_over,
    ),
    "new_roster_bad_stranger": _fault(
        "A roster that neither the operator nor the standby key has signed.", "SIGNATURE",
        _telling(roster, operator=drawn("another operator")), play=session_taken_over,
    ),
    "new_roster_bad_role": _fault(
        "A client that is a dealer.", "MEMBERS", _telling(lambda: with_row(roster(), "client-2", role="dealer"))
    ),
    "new_roster_bad_groups": _fault("Groups where there were none.", "MEMBERS", _telling(lambda: roster(3, (1, 1, 1)))),
    "new_roster_bad_no_groups": _fault(
        "No groups where there were some.", "MEMBERS", _telling(lambda: roster(CLIENTS)), play=grouped
    ),
    "new_roster_bad_move": _fault(
        "Two clients that change places between groups.", "MEMBERS", _telling(_regrouped(300, 1, 300, 2, 1, 2)),
        play=grouped,
    ),
    "new_roster_bad_growth": _fault(
        "A group of which one is in another.", "MEMBERS",
        _telling(lambda: with_row(with_row(GROUPED, "client-0", group=2), "client-2", group=0)), play=grouped,
    ),
    "new_roster_bad_own_group": _fault(
        "Other keys of a client of its own group.", "POLICY", _telling(lambda: rotated(GROUPED, "client-3")),
        play=grouped,
    ),
    "new_roster_bad_policy": _fault(
        "A newcomer, where the client's policy does not accept any.", "POLICY", _as_sent,
        policy=policy_of(modes=["active", "semi-honest"], roster_changes=["remove", "rotate"]),
    ),
    "new_roster_bad_round": _fault("A roster in a round.", "SESSION", envelope(round=1)),
}  # fmt: skip
PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    session_changed, session_changed_early, session_server_rotated, session_taken_over, session_handed,
    session_taken_up, grouped,
)  # fmt: skip

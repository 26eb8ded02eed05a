"""Vectors of groups: rosters that have them, sums and sessions with them, and what cuts one in two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from tacit.protocol.core.roster import encode_members
from tacit.protocol.session.rounds import GroupEntry, JournalEntry
from tests.vectors_corpus.faults import Fault, fields, members, to
from tests.vectors_corpus.messages import encoded
from tests.vectors_corpus.play import SERVER, Play, ending
from tests.vectors_corpus.primitives import drawn, vectors
from tests.vectors_corpus.rounds import (
    GROUPED,
    PLAIN,
    TWO_CHUNKS,
    sum_terms,
    with_losses,
    words,
)
from tests.vectors_corpus.script import Script
from tests.vectors_corpus.session_faults import SessionFault
from tests.vectors_corpus.sessions import CHEAT, LENGTH, names
from tests.vectors_corpus.sessions import begun as begun_session
from tests.vectors_corpus.sessions import roster as session_roster

CLIENTS: Final = 6
PAIRS: Final = (300, 1, 300, 1, 2, 2)
"""Numbers of the groups of six clients."""
PAIRED: Final[dict[str, Any]] = {"groups": [[0, 2], [1, 3]], "fewest_survivors": 2}
"""Terms of four clients in pairs, of which one may be left out."""
CHANGES: Final[dict[str, Any]] = {"clients": CLIENTS, "colluders": 0, "dropout": 0.34}


@vectors("Hashes of rosters whose clients are in groups.")
def groups(script: Script) -> None:
    for numbers in (
        (1, 1, 2, 2), (2, 2, 1, 1), (1, 1, 1, 1), (127, 128, 255, 256), (10_000, 10_000, 1, 1), (1, 1, 0, 2),
    ):  # fmt: skip
        script.do("roster", members=session_roster(4, numbers))


@vectors("Rosters with a group of the server, or too many.")
def groups_bad_roster(script: Script) -> None:
    rows = session_roster(3)
    for numbers in ((1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 1, 10_001)):
        script.refuse(
            "INVALID", "roster", members=[row | {"group": number} for row, number in zip(rows, numbers, strict=True)]
        )


def round_groups() -> Play:
    return with_losses(
        sum_terms(4, active=True, **PAIRED),
        "Four clients in two groups, active: one sends no vector. The other of its group is left out, and signs.",
        {"client-3": "masked-input"},
    )


def round_groups_semi_honest() -> Play:
    return with_losses(
        sum_terms(4, active=False, ring_bits=64, **PAIRED),
        "Four clients in two groups, semi-honest: one does not share, and the other of its group answers.",
        {"client-1": "share-keys"},
    )


def round_groups_ring() -> Play:
    return with_losses(
        sum_terms(CLIENTS, active=True, regular=(4, 3), **GROUPED),
        "Six clients who choose their holders, in three groups, active: one sends no vector.",
        {"client-5": "masked-input"},
    )


def round_groups_uploads() -> Play:
    pairs = [[member, member + 5] for member in range(5)]
    return with_losses(
        sum_terms(10, active=False, length=TWO_CHUNKS, **PLAIN, groups=pairs, fewest_survivors=8),
        "Ten clients in five pairs with vectors of two chunks: one more pair is ready than may upload.",
        {},
    )


def _trained(play: Play, taking_part: Sequence[str], length: int = LENGTH) -> None:
    for name in taking_part:
        play.act(name, "contribute", round=1, vector=words(f"{name} vector", 32, length))
    play.deliver()


@cache
def session_groups() -> Play:
    play = begun_session(
        "Six clients in three groups, semi-honest: one does not come, and the others of all other groups begin.",
        groups=PAIRS, silent=("client-4",), draws=128, mode="semi-honest", **CHANGES,
    )  # fmt: skip
    play.deliver()
    play.expire(SERVER, 60.0)
    play.deliver()
    _trained(play, names(4))
    play.act(SERVER, "finish", model=b"")
    play.deliver()
    return ending(ending(play, "journal group"), "round done")


@cache
def all_there() -> Play:
    play = begun_session("", groups=PAIRS, draws=128, mode="semi-honest", **CHANGES)
    play.deliver()
    return play


@cache
def keyed() -> Play:
    play = begun_session("", groups=PAIRS, draws=64, group_key=True, mode="none", **CHANGES)
    play.deliver(lambda parcel: None if parcel.kind == "key-commit" else parcel.frames)
    return play


CUT: Final = to(encode_members((0, 1, 2, 4, 5), CLIENTS))
ENTRY: Final = JournalEntry(session=drawn("session before"), round=1)
ELSEWHERE: Final = GroupEntry(group=drawn("another group"))
SESSION_FAULTS: Final[dict[str, SessionFault]] = {
    "start_round_bad_group": SessionFault(
        "A cohort that cuts a group in two.", "MEMBERS", "start-round", fields(cohort=CUT), to=CHEAT,
        ends="round over", play=all_there,
    ),
    "start_key_bad_group": SessionFault(
        "Members of a group key that cut a group in two.", "MEMBERS", "start-key", fields(members=CUT), to=CHEAT,
        play=keyed,
    ),
    "welcome_bad_group_size": SessionFault(
        "A group of two, where one client of six may collude.", "POLICY", "welcome",
        fields(configuration=to(encoded(mode="semi-honest", **{**CHANGES, "colluders": 1}))), to=CHEAT, play=all_there,
    ),
    "welcome_bad_group": SessionFault(
        "A client that was in another group before.", "POLICY", "welcome", lambda _, parcel: parcel.frames, to=CHEAT,
        play=all_there, client={"journal": (ELSEWHERE,)},
    ),
    "welcome_bad_group_journal": SessionFault(
        "A client that took part in no group before.", "POLICY", "welcome", lambda _, parcel: parcel.frames, to=CHEAT,
        play=all_there, client={"journal": (ENTRY,)},
    ),
    "welcome_bad_no_group": SessionFault(
        "A client that was in a group before, and is in none.", "POLICY", "welcome", lambda _, parcel: parcel.frames,
        to=CHEAT, client={"journal": (ELSEWHERE,)},
    ),
}  # fmt: skip
FAULTS: Final[dict[str, Fault]] = {
    "survivors_bad_group": Fault(
        "Survivors that cut a group in two.", "MEMBERS", "survivors", fields(survivors=members(0, 1, 2, 3, 4, size=6)),
        to=CHEAT, of="groups",
    ),
    "survivors_bad_groups": Fault(
        "Whole groups of fewer clients than may be in a sum.", "THRESHOLD", "survivors",
        fields(survivors=members(1, 4, size=6)), to=CHEAT, of="groups",
    ),
    "unmask_request_bad_group": Fault(
        "A semi-honest client is told survivors that cut a group in two.", "MEMBERS", "unmask-request",
        fields(survivors=members(0, 1, 2, 3, 5, size=6)), to=CHEAT, of="groups semi-honest",
    ),
}  # fmt: skip
PLAYS: Final[tuple[Callable[[], Play], ...]] = (
    round_groups, round_groups_semi_honest, round_groups_ring, round_groups_uploads,
)  # fmt: skip

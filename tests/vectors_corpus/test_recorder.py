"""Runs that are in no vector are recorded and replayed as well: by our machines, and by those of the verifier."""

import subprocess
import sys
from pathlib import Path

import msgspec

from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.simulate.conformance.vectors import check
from tacit.simulate.world.adaptation import learning_terms, round_plan
from tacit.simulate.world.federation import small_configuration
from tacit.simulate.world.inference import data_owner_names
from tacit.simulate.world.world import Streams, new_members
from tests.vectors_corpus.recorder import RecordedAdaptation, RecordedFederation, RecordedWorld

VERIFIER = Path(__file__).parents[1] / "verifier" / "verify.py"


def groups() -> RecordedWorld:
    return RecordedFederation(small_configuration(6, dropout=0.5), 6, groups=(1, 1, 1, 2, 2, 2)).run()


def changed_roster() -> RecordedWorld:
    """One client is removed after the first round; the others go on in another session."""
    roster, signing = new_members(
        {"server": "server", **{f"client-{number}": "client" for number in range(4)}}, Streams(b"recorded")
    )
    first, second = (
        Roster.signed(
            roster.members[:size],
            version=version,
            operator=SigningKey(b"\x11" * 32),
            lineage=bytes(32),
            former=roster.members[size:],
        )
        for version, size in ((1, 5), (2, 4))
    )
    world = RecordedFederation(small_configuration(4), 0, rounds=2, members=(first, signing))
    world.paused = True
    world.start()
    world.change_roster(second)
    world.paused = False
    world.start()
    return world.settle()


def lost_sum() -> RecordedWorld:
    names = data_owner_names(2)
    plans = {names[0]: round_plan(1, names), names[1]: round_plan(1, names)[:-1]}
    return RecordedAdaptation(plans, terms=learning_terms(adapters=0)).run()


def test_other_runs_are_recorded_and_replayed(tmp_path: Path) -> None:
    events = set()
    for make in (groups, changed_roster, lost_sum):
        recorder = make().recorder
        steps = [step for step in recorder.steps if "dealer" not in step.machine]
        content = msgspec.json.encode(recorder.transcript(make.__name__, steps))
        assert check(make.__name__, content).fault == "", make
        (tmp_path / f"{make.__name__}.json").write_bytes(content)
        events |= {event["event"] for step in steps for event in step.events}
        events |= {step.do for step in steps}
    assert events >= {"journal group", "roster changed", "change_roster", "give_up", "sum told"}
    run = subprocess.run([sys.executable, VERIFIER, tmp_path], capture_output=True, text=True, check=False)
    assert run.stdout == "3 of 3 files agree\n"

"""The vectors are those of the corpus, say what they must, reach every rule, stay frozen, and replay as recorded."""

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.errors import Code
from tacit.protocol.core.primitives import SigningKey
from tacit.protocol.core.roster import Roster
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.computations import COMPUTATIONS, Refusal
from tacit.simulate.conformance.transcripts import PLAYED
from tacit.simulate.conformance.vectors import SCHEMA, check, installed, vector_files
from tacit.simulate.world.adaptation import learning_terms, round_plan
from tacit.simulate.world.federation import small_configuration
from tacit.simulate.world.inference import data_owner_names
from tacit.simulate.world.world import Streams, new_members
from tests.vectors_corpus.files import CORPUS, write_corpus
from tests.vectors_corpus.frozen import FROZEN, digest_of
from tests.vectors_corpus.page import page
from tests.vectors_corpus.recorder import RecordedAdaptation, RecordedFederation, RecordedWorld
from tests.vectors_corpus.script import Script

REPOSITORY = Path(__file__).parents[2]
FILES = {path.name: json.loads(path.read_bytes()) for path in vector_files(installed())}
VECTORS = {name: file for name, file in FILES.items() if "computations" in file}
TRANSCRIPTS = {name: file for name, file in FILES.items() if "steps" in file}
STEPS = [(name, file["protocol"], step) for name, file in VECTORS.items() for step in file["computations"]]


def test_writing_the_vectors_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "gone_since.json").write_text("{}")
    write_corpus(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    old = {path.name: path.read_bytes() for path in installed().iterdir() if path.name.endswith(".json")}
    assert sorted(written) == sorted(old) == sorted([*CORPUS, SCHEMA])
    assert [name for name in old if old[name] != written[name]] == [], "run `make vectors`"


def test_the_page_is_up_to_date() -> None:
    assert (REPOSITORY / "docs/spec/vectors.md").read_text(encoding="utf-8") == page(), "run `make vectors`"


def test_every_message_that_a_played_machine_receives_was_sent_or_forged_in_the_name_of_its_peer() -> None:
    for name, file in TRANSCRIPTS.items():
        for step in file["steps"]:
            if step["do"] == "receive":
                message = file["messages"][step["message"]]
                assert message["receiver"] == step["machine"].split("/")[0], name


def test_every_played_role_is_in_a_transcript() -> None:
    created = {
        (file["protocol"], step["role"])
        for file in TRANSCRIPTS.values()
        for step in file["steps"]
        if step["do"] == "create"
    }
    at_dealer = {("double-blind adaptation", role) for role in ("dealer", "owner at the dealer")}
    assert created == {(name, role) for name, played in PLAYED.items() for role in played.roles} - at_dealer


def test_sums_of_transcripts_are_those_of_the_vectors() -> None:
    sums = 0
    for file in TRANSCRIPTS.values():
        given, bits, plain = dict[tuple[str, int | None], list[int]](), 0, None
        for step in file["steps"]:
            if step["do"] == "create":
                given = {place: vector for place, vector in given.items() if place[0] != step["machine"]}
                settings = file["common"] | step.get("given", {})
                bits = settings.get("agreement", {}).get("ring", settings.get("configuration", {})).get("bits", bits)
                bits = settings.get("configuration", {}).get("ring_bits", bits)
                plain = (
                    settings.get("agreement", {}).get("plain")
                    or settings.get("configuration", {}).get("mode") == "none"
                )
            if step["do"] == "contribute":
                given[step["machine"], step["given"].get("round")] = step["given"]["vector"]
            for event in step.get("events", ()):
                # Without secure aggregation they are floats, which the verifier adds.
                if isinstance(event.get("total"), list) and not plain:
                    vectors = [given.get((name, event.get("round"))) for name in event["survivors"]]
                    if None not in vectors:
                        columns = zip(*vectors, strict=True)
                        assert event["total"] == [sum(column) % 2**bits for column in columns]
                        sums += 1
    assert sums >= 30


def test_every_code_of_the_wire_is_reached() -> None:
    reached = {step["refused"] for _, _, step in STEPS if "refused" in step}
    for path in vector_files(installed()):
        reached |= set(re.findall(r'"code": ?"([A-Z]+)"', path.read_text(encoding="utf-8")))
    # Nobody else makes a party unable to go on.
    assert reached == {code.name for code in Code} - {"LOCAL"} | {"INVALID"}


def test_every_computation_and_message_is_used() -> None:
    used = {(protocol, step["do"]) for _, protocol, step in STEPS}
    assert used == {(protocol, name) for protocol, named in COMPUTATIONS.items() for name in named}
    written = {(protocol, step["with"]["type"]) for _, protocol, step in STEPS if step["do"] == "write message"}
    families = {
        "secure sum": MESSAGES,
        "private inference": INFERENCE_MESSAGES,
        "double-blind adaptation": ADAPTATION_MESSAGES,
    }
    assert written == {(protocol, kind) for protocol, kinds in families.items() for kind in kinds}


def test_a_vector_that_says_something_else_is_not_recorded() -> None:
    script = Script("secure sum", "")
    with pytest.raises(ValueError, match="was to be refused"):
        script.refuse("MEMBERS", "read members", bitmap="01", size=1)
    with pytest.raises(Refusal, match="MEMBERS"):
        script.refuse("KEYS", "read members", bitmap="02", size=1)
    with pytest.raises(Refusal, match="MEMBERS"):
        script.do("read members", bitmap="02", size=1)
    assert script.steps == []


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


def test_frozen_vectors_stay_as_they_are() -> None:
    changed = [name for name, digest in FROZEN.items() if digest_of(name) != digest]
    assert changed == [], "these are of a frozen version of the wire: what changes them is a later version"

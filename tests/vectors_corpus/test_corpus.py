"""The installed vectors are those of the corpus, say what they must, and reach every rule of the wire."""

import json
import re
from pathlib import Path

import pytest

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.computations import COMPUTATIONS, Refusal
from tacit.simulate.conformance.transcripts import PLAYED
from tacit.simulate.conformance.vectors import SCHEMA, installed, vector_files
from tests.vectors_corpus.files import CORPUS, write_corpus
from tests.vectors_corpus.page import page
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

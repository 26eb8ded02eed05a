"""The installed vectors are those of the corpus, say what they must, and reach every rule of the wire."""

import json
from pathlib import Path
from typing import Any

import pytest

from tacit.protocol.adaptation.messages import ADAPTATION_MESSAGES
from tacit.protocol.core.errors import Code
from tacit.protocol.inference.messages import INFERENCE_MESSAGES
from tacit.protocol.session.messages import MESSAGES
from tacit.simulate.conformance.notation import octets
from tacit.simulate.conformance.operations import RefusedOperation
from tacit.simulate.conformance.transcripts import PLAYED
from tacit.simulate.conformance.vectors import PROTOCOLS, SCHEMA, installed, vector_files
from tests.vectors_corpus.files import CORPUS, write_corpus
from tests.vectors_corpus.page import page
from tests.vectors_corpus.script import Script

REPOSITORY = Path(__file__).parents[2]
FILES = {path.name: json.loads(path.read_bytes()) for path in vector_files(installed())}
VECTORS = {name: file for name, file in FILES.items() if "operations" in file}
TRANSCRIPTS = {name: file for name, file in FILES.items() if "steps" in file}
STEPS = [(name, file["protocol"], step) for name, file in VECTORS.items() for step in file["operations"]]


def test_writing_the_vectors_again_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "gone_since.json").write_text("{}")
    write_corpus(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    old = {path.name: path.read_bytes() for path in installed().iterdir() if path.name.endswith(".json")}
    assert sorted(written) == sorted(old) == sorted([*CORPUS, SCHEMA])
    assert [name for name in old if old[name] != written[name]] == [], "run `make vectors`"


def test_the_page_is_up_to_date() -> None:
    assert (REPOSITORY / "docs/spec/vectors.md").read_text(encoding="utf-8") == page(), "run `make vectors`"


def codes(value: Any) -> set[str]:
    """The names of the codes that an outcome has anywhere."""
    if isinstance(value, dict):
        own = {value["code"]} if isinstance(value.get("code"), str) else set()
        return own.union(*map(codes, value.values()))
    return set().union(*map(codes, value)) if isinstance(value, list) else set()


def test_transcripts_that_end_with_a_refusal_are_named_so() -> None:
    for name, file in TRANSCRIPTS.items():
        sent = {number for step in file["steps"] for number in step.get("sends", ())}
        received = [step["message"] for step in file["steps"] if step["do"] == "receive"]
        played = {step["machine"].split("/")[0] for step in file["steps"]}
        forged = [number for number in received if number not in sent and file["messages"][number]["sender"] in played]
        last = file["steps"][-1]
        refused = any(event.get("code") for event in last.get("events", ()))
        assert ("_bad_" in name) == (last["do"] == "receive" and refused), name
        assert not forged, name


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
    for name, file in TRANSCRIPTS.items():
        if "plain" in name:
            continue  # Floats: the verifier adds them.
        given = {
            (step["machine"], step["given"].get("round")): step["given"]["vector"]
            for step in file["steps"]
            if step["do"] == "contribute"
        }
        for event in [event for step in file["steps"] for event in step.get("events", ())]:
            if event.get("total") is not None and event["survivors"][0] in {name for name, _ in given}:
                columns = zip(*(given[name, event.get("round")] for name in event["survivors"]), strict=True)
                assert event["total"] == [sum(column) % 2**32 for column in columns]
                sums += 1
    assert sums >= 8


def test_every_code_of_the_wire_is_reached() -> None:
    reached = set().union(*(codes(step["expect"]) if "expect" in step else {step["refused"]} for _, _, step in STEPS))
    # Nobody else makes a party unable to go on.
    assert reached == {code.name for code in Code} - {"LOCAL"} | {"INVALID"}


def test_every_operation_and_message_is_used() -> None:
    used = {(protocol, step["do"]) for _, protocol, step in STEPS}
    assert used == {(protocol, name) for protocol, make in PROTOCOLS.items() for name in make()}
    written = {(protocol, step["with"]["type"]) for _, protocol, step in STEPS if step["do"] == "write message"}
    families = {
        "secure sum": MESSAGES,
        "private inference": INFERENCE_MESSAGES,
        "double-blind adaptation": ADAPTATION_MESSAGES,
    }
    assert written == {(protocol, kind) for protocol, kinds in families.items() for kind in kinds}


def test_sums_are_those_of_the_vectors() -> None:
    sums = 0
    for file in VECTORS.values():
        begin = file["operations"][0]
        if begin["do"] != "begin sum" or not begin["with"]["clients"] or begin["with"]["terms"]["mode"] == "none":
            continue
        bits = begin["with"]["terms"]["ring_bits"]
        width = -(-bits // 8)
        given = {client["name"]: octets(client["vector"]) for client in begin["with"]["clients"]}
        events = [event for step in file["operations"][1:] for event in step["expect"]["events"]]
        for event in events:
            if event["event"] != "sum" or event["words"].startswith("sha256"):
                continue
            words = bytes.fromhex(event["words"])
            for start in range(0, len(words), width):
                terms = (given[name][start : start + width] for name in event["survivors"])
                expected = sum(int.from_bytes(term, "little") for term in terms) % 2**bits
                assert int.from_bytes(words[start : start + width], "little") == expected
            sums += 1
    assert sums >= 7


def test_a_vector_that_says_something_else_is_not_recorded() -> None:
    script = Script("secure sum", "primitive", "")
    with pytest.raises(ValueError, match="was to be refused"):
        script.refuse("MEMBERS", "read members", bitmap="01", size=1)
    with pytest.raises(RefusedOperation, match="MEMBERS"):
        script.refuse("KEYS", "read members", bitmap="02", size=1)
    with pytest.raises(RefusedOperation, match="MEMBERS"):
        script.do("read members", bitmap="02", size=1)
    assert script.steps == []

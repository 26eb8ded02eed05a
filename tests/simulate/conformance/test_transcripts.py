"""Transcripts: all that are installed hold, and an error planted into any part of one is found."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from tacit.simulate.conformance.vectors import check, installed, vector_files

TRANSCRIPTS = {
    path.name: path.read_bytes() for path in vector_files(installed()) if path.name.startswith("transcript_")
}
Change = Callable[[dict[str, Any]], object]


def fault(file: dict[str, Any]) -> str:
    return check("file.json", json.dumps(file).encode()).fault


def changed(change: Change) -> str:
    file = json.loads(TRANSCRIPTS["transcript_sum.json"])
    change(file)
    return fault(file)


def sending(file: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(step for step in file["steps"] if step.get("sends"))
    return found


def test_every_installed_transcript_holds() -> None:
    assert len(TRANSCRIPTS) >= 20
    assert {name: check(name, content).fault for name, content in TRANSCRIPTS.items()} == dict.fromkeys(TRANSCRIPTS, "")


def test_an_error_in_what_is_expected_is_found_in_a_transcript_of_every_protocol() -> None:
    """The last state differs, or the last message that is sent. Of each protocol in the shortest two transcripts."""
    of_protocol: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name, content in sorted(TRANSCRIPTS.items(), key=lambda item: len(item[1])):
        file = json.loads(content)
        of_protocol.setdefault(file["protocol"], []).append((name, file))
    for number, (name, file) in enumerate(found for files in of_protocol.values() for found in files[:2]):
        if number % 2:
            file["steps"][-1]["state"] = "ELSEWHERE"
            assert "state: expected ELSEWHERE" in fault(file), name
            continue
        last = [step["sends"][-1] for step in file["steps"] if step.get("sends")][-1]
        message = file["messages"][last]
        message["receiver"] += "s"
        assert f"another message than message {last}" in fault(file), name


VERDICTS: list[tuple[Change, str]] = [
    (lambda file: file.update(protocol="telepathy"), "no protocol 'telepathy'; known are secure sum, "),
    (lambda file: file.update(version=0), "version 0 of the wire; this installation has "),
    (lambda file: file.update(more=1), "not a vector file: Object contains unknown field `more`"),
    (lambda file: file["steps"][0].update(role="king"), "step 0, server, create: no role 'king'; known are client"),
    (lambda file: file["steps"].pop(0), "server, receive: it is used before it is created"),
    (lambda file: sending(file).update(do="sing"), "its role has no call 'sing'"),
    (lambda file: sending(file).update(given={"louder": True}), "it takes no louder"),
    (lambda file: sending(file).update(entropy=""), "32 random bytes are drawn, and 0 are left in this step"),
    (lambda file: sending(file).update(entropy=sending(file)["entropy"] + "00"), "1 random bytes of "),
    (lambda file: sending(file).update(sends=[]), "expected 0 messages, got 1"),
    (lambda file: sending(file).update(sends=[1]), "another message than message 1"),
    (lambda file: sending(file).update(events=[{"event": "sum"}]), "events: expected [{'event': 'sum'}], got []"),
    (lambda file: sending(file).update(deadline=1.0), "deadline: expected 1.0, got "),
    (lambda file: file["steps"][-1].update(message=None), "there is no message None"),
    (lambda file: file["steps"][-1].update(message=1000), "there is no message 1000"),
    (lambda file: file["common"].update(agreement=1), "server, create: ValidationError: Expected `object`"),
]


def test_the_verdict_says_what_is_wrong() -> None:
    verdicts = [(changed(change), expected) for change, expected in VERDICTS]
    assert [pair for pair in verdicts if pair[1] not in pair[0]] == []


def test_words_of_explanations_are_free_and_codes_are_not() -> None:
    def reworded(**changes: Any) -> str:
        file = json.loads(TRANSCRIPTS["transcript_sum_bad_server.json"])
        abort = file["messages"][file["steps"][-1]["sends"][0]]
        body = msgspec.msgpack.decode(bytes.fromhex(abort["frames"][1]))
        abort["frames"][1] = msgspec.msgpack.encode(body | changes).hex()
        return fault(file)

    assert reworded(detail="in other words") == ""
    assert "another message than" in reworded(code=11)

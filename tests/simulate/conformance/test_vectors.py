"""Replaying: every vector holds, a planted error in any of them is found, and what is no vector says why."""

import json
from typing import Any

import pytest

from tacit.simulate.conformance.notation import LONGEST, octets, plain
from tacit.simulate.conformance.vectors import PROTOCOLS, check, installed, vector_files
from tests.cases import cases

FILES = {path.name: json.loads(path.read_bytes()) for path in vector_files(installed())}
VECTORS = {name: file for name, file in FILES.items() if "operations" in file}


def fault(file: dict[str, Any]) -> str:
    return check("file.json", json.dumps(file).encode()).fault


def spoilt(value: Any) -> Any:
    """The value with an error in its last part."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + ("0" if value[-1:] != "0" else "1")
        case list():
            return [*value[:-1], spoilt(value[-1])] if value else [0]
        case dict():
            *_, last = [*value, "more"]
            last = [*value][-1] if value else "more"
            return value | {last: spoilt(value.get(last))}
    return 0


@cases("level", ["primitive", "message", "round", "session"])
def test_an_error_in_what_is_expected_is_found_in_every_file(level: str) -> None:
    for name, file in VECTORS.items():
        if file["level"] != level:
            continue
        number = len(file["operations"]) // 2
        steps = [dict(step) for step in file["operations"][: number + 1]]
        step = steps[number]
        if "refused" in step:
            step["refused"] = "SHARES" if step["refused"] != "SHARES" else "KEYS"
        else:
            step["expect"] = spoilt(step["expect"])
        assert fault(file | {"operations": steps}).startswith(f"operation {number}, {step['do']}: "), name


MEMBERS = {"do": "read members", "with": {"bitmap": "01", "size": 1}, "expect": [0]}
FILE = {"protocol": "secure sum", "level": "primitive", "about": "", "operations": [MEMBERS]}


def with_step(**changes: Any) -> dict[str, Any]:
    step = {key: value for key, value in (MEMBERS | changes).items() if value is not ...}
    return FILE | {"operations": [step]}


@cases(
    ("file", "expected"),
    [
        (FILE, ""),
        (FILE | {"operations": []}, "not a vector file: Expected `array` of length >= 1"),
        (FILE | {"level": "high"}, "not a vector file: Invalid enum value 'high'"),
        (FILE | {"more": 1}, "not a vector file: Object contains unknown field `more`"),
        (FILE | {"protocol": "telepathy"}, f"unknown protocol 'telepathy'; known are {', '.join(PROTOCOLS)}"),
        (with_step(expect=...), "not a vector file: an operation is expected either to return something or"),
        (with_step(refused="MEMBERS"), "not a vector file: an operation is expected either to return something or"),
        (with_step(more=1), "not a vector file: Object contains unknown field `more`"),
        (with_step(do="guess"), "operation 0, guess: VectorError: there is no operation 'guess'"),
        (with_step(do="receive"), "operation 0, receive: VectorError: inputs of receive: "),
        (with_step(**{"with": {"bitmap": "01"}}), "operation 0, read members: VectorError: inputs of read members: "),
        (with_step(**{"with": {"bitmap": "0G", "size": 1}}), "operation 0, read members: VectorError: inputs of"),
        (with_step(**{"with": {"bitmap": "AA", "size": 8}}), "operation 0, read members: VectorError: inputs of"),
        (with_step(**{"with": {"bitmap": 1, "size": 1}}), "operation 0, read members: VectorError: inputs of"),
        (with_step(**{"with": {"bitmap": "01", "size": 1, "more": 1}}), "operation 0, read members: VectorError: "),
        (with_step(expect=[1]), "operation 0, read members: result[0]: expected 1, got 0"),
        (with_step(expect=[False]), "operation 0, read members: result[0]: expected false, got 0"),
        (with_step(expect=[0, 0]), "operation 0, read members: result: expected [0,0], got [0]"),
        (with_step(expect=None), "operation 0, read members: result: expected null, got [0]"),
        (with_step(expect=..., refused="MEMBERS"), "operation 0, read members: expected a refusal with MEMBERS, got"),
        (with_step(**{"with": {"bitmap": "02", "size": 1}}), "operation 0, read members: refused with MEMBERS: "),
        (
            with_step(**{"with": {"bitmap": "02", "size": 1}}, expect=..., refused="KEYS"),
            "operation 0, read members: expected a refusal with KEYS, got MEMBERS: ",
        ),
    ],
)  # fmt: skip
def test_what_a_file_is_told(file: dict[str, Any], expected: str) -> None:
    assert fault(file).startswith(expected)
    assert bool(fault(file)) == bool(expected)


@cases("content", [b"", b"{", b"[]", b"\xff", b'{"protocol": "\xff"}'])
def test_what_is_no_json(content: bytes) -> None:
    assert check("file.json", content).fault.startswith("not a vector file: ")


def machines(name: str, *steps: dict[str, Any]) -> str:
    """What a file says whose first operation is that of another, and then these."""
    file = VECTORS[name]
    return fault(file | {"operations": [file["operations"][0], *steps]})


@cases(
    ("name", "inputs", "expected"),
    [
        ("round_active", {"do": "start", "party": "server"}, "server is no member"),
        ("round_active", {"do": "start", "party": "nobody"}, "nobody is not played"),
        ("round_active", {"do": "receive", "party": "server", "sender": "client-0", "message": 0}, "message 0 is none"),
        ("keys_bad_point", {"do": "start", "party": "client-0"}, "client-0 is not played"),
        ("peer_keys_bad_list", {"do": "drop", "party": "client-0"}, "server is not played"),
        ("group_key_three", {"do": "start", "party": "server"}, "server is no member"),
        ("key_commit_bad_point", {"do": "start", "party": "client-0"}, "client-0 is not played"),
        ("peer_key_commits_bad_own", {"do": "drop", "party": "client-0"}, "server is not played"),
        ("session_active", {"do": "hello", "party": "nobody"}, "nobody is not played"),
        ("welcome_bad_roster", {"do": "finish"}, "server is not played"),
        ("inference_hello_bad_form", {"do": "hello", "party": "data"}, "data is not played"),
        ("inference_hello_bad_form", {"do": "mask", "party": "model", "layer": 0, "data": ""}, "model has no session"),
        (
            "inference_hello_bad_form",
            {"do": "receive", "party": "dealer", "sender": "data"},
            "dealer is not played",
        ),
        ("pass_started_bad_model", {"do": "drop", "party": "model", "peer": "data"}, "model is not played"),
        ("pass_started_bad_model", {"do": "hello to dealer", "party": "data"}, "data has not agreed on terms"),
        ("pass_started_bad_model", {"do": "order no more", "party": "data"}, "data has not come to the dealer"),
        (
            "material_hello_bad_form",
            {"do": "deliver", "party": "dealer", "data_owner": "data", "owner": "data", "number": 0, "data": ""},
            "dealer has no session with data",
        ),
    ],
)
def test_what_machines_are_not_there_for(name: str, inputs: dict[str, Any], expected: str) -> None:
    step = {"do": inputs["do"], "with": {key: value for key, value in inputs.items() if key != "do"}, "expect": 0}
    assert machines(f"{name}.json", step).startswith(f"operation 1, {inputs['do']}: VectorError: {expected}")


def test_entropy_that_runs_out() -> None:
    file = json.loads(json.dumps(VECTORS["round_active.json"]))
    file["operations"][0]["with"]["clients"][0]["entropy"] = "00" * 63
    assert "63 bytes of entropy are too few" in fault(file)


def test_octets() -> None:
    assert octets("") == b""
    assert octets("00ff") == b"\x00\xff"
    # The first bytes of SHAKE-256 of nothing (FIPS 202).
    assert octets("shake256(,4)").hex() == "46b9dd2b"
    for text in (
        "0",
        "FF",
        "0x00",
        " 00",
        "00\n",
        "shake256(0,1)",
        "shake256(00)",
        "sha256(00)",
        "shake256(,16777217)",
    ):
        with pytest.raises(ValueError, match=r"hex|at most"):
            octets(text)


def test_results_are_written_out_or_hashed() -> None:
    assert plain({"words": bytes(LONGEST), "more": (b"\1", None, 1.5)}) == {
        "words": "00" * LONGEST,
        "more": ["01", None, 1.5],
    }
    assert plain(bytes(LONGEST + 1)).startswith("sha256(")
    with pytest.raises(TypeError, match="no place"):
        plain({1, 2})

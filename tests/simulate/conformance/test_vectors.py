"""Replaying: every vector holds, a planted error in any of them is found, and what is no vector says why."""

import json
from typing import Any

import pytest

from tacit.simulate.conformance.computations import COMPUTATIONS
from tacit.simulate.conformance.notation import LONGEST, octets, plain
from tacit.simulate.conformance.vectors import check, installed, vector_files
from tests.cases import cases

FILES = {path.name: json.loads(path.read_bytes()) for path in vector_files(installed())}
VECTORS = {name: file for name, file in FILES.items() if "computations" in file}


def fault(file: dict[str, Any]) -> str:
    return check("file.json", json.dumps(file).encode()).fault


def spoilt(value: Any) -> Any:
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


def test_an_error_in_what_is_expected_is_found_in_every_file() -> None:
    for name, file in VECTORS.items():
        number = len(file["computations"]) // 2
        steps = [dict(step) for step in file["computations"][: number + 1]]
        step = steps[number]
        if "refused" in step:
            step["refused"] = "SHARES" if step["refused"] != "SHARES" else "KEYS"
        else:
            step["expect"] = spoilt(step["expect"])
        assert fault(file | {"computations": steps}).startswith(f"computation {number}, {step['do']}: "), name


MEMBERS = {"do": "read members", "with": {"bitmap": "01", "size": 1}, "expect": [0]}
FILE = {"protocol": "secure sum", "about": "", "computations": [MEMBERS]}


def with_step(**changes: Any) -> dict[str, Any]:
    step = {key: value for key, value in (MEMBERS | changes).items() if value is not ...}
    return FILE | {"computations": [step]}


@cases(
    ("file", "expected"),
    [
        (FILE, ""),
        (FILE | {"computations": []}, "not a vector file: Expected `array` of length >= 1"),
        (FILE | {"more": 1}, "not a vector file: Object contains unknown field `more`"),
        (FILE | {"protocol": "telepathy"}, f"unknown protocol 'telepathy'; known are {', '.join(COMPUTATIONS)}"),
        (with_step(expect=...), "not a vector file: a computation is expected either to return something or"),
        (with_step(refused="MEMBERS"), "not a vector file: a computation is expected either to return something or"),
        (with_step(more=1), "not a vector file: Object contains unknown field `more`"),
        (with_step(do="guess"), "computation 0, guess: VectorError: there is no computation 'guess'"),
        (with_step(**{"with": {"bitmap": "01"}}), "computation 0, read members: VectorError: inputs of read members: "),
        (with_step(**{"with": {"bitmap": "0G", "size": 1}}), "computation 0, read members: VectorError: inputs of"),
        (with_step(**{"with": {"bitmap": "AA", "size": 8}}), "computation 0, read members: VectorError: inputs of"),
        (with_step(**{"with": {"bitmap": 1, "size": 1}}), "computation 0, read members: VectorError: inputs of"),
        (with_step(**{"with": {"bitmap": "01", "size": 1, "more": 1}}), "computation 0, read members: VectorError: "),
        (with_step(expect=[1]), "computation 0, read members: result[0]: expected 1, got 0"),
        (with_step(expect=[False]), "computation 0, read members: result[0]: expected false, got 0"),
        (with_step(expect=[0, 0]), "computation 0, read members: result: expected [0,0], got [0]"),
        (with_step(expect=None), "computation 0, read members: result: expected null, got [0]"),
        (with_step(expect=..., refused="MEMBERS"), "computation 0, read members: expected a refusal with MEMBERS, got"),
        (with_step(**{"with": {"bitmap": "02", "size": 1}}), "computation 0, read members: refused with MEMBERS: "),
        (
            with_step(**{"with": {"bitmap": "02", "size": 1}}, expect=..., refused="KEYS"),
            "computation 0, read members: expected a refusal with KEYS, got MEMBERS: ",
        ),
    ],
)  # fmt: skip
def test_what_a_file_is_told(file: dict[str, Any], expected: str) -> None:
    assert fault(file).startswith(expected)
    assert bool(fault(file)) == bool(expected)


@cases("content", [b"", b"{", b"[]", b"\xff", b'{"protocol": "\xff"}'])
def test_what_is_no_json(content: bytes) -> None:
    assert check("file.json", content).fault.startswith("not a vector file: ")


def test_octets() -> None:
    assert octets("") == b""
    assert octets("00ff") == b"\x00\xff"
    assert octets("00*3") == bytes(3)
    for text in (
        "0",
        "FF",
        "0x00",
        " 00",
        "00\n",
        "01*3",
        "00*",
        "sha256(00)",
        "00*16777217",
    ):
        with pytest.raises(ValueError, match=r"hex|at most"):
            octets(text)


def test_byte_strings_are_written_out_or_hashed() -> None:
    assert plain({"words": bytes(LONGEST), "more": (b"\1", None, 1.5)}) == {
        "words": "00" * LONGEST,
        "more": ["01", None, 1.5],
    }
    assert plain(bytes(LONGEST + 1)) == "00*4097"
    assert plain(b"\1" * (LONGEST + 1)).startswith("sha256(")
    with pytest.raises(TypeError, match="no place"):
        plain({1, 2})

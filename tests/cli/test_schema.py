"""`tacit schema`: a schema for every file for programs. That the files fit them is tested where commands write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tacit.cli.commands.schema import json_schema, result_files
from tests.cases import cases
from tests.cli.command import Invoke
from tests.cli.outputs import check_output


def test_all_names_are_listed(tacit: Invoke) -> None:
    result = tacit("schema")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()] == [*result_files()]


@cases("name", result_files())
def test_every_schema_can_be_printed(tacit: Invoke, name: str) -> None:
    result = tacit("schema", name)
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found == json.loads(json.dumps(json_schema(name)))
    whole = found["$defs"][found["$ref"].rpartition("/")[2]]
    assert [found["$id"]] == whole["properties"]["schema"]["enum"]
    assert found["$id"].startswith(f"tacit.{name}.")
    assert whole["required"][0] == "schema"


def test_a_schema_that_is_none_is_refused(tacit: Invoke) -> None:
    result = tacit("schema", "sumary")
    assert result.exit_code == 2
    assert result.stderr.startswith("tacit: schema sumary: there is none; choose one of adaptation, answers, ")


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(more=1),
        lambda content: content.pop("version"),
        lambda content: content.update(version="1"),
    ],
)
def test_what_does_not_fit_is_noticed(tmp_path: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = tmp_path / "roster.json"
    content: dict[str, object] = {
        "schema": "tacit.roster.1",
        "fingerprint": "",
        "hash": "",
        "version": 1,
        "members": [],
    }
    path.write_text(json.dumps(content))
    assert check_output(path, "roster")["version"] == 1
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises((AssertionError, msgspec.ValidationError)):
        check_output(path, "roster")

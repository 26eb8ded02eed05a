"""[adapter] as it stands in a file: every key, on both sides of every bound."""

from typing import Any

import msgspec
import pytest

from tacit.models.adapters.configuration import AdapterConfiguration, LinearProbeConfiguration, ParallelConfiguration

# (key, accepted values, refused values)
PARALLEL: list[tuple[str, list[Any], list[Any]]] = [
    ("rank", [1, 1024], [0, 1025, 1.5]),
    ("scale", [1e-6, 100.0], [0.0, 100.5]),
    ("initialisation", ["kaiming", "xavier"], ["zero"]),
]


def read(text: str) -> AdapterConfiguration:
    return msgspec.toml.decode(text, type=dict[str, AdapterConfiguration])["adapter"]


def test_a_kind_is_decoded_as_its_struct() -> None:
    assert read('[adapter]\nkind = "parallel"\nrank = 4') == ParallelConfiguration(rank=4)
    assert read('[adapter]\nkind = "linear-probe"') == LinearProbeConfiguration()


@pytest.mark.parametrize("section", ['kind = "lora"', "", "rank = 4", 'kind = "linear-probe"\nrank = 4'])
def test_other_kinds_and_keys_of_others_are_refused(section: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"kind|rank"):
        read(f"[adapter]\n{section}")


def test_the_table_names_every_key_once() -> None:
    assert tuple(name for name, _, _ in PARALLEL) == ParallelConfiguration.__struct_fields__
    assert LinearProbeConfiguration.__struct_fields__ == ()


@pytest.mark.parametrize(("name", "accepted", "refused"), PARALLEL)
def test_bounds(name: str, accepted: list[Any], refused: list[Any]) -> None:
    for value in accepted:
        assert getattr(msgspec.convert({name: value, "kind": "parallel"}, ParallelConfiguration), name) == value
    for value in refused:
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.convert({name: value, "kind": "parallel"}, ParallelConfiguration)

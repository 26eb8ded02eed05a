"""What a model owner tells everybody about its model: strict on the way in, harmless within its limits."""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from tacit.models.datasets.samples import LEAST_CROP
from tacit.models.friendly.transformer import Approximation, convert
from tacit.models.networks import build
from tacit.parties.correlated.material import Request, check
from tacit.parties.inference.model import PublicModel, fitted_model, integer_model, weight_octets
from tacit.parties.inference.operations import DATA, FixedLinear, Party, Program
from tacit.parties.inference.ranking import cut_bits
from tacit.parties.inference.stages import Carried, input_share, stages
from tacit.protocol.inference.schedule import LOGITS, layer_shapes
from tests.parties.inference.conftest import ModelConfiguration, Transformer

Way = tuple[str | int, ...]
OPTIONAL = (
    *("lift", "levels", "steps", "divisor", "forms", "squarings", "hidden_bits", "prefix", "norm_pre", "pooling"),
    "whole",
)


def leaves(plain: Any, path: Way = ()) -> Iterator[tuple[Way, int | float]]:
    if path == ("waves",):  # A digest: tests of its own.
        return
    if not isinstance(plain, dict | list | tuple):
        yield path, plain
        return
    for key, part in plain.items() if isinstance(plain, dict) else enumerate(plain):
        yield from leaves(part, (*path, key))


def changed(plain: Any, path: Way, value: Any) -> Any:
    if not path:
        return value
    copied = copy.copy(plain)
    if isinstance(copied, tuple):
        copied = list(copied)
    copied[path[0]] = changed(plain[path[0]], path[1:], value)
    return copied


def accepted(plain: Any) -> PublicModel | None:
    try:
        return msgspec.convert(plain, PublicModel)
    except ValueError:
        return None


def test_a_public_model_survives_the_way(student: Transformer) -> None:
    assert msgspec.convert(msgspec.to_builtins(student.public, builtin_types=(bytes,)), PublicModel) == student.public


def test_no_number_may_be_of_another_kind(one_block: Transformer) -> None:
    plain = msgspec.to_builtins(one_block.public, builtin_types=(bytes,))
    del plain["interface"]  # Of people's words, with tests of its own.
    for path, number in leaves(plain):
        if isinstance(number, bool):
            assert all(accepted(changed(plain, path, value)) is None for value in (None, 1, 0.0, "true", []))
            continue
        if number is None or isinstance(number, str):
            assert all(accepted(changed(plain, path, value)) is None for value in (True, 0.5, "inverses", []))
            continue
        wrong = [
            *([] if path[-1] == "steps" else [None]),
            str(number),
            b"\1",
            [number],
            {},
            True,
            float("nan"),
            float("inf"),
            -1,
            -1.5,
            1e300,
        ]
        if isinstance(number, int):
            wrong += [number + 0.5, 1 << 63, 1 << 70]
        if path[-2] in ("cosines", "sines") or path[-1] == "constant":
            wrong.remove(-1)
        for value in wrong:
            assert accepted(changed(plain, path, value)) is None, (path, value)


@pytest.mark.parametrize(
    ("way", "low", "high"),
    [
        (("blocks", 0, "hidden_bits"), 0, 14),
        (("blocks", 0, "gelu_cut"), 0, 16),
        (("blocks", 0, "exponential_cut"), 0, 24),
        (("blocks", 0, "query_turn"), 1, 36),
        (("blocks", 0, "exponential", "constant"), -(1 << 32), 1 << 32),
        (("blocks", 0, "exponential", "cosines", 0), -(1 << 32), 1 << 32),
        (("blocks", 0, "exponential", "precision"), 1, 28),
        (("blocks", 0, "exponential", "words"), 1, 28),
        (("blocks", 0, "totals", "factor"), 1, 1 << 62),
        (("blocks", 0, "totals", "low"), 0, 1 << 32),
        (("blocks", 0, "hidden_spread", "levels"), 1, 32),
        (("blocks", 0, "first_norm", "lift", 0), 1, 1 << 12),
        (("blocks", 0, "first_norm", "lift", 1), 1, 1 << 12),
        (("head", "norm", "cut"), 0, 24),
        (("head", "norm", "variance", "inverse", "steps"), 1, 16),
        (("head", "norm", "variance", "inverse", "offset"), 0.0, 2.0**100),
        (("head", "norm", "variance", "inverse", "divisor"), 2.0**-100, 2.0**100),
        (("head", "logits"), 2.0**-100, 2.0**100),
        (("embedding", "pixel"), 2.0**-100, 2.0**100),
    ],
)
def test_numbers_have_limits(one_block: Transformer, way: Way, low: float, high: float) -> None:
    plain = msgspec.to_builtins(one_block.public, builtin_types=(bytes,))
    assert accepted(changed(plain, way, low))
    assert accepted(changed(plain, way, high))
    below, above = (low - 1, high + 1) if isinstance(low, int) else (low / 2 or -1e-9, high * 2)
    assert accepted(changed(plain, way, below)) is None
    assert accepted(changed(plain, way, above)) is None


def test_nothing_may_be_missing_or_added(one_block: Transformer) -> None:
    plain = msgspec.to_builtins(one_block.public, builtin_types=(bytes,))
    assert accepted(plain) is not None
    del plain["interface"]  # May be absent.
    for path, _ in leaves(plain):
        for depth in range(len(path)):
            part = plain
            for key in path[:depth]:
                part = part[key]
            if isinstance(part, dict):
                less = {key: value for key, value in part.items() if key != path[depth]}
                optional = path[depth] in OPTIONAL
                for wrong in (*(() if optional else (less,)), part | {"extra": 1}):
                    assert accepted(changed(plain, path[:depth], wrong)) is None
    for wrong in ((), plain["blocks"] * 2):
        assert accepted(plain | {"blocks": wrong}) is None
    for number in (0, 65):
        wave = plain["blocks"][0]["exponential"] | {"cosines": [1] * number, "sines": [1] * number}
        assert accepted(changed(plain, ("blocks", 0, "exponential"), wave)) is None


def test_a_crop_makes_no_data_owner_scale_to_any_size(one_block: Transformer) -> None:
    plain = msgspec.to_builtins(one_block.public, builtin_types=(bytes,))
    channels = plain["sizes"]["channels"]
    for crop, good in ((1.0, True), (LEAST_CROP, True), (LEAST_CROP / 2, False), (1e-9, False)):
        told = {"mean": (0.0,) * channels, "std": (1.0,) * channels, "white": 255, "classes": (), "crop": crop}
        assert (accepted(plain | {"interface": told}) is not None) is good, crop


def test_parts_that_contradict_each_other_are_refused(one_block: Transformer) -> None:
    plain = msgspec.to_builtins(one_block.public, builtin_types=(bytes,))
    wave, table = plain["blocks"][0]["exponential"], ("blocks", 0, "totals")
    division = {"cut": 5, "sums": {"factor": 1, "low": 16, "high": 300, "levels": 12, "scale": 1.0}}
    plain["blocks"][0]["exponential_cut"] = 0
    for path, value, message in (
        (
            ("sizes", "forms"),
            ({"squarings": 1},),
            r"block 0 has BlockForm\(squarings=0.*the sizes say BlockForm\(squarings=1",
        ),
        (("sizes", "forms"), ({},) * 2, "1 blocks have as many forms, not 2"),
        (("blocks", 0, "divisions"), (division,), "has two divisions or more"),
        (("blocks", 0, "divisions"), (division,) * 2, "cuts its shares, this one has 2 and cuts 0 bits"),
        (("sizes", "norm_pre"), True, "norm_pre = True is said of the sizes, and something else of the scales"),
        (("blocks", 0, "exponential"), wave | {"sines": [1]}, "cosines come with 1 sines"),
        ((*table, "domain"), 4, r"intervals of .* bits do not fit a domain of 4"),
        (("waves",), bytes(32), "both owners need the table of the specification"),
    ):
        with pytest.raises(ValueError, match=message):
            msgspec.convert(changed(plain, path, value), PublicModel)


def test_the_residual_stream_has_one_scale(student: Transformer) -> None:
    plain = changed(msgspec.to_builtins(student.public, builtin_types=(bytes,)), ("blocks", 1, "stream"), 2.0**20)
    with pytest.raises(ValueError, match="the residual stream has one for all"):
        msgspec.convert(plain, PublicModel)


def idle(program: Program[Any]) -> Carried:
    exchange = next(program)
    while True:
        try:
            exchange = program.send([torch.full(size, -3) for size, _ in exchange.expected])
        except StopIteration as stop:
            return stop.value


def test_whatever_stands_within_the_limits_is_computed_without_a_failure(one_block: Transformer) -> None:
    """Every kind of number of the scales at both ends of what is accepted, found by trying; sizes have tests of their
    own."""
    plain = msgspec.to_builtins(one_block.public, builtin_types=(bytes,))

    def take(request: Request) -> list[torch.Tensor]:
        check(request, 2)
        draws = request.free(DATA) + request.dependent()
        return [torch.full(draw.shape, 5) for draw in draws]

    layers = {
        name: FixedLinear(0, torch.ones(shape, dtype=torch.int64), None, 64)
        for name, shape in layer_shapes(one_block.public.sizes).items()
    }
    usual, tried = [Carried(torch.ones_like(input_share(one_block.public, 1, None)))], 0
    for stage in stages(one_block.public):
        usual.append(idle(stage.prepared(Party(DATA, take), 1, layers)(usual[-1])))
    assert usual[-1].share.shape == (1, one_block.public.sizes.classes)
    del plain["interface"]  # Of people's words, with tests of its own.
    for path, number in leaves(plain):
        if path[-2:-1] in (("cosines",), ("sines",)) and path[-1] != 0:
            continue  # All waves of a sum are of one kind.
        if path[0] == "sizes" or path[-1] == "hidden_opened":
            continue  # The sizes say it too.
        if not isinstance(number, int | float) or isinstance(number, bool):
            continue
        powers = [type(number)(2) ** power for power in range(101)] if isinstance(number, int) else []
        powers += [] if isinstance(number, int) else [2.0**power for power in range(-100, 101)]
        within = [model for power in powers if (model := accepted(changed(plain, path, power)))]
        if path == ("head", "logits"):
            # What a data owner takes within its terms.
            within = [model for model in within if 2.0**20 <= model.head.logits <= 2.0**50]
            assert [cut_bits(model.head.logits, LOGITS) for model in within] == list(range(8, 39))
        # The scale of the stream stands in one place only, since there is one block.
        assert len(within) > 1, path
        for public in (within[0], within[-1]):
            for index, stage in enumerate(stages(public)):
                # What a stage begins with are words from nowhere, whatever the number is elsewhere.
                if stage.name.split()[0] in path[0] or path[-1] == "stream":
                    found = idle(stage.prepared(Party(DATA, take), 1, layers)(usual[index]))
                    assert found.share.shape == usual[index + 1].share.shape
            tried += 1
    assert tried > 40


def test_weights_have_the_order_of_the_layers_and_one_encoding(one_block: Transformer) -> None:
    weights = integer_model(one_block.friendly, one_block.public, one_block.fitted.balances)
    assert {name: tuple(weight.words.shape) for name, weight in weights.items()} == layer_shapes(one_block.public.sizes)
    assert list(weights) == list(layer_shapes(one_block.public.sizes))
    words = [
        value
        for weight in weights.values()
        for tensor in (weight.words, weight.bias)
        for value in tensor.flatten().tolist()
    ]
    assert b"".join(weight_octets(weights)) == struct.pack(f"<{len(words)}q", *words)


def test_a_model_that_is_not_the_public_one_is_refused(one_block: Transformer, student: Transformer) -> None:
    with pytest.raises(ValueError, match="the model has 1 blocks, the public one 2"):
        integer_model(one_block.friendly, student.public, student.fitted.balances)
    plain = changed(msgspec.to_builtins(one_block.public, builtin_types=(bytes,)), ("sizes", "classes"), 4)
    with pytest.raises(ValueError, match="does not have the public sizes"):
        integer_model(one_block.friendly, msgspec.convert(plain, PublicModel), one_block.fitted.balances)


def test_a_model_without_a_public_form_is_refused(one_block: Transformer) -> None:
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2)
    fresh = convert(build(sizes, classes=3, channels=1, seed=1), Approximation())
    with pytest.raises(ValueError, match="the model is not calibrated"):
        fitted_model(fresh, one_block.images, margin=1.5)
    with pytest.raises(ValueError, match=r"a margin of 0\.5 is below 1"):
        fitted_model(one_block.friendly, one_block.images, margin=0.5)
    wide = one_block.images.reshape(20, 1, 4, 16)
    with pytest.raises(ValueError, match="not square ones"):
        fitted_model(one_block.friendly, wide, margin=1.5)

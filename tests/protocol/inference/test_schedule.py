"""The rounds of private inference and their bytes, against figures counted by hand; that they are those of a real pass
is tested where the pass is (tests/parties/inference)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tacit.protocol.inference.schedule import (
    Round,
    Sizes,
    block_rounds,
    layer_shapes,
    pass_rounds,
    weight_bytes,
)
from tests.protocol.inference.totals import by_operation

VIT_S: dict[str, Any] = {
    "side": 224, "channels": 3, "patch": 16, "width": 384, "heads": 6, "hidden": 1536, "blocks": 12, "classes": 1000
}  # fmt: skip


def test_the_targets_for_a_block_of_vit_s_are_declared() -> None:
    """12.8 MB of both parties for an image, 16 rounds. Counted by hand for one image: 75,648 elements of the stream,
    232,854 scores of 1,182 rows, 302,592 hidden values."""
    sizes = Sizes(**VIT_S)
    one = by_operation(block_rounds(sizes, 1, 0))
    assert one["qkv"] == (0, 605_184, 1)
    assert one["scores"] == (1_134_720, 1_134_720, 1)
    assert one["softmax"] == (475_164, 475_164, 1)
    # LayerNorm: 3 bytes of each element; of 197 tokens 4 for the variance, and 8 for its inverse root.
    assert one["layer norm 1"] == (229_308, 229_308, 3)
    assert sum(cost.data_owner_bytes for cost in one.values()) == 6_725_186 + 229_308 + 3 * 302_592
    for images in (1, 16):
        steps = block_rounds(sizes, images, 0)
        assert (
            sum(step.model_owner_bytes + step.data_owner_bytes for step in steps) == (11_034_364 + 6 * 302_592) * images
        )
        assert len(steps) == 16


def test_a_block_sends_more_where_it_squares_and_hidden_values_are_wide() -> None:
    """Counted by hand as above, with 3 bytes of each hidden value. The first division takes 5
    bytes of each score, others 4, and all 4 of each row, then 8 of each row; a squaring before it 3 of each score."""
    forms = [{"squarings": 3, "hidden_bits": 17}, *[{}] * 11]
    sizes = msgspec.convert(VIT_S | {"forms": forms}, Sizes)
    plain, one = (block_rounds(Sizes(**VIT_S), 1, 0), block_rounds(sizes, 1, 0))
    opened, *squared = [step.model_owner_bytes for step in one if step.operation == "softmax"]
    assert opened == 2 * 232_854 + 8 * 1_182
    assert squared == [1_168_998, 9_456, *[698_562, 936_144, 9_456] * 3]
    assert len(one) == len(plain) + 3 * 3 + 2
    assert by_operation(one)["gelu"] == (1_816_340, 1_816_340, 2)
    assert block_rounds(sizes, 1, 1) == plain
    assert pass_rounds(sizes, 1)[1 : len(one) + 1] == one


def test_a_pass_is_the_embedding_the_blocks_and_the_head() -> None:
    steps = pass_rounds(Sizes(**VIT_S), 2)
    # 2 images of 196 patches of 768 pixels, 5 bytes each; 2 class tokens of 384 values; 2 x 1,000 logits, 4 bytes each.
    assert steps[0] == Round("embedding", 0, 1_505_280)
    *rest, head, count, told, result = steps
    assert (head, count, told) == (Round("head", 0, 3_840), Round("count", 4, 4), Round("range", 8, 8))
    assert result == Round("result", 8_000, 0)
    assert tuple(rest[1:-3]) == block_rounds(Sizes(**VIT_S), 2, 0) * 12
    # 2 tokens of 384 values: 3 bytes; one variance each: 4 bytes; its inverse root: 8.
    assert [step[1:] for step in rest[-3:]] == [(2_304, 2_304), (8, 8), (16, 16)]


def test_layers_are_those_of_timms_model() -> None:
    shapes = layer_shapes(Sizes(**VIT_S))
    names = ["qkv", "proj", "fc1", "fc2"]
    assert list(shapes) == ["embedding", *(f"{block}.{name}" for block in range(12) for name in names), "head"]
    # vit_small_patch16_224 has 22,050,664 parameters: weights, and here 137,896 biases, norms, positions, class token.
    biases = 384 + 12 * (3 + 1 + 4 + 1 + 4) * 384 + 2 * 384 + 1000 + 197 * 384 + 384
    assert sum(rows * columns for rows, columns in shapes.values()) == 22_050_664 - biases
    assert weight_bytes(Sizes(**VIT_S)) == tuple(
        (8 if name.endswith("qkv") else 5) * rows * columns for name, (rows, columns) in shapes.items()
    )


def test_sizes_that_do_not_fit_are_refused() -> None:
    for change, reason in [
        *(({name: 0}, "at least 1|>= 1") for name in VIT_S),
        *(({name: 1 << 40}, "<=") for name in VIT_S),
        *(({name: 1.5}, "Expected `int`") for name in VIT_S),
        ({"patch": 15}, "patches share the side evenly"),
        ({"heads": 5}, "heads the width"),
        ({"channels": 65}, "16640 words in a patch are more than 16384"),
        ({"patch": 7}, "1025 tokens are more than 1024"),
        ({"patch": 7, "side": 217, "width": 396, "heads": 22}, "20359768 scores of an image are more than 16777216"),
        ({"blocks": 256, "width": 1536, "heads": 6}, "weights are more than 1073741824"),
        ({"extra": 1}, "unknown field"),
        ({"forms": [{}]}, "12 blocks have as many forms, not 1"),
        ({"forms": [{"squarings": 6}] * 12}, "<= 5"),
        ({"forms": [{"squarings": -1}] * 12}, ">= 0"),
        ({"forms": [{"hidden_bits": 15}] * 12}, ">= 16"),
        ({"forms": [{"hidden_bits": 25}] * 12}, "<= 24"),
    ]:
        with pytest.raises(ValueError, match=reason):
            msgspec.convert(VIT_S | change, Sizes)

    with pytest.raises(ValueError, match="sizes are at least 1"):
        Sizes(**VIT_S | {"classes": 0})

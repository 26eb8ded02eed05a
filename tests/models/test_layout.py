import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from torch import nn
from torch.nn.utils import parameters_to_vector

from tacit.models.layout import Layout, LayoutEntry
from tests.cases import cases


def test_flatten_agrees_with_torch(small_model: nn.Module) -> None:
    # Holds for a model without buffers whose parameters stand in the order of its state dictionary, as in timm's ViT.
    layout = Layout.of(small_model)
    expected = parameters_to_vector(small_model.parameters()).detach().numpy()
    flat = layout.flatten(small_model)
    assert flat.dtype == np.float32
    assert flat.tobytes() == expected.tobytes()
    assert layout.size == sum(layout.tensor_sizes) == len(expected)
    assert layout.tensor_sizes == tuple(parameter.numel() for parameter in small_model.parameters())


def test_load_into_is_the_inverse_of_flatten(small_model: nn.Module) -> None:
    layout = Layout.of(small_model)
    flat = np.random.default_rng(1).standard_normal(layout.size, dtype=np.float32)
    flat.setflags(write=False)
    layout.load_into(small_model, flat)
    assert layout.flatten(small_model).tobytes() == flat.tobytes()


def test_buffers_travel_and_batch_counters_do_not() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3))
    layout = Layout.of(model)
    assert [entry.name for entry in layout.entries] == ["0.weight", "0.bias", "0.running_mean", "0.running_var"]
    assert layout.flatten(model).tolist() == [1.0] * 3 + [0.0] * 6 + [1.0] * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_checkpoint_of_other_floats_is_refused_by_name(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("marker", torch.zeros(2, dtype=dtype))
    with pytest.raises(ValueError, match=r"'marker' is torch\."):
        Layout.of(model)


class _Adapted(nn.Module):
    """A frozen backbone with batch normalisation, buffers of other types, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).requires_grad_(False)
        self.register_buffer("index", torch.arange(3))
        self.register_buffer("scale", torch.full((2,), 0.5, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.head = nn.Linear(4, 2)


def test_a_model_is_split_into_trained_averaged_and_fixed_tensors() -> None:
    model = _Adapted()
    averaged = ["backbone.1.running_mean", "backbone.1.running_var"]
    layout, without = Layout.summed(model), Layout.summed(model, buffers="fixed")
    assert [entry.name for entry in layout.entries if entry.part == "averaged"] == averaged
    assert [entry.name for entry in layout.entries if entry.part == "trained"] == ["head.weight", "head.bias"]
    assert [entry.name for entry in without.entries] == ["head.weight", "head.bias"]
    fixed = {entry.name: entry.dtype for entry in layout.fixed}
    assert fixed == {"index": "int64", "scale": "bfloat16", "mask": "bool"} | {
        f"backbone.{name}": "float32" for name in ("0.weight", "0.bias", "1.weight", "1.bias")
    }
    assert {entry.name for entry in without.fixed} == fixed.keys() | {*averaged}
    assert len({layout.digest(), without.digest(), Layout.of(nn.Linear(4, 2)).digest()}) == 3


def test_the_fixed_part_of_one_model_makes_another_the_same() -> None:
    one, other = _Adapted(), _Adapted()
    layout = Layout.summed(one)
    data = layout.fixed_bytes(one)
    assert len(data) == layout.fixed_size(one) == 4 * (12 + 4 + 4 + 4) + 3 * 8 + 2 * 2 + 2
    other.index += 1
    other.mask.logical_not_()
    layout.load_fixed(other, data)
    assert layout.fixed_bytes(other) == data
    assert not (layout.flatten(one) == layout.flatten(other)).all()
    for wrong in (data[:-1], data + b"x"):
        with pytest.raises(ValueError, match=f"has {len(wrong)} bytes, and the model's has {len(data)}"):
            layout.load_fixed(other, wrong)


def test_what_cannot_be_trained_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'weight' is bfloat16; only float32 is trained"):
        Layout.summed(nn.Linear(2, 2).bfloat16())
    with pytest.raises(ValueError, match="no parameter of the model requires a gradient"):
        Layout.summed(nn.Linear(2, 2).requires_grad_(False))


class _WithExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"step": 1}


def test_state_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="'_extra_state' is dict"):
        Layout.of(_WithExtraState(2, 2))


@pytest.mark.parametrize("change", ["short", "long", "matrix", "float64"])
def test_load_into_refuses_other_forms(small_model: nn.Module, change: str) -> None:
    layout = Layout.of(small_model)
    flat = layout.flatten(small_model)
    wrong = {
        "short": flat[:-1],
        "long": np.append(flat, np.float32(0)),
        "matrix": flat[np.newaxis],
        "float64": flat.astype(np.float64),
    }[change]
    with pytest.raises(ValueError, match=r"expected float32 \["):
        layout.load_into(small_model, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_load_into_refuses_values_that_are_not_finite(small_model: nn.Module, value: float) -> None:
    layout = Layout.of(small_model)
    before = layout.flatten(small_model)
    wrong = np.zeros_like(before)
    wrong[-1] = value
    with pytest.raises(ValueError, match=r"'head\.bias' holds a value that is not finite"):
        layout.load_into(small_model, wrong)
    assert layout.flatten(small_model).tobytes() == before.tobytes()


def test_another_model_is_refused(small_model: nn.Module) -> None:
    layout = Layout.of(small_model)
    with pytest.raises(ValueError, match="does not fit the layout: tensor 'cls_token' is missing"):
        layout.load_into(nn.Linear(2, 2), np.zeros(layout.size, dtype=np.float32))
    with pytest.raises(ValueError, match="does not fit the layout"):
        layout.flatten(nn.Linear(2, 2))


A, B = LayoutEntry("a", (2, 3)), LayoutEntry("b.ü", ())


@pytest.mark.parametrize(
    ("entries", "difference"),
    [
        ((A, B), None),
        ((A,), "tensor 'b.ü' is missing"),
        ((LayoutEntry("a", (3, 2)), B), "tensor 'a' has shape [3, 2], expected [2, 3]"),
        ((A, B, LayoutEntry("c", (1,))), "tensor 'c' is not part of this model"),
        ((B, A), "the same tensors stand in another order"),
    ],
)
def test_difference(entries: tuple[LayoutEntry, ...], difference: str | None) -> None:
    found = Layout((A, B)).difference(Layout(entries))
    assert found == difference


def test_digest_of_a_known_layout() -> None:
    encoding = (
        b"tacit/layout/v2\x00"
        b"\x00\x00\x00\x01"
        b"\x00\x00\x00\x01a\x00\x00\x00\x07trained\x00\x00\x00\x07float32"
        b"\x00\x00\x00\x02\x00\x00\x00\x02\x00\x00\x00\x03"
        b"\x00\x00\x00\x01"
        b"\x00\x00\x00\x04b.\xc3\xbc\x00\x00\x00\x05fixed\x00\x00\x00\x04bool\x00\x00\x00\x00"
    )
    assert Layout((A,), (LayoutEntry("b.ü", (), "fixed", "bool"),)).digest() == hashlib.sha256(encoding).digest()


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
layouts = st.dictionaries(names, array_shapes(min_dims=0, max_dims=3, max_side=4), max_size=5).map(
    lambda entries: Layout(tuple(LayoutEntry(name, shape) for name, shape in entries.items()))
)


@settings(max_examples=30, deadline=None)
@given(layouts, layouts)
def test_digests_agree_exactly_where_layouts_do(one: Layout, other: Layout) -> None:
    assert (one.digest() == other.digest()) == (one == other) == (one.difference(other) is None)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Layout) == one


@settings(max_examples=25, deadline=None)
@given(layouts)
def test_concatenate_is_the_inverse_of_split(layout: Layout) -> None:
    flat = np.arange(layout.size, dtype=np.float32)
    parts = layout.split(flat)
    assert [part.shape for part in parts.values()] == [entry.shape for entry in layout.entries]
    assert layout.concatenate(parts).tolist() == flat.tolist()


REFUSED = [
    {"entries": [{"name": "a", "shape": [1]}, {"name": "a", "shape": [2]}]},
    {"entries": [{"name": "a", "shape": [-1]}]},
    {"entries": [{"name": "a", "shape": [2**32]}]},
    {"entries": [{"name": "a", "shape": [1] * 17}]},
    {"entries": [{"name": "", "shape": []}]},
    {"entries": [{"name": "a" * 1025, "shape": []}]},
    {"entries": [{"name": "a", "shape": [], "part": "frozen"}]},
    {"entries": [], "version": 2},
]


@cases("message", REFUSED)
def test_decoding_refuses(message: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(message, Layout)


class Odd(nn.Module):
    def __init__(self, name: str, tensor: Any, *, buffer: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)
        if buffer:
            self.register_buffer(name, tensor)
        else:
            self.register_parameter(name, tensor)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Odd("a", nn.Parameter(torch.zeros(0, 4))), r"parameter 'a' is empty \(\[0, 4\]\)"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), r"state '0\.weight' has no values yet: call the model once"),
        (lambda: Odd("b", torch.zeros(1, 4).expand(3, 4), buffer=True), r"state 'b' is expanded to \[3, 4\] .*\.clone"),
        (lambda: Odd("c", nn.Parameter(torch.zeros(1, 4).expand(3, 4))), r"state 'c' is expanded"),
        (lambda: Odd("d", nn.Parameter(torch.zeros(2, dtype=torch.float64))), "parameter 'd' is float64; only float32"),
        (lambda: Odd("e", nn.Parameter(torch.zeros(2, dtype=torch.complex64))), "state 'e' is complex64"),
        (lambda: Odd("f", torch.eye(3).to_sparse(), buffer=True), "state 'f' is float32 of layout torch.sparse_coo"),
    ],
)
def test_tensors_that_cannot_be_sent_are_refused_by_name(made: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.summed(made())


@pytest.mark.parametrize("name", ["swin_t", "maxvit_t"])
def test_models_of_torchvision_with_integer_buffers(name: str) -> None:
    import torchvision

    model = getattr(torchvision.models, name)(num_classes=2)
    layout = Layout.summed(model)
    assert any(entry.dtype == "int64" for entry in layout.fixed)
    flat, fixed = layout.flatten(model), layout.fixed_bytes(model)
    layout.load_fixed(model, fixed)
    layout.load_into(model, 2 * flat)
    assert (layout.flatten(model) == 2 * flat).all()
    assert layout.fixed_bytes(model) == fixed


def test_an_empty_buffer_stays() -> None:
    model = Odd("a", torch.zeros(0, 3), buffer=True)
    layout = Layout.summed(model)
    assert [entry.name for entry in layout.fixed] == ["a"]
    assert layout.fixed_bytes(model) == b""

"""Secure sums equal plain sums, for every form of weights; configurations that could wrap are refused."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tacit.secagg.keystream import Mask, Usage, apply_masks
from tacit.secagg.packing import METRIC_BITS, Packing, Total, WeightForm
from tests.cases import cases

LARGEST_METRIC = 2**48 - 1

QUANTISED = [form for form in WeightForm if form is not WeightForm.WORDS]


def packing(**changes: Any) -> Packing:
    defaults: dict[str, Any] = {
        "clients": 5,
        "clip": 1.0,
        "value_bits": 16,
        "max_weight": 3,
        "form": WeightForm.SCALAR,
        "tensor_sizes": (4, 3),
        "metrics": ("loss", "samples"),
    }
    return Packing(**(defaults | changes))


def weights_of(layout: Packing, number: int) -> Any:
    """The same weight everywhere, in the layout's form."""
    shapes = {WeightForm.SCALAR: (), WeightForm.TENSOR: len(layout.tensor_sizes)}
    return np.full(shapes.get(layout.form, layout.values_length), number)


def metrics_of(layout: Packing, number: int = 0) -> dict[str, int]:
    return dict.fromkeys(layout.metrics, number)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def per_coordinate(layout: Packing, weights: np.ndarray) -> np.ndarray:
    return np.repeat(weights, layout.tensor_sizes) if layout.form is WeightForm.TENSOR else weights


@st.composite
def packings(draw: st.DrawFn) -> Packing:
    try:
        return Packing(
            clients=draw(st.integers(1, 300)),
            clip=draw(st.floats(1e-3, 1e3)),
            value_bits=draw(st.integers(2, 32)),
            max_weight=draw(st.sampled_from([1, 2, 7, 1000, 60_000])),
            form=draw(st.sampled_from(QUANTISED)),
            tensor_sizes=tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))),
            metrics=("loss", "samples")[: draw(st.integers(0, 2))],
        )
    except ValueError as error:
        # The largest of everything together, with a count for each coordinate, needs more than 64 bits.
        if "the sums need a ring of" not in str(error):
            raise
        reject()


@settings(max_examples=120)
@given(packings(), st.integers(1, 6), st.integers(0, 2**32))
def test_secure_sum_equals_the_plain_sum(layout: Packing, contributors: int, seed: int) -> None:
    contributors = min(contributors, layout.clients)
    random = generator(seed)
    total = np.zeros(layout.length, layout.ring.word)
    plain_integers = np.zeros(layout.values_length, np.int64)
    plain_values = np.zeros(layout.values_length)
    plain_weights = np.zeros(np.shape(weights_of(layout, 0)), np.int64)
    plain_metrics = metrics_of(layout)
    for client in range(contributors):
        weights = random.integers(0, layout.max_weight, size=plain_weights.shape, endpoint=True)
        everywhere = per_coordinate(layout, np.asarray(weights))
        values = (random.uniform(-layout.clip, layout.clip, layout.values_length) * everywhere).astype(np.float32)
        values = np.clip(values, -layout.quantiser.limit, layout.quantiser.limit)
        metrics = {name: int(random.integers(0, LARGEST_METRIC, endpoint=True)) for name in layout.metrics}
        encoded = layout.encode(values, weights, metrics, generator(client))
        assert encoded.clipped == 0
        alone = layout.decode(encoded.words, contributors=1)
        plain_integers += np.rint(alone.values / layout.quantiser.step).astype(np.int64)
        plain_values += values.astype(np.float64)
        plain_weights += weights
        plain_metrics = {name: plain_metrics[name] + metrics[name] for name in layout.metrics}
        words = layout.ring.unpack(layout.ring.pack(encoded.words)).copy()
        apply_masks(words, [Mask(bytes([client] * 32), Usage.PAIRWISE_MASK, 1)], layout.ring)
        layout.ring.add_into(total, words)
    apply_masks(total, [Mask(bytes([c] * 32), Usage.PAIRWISE_MASK, -1) for c in range(contributors)], layout.ring)
    summed = layout.decode(total, contributors=contributors)
    assert np.array_equal(np.rint(summed.values / layout.quantiser.step), plain_integers)
    assert summed.weights.dtype == np.int64
    assert np.array_equal(summed.weights, plain_weights)
    assert summed.metrics == plain_metrics
    # The plain sum itself rounds: contributors float64 additions, covered by twice the bound's own rounding term.
    slack = contributors**2 * layout.quantiser.limit * 2.0**-52
    assert (np.abs(summed.values - plain_values) <= layout.error_bound(contributors) + slack).all()


def test_the_bound_of_the_error_is_a_step_for_each_contributor_and_hardly_more() -> None:
    layout = packing()
    assert 1.0 < layout.error_bound(3) / (3 * layout.quantiser.step) < 1.001


@settings(max_examples=100)
@given(packings(), st.sampled_from([1, -1]), st.booleans())
def test_extremes_of_all_clients_never_wrap(layout: Packing, sign: int, counted: bool) -> None:
    """Everybody sends the largest value, weight and metric; the sum is formed as clients * words."""
    weight = layout.max_weight if counted or layout.form is not WeightForm.COORDINATE else 1
    values = np.full(layout.values_length, sign * layout.quantiser.limit * 1.01)
    encoded = layout.encode(values, weights_of(layout, weight), metrics_of(layout, LARGEST_METRIC), generator())
    assert encoded.clipped == layout.values_length
    words = np.array([word * layout.clients % layout.ring.modulus for word in encoded.words.tolist()], layout.ring.word)
    total = layout.decode(words, contributors=layout.clients)
    expected = sign * layout.clients * layout.quantiser.levels * layout.quantiser.step
    assert total.values.tolist() == [expected] * layout.values_length
    assert (total.weights == layout.clients * weight).all()
    assert total.metrics == metrics_of(layout, layout.clients * LARGEST_METRIC)


@cases(
    ("changes", "needed"),
    [
        ({"clients": 127, "value_bits": 16}, 23),
        ({"clients": 127, "value_bits": 16, "max_weight": 1, "form": WeightForm.COORDINATE}, 30),
        ({"clients": 1, "value_bits": 2}, 2),
        ({"clients": 2, "value_bits": 16}, 17),
        ({"clients": 100, "value_bits": 32}, 39),
    ],
)
def test_needed_width(changes: dict[str, Any], needed: int) -> None:
    layout = packing(**changes)
    assert layout.needed_bits == needed
    assert layout.ring.bits == max(8, -(-needed // 8) * 8)
    if needed >= 8:
        assert packing(**changes, ring_bits=needed).ring.bits == needed
        with pytest.raises(ValueError, match=rf"ring_bits = {needed - 1} is too small: .* need {needed} bits; raise"):
            packing(**changes, ring_bits=needed - 1)


@cases("form", QUANTISED)
@cases("clients", [1, 2, 3, 4, 100])
def test_the_narrowest_ring_is_wide_enough_and_one_bit_less_is_not(form: WeightForm, clients: int) -> None:
    """At needed_bits the extremes decode right; in a ring of one bit less they could not be told apart."""
    layout = packing(clients=clients, form=form, value_bits=9)
    narrow = packing(clients=clients, form=form, value_bits=9, ring_bits=max(8, layout.needed_bits))
    largest, smallest = clients * layout.quantiser.levels, -clients * layout.quantiser.levels
    weights = clients * layout.max_weight if form is WeightForm.COORDINATE else 0
    highest = (weights << narrow.value_field) + largest
    assert 2**narrow.needed_bits > highest - smallest >= 2 ** (narrow.needed_bits - 1) - 1
    for sign in (1, -1):
        values = np.full(7, sign * layout.quantiser.limit)
        words = narrow.encode(values, weights_of(narrow, 3), metrics_of(narrow), generator()).words
        words = np.array([word * clients % narrow.ring.modulus for word in words.tolist()], narrow.ring.word)
        total = narrow.decode(words, contributors=clients)
        assert np.array_equal(np.rint(total.values / layout.quantiser.step), [sign * largest] * 7)
        assert (total.weights == clients * 3).all()


@cases(
    ("changes", "message"),
    [
        ({"clients": 2**20, "max_weight": 2**20, "form": WeightForm.COORDINATE}, "ring of 77 bits"),
        ({"clients": 2**40, "value_bits": 32}, "ring of 72 bits"),
        ({"max_weight": 2**62}, "weights of 65 bits"),
        ({"ring_bits": 65}, "8 to 64 bits"),
        ({"clients": 0}, "at least 1"),
        ({"max_weight": 0}, "at least 1"),
        ({"tensor_sizes": (), "metrics": ()}, "positive sizes"),
        ({"tensor_sizes": (), "form": WeightForm.TENSOR}, "positive sizes"),
        ({"tensor_sizes": (), "form": WeightForm.COORDINATE}, "positive sizes"),
        ({"tensor_sizes": (3, 0)}, "positive sizes"),
        ({"metrics": ("loss", "loss")}, "named twice"),
        ({"value_bits": 33}, "2 to 32 bits"),
        ({"clip": math.inf}, "positive number"),
    ],
)
def test_refuses_unusable_configurations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        packing(**changes)


@cases(("form", "tail"), [(WeightForm.SCALAR, 1), (WeightForm.TENSOR, 2), (WeightForm.COORDINATE, 0)])
def test_length(form: WeightForm, tail: int) -> None:
    layout = packing(form=form)
    limbs = -(-METRIC_BITS // (layout.ring.bits - 3))
    assert layout.length == 7 + tail + 2 * limbs
    encoded = layout.encode(np.zeros(7), weights_of(layout, 1), metrics_of(layout), generator())
    assert len(layout.ring.pack(encoded.words)) == layout.length * layout.ring.wire_bytes


@cases("form", QUANTISED)
def test_a_weight_of_zero_contributes_nothing(form: WeightForm) -> None:
    layout = packing(form=form)
    values = np.array([math.nan, math.inf, 1e9, -5, 1, 1, 1], np.float32)
    encoded = layout.encode(values, weights_of(layout, 0), metrics_of(layout), generator())
    assert not encoded.words.any()
    assert encoded.clipped == 0


@cases(
    ("form", "weights"),
    [
        (WeightForm.TENSOR, [0, 2]),
        (WeightForm.COORDINATE, [0, 0, 0, 0, 1, 2, 3]),
        (WeightForm.COORDINATE, [False] * 4 + [True] * 3),
    ],
)
def test_weights_of_zero_silence_their_values_only(form: WeightForm, weights: list[int]) -> None:
    layout = packing(form=form)
    values = np.array([math.nan, 9, -9, 9, 3, -3, 9], np.float32)
    encoded = layout.encode(values, np.array(weights), metrics_of(layout), generator())
    total = layout.decode(encoded.words, contributors=1)
    assert encoded.clipped == 1
    assert total.values.tolist() == [0, 0, 0, 0, 3, -3, 3]
    assert total.weights.tolist() == weights


@cases(
    ("form", "weights", "mean", "moved"),
    [
        (WeightForm.SCALAR, 2, [1, 1, 1, 1, 1, 1, 1], [True] * 7),
        (WeightForm.SCALAR, 0, [0] * 7, [False] * 7),
        (WeightForm.TENSOR, [0, 1], [0, 0, 0, 0, 2, 2, 2], [False] * 4 + [True] * 3),
        (WeightForm.COORDINATE, [0, 1, 2, 1, 2, 1, 0], [0, 2, 1, 2, 1, 2, 0], [False] + [True] * 5 + [False]),
    ],
)
def test_mean_where_anybody_contributed(form: WeightForm, weights: Any, mean: list[int], moved: list[bool]) -> None:
    layout = packing(form=form, clip=3.0)
    # 2 is not on the grid of 9 / 32767: allow for one step.
    encoded = layout.encode(np.full(7, 2.0), np.array(weights), metrics_of(layout), generator())
    found, mask = layout.decode(encoded.words, contributors=1).mean()
    assert np.abs(found - mean).max() <= layout.error_bound(1)
    assert (found[~mask] == 0).all()
    assert mask.tolist() == moved
    # As many tensors as values: the two shapes agree, and so must the means.
    assert Total(np.array([2.0, 3.0]), np.array([1, 3]), {}, (1, 1)).mean()[0].tolist() == [2.0, 1.0]


@cases("form", QUANTISED)
def test_refuses_other_weights(form: WeightForm) -> None:
    layout = packing(form=form)
    for number in (-1, 4):
        weights = weights_of(layout, 1).reshape(-1)
        weights[-1] = number
        with pytest.raises(ValueError, match=r"weights lie in 0\.\.3, got .*raise max_weight"):
            layout.encode(
                np.zeros(7), weights.reshape(np.shape(weights_of(layout, 1))), metrics_of(layout), generator()
            )
    for other in (1.0, np.ones(3, int), np.ones((1, 1), int), "1", np.ones(7, np.float32)):
        with pytest.raises(ValueError, match="expected integer weights of shape"):
            layout.encode(np.zeros(7), other, metrics_of(layout), generator())


def test_refuses_other_values_and_metrics() -> None:
    layout = packing()
    shapes: tuple[Any, ...] = (6, 8, (7, 1), ())
    for shape in shapes:
        with pytest.raises(ValueError, match="expected 7 values"):
            layout.encode(np.zeros(shape), 1, metrics_of(layout), generator())
    for metrics in ({}, {"loss": 1}, {"loss": 1, "samples": 1, "accuracy": 1}):
        with pytest.raises(ValueError, match=r"expected the metrics \['loss', 'samples'\]"):
            layout.encode(np.zeros(7), 1, metrics, generator())
    numbers: tuple[Any, ...] = (-1, LARGEST_METRIC + 1, 1.5, math.nan)
    for number in numbers:
        with pytest.raises(ValueError, match="metric 'samples' is"):
            layout.encode(np.zeros(7), 1, {"loss": 1, "samples": number}, generator())


@cases("form", QUANTISED)
@cases("index", [0, 40_000, 99_999])
def test_names_the_value_that_is_not_finite(form: WeightForm, index: int) -> None:
    layout = packing(form=form, tensor_sizes=(60_000, 40_000))
    values = np.zeros(100_000, np.float32)
    values[index] = math.nan
    with pytest.raises(ValueError, match=f"value {index} is nan"):
        layout.encode(values, weights_of(layout, 1), metrics_of(layout), generator())


@cases(
    ("form", "position", "word", "what"),
    [
        (WeightForm.SCALAR, 0, 2**15, "values"),
        (WeightForm.SCALAR, 0, 2**24 - 2**15, "values"),
        (WeightForm.SCALAR, 7, 4, "weights"),
        (WeightForm.TENSOR, 8, 4, "weights"),
        (WeightForm.COORDINATE, 3, 4 << 19, "weights"),
        (WeightForm.SCALAR, 10, 2**7, "metrics"),
    ],
)
def test_decode_refuses_sums_out_of_reach(form: WeightForm, position: int, word: int, what: str) -> None:
    layout = packing(form=form)
    assert (layout.ring.bits, layout.value_field) == (24, 19)
    words = np.zeros(layout.length, layout.ring.word)
    words[position] = word
    with pytest.raises(ValueError, match=f"summed {what} lie in .*a mask was not removed"):
        layout.decode(words, contributors=1)


def test_decode_refuses_other_vectors_contributors_and_metrics() -> None:
    layout = packing()
    with pytest.raises(ValueError, match=f"expected {layout.length} words"):
        layout.decode(np.zeros(layout.length - 1, layout.ring.word), contributors=1)
    with pytest.raises(ValueError, match="expected a vector"):
        layout.decode(np.zeros(layout.length, np.uint8), contributors=1)
    for contributors in (0, 6):
        with pytest.raises(ValueError, match="1 to 5 contributors"):
            layout.decode(np.zeros(layout.length, layout.ring.word), contributors=contributors)
    layout = packing(metrics=("loss",))
    words = layout.encode(np.zeros(7), 1, {"loss": LARGEST_METRIC}, generator()).words
    assert layout.decode(words, contributors=1).metrics == {"loss": LARGEST_METRIC}
    words[layout.length - layout._limbs(METRIC_BITS)] += 1
    with pytest.raises(ValueError, match=f"metrics lie in {2**48}"):
        layout.decode(words, contributors=1)


@cases("form", QUANTISED)
def test_memory_stays_near_one_vector(form: WeightForm) -> None:
    """Encoding a million values makes the words (4 MB) and, beyond them, blocks only; decoding makes its results."""
    layout = packing(form=form, tensor_sizes=(600_000, 400_000), value_bits=20)
    values = np.zeros(1_000_000, np.float32)
    weights = np.ones(1_000_000, np.uint8) if form is WeightForm.COORDINATE else weights_of(layout, 1)
    tracemalloc.start()
    try:
        encoded = layout.encode(values, weights, metrics_of(layout), generator())
        encoding = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        layout.decode(encoded.words, contributors=1)
        decoding = tracemalloc.get_traced_memory()[1] - encoded.words.nbytes
    finally:
        tracemalloc.stop()
    assert encoding < 1.6 * values.nbytes
    assert decoding < (16 if form is WeightForm.COORDINATE else 8) * 1_000_000 + 2_500_000


def test_contributions_and_totals_do_not_show_values() -> None:
    layout = packing()
    encoded = layout.encode(np.full(7, 0.5), 1, metrics_of(layout), generator())
    assert repr(encoded) == "Encoded(clipped=0)"
    total = layout.decode(encoded.words, contributors=1)
    assert repr(total) == f"Total(metrics={total.metrics}, tensor_sizes=(4, 3))"


def test_the_widest_sums_are_those_of_64_bits_and_counts_of_63() -> None:
    """A weight per coordinate stands above 32 bits of the value; one for all is cut into limbs."""
    changes: dict[str, Any] = {"clients": 1, "value_bits": 32, "form": WeightForm.COORDINATE}
    assert packing(max_weight=2**31, **changes).ring.bits == 64
    with pytest.raises(ValueError, match="a ring of 65 bits and weights of 33 bits; 64 and 63 are possible"):
        packing(max_weight=2**32, **changes)
    packing(clients=1, max_weight=2**63 - 1)
    with pytest.raises(ValueError, match="weights of 64 bits; 64 and 63 are possible"):
        packing(clients=1, max_weight=2**63)


def test_metrics_are_summed_alone() -> None:
    """Without values, and exactly."""
    layout = packing(tensor_sizes=())
    total = np.zeros(layout.length, layout.ring.word)
    for number in (1, 2**47):
        layout.ring.add_into(total, layout.encode(np.zeros(0), 1, metrics_of(layout, number), generator()).words)
    found = layout.decode(total, contributors=2)
    assert (found.values.tolist(), int(found.weights)) == ([], 2)
    assert found.metrics == metrics_of(layout, 2**47 + 1)


def test_words_are_not_quantised() -> None:
    """So many words of the ring and the number of clients, which alone has to fit it."""
    layout = packing(form=WeightForm.WORDS, max_weight=1, metrics=(), ring_bits=64)
    assert (layout.length, layout.ring.bits, packing(form=WeightForm.WORDS).needed_bits) == (8, 64, 4)
    with pytest.raises(ValueError, match="as they are"):
        layout.decode(np.zeros(8, np.uint64), contributors=1)

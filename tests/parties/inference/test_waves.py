"""Waves: the table of cosines, sums of waves on masked arguments, functions fitted by them; and that the terms name the
table."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.transformer import STOCK, convert
from tacit.models.networks import build
from tacit.parties.inference.material import Waves
from tacit.parties.inference.model import PublicModel, fitted_model
from tacit.parties.inference.operations import Party, WaveValue
from tacit.parties.inference.private_model import public_of
from tacit.parties.inference.waves import (
    LARGEST_HARMONICS,
    PLACES,
    SCALE_BITS,
    FitError,
    Wave,
    cosines,
    factors,
    fitted_wave,
    rounded,
    table_digest,
    waves,
)
from tacit.protocol.inference.messages import Terms

Floats = np.ndarray[Any, np.dtype[np.float64]]
CPU = torch.device("cpu")


def test_the_table_is_within_half_a_unit_of_the_cosine_everywhere() -> None:
    """Float64 has 52 fractional bits, of which a cosine needs 30: it adds 2^-20 of a unit."""
    table = cosines().tolist()
    assert len(table) == PLACES == 1 << 16
    for place, found in enumerate(table):
        assert abs(found - math.cos(2 * math.pi * place / PLACES) * 2**SCALE_BITS) <= 0.5 + 2**-20, place


@settings(max_examples=50, deadline=None)
@given(number=st.integers(1, LARGEST_HARMONICS), c=st.integers(0, PLACES - 1), x=st.integers(-(1 << 15), (1 << 15) - 1))
def test_a_wave_of_a_difference_is_that_of_its_product(number: int, c: int, x: int) -> None:
    """cos(k x) = cos(k c) cos(k r) + sin(k c) sin(k r) for r = c - x, each within half a unit."""
    (cosine, sine), (mask_cosine, mask_sine) = (
        [part.item() / 2**SCALE_BITS for part in waves(number, torch.tensor(place))] for place in (c, (c - x) % PLACES)
    )
    angle = 2 * math.pi * number * x / PLACES
    assert abs(cosine * mask_cosine + sine * mask_sine - math.cos(angle)) < 2**-28
    assert abs(sine * mask_cosine - cosine * mask_sine - math.sin(angle)) < 2**-28


@pytest.mark.parametrize("bits", [1, 12, 17, 28])
def test_halves_are_rounded_up(bits: int) -> None:
    half = 1 << (SCALE_BITS - bits - 1)
    values = torch.tensor([half, half - 1, -half, -half - 1, 3 * half, -3 * half, 0])
    assert rounded(values, bits).tolist() == [1, 0, 0, -1, 2, -1, 0]


def dealt(wave: Wave, mask: torch.Tensor) -> list[torch.Tensor]:
    request = Waves(tuple(mask.shape), len(wave.cosines), wave.words, 64)
    return list(request.solve([[mask], [torch.zeros_like(mask)]], None))


WAVE = Wave(constant=-7, cosines=(1 << 20, -3), sines=(5, 77777), precision=12, words=17)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_sum_of_waves_is_its_function_whatever_the_mask(seed: int) -> None:
    """Every place of the ring; each of 2 x harmonics products has two factors that are off by half a unit at most."""
    x = torch.arange(PLACES)
    mask = torch.randint(0, PLACES, (PLACES,), generator=torch.Generator().manual_seed(seed))
    place = (x + mask) % PLACES
    share = torch.full_like(x, WAVE.constant << WAVE.words)
    for factor, words in zip(factors(WAVE, CPU), dealt(WAVE, mask), strict=True):
        share += factor.take(place) * words
    angles = [2 * math.pi * number * x.double() / PLACES for number in (1, 2)]
    expected = WAVE.constant + sum(
        cosine * torch.cos(angle) + sine * torch.sin(angle)
        for cosine, sine, angle in zip(WAVE.cosines, WAVE.sines, angles, strict=True)
    )
    largest = max(factor.abs().max().item() for factor in factors(WAVE, CPU))
    bound = 2 * len(WAVE.cosines) * (0.5 * largest / 2**WAVE.words + 0.5 * (1 + 2**-WAVE.words))
    assert (share / 2.0**WAVE.words - expected).abs().max() <= bound


def fitted(function: Any, tolerance: float, low: float, high: float, most_bits: int = 56) -> Wave:
    def allowed(x: Floats) -> Floats:
        return np.full_like(x, tolerance)

    limits = {"period": (high - low) / 0.625, "low": low, "high": high}
    return fitted_wave("it", function, allowed, noise=tolerance / 2, most_bits=most_bits, **limits)


def gelu(x: Floats) -> Floats:
    return np.array([value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()])


@pytest.mark.parametrize(
    ("function", "low", "high", "tolerance"),
    [(np.exp, -8.0, 0.0, 2.0**-12), (gelu, -8.0, 8.0, 2.0**-11), (np.tanh, -4.0, 2.0, 2.0**-10)],
)
def test_a_fitted_function_is_within_its_tolerance(function: Any, low: float, high: float, tolerance: float) -> None:
    """At every place of the ring within the window, with the words that the dealer deals, opened under random masks.

    Of the exact waves half the tolerance; both roundings have deviations of half the tolerance at most, and six of
    these are exceeded at one place in 10^9."""
    wave = fitted(function, tolerance, low, high)
    unit = (high - low) / 0.625 / PLACES
    x = torch.arange(math.ceil(low / unit), math.floor(high / unit) + 1)
    mask = torch.randint(0, PLACES, x.shape, generator=torch.Generator().manual_seed(1))
    share = torch.full_like(x, wave.constant << wave.words)
    for factor, words in zip(factors(wave, CPU), dealt(wave, mask), strict=True):
        share += factor.take((x + mask) % PLACES) * words
    error = np.abs(share.numpy() / 2.0**wave.bits - function(x.numpy() * unit))
    deviation = tolerance / 2 * math.sqrt(2)
    assert error.max() <= tolerance / 2 + 6 * deviation
    assert np.sqrt(np.mean(error**2)) <= tolerance
    assert error.max() > 0


def test_the_fewest_waves_are_taken() -> None:
    counts = [len(fitted(np.exp, 2.0**-bits, -8.0, 0.0).cosines) for bits in (6, 10, 14)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_more_waves_are_taken_where_fewer_have_too_many_bits() -> None:
    free = fitted(np.exp, 2.0**-10, -8.0, 0.0)
    bound = fitted(np.exp, 2.0**-10, -8.0, 0.0, most_bits=free.bits - 1)
    assert bound.bits < free.bits
    with pytest.raises(FitError, match="it on -8"):
        fitted(np.exp, 2.0**-10, -8.0, 0.0, most_bits=8)


def test_a_function_that_no_waves_come_close_to_is_named() -> None:
    with pytest.raises(FitError, match=r"it on -1 \.\.\. 1 is .* tolerances away from 64 waves .* or distil"):
        fitted(np.sign, 1e-3, -1.0, 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sines": (1,)}, "2 cosines come with 1 sines"),
        ({"cosines": (), "sines": ()}, "length"),
        ({"cosines": (0,) * 65, "sines": (0,) * 65}, "length"),
        ({"constant": (1 << 32) + 1}, "<="),
        ({"precision": 29}, "<="),
        ({"words": 0}, ">="),
    ],
)
def test_a_wave_beyond_its_bounds_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        msgspec.convert(msgspec.to_builtins(WAVE) | change, Wave)


def test_the_largest_wave_stays_within_its_words() -> None:
    largest = Wave(constant=1 << 32, cosines=(1 << 32,), sines=(-(1 << 32),), precision=1, words=28)
    found = factors(largest, CPU)
    for place in (0, 1, PLACES // 8, PLACES // 4, PLACES // 2, PLACES - 1):
        cosine, sine = (part.item() for part in waves(1, torch.tensor(place)))
        scale = 1 << SCALE_BITS
        expected = ((1 << 32) * (cosine - sine), (1 << 32) * (sine + cosine))
        assert [factor[place].item() for factor in found] == [(2 * word + scale) // (2 * scale) for word in expected]


@pytest.fixture(scope="module")
def public() -> PublicModel:
    sizes = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=1, heads=2)
    friendly = convert(build(sizes, classes=3, channels=1, seed=1), STOCK)
    images = torch.randn(20, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    return fitted_model(friendly, images, margin=1.5).public


def terms(public: PublicModel, arithmetic: bytes) -> Terms:
    return msgspec.convert(
        {
            "sizes": public.sizes, "results": {"labels": 0, "bits": 12}, "weights": bytes(32),
            "most_images": 1, "most_batch": 1, "audited": 0, "arithmetic": arithmetic,
        },
        Terms,
    )  # fmt: skip


def test_the_terms_name_the_table_of_cosines(public: PublicModel) -> None:
    assert public.waves == table_digest()
    assert public_of(terms(public, msgspec.msgpack.encode(public))) == public


@pytest.mark.parametrize(
    ("digest", "reason"),
    [
        (bytes(32), "a table of cosines with the digest 0000.*both owners need the table"),
        (b"", "length"),
        (bytes(33), "length"),
        (None, "Expected `bytes`"),
        ("missing", "missing required field `waves`"),
    ],
)
def test_terms_with_another_table_are_refused(public: PublicModel, digest: Any, reason: str) -> None:
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(public))
    plain["waves"] = digest
    if digest == "missing":
        del plain["waves"]
    with pytest.raises(ValueError, match=reason):
        public_of(terms(public, msgspec.msgpack.encode(plain)))


def test_what_a_small_model_states_is_what_its_data_owner_accepts(public: PublicModel) -> None:
    """More sums of exponentials are in range than are possible: their bounds end with the ring."""
    totals = public.blocks[0].totals
    assert totals.high == 1 << totals.levels
    assert msgspec.convert(msgspec.to_builtins(public), PublicModel) == public


def test_the_program_asks_for_as_many_waves() -> None:
    asked = []

    def take(request: Any) -> list[torch.Tensor]:
        asked.append(request)
        return [torch.zeros(draw.shape, dtype=torch.int64) for draw in request.free(0) + request.dependent()]

    WaveValue(Party(0, take), (2, 3), WAVE, 50)
    assert asked == [Waves((2, 3), 2, WAVE.words, 50)]

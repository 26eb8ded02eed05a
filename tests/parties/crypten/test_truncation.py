"""Truncation with the dealer: never more than one last bit, at every magnitude; CrypTen's own fails by a wrap."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.parties.correlated.material import LARGEST_DIVISOR, Keystream, floor_quotient
from tacit.parties.crypten.truncation import truncated
from tests.parties.inference.in_memory import Pair

SCALE_BITS = 16
SCALE = 1 << SCALE_BITS
BANDS = (8, 16, 24, 32, 40, 48, 53, 56, 59, 62)
"""Values have magnitudes between 2^(band - 1) and 2^band."""


def shared(values: torch.Tensor, stream: Keystream) -> tuple[torch.Tensor, torch.Tensor]:
    other = stream.draw(values.shape)
    return values - other, other


def offset(divisor: int) -> int:
    return LARGEST_DIVISOR // divisor * divisor


def opened(values: torch.Tensor, divisor: int, key: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The opened c and the reconstructed quotient, as the parties compute them."""
    pair = Pair(keys=(bytes([key, 0]) * 16, bytes([key, 1]) * 16))
    shares = shared(values, Keystream(bytes([key, 99]) * 16))
    programs = (truncated(party, share, divisor) for party, share in zip(pair.parties, shares, strict=True))
    one, other = pair.run(*programs)
    c = sum(sender.sent[0][0] for sender in pair.exchanges[0])
    return c, one + other


def quotients(values: torch.Tensor, divisor: int, key: int = 1) -> torch.Tensor:
    return opened(values, divisor, key)[1]


def stock(values: torch.Tensor, stream: Keystream) -> torch.Tensor:
    """What CrypTen 0.4.1 does in ArithmeticSharedTensor.div_ with two parties: each divides its own share."""
    return sum(share.div(SCALE, rounding_mode="trunc") for share in shared(values, stream))


def edges(divisor: int) -> list[int]:
    powers = [1 << exponent for exponent in range(62)]
    near = {sign * (power + step) for power in [0, *powers, divisor] for step in (-1, 0, 1) for sign in (1, -1)}
    near |= {-offset(divisor), -offset(divisor) + 1, (1 << 62) - 1, (1 << 62) - 2}
    return sorted(value for value in near if -offset(divisor) <= value < 1 << 62)


@pytest.mark.parametrize("divisor", [2, 3, 7, 384, SCALE - 1, SCALE, 1 << 32, (1 << 61) + 1, (1 << 62) - 1, 1 << 62])
def test_the_quotient_is_rounded_down_or_up(divisor: int) -> None:
    values = edges(divisor)
    for key in range(8):
        found = quotients(torch.tensor(values), divisor, key).tolist()
        assert {result - value // divisor for result, value in zip(found, values, strict=True)} <= {0, 1}


@pytest.mark.parametrize("divisor", [SCALE, 384, (1 << 40) + 1])
@pytest.mark.parametrize("part", [0.0, 0.25, 0.9])
def test_the_mean_is_the_exact_quotient(divisor: int, part: float) -> None:
    """The greater value comes out as often as the part of the last bit that is cut off."""
    count = 20_000
    rest = int(part * divisor)
    ups = (quotients(torch.full((count,), -5 * divisor + rest), divisor) + 5).sum().item()
    deviation = math.sqrt(count * part * (1 - part)) + 1
    assert abs(ups - count * rest / divisor) < 4 * deviation  # The key is fixed: this passes or fails for ever.


def test_what_is_opened_is_uniform_whatever_the_value() -> None:
    for value in (0, -(1 << 62), (1 << 62) - 1):
        counts = np.bincount(opened(torch.full((1 << 13,), value), SCALE)[0].numpy().view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize(
    ("value", "fails"), [((1 << 62) - 1, False), (5 << 60, True), (-(1 << 62), False), (-5 << 60, True)]
)
def test_the_bound_is_where_the_documentation_puts_it(value: int, fails: bool) -> None:
    errors = quotients(torch.full((1_000,), value), SCALE) - (value >> SCALE_BITS)
    assert bool((errors.abs() > 1).any()) == fails


@dataclass(frozen=True)
class Row:
    band: int
    values: int
    stock_failures: int
    expected_failures: float
    """The sum of |x| / 2^64."""
    stock_error: int
    """The largest, in last bits."""
    error: int
    ups: int

    def __str__(self) -> str:
        stock_error = f"2^{round(math.log2(self.stock_error))}" if self.stock_failures else str(self.stock_error)
        return (
            f"| 2^{self.band - 1} to 2^{self.band} | {self.values} | {self.stock_failures} | "
            f"{self.expected_failures:.2f} | {stock_error} | {self.error} | {self.ups} |"
        )


HEADER = (
    "| magnitude of x | values | local: failures | expected | local: largest error | ours: largest error | "
    "ours: rounded up |\n|---|---|---|---|---|---|---|"
)


def rows(count: int) -> Iterator[Row]:
    stream = Keystream(b"values of every magnitude, shared"[:32])
    for band in BANDS:
        magnitudes = stream.draw((count,), bits=band - 1) + (1 << (band - 1))
        values = torch.where(stream.draw((count,), bits=1).bool(), magnitudes, -magnitudes)
        exact = floor_quotient(values, SCALE)
        errors = quotients(values, SCALE, key=band) - exact
        assert int(errors.min()) >= 0
        # Local truncation rounds towards zero or away from it; anything else is a wrap.
        stock_errors = (stock(values, stream) - exact).abs()
        yield Row(
            band=band,
            values=count,
            stock_failures=int((stock_errors > 2).sum()),
            expected_failures=float(magnitudes.double().sum()) / 2**64,
            stock_error=int(stock_errors.max()),
            error=int(errors.max()),
            ups=int(errors.sum()),
        )


def check(row: Row) -> None:
    assert row.error <= 1
    assert abs(row.stock_failures - row.expected_failures) < 5 * math.sqrt(row.expected_failures) + 1
    if row.stock_failures:
        assert abs(row.stock_error - (1 << (64 - SCALE_BITS))) <= 2


def test_every_magnitude_beside_local_truncation() -> None:
    table = list(rows(1 << 13))
    for row in table:
        check(row)
    assert table[-1].stock_failures > 500
    assert all(row.ups for row in table)


@pytest.mark.exhaustive
def test_ten_million_values_of_every_magnitude_beside_local_truncation() -> None:
    """Prints the table of docs/inference-truncation.md; pytest shows it with -s."""
    print(f"\n{HEADER}")
    total = 0
    for row in rows(1_000_000):
        print(row)
        check(row)
        total += row.values
    assert total == 10_000_000

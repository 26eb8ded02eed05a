"""What test_provider.py runs in processes of their own: one computing party each, with material from a dealer."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from crypten_cases import CASES

from tacit.parties.correlated.material import Keystream
from tacit.parties.crypten.compatibility import crypten
from tacit.parties.crypten.computation import Computation, _random_bits, _random_words, dealt_computation
from tacit.parties.crypten.errors import MpcError
from tacit.parties.crypten.link import PeerLink, connect, listen
from tacit.parties.crypten.shared_model import permute_rows
from tacit.parties.links.keys import PartyKeys
from tacit.protocol.core.roster import Roster
from tacit.simulate.federation.child import Control

LAST_BIT = 2.0**-16
FLOAT = 2.0**-24
"""Relative error of a plain text, which is float32."""
DEALER = "dealer"

Outcome = tuple[Any, Any, float]
"""What was computed (on shares or not), what it should be, and the greatest difference."""


async def compute(control: Control, **arguments: Any) -> dict[str, Any]:
    return await asyncio.to_thread(_compute, **arguments)


async def run_documented(control: Control, *, source: str, own: str, directory: Path) -> str:
    """What the program of the documentation prints for this party."""
    return await asyncio.to_thread(execute, source, own, directory)


def execute(source: str, own: str, directory: Path) -> str:
    os.chdir(directory)
    printed = io.StringIO()
    with redirect_stdout(printed):
        sys.argv = ["product.py", own]
        exec(compile(source, "product.py", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


def _compute(*, cases: bool, **arguments: Any) -> dict[str, Any]:
    """Every case with its greatest error and what it may be, or the reason why it failed."""
    errors: dict[str, Any] = {}
    state = torch.get_rng_state()
    before = _places()
    with opened_computation(**arguments) as (computation, rank), crypten.no_grad():
        own: dict[str, Callable[[], Outcome]] = {
            name: lambda case=case: case(computation, rank) for name, case in OWN_CASES.items()
        }
        matrix: dict[str, Callable[[], Outcome]] = {
            name: lambda index=index, case=case: _of_matrix(index, case)
            for index, (name, case) in enumerate(CASES.items())
        }
        for name, case in (own | (matrix if cases else {})).items():
            try:
                result, expected, tolerance = case()
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
                continue
            plain = result.get_plain_text() if hasattr(result, "get_plain_text") else result
            difference = (torch.as_tensor(plain).double() - torch.as_tensor(expected).double()).abs()
            excess = difference - torch.as_tensor(tolerance).double()
            errors[name] = [float(difference.max()), float(excess.max())]
    errors["torch's generator was left alone"] = [0.0, float(not torch.equal(state, torch.get_rng_state()))]
    errors["everything is back in its place"] = [0.0, float(before != _places())]
    return errors


@contextmanager
def opened_computation(
    own: str, parties: list[str], keys: PartyKeys, roster: Roster, directory: Path
) -> Iterator[tuple[Computation, int]]:
    rank = parties.index(own)
    common: dict[str, Any] = {"keys": keys, "roster": roster, "session": b"dealt", "patience": 60.0}
    with ExitStack() as stack:
        listener = None
        if later := parties[rank + 1 :]:
            listener = stack.enter_context(listen(f"ipc://{directory}/{own}", peers=later, **common))
        links: dict[str, PeerLink] = {
            server: stack.enter_context(connect(f"ipc://{directory}/{server}", server=server, **common))
            for server in parties[:rank]
        }
        if listener:
            links |= listener.accept()
        dealer = stack.enter_context(connect(f"ipc://{directory}/{DEALER}", server=DEALER, **common))
        yield stack.enter_context(dealt_computation(own, parties=parties, links=links, dealer=dealer)), rank


def _of_matrix(index: int, case: Any) -> Outcome:
    x, y = case.inputs(index)
    secure = case.secure(crypten.cryptensor(x, src=0), crypten.cryptensor(y, src=1))
    plain = x.double(), y.double()
    return secure, case.plain(*plain), case.tolerance(LAST_BIT, *plain)


def _places() -> list[object]:
    arithmetic, random = crypten.mpc.primitives.arithmetic, crypten.common.rng.generate_random_ring_element
    gradients = crypten.gradients
    return [
        random,
        arithmetic.generate_random_ring_element,
        arithmetic.ArithmeticSharedTensor.div_,
        crypten.encoder.FixedPointEncoder.decode,
        crypten.encoder.FixedPointEncoder.encode,
        arithmetic.ArithmeticSharedTensor.__init__,
        vars(crypten.CrypTensor)["pow"],
        gradients.AutogradDropout.forward,
        gradients.AutogradFeatureDropout.forward,
        crypten.manual_seed,
        crypten._setup_prng,
        id(crypten.generators),
    ]


VALUES = torch.tensor([[-10.0, -3.0, 0.0, 2.0**-16], [0.75, 3.0, 512.0, -1000.0]])
WEIGHT = torch.arange(20.0).reshape(4, 5) / 8 - 1
ORDER = torch.tensor([2, 0, 3, 1])


def encrypted(values: torch.Tensor = VALUES, source: int = 1) -> Any:
    return crypten.cryptensor(values, src=source)


def divided(divisor: Any) -> Callable[[Computation, int], Outcome]:
    expected = VALUES.double() / torch.as_tensor(divisor)
    return lambda _, rank: (encrypted() / divisor, expected, LAST_BIT + FLOAT * expected.abs())


def divided_by_a_fraction(_: Computation, rank: int) -> Outcome:
    # The encoded reciprocal is off by less than a last bit.
    return encrypted() / 0.3, VALUES.double() / 0.3, VALUES.abs().double() * (LAST_BIT + 4 * FLOAT) + LAST_BIT


def divided_in_place(_: Computation, rank: int) -> Outcome:
    x = encrypted()
    x[0]._tensor.div_(4)
    return x, torch.cat([VALUES[:1] / 4, VALUES[1:]]), LAST_BIT


def large_products(_: Computation, rank: int) -> Outcome:
    """4,000 products just below the bound; a local truncation would lose one in eight of them."""
    values = torch.full((4000,), 2.0**14)
    x = encrypted(values) * encrypted(values, 0) * 3.5
    assert ((values**2 * 3.5).max() * 2**32).item() < 2**62
    return x, values**2 * 3.5, 2 * 3.5 * LAST_BIT + 64  # The last is what float32 can tell apart at 2^30.


def placeholders(_: Computation, rank: int) -> Outcome:
    """Whoever has no plain text gives a tensor of its shape, with whatever is in that memory."""
    values = VALUES if rank == 1 else torch.full_like(VALUES, torch.nan)
    by_position = crypten.mpc.primitives.ArithmeticSharedTensor(values, None, False, None, 1)
    from_numpy = crypten.cryptensor(values.numpy(), src=1)
    return by_position + crypten.cryptensor(values, src=1)._tensor + from_numpy._tensor, 3 * VALUES, 0.0


def largest_values(_: Computation, rank: int) -> Outcome:
    values = torch.tensor([2.0**47 - 2.0**23, -(2.0**47 - 2.0**23)])
    return encrypted(values), values, 0.0


def negative_values_beside_a_whole_number(_: Computation, rank: int) -> Outcome:
    values = -1000 + torch.arange(1200).double() * LAST_BIT
    return encrypted(values), values, 2.0**-14  # float32 at 1000


def random_values(_: Computation, rank: int) -> Outcome:
    drawn = crypten.rand(4000).get_plain_text()
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() < 1
    return drawn.mean(), 0.5, 5 / (12 * 4000) ** 0.5


def dropout(_: Computation, rank: int) -> Outcome:
    with crypten.enable_grad():
        dropped = crypten.gradients.AutogradDropout.forward(_Context(), encrypted(torch.ones(4000)), 0.25)
    return _rate(dropped.get_plain_text(), 0.25)


def feature_dropout(_: Computation, rank: int) -> Outcome:
    context = _Context()
    dropped = crypten.gradients.AutogradFeatureDropout.forward(context, encrypted(torch.ones(40, 50, 2)), 0.5)
    kept = dropped.get_plain_text()
    assert torch.equal(kept[..., 0], kept[..., 1])
    assert torch.equal(kept.round(), context.saved[0] * 2)
    evaluated = crypten.gradients.AutogradFeatureDropout.forward(context, encrypted(), 0.5, training=False)
    assert (evaluated.get_plain_text() - VALUES).abs().max() < 2**-14
    return _rate(kept[..., 0], 0.5)


class _Context:
    saved: tuple[Any, ...] = ()

    def save_multiple_for_backward(self, values: Any) -> None:
        self.saved = tuple(values)


def _rate(dropped: torch.Tensor, p: float) -> Outcome:
    kept = dropped > 0.5
    assert (dropped[kept] - 1 / (1 - p)).abs().max() < 2 * LAST_BIT
    assert dropped[~kept].abs().max() < 2 * LAST_BIT
    return kept.double().mean(), 1 - p, 5 * (p * (1 - p) / dropped.numel()) ** 0.5


def fixed_weight(owner: int) -> Callable[[Computation, int], Outcome]:
    def case(computation: Computation, rank: int) -> Outcome:
        weight = WEIGHT.clone() if rank == owner else None
        masked = computation.weights.mask(weight, (4, 5), owner=owner)
        if weight is not None:
            weight.zero_()  # The owner's tensor may change; what was masked does not.
        again = computation.weights.mask(WEIGHT if rank == owner else None, (4, 5), owner=owner)
        other = computation.weights.mask(WEIGHT + 1 if rank == owner else None, (4, 5), owner=owner)
        assert again is masked
        assert other.number != masked.number
        before = sent(computation)
        result = computation.weights.multiply(encrypted()._tensor, masked)
        # The input goes from each of the others to the owner; the opening of the truncation goes to all.
        message = 8 * VALUES.numel() if rank != owner else 0
        opening = 8 * 2 * 5 * (len(computation.supply.parties) - 1)
        assert message + opening <= sent(computation) - before <= message + opening + 600
        # One slip, and the encoded weight is exact.
        return result, VALUES.double() @ WEIGHT.double(), LAST_BIT * 16 + 2.0**-9

    return case


def sent(computation: Computation) -> int:
    return sum(cost.bytes_sent for cost in computation.communicator.costs().values())


def permuted(owner: int) -> Callable[[Computation, int], Outcome]:
    def case(computation: Computation, rank: int) -> Outcome:
        rows = encrypted(VALUES.reshape(4, 2))
        result = permute_rows(computation.supply, rows._tensor, ORDER if rank == owner else None, owner=owner)
        return result, VALUES.reshape(4, 2)[ORDER], 0.0

    return case


def planned(computation: Computation, rank: int) -> Outcome:
    x = encrypted()
    with computation.supply.recorded() as plan:
        x.relu()
    for _ in range(2):
        computation.supply.announce(plan)
        result = x.relu()
    return result, VALUES.relu(), 0.0


def refusals(computation: Computation, rank: int) -> Outcome:
    provider = crypten.mpc.get_default_provider()
    for name in ("trace", "trace_once", "fill_cache", "save_cache", "load_cache"):
        assert "tuples are used once" in refused(MpcError, getattr(provider, name))
    assert "accepts no seed" in refused(ValueError, lambda: crypten.manual_seed(1, 2, 3))
    assert "call .cpu() first" in refused(ValueError, lambda: provider.square((1,), device="cuda"))
    assert "call .cpu() first" in refused(ValueError, lambda: _random_words((1,), device="cuda"))
    assert "divided by 0" in refused(ZeroDivisionError, lambda: encrypted() / 0)
    for value in (torch.inf, -torch.inf, torch.nan, 2.0**47, -(2.0**47)):
        spoiled = torch.tensor([1.0, value])
        for public in (spoiled, value):
            assert "a plain value is not finite" in refused(ValueError, lambda public=public: encrypted() * public)
        for plain in (spoiled, spoiled.double().numpy(), spoiled.tolist()):
            assert "a plain value is not finite" in refused(ValueError, lambda x=plain: crypten.cryptensor(x, src=rank))
    assert "a plain value is not finite" in refused(ValueError, lambda: encrypted() + torch.tensor(2**47))
    if rank == 0:
        infinite = torch.full((4, 5), torch.inf)
        mask = computation.weights.mask
        for weight in (None, infinite, WEIGHT.t()):
            assert "finite values" in refused(ValueError, lambda weight=weight: mask(weight, (4, 5), owner=0))
        for order in (None, ORDER[:3], ORDER * 2):
            assert "an order of 2 rows" in refused(
                ValueError, lambda order=order: permute_rows(computation.supply, _rows(), order, owner=0)
            )
    return 0, 0, 0.0


def _rows() -> Any:
    return crypten.mpc.primitives.ArithmeticSharedTensor.from_shares(torch.zeros(2, 1, dtype=torch.int64))


def refused(kind: type[Exception], call: Callable[[], object]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("not refused")


def no_other_generator(_: Computation, rank: int) -> Outcome:
    """No module of CrypTen still holds its own random functions, and all generators are streams."""
    names = ("generate_random_ring_element", "generate_kbit_random_tensor")
    for place, module in list(sys.modules.items()):
        if place.startswith("crypten"):
            for name in names:
                assert vars(module).get(name, _random_words) in (
                    _random_words,
                    _random_bits,
                )
    assert all(isinstance(stream, Keystream) for kind in crypten.generators.values() for stream in kind.values())
    return 0, 0, 0.0


OWN_CASES: dict[str, Callable[[Computation, int], Outcome]] = {
    **{f"divided by {divisor}": divided(divisor) for divisor in (1, 3, -7, 384, 2.0, 1 << 20)},
    "divided by several": divided(torch.tensor([1, 2, 3, -4])),
    "divided by several, as floats": divided(torch.tensor([1.0, 2.0, 3.0, -4.0])),
    "divided by a tensor of one": divided(torch.tensor([[5]])),
    "divided by a fraction": divided_by_a_fraction,
    "divided in place": divided_in_place,
    "large products": large_products,
    "placeholders": placeholders,
    "largest values": largest_values,
    "negative values beside a whole number": negative_values_beside_a_whole_number,
    "random values": random_values,
    "dropout": dropout,
    "feature dropout": feature_dropout,
    "fixed weight of rank 0": fixed_weight(0),
    "fixed weight of rank 1": fixed_weight(1),
    "permuted by rank 0": permuted(0),
    "permuted by rank 1": permuted(1),
    "planned": planned,
    "refusals": refusals,
    "no other generator": no_other_generator,
}

"""From values and weights to the decoded sum, with a dropout; and the sizes of records."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tacit.protocol.sum.agreement import record_bytes
from tacit.protocol.sum.exchange import Summed
from tacit.secagg.graph import GraphParameters
from tacit.secagg.packing import Packing, WeightForm
from tacit.simulate.world.world import Streams
from tests.cases import cases
from tests.world.exchange import Delivery
from tests.world.sums import MemorySum, memory_sum

CLIENTS = 5
SIZES = (7, 1, 12)
WEIGHTS: dict[WeightForm, tuple[int, ...]] = {
    WeightForm.SCALAR: (),
    WeightForm.TENSOR: (len(SIZES),),
    WeightForm.COORDINATE: (sum(SIZES),),
}


@cases("active", [True, False])
@cases("form", WEIGHTS)
def test_the_mean_over_the_survivors(form: WeightForm, active: bool, summed: Callable[[MemorySum], Summed]) -> None:
    packing = Packing(
        clients=CLIENTS,
        clip=1.0,
        value_bits=16,
        max_weight=9,
        form=form,
        tensor_sizes=SIZES,
        metrics=("samples", "loss"),
    )
    generator = np.random.default_rng(5)
    weights = generator.integers(0, 10, (CLIENTS, *WEIGHTS[form]))
    spread: Any = np.repeat(weights, SIZES, axis=1) if form is WeightForm.TENSOR else weights
    if form is WeightForm.SCALAR:
        spread = np.repeat(weights[:, np.newaxis], sum(SIZES), axis=1)
    values = generator.uniform(-1, 1, (CLIENTS, sum(SIZES))) * spread
    metrics = [{"samples": 10 + member, "loss": 2**47 + member} for member in range(CLIENTS)]
    encoded = [packing.encode(values[m], weights[m], metrics[m], generator) for m in range(CLIENTS)]
    assert [part.clipped for part in encoded] == [0] * CLIENTS

    template = memory_sum(CLIENTS, active=active, length=packing.length, ring_bits=packing.ring.bits)
    vectors = {f"c{member}": part.words for member, part in enumerate(encoded)}
    run = MemorySum(template.agreement, template.signing, vectors, Streams(b"weights"))

    def hook(delivery: Delivery) -> list[Delivery]:
        if delivery.sender == "c2" and delivery.kind == "masked-input":
            run.kill("c2")
            return []
        return [delivery]

    run.hook = hook
    run.run()
    outcome = summed(run)
    survivors = [0, 1, 3, 4]
    assert outcome.survivors == tuple(f"c{member}" for member in survivors)
    total = packing.decode(outcome.total, contributors=len(survivors))
    np.testing.assert_array_equal(total.weights, weights[survivors].sum(axis=0))
    assert total.metrics == {"samples": 10 + 11 + 13 + 14, "loss": 4 * 2**47 + 0 + 1 + 3 + 4}
    # A step of the quantiser for each contributor, as Packing states.
    np.testing.assert_allclose(
        total.values, values[survivors].sum(axis=0), rtol=0, atol=packing.error_bound(len(survivors))
    )
    mean, moved = total.mean()
    expected = spread[survivors].sum(axis=0)
    np.testing.assert_array_equal(moved, expected > 0)
    assert (mean[~moved] == 0).all()
    np.testing.assert_allclose(
        mean[moved],
        (values[survivors].sum(axis=0) / np.maximum(expected, 1))[moved],
        rtol=0,
        atol=packing.error_bound(len(survivors)),
    )


FOUR = GraphParameters(neighbours=4, threshold=3)


def test_records_have_one_size_and_those_of_a_chosen_graph_hold_the_choices() -> None:
    agreements = [memory_sum(5, active=active).agreement for active in (True, False)]
    assert [record_bytes(agreement) for agreement in agreements] == [128, 64]
    assert [record_bytes(replace(agreement, spending=True)) for agreement in agreements] == [200, 136]
    chosen = [memory_sum(10, active=active, parameters=FOUR).agreement for active in (True, False)]
    assert [record_bytes(agreement) for agreement in chosen] == [64 + 2 * 4 + 64, 64]

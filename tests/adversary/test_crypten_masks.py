"""The owner of a model knows the masks of its own weights. With CrypTen's trusted third party it computes from them the
state of the data owner's generator, predicts the masks of the next input, and reads it; with our keystreams it cannot.
The attack is docs/demonstrations/crypten_masks.py."""

from pathlib import Path
from typing import get_args

import pytest

from tacit.parties.inference.material import AnyBlockRequest, Contraction
from tacit.protocol.inference.messages import DealerHello, DealingOver, OrderRandomness


@pytest.mark.end_to_end
@pytest.mark.threat("computing-party/predicts-masks")
def test_the_model_owner_reads_an_image_under_stock_crypten_and_nothing_under_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "demonstrations")
    import crypten_masks

    image = crypten_masks.digit()
    found = crypten_masks.computed(image, tmp_path)
    assert found["stock"].predicted == 1
    assert (found["stock"].image - image).abs().max() <= 1 / crypten_masks.SCALE
    assert found["ours"].predicted == 0
    assert (found["ours"].image - image).abs().min() > 1e6


@pytest.mark.threat("dealer/reads-requests")
def test_the_dealer_is_told_shapes_and_counts_alone() -> None:
    """All structures that a party sends to it, field by field."""
    fields = {kind: set(kind.__struct_fields__) for kind in (DealerHello, OrderRandomness, DealingOver)}
    assert fields == {
        DealerHello: {"roster", "peer", "terms", "contribution"},
        OrderRandomness: {"first", "count", "requests"},
        DealingOver: set(),
    }
    for kind in (*get_args(AnyBlockRequest), Contraction):
        assert set(kind.__struct_fields__) <= {
            "shape", "left", "right", "operation", "arguments", "divisor", "owner", "rows", "weight", "weight_shape",
            "words", "bits", "degree", "factor", "operands", "products", "letters", "queries", "keys", "harmonics",
            "precision", "domain", "index", "slope", "levels",
        }  # fmt: skip

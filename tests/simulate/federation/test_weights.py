"""The largest weight of a client, as the split of a simulation needs it."""

from typing import Any

import numpy as np
import pytest

from tacit.models.datasets.samples import ArrayImages, Samples, Source
from tacit.parties.runs.experiment import Experiment, parse
from tacit.simulate.federation.hosting import largest_weight, shares, weighed


def source(samples: int) -> Source:
    images = ArrayImages(np.zeros((samples, 4, 4, 1), np.uint8))
    part = Samples(images, np.arange(samples) % 2)
    return Source(part, part, ("a", "b"))


def parts(experiment: Experiment, samples: int) -> list[Any]:
    return shares(experiment, source(samples), seed=1)


def of(toml: str) -> Experiment:
    return parse('[federation]\nclients = 3\n[data]\npartition = "iid"\n' + toml, "test")


def test_it_is_computed_from_the_split() -> None:
    """More images than the 2,000 that hosts take where nothing is said."""
    experiment = of("")
    found = weighed(experiment, parts(experiment, 8998))
    assert (largest_weight(experiment, parts(experiment, 8998)), found.aggregation.max_weight) == (3000, 3000)
    assert weighed(experiment, parts(experiment, 9001)).aggregation.max_weight == 3100
    assert (experiment.terms().max_weight, found.terms().max_weight) == (2000, 3000)


def test_images_that_are_held_out_have_no_weight() -> None:
    experiment = of("[training]\nheld_out = 0.25")
    assert largest_weight(experiment, parts(experiment, 120)) == 30


def test_a_weight_that_is_set_stays_and_one_that_is_too_small_is_refused() -> None:
    enough = of("[aggregation]\nmax_weight = 41")
    assert weighed(enough, parts(enough, 123)).aggregation.max_weight == 41
    with pytest.raises(ValueError, match=r"^aggregation\.max_weight = 41: the largest client has 42 samples to train"):
        weighed(enough, parts(enough, 124))


def test_where_all_clients_weigh_the_same_nothing_is_asked() -> None:
    experiment = of('[aggregation]\nmax_weight = 1\n[protection]\nscheme = "dp-gaussian"')
    assert weighed(experiment, parts(experiment, 600)).terms().max_weight == 1

"""The first sum as words: what a client gives, what the server makes of it, and which proposals are refused."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from tacit.models.configuration import MOST_SUMMED_CHANNELS
from tacit.models.moments import Moments
from tacit.parties.hosting.server import ServerImages, first_configuration, standing_in
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.statistics import (
    SCHEME,
    Statistics,
    StatisticsKeeper,
    StatisticsTask,
    configure_statistics,
    read_statistics_task,
    statistics_words,
)
from tacit.parties.protections.catalogue import registered
from tacit.parties.protections.sides import TaskError
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError
from tacit.parties.runs.experiment import Experiment, ExperimentError, parse
from tacit.protocol.core.blob import StateLayout
from tacit.protocol.core.codec import decode_structure, encode_structure
from tacit.protocol.core.errors import RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT
from tacit.protocol.sum.configuration import Configuration

CLIENTS = (
    Moments(100, (9_000, 0), (900_000, 0)),
    Moments(64, (64 * 255, 1), (64 * 255**2, 1)),
    Moments(2**32, (2**32 * 255, 2**32), (2**32 * 255**2, 2**32)),
)
"""The last one has as many pixels as there can be."""
TASK = StatisticsTask(image_size=8, channels=2, classes=3, class_digest=b"c" * 32)


def proposal(task: StatisticsTask = TASK, **changes: Any) -> Configuration:
    return msgspec.structs.replace(configure_statistics(Experiment().terms(), task), **changes)


def summed(configuration: Configuration, *clients: Moments) -> Any:
    packing = configuration.packing()
    total = np.zeros(packing.length, packing.ring.word)
    for client in clients:
        packing.ring.add_into(total, statistics_words(configuration, client))
    return total


def test_the_server_learns_the_sums_exactly() -> None:
    configuration = proposal()
    keeper = StatisticsKeeper(configuration)
    total = keeper.decode(summed(configuration, *CLIENTS), len(CLIENTS))
    keeper.apply(total)
    together = CLIENTS[0] + CLIENTS[1] + CLIENTS[2]
    mean, std = together.normalisation()
    assert keeper.found == Statistics(clients=3, pixels=together.pixels, mean=mean, std=std)
    assert np.asarray(total.values).tolist() == []
    assert (keeper.bytes, configuration.state.size) == (b"", 0)


def test_as_many_channels_as_there_can_be_fit() -> None:
    task = msgspec.structs.replace(TASK, channels=MOST_SUMMED_CHANNELS)
    configuration = proposal(task)
    # As a client reads it.
    assert decode_structure(encode_structure(configuration), Configuration, limit=BODY_LIMIT) == configuration
    assert read_statistics_task(configuration) == task


def test_more_pixels_than_a_metric_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="metric 'squares-0'"):
        statistics_words(proposal(), Moments(2**33, (0, 0), (2**33 * 255**2, 0)))


@pytest.mark.parametrize("lie", [Moments(10, (2_551 * 4, 0), (0, 0)), Moments(10, (0, 0), (0, 10 * 255**2))])
def test_sums_that_no_pixels_have_make_no_statistics(lie: Moments) -> None:
    configuration = proposal()
    keeper = StatisticsKeeper(configuration)
    with pytest.raises(ValueError, match="do not exist"):
        keeper.decode(summed(configuration, lie), 1)
    assert keeper.found is None


def experiments() -> Iterator[Experiment]:
    """Of every protection, and of every one that goes with encryption."""
    for scheme, sections in product(sorted(registered()), ("", "[encryption]\n")):
        mode = "none" if scheme == "fedcg" else "active"
        text = f'[protection]\nscheme = "{scheme}"\n[aggregation]\nmode = "{mode}"\n[policy]\nmodes = ["{mode}"]\n'
        text += "uncoordinated_weights = true\n"
        if not sections or registered()[scheme].works_encrypted:
            yield parse(text + sections, "test")


@pytest.mark.parametrize(
    "experiment", list(experiments()), ids=lambda one: f"{one.protection.scheme} {bool(one.encryption)}"
)
def test_the_first_sum_is_plain_whatever_protects_the_training(experiment: Experiment) -> None:
    found = first_configuration(experiment, ServerImages(("a", "b"), (0.5,), (0.5,)), 5)
    mode = experiment.aggregation.mode
    assert (found.scheme, found.form, found.max_weight, found.mode) == (SCHEME, "scalar", 1, mode)
    assert (found.group_key, found.encrypted, found.single_vectors, found.min_contributors) == (False, False, False, 0)
    assert read_statistics_task(found).channels == 1
    experiment.policy.check(found, clients=5)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": ("pixels", "sum-0", "squares-0", "sum-1", "squares-1", "brightest")},
        {"tensor_sizes": (2,)},
        {"state": StateLayout(type="float32", count=1)},
        {"layout": b"l" * 32},
        {"max_weight": 2},
        {"min_contributors": 1},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_configuration_that_does_not_follow_from_its_task_is_refused(changes: dict[str, Any]) -> None:
    bent = proposal(**changes)
    bent = msgspec.structs.replace(bent, ring_bits=64)
    with pytest.raises(TaskError, match=f"has ({next(iter(changes))}|ring_bits) = .* contradicts itself"):
        read_statistics_task(bent)


def test_a_policy_may_refuse() -> None:
    ClientPolicy().check(proposal(), clients=5)
    with pytest.raises(RemoteProtocolError, match="scheme = statistics; this client's policy accepts one of fedavg"):
        ClientPolicy(schemes=("fedavg", "fedsgd")).check(proposal(), clients=5)
    with pytest.raises(RemoteProtocolError, match="accepts noise on all that leaves it"):
        ClientPolicy(largest_epsilon=1.0).check(proposal(), clients=5)
    assert ClientPolicy().cost(proposal()) == 0.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[data]\nstatistics = "clients"', r"data\.statistics"),
        ('[data]\nstatistics = "sum"\nmean = [0.5]\nstd = [0.5]', r"leave both out, or leave out data\.statistics"),
        ("[data]\nchannels = 3", r'data\.channels = 3 is used with data\.statistics = "sum" alone'),
        ('[data]\nstatistics = "sum"\nchannels = 16', r"data\.channels"),
        ('[data]\nstatistics = "sum"\n[policy]\nschemes = ["fedavg"]', r'data\.statistics = "sum": policy\.schemes'),
        (
            '[data]\nstatistics = "sum"\n[protection]\nscheme = "fixed-position"\n[policy]\n'
            'protections = ["fixed-position"]',
            r'data\.statistics = "sum": it has no protection, which policy\.protections \(without "none"\)',
        ),
        (
            '[data]\nstatistics = "sum"\n[protection]\nscheme = "dp-gaussian"\n[policy]\nleast = {dp_noise = 0.1}',
            r'data\.statistics = "sum": it has no protection, which .* or policy\.least asks for',
        ),
        (
            '[data]\nstatistics = "sum"\n[protection]\nscheme = "dp-gaussian"\n[policy]\nlargest_epsilon = 100.0',
            r'data\.statistics = "sum": it has no noise',
        ),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ExperimentError, match=complaint):
        parse(text, "test")


def test_what_stands_in_until_the_sum_fits_any_images() -> None:
    data = standing_in(parse('[data]\nstatistics = "sum"\nchannels = 3', "test").data, 3)
    assert (data.mean, data.std, data.statistics, data.channels) == ((0.5,) * 3, (0.5,) * 3, "given", 0)


def test_a_run_keeps_its_statistics(tmp_path: Any) -> None:
    run = RunDirectory.create(tmp_path / "run")
    assert run.kept_statistics() is None
    # Binary64 in decimal digits, and back, is the same number.
    found = Statistics(clients=3, pixels=7, mean=(0.1 + 0.2,), std=(1 / 3,))
    run.keep_statistics(found)
    assert run.kept_statistics() == found
    run.statistics.write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"statistics\.json has no statistics .* restore it, or start anew"):
        run.kept_statistics()

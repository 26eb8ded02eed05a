"""How many clients take part, and how many of them a round draws."""

from pathlib import Path

import pytest

from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.experiment import (
    USUAL_CLIENTS,
    Aggregation,
    Experiment,
    ExperimentError,
    FederationSection,
    load,
    parse,
    with_overrides,
)
from tests.cases import cases

GROUPED = "group_size = 4\nfraction = {}\n[aggregation]\ncorrupt = 0.1\ndropout = 0.34\n[policy]\nleast_corrupt = 0.1"


def of(text: str) -> Experiment:
    return parse(f"[federation]\n{text}", "file")


def test_all_is_the_default_and_a_simulation_starts_the_usual_number() -> None:
    assert of('clients = "all"') == parse("", "file") == Experiment()
    assert Experiment().clients == USUAL_CLIENTS
    assert with_overrides(Experiment(), clients=7).clients == 7


@cases(
    ["text", "clients", "cohort"],
    [
        ("clients = 10", 10, 10),
        ("clients = 10\nfraction = 0.65", 10, 6),
        # By the decimals of the fraction: 0.58 of 50 is 29.
        ("clients = 50\nfraction = 0.58\n[aggregation]\nmode = 'none'\n[policy]\nmodes = ['none']", 50, 29),
        ("clients = 24\n" + GROUPED.format(0.5), 24, 12),
    ],
)
def test_a_round_has_a_fraction_of_the_clients(text: str, clients: int, cohort: int) -> None:
    found = of(text)
    assert (found.clients, found.cohort, found.terms().clients) == (clients, cohort, cohort)


def test_the_bound_counts_all_clients_and_not_those_of_a_round() -> None:
    assert of("clients = 1000\nfraction = 0.979").terms().colluders == 330


def remedies(message: str) -> list[float]:
    assert "\n" not in message
    words = message.split("; ", 1)[1].replace(";", "").split()
    return [float(word) for word in words if word.replace(".", "", 1).isdigit()]


@cases(
    "text",
    [
        "clients = 1000\nfraction = 0.1",
        "clients = 1000\nfraction = 0.97",
        "clients = 10\nfraction = 0.3",
        "clients = 5\nfraction = 0.5",
        "clients = 300\nfraction = 0.2\n[aggregation]\nmode = 'semi-honest'\n[policy]\nmodes = ['semi-honest']",
        "clients = 300\nfraction = 0.2\n[aggregation]\ndropout = 0.0",
        "clients = 24\n" + GROUPED.format(0.2),
    ],
)
def test_a_fraction_below_the_bound_is_refused_with_the_smallest_that_works(text: str) -> None:
    with pytest.raises(ExperimentError, match=r"^file: federation\.fraction = 0\.\d+: ") as refused:
        of(text)
    least, *bounds = remedies(str(refused.value))
    found = parse(f"[federation]\n{text}".replace("fraction = 0.", "fraction = 1 #"), "file")
    works = with_overrides(found, more={"federation": {"fraction": least}})
    assert works.cohort < works.clients
    for cohort in range(max(1, works.cohort - 3), works.cohort):
        with pytest.raises(ExperimentError):
            with_overrides(found, more={"federation": {"fraction": cohort / works.clients + 1e-6}})
    fraction = float(text.split("fraction = ")[1].split()[0])
    if bounds:
        bound, same = bounds
        lower = {"aggregation": {"corrupt": bound}, "policy": {"least_corrupt": same}}
        with_overrides(found, more={"federation": {"fraction": fraction}, **lower})


def test_a_tenth_of_a_thousand_works_only_beside_fewer_colluders() -> None:
    with pytest.raises(ExperimentError) as refused:
        of("clients = 1000\nfraction = 0.1")
    assert remedies(str(refused.value)) == [0.969, 0.033, 0.033]


def test_an_encrypted_model_has_the_same_cohort_in_every_round() -> None:
    with pytest.raises(ExperimentError, match=r"federation\.fraction = 0\.8: only the cohort of the last round"):
        of("clients = 10\nfraction = 0.8\n[encryption]\nmatrix = 'orthogonal'")


def test_an_adaptation_has_all_data_owners_in_every_step() -> None:
    with pytest.raises(ValueError, match=r"^federation\.fraction = 0\.9: "):
        AdaptationExperiment(federation=FederationSection(clients=10, fraction=0.9))


def test_what_all_clients_need_is_judged_by_the_number_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text("[aggregation]\nthreshold = 7\n")
    with pytest.raises(ExperimentError, match=r"aggregation\.threshold = 7"):
        load(path)
    found = load(path, numbered=False)
    assert found.numbered(9).graph_parameters().threshold == 7
    with pytest.raises(ValueError, match=r"^aggregation\.threshold = 7"):
        found.numbered(5)
    assert of("clients = 4").numbered(9).clients == 4
    with pytest.raises(ValueError, match=r"^aggregation\.threshold = 9"):
        Experiment(aggregation=Aggregation(threshold=9)).numbered(5)

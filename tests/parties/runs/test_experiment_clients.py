"""Sections of experiment files: numbers of clients and groups, adaptation, own functions, and paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tacit.models.adapters.configuration import LinearProbeConfiguration, ParallelConfiguration
from tacit.parties.hosting.party_file import ClientFile, read_party
from tacit.parties.runs.adaptation import AdaptationExperiment
from tacit.parties.runs.distillation import DistillationExperiment
from tacit.parties.runs.experiment import (
    USUAL_CLIENTS,
    Aggregation,
    Experiment,
    ExperimentError,
    FederationSection,
    built,
    check_factories,
    holds,
    keys,
    load,
    load_as,
    parse,
    settings_of,
    with_overrides,
)
from tacit.parties.runs.reference import experiment_toml
from tacit.simulate.federation.run import default_directory
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


FITTING = (
    '[policy]\nleast_corrupt = 0.0\nmodes = ["active", "none"]\n'
    "[federation]\nclients = {clients}\ngroup_size = {size}\n[aggregation]\ncorrupt = {corrupt}\ndropout = {dropout}\n"
)


def made(clients: int, size: int, corrupt: float = 0.05, dropout: float = 0.5, more: str = "") -> Experiment:
    text = FITTING.format(clients=clients, size=size, corrupt=corrupt, dropout=dropout)
    return parse(text + more, "groups.toml")


@pytest.mark.parametrize(
    ("clients", "size", "groups"),
    [
        (6, 2, (1, 1, 2, 2, 3, 3)),
        (12, 3, (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4)),
        (7, 2, (1, 1, 1, 2, 2, 3, 3)),
        (11, 3, (1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3)),
    ],
)
def test_as_many_groups_as_there_can_be_of_almost_the_same_size(
    clients: int, size: int, groups: tuple[int, ...]
) -> None:
    assert made(clients, size).groups() == groups


def test_without_the_key_nobody_is_in_a_group() -> None:
    assert Experiment().groups() == (0,) * 5


@pytest.mark.parametrize(
    ("clients", "size", "corrupt", "dropout"),
    [
        (6, 2, 0.05, 0.34),
        (12, 3, 0.1, 0.33),
        (12, 3, 0.1, 0.5),
        (20, 4, 0.1, 0.2),
        (100, 12, 0.1, 0.3),
        (1000, 52, 0.05, 0.2),
    ],
)
def test_the_values_of_the_page_fit(clients: int, size: int, corrupt: float, dropout: float) -> None:
    found = made(clients, size, corrupt, dropout)
    assert {found.groups().count(group) for group in found.groups()} <= {size, size + 1}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((12, 3, 0.33, 0.33), "a group of 3 clients, of whom 3 may collude: a group needs at least 5"),
        (
            (12, 5, 0.33, 0.33),
            "one client that is lost takes its group of 6 out of the sum of 12 clients, and 6 are left, where 9 are "
            "needed (dropout = 0.33 of 12 tolerates 3, smallest_cohort = 3): take more clients, smaller groups "
            "(with 3 colluders they need at least 5), or a larger dropout",
        ),
        ((12, 4, 0.1, 0.33), "one client that is lost takes its group of 4 out of the sum of 12 clients"),
        ((5, 1, 0.05, 0.33), "a group of 1 clients, of whom 0 may collude: a group needs at least 2"),
        ((5, 5, 0.05, 0.9), "one client that is lost takes its group of 5 out of the sum of 5 clients"),
        ((4, 2, 0.05, 0.5), "one client that is lost takes its group of 2 out of the sum of 4 clients"),
        ((6, 2, 0.05, 0.5, "threshold = 6\n"), "when one of 6 clients is lost, 5 answer, and 6 must"),
        (
            (6, 2, 0.05, 0.5, 'mode = "none"\n'),
            "without secure aggregation the server sees every update; set it to 0",
        ),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_are_refused_with_the_numbers(arguments: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        made(*arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"groups.toml: federation.group_size = {arguments[1]}: {complaint}")


def test_more_than_there_are_clients_is_no_group() -> None:
    with pytest.raises(ExperimentError, match="group_size = 6: 5 clients make no group of 6"):
        made(5, 6)


KEYS = list(keys(AdaptationExperiment))


def read(directory: Path, text: str) -> AdaptationExperiment:
    (directory / "own.toml").write_text(text)
    return load_as(AdaptationExperiment, directory / "own.toml")


@pytest.mark.parametrize(
    "experiment",
    [
        AdaptationExperiment(),
        AdaptationExperiment(adapter=ParallelConfiguration(rank=3, scale=0.5, initialisation="xavier")),
        AdaptationExperiment(adapter=LinearProbeConfiguration()),
    ],
    ids=["default", "parallel", "linear-probe"],
)
def test_what_is_written_is_what_is_read(tmp_path: Path, experiment: AdaptationExperiment) -> None:
    assert read(tmp_path, experiment_toml(experiment)) == experiment


def test_a_key_is_held_by_its_own_kind_alone() -> None:
    held = {
        kind: {key.path for key in KEYS if holds(AdaptationExperiment().with_adapter(kind), key) and key.choice}
        for kind in ("parallel", "linear-probe")
    }
    assert {path for path in held["parallel"] if path.startswith("adapter.")} == {
        "adapter.kind",
        "adapter.rank",
        "adapter.scale",
        "adapter.initialisation",
    }
    assert {path for path in held["linear-probe"] if path.startswith("adapter.")} == {"adapter.kind"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[adapter]\nkind = "linear-probe"\nscale = 1.0', "adapter.scale = 1.0:"),
        ("[adapter]\nrank = 4", "adapter.kind is missing: "),
        ("[adaptation]\ndecay_rounds = [3, 2]", "adaptation.decay_rounds = [3, 2]:"),
        ("[adaptation]\nknown_classes = []", "adaptation.known_classes = []:"),
        ("[encryption]", "what is learned beside a model has no [protection] and no [encryption]:"),
        ('[data]\nstatistics = "sum"', 'data.statistics = "sum":'),
        ('[aggregation]\nmode = "none"\n[policy]\nmodes = ["none"]', 'aggregation.mode = "none":'),
        ("[adaptation]\nsmallest_cohort = 5", "federation.clients = 4:"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'own.toml'}: {complaint}")


def test_a_model_that_is_not_there_is_noticed_without_torch(tmp_path: Path) -> None:
    experiment = read(tmp_path, f'[adaptation]\nbackbone = "{tmp_path / "nowhere"}"')
    with pytest.raises(ValueError, match="nowhere holds neither"):
        experiment.check_place()
    AdaptationExperiment().check_place()


OWN = """
[model]
factory = "mine.nets:net"
[data]
factory = "mine:share"
[training]
factory = "mine.steps:step"
"""
ACCEPTED = '[policy]\nfactories = ["mine.*"]\n'


def test_a_policy_accepts_functions_by_pattern() -> None:
    experiment = parse(OWN + ACCEPTED, "own.toml")
    assert experiment.factories == {
        "model.factory": "mine.nets:net",
        "data.factory": "mine:share",
        "training.factory": "mine.steps:step",
    }
    assert parse("", "own.toml").factories == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OWN, 'model.factory = "mine.nets:net":'),
        (OWN + '[policy]\nfactories = ["mine.nets:*"]', 'training.factory = "mine.steps:step":'),
        (OWN.replace('[model]\nfactory = "mine.nets:net"', "") + ACCEPTED, "data.factory = .*give model.factory too"),
        ('[model]\nfactory = "nets"', 'model.factory = "nets":'),
        ('[model]\nfactory = "mine.n:n"\npretrained = true', "model.pretrained is not used where model.factory makes"),
        ('[data]\nfactory = "mine.n:n"\nsource = "a.npz"', "data.source is not used where data.factory gives the data"),
        ('[data]\nfactory = "mine.n:n"\nclasses = ["a"]', "data.classes is not used where data.factory gives"),
        ('[data]\nfactory = "mine.n:n"\nmean = [0.5]\nstd = [0.5]', "data.mean and data.std:"),
        ('[data]\nfactory = "mine.n:n"\nstatistics = "sum"', "data.statistics:"),
        ('[training]\nfactory = "mine.n:n"\nalgorithm = "fedsgd"', 'training.algorithm = "fedsgd":'),
        (OWN.replace("[training]", "[training]\nheld_out = 0.1") + ACCEPTED, "training.held_out = 0.1:"),
        (OWN + ACCEPTED + '[protection]\nscheme = "fedrsm"', 'protection.scheme = "fedrsm":'),
    ],
)
def test_what_does_not_go_together_is_refused(text: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=f"own.toml: {message}"):
        parse(text, "own.toml")


def test_what_is_not_installed_is_named_with_file_and_key() -> None:
    wanted = 'own.toml: model.factory = "mine.nets:net": mine.nets cannot be imported: No module named .mine.; install'
    with pytest.raises(ExperimentError, match=wanted):
        check_factories(parse(OWN + ACCEPTED, "own.toml"), "own.toml")


GIVEN = {"here": "{folder}/here", "../up": "{folder}/../up", "~/own": "{home}/own", "/abs": "/abs"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the file, relative to the current one, which is another."""
    (tmp_path / "files").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Path("files")


@pytest.mark.parametrize("bom", ["", "\ufeff"])
@pytest.mark.parametrize("given", GIVEN)
def test_paths_of_every_file_are_from_its_folder(folder: Path, given: str, bom: str) -> None:
    expected = Path(GIVEN[given].format(folder=folder.absolute(), home=os.environ["HOME"]))
    for section in (f'source = "folder"\ndirectory = "{given}"', f'source = "{given}.npz"'):
        text = f'{bom}[data]\n{section}\n[model]\ncheckpoint = "{given}"\n'
        (folder / "exp.toml").write_text(text, encoding="utf-8")
        for kind in (load, lambda path: load_as(DistillationExperiment, path)):
            found = kind(folder / "exp.toml")
            where = found.data.directory or found.data.source.removesuffix(".npz")
            assert Path(where).is_absolute()
            assert Path(where) == Path(found.model.checkpoint) == expected
        party = f'{bom}role = "client"\nkey = "a.key"\nconnect = "tcp://h:1"\n[data]\n{section}\n'
        (folder / "party.toml").write_text(party, encoding="utf-8")
        data = read_party(ClientFile, folder / "party.toml").data
        where = data.directory or data.source.removesuffix(".npz")
        assert Path(where).absolute() == expected


def test_the_copy_in_a_run_directory_has_the_same_paths(folder: Path, tmp_path: Path) -> None:
    (folder / "exp.toml").write_text('[data]\nsource = "folder"\ndirectory = "images"\n', encoding="utf-8")
    first = load(folder / "exp.toml")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text(experiment_toml(first), encoding="utf-8")
    assert load(tmp_path / "run" / "experiment.toml") == first


def test_paths_in_python_are_from_the_current_folder(folder: Path, tmp_path: Path) -> None:
    assert built({"data": {"source": "x.npz"}}, "here").data.source == str(tmp_path / "x.npz")


def test_settings_of_a_command_line_are_those_of_a_file(folder: Path, tmp_path: Path) -> None:
    given = ["training.epochs=2", "data.source=x.npz", "training.augment=['flip']", 'protection.scheme="dp-gaussian"']
    changed = with_overrides(Experiment(), more=settings_of(given), where="command line")
    assert (changed.training.epochs, changed.training.augment) == (2, ("flip",))
    assert (changed.data.source, changed.protection.scheme) == (str(tmp_path / "x.npz"), "dp-gaussian")
    for wrong, message in {
        "training.epochs": "expected SECTION.KEY=VALUE",
        "epochs=2": "expected SECTION.KEY=VALUE",
        "training.epochs=two": 'training.epochs = "two": expected an integer',
        "training.schedule=cosine": 'training.schedule = "cosine": there is no such key; accepted: ',
        "training.clip=1.0": r"did you mean aggregation.clip\?",
    }.items():
        with pytest.raises(ExperimentError, match=message):
            with_overrides(Experiment(), more=settings_of([wrong]), where="command line")


def test_runs_that_begin_in_one_second_have_folders_of_their_own(folder: Path) -> None:
    taken = []
    for _ in range(3):
        taken.append(default_directory("mine"))
        taken[-1].mkdir(parents=True)
    assert len(set(taken)) == 3

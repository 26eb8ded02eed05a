"""Functions of one's own in an experiment file: what goes with them, and who accepts them."""

from __future__ import annotations

import pytest

from tacit.parties.runs.experiment import ExperimentError, check_factories, parse

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

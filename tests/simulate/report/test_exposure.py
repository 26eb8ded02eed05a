"""What each party could see, with secure aggregation and without: no sentence promises what the mode does not keep."""

from typing import Any

import pytest

from tacit.parties.runs.experiment import load, parse
from tacit.parties.runs.reading import read_state
from tacit.simulate.report.exposure import Exposure, exposure
from tacit.simulate.report.page import make_report

pytestmark = pytest.mark.usefixtures("undrawn")


def parties(script: Any, mode: str, *, rounds: int = 1, toml: str = "") -> dict[str, Exposure]:
    run = script(toml=f'{toml}[aggregation]\nmode = "{mode}"\n[policy]\nmodes = ["{mode}"]\n')
    run.session()
    for number in range(1, rounds + 1):
        run.round(number)
    state = read_state(run.run.path / "events")
    return {row.party: row for row in exposure(state, load(run.run.experiment))}


def words(row: Exposure) -> str:
    return " | ".join((*row.sees, *row.hidden, *row.conditions))


@pytest.mark.parametrize("mode", ["active", "semi-honest", "none"])
def test_only_a_secure_sum_hides_the_update_of_a_client_from_the_server(script: Any, mode: str) -> None:
    server = parties(script, mode)["server"]
    secure = mode != "none"
    hidden = "data, update, loss, accuracy or number of samples of any one client"
    assert (hidden in server.hidden) == secure
    assert any(sentence.startswith("every update that a client sent, by itself") for sentence in server.sees) != secure
    assert ("Secure aggregation was off" in words(server)) != secure
    assert ("Nothing opens before 3 of 4 clients help." in words(server)) == secure
    assert "1 sum over 4 clients: of their weighted updates" in words(server)
    assert "the global model before and after every round" in server.sees


def test_what_two_sums_tell_that_are_compared_depends_on_groups(script: Any) -> None:
    assert "a server that lies can have one sum with a client and another one without it" in words(
        parties(script, "active")["server"]
    )
    text = "[federation]\nclients = 6\ngroup_size = 2\n[aggregation]\ncorrupt = 0.05\ndropout = 0.34\n"
    text += "[policy]\nleast_corrupt = 0.05\n"
    run = script()
    run.session()
    server, *_ = exposure(read_state(run.run.path / "events"), parse(text, "groups.toml"))
    assert "compared with each other reveal groups of 2 clients or more, not of one" in words(server)


def test_without_secure_aggregation_nothing_is_said_of_keys_shares_and_thresholds(script: Any) -> None:
    for row in parties(script, "none").values():
        text = words(row)
        for word in ("mask", "share", "threshold", "survivors", "public keys", "Nothing opens", "lies"):
            assert word not in text, (row.party, word)


@pytest.mark.parametrize(
    ("scheme", "server", "client"),
    [
        ('"binary-weights"\nzero_probability = 0.8', "about 41% of all coordinates in a sum over 4 clients", True),
        ('"locked-binary-weights"\nmin_contributors = 2', "the value of that client's update", False),
        ('"fedrsm"', "its update of the layer", True),
    ],
)
def test_what_a_protection_reveals_is_not_said_to_be_hidden(
    script: Any, scheme: str, server: str, client: bool
) -> None:
    toml = f"[protection]\nscheme = {scheme}\n"
    found = parties(script, "semi-honest", toml=toml)
    assert any(server in sentence for sentence in found["server"].sees)
    assert not any("update" in sentence.split(";")[0] for sentence in found["server"].hidden)
    assert any("the update of one client" in sentence for sentence in found["each client"].sees) == client


@pytest.mark.parametrize("mode", ["active", "semi-honest", "none"])
def test_clients_see_no_single_update_of_others_in_any_mode(script: Any, mode: str) -> None:
    client = parties(script, mode)["each client"]
    assert "data, update, loss, accuracy or number of samples of any one other client" in client.hidden
    assert "a mixture of the updates of at least 3 others" in client.sees[0]
    listed = {"active": "; the signed list of survivors", "semi-honest": "; the list of survivors", "none": ""}
    assert client.sees[1] == f"the roster; who is in a round{listed[mode]}"
    assert len(client.sees) == (2 if mode == "none" else 3)


def test_a_protection_of_the_update_is_named_and_a_run_without_sums_too(script: Any) -> None:
    toml = '[protection]\nscheme = "binary-weights"\n[training]\nalgorithm = "fedsgd"\n'
    server = parties(script, "none", rounds=0, toml=toml)["server"]
    assert "times its weight, after the protection binary-weights; with it" in server.sees[0]
    assert "no sum: no round was completed" in server.sees
    assert "after the protection" not in words(parties(script, "none")["server"])


@pytest.mark.parametrize("mode", ["semi-honest", "none"])
def test_the_page_speaks_of_a_secure_sum_only_where_there_is_one(script: Any, mode: str) -> None:
    run = script(toml=f'[aggregation]\nmode = "{mode}"\n[policy]\nmodes = ["{mode}"]\n')
    run.session()
    run.round(1)
    html, secure = make_report(run.run), mode != "none"
    assert ("Federated training under secure aggregation" in html) == secure
    assert ("Federated training without secure aggregation" in html) != secure
    assert ("Secure aggregation was off: the server saw the update of every client." in html) != secure
    for words in (
        "; threshold ",
        "Rounds took",
        ": the secure sum<",
    ):
        assert (words in html) == secure, words

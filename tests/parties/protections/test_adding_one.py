"""A protection from outside of the package takes one file: it is read, checked, proposed, refused and run like ours."""

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.generate.configuration import reference_markdown
from tacit.parties.learning.learner import Draft, Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections import catalogue
from tacit.parties.protections.encryption import Encryption
from tacit.parties.runs.experiment import ExperimentError, parse
from tacit.parties.runs.reference import experiment_toml
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.session.events import ClientLeft
from tacit.protocol.sum.configuration import Configuration

SOURCE = Path(__file__).parent / "random_top_k.py"
PAGE = Path(__file__).parents[3] / "docs" / "adding-a-protection.md"
TOML = '[protection]\nscheme = "random-top-k"\n'
ALONE = "[policy]\nuncoordinated_weights = true\n"


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(catalogue, "_REGISTERED", dict(catalogue._REGISTERED))
    return catalogue.register(importlib.import_module("tests.parties.protections.random_top_k").RandomTopK)


def test_the_page_shows_the_file() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown == SOURCE.read_text()


def test_an_experiment_file_has_it_with_its_keys(scheme: Any) -> None:
    experiment = parse(f"{TOML}kept_back = 0.75\nmin_contributors = 2\n{ALONE}", "outside.toml")
    assert experiment.protection == scheme(kept_back=0.75, min_contributors=2)
    assert parse(experiment_toml(experiment), "again.toml") == experiment
    assert '### scheme = "random-top-k"' in reference_markdown()


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("kept_back = 0.25", "protection.kept_back = 0.25: expected a number at least 0.5 and below 1"),
        ("split = 'fc'", 'protection.split = "fc": it is a key of "fedsplit" and "fedcg" only; protection.scheme is'),
        ("min_contributors = 9", "protection.min_contributors = 9: there are only 5 clients"),
        (f"{ALONE}least = {{kept_back = 0.95}}", "protection.kept_back = 0.9: [policy] accepts at least 0.95"),
        (f"{ALONE}least_contributors = 2", "protection.min_contributors = 1: [policy] accepts at least 2"),
        ("", 'protection.scheme = "random-top-k": [policy] accepts one whose clients agree on which coordinates'),
        ('[policy]\nprotections = ["none"]', 'protection.scheme = "random-top-k": [policy] accepts one of none'),
        ("[encryption]", 'protection.scheme = "random-top-k" works on updates in the clear, and [encryption]'),
    ],
)
def test_what_it_does_not_go_with_is_refused(more: str, complaint: str) -> None:
    with pytest.raises(ExperimentError, match=f"^outside.toml: {re.escape(complaint)}"):
        parse(f"{TOML}{more}", "outside.toml")


class Recording(Learner):
    drafts: list[Draft]
    updates: list[Update]

    def learn(self, *arguments: Any, **options: Any) -> Draft:
        self.drafts.append(super().learn(*arguments, **options))
        return self.drafts[-1]

    def encode(self, *arguments: Any) -> Update:
        self.updates.append(super().encode(*arguments))
        return self.updates[-1]


@pytest.mark.asyncio
async def test_parties_hold_a_round_with_it(protected: Callable[..., Any]) -> None:
    """Over sockets, under secure aggregation; the mean against float64."""
    federation = protected(scheme="random-top-k", kept_back=0.75, min_contributors=2)
    learners: list[Recording] = []
    # Learners are made in threads of their own.
    seeds = iter(range(len(federation.clients)))
    before = federation.keeper.flat.astype(np.float64)

    def make(configuration: Configuration) -> Learner:
        plain = federation.learner(configuration)
        learner = Recording(configuration, plain._x, plain._y, seed=next(seeds), device=plain._device)
        learner.drafts, learner.updates = [], []
        learners.append(learner)
        return learner

    server = await federation.serve(rounds=1)
    await federation.all_of(server, *(federation.join(name, make=make) for name in federation.clients))
    ((_, total),) = federation.rounds
    size = federation.keeper.layout.size
    sent = np.array([learner.drafts[0].protected.weights for learner in learners])
    assert (sent.sum(axis=1) == round(size / 4)).all()
    assert len({row.tobytes() for row in sent}) == 4
    for learner, row in zip(learners, sent, strict=True):
        magnitudes = np.abs(learner.drafts[0].values)
        assert magnitudes[row].min() >= np.sort(magnitudes)[-2 * round(size / 4)], "of the largest half only"
    counts = sent.sum(axis=0)
    assert np.array_equal(total.weights, counts)
    sums = np.sum([learner.updates[0].values.astype(np.float64) for learner in learners], axis=0)
    mean = np.divide(sums, counts, out=np.zeros(size), where=counts >= 2)
    bound = federation.configuration.packing().error_bound(4) / 2 + 2.0**-23
    assert np.abs(federation.keeper.flat - (before + mean)).max() <= bound
    assert np.array_equal(federation.keeper.flat[counts < 2], before[counts < 2].astype(np.float32))


@pytest.mark.asyncio
async def test_a_client_refuses_too_little_of_it(protected: Callable[..., Any]) -> None:
    federation = protected(scheme="random-top-k", kept_back=0.5)
    server = await federation.serve(rounds=1)
    policy = ClientPolicy(least={"kept_back": 0.75}, uncoordinated_weights=True)
    (ended,) = await federation.all_of(federation.join("client-1", policy=policy))
    assert ended.code is Code.POLICY
    refusal = "the server proposes protection.kept_back = 0.5; this client's policy accepts at least 0.75"
    assert refusal in ended.detail
    # The server is told.
    await federation.event("server", ClientLeft)
    (left,) = federation.events("server", ClientLeft)
    assert left.member == "client-1"
    assert refusal in left.detail
    await federation.vanish(server)


@pytest.mark.parametrize(
    ("encryption", "settings", "policy", "refusal"),
    [
        (
            None,
            {"scheme": "fedsplit"},
            {"protections": ("none",)},
            "protection.scheme = fedsplit; this client's policy accepts one of none",
        ),
        (None, {"scheme": "binary-weights", "zero_probability": 0.0}, {"protections": ("binary-weights",)},
         "protection.zero_probability = 0.0; this client's policy accepts more than 0, where it does not accept"),
        (None, {"scheme": "binary-weights"}, {"least": {"zero_probability": 0.75}},
         "protection.zero_probability = 0.5; this client's policy accepts at least 0.75"),
        (None, {"scheme": "dp-gaussian", "dp_noise": 1e-6}, {"least": {"dp_noise": 1.0}},
         "protection.dp_noise = 1e-06; this client's policy accepts at least 1.0"),
        (None, {"scheme": "dp-gaussian", "dp_clip": 0.0}, {"protections": ("dp-gaussian",)},
         "protection.dp_noise = 0.0; this client's policy accepts more than 0, where it does not accept the scheme"),
        (None, {"scheme": "fedrsm", "masked_layers": 0}, {"protections": ("fedrsm",)},
         "protection.masked_layers = 0; this client's policy accepts more than 0, where it does not accept"),
        (None, {"scheme": "binary-weights"}, {"least_contributors": 2},
         "min_contributors = 1; this client's policy accepts at least 2"),
        (None, {}, {"encryptions": ("orthogonal",)},
         "encryption.matrix = none; this client's policy accepts one of orthogonal"),
        (Encryption(matrix="gaussian"), {}, {"encryptions": ("none", "orthogonal")},
         "encryption.matrix = gaussian; this client's policy accepts one of none, orthogonal"),
    ],
)  # fmt: skip
def test_a_client_refuses_a_protection_below_its_policy(
    protected: Callable[..., Any],
    encryption: Encryption | None,
    settings: dict[str, Any],
    policy: dict[str, Any],
    refusal: str,
) -> None:
    configuration = protected(encryption, **settings).configuration
    asking = ClientPolicy(uncoordinated_weights=True, **policy)
    with pytest.raises(RemoteProtocolError, match=re.escape(f"the server proposes {refusal}")) as refused:
        asking.check(configuration, clients=configuration.clients)
    assert refused.value.code is Code.POLICY

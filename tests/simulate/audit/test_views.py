"""Observations of adversaries in recordings of real runs, compared with the true contributions of the clients."""

from __future__ import annotations

import asyncio
import stat
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tacit.models.layout import Layout
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.protections.encryption import Encryption
from tacit.parties.runs.experiment import Experiment
from tacit.simulate.audit.arms import default_experiment, unprotected
from tacit.simulate.audit.subjects import AuditedRun
from tacit.simulate.audit.views import (
    LESS_OWN,
    MASKED,
    MEAN_OF_UPLOADS,
    MODELS,
    SUM,
    UPLOAD,
    WITH_KEYS,
    UpdateView,
    contributors,
    observed,
)
from tacit.simulate.federation.processes import SERVER
from tacit.simulate.federation.recording import DrawnOctets, HeardMessage, OpenedSum, OwnWords, place, read
from tacit.simulate.federation.run import new_plan, simulate

pytestmark = pytest.mark.end_to_end
CLIENTS, ROUNDS, SEED = 3, 2, 5


class Recorded:
    def __init__(self, experiment: Experiment, folder: Path) -> None:
        federation = msgspec.structs.replace(experiment.federation, clients=CLIENTS, rounds=ROUNDS, seed=SEED)
        experiment = msgspec.structs.replace(experiment, federation=federation)
        self.folder = folder / "recordings"
        plan = new_plan(experiment, folder / "run", report=False, recordings=self.folder)
        asyncio.run(simulate(plan, lambda event: None))
        self.subject = AuditedRun.of(experiment, plan.split_seed)

    def seen(self, *parties: str) -> dict[str, list[UpdateView]]:
        kinds: dict[str, list[UpdateView]] = {}
        for observation in observed(self.folder, parties, self.subject.terms):
            kinds.setdefault(observation.kind, []).append(observation)
        return kinds

    def truth(self, client: str, round: int) -> np.ndarray:
        packing = self.subject.terms.configuration.packing()
        records = read(self.folder, client)
        words = next(one.words for one in records if isinstance(one, OwnWords) and one.round == round)
        return packing.decode(words.astype(packing.ring.word), contributors=1).mean()[0]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(unprotected(default_experiment()).experiment, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(default_experiment(), tmp_path_factory.mktemp("secure"))


@pytest.fixture(scope="module")
def renewed(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A run with an encrypted model, whose key is renewed after the first round."""
    experiment = unprotected(default_experiment()).experiment
    encrypted = msgspec.structs.replace(experiment, encryption=Encryption(rekey_every=1))
    return Recorded(encrypted, tmp_path_factory.mktemp("renewed"))


def test_a_server_with_a_member_has_the_keys_and_what_a_removed_one_keeps(renewed: Recorded) -> None:
    ((kind, several),) = renewed.seen(SERVER, "client-3").items()
    assert kind == WITH_KEYS
    assert [(one.round, one.clients) for one in several] == [
        (round, (client,)) for round in (1, 2) for client in ("client-1", "client-2")
    ]
    old, new = several[0], several[-1]
    assert old.former is None
    assert new.former is not None
    assert new.former.key is old.key is not None
    assert new.key is not None
    assert old.first is old.model
    assert new.first is None
    np.testing.assert_array_equal(new.former.after, new.model)
    # One model in the clear, by two ways. Each decryption rounds to float32 once, and the encryption between them does;
    # its rounding is turned by E_a, orthogonal with L = 64 pixels of a patch, whose rows are sqrt(L) in sum at most.
    plain = new.key.decrypt(new.model)
    largest = max(np.abs(plain).max(), np.abs(new.model).max())
    bound = (1 + 1 + 8) * np.finfo(np.float32).eps / 2 * largest
    np.testing.assert_allclose(new.former.key.decrypt(new.former.before), plain, rtol=0, atol=bound)
    # The clients' model in round 2 is that model; under the old key it is another.
    assert np.abs(old.key.decrypt(new.model) - plain).max() > 1000 * bound


def test_a_member_reads_the_difference_of_two_encrypted_models(renewed: Recorded) -> None:
    (view,) = renewed.seen("client-3")[MODELS]
    sent = renewed.seen(SERVER, "client-3")[WITH_KEYS]
    key = sent[0].key
    assert (view.round, view.clients, view.first) == (1, ("client-1", "client-2"), None)
    assert key is not None
    parts = [renewed.truth(client, 1).astype(np.float32) for client in view.clients]
    others = np.mean([key.decrypt(part) for part in parts], axis=0)
    # Rounded to float32: the server's step and the new encryption, both turned by E_a as above; the decryptions by the
    # member who encrypted, and of both models here. The gradient is their difference by the learning rate; that of
    # three clients is taken for that of two. Of parts less than 1, roundings are nothing beside these.
    encrypted, plain = (one.model for one in sent), (one.key.decrypt(one.model) for one in sent if one.key)
    largest = max(np.abs(model).max() for model in (*encrypted, *plain))
    rounding = (8 + 8 + 3) * np.finfo(np.float32).eps / 2 * largest / renewed.subject.terms.training.learning_rate
    assert np.abs(view.mean - others).max() <= 1.5 * rounding


def test_without_a_member_a_server_has_no_key(renewed: Recorded) -> None:
    for several in renewed.seen(SERVER).values():
        assert [(one.key, one.former) for one in several] == [(None, None)] * len(several)


def test_of_binary_weights_some_coordinates_are_of_one_client_alone(tmp_path: Path) -> None:
    experiment = unprotected(default_experiment()).experiment
    drawn = Recorded(msgspec.structs.replace(experiment, protection=BinaryWeights(zero_probability=0.3)), tmp_path)
    seen = drawn.seen(SERVER)
    for views, clients, expected in ((seen[UPLOAD], 1, 0.7), (seen[MEAN_OF_UPLOADS], 2, 2 * 0.7 * 0.3)):
        (view, *_) = (one for one in views if len(one.clients) == clients)
        alone = contributors(drawn.folder, view, drawn.subject.terms) == 1
        # Independent coordinates: five standard deviations of their share.
        deviation = np.sqrt(expected * (1 - expected) / len(alone))
        assert abs(alone.mean() - expected) < 5 * deviation
        # As of a client that was lost while it trained.
        assert not contributors(drawn.folder, replace(view, round=ROUNDS + 1), drawn.subject.terms).any()


def test_without_a_secure_sum_a_server_has_every_update(plain: Recorded) -> None:
    seen = plain.seen(SERVER)
    assert len(seen[UPLOAD]) == CLIENTS * ROUNDS
    for observation in seen[UPLOAD]:
        truth = plain.truth(observation.clients[0], observation.round)
        np.testing.assert_array_equal(observation.mean, truth)
    pair = seen[MEAN_OF_UPLOADS][0]
    mean = np.mean([plain.truth(client, 1) for client in pair.clients], axis=0)
    np.testing.assert_allclose(pair.mean, mean, rtol=0, atol=1e-15)


def test_with_one_it_has_words_under_masks_and_the_sum(secure: Recorded) -> None:
    seen = secure.seen(SERVER)
    assert {MASKED, SUM} == set(seen)
    for observation in seen[MASKED]:
        truth = secure.truth(observation.clients[0], observation.round)
        # Of D = 277,130 independent uniform words the correlation has a standard deviation of 0.0019: five of them.
        assert abs(np.corrcoef(observation.mean, truth)[0, 1]) < 0.0095
    for observation in seen[SUM]:
        mean = np.mean([secure.truth(client, observation.round) for client in observation.clients], axis=0)
        np.testing.assert_allclose(observation.mean, mean, rtol=0, atol=1e-15)


def test_with_all_clients_but_one_it_has_that_one(secure: Recorded) -> None:
    ((kind, several),) = secure.seen(SERVER, "client-2", "client-3").items()
    assert kind == LESS_OWN
    for observation in several:
        assert observation.clients == ("client-1",)
        truth = secure.truth("client-1", observation.round)
        np.testing.assert_allclose(observation.mean, truth, rtol=0, atol=1e-12)


def test_a_client_has_the_mean_of_the_others_from_two_models(secure: Recorded) -> None:
    ((kind, several),) = secure.seen("client-3").items()
    assert kind == MODELS
    assert [observation.round for observation in several] == [1]
    others = np.mean([secure.truth(client, 1) for client in ("client-1", "client-2")], axis=0)
    # The step was rounded to float32 twice: half a unit of the last place of the model each time, by the learning rate,
    # and three clients' mean is taken for that of two.
    model = np.abs(several[0].model)
    bound = 1.5 * 2 * np.spacing(model + 1e-3) / secure.subject.terms.training.learning_rate
    assert (np.abs(several[0].mean - others) <= bound).all()


def test_the_model_of_an_observation_is_what_the_client_began_with(secure: Recorded) -> None:
    server = {one.round: one.model for one in secure.seen(SERVER)[SUM]}
    client = {one.round: one.model for one in secure.seen("client-3")[MODELS]}
    np.testing.assert_array_equal(server[1], client[1])
    assert len(server[1]) == Layout.of(secure.subject.task.build(0)).size


def test_a_recording_has_what_a_party_received_and_drew_and_only_its_owner_reads_it(secure: Recorded) -> None:
    for party, own in ((SERVER, OpenedSum), ("client-1", OwnWords)):
        kinds = {type(record) for record in read(secure.folder, party)}
        assert kinds == {HeardMessage, DrawnOctets, own}
        assert stat.S_IMODE(place(secure.folder, party).stat().st_mode) == 0o600

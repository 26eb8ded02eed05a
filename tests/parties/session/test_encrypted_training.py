"""Training a model that the server holds encrypted, against the same training without encryption.

How far the two may differ, with u = 2^-24 (float32), A the `error_amplification` of the key, M and C the largest
coordinate of plain and encrypted model, q the error of a mean that quantisation leaves, in every round:

- the server rounds the encrypted model, u C, and adds a mean that is off by q; decryption makes A (u C + q) of it;
- the plain arm rounds and quantises too, u M + q; a client rounds the model that it decrypts, u M;
- a client rounds the ciphertext of its update, u C A at most, for an update is smaller than the model.

Encrypting the first model anew, and once more under another key, is another A u C each. From round to round
training passes on what has gathered, times the `sensitivity` of what was learnt to the model that it was learnt from.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.layout import Flat
from tacit.models.model_encryption import PATCH_EMBEDDING, POSITION_EMBEDDING, Matrix
from tacit.parties.learning.keeper import Keeper
from tacit.parties.learning.learner import Learner, Update
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.task import Task, configure
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.protections.encryption import Encryption, GroupModel
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.protections.sides import Group
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.protocol.group_key.agreement import GroupKey
from tacit.protocol.group_key.holder import Reencrypt
from tacit.secagg.packing import Total
from tacit.simulate.world.federation import added
from tests.world.group_keys import memory_group_key

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SAMPLES = (7, 12, 20)
ROUNDS = 5
RATE = 0.1
UNIT = 2.0**-24
MODEL = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=1, heads=2)


def images(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return torch.randn(samples, 1, 8, 8, generator=generator), torch.randint(3, (samples,), generator=generator)


@dataclass
class Arm:
    """Three learners and a keeper, that hold rounds by themselves; `models` are the plain ones after each."""

    algorithm: str
    value_bits: int = 32
    protection: Protection = NoProtection()  # noqa: RUF009
    encryption: Encryption | None = None
    models: list[Flat] = field(default_factory=list)
    clipped: int = 0

    def __post_init__(self) -> None:
        secure = self.value_bits < 32
        experiment = Experiment(
            federation=FederationSection(clients=3),
            model=MODEL,
            training=TrainingConfiguration(
                algorithm=self.algorithm,  # type: ignore[arg-type]
                optimizer="sgd",
                epochs=1,
                batch_size=4,
                learning_rate=RATE,
            ),
            protection=self.protection,
            encryption=self.encryption,
            aggregation=Aggregation(
                mode="active" if secure else "none", max_weight=20, clip=0.5, value_bits=self.value_bits
            ),
            policy=ClientPolicy(modes=("active", "none")),
        )
        task = Task(
            model=MODEL.architecture,
            training=experiment.training,
            protection=self.protection,
            encryption=self.encryption,
            classes=3,
            channels=1,
        )
        model = task.build(seed=3)
        self.configuration = configure(experiment.terms(), task, model)
        self.keeper = Keeper(self.configuration, model)
        self.learners = [Learner(self.configuration, *images(samples), seed=samples, device=CPU) for samples in SAMPLES]
        contributors = sum(SAMPLES) if self.algorithm == "fedavg" else 3
        rate = 1.0 if self.algorithm == "fedavg" else RATE
        self.quantisation = rate * self.configuration.packing().error_bound(3) / contributors

    def hold(self, rounds: int, keys: list[GroupKey] | None = None) -> "Arm":
        for _ in range(rounds):
            self.hold_one(keys)
        return self

    def hold_one(self, keys: list[GroupKey] | None) -> None:
        packing = self.configuration.packing()
        words = []
        for place, learner in enumerate(self.learners):
            group = Group(keys[place], keys[place].members[place]) if keys else None
            update: Update = learner.update(len(self.models) + 1, self.keeper.bytes, group)
            self.clipped += update.clipped
            words.append(update.words)
        total: Total = packing.decode(added(packing, words), contributors=3)
        self.keeper.apply(total)
        self.models.append(self.learners[0].plain(self.keeper.bytes, keys[0] if keys else None).copy())

    def encrypt(self, order: Reencrypt, by: int) -> None:
        self.keeper.replace(self.learners[by].reencrypt(order))


@pytest.fixture(scope="module")
def keys() -> list[list[GroupKey]]:
    return [memory_group_key(3, epoch=epoch).run().outcome(GroupKey) for epoch in (0, 1)]


def accuracy(arm: Arm, flat: Flat) -> float:
    return arm.learners[0].evaluate(flat, *images(200), batch_size=200).accuracy


SENSITIVITY = 8.0
"""AdamW has none: it divides by gradients however small, so that rounding alone moves some coordinates by a step."""


@pytest.mark.parametrize(
    ("algorithm", "matrix", "value_bits"),
    [
        # Plain sums and secure ones, of each matrix and each training.
        ("fedsgd", "orthogonal", 32),
        ("fedsgd", "gaussian", 24),
        ("fedavg", "orthogonal", 24),
        ("fedavg", "gaussian", 32),
    ],
)
def test_encrypted_and_plain_training_agree(
    algorithm: str, matrix: Matrix, value_bits: int, keys: list[list[GroupKey]]
) -> None:
    encryption = Encryption(matrix=matrix)
    plain = Arm(algorithm, value_bits)
    encrypted = Arm(algorithm, value_bits, encryption=encryption)
    first = plain.keeper.flat.copy()
    plain.hold(ROUNDS)
    encrypted.encrypt(Reencrypt("server", keys[0][0], None, encrypted.keeper.bytes), by=0)
    encrypted.hold(2, keys[0])
    encrypted.encrypt(Reencrypt("key", keys[1][1], keys[0][1], encrypted.keeper.bytes), by=1)
    largest = float(np.abs(encrypted.keeper.flat).max())
    encrypted.hold(ROUNDS - 2, keys[1])
    assert plain.clipped == encrypted.clipped == 0, "clipping differs where ciphertexts are larger"

    seen = encrypted.keeper.layout.split(encrypted.keeper.flat)
    for name, part in plain.keeper.layout.split(plain.keeper.flat).items():
        # The server holds the rest in the clear, and nothing like the embeddings.
        assert (np.abs(seen[name] - part).max() > 0.01) == (name in (PATCH_EMBEDDING, POSITION_EMBEDDING))
    drawn = [GroupModel(encrypted.keeper.layout, encryption, lambda seed: first).key(each[0]) for each in keys]
    amplification = max(key.error_amplification for key in drawn)
    largest = 1.1 * max(largest, 1.0)
    if value_bits == 32:
        assert plain.quantisation < UNIT / 16, "the sum shall be finer than float32 here"
    each = (amplification + 1) * (2 * UNIT * largest + plain.quantisation)
    bounds = SENSITIVITY * (each * np.arange(1, ROUNDS + 1) + 2 * amplification * UNIT * largest)
    for one, other, bound in zip(plain.models, encrypted.models, bounds, strict=True):
        assert np.abs(one - other).max() <= bound
    assert np.abs(plain.models[-1] - first).max() > 20 * bounds[-1], "what is learnt is far beyond that"
    assert abs(accuracy(plain, plain.models[-1]) - accuracy(plain, encrypted.models[-1])) <= 1 / 200


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_the_sensitivity_of_plain_training(algorithm: str) -> None:
    """The assumption above: trainings that begin so far apart in every coordinate end not much further apart."""
    apart = 1e-3
    one, other = Arm(algorithm), Arm(algorithm)
    signs = np.random.default_rng(1).choice(np.float32([-1, 1]), other.keeper.flat.size)
    other.keeper.replace((other.keeper.flat + np.float32(apart) * signs).astype("<f4").tobytes())
    one.hold(ROUNDS)
    other.hold(ROUNDS)
    assert apart < np.abs(one.models[-1] - other.models[-1]).max() < SENSITIVITY * apart


@pytest.mark.parametrize("protection", [FixedPosition(), BinaryWeights()], ids=lambda one: one.scheme)
def test_encryption_goes_together_with_weights(protection: Protection, keys: list[list[GroupKey]]) -> None:
    """The weights are those of the encrypted coordinates; where they are zero, the ciphertext stays as it is."""
    held = [Group(key, name) for key, name in zip(keys[0], keys[0][0].members, strict=True)]
    combined, bare = Arm("fedsgd", protection=protection, encryption=Encryption()), Arm("fedsgd")
    combined.encrypt(Reencrypt("server", keys[0][0], None, combined.keeper.bytes), by=0)
    before = combined.keeper.flat.copy()
    key = GroupModel(combined.keeper.layout, Encryption(), lambda seed: before).key(keys[0][0])
    drafts = [mine.learn(1, combined.keeper.bytes, group) for mine, group in zip(combined.learners, held, strict=True)]
    for draft, learner in zip(drafts, bare.learners, strict=True):
        plain = learner.learn(1, key.decrypt(before).tobytes())
        assert np.array_equal(draft.values, key.encrypt(plain.values))
    combined.hold(1, keys[0])
    weights = np.array([np.broadcast_to(draft.protected.multipliers, before.shape) for draft in drafts])
    counts = weights.sum(axis=0)
    sums = (weights * np.array([draft.values.astype(np.float64) for draft in drafts])).sum(axis=0)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    # One contributor is the worst case for the mean; then one rounding to float32.
    bound = RATE * combined.configuration.packing().error_bound(3) + UNIT * 1.1 * np.abs(before).max()
    assert np.abs(combined.keeper.flat - (before - RATE * mean)).max() <= bound
    still = counts == 0
    assert np.array_equal(combined.keeper.flat[still], before[still])
    position = combined.keeper.layout.split(still.astype(np.float32))[POSITION_EMBEDDING]
    assert position.all() if isinstance(protection, FixedPosition) else 0.0 < position.mean() < 0.3

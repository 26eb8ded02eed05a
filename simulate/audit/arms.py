"""Configurations that an audit runs: the given one, parts of it, and the unprotected case.

The unprotected case has everything else of the configuration: model, data, training, bits of a value. An attack that
fails there is no evidence about the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection

UNPROTECTED: Final = "unprotected"
DEFAULT_BITS: Final = 24
"""Bits of a value in the default audit: enough for the closed form to read an image well."""
SMALL, USUAL = 3, 5
MODES: Final = ("active", "semi-honest", "none")


class AuditArm(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    about: str
    experiment: Experiment
    subtracts: bool = False
    """Whether its server cheats, and omits clients from sums (subtraction.py)."""


def default_experiment() -> Experiment:
    """The case of the papers: every client sends the gradient of one image a round, of a small vision transformer."""
    return Experiment(
        name="audit",
        federation=FederationSection(clients=USUAL, rounds=2),
        training=TrainingConfiguration(algorithm="fedsgd", fedsgd_images=1),
        aggregation=Aggregation(value_bits=DEFAULT_BITS),
        policy=ClientPolicy(least_images=1),
    )


def default_arms(base: Experiment) -> Iterator[AuditArm]:
    """Every bundled protection that this training and model can have, alone."""
    yield unprotected(base)
    yield AuditArm(name=f"secure-sum-{USUAL}", about="secure sum, five clients", experiment=_with(base, clients=USUAL))
    yield AuditArm(name=f"secure-sum-{SMALL}", about="secure sum, three clients", experiment=_with(base, clients=SMALL))
    for name, protection in (
        ("fixed-position", FixedPosition()),
        ("binary-weights-0.2", BinaryWeights(zero_probability=0.2)),
        ("binary-weights-0.5", BinaryWeights(zero_probability=0.5)),
        ("dp-gaussian", GaussianNoise()),
    ):
        yield AuditArm(
            name=name, about=f"{name}, no secure sum", experiment=_with(base, mode="none", protection=protection)
        )
    for matrix in ("orthogonal", "gaussian"):
        yield AuditArm(
            name=f"encryption-{matrix}",
            about=f"model encryption ({matrix}), no secure sum",
            experiment=_with(base, mode="none", encryption=Encryption(matrix=matrix)),
        )
        yield AuditArm(
            name=f"encryption-{matrix}-known-model",
            about=f"model encryption ({matrix}) of a model that the server made, no secure sum",
            experiment=_with(base, mode="none", encryption=Encryption(matrix=matrix, initial_model="server")),
        )
    yield AuditArm(
        name="encryption-renewed",
        about="model encryption (orthogonal) with a new key every round, no secure sum",
        experiment=_with(base, mode="none", encryption=Encryption(rekey_every=1)),
    )


def arms_of(experiment: Experiment) -> Iterator[AuditArm]:
    """Yield the configuration without any protection, without its secure sum, with that alone, and unchanged."""
    yield unprotected(experiment)
    secure = experiment.aggregation.mode != "none"
    protected = not isinstance(experiment.protection, NoProtection) or experiment.encryption is not None
    if secure and protected:
        yield AuditArm(
            name="without-secure-sum",
            about=f"{protections(experiment)}, no secure sum",
            experiment=_with(
                experiment, mode="none", protection=experiment.protection, encryption=experiment.encryption
            ),
        )
        yield AuditArm(
            name="secure-sum-alone",
            about="secure sum alone",
            experiment=_with(experiment, mode=experiment.aggregation.mode),
        )
    if secure or protected:
        yield AuditArm(name="as-configured", about=f"as configured: {protections(experiment)}", experiment=experiment)


def unprotected(experiment: Experiment) -> AuditArm:
    """Return the experiment without any protection, including the secure sum."""
    return AuditArm(name=UNPROTECTED, about="nothing is protected", experiment=_with(experiment, mode="none"))


def protections(experiment: Experiment) -> str:
    """Describe the protections of an experiment's updates."""
    parts = []
    if experiment.aggregation.mode != "none":
        parts.append(f"secure sum of {experiment.clients} ({experiment.aggregation.mode})")
    if not isinstance(experiment.protection, NoProtection):
        parts.append(experiment.protection.scheme)
    if experiment.encryption is not None:
        parts.append(f"model encryption ({experiment.encryption.matrix})")
    return ", ".join(parts) or "nothing"


def _with(
    experiment: Experiment,
    *,
    mode: str = "active",
    clients: int | None = None,
    protection: Protection | None = None,
    encryption: Encryption | None = None,
) -> Experiment:
    number = clients or experiment.clients
    federation = msgspec.structs.replace(experiment.federation, clients=number, group_size=0)
    if mode != "none" and clients is None:
        federation = experiment.federation
    return msgspec.structs.replace(
        experiment,
        federation=federation,
        aggregation=msgspec.structs.replace(experiment.aggregation, mode=mode),
        protection=protection or NoProtection(),
        encryption=encryption,
        # A part of a configuration may be less than its clients accept.
        policy=msgspec.structs.replace(
            experiment.policy,
            modes=MODES,
            smallest_cohort=min(SMALL, number),
            accept_known_plaintext=True,
            uncoordinated_weights=True,
        ),
    )

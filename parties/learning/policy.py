"""What a client accepts of a server's proposal: the protocol's own rules, and how its update is to be protected.

The protocol's Policy looks at the configuration; here the task inside it is looked at as well. A protection says what
of it may be asked for at least (`Protection.strengths`); at 0 it is accepted only where "none" is. A budget bounds what
all updates together may tell of a client, over rounds and sessions: its journal has what each of them cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal
from typing import Protocol as PythonProtocol

import msgspec
from msgspec import Meta

from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.parties.learning.statistics import SCHEME
from tacit.parties.learning.task import read_task
from tacit.parties.protections.catalogue import pinnable, registered
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.gaussian_noise import affordable, cost_of
from tacit.parties.protections.protection import Protection
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.configuration import Configuration, Policy, below_policy


class Wanted(PythonProtocol):
    """What is looked at of a task, or of an experiment."""

    @property
    def model(self) -> Architecture: ...
    @property
    def training(self) -> TrainingConfiguration: ...
    @property
    def protection(self) -> Protection: ...
    @property
    def encryption(self) -> Encryption | None: ...


class ClientPolicy(Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policy]: what a client accepts. A server's proposal below it is refused by name."""

    protections: Annotated[
        tuple[str, ...],
        Meta(
            description='Accepted protection.scheme; without this key, all that there are. Without "none" no sum of '
            "statistics is accepted either: it has no protection.",
            min_length=1,
        ),
    ] = msgspec.field(default_factory=lambda: tuple(registered()))
    least: Annotated[
        dict[str, float],
        Meta(
            description="Smallest accepted values of the keys that make a protection strong, as in {masked_layers = "
            "1, zero_probability = 0.5, dp_noise = 1.0}: the probability of any layer, and noise as a multiple of "
            'dp_clip. A value of 0 of a key that is not named here is accepted only where the scheme "none" is.'
        ),
    ] = msgspec.field(default_factory=dict)
    encryptions: Annotated[
        tuple[Literal["none", "orthogonal", "gaussian"], ...],
        Meta(description='Accepted encryption.matrix; "none": a model in the clear.', min_length=1),
    ] = ("none", "orthogonal", "gaussian")
    factories: Annotated[
        tuple[str, ...],
        Meta(
            description='Accepted model.factory and training.factory, as patterns: ["my_package.*"] accepts what the '
            "modules of that package define. What they name runs here, with all that this party may do. Without this "
            "key: none."
        ),
    ] = ()
    largest_epsilon: Annotated[
        float,
        Meta(
            description="Budget: the epsilon, for the delta below, of all updates that a client ever makes with its "
            "keys, towards whoever sees each of them; aborted rounds count. With it only a scheme whose noise "
            "guarantees something is accepted; 0: none.",
            ge=0.0,
            le=100.0,
        ),
    ] = 0.0
    delta: Annotated[float, Meta(description="The delta of the budget.", gt=0.0, lt=1.0)] = 1e-5
    tripwire: Annotated[
        bool,
        Meta(
            description="Whether a client refuses to train on a model that has a pattern of known attacks: rows that "
            "are scaled copies, bins, identities, rows of zeros. A server that knows this avoids them; an honest model "
            "that has them, as a pruned one may, needs false."
        ),
    ] = True

    def __post_init__(self) -> None:
        for scheme in self.protections:
            if scheme not in registered():
                raise ValueError(
                    f'policy.protections: there is no scheme "{scheme}"; expected some of {", ".join(registered())}'
                )
        for key in self.least:
            if key not in pinnable():
                raise ValueError(
                    f'policy.least: no protection has a "{key}" to ask for; expected some of {", ".join(pinnable())}'
                )

    def check(self, configuration: Configuration) -> None:
        super().check(configuration)
        if configuration.scheme == SCHEME:
            if self.largest_epsilon:
                raise below_policy("scheme", SCHEME, "noise on all that leaves it, for its budget of largest_epsilon")
            if "none" not in self.protections:
                raise below_policy("scheme", SCHEME, 'a sum without a protection only where it accepts "none"')
            return
        task = read_task(configuration)
        for key, value, accepted in self.complaints(task):
            raise below_policy(key, value, accepted)

    def cost(self, configuration: Configuration) -> float:
        return cost_of(read_task(configuration).protection.noise()) if self.largest_epsilon else 0.0

    def check_budget(self, spent: float) -> None:
        if self.largest_epsilon and not affordable(spent, epsilon=self.largest_epsilon, delta=self.delta):
            raise RemoteProtocolError(
                Code.POLICY,
                f"with another update this client would be beyond its budget of largest_epsilon = "
                f"{self.largest_epsilon} for delta = {self.delta}",
            )

    def complaints(self, wanted: Wanted) -> Iterator[tuple[str, object, str]]:
        """What lies below this policy: the key of the experiment file, its value, and what is accepted."""
        for key, name in (("model.factory", wanted.model.factory), ("training.factory", wanted.training.factory)):
            if name and not any(fnmatchcase(name, pattern) for pattern in self.factories):
                yield key, name, f"one of policy.factories, which has {', '.join(self.factories) or 'none'}"
        protection, encryption = wanted.protection, wanted.encryption
        if protection.scheme not in self.protections:
            yield "protection.scheme", protection.scheme, f"one of {', '.join(self.protections)}"
        for key, value in protection.strengths().items():
            if key in self.least:
                if value < self.least[key]:
                    yield f"protection.{key}", value, f"at least {self.least[key]}"
            elif value <= 0 and "none" not in self.protections:
                yield f"protection.{key}", value, 'more than 0, where it does not accept the scheme "none"'
        if self.largest_epsilon and not math.isfinite(cost_of(protection.noise())):
            bounded = f"noise on updates of a largest norm, for its budget of largest_epsilon = {self.largest_epsilon}"
            yield "protection.scheme", protection.scheme, bounded
        matrix = encryption.matrix if encryption else "none"
        if matrix not in self.encryptions:
            yield "encryption.matrix", matrix, f"one of {', '.join(self.encryptions)}"

"""The experiment file: everything that a federation needs to know before it starts, in TOML.

The structs below are the schema; types and bounds are checked by msgspec, and the rules that join several keys by
`Experiment` itself, so that an experiment that exists can run. Every refusal names the file, the key, the value, the
reason and what would be accepted. The reference documentation comes from the same annotations (reference.py).
"""

import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tacit.models.workload import FactoryError, check_installed
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.learning.statistics import SCHEME
from tacit.parties.protections.budget import affordable, cost_of
from tacit.parties.protections.encryption import Encryption, check_together
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.explain import literal, read_section, refusal
from tacit.parties.runs.sections import (
    UNKNOWN_WEIGHT,
    USUAL_CLIP,
    Aggregation,
    Deadlines,
    FederationSection,
    Simulation,
)
from tacit.protocol.core.roster import group_numbers
from tacit.protocol.sum.configuration import Proposal
from tacit.secagg.graph import GraphParameters, choose_parameters
from tacit.secagg.packing import Packing


class ExperimentError(ValueError):
    """An experiment that cannot run; the text names the file, the key, the value and what would be accepted."""


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A complete experiment. Raises ValueError, naming key, value and remedy, if the keys contradict each other."""

    name: Annotated[
        str, Meta(description="Name of the experiment, for reports and folders.", min_length=1, max_length=64)
    ] = "digits"
    federation: Annotated[FederationSection, Meta(description="Who takes part, and for how long.")] = (
        FederationSection()
    )
    data: Annotated[DataConfiguration, Meta(description="The labelled images and how the clients share them.")] = (
        DataConfiguration()
    )
    model: Annotated[ModelConfiguration, Meta(description="The network.")] = ModelConfiguration()
    training: Annotated[TrainingConfiguration, Meta(description="What a client computes in one round.")] = (
        TrainingConfiguration()
    )
    protection: Annotated[Protection, Meta(description="What a client does to its update before it is summed.")] = (
        NoProtection()
    )
    encryption: Annotated[
        Encryption | None,
        Meta(
            description="The server holds and updates a model whose embeddings are encrypted under a key of the "
            "clients, beside a protection that works on encrypted updates. Without this section it is in the clear."
        ),
    ] = None
    aggregation: Annotated[Aggregation, Meta(description="The secure sum.")] = Aggregation()
    deadlines: Annotated[Deadlines, Meta(description="How long the server waits.")] = Deadlines()
    simulate: Annotated[
        Simulation, Meta(description="How `tacit simulate` spreads over one machine; hosts do not look at it.")
    ] = Simulation()
    policy: Annotated[ClientPolicy, Meta(description="What a client accepts from the server.")] = msgspec.field(
        # Made when it is needed: a protection may be registered later.
        default_factory=ClientPolicy
    )

    def __post_init__(self) -> None:
        if "/" in self.name or not self.name.isprintable():
            raise _refused("name", self.name, "it is part of the name of a folder; leave out / and control characters")
        self._check_factories()
        self._check_policy()
        self._check_protection()
        self._check_threshold()
        self._check_groups()
        self._check_ring()

    def groups(self) -> tuple[int, ...]:
        """The number of every client's group in the roster: as many groups as there can be; all 0 without groups."""
        return group_numbers(self.federation.clients, self.federation.group_size)

    def graph_parameters(self) -> GraphParameters:
        """Neighbours of a client, and the threshold: as configured, or as computed."""
        computed = self._computed_graph()
        return GraphParameters(computed.neighbours, self.aggregation.threshold or computed.threshold)

    @property
    def clip(self) -> float:
        """Largest absolute coordinate of an update: as configured, or as computed."""
        noise = self.protection.noise()
        computed = USUAL_CLIP if noise is None else (noise.norm or USUAL_CLIP) + noise.room
        return self.aggregation.clip or computed

    def terms(self) -> Proposal:
        """What the server of this experiment chooses for the sum."""
        chosen = msgspec.structs.asdict(self.aggregation)
        del chosen["ring_bits"]
        if not self.protection.counts_samples(self.training):
            chosen["max_weight"] = 1
        chosen["max_weight"] = chosen["max_weight"] or UNKNOWN_WEIGHT
        chosen["clip"] = self.clip
        return Proposal(
            **chosen,
            clients=self.federation.clients,
            train_seconds=self.deadlines.train,
            phase_seconds=self.deadlines.phase,
        )

    def packing(self, *, tensor_sizes: tuple[int, ...], metrics: tuple[str, ...]) -> Packing:
        """How a contribution is laid out in words for a model of these tensors. ValueError if a sum could wrap."""
        return self.terms().packing_of(
            form=self.protection.facts().form,
            tensor_sizes=tensor_sizes,
            metrics=metrics,
            ring_bits=self.aggregation.ring_bits or None,
        )

    @property
    def evaluated_by_clients(self) -> bool:
        """Whether only the clients have the whole model, each its own or all under their key, and can evaluate it."""
        return self.protection.personal or self.encryption is not None

    @property
    def hides(self) -> bool:
        """Whether what is drawn for the protection or the encryption of the model is to stay unknown."""
        return self.encryption is not None or not isinstance(self.protection, NoProtection)

    @property
    def remembers(self) -> bool:
        """Whether clients remember something from round to round, until the run is over."""
        return self.protection.remembers or self.encryption is not None

    def _computed_graph(self) -> GraphParameters:
        if self.aggregation.mode == "none":
            return GraphParameters(self.federation.clients - 1, 1)
        return choose_parameters(
            self.federation.clients,
            corrupt=self.aggregation.corrupt,
            dropout=self.aggregation.dropout,
            active=self.aggregation.mode == "active",
            graph=self.aggregation.graph,
        )

    def _check_policy(self) -> None:
        policy, clients, mode = self.policy, self.federation.clients, self.aggregation.mode
        corrupt = self.aggregation.corrupt
        if clients < policy.smallest_cohort:
            wanted = (
                f"policy.smallest_cohort asks for at least {policy.smallest_cohort} clients; set it to {clients} if "
                "they shall accept sums of so few"
            )
            raise _refused("federation.clients", clients, wanted)
        if mode not in policy.modes:
            remedy = f"add {literal(mode)} there if the clients shall accept it"
            raise _refused("aggregation.mode", mode, f"policy.modes accepts only {literal(policy.modes)}; {remedy}")
        if mode != "none" and corrupt < policy.least_corrupt:
            raise _refused(
                "aggregation.corrupt", corrupt, f"policy.least_corrupt accepts at least {policy.least_corrupt}"
            )
        if self.data.statistics == "sum":
            if policy.largest_epsilon:
                wanted = "it has no noise, which policy.largest_epsilon asks for; give data.mean and data.std"
                raise _refused("data.statistics", "sum", wanted)
            if "none" not in policy.protections:
                wanted = 'it has no protection, and policy.protections is without "none"; give data.mean and data.std'
                raise _refused("data.statistics", "sum", wanted)
            if SCHEME not in policy.schemes:
                wanted = f"policy.schemes accepts only {literal(policy.schemes)}; give data.mean and data.std"
                raise _refused("data.statistics", "sum", wanted)
        if self.training.algorithm not in policy.schemes:
            wanted = f"policy.schemes accepts only {literal(policy.schemes)}"
            raise _refused("training.algorithm", self.training.algorithm, wanted)
        fewest = self.protection.facts().min_contributors
        if 0 < fewest < policy.least_contributors:
            wanted = f"policy.least_contributors accepts at least {policy.least_contributors}"
            raise _refused("protection.min_contributors", fewest, wanted)
        for key, value, accepted in policy.complaints(self):
            raise _refused(key, value, f"[policy] accepts {accepted}")
        epsilon, delta, rounds = policy.largest_epsilon, policy.delta, self.federation.rounds
        if epsilon and not affordable(rounds * cost_of(self.protection.noise()), epsilon=epsilon, delta=delta):
            remedy = "raise protection.dp_noise or the budget, or lower federation.rounds"
            wanted = f"{rounds} rounds are beyond it for policy.delta = {delta}; {remedy}"
            raise _refused("policy.largest_epsilon", epsilon, wanted)
        if self.clip > policy.largest_clip:
            wanted = f"policy.largest_clip accepts at most {policy.largest_clip}"
            if not self.aggregation.clip:
                wanted = (
                    f"computed from protection.dp_clip and dp_noise; {wanted}: raise it, lower dp_clip or dp_noise, or "
                    "set aggregation.clip, beyond which noise is cut"
                )
            raise _refused("aggregation.clip", self.clip, wanted)

    @property
    def factories(self) -> dict[str, str]:
        """What is of one's own, by key: functions that every party has installed."""
        named = {"model": self.model.factory, "data": self.data.factory, "training": self.training.factory}
        return {f"{section}.factory": name for section, name in named.items() if name}

    def _check_factories(self) -> None:
        if self.data.factory and not self.model.factory:
            wanted = "channels and classes of our models follow from images that tacit reads; give model.factory too"
            raise _refused("data.factory", self.data.factory, wanted)
        if self.data.factory and self.training.held_out:
            wanted = "data.factory says what is trained on, and may keep some itself; set it to 0"
            raise _refused("training.held_out", self.training.held_out, wanted)
        if (key := next(iter(self.factories), "")) and not self.protection.takes_factories:
            wanted = f"it is made for models and images that tacit knows; take another, or leave {key} out"
            raise _refused("protection.scheme", self.protection.scheme, wanted)

    def _check_protection(self) -> None:
        check_together(self.protection, self.encryption, self.terms(), self.training)
        if self.encryption is None:
            return
        given = next((key for key in ("pretrained", "checkpoint") if getattr(self.model, key)), "")
        if given and self.encryption.initial_model == "clients":
            raise ValueError(
                f'model.{given} is set, but encryption.initial_model = "clients" makes random weights; set it to '
                '"server", or start without given weights'
            )
        known = self.encryption.initial_model == "server" and self.aggregation.mode == "none"
        if known and not self.policy.accept_known_plaintext:
            raise ValueError(
                'encryption.initial_model = "server": the server knows the plain first model and receives the '
                "encrypted one, so it can compute the clients' key and read every update, which nothing else hides "
                '(aggregation.mode = "none"); use secure aggregation, or initial_model = "clients", or set '
                "policy.accept_known_plaintext = true if that is what the experiment is about"
            )

    def _check_threshold(self) -> None:
        clients, threshold = self.federation.clients, self.aggregation.threshold
        if self.aggregation.mode == "none":
            if threshold:
                wanted = "without secure aggregation there is none; set it to 0"
                raise _refused("aggregation.threshold", threshold, wanted)
            return
        try:
            computed = self._computed_graph()
        except ValueError as error:
            key = "graph" if self.aggregation.graph == "regular" else "corrupt"
            raise _refused(f"aggregation.{key}", getattr(self.aggregation, key), error) from error
        complete = computed.neighbours == clients - 1
        # In a complete graph a client's own share counts.
        most = clients if complete else computed.neighbours
        threshold, floor = threshold or computed.threshold, self.policy.threshold_floor
        if not computed.threshold <= threshold <= most:
            corrupt = math.floor(Fraction(str(self.aggregation.corrupt)) * clients)
            raise _refused(
                "aggregation.threshold",
                threshold,
                f"expected {computed.threshold} to {most}, or 0 to compute it: {clients} clients in "
                f"{self.aggregation.mode} mode, up to {corrupt} of them corrupt, {computed.neighbours} neighbours each",
            )
        if threshold < floor:
            raise _refused(
                "aggregation.threshold",
                threshold,
                f"below policy.threshold_floor = {floor}; raise it"
                f"{'' if floor <= most else f' (at most {most} is possible)'}, or lower that",
            )

    def _check_groups(self) -> None:
        if not self.federation.group_size:
            return
        where = f"federation.group_size = {self.federation.group_size}"
        if self.aggregation.mode == "none":
            raise ValueError(f"{where}: without secure aggregation the server sees every update; set it to 0")
        clients = self.federation.clients
        if self.federation.group_size > clients:
            raise ValueError(f"{where}: {clients} clients make no group of {self.federation.group_size}")
        try:
            self.terms().check_groups([*Counter(self.groups()).values()], clients, self.policy.smallest_cohort)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _check_ring(self) -> None:
        try:
            self.packing(tensor_sizes=(1,), metrics=())
        except ValueError as error:
            reason = f"{error} (0 computes ring_bits)"
            raise _refused("aggregation.ring_bits", self.aggregation.ring_bits, reason) from error


def _refused(key: str, value: object, reason: object) -> ValueError:
    return ValueError(f"{key} = {literal(value)}: {reason}")


Kind = TypeVar("Kind", bound=Experiment)


def load(path: Path) -> Experiment:
    """Reads an experiment file. Raises ExperimentError."""
    return load_as(Experiment, path)


def load_as(kind: type[Kind], path: Path) -> Kind:
    """Reads the file of an experiment that has more sections. Raises ExperimentError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ExperimentError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ExperimentError(f"{path}: is not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    return _parse(kind, text, str(path))


def parse(text: str, where: str) -> Experiment:
    """Reads an experiment from TOML text; `where` stands in front of every refusal. Raises ExperimentError."""
    return _parse(Experiment, text, where)


def _parse(kind: type[Kind], text: str, where: str) -> Kind:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{where}: is not TOML: {error}") from error
    return _build(kind, data, where)


def built(content: dict[str, Any], where: str) -> Experiment:
    """An experiment from the keys and sections of a file; `where` stands in front of refusals. ExperimentError."""
    return _build(Experiment, content, where)


def check_factories(experiment: Experiment, where: str) -> None:
    """Raise ExperimentError for a function of one's own that is not installed here; none is imported."""
    for key, name in experiment.factories.items():
        try:
            check_installed(key, name)
        except FactoryError as error:
            raise ExperimentError(f"{where}: {error}") from None


def with_overrides(
    experiment: Kind,
    *,
    clients: int | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    where: str = "overrides",
) -> Kind:
    """The experiment with other values for those given, checked again as a whole; more: by section and key. Raises
    ExperimentError."""
    data = msgspec.to_builtins(experiment)
    given = {"federation": {"clients": clients, "rounds": rounds, "seed": seed}, "simulate": {"workers": workers}}
    for section, values in (*given.items(), *more.items()):
        data[section].update({key: value for key, value in values.items() if value is not None})
    return _build(type(experiment), data, where)


def _build(kind: type[Kind], data: dict[str, Any], where: str) -> Kind:
    try:
        return msgspec.convert(data, kind, dec_hook=read_section)
    except msgspec.ValidationError as error:
        raise ExperimentError(f"{where}: {refusal(error, data, kind)}") from error

"""The experiment file: the complete configuration of a federation, in TOML.

The structs below are the schema. msgspec checks types and bounds; `Experiment` itself checks the rules that join
several keys, so that every existing experiment can run. Every refusal names the file, the key, the value, the reason
and the accepted values. The reference documentation comes from the same annotations (reference.py). Refusals by a
struct's __post_init__ are complete sentences already and stay unchanged.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import msgspec
import msgspec.inspect
from msgspec import Meta

from tacit.models.configuration import (
    DataConfiguration,
    ModelConfiguration,
    TrainingConfiguration,
    at_home,
    image_paths,
)
from tacit.models.workload import FactoryError, check_installed
from tacit.parties.learning.policy import ClientPolicy, ProposedTask, value_of
from tacit.parties.learning.statistics import SCHEME
from tacit.parties.protections.catalogue import chosen, protection_hook, registered
from tacit.parties.protections.encryption import Encryption, check_together
from tacit.parties.protections.gaussian_noise import affordable, cost_of
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection, name_of
from tacit.protocol.core.roster import group_numbers
from tacit.protocol.session.sampling import check_cohorts, cohorts, least_cohort, most_colluders
from tacit.protocol.sum.configuration import Configuration, Mode, Proposal, share
from tacit.secagg.graph import GraphParameters
from tacit.secagg.plain import AnyPacking

_PLACE = re.compile(r" - at `\$\.(?P<path>[^`]*)`\Z")
_MISSING = re.compile(r"Object missing required field `(?P<name>\w+)`")
_LONGEST_VALUE = 80
_REMOVED = {
    "protection.enforce": 'leave it out; instead of "clients" take protection.scheme = "coordinated-binary-weights"',
    "protection.skip_masked_layers": "leave it out",
}
"""Keys of release 0.2.0, and their replacements."""


@dataclass(frozen=True)
class Key:
    """One documented key: its dotted path, its type, its default (a section has none) and its description."""

    path: str
    type: msgspec.inspect.Type
    default: Any
    description: str
    choice: str = ""
    """Section that has this key, if there are several: the scheme of a protection, the kind of an adapter."""

    @property
    def is_section(self) -> bool:
        """Whether it is a table that holds other keys."""
        if isinstance(self.type, msgspec.inspect.UnionType):
            return all(isinstance(one, msgspec.inspect.StructType) for one in self.type.types)
        return isinstance(self.type, msgspec.inspect.StructType | msgspec.inspect.CustomType)

    @property
    def chooses(self) -> bool:
        """Whether it selects one of several sections."""
        return isinstance(self.type, msgspec.inspect.LiteralType) and self.type.values == (self.choice,)


def keys(root: type[msgspec.Struct]) -> Iterator[Key]:
    """All keys of a struct type in their order, the keys of a section after the section."""
    yield from _keys(_type_info(root), "")


_type_info = cache(msgspec.inspect.type_info)


def holds(root: msgspec.Struct, key: Key) -> bool:
    """Whether a value of the documented type has this key: its section may be absent, or another one."""
    section: Any = root
    for name in key.path.split(".")[:-1]:
        section = section and getattr(section, name)
    if section is None or key.is_section:
        return section is not None and getattr(section, key.path.rpartition(".")[2]) is not None
    return not key.choice or str(type(section).__struct_config__.tag) == key.choice


def read_section(kind: type, value: Any) -> Any:
    """msgspec's hook for [protection]; ValueError with the refusal in words."""
    if not isinstance(value, Mapping):
        raise ValueError(f"protection = {literal(value)}: expected a section with keys of its own")
    protection = chosen(value)
    settings = {name: given for name, given in value.items() if name != "scheme"}
    for name, given in settings.items():
        owners = [other for other, one in registered().items() if name in one.__struct_fields__]
        if owners and name_of(protection) not in owners:
            raise ValueError(_of_another(f"protection.{name}", given, owners, "protection.scheme", name_of(protection)))
    try:
        return protection_hook(kind, value)
    except msgspec.ValidationError as error:
        raise ValueError(refusal(error, settings, protection, "protection")) from None


def refusal(error: msgspec.ValidationError, data: Mapping[str, Any], root: type[msgspec.Struct], path: str = "") -> str:
    """Describe msgspec's refusal to convert `data` to `root`: key, value, and the accepted values.

    path: of the section `data` in the whole file."""
    if error.__cause__ is not None:
        return str(error.__cause__)
    known: dict[str, Key] = {}
    choices: dict[str, list[str]] = {}
    for key in _keys(msgspec.inspect.type_info(root), path):
        if key.choice:
            choices.setdefault(key.path, []).append(key.choice)
        if key.chooses and key.path in known:
            key = replace(key, type=msgspec.inspect.LiteralType(tuple(choices[key.path])))
        known[key.path] = key
    prefix = f"{path}." if path else ""
    for section, name, stray in _unknown(data, known, prefix):
        return f"{section}{name} = {literal(stray)}: there is no such key; {_suggestion(section, name, known)}"
    for problem in _misplaced(data, known, choices):
        return problem
    if (missing := _MISSING.match(str(error))) is not None:
        within = _PLACE.search(str(error))
        name = ".".join(filter(None, [path, within["path"] if within else "", missing["name"]]))
        return f"{name} is missing: {known[name].description}"
    place = _PLACE.search(str(error))
    if place is None:
        raise TypeError(f"msgspec names no place in {str(error)!r}") from error
    value: Any = data
    whole = path
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place["path"]):
        value = value[int(index) if index else name]
        whole = ".".join(filter(None, [whole, name]))
    kind = known[whole].type
    if isinstance(kind, msgspec.inspect.VarTupleType) and place["path"].endswith("]"):
        kind = kind.item_type
    return f"{prefix}{place['path']} = {literal(value)}: expected {accepted(kind)}"


def accepted(kind: msgspec.inspect.Type) -> str:
    """The values that a type accepts, as a phrase: "an integer from 2 to 1000"."""
    match kind:
        case msgspec.inspect.Metadata():
            return accepted(kind.type)
        case msgspec.inspect.UnionType():
            words = {
                "leave the key out" if isinstance(one, msgspec.inspect.NoneType) else accepted(one): None
                for one in sorted(kind.types, key=lambda one: isinstance(one, msgspec.inspect.NoneType))
            }
            return ", or ".join(words)
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.IntType():
            return f"an integer{_range(kind)}"
        case msgspec.inspect.FloatType():
            return f"a number{_range(kind)}"
        case msgspec.inspect.StrType():
            return f"a text{_lengths(kind.min_length, kind.max_length, 'character')}"
        case msgspec.inspect.LiteralType():
            return " or ".join(literal(value) for value in kind.values)
        case msgspec.inspect.VarTupleType():
            return f"a list{_lengths(kind.min_length, kind.max_length, 'entry')}, each {accepted(kind.item_type)}"
        case msgspec.inspect.DictType():
            return f"a table whose values are each {accepted(kind.value_type)}"
        case msgspec.inspect.StructType() | msgspec.inspect.CustomType():
            return "a section with keys of its own"
    raise TypeError(f"no words for the type {kind}; configurations hold no such fields")


def literal(value: object, longest: int | None = _LONGEST_VALUE) -> str:
    """A value in TOML syntax, shortened if it is longer than `longest`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        text = "{" + ", ".join(f"{_bare(key)} = {literal(entry, longest)}" for key, entry in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(literal(entry, longest) for entry in value) + "]"
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    return text if longest is None or len(text) <= longest else text[:longest] + "..."


def _misplaced(data: Mapping[str, Any], known: Mapping[str, Key], choices: Mapping[str, list[str]]) -> Iterator[str]:
    """Keys that belong to an alternative of a section; choices: the alternatives that have it, by path."""
    for key in known.values():
        choosing = msgspec.inspect.LiteralType(tuple(choices.get(key.path, ())))
        section, _, chooser = key.path.rpartition(".")
        given = data.get(section)
        if key.type != choosing or not isinstance(given, Mapping) or given.get(chooser) not in choosing.values:
            continue
        for name, value in given.items():
            owners = choices[f"{section}.{name}"]
            if given[chooser] not in owners:
                yield _of_another(f"{section}.{name}", value, owners, key.path, given[chooser])


def _of_another(path: str, value: object, owners: Iterable[str], chooser: str, chosen_one: object) -> str:
    names = " and ".join(map(literal, owners))
    return f"{path} = {literal(value)}: it is a key of {names} only; {chooser} is {literal(chosen_one)}"


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else literal(key)


def _keys(kind: msgspec.inspect.Type, path: str) -> Iterator[Key]:
    if isinstance(kind, msgspec.inspect.CustomType):
        for scheme, protection in registered().items():
            of_scheme = msgspec.inspect.LiteralType((scheme,))
            yield Key(f"{path}.scheme", of_scheme, scheme, protection.about, scheme)
            for key in _keys(msgspec.inspect.type_info(protection), path):
                yield replace(key, choice=scheme)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            assert isinstance(one, msgspec.inspect.StructType)
            tag, about = str(one.tag), (one.cls.__doc__ or "").partition(": ")[2].partition("\n")[0].capitalize()
            yield Key(f"{path}.{one.tag_field}", msgspec.inspect.LiteralType((tag,)), tag, about, tag)
            for key in _keys(one, path):
                yield replace(key, choice=tag)
    elif isinstance(kind, msgspec.inspect.StructType):
        sections = []
        for field in kind.fields:
            inner = field.type
            schema = (inner.extra_json_schema or {}) if isinstance(inner, msgspec.inspect.Metadata) else {}
            inner = inner.type if isinstance(inner, msgspec.inspect.Metadata) else inner
            if isinstance(inner, msgspec.inspect.UnionType):
                structs = [one for one in inner.types if isinstance(one, msgspec.inspect.StructType)]
                # One of several sections, or one that may be left out.
                inner = inner if len(structs) != 1 else structs[0]
            default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
            name = f"{path}.{field.name}" if path else field.name
            key = Key(path=name, type=inner, default=default, description=schema.get("description", ""))
            if key.is_section:
                sections.append(key)
            else:
                yield key
        # Last, because in TOML the lines behind a section header belong to it.
        for key in sections:
            yield key
            yield from _keys(key.type, key.path)


def _unknown(data: Mapping[str, Any], known: Mapping[str, Key], section: str = "") -> Iterator[tuple[str, str, Any]]:
    """Keys that the schema does not have: the section with a dot (or nothing), the name, the value."""
    for name, value in data.items():
        key = known.get(section + name)
        if key is None or "." in name:
            yield section, name, value
        elif key.is_section and isinstance(value, Mapping):
            yield from _unknown(value, known, f"{name}.")


def _suggestion(section: str, name: str, known: Mapping[str, Key]) -> str:
    """Keys of a similar name in the same section, else in any section, else all keys of the section."""
    if (remedy := _REMOVED.get(f"{section}{name}")) is not None:
        return f"it was removed after release 0.2.0: {remedy}"
    if not section and name == "distillation":
        return "it is a section of `tacit distill` alone; leave it out for others"
    siblings = [path for path in known if path.rpartition(".")[0] == section.rstrip(".")]
    # From other sections only close matches.
    for candidates, cutoff in ((siblings, 0.6), (known, 0.8)):
        leaves = [path.rpartition(".")[2] for path in candidates]
        for similar in get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=cutoff):
            return f"did you mean {' or '.join(path for path in candidates if path.rpartition('.')[2] == similar)}?"
    return f"accepted: {', '.join(siblings)}"


def _range(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {_plain(kind.ge)} to {_plain(kind.le)}"
    bounds = {"above": kind.gt, "at least": kind.ge, "below": kind.lt, "at most": kind.le}
    return " " + " and ".join(f"{words} {_plain(bound)}" for words, bound in bounds.items() if bound is not None)


def _plain(bound: float) -> str:
    return str(int(bound) if bound == int(bound) else bound)


def _lengths(least: int | None, most: int | None, unit: str) -> str:
    units = {"character": "characters", "entry": "entries"}[unit]
    if least and most:
        return f" of {least} to {most} {units}"
    if least:
        return f" of at least {least} {unit if least == 1 else units}"
    return f" of at most {most} {units}" if most else ""


USUAL_CLIENTS: Final = 5
"""Default number of clients of a simulation."""
USUAL_CLIP: Final = 0.25
"""Default bound on an update's coordinate."""
UNKNOWN_WEIGHT: Final = 2000
"""Largest weight of one client if the experiment sets none and nobody can compute it."""
LONGEST_SECONDS: Final = 86400.0

Seconds = Annotated[float, Meta(gt=0.0, le=LONGEST_SECONDS)]


class FederationSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[federation]: participants and duration."""

    clients: Annotated[
        Annotated[int, Meta(ge=2, le=1000)] | Literal["all"],
        Meta(
            description='Clients that take part. "all": between hosts, all of the roster that are ready when '
            "gathering ends; in a simulation, 5. A number: clients to start, or, between hosts, clients of "
            "the roster to wait for, which is also the most of a round."
        ),
    ] = "all"
    fraction: Annotated[
        float,
        Meta(
            description="Participation rate: fraction of the ready clients, rounded down, that the server "
            "samples for each round. A client's privacy budget counts every round that it takes part in, "
            "without amplification by sampling.",
            gt=0.0,
            le=1.0,
        ),
    ] = 1.0
    rounds: Annotated[int, Meta(description="Number of rounds of training and aggregation.", ge=1, le=100000)] = 10
    group_size: Annotated[
        int,
        Meta(
            description="Least clients in a group, whose members are in a sum all or none: so differences of "
            "sums disclose groups and not clients. At least floor(corrupt * clients) + 2, and at most "
            "floor(dropout * clients). 0: no groups.",
            ge=0,
            le=1000,
        ),
    ] = 0
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None,
        Meta(
            description="Seed of everything that affects the model: split, initial weights, training and "
            "rounding. Keys, shares and masks always come from the operating system. Without this key every "
            "run draws a seed, and records it."
        ),
    ] = None


class Aggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[aggregation]: the secure sum."""

    mode: Annotated[
        Mode,
        Meta(
            description='Assumed server: "active", malicious and colluding with corrupt clients; '
            '"semi-honest", which follows the protocol. "none" switches secure aggregation off: the server '
            "sees every update, as float32; nothing is clipped or rounded, and clip, value_bits and ring_bits "
            "have no effect."
        ),
    ] = "active"
    threshold: Annotated[
        int,
        Meta(
            description="Clients (in a regular graph: neighbours) that must answer to open a sum; 0 computes it.",
            ge=0,
            le=1000,
        ),
    ] = 0
    graph: Annotated[
        Literal["auto", "complete", "regular"],
        Meta(
            description='Graph of pairwise masks: "complete", all pairs; "regular", a random few neighbours; '
            '"auto", complete below 20 clients and in active mode, else regular.'
        ),
    ] = "auto"
    corrupt: Annotated[
        float, Meta(description="Tolerated fraction of clients that collude with the server.", ge=0.0, lt=1.0)
    ] = 0.33
    dropout: Annotated[
        float,
        Meta(
            description="Tolerated dropout: fraction of the clients of a round that may be lost; a sum over "
            "fewer than the others is not opened.",
            ge=0.0,
            lt=1.0,
        ),
    ] = 0.33
    clip: Annotated[
        float,
        Meta(
            description="Largest absolute coordinate of an update; larger ones are clipped and counted. 0 "
            "computes it: 0.25, or as large as an update with the noise of its protection can be. With secure "
            "aggregation only.",
            ge=0.0,
            le=1e6,
        ),
    ] = 0.0
    value_bits: Annotated[
        int,
        Meta(
            description="Bits of a quantised value, which is a coordinate times its weight. With secure aggregation "
            "only.",
            ge=2,
            le=32,
        ),
    ] = 20
    max_weight: Annotated[
        int,
        Meta(
            description="Largest weight of one client: the number of its samples. 0: a simulation computes "
            "the largest of its split; between hosts, where the sizes are unknown, it is 2000.",
            ge=0,
            le=2**31,
        ),
    ] = 0
    ring_bits: Annotated[
        int,
        Meta(
            description="Width of a word of the sum; 0 computes the smallest sufficient number of whole "
            "bytes. With secure aggregation only.",
            ge=0,
            le=64,
        ),
    ] = 0


class Deadlines(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[deadlines]: the server's timeouts, in seconds."""

    join: Annotated[
        Seconds,
        Meta(description="Seconds for all clients to connect before the first round; in a simulation, for one more."),
    ] = 60.0
    train: Annotated[Seconds, Meta(description="Seconds for a client to train in one round.")] = 600.0
    phase: Annotated[Seconds, Meta(description="Seconds for each phase of the protocol after training.")] = 60.0
    grace: Annotated[Seconds, Meta(description="Seconds for a lost client to reconnect.")] = 10.0
    regather: Annotated[
        float,
        Meta(
            description="Seconds for clients to rejoin once rounds have begun and too few are left for "
            "another one. 0: no limit.",
            ge=0,
            le=LONGEST_SECONDS,
        ),
    ] = 0.0


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[simulate]: distribution of a simulation over its machine."""

    workers: Annotated[
        int,
        Meta(
            description="Processes that host all clients, which take turns in them; the model is the same, "
            "bit for bit. 0: a process for every client, or, if there is not enough memory for that, as many "
            "workers as cores.",
            ge=0,
            le=1000,
        ),
    ] = 0


class ExperimentError(ValueError):
    """A rejected experiment; the text names the file, the key, the value and the accepted values."""


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A complete experiment. Raises ValueError, naming key, value and remedy, if the keys contradict each other."""

    name: Annotated[
        str, Meta(description="Name of the experiment, for reports and folders.", min_length=1, max_length=64)
    ] = "digits"
    federation: Annotated[FederationSection, Meta(description="Participants and duration.")] = FederationSection()
    data: Annotated[
        DataConfiguration, Meta(description="The labelled images and their division among the clients.")
    ] = DataConfiguration()
    model: Annotated[ModelConfiguration, Meta(description="The network.")] = ModelConfiguration()
    training: Annotated[TrainingConfiguration, Meta(description="Local training of a client in one round.")] = (
        TrainingConfiguration()
    )
    protection: Annotated[Protection, Meta(description="Protection of a client's update before it is summed.")] = (
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
    deadlines: Annotated[Deadlines, Meta(description="Timeouts of the server.")] = Deadlines()
    simulate: Annotated[
        Simulation, Meta(description="Distribution of `tacit simulate` over one machine; ignored by hosts.")
    ] = Simulation()
    policy: Annotated[ClientPolicy, Meta(description="Policy of a client for the server's proposals.")] = msgspec.field(
        # Created on demand: a protection may be registered later.
        default_factory=ClientPolicy
    )

    def __post_init__(self) -> None:
        if "/" in self.name or not self.name.isprintable():
            raise _refused("name", self.name, "it is part of the name of a folder; leave out / and control characters")
        self._check_factories()
        if self.federation.clients != "all":
            # Whether this number of clients is sufficient.
            self.check_drawn(self.clients, self._group_sizes)
            self._check_ring()
            self._check_protection()
            self._check_threshold()
            self._check_groups()
            self._check_policy()

    @property
    def clients(self) -> int:
        """Clients to start in a simulation; between hosts `numbered` gives the number of participants."""
        return USUAL_CLIENTS if self.federation.clients == "all" else self.federation.clients

    def numbered(self, clients: int) -> Self:
        """The experiment with a number of clients: its own, or this one if all take part. ValueError if it cannot run
        with so many."""
        if self.federation.clients != "all":
            return self
        return msgspec.structs.replace(self, federation=msgspec.structs.replace(self.federation, clients=clients))

    @property
    def cohort(self) -> int:
        """Most clients of a round."""
        fraction = self.federation.fraction
        return self.clients if fraction == 1 else max(1, share(fraction, self.clients))

    def groups(self) -> tuple[int, ...]:
        """The number of every client's group in the roster, in as many groups as possible; all 0 without groups."""
        return group_numbers(self.clients, self.federation.group_size)

    def graph_parameters(self) -> GraphParameters:
        """Neighbours of a client, and the threshold, as configured or computed."""
        return self.terms().parameters(self.cohort)

    @property
    def clip(self) -> float:
        """Largest absolute coordinate of an update, as configured or computed."""
        noise = self.protection.noise()
        computed = USUAL_CLIP if noise is None else (noise.norm or USUAL_CLIP) + noise.room
        return self.aggregation.clip or computed

    def terms(self, clients: int = 0) -> Proposal:
        """The server's parameters of the sum; clients: of the roster, if more than take part."""
        chosen = msgspec.structs.asdict(self.aggregation)
        del chosen["ring_bits"]
        chosen["colluders"] = share(chosen.pop("corrupt"), max(clients, self.clients))
        if not self.protection.counts_samples(self.training):
            chosen["max_weight"] = 1
        chosen["max_weight"] = chosen["max_weight"] or UNKNOWN_WEIGHT
        chosen["clip"] = self.clip
        return Proposal(
            **chosen,
            clients=self.cohort,
            train_seconds=self.deadlines.train,
            phase_seconds=self.deadlines.phase,
        )

    @property
    def ring_bits(self) -> int | None:
        """Width of a word, None for the smallest sufficient one; without secure aggregation there is no ring."""
        return (self.aggregation.ring_bits or None) if self.aggregation.mode != "none" else None

    def packing(self, *, tensor_sizes: tuple[int, ...], metrics: tuple[str, ...]) -> AnyPacking:
        """Layout of a contribution in words for a model of these tensors. ValueError if a sum could wrap."""
        return self.terms().packing_of(
            form=self.protection.facts().form,
            tensor_sizes=tensor_sizes,
            metrics=metrics,
            ring_bits=self.ring_bits,
        )

    @property
    def evaluated_by_clients(self) -> bool:
        """Whether only the clients have the whole model, each its own or all under their key, and can evaluate it."""
        return self.protection.own_models(self.training) or self.encryption is not None

    @property
    def hides(self) -> bool:
        """Whether random draws of the protection or the model encryption must stay secret."""
        return self.encryption is not None or not isinstance(self.protection, NoProtection)

    @property
    def remembers(self) -> bool:
        """Whether clients keep state from round to round, until the run is over."""
        return self.protection.remembering(self.training) or self.encryption is not None

    def outline(self) -> Configuration:
        """The configuration of this experiment for a model of one value; ValueError if there is none."""
        terms, facts, encryption = self.terms(), self.protection.facts(), self.encryption
        return Configuration(
            **msgspec.structs.asdict(terms),
            **asdict(replace(facts, group_key=facts.group_key or encryption is not None)),
            scheme=self.training.algorithm,
            encrypted=encryption is not None,
            initial_model=encryption.initial_model if encryption else "server",
            spending=self.protection.spending,
            ring_bits=self.packing(tensor_sizes=(1,), metrics=()).ring.bits,
            tensor_sizes=(1,),
            metrics=(),
            task=b"",
        )

    @property
    def _group_sizes(self) -> tuple[int, ...]:
        return tuple(Counter(filter(None, self.groups())).values())

    def check_drawn(self, roster: int, sizes: Sequence[int]) -> None:
        """Raise ValueError, naming sufficient values, if client sampling leaves too few clients for the rounds.

        roster: its clients; sizes: of its groups, if it has any."""
        if (fraction := self.federation.fraction) == 1:
            return
        if self.encryption is not None:
            wanted = "only the cohort of the last round can read an encrypted model; leave the key out"
            raise _refused("federation.fraction", fraction, wanted)
        clients, smallest, terms = self.clients, self.policy.smallest_cohort, self.terms(roster)
        try:
            check_cohorts(terms, sizes, smallest)
        except ValueError as error:
            least, fewer = least_cohort(terms, clients, sizes, smallest), most_colluders(terms, sizes, smallest)
            remedy = f"the smallest that works is {_fraction(least, clients)}" if least else "no fraction works"
            if fewer is not None:
                bound = _fraction(fewer, roster)
                remedy += f"; this one works with aggregation.corrupt = {bound} and policy.least_corrupt = {bound}"
            reason = f"a round has {terms.clients} of {clients} clients, and {error}; {remedy}"
            raise _refused("federation.fraction", fraction, reason) from error

    def _check_policy(self) -> None:
        policy = self.policy
        if self.data.statistics == "sum":
            if policy.largest_epsilon:
                refused = "it has no noise, which policy.largest_epsilon asks for"
            elif not policy.accepts_unprotected:
                refused = 'it has no protection, which policy.protections (without "none") or policy.least asks for'
            elif SCHEME not in policy.schemes:
                refused = f"policy.schemes accepts only {literal(policy.schemes)}"
            else:
                refused = ""
            if refused:
                raise _refused("data.statistics", "sum", f"{refused}; give data.mean and data.std")
        proposed = ProposedTask(self.outline(), self.clients, self._group_sizes, wanted=self)
        for _, rule, accepted in (*policy.complaints(proposed), *policy.task_complaints(proposed)):
            wanted = f"[policy] accepts {accepted}"
            if rule.key == "aggregation.clip" and not self.aggregation.clip:
                wanted = (
                    f"computed from protection.dp_clip and dp_noise; {wanted}: raise policy.largest_clip, lower "
                    "dp_clip or dp_noise, or set aggregation.clip, beyond which noise is cut"
                )
                raise _refused(rule.key, self.clip, wanted)
            raise _refused(rule.key, value_of(self, rule.key), wanted)
        epsilon, delta, rounds = policy.largest_epsilon, policy.delta, self.federation.rounds
        if epsilon and not affordable(rounds * cost_of(self.protection.noise()), epsilon=epsilon, delta=delta):
            remedy = "raise protection.dp_noise or the budget, or lower federation.rounds"
            wanted = f"{rounds} rounds are beyond it for policy.delta = {delta}; {remedy}"
            raise _refused("policy.largest_epsilon", epsilon, wanted)

    @property
    def factories(self) -> dict[str, str]:
        """Custom functions, by key, which every party has installed."""
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
        clients, threshold, terms = self.cohort, self.aggregation.threshold, self.terms()
        if self.aggregation.mode == "none":
            if threshold:
                wanted = "without secure aggregation there is none; set it to 0"
                raise _refused("aggregation.threshold", threshold, wanted)
            return
        try:
            computed = msgspec.structs.replace(terms, threshold=0).parameters(clients)
            terms.check_dropouts(grouped=bool(self.federation.group_size))
        except ValueError as error:
            key = "graph" if self.aggregation.graph == "regular" else "corrupt"
            raise _refused(f"aggregation.{key}", getattr(self.aggregation, key), error) from error
        complete = computed.neighbours == clients - 1
        # In a complete graph a client's own share counts.
        most = clients if complete else computed.neighbours
        threshold, floor = threshold or computed.threshold, self.policy.threshold_floor
        if not computed.threshold <= threshold <= most:
            raise _refused(
                "aggregation.threshold",
                threshold,
                f"expected {computed.threshold} to {most}, or 0 to compute it: {clients} clients in "
                f"{self.aggregation.mode} mode, up to {terms.colluders} of them corrupt, {computed.neighbours} "
                "neighbours each",
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
        clients = self.clients
        if self.federation.group_size > clients:
            raise ValueError(f"{where}: {clients} clients make no group of {self.federation.group_size}")
        try:
            sizes = self._group_sizes
            self.terms().check_groups(sizes, cohorts(self.cohort, sizes)[0], self.policy.smallest_cohort)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _check_ring(self) -> None:
        try:
            self.packing(tensor_sizes=(1,), metrics=())
        except ValueError as error:
            reason = f"{error} (0 computes ring_bits)"
            raise _refused("aggregation.ring_bits", self.aggregation.ring_bits, reason) from error


def _fraction(part: int, whole: int) -> float:
    """The smallest fraction of four decimals that, rounded down, gives this part."""
    return -(-part * 10_000 // whole) / 10_000


def _refused(key: str, value: object, reason: object) -> ValueError:
    return ValueError(f"{key} = {literal(value)}: {reason}")


Kind = TypeVar("Kind", bound=Experiment)


def load(path: Path, *, numbered: bool = True) -> Experiment:
    """Read an experiment file. Raises ExperimentError.

    numbered: whether it must be able to run with its number of clients, the default one if all take part; between hosts
    the roster determines the number."""
    return load_as(Experiment, path, numbered=numbered)


def load_as(kind: type[Kind], path: Path, *, numbered: bool = True) -> Kind:
    """Read the file of an experiment with additional sections. Raises ExperimentError."""
    content = _from(path.parent.absolute(), read_toml(path, ExperimentError))
    return _build(kind, content, str(path), numbered=numbered)


def read_toml(path: Path, refused: type[Exception]) -> dict[str, Any]:
    """The content of a TOML file; refused: raised, with the reason, for a file that is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise refused(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise refused(f"{path}: is not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise refused(f"{path}: is not TOML: {error}") from error


def is_adaptation(path: Path) -> bool:
    """Whether the file of an experiment is of an adaptation; errors are left for the loader to report."""
    try:
        return "adaptation" in tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return False


def parse(text: str, where: str) -> Experiment:
    """Read an experiment from TOML text; `where` begins every refusal. Raises ExperimentError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{where}: is not TOML: {error}") from error
    return _build(Experiment, data, where)


def _from(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Content of a file with absolute paths, which remain valid in a run directory."""
    paths = {"data": image_paths(data["data"])} if isinstance(data.get("data"), dict) else {}
    paths["model"] = ("checkpoint",)
    placed = {key: at_home(data[key], names, folder) for key, names in paths.items() if isinstance(data.get(key), dict)}
    return {**data, **placed}


def built(content: dict[str, Any], where: str) -> Experiment:
    """An experiment from the keys and sections of a file; `where` begins every refusal. ExperimentError.

    Paths are relative to the current folder."""
    return _build(Experiment, _from(Path.cwd(), content), where)


def check_factories(experiment: Experiment, where: str) -> None:
    """Raise ExperimentError for a custom function that is not installed here; none is imported."""
    for key, name in experiment.factories.items():
        try:
            check_installed(key, name)
        except FactoryError as error:
            raise ExperimentError(f"{where}: {error}") from None


def settings_of(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Values by section and key from "SECTION.KEY=VALUE", with values in TOML, or text. ExperimentError."""
    found: dict[str, dict[str, Any]] = {}
    for setting in given:
        key, equals, text = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot:
            raise ExperimentError(f"--set {setting}: expected SECTION.KEY=VALUE, as in training.epochs=2")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        found.setdefault(section, {})[name] = value
    # Paths are relative to the current folder, as in all arguments.
    return _from(Path.cwd(), found)


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
    """The experiment with these values replaced, checked again as a whole; more: by section and key. Raises
    ExperimentError."""
    data = msgspec.to_builtins(experiment)
    given = {"federation": {"clients": clients, "rounds": rounds, "seed": seed}, "simulate": {"workers": workers}}
    for section, values in (*given.items(), *more.items()):
        data[section] = {**(data.get(section) or {}), **{k: value for k, value in values.items() if value is not None}}
    return _build(type(experiment), data, where)


def _build(kind: type[Kind], data: dict[str, Any], where: str, *, numbered: bool = True) -> Kind:
    try:
        found = msgspec.convert(data, kind, dec_hook=read_section)
        if numbered:
            found.numbered(USUAL_CLIENTS)
    except msgspec.ValidationError as error:
        raise ExperimentError(f"{where}: {refusal(error, data, kind)}") from error
    except ValueError as error:
        raise ExperimentError(f"{where}: {error}") from error
    return found

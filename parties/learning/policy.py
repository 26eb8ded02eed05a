"""Policy of a client for the task inside a configuration: one rule for each field.

The protocol's Policy judges the configuration (protocol/sum/policy.py). A protection names the values that a policy may
pin (`Protection.strengths`); at 0 it is accepted only if "none" is. A budget bounds the disclosure of a client by all
updates together, over rounds and sessions: its journal has the cost of each.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal
from typing import Protocol as PythonProtocol

import msgspec
from msgspec import Meta

from tacit.models.configuration import Architecture, TrainingConfiguration, parameters
from tacit.parties.learning.statistics import SCHEME
from tacit.parties.learning.task import read_task
from tacit.parties.protections.catalogue import pinnable, registered
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.gaussian_noise import affordable, cost_of
from tacit.parties.protections.protection import Protection
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.sum.configuration import Configuration
from tacit.protocol.sum.policy import CONFIGURATION_RULES, Policy, Proposed, Rule, below_policy


class Wanted(PythonProtocol):
    """A task, or an experiment that implies one."""

    @property
    def model(self) -> Architecture: ...
    @property
    def training(self) -> TrainingConfiguration: ...
    @property
    def protection(self) -> Protection: ...
    @property
    def encryption(self) -> Encryption | None: ...


@dataclass(frozen=True)
class ProposedTask(Proposed):
    wanted: Wanted = dataclasses.field(kw_only=True)


def _size(policy: ClientPolicy, proposed: ProposedTask) -> str:
    # Channels and classes follow from the data; the size without them is bounded before anything is built.
    least = parameters(proposed.wanted.model, classes=1, channels=1)
    return f"models of at most {policy.largest_model} values" if least and least > policy.largest_model else ""


def _factory(section: str) -> Callable[[ClientPolicy, ProposedTask], str]:
    def judge(policy: ClientPolicy, proposed: ProposedTask) -> str:
        name = getattr(proposed.wanted, section).factory
        if not name or any(fnmatchcase(name, pattern) for pattern in policy.factories):
            return ""
        return f"one of policy.factories, which has {', '.join(policy.factories) or 'none'}"

    return judge


def _images(policy: ClientPolicy, proposed: ProposedTask) -> str:
    training = proposed.wanted.training
    few = training.sends_gradients and 0 < training.fedsgd_images < policy.least_images
    return f"at least {policy.least_images} images, or 0 for all (least_images)" if few else ""


def _scheme(policy: ClientPolicy, proposed: ProposedTask) -> str:
    protection, mode = proposed.wanted.protection, proposed.configuration.mode
    if protection.scheme not in policy.protections:
        return f"one of {', '.join(policy.protections)}"
    if policy.least and not policy.least.keys() & protection.strengths().keys():
        return f"a scheme with {' or '.join(sorted(policy.least))}, for which policy.least has a value"
    if protection.contributors_vary and mode == "active" and not policy.uncoordinated_weights:
        return (
            "one whose clients agree on which coordinates each contributes: else the server learns sums of few clients "
            "(uncoordinated_weights accepts that)"
        )
    if policy.largest_epsilon and not math.isfinite(cost_of(protection.noise())):
        return f"noise on updates of a largest norm, for its budget of largest_epsilon = {policy.largest_epsilon}"
    return ""


def _contributors(policy: ClientPolicy, proposed: ProposedTask) -> str:
    protection, found = proposed.wanted.protection, proposed.configuration
    fewest = max(policy.least_contributors, policy.fewest(found))
    counted = 0 < protection.facts().min_contributors < fewest
    if not found.secure or protection.contributors_vary or not counted:
        return ""
    return f"at least {fewest}, so that the server learns no sum of fewer"


def _strength_rule(key: str) -> Rule:
    def judge(policy: ClientPolicy, proposed: ProposedTask) -> str:
        value = proposed.wanted.protection.strengths().get(key)
        if value is None:
            return ""
        if key in policy.least:
            return f"at least {policy.least[key]}" if value < policy.least[key] else ""
        if value <= 0 and "none" not in policy.protections:
            return 'more than 0, where it does not accept the scheme "none"'
        return ""

    accepts = 'at least the value in least; else above 0, unless "none" is accepted'
    return Rule(f"protection.{key}", accepts, ("least", "protections"), judge)


def _matrix(policy: ClientPolicy, proposed: ProposedTask) -> str:
    matrix = proposed.wanted.encryption.matrix if proposed.wanted.encryption else "none"
    return "" if matrix in policy.encryptions else f"one of {', '.join(policy.encryptions)}"


_TIME: Final = "any: deadlines.train bounds the time that it takes"
_SIZE: Final = "any, for a model of at most largest_model values"
_OWN: Final = "as of the images here"
_PART: Final = "any: it chooses what is contributed"

TASK_RULES: Final[Mapping[str, Rule]] = {
    "model.name": Rule(
        "model.name", "vit, lenet, convnet, or a model of timm; no weights are read", ("largest_model",), _size
    ),
    **{
        f"model.{key}": Rule(f"model.{key}", _SIZE, ("largest_model",))
        for key in ("image_size", "patch_size", "width", "depth", "heads", "mlp_ratio", "rank")
    },
    "model.tune": Rule("model.tune", "any: all other parameters are fixed, and leave no client"),
    "model.train": Rule("model.train", "any: all other parameters are fixed, and leave no client"),
    "model.factory": Rule("model.factory", "none, or one of factories", ("factories",), _factory("model")),
    "training.algorithm": Rule("training.algorithm", "one of schemes", ("schemes",)),
    "training.fedsgd_images": Rule(
        "training.fedsgd_images", "at least least_images; 0: all of its own", ("least_images",), _images
    ),
    **{
        f"training.{key}": Rule(f"training.{key}", _TIME, ("longest_train",))
        for key in ("epochs", "batch_size", "learning_rate", "momentum", "decay", "decay_rounds", "warmup_rounds",
                    "cosine_rounds", "proximal", "augment", "optimizer", "weight_decay")
    },
    **{
        f"training.{key}": Rule(f"training.{key}", "any: it is the server's own step")
        for key in ("server_optimizer", "server_learning_rate", "server_momentum")
    },
    "training.buffers": Rule("training.buffers", "any: averaged ones are part of the sum, local ones leave no client"),
    "training.metrics": Rule("training.metrics", "any: they are part of the sum, and of what noise covers"),
    "training.held_out": Rule("training.held_out", "any: metrics are part of the sum"),
    "training.factory": Rule("training.factory", "none, or one of factories", ("factories",), _factory("training")),
    "classes": Rule("data.classes", _OWN, code=Code.LOCAL),
    "class_digest": Rule("data.classes", _OWN, code=Code.LOCAL),
    "channels": Rule("data.channels", _OWN, code=Code.LOCAL),
    "mean": Rule("data.mean", "any: it shifts the pixels"),
    "std": Rule("data.std", "any: it scales the pixels"),
    "run": Rule("run", "any: it names the run that persisted state belongs to"),
    "stimuli": Rule("stimuli", "any images that fit a message"),
    "protection.scheme": Rule(
        "protection.scheme",
        "one of protections; with least, one that has a key of it; in active mode one whose clients agree on which "
        "coordinates each contributes, unless uncoordinated_weights; with largest_epsilon one with noise",
        ("protections", "least", "uncoordinated_weights", "largest_epsilon"),
        _scheme,
    ),
    "protection.min_contributors": Rule(
        "protection.min_contributors",
        CONFIGURATION_RULES["min_contributors"].accepts,
        CONFIGURATION_RULES["min_contributors"].policy,
        _contributors,
    ),
    **{
        f"protection.{key}": _strength_rule(key)
        for key in ("zero_probability", "masked_layers", "dp_noise")
    },
    **{
        f"protection.{key}": Rule(f"protection.{key}", _PART)
        for key in ("layers", "granularity", "mask", "adaptive", "send_classifier", "pairs", "split")
    },
    "protection.rekey_every": Rule("protection.rekey_every", "any: a renewed key costs time"),
    "protection.distillation_steps": Rule("protection.distillation_steps", "any: the server trains"),
    "protection.dp_clip": Rule(
        "protection.dp_clip", "any; with largest_epsilon, above 0", ("largest_epsilon",)
    ),
    "protection.dp_delta": Rule("protection.dp_delta", "any: reports state epsilon for it; the budget has delta"),
    "encryption.matrix": Rule("encryption.matrix", "one of encryptions", ("encryptions",), _matrix),
    "encryption.initial_model": Rule(
        "encryption.initial_model",
        CONFIGURATION_RULES["initial_model"].accepts,
        CONFIGURATION_RULES["initial_model"].policy,
    ),
    "encryption.rekey_every": Rule("encryption.rekey_every", "any: a renewed key costs time"),
}  # fmt: skip

STATISTICS_RULES: Final[Mapping[str, Rule]] = {
    "image_size": Rule("model.image_size", "any: it scales images before they are summed"),
    "channels": Rule("data.channels", _OWN, code=Code.LOCAL),
    "classes": Rule("data.classes", _OWN, code=Code.LOCAL),
    "class_digest": Rule("data.classes", _OWN, code=Code.LOCAL),
}
"""Rules by field of a StatisticsTask; its scheme is accepted if a sum without a protection is."""


def rules() -> Iterator[tuple[str, Rule]]:
    for struct, table in (
        ("Configuration", CONFIGURATION_RULES), ("Task", TASK_RULES), ("StatisticsTask", STATISTICS_RULES)
    ):  # fmt: skip
        yield from ((f"{struct}.{field}", rule) for field, rule in table.items())


class ClientPolicy(Policy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policy]: limits on a server's proposals. A weaker proposal is refused, naming the field."""

    protections: Annotated[
        tuple[str, ...],
        Meta(
            description='Accepted protection.scheme; without this key, all registered ones. Without "none" no '
            "sum of statistics is accepted either: it has no protection.",
            min_length=1,
        ),
    ] = msgspec.field(default_factory=lambda: tuple(registered()))
    least: Annotated[
        dict[str, float],
        Meta(
            description="Smallest accepted values of the keys that make a protection strong, as in "
            "{masked_layers = 1, zero_probability = 0.5, dp_noise = 1.0}: the probability of any layer, and "
            "noise as a multiple of dp_clip. A value of 0 for a key not named here is accepted only if the "
            'scheme "none" is.'
        ),
    ] = msgspec.field(default_factory=dict)
    encryptions: Annotated[
        tuple[Literal["none", "orthogonal", "gaussian"], ...],
        Meta(description='Accepted encryption.matrix; "none": a model in the clear.', min_length=1),
    ] = ("none", "orthogonal", "gaussian")
    factories: Annotated[
        tuple[str, ...],
        Meta(
            description='Accepted model.factory and training.factory, as patterns: ["my_package.*"] accepts '
            "the functions in the modules of that package. They run here, with all permissions of this party. "
            "Without this key: none."
        ),
    ] = ()
    uncoordinated_weights: Annotated[
        bool,
        Meta(
            description="Accept, in active mode, protections whose clients alone choose the coordinates or "
            "tensors that they contribute (binary-weights, locked-binary-weights, fedrsm): the server learns "
            "the sum of a coordinate with few contributors, and the update of a single contributor."
        ),
    ] = False
    least_images: Annotated[
        int, Meta(description="Smallest accepted training.fedsgd_images, of gradients that a client sends.", ge=1)
    ] = 8
    largest_epsilon: Annotated[
        float,
        Meta(
            description="Budget: the epsilon, for the delta below, of all updates that a client ever makes, "
            "also with former keys and names, against any observer of each of them; aborted rounds count. "
            "With it only a scheme with a noise guarantee is accepted; 0: none.",
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

    @property
    def accepts_unprotected(self) -> bool:
        return "none" in self.protections and not self.least

    def check(self, configuration: Configuration, *, clients: int, groups: Sequence[int] = ()) -> None:
        super().check(configuration, clients=clients, groups=groups)
        if configuration.scheme == SCHEME:
            if self.largest_epsilon:
                raise below_policy("scheme", SCHEME, "noise on all that leaves it, for its budget of largest_epsilon")
            if not self.accepts_unprotected:
                raise below_policy("scheme", SCHEME, 'a sum without a protection only where it accepts "none"')
            return
        proposed = ProposedTask(configuration, clients, tuple(groups), wanted=read_task(configuration))
        for field, _, accepted in self.task_complaints(proposed):
            raise below_policy(field, value_of(proposed.wanted, field), accepted)

    def task_complaints(self, proposed: ProposedTask) -> Iterator[tuple[str, Rule, str]]:
        """Fields of a task that violate this policy: each with its rule and the accepted values."""
        # A third-party protection may have its own strengths.
        own = {f"protection.{key}": _strength_rule(key) for key in proposed.wanted.protection.strengths()}
        for field, rule in {**own, **TASK_RULES}.items():
            if rule.judge is not None and (accepted := rule.judge(self, proposed)):
                yield field, rule, accepted

    def cost(self, configuration: Configuration) -> float:
        return cost_of(read_task(configuration).protection.noise()) if self.largest_epsilon else 0.0

    def check_budget(self, spent: float) -> None:
        if self.largest_epsilon and not affordable(spent, epsilon=self.largest_epsilon, delta=self.delta):
            raise RemoteProtocolError(
                Code.POLICY,
                f"with another update this client would be beyond its budget of largest_epsilon = "
                f"{self.largest_epsilon} for delta = {self.delta}",
            )


def value_of(wanted: Wanted, field: str) -> object:
    """The value of a dotted field, of a strength its effective value; "none" if its section is missing."""
    section, _, setting = field.partition(".")
    if section == "protection" and setting in (strengths := wanted.protection.strengths()):
        return strengths[setting]
    value: object = wanted
    for name in field.split("."):
        value = getattr(value, name, "none")
    return value

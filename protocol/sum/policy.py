"""Policy of a client: the proposals of a server that it accepts.

Every field of a Configuration has a Rule here, and every field of the task inside it one in parties/learning/policy.py;
docs and `tacit config --party client` print them. The collusion bound counts members of the roster, m =
floor(least_corrupt * clients of the roster): a server picks the cohort, so all m may be in it. A cohort, a sum and a
group therefore have at least m + 2 members, and thresholds resist m colluders for every size of the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.roster import ROSTER_CHANGES, RosterChange
from tacit.protocol.sum.configuration import Configuration, Mode, Scheme, Seconds, share
from tacit.secagg.graph import GraphParameters
from tacit.secagg.packing import WeightForm


@dataclass(frozen=True)
class Proposed:
    """A configuration, and its roster."""

    configuration: Configuration
    clients: int
    groups: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rule:
    """Rule of a client for one field of a proposal."""

    key: str
    """The field, as the server's experiment file names it."""
    accepts: str
    """Accepted values, in words."""
    policy: tuple[str, ...] = ()
    """Deciding keys of the policy."""
    judge: Callable[[Any, Any], str] | None = None
    """Return the accepted values for this policy if the proposal violates it, else an empty string."""
    code: Code = Code.POLICY


def _colluders(policy: Policy, proposed: Proposed) -> str:
    least = share(policy.least_corrupt, proposed.clients)
    if not proposed.configuration.secure or proposed.configuration.colluders >= least:
        return ""
    return f"at least {least} of the {proposed.clients} clients of its roster (least_corrupt = {policy.least_corrupt})"


def _clients(policy: Policy, proposed: Proposed) -> str:
    fewest = policy.fewest(proposed.configuration)
    return "" if proposed.configuration.clients >= fewest else f"at least {fewest}"


def _contributors(policy: Policy, proposed: Proposed) -> str:
    configuration = proposed.configuration
    counted = configuration.form is WeightForm.COORDINATE or configuration.min_contributors > 0
    if not counted or configuration.min_contributors >= policy.least_contributors:
        return ""
    return f"at least {policy.least_contributors}"


def _initial_model(policy: Policy, proposed: Proposed) -> str:
    found = proposed.configuration
    known = found.encrypted and found.initial_model == "server" and not found.secure
    return "clients, without secure aggregation" if known and not policy.accept_known_plaintext else ""


def _among(field: str, key: str) -> Callable[[Policy, Proposed], str]:
    def judge(policy: Policy, proposed: Proposed) -> str:
        accepted = getattr(policy, key)
        return "" if getattr(proposed.configuration, field) in accepted else f"one of {', '.join(accepted)}"

    return judge


def _at_most(field: str, key: str, *, secure: bool = False) -> Callable[[Policy, Proposed], str]:
    def judge(policy: Policy, proposed: Proposed) -> str:
        found, most = proposed.configuration, getattr(policy, key)
        if getattr(found, field) <= most or (secure and not found.secure):
            return ""
        return f"at most {most}"

    return judge


def _size(policy: Policy, proposed: Proposed) -> str:
    return "" if sum(proposed.configuration.tensor_sizes) <= policy.largest_model else f"at most {policy.largest_model}"


def _state(policy: Policy, proposed: Proposed) -> str:
    most = 4 * policy.largest_model
    return "" if proposed.configuration.state.size <= most else f"at most {most} bytes"


def _fixed(policy: Policy, proposed: Proposed) -> str:
    found = proposed.configuration.fixed
    if policy.fixed_part and found.digest.hex() != policy.fixed_part:
        return f"the one of the digest {policy.fixed_part} (fixed_part)"
    return "" if found.size <= 4 * policy.largest_model else f"at most {4 * policy.largest_model} bytes"


_ROOM: Final = "any with room for the sum in ring_bits"
_DERIVED: Final = "the value that follows from the task"

CONFIGURATION_RULES: Final[Mapping[str, Rule]] = {
    "mode": Rule("aggregation.mode", "one of modes", ("modes",), _among("mode", "modes")),
    "graph": Rule("aggregation.graph", "any: each has a threshold for the colluders"),
    "colluders": Rule(
        "aggregation.corrupt",
        "with secure aggregation, at least floor(least_corrupt * clients of the roster) colluders",
        ("least_corrupt",),
        _colluders,
    ),
    "dropout": Rule(
        "aggregation.dropout",
        "with secure aggregation, at most largest_dropout",
        ("largest_dropout",),
        _at_most("dropout", "largest_dropout", secure=True),
    ),
    "threshold": Rule(
        "aggregation.threshold",
        "for the cohort of each round, at least that of the rules and threshold_floor; 0: that of the rules",
        ("threshold_floor",),
    ),
    "clients": Rule(
        "federation.clients",
        "at least smallest_cohort, and two more than may collude; no cohort is larger",
        ("smallest_cohort", "least_corrupt"),
        _clients,
    ),
    "clip": Rule(
        "aggregation.clip",
        "with secure aggregation, at most largest_clip",
        ("largest_clip",),
        _at_most("clip", "largest_clip", secure=True),
    ),
    "value_bits": Rule("aggregation.value_bits", f"with secure aggregation, {_ROOM}"),
    "max_weight": Rule("aggregation.max_weight", f"{_ROOM}; a client's own weight is cut to it"),
    "train_seconds": Rule(
        "deadlines.train", "at most longest_train", ("longest_train",), _at_most("train_seconds", "longest_train")
    ),
    "phase_seconds": Rule(
        "deadlines.phase", "at most longest_phase", ("longest_phase",), _at_most("phase_seconds", "longest_phase")
    ),
    "scheme": Rule("training.algorithm", "one of schemes", ("schemes",), _among("scheme", "schemes")),
    "min_contributors": Rule(
        "protection.min_contributors",
        "at least least_contributors, where clients contribute to some coordinates only; where they agree on which, "
        "also at least smallest_cohort, and two more than may collude",
        ("least_contributors", "smallest_cohort", "least_corrupt"),
        _contributors,
    ),
    "group_key": Rule("group_key", _DERIVED, code=Code.LOCAL),
    "rekey_every": Rule("rekey_every", _DERIVED, code=Code.LOCAL),
    "encrypted": Rule("encrypted", _DERIVED, code=Code.LOCAL),
    "initial_model": Rule(
        "encryption.initial_model",
        '"clients", where the server sees each encrypted update, unless accept_known_plaintext',
        ("accept_known_plaintext",),
        _initial_model,
    ),
    "single_vectors": Rule("single_vectors", f"{_DERIVED}; never with secure aggregation", code=Code.LOCAL),
    "spending": Rule("spending", f"{_DERIVED}; true for a client with a budget", code=Code.LOCAL),
    "ring_bits": Rule("aggregation.ring_bits", "enough for the sum of all clients; 32 without secure aggregation"),
    "form": Rule("form", _DERIVED, code=Code.LOCAL),
    "tensor_sizes": Rule(
        "model", "those of the model built here, at most largest_model values", ("largest_model",), _size
    ),
    "metrics": Rule("metrics", _DERIVED, code=Code.LOCAL),
    "state": Rule("model", "that of the model built here, at most largest_model values", ("largest_model",), _state),
    "layout": Rule("model", "the layout of the model built here", code=Code.LOCAL),
    "fixed": Rule(
        "model",
        "that of the model built here, at most largest_model values; pinned by fixed_part",
        ("largest_model", "fixed_part"),
        _fixed,
    ),
    "task": Rule("task", "a task whose fields are accepted"),
}
"""Rules by field of a Configuration."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policy]: limits on a server's proposals. A weaker proposal is refused, naming the field."""

    modes: Annotated[
        tuple[Mode, ...],
        Meta(
            description="Accepted aggregation.mode, independent of the server's choice.",
            min_length=1,
        ),
    ] = ("active",)
    schemes: Annotated[
        tuple[Scheme, ...],
        Meta(
            description='Accepted training.algorithm; "statistics": a first sum, of pixels (data.statistics = "sum"); '
            '"adaptation": sums of shares, which only data owners of an adaptation have.',
            min_length=1,
        ),
    ] = ("fedavg", "fedsgd", "statistics")
    least_contributors: Annotated[
        int,
        Meta(
            description="Smallest accepted protection.min_contributors, of protections that have it.",
            ge=1,
            le=10_000,
        ),
    ] = 1
    smallest_cohort: Annotated[
        int, Meta(description="Fewest clients of a sum that includes this client's update.", ge=2, le=10_000)
    ] = 3
    threshold_floor: Annotated[
        int,
        Meta(
            description="Lowest accepted threshold, if it exceeds the rule for the cohort of the round: "
            "floor(2n/3)+1 in active mode, else floor(n/2)+1 or more, for n clients in a complete graph.",
            ge=0,
            le=10_000,
        ),
    ] = 0
    least_corrupt: Annotated[
        float,
        Meta(
            description="Fraction of the clients of the roster, rounded down, that may collude with the server without "
            "learning more of this client than the sum: a cohort, a sum and a group have at least two more.",
            ge=0.0,
            lt=1.0,
        ),
    ] = 0.33
    largest_dropout: Annotated[
        float, Meta(description="Largest accepted aggregation.dropout, with secure aggregation.", ge=0.0, lt=1.0)
    ] = 0.5
    accept_known_plaintext: Annotated[
        bool,
        Meta(
            description="Accept, without secure aggregation, that the server makes the first model that the clients "
            "encrypt, and so can compute their key."
        ),
    ] = False
    largest_clip: Annotated[
        float, Meta(description="Largest accepted aggregation.clip, with secure aggregation.", gt=0.0, le=1e6)
    ] = 1.0
    largest_model: Annotated[
        int, Meta(description="Most values of a model, of 4 bytes each, that this client builds.", ge=1, le=2**40)
    ] = 1_000_000_000
    fixed_part: Annotated[
        str,
        Meta(
            description="Digest, in hexadecimal, of the only accepted fixed part of a model, as in "
            '`fixed_part` of the event `configuration-accepted` in a client\'s log; "" accepts any, the same '
            "for all clients.",
            pattern="^([0-9a-f]{64})?$",
        ),
    ] = ""
    longest_train: Annotated[Seconds, Meta(description="Largest accepted deadlines.train.")] = 86_400.0
    longest_phase: Annotated[Seconds, Meta(description="Largest accepted deadlines.phase.")] = 3_600.0
    roster_changes: Annotated[
        tuple[RosterChange, ...],
        Meta(
            description="Changes to other members that the operator of the roster may make during the "
            "federation without asking this client's owner; [] refuses every change of members."
        ),
    ] = ROSTER_CHANGES

    def check(self, configuration: Configuration, *, clients: int, groups: Sequence[int] = ()) -> None:
        """Refuse, before any round, a configuration that violates this policy; clients, groups: see Proposed."""
        for field, _, accepted in self.complaints(Proposed(configuration, clients, tuple(groups))):
            raise below_policy(field, getattr(configuration, field), accepted)
        try:
            configuration.packing()
        except ValueError as error:
            raise RemoteProtocolError(Code.POLICY, f"the configuration has no room for its sum: {error}") from None
        try:
            configuration.check_dropouts(grouped=bool(groups))
        except ValueError as error:
            raise RemoteProtocolError(Code.POLICY, str(error)) from None
        if configuration.secure and min(groups, default=configuration.smallest_group) < configuration.smallest_group:
            raise RemoteProtocolError(
                Code.POLICY,
                f"the roster has a group of {min(groups)} clients; of {clients}, {configuration.colluders} may "
                f"collude, and a group needs at least {configuration.smallest_group}",
            )

    def complaints(self, proposed: Proposed) -> Iterator[tuple[str, Rule, str]]:
        """Fields of a configuration that violate this policy: each with its rule and the accepted values."""
        for field, rule in CONFIGURATION_RULES.items():
            if rule.judge is not None and (accepted := rule.judge(self, proposed)):
                yield field, rule, accepted

    def fewest(self, configuration: Configuration) -> int:
        """Fewest clients of a cohort and of a sum."""
        return max(self.smallest_cohort, configuration.smallest_group)

    def cost(self, configuration: Configuration) -> float:
        """Cost of a vector in this policy's budget, which is for the life of the client's keys."""
        return 0.0

    def check_budget(self, spent: float) -> None:
        """Refuse a round whose vector brings the total spending beyond the budget."""

    def check_changes(self, changes: Sequence[RosterChange]) -> None:
        """Refuse a later version of the roster with forbidden changes of members."""
        for change in changes:
            if change not in self.roster_changes:
                raise RemoteProtocolError(
                    Code.POLICY,
                    f"the operator of the roster did {change} members; this client's policy accepts "
                    f"{', '.join(self.roster_changes) or 'no change'}: where its owner agrees, give it the new roster",
                )

    def check_cohort(self, configuration: Configuration, cohort: int) -> GraphParameters:
        """Refuse a round whose cohort or threshold violates this policy; returns its parameters."""
        if not (fewest := self.fewest(configuration)) <= cohort <= configuration.clients:
            raise below_policy("cohort", cohort, f"{fewest} to {configuration.clients} clients")
        try:
            parameters = configuration.parameters(cohort)
            rule = msgspec.structs.replace(configuration, threshold=0).parameters(cohort)
        except ValueError as error:
            raise RemoteProtocolError(Code.POLICY, str(error)) from None
        if not configuration.secure:
            return parameters
        floor = max(self.threshold_floor, rule.threshold)
        # In a complete graph a client's own share counts too.
        most = parameters.neighbours if parameters.neighbours < cohort - 1 else cohort
        if not max(floor, 2) <= parameters.threshold <= most:
            raise below_policy("threshold", parameters.threshold, f"{floor} to {most} of {cohort} clients")
        return parameters


def below_policy(key: str, value: object, accepted: str) -> RemoteProtocolError:
    """The refusal of a proposal, naming the field."""
    return RemoteProtocolError(
        Code.POLICY, f"the server proposes {key} = {value}; this client's policy accepts {accepted}"
    )

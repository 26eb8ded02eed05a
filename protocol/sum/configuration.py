"""What all members of a federation compute together, and what a client is willing to be part of.

The server proposes a Configuration in its Welcome; its hash enters every signature and every mask, so that members
with different configurations cannot sum up. A client compares it with its own Policy and refuses by name what lies
below: the server can neither downgrade the mode, nor shrink the cohort, nor lower the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code, RemoteProtocolError
from tacit.protocol.core.messages import BODY_LIMIT, Hash
from tacit.protocol.core.primitives import Label, digest
from tacit.protocol.core.roster import ROSTER_CHANGES, RosterChange
from tacit.secagg.graph import GraphParameters, choose_parameters
from tacit.secagg.packing import Packing, WeightForm

Mode = Literal["active", "semi-honest", "none"]
GraphChoice = Literal["auto", "complete", "regular"]
Scheme = Literal["fedavg", "fedsgd", "statistics"]
InitialModel = Literal["clients", "server"]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server chooses for a sum, within what policies accept; the rest of a Configuration follows."""

    mode: Mode
    graph: GraphChoice
    corrupt: Annotated[float, Meta(ge=0, lt=1)]
    """Fraction of members that may collude with the server."""
    dropout: Annotated[float, Meta(ge=0, lt=1)]
    """Fraction of members that may drop out."""
    threshold: Annotated[int, Meta(ge=0, le=10_000)]
    """Shares that reconstruct a secret; 0 means computed from the cohort of the round."""
    clients: Annotated[int, Meta(ge=1, le=10_000)]
    """Most members of a cohort; the ring is sized for them."""
    clip: Annotated[float, Meta(gt=0)]
    value_bits: Annotated[int, Meta(ge=2, le=32)]
    max_weight: Annotated[int, Meta(ge=1, le=2**31)]
    train_seconds: Seconds
    phase_seconds: Seconds

    @property
    def secure(self) -> bool:
        """Whether the server sees sums only."""
        return self.mode != "none"

    @property
    def active(self) -> bool:
        """Whether a lying server is defended against: signatures and the consistency check."""
        return self.mode == "active"

    def packing_of(
        self, *, form: WeightForm, tensor_sizes: tuple[int, ...], metrics: tuple[str, ...], ring_bits: int | None
    ) -> Packing:
        """How an update of these tensors becomes ring words, of as many bits as it takes where ring_bits is None.

        ValueError if the sum could overflow.
        """
        return Packing(
            clients=self.clients,
            clip=self.clip,
            value_bits=self.value_bits,
            max_weight=self.max_weight,
            form=form,
            tensor_sizes=tensor_sizes,
            metrics=metrics,
            ring_bits=ring_bits,
        )

    def parameters(self, cohort: int) -> GraphParameters:
        """Neighbours and threshold for a cohort of this size. ValueError where none exist.

        Without secure aggregation nobody holds shares, and one vector is a sum.
        """
        if not self.secure:
            return GraphParameters(cohort - 1, 1)
        found = choose_parameters(
            cohort, corrupt=self.corrupt, dropout=self.dropout, active=self.active, graph=self.graph
        )
        return GraphParameters(found.neighbours, self.threshold or found.threshold)

    def regular(self, cohort: int) -> bool:
        """Whether shares go to fewer than all others."""
        return self.parameters(cohort).neighbours < cohort - 1

    def fewest_survivors(self, cohort: int) -> int:
        """Clients that are left when as many drop out, or are left out with their groups, as are tolerated."""
        return fewest_survivors(cohort, self.dropout)

    @property
    def smallest_group(self) -> int:
        """Clients that a group must have: all that may collude could be in it, and two others hide each other."""
        return math.floor(Fraction(str(self.corrupt)) * self.clients) + 2

    def check_groups(self, sizes: Sequence[int], cohort: int, smallest_cohort: int) -> None:
        """ValueError for groups in which a client is not hidden, or with which nobody could be lost.

        sizes: of the groups of the roster, if it has any; cohort: clients in the largest cohort of them.
        """
        if not sizes or not self.secure:
            return
        if min(sizes) < self.smallest_group:
            raise ValueError(
                f"a group of {min(sizes)} clients, of {self.clients} of whom {self.smallest_group - 2} may collude "
                f"(corrupt = {self.corrupt}): a group needs at least {self.smallest_group}"
            )
        left, tolerated = cohort - max(sizes), cohort - self.fewest_survivors(cohort)
        fewest = max(smallest_cohort, cohort - tolerated)
        if left < fewest:
            raise ValueError(
                f"one client that is lost takes its group of {max(sizes)} out of the sum of {cohort} clients, and "
                f"{max(left, 0)} are left, where {fewest} are needed (dropout = {self.dropout} of {cohort} tolerates "
                f"{tolerated}, smallest_cohort = {smallest_cohort}): take more clients, smaller groups (corrupt = "
                f"{self.corrupt} needs at least {self.smallest_group}), or a larger dropout"
            )
        if cohort - 1 < (threshold := self.parameters(cohort).threshold):
            raise ValueError(f"when one of {cohort} clients is lost, {cohort - 1} answer, and {threshold} must")


class Configuration(Proposal, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that must be equal for all members, in canonical form."""

    scheme: Scheme
    min_contributors: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Contributors below which a coordinate of the sum must not be used; 0 where all contribute to every coordinate."""
    group_key: bool = False
    """Whether the clients agree on a key that the server does not learn."""
    rekey_every: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Rounds after which a group key is renewed; 0: only when the membership changes."""
    encrypted: bool = False
    """Whether the server holds the model encrypted under the group key."""
    initial_model: InitialModel = "server"
    """Who makes the first model, where the clients encrypt it."""
    single_vectors: bool = False
    """Whether the server works with the update of every client, not with their sum alone."""
    ring_bits: Annotated[int, Meta(ge=8, le=64)]
    form: WeightForm
    tensor_sizes: Annotated[tuple[Annotated[int, Meta(ge=1, le=2**40)], ...], Meta(max_length=100_000)]
    metrics: Annotated[tuple[Annotated[str, Meta(max_length=32)], ...], Meta(max_length=32)]
    layout: Hash
    """Hash of the names and shapes of the model's tensors."""
    task: Annotated[bytes, Meta(max_length=BODY_LIMIT)]
    """What the members compute, opaque to the protocol: model, training settings and protection."""

    def __post_init__(self) -> None:
        if self.encrypted and not self.group_key:
            raise ValueError("an encrypted model needs a group key")
        if self.single_vectors and self.secure:
            raise ValueError(
                "the server is to work with the update of every client, which secure aggregation hides from it; mode "
                "must be none"
            )

    def packing(self) -> Packing:
        """How a client's update becomes ring words. ValueError if the sum could overflow."""
        return self.packing_of(
            form=self.form, tensor_sizes=self.tensor_sizes, metrics=self.metrics, ring_bits=self.ring_bits
        )

    def hash(self) -> bytes:
        """32 bytes that every signature and mask of the federation depends on."""
        return digest(Label.CONFIGURATION, encode_structure(self))


def fewest_survivors(cohort: int, dropout: float) -> int:
    """Of so many clients, those that are left when the fraction `dropout` is lost, rounded down."""
    return cohort - math.floor(Fraction(str(dropout)) * cohort)


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[policy]: what a client accepts. A server's proposal below it is refused by name."""

    modes: Annotated[
        tuple[Mode, ...],
        Meta(
            description="Accepted aggregation.mode; no server talks a client out of it.",
            min_length=1,
        ),
    ] = ("active",)
    schemes: Annotated[
        tuple[Scheme, ...],
        Meta(
            description='Accepted training.algorithm; "statistics": a first sum, of pixels (data.statistics = "sum").',
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
        int, Meta(description="Fewest clients among whose sum a client hides its update.", ge=2, le=10_000)
    ] = 3
    threshold_floor: Annotated[
        int,
        Meta(
            description="Lowest accepted threshold, where that is more than the rule asks for the cohort of the round: "
            "floor(2n/3)+1 in active mode, else floor(n/2)+1 or more, for n clients in a complete graph.",
            ge=0,
            le=10_000,
        ),
    ] = 0
    least_corrupt: Annotated[
        float, Meta(description="Smallest accepted aggregation.corrupt, the tolerated fraction.", ge=0.0, lt=1.0)
    ] = 0.05
    accept_known_plaintext: Annotated[
        bool,
        Meta(
            description="Accept, without secure aggregation, that the server makes the first model that the clients "
            "encrypt, and so can compute their key."
        ),
    ] = False
    largest_clip: Annotated[float, Meta(description="Largest accepted aggregation.clip.", gt=0.0, le=1e6)] = 1.0
    roster_changes: Annotated[
        tuple[RosterChange, ...],
        Meta(
            description="What the operator of the roster may do to other members while the federation goes on, without "
            "asking this client's owner; [] refuses every change of members."
        ),
    ] = ROSTER_CHANGES

    def check(self, configuration: Configuration) -> None:
        """Refuse, before any round, a configuration below this policy."""
        if configuration.mode not in self.modes:
            raise below_policy("mode", configuration.mode, f"one of {', '.join(self.modes)}")
        if configuration.scheme not in self.schemes:
            raise below_policy("scheme", configuration.scheme, f"one of {', '.join(self.schemes)}")
        counted = configuration.form is WeightForm.COORDINATE or configuration.min_contributors > 0
        if counted and configuration.min_contributors < self.least_contributors:
            raise below_policy(
                "min_contributors", configuration.min_contributors, f"at least {self.least_contributors}"
            )
        known = configuration.encrypted and configuration.initial_model == "server" and not configuration.secure
        if known and not self.accept_known_plaintext:
            raise below_policy("initial_model", configuration.initial_model, "clients, without secure aggregation")
        if configuration.clip > self.largest_clip:
            raise below_policy("clip", configuration.clip, f"at most {self.largest_clip}")
        if configuration.secure and configuration.corrupt < self.least_corrupt:
            raise below_policy("corrupt", configuration.corrupt, f"at least {self.least_corrupt}")
        try:
            configuration.packing()
        except ValueError as error:
            raise RemoteProtocolError(Code.POLICY, f"the configuration has no room for its sum: {error}") from None

    def cost(self, configuration: Configuration) -> float:
        """What a vector costs of the budget that this policy has for the life of the client's keys."""
        return 0.0

    def check_budget(self, spent: float) -> None:
        """Refuse a round with whose vector so much is spent, where that is beyond the budget."""

    def check_changes(self, changes: Sequence[RosterChange]) -> None:
        """Refuse a later version of the roster in which members were changed like this."""
        for change in changes:
            if change not in self.roster_changes:
                raise RemoteProtocolError(
                    Code.POLICY,
                    f"the operator of the roster did {change} members; this client's policy accepts "
                    f"{', '.join(self.roster_changes) or 'no change'}: where its owner agrees, give it the new roster",
                )

    def check_groups(self, configuration: Configuration, sizes: Sequence[int]) -> None:
        """Refuse a configuration for which one of the groups of the roster, of these sizes, is too small."""
        if configuration.secure and min(sizes, default=configuration.smallest_group) < configuration.smallest_group:
            raise RemoteProtocolError(
                Code.POLICY,
                f"the roster has a group of {min(sizes)} clients; with corrupt = {configuration.corrupt} of "
                f"{configuration.clients} clients a group needs at least {configuration.smallest_group}",
            )

    def check_cohort(self, configuration: Configuration, cohort: int) -> GraphParameters:
        """Refuse a round whose cohort or threshold is below this policy; returns its parameters."""
        if not self.smallest_cohort <= cohort <= configuration.clients:
            raise below_policy("cohort", cohort, f"{self.smallest_cohort} to {configuration.clients} clients")
        if not configuration.secure:
            return configuration.parameters(cohort)
        try:
            parameters = configuration.parameters(cohort)
            rule = choose_parameters(
                cohort,
                corrupt=configuration.corrupt,
                dropout=configuration.dropout,
                active=configuration.active,
                graph=configuration.graph,
            )
        except ValueError as error:
            raise RemoteProtocolError(Code.POLICY, str(error)) from None
        floor = max(self.threshold_floor, rule.threshold)
        # In a complete graph a client's own share counts too.
        most = parameters.neighbours if parameters.neighbours < cohort - 1 else cohort
        if not max(floor, 2) <= parameters.threshold <= most:
            raise below_policy("threshold", parameters.threshold, f"{floor} to {most} of {cohort} clients")
        return parameters


def below_policy(key: str, value: object, accepted: str) -> RemoteProtocolError:
    """The refusal of a proposal, by name."""
    return RemoteProtocolError(
        Code.POLICY, f"the server proposes {key} = {value}; this client's policy accepts {accepted}"
    )

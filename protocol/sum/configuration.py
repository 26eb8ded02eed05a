"""Configuration of a federation: the common computation of all members.

The server proposes it in its Welcome; its hash enters every signature and every mask, so that members with different
configurations cannot sum up. Each client judges it by its own policy (policy.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tacit.protocol.core.blob import NO_BLOB, NO_STATE, StateLayout
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.messages import BODY_LIMIT, Blob, Hash
from tacit.protocol.core.primitives import digest
from tacit.protocol.sum.states import SumLabel
from tacit.secagg.graph import GraphParameters, choose_parameters
from tacit.secagg.packing import Packing, WeightForm
from tacit.secagg.plain import WORD_BITS, AnyPacking, PlainPacking

Mode = Literal["active", "semi-honest", "none"]
GraphChoice = Literal["auto", "complete", "regular"]
Scheme = Literal["fedavg", "fedsgd", "statistics", "adaptation"]
InitialModel = Literal["clients", "server"]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Proposal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's choices for a sum, within the clients' policies; the rest of a Configuration follows."""

    mode: Mode
    graph: GraphChoice
    colluders: Annotated[int, Meta(ge=0, le=10_000)]
    """Clients of the roster that may collude with the server: all of them may be in any cohort."""
    dropout: Annotated[float, Meta(ge=0, lt=1)]
    """Fraction of a cohort that may drop out."""
    threshold: Annotated[int, Meta(ge=0, le=10_000)]
    """Shares that reconstruct a secret; 0: computed from the cohort of the round."""
    clients: Annotated[int, Meta(ge=1, le=10_000)]
    """Most members of a cohort; the ring is sized for them."""
    clip: Annotated[float, Meta(gt=0)]
    """Clipping bound of a value. Without secure aggregation it has no effect, and neither has value_bits."""
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
        """Whether to defend against a malicious server: signatures and the consistency check."""
        return self.mode == "active"

    def packing_of(
        self, *, form: WeightForm, tensor_sizes: tuple[int, ...], metrics: tuple[str, ...], ring_bits: int | None
    ) -> AnyPacking:
        """Packing of an update of these tensors into words, of the smallest sufficient width if ring_bits is None.

        ValueError if the sum could overflow, or without secure aggregation for words other than those of float32."""
        given: Any = {
            "clients": self.clients,
            "max_weight": self.max_weight,
            "form": form,
            "tensor_sizes": tensor_sizes,
            "metrics": metrics,
        }
        if self.secure:
            return Packing(**given, clip=self.clip, value_bits=self.value_bits, ring_bits=ring_bits)
        if ring_bits not in (None, WORD_BITS):
            raise ValueError(f"ring_bits = {ring_bits}: without secure aggregation a word has {WORD_BITS} bits")
        return PlainPacking(**given)

    def dropouts(self, cohort: int) -> int:
        """Clients of a cohort of this size that may be lost, or excluded with their groups."""
        return share(self.dropout, cohort)

    def parameters(self, cohort: int) -> GraphParameters:
        """Neighbours and threshold for a cohort of this size. ValueError if there are none.

        Without secure aggregation nobody holds shares, and one vector is a sum."""
        if not self.secure:
            return GraphParameters(cohort - 1, 1)
        found = choose_parameters(
            cohort,
            colluders=self.colluders,
            dropouts=self.dropouts(cohort),
            active=self.active,
            graph=self.graph,
        )
        return GraphParameters(found.neighbours, self.threshold or found.threshold)

    def check_dropouts(self, *, grouped: bool) -> None:
        """ValueError if the largest cohort could not lose as many clients as the fraction `dropout` permits.

        grouped: whether the roster has groups: of those excluded from a sum with their groups one need not answer."""
        if not self.secure:
            return
        clients, lost = self.clients, self.dropouts(self.clients)
        rule = msgspec.structs.replace(self, threshold=0).parameters(clients)
        answering = clients - (min(lost, 1) if grouped else lost)
        if rule.neighbours == clients - 1 and rule.threshold > answering:
            raise ValueError(
                f"of {clients} clients {lost} may be lost (dropout = {self.dropout}), and {rule.threshold} must answer "
                f"so that {self.colluders} may collude: take more clients, or lower `corrupt` or `dropout`"
            )

    @property
    def smallest_group(self) -> int:
        """Fewest clients of a cohort, a sum and a group: two of them do not collude, and hide each other."""
        return self.colluders + 2 if self.secure else 1

    def fewest_survivors(self, cohort: int) -> int:
        """Clients in the smallest sum over a cohort of this size that may be opened."""
        return max(cohort - self.dropouts(cohort), self.smallest_group)

    def check_groups(self, sizes: Sequence[int], cohort: int, smallest_cohort: int) -> None:
        """ValueError for groups that do not hide a client, or that permit no dropout.

        sizes: of the groups of the roster, if it has any; cohort: clients in the largest cohort of them."""
        if not sizes or not self.secure:
            return
        if min(sizes) < self.smallest_group:
            raise ValueError(
                f"a group of {min(sizes)} clients, of whom {self.colluders} may collude: a group needs at least "
                f"{self.smallest_group}"
            )
        left, fewest = cohort - max(sizes), max(smallest_cohort, self.fewest_survivors(cohort))
        if left < fewest:
            raise ValueError(
                f"one client that is lost takes its group of {max(sizes)} out of the sum of {cohort} clients, and "
                f"{max(left, 0)} are left, where {fewest} are needed (dropout = {self.dropout} of {cohort} tolerates "
                f"{self.dropouts(cohort)}, smallest_cohort = {smallest_cohort}): take more clients, smaller groups "
                f"(with {self.colluders} colluders they need at least {self.smallest_group}), or a larger dropout"
            )
        if cohort - 1 < (threshold := self.parameters(cohort).threshold):
            raise ValueError(f"when one of {cohort} clients is lost, {cohort - 1} answer, and {threshold} must")


class Configuration(Proposal, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings that must be equal for all members, in canonical form."""

    scheme: Scheme
    min_contributors: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Least contributors of a usable coordinate of the sum; 0 if all contribute to every coordinate."""
    group_key: bool = False
    """Whether the clients agree on a key that the server does not learn."""
    rekey_every: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Rounds after which a group key is renewed; 0: only when the membership changes."""
    encrypted: bool = False
    """Whether the server holds the model encrypted under the group key."""
    initial_model: InitialModel = "server"
    """Maker of the first model, if the clients encrypt it."""
    single_vectors: bool = False
    """Whether the server works with the update of every client, not with their sum alone."""
    spending: bool = False
    """Whether a round has a privacy cost, so that clients state the spending of their budgets."""
    ring_bits: Annotated[int, Meta(ge=8, le=64)]
    form: WeightForm
    tensor_sizes: Annotated[tuple[Annotated[int, Meta(ge=1, le=2**40)], ...], Meta(max_length=100_000)]
    metrics: Annotated[tuple[Annotated[str, Meta(max_length=32)], ...], Meta(max_length=32)]
    state: StateLayout = NO_STATE
    """Form of a round's initial state, such as a model; the summed vector has its own form."""
    layout: Hash = bytes(32)
    """Hash of the names, shapes and parts of the model's tensors; zeros if there are none."""
    fixed: Blob = NO_BLOB
    """Tensors that are neither trained nor averaged, under the label of fixed parts; empty: none."""
    task: Annotated[bytes, Meta(max_length=BODY_LIMIT)]
    """Computation of the members, opaque to the protocol: model, training settings and protection."""

    def __post_init__(self) -> None:
        if self.encrypted and not self.group_key:
            raise ValueError("an encrypted model needs a group key")
        if self.single_vectors and self.secure:
            raise ValueError(
                "the server is to work with the update of every client, which secure aggregation hides from it; mode "
                "must be none"
            )

    def packing(self) -> AnyPacking:
        """Packing of a client's update into words. ValueError if the sum could overflow."""
        return self.packing_of(
            form=self.form, tensor_sizes=self.tensor_sizes, metrics=self.metrics, ring_bits=self.ring_bits
        )

    def hash(self) -> bytes:
        """32 bytes that every signature and mask of the federation depends on."""
        return digest(SumLabel.CONFIGURATION, encode_structure(self))


@lru_cache(maxsize=256)
def share(fraction: float, clients: int) -> int:
    """A fraction of so many clients, rounded down, by the decimals of the fraction: 0.29 of 100 is 29, and not 28."""
    return math.floor(Fraction(str(fraction)) * clients)

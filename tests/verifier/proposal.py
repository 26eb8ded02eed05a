"""What follows from a configuration and a policy: docs/spec/session.md, *Policy*."""

from dataclasses import dataclass, field
from typing import Any

from aggregation import Terms
from constants import CONFIGURATION as CONFIGURATION_LABEL
from constants import Refused, require
from conversation import Roster
from messages import read_configuration
from parameters import Packing, PlainPacking, graph_of, parameters, whole
from primitives import digest
from transfer import state_size


@dataclass
class Policy:
    modes: list[str] = field(default_factory=lambda: ["active"])
    schemes: list[str] = field(default_factory=lambda: ["fedavg", "fedsgd", "statistics"])
    least_contributors: int = 1
    smallest_cohort: int = 3
    threshold_floor: int = 0
    least_corrupt: float = 0.33
    largest_dropout: float = 0.5
    largest_clip: float = 1.0
    largest_model: int = 1_000_000_000
    fixed_part: str = ""
    longest_train: float = 86_400.0
    longest_phase: float = 3_600.0
    roster_changes: list[str] = field(default_factory=lambda: ["add", "remove", "rotate", "regroup"])

    def check_configuration(self, found: dict[str, Any], clients: int, groups: list[int]) -> None:
        secure = found["mode"] != "none"
        counted = found["form"] == "coordinate" or found["min_contributors"] > 0
        accepted = (
            found["mode"] in self.modes
            and found["scheme"] in self.schemes
            and (not counted or found["min_contributors"] >= self.least_contributors)
            and (not secure or found["clip"] <= self.largest_clip)
            and (not secure or found["colluders"] >= whole(self.least_corrupt, clients))
            and (not secure or found["dropout"] <= self.largest_dropout)
            and found["clients"] >= self.fewest(found)
            and sum(found["tensor_sizes"]) <= self.largest_model
            and state_size(found) <= 4 * self.largest_model
            and found["fixed"]["size"] <= 4 * self.largest_model
            and self.fixed_part in ("", found["fixed"]["digest"].hex())
            and found["train_seconds"] <= self.longest_train
            and found["phase_seconds"] <= self.longest_phase
            and (not secure or all(size >= found["colluders"] + 2 for size in groups))
        )
        require(accepted, "POLICY")
        try:
            packing_of(found)
        except Refused:
            raise Refused("POLICY") from None
        if secure:
            self.check_dropouts(found, bool(groups))

    def check_dropouts(self, found: dict[str, Any], grouped: bool) -> None:
        n, lost = found["clients"], whole(found["dropout"], found["clients"])
        try:
            _, t = parameters_of(found, n)
        except Refused:
            raise Refused("POLICY") from None
        complete = graph_of(n, found["mode"], found["graph"]) == "complete"
        require(not complete or t <= n - (min(lost, 1) if grouped else lost), "POLICY")

    def fewest(self, found: dict[str, Any]) -> int:
        return self.smallest_cohort if found["mode"] == "none" else max(self.smallest_cohort, found["colluders"] + 2)

    def check_cohort(self, found: dict[str, Any], size: int) -> None:
        require(self.fewest(found) <= size <= found["clients"], "POLICY")
        if found["mode"] == "none":
            return
        try:
            neighbours, by_rule = parameters_of(found, size)
        except Refused:
            raise Refused("POLICY") from None
        floor = max(self.threshold_floor, by_rule)
        most = size if graph_of(size, found["mode"], found["graph"]) == "complete" else neighbours
        require(max(floor, 2) <= (found["threshold"] or by_rule) <= most, "POLICY")


def parameters_of(found: dict[str, Any], size: int) -> tuple[int, int]:
    dropouts = whole(found["dropout"], size)
    return parameters(size, found["colluders"], dropouts, found["mode"], found["graph"])


def packing_of(found: dict[str, Any]) -> Packing | PlainPacking:
    names = ("clients", "clip", "value_bits", "max_weight", "form", "tensor_sizes", "metrics", "ring_bits")
    given = {name: found[name] for name in names}
    if found["mode"] != "none":
        return Packing(**given)
    require(found["ring_bits"] == PlainPacking.ring_bits, "INVALID")
    return PlainPacking(**given)


def configuration_hash(encoded: bytes) -> bytes:
    return digest(CONFIGURATION_LABEL, encoded)


def terms_of(
    roster: Roster,
    session: bytes,
    round_number: int,
    encoded: bytes,
    model: bytes,
    cohort: list[str],
    smallest_cohort: int,
    group_key: bytes = b"",
) -> Terms:
    """What the sum of a round is about; INVALID if there are no parameters for this cohort."""
    found = read_configuration(encoded)
    size = len(cohort)
    if found["mode"] == "none":
        neighbours, threshold, graph = size - 1, 1, "complete"
    else:
        neighbours, threshold = parameters_of(found, size)
        threshold = found["threshold"] or threshold
        graph = graph_of(size, found["mode"], found["graph"])
    packing = packing_of(found)
    groups = [roster.group_of(name) for name in cohort if name in roster.group_numbers and found["mode"] != "none"]
    left = max(size - whole(found["dropout"], size), found["colluders"] + 2) if found["mode"] != "none" else 0
    return Terms(
        session=session,
        round=round_number,
        server=roster.server,
        cohort=cohort,
        signing_keys=[roster.signing_keys[name] for name in cohort],
        mode=found["mode"],
        graph=graph,
        neighbours=neighbours,
        threshold=threshold,
        ring_bits=packing.ring_bits,
        length=packing.length,
        roster=roster.hash,
        lineage=roster.lineage,
        spending=found["spending"],
        configuration=configuration_hash(encoded),
        model=model,
        train_seconds=found["train_seconds"],
        phase_seconds=found["phase_seconds"],
        fewest_survivors=max(smallest_cohort, left),
        group_key=group_key,
        plain=packing if isinstance(packing, PlainPacking) else None,
        groups=tuple({tuple(cohort.index(name) for name in group): None for group in groups}),
    )

"""The sections of an experiment file that say how a federation goes about it, less what it learns and protects.

Types and bounds are checked by msgspec; the rules that join several keys are those of the whole file (experiment.py).
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from tacit.protocol.sum.configuration import Mode

USUAL_CLIP: Final = 0.25
"""Largest absolute coordinate of an update where the experiment says nothing."""
UNKNOWN_WEIGHT: Final = 2000
"""Largest weight of one client where the experiment names none and nobody can compute it."""
LONGEST_SECONDS: Final = 86400.0

Seconds = Annotated[float, Meta(gt=0.0, le=LONGEST_SECONDS)]


class FederationSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[federation]: who takes part, and for how long."""

    clients: Annotated[int, Meta(description="Number of clients.", ge=2, le=1000)] = 5
    rounds: Annotated[int, Meta(description="Number of rounds of training and aggregation.", ge=1, le=100000)] = 10
    group_size: Annotated[
        int,
        Meta(
            description="Least clients in a group, whose members are in a sum all or none: so sums, compared with each "
            "other, tell of groups and not of clients. At least floor(corrupt * clients) + 2, and at most "
            "floor(dropout * clients). 0: no groups.",
            ge=0,
            le=1000,
        ),
    ] = 0
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None,
        Meta(
            description="Fixes what affects the model: split, initial weights, training and rounding. Keys, shares and "
            "masks always come from the operating system. Without this key every run draws a seed, and records it."
        ),
    ] = None


class Aggregation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[aggregation]: the secure sum."""

    mode: Annotated[
        Mode,
        Meta(
            description='What the server may do: "active", lie and collude with corrupt clients; "semi-honest", follow '
            'the protocol and look. "none" switches secure aggregation off: the server sees every update.'
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
            description='Who masks with whom: "complete", everybody; "regular", a random few; "auto", complete below '
            "20 clients and in active mode, else regular."
        ),
    ] = "auto"
    corrupt: Annotated[
        float, Meta(description="Tolerated fraction of clients that collude with the server.", ge=0.0, lt=1.0)
    ] = 0.33
    dropout: Annotated[
        float, Meta(description="Tolerated fraction of clients that are lost; sizes a regular graph.", ge=0.0, lt=1.0)
    ] = 0.33
    clip: Annotated[
        float,
        Meta(
            description="Largest absolute coordinate of an update; larger ones are cut and counted. 0 computes it: "
            "0.25, or as much as an update with the noise of its protection can have.",
            ge=0.0,
            le=1e6,
        ),
    ] = 0.0
    value_bits: Annotated[
        int, Meta(description="Bits of a quantised value, which is a coordinate times its weight.", ge=2, le=32)
    ] = 20
    max_weight: Annotated[
        int,
        Meta(
            description="Largest weight of one client: the number of its samples. 0: a simulation computes what its "
            "split needs; between hosts, where nobody knows the sizes of the others, it is 2000.",
            ge=0,
            le=2**31,
        ),
    ] = 0
    ring_bits: Annotated[
        int, Meta(description="Width of a word of the sum; 0 computes the whole bytes that are enough.", ge=0, le=64)
    ] = 0


class Deadlines(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[deadlines]: how long the server waits, in seconds."""

    join: Annotated[
        Seconds,
        Meta(description="Seconds for all clients to connect; in a simulation, for another one to connect."),
    ] = 60.0
    train: Annotated[Seconds, Meta(description="Seconds for a client to train in one round.")] = 600.0
    phase: Annotated[Seconds, Meta(description="Seconds for each phase of the protocol after training.")] = 60.0
    grace: Annotated[Seconds, Meta(description="Seconds for a lost client to reconnect.")] = 10.0


class Simulation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """[simulate]: how a simulation spreads over its machine."""

    workers: Annotated[
        int,
        Meta(
            description="Processes that host all clients, which take turns in them; the model is the same, bit for "
            "bit. 0: a process for every client, or, where there is not memory for that, as many workers as cores.",
            ge=0,
            le=1000,
        ),
    ] = 0

"""The section [adapter] of an experiment file: what is trained beside a frozen transformer. Loads no torch.

`kind` chooses one of the structs below; each has the keys of its own kind and refuses others.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class ParallelConfiguration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="parallel"
):
    """[adapter] of kind "parallel": a low-rank adapter beside every block, and the head."""

    rank: Annotated[
        int, Meta(description="Values to which an adapter reduces the channels, and the tokens.", ge=1, le=1024)
    ] = 8
    scale: Annotated[
        float,
        Meta(
            description="Factor of every adapter at the beginning; it is trained. What it multiplies begins at zero, "
            "so that a scale of zero would stay there.",
            gt=0.0,
            le=100.0,
        ),
    ] = 1.0
    initialisation: Annotated[
        Literal["kaiming", "xavier"],
        Meta(
            description='Random weights of the reductions, uniform with variance 2 / inputs ("kaiming") or '
            '2 / (inputs + outputs) ("xavier").'
        ),
    ] = "kaiming"


class LinearProbeConfiguration(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="linear-probe"
):
    """[adapter] of kind "linear-probe": the head alone."""


AdapterConfiguration = ParallelConfiguration | LinearProbeConfiguration
"""What [adapter] is decoded as; its key `kind` tells which, and is needed."""

"""What the passes of a session compute: one thing for all of them, which both owners derive from its terms.

Here it is what a model says of images; other protocols have passes of their own, and take the owners as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.passes import Course
from tacit.parties.inference.private_model import public_of
from tacit.parties.inference.stages import Carried, stages
from tacit.protocol.inference.messages import Terms


@dataclass(frozen=True)
class PassPlan:
    """For one owner."""

    public: PublicModel
    course: Course
    classes: int
    """That are told apart."""
    begun: Callable[[torch.Tensor], Carried] = Carried
    """What a pass begins with, from this owner's share of its images."""


Planned = Callable[[Terms], PassPlan]
"""ValueError for terms whose parts do not fit."""


def inference_plan(terms: Terms) -> PassPlan:
    """A model, and what it says of images; a Planned."""
    return of_model(public_of(terms), terms)


def of_model(public: PublicModel, terms: Terms) -> PassPlan:
    """The same at the model owner, who has said what is public."""
    passed = stages(public, known=terms.input == "known", results=terms.results)
    return PassPlan(public, lambda number: passed, terms.sizes.classes)

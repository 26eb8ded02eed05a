"""INSECURE: private inference whose data owner knows the input of every block.

The embedding and every block disclose the residual stream to the data owner: its share is then the stream itself, and
the model owner's is zero. Terms and messages are those of private inference; the simulation configures both owners for
the additional rounds of their passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from tacit.models.friendly.transformer import FriendlyTransformer
from tacit.parties.inference.data_owner import SessionKind
from tacit.parties.inference.material import AnyBlockRequest
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.model_owner import ModelOwnerParty
from tacit.parties.inference.operations import DATA, FixedLinear, Party, Program
from tacit.parties.inference.passes import PassPlan
from tacit.parties.inference.private_model import PrivateModel, public_of
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import Carried, PassStage, Run, stages
from tacit.protocol.inference.data_owner import InferenceDataOwner
from tacit.protocol.inference.messages import Terms
from tacit.protocol.inference.model_owner import InferenceModelOwner
from tacit.protocol.inference.schedule import LOGITS, STREAM, Results, Round, Sizes, byte_width, pass_rounds


def check_disclosable(model: FriendlyTransformer) -> None:
    """Raise ValueError for a model whose stages do not end with the rounds after which outputs are disclosed."""
    if model.norm_pre is not None or model.pooling == "attention":
        raise ValueError(
            "--input known: models with a LayerNorm before the blocks, or an attention pool, are not disclosed; leave "
            "it out"
        )


def known_rounds(sizes: Sizes, images: int, results: Results = LOGITS) -> tuple[Round, ...]:
    disclosed = Round("result", byte_width(STREAM) * images * sizes.tokens * sizes.width, 0)
    found: list[Round] = []
    for each in pass_rounds(sizes, images, results=results):
        found += [each, disclosed] if each.operation in ("embedding", "fc2") else [each]
    return tuple(found)


@dataclass(frozen=True)
class _Disclosing:
    inner: PassStage

    @property
    def name(self) -> str:
        return self.inner.name

    def requests(self, images: int, numbers: Mapping[str, int]) -> tuple[AnyBlockRequest, ...]:
        return self.inner.requests(images, numbers)

    def prepared(self, party: Party, images: int, layers: Mapping[str, FixedLinear]) -> Run:
        computed = self.inner.prepared(party, images, layers)

        def run(carried: Carried) -> Program[Carried]:
            found = yield from computed(carried)
            other = yield from party.tell("result", (found.share, STREAM), to=DATA)
            stream = torch.zeros_like(found.share) if other is None else signed(found.share + other, STREAM)
            return replace(found, share=stream)

        return run


def known_plan(public: PublicModel, terms: Terms) -> PassPlan:
    *disclosed, head = stages(public, results=terms.results)
    passed: tuple[PassStage, ...] = (*map(_Disclosing, disclosed), head)
    return PassPlan(public, lambda number: passed, terms.sizes.classes)


class _DataOwner(InferenceDataOwner):
    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        terms = self.agreed.terms
        return known_rounds(terms.sizes, images, terms.results)


class _ModelOwner(InferenceModelOwner):
    def _rounds_of(self, images: int) -> tuple[Round, ...]:
        terms = self.agreed.terms
        return known_rounds(terms.sizes, images, terms.results)


class KnownSession(SessionKind):
    MACHINE: ClassVar[type[InferenceDataOwner]] = _DataOwner

    def __init__(self) -> None:
        super().__init__(lambda terms: known_plan(public_of(terms), terms))


class KnownInputParty(ModelOwnerParty):
    MACHINE: ClassVar[type[InferenceModelOwner]] = _ModelOwner

    def _planned(self, terms: Terms, model: PrivateModel) -> PassPlan:
        return known_plan(model.public, terms)

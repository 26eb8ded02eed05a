"""FedSplit (Gu et al. 2021): the first part of the model is private to each client (models/layers.py).

It starts as that of the server's first model, and then is the result of the client's last training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from tacit.models import split
from tacit.models.configuration import TrainingConfiguration
from tacit.models.layout import Flat
from tacit.parties.protections.protection import WholeTensors, check_trained
from tacit.parties.protections.sides import Basis, ClientSide, KeepingSide, Memory, Protected, Trained, Work
from tacit.protocol.sum.configuration import Proposal

if TYPE_CHECKING:
    from torch import nn


class Split(WholeTensors, frozen=True, kw_only=True):
    personal: ClassVar[bool] = True
    agreed_weights: ClassVar[bool] = True
    remembers: ClassVar[bool] = True

    split: Annotated[
        str,
        Meta(description='Name of the first module that is shared; "" takes the middle of the model.', max_length=128),
    ] = ""

    def check(self, terms: Proposal, training: TrainingConfiguration) -> None:
        super().check(terms, training)
        check_trained(self.scheme, training)

    def fits(self, model: nn.Module, work: Work) -> None:
        self.private(model, work)

    def private(self, model: nn.Module, work: Work) -> frozenset[str]:
        """Names of the private tensors. ValueError if nothing distinguishes them from others."""
        return split.extractor(work.layout(model), work.model, self.split)


class FedSplit(Split, frozen=True, kw_only=True, tag="fedsplit"):
    """Clients share the rest of the model."""

    about: ClassVar[str] = "The first half of the model never leaves a client, which has its own."

    def client(self, basis: Basis) -> ClientSide:
        return SplitClient(basis, self.private(basis.model, basis.work))


class SplitClient(KeepingSide):
    """Trains its private part further in every round."""

    def merge(self, model: Flat) -> Flat:
        merged = model.copy()
        parts = self.basis.layout.split(merged)
        for name in self.kept & self.memory.keys():
            parts[name][...] = self.memory[name]
        return merged

    def protect(self, trained: Trained) -> Protected:
        layout = self.basis.layout
        now = layout.split(layout.flatten(self.basis.model))
        self.memory = {**self.memory, **{name: now[name].copy() for name in self.kept}}
        return super().protect(trained)

    def form(self) -> Memory:
        parts = self.basis.layout.split(self.basis.layout.flatten(self.basis.model))
        return {**super().form(), **{name: parts[name] for name in self.kept}}

"""The position embedding is never updated (Lu et al. 2022): without its gradient nobody can solve for the patches."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tacit.models.model_encryption import POSITION_EMBEDDING
from tacit.parties.protections.protection import WholeTensors
from tacit.parties.protections.sides import Basis, ClientSide, KeepingSide, Work

if TYPE_CHECKING:
    from torch import nn


class FixedPosition(WholeTensors, frozen=True, kw_only=True, tag="fixed-position"):
    """Clients keep back the position embedding."""

    about: ClassVar[str] = "The position embedding is never updated."
    works_encrypted: ClassVar[bool] = True
    agreed_weights: ClassVar[bool] = True

    def fits(self, model: nn.Module, work: Work) -> None:
        if POSITION_EMBEDDING not in {entry.name for entry in work.layout(model).entries}:
            raise ValueError(
                f'protection.scheme = "{self.scheme}": this model has no position embedding called '
                f'"{POSITION_EMBEDDING}" that could be fixed'
            )

    def client(self, basis: Basis) -> ClientSide:
        return KeepingSide(basis, frozenset({POSITION_EMBEDDING}))

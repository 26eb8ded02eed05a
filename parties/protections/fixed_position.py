"""The position embedding is never updated (Lu et al. 2022): without its gradient nobody can solve for the patches."""

from __future__ import annotations

from typing import ClassVar

from tacit.models.model_encryption import POSITION_EMBEDDING
from tacit.parties.protections.protection import Scheme
from tacit.parties.protections.sides import Basis, ClientSide, Protected, ServerSide, Trained
from tacit.parties.protections.whole_tensors import WholeTensors, without


class FixedPosition(WholeTensors, frozen=True, kw_only=True, tag="fixed-position"):
    """Clients keep back the position embedding."""

    about: ClassVar[str] = "The position embedding is never updated."
    works_encrypted: ClassVar[bool] = True

    def client(self, basis: Basis) -> ClientSide:
        _check(self, basis)
        return _Client(basis)

    def server(self, basis: Basis) -> ServerSide:
        _check(self, basis)
        return ServerSide(basis)


class _Client(ClientSide):
    def protect(self, trained: Trained) -> Protected:
        return without(trained, self.basis.layout, {POSITION_EMBEDDING})


def _check(protection: Scheme, basis: Basis) -> None:
    if POSITION_EMBEDDING not in {entry.name for entry in basis.layout.entries}:
        raise ValueError(
            f'protection.scheme = "{protection.scheme}": this model has no position embedding called '
            f'"{POSITION_EMBEDDING}" that could be fixed'
        )

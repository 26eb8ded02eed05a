"""The protocols of private inference that a model owner and a data owner may run: one object for each.

The dealer's work is the same for all of them, so it has no choice. Modules are imported only when a protocol runs, so
that files and commands are checked without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Literal

if TYPE_CHECKING:
    from tacit.parties.inference.data_owner import SessionKind
    from tacit.parties.inference.model_owner import ModelOwnerParty
    from tacit.parties.inference.private_model import OwnedModel
    from tacit.parties.runs.served import ServedModel

ProtocolName = Literal["tacit", "crypten"]


class InferenceProtocol:
    name: ClassVar[ProtocolName] = "tacit"
    claims: ClassVar[tuple[str, ...]] = ()
    """Deviations from Tacit's protocol, for the reader of a result."""

    def refusal(self, name: str, value: object) -> str:
        """Reason why a setting (device, labels, input, model, adaptation) cannot have this value; empty if it can."""
        return ""

    def check_served(self, served: ServedModel) -> None:
        """ValueError for a model that the protocol evidently does not support, and for a missing package."""

    def prepared(self, served: ServedModel, salt: bytes | None) -> OwnedModel:
        """Prepare the model for its owner's computation. ValueError for a model that the protocol does not support."""
        return served.prepared(salt=salt)

    def party(self) -> type[ModelOwnerParty]:
        from tacit.parties.inference.model_owner import ModelOwnerParty

        return ModelOwnerParty

    def session(self) -> SessionKind:
        from tacit.parties.inference.data_owner import SessionKind

        return SessionKind()


class CryptenProtocol(InferenceProtocol):
    name = "crypten"
    claims = (
        "protocol crypten: CrypTen's tensors computed the student's polynomials on shares, with correlated randomness "
        "and truncations by the dealer",
        "there is no range check: an image beyond the student's intervals has a wrong answer, and neither owner learns "
        "that from the protocol",
    )

    def refusal(self, name: str, value: object) -> str:
        only, reason = _CRYPTEN_HAS[name]
        return "" if value == only else f'the protocol "{self.name}" {reason}'

    def check_served(self, served: ServedModel) -> None:
        self.prepared(served, None)

    def prepared(self, served: ServedModel, salt: bytes | None) -> OwnedModel:
        from tacit.parties.crypten import compatibility as compatibility  # First of all: is CrypTen installed?
        from tacit.parties.crypten.student import prepared_student

        return prepared_student(served.transformer, served.interface, salt=salt)

    def party(self) -> type[ModelOwnerParty]:
        from tacit.parties.crypten.passes import CryptenModelOwner

        return CryptenModelOwner

    def session(self) -> SessionKind:
        from tacit.parties.crypten.passes import CryptenSession

        return CryptenSession()


_CRYPTEN_HAS: Final[Mapping[str, tuple[object, str]]] = {
    "device": ("cpu", "computes on the processor alone"),
    "labels": (0, "reveals logits, and never labels alone, which need comparisons"),
    "input": ("shared", "reveals the input of no block"),
    "model": ("", "computes a student of `tacit distill`, and no checkpoint"),
    "adaptation": (None, "answers for a model, and nobody learns beside it"),
}
"""The only supported value of a setting, and the reason."""

PROTOCOLS: Final[Mapping[str, InferenceProtocol]] = {
    each.name: each for each in (InferenceProtocol(), CryptenProtocol())
}

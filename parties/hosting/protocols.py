"""The protocols of private inference that a model owner and a data owner may run: one object for each.

What a dealer deals is the same for all of them: it needs no choice. Nothing is loaded before a protocol runs, so that
files and commands are judged without torch.
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
    """What differs from it, for the reader of a result."""

    def refusal(self, name: str, value: object) -> str:
        """Why a setting (device, labels, input, model, adaptation) cannot have this value; empty if it can."""
        return ""

    def check_served(self, served: ServedModel) -> None:
        """ValueError for a model that the protocol does not compute, as far as that shows at once, and where something
        is not installed."""

    def prepared(self, served: ServedModel, salt: bytes | None) -> OwnedModel:
        """The model as its owner computes with it. ValueError for one that the protocol does not compute."""
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
"""The only value of a setting, and why there is no other."""

PROTOCOLS: Final[Mapping[str, InferenceProtocol]] = {
    each.name: each for each in (InferenceProtocol(), CryptenProtocol())
}

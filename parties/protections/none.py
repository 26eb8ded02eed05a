"""No protection: a client sends its whole update."""

from __future__ import annotations

from typing import ClassVar

from tacit.parties.protections.protection import Scheme


class NoProtection(Scheme, frozen=True, tag="none"):
    """The whole update, weighted by the number of samples."""

    about: ClassVar[str] = "A client sends its whole update."
    works_encrypted: ClassVar[bool] = True

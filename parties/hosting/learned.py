"""What a data owner has learned beside a model that it does not get, on its disk: what it goes by, and the last common
adapters. It learns on from there, and asks the model about images with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from tacit.models.adapters.parallel import AdapterParameters
from tacit.models.file_system import FILES
from tacit.parties.adaptation import adapters_file
from tacit.parties.adaptation.predicting import PredictionSession
from tacit.parties.adaptation.public import PublicLearning, learning_of
from tacit.parties.hosting.folder import PartyFolder
from tacit.protocol.adaptation.data_owner import adaptation_terms
from tacit.protocol.inference.messages import Terms


class KeptLearning(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a data owner goes by."""

    terms: bytes
    """The digest of the model owner's terms."""
    weights: bytes
    """The commitment to the model."""
    learning: PublicLearning


def read_kept(path: Path) -> KeptLearning | None:
    """What a data owner goes by, if that is known. ValueError for a file that does not say it."""
    try:
        return msgspec.msgpack.decode(FILES.read(path), type=KeptLearning)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"{path} does not hold what is public of a learning ({error}): restore it, or name another `directory`"
        ) from None


def kept_adapters(path: Path, learning: PublicLearning) -> tuple[AdapterParameters, int] | None:
    """The last common ones, and their round, if there are any. ValueError for a file that holds others."""
    try:
        return adapters_file.load(path, learning.initial())
    except FileNotFoundError:
        return None


@dataclass(frozen=True, repr=False)
class Learned:
    """Made by `read_learned`."""

    kept: KeptLearning
    parameters: AdapterParameters
    round: int
    """After which they are the common ones."""
    _path: Path

    @property
    def weights(self) -> str:
        """The commitment to the model beside which it was learned, in hexadecimal digits."""
        return self.kept.weights.hex()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, in the order of the head."""
        return self.kept.learning.names

    def session(self) -> PredictionSession:
        """In which the model owner's model is asked with them."""
        return PredictionSession(self.parameters)

    def named(self, images: str) -> str:
        """A name for images that are asked about with them, of one for the images: 32 hexadecimal digits."""
        return sha256(images.encode() + FILES.read(self._path)).hexdigest()[:32]

    def check(self, terms: Terms) -> None:
        """ValueError if these are of another learning."""
        offered = learning_of(adaptation_terms(terms))
        if offered.names != self.classes:
            raise ValueError(
                f"the model owner has the classes {', '.join(offered.names)}, and here are {', '.join(self.classes)}; "
                f"{self.misfit}"
            )
        if offered != self.kept.learning:
            raise ValueError(f"the model owner goes by another learning; {self.misfit}")

    @property
    def misfit(self) -> str:
        """What is wrong where the model owner offers something else, and the remedy."""
        return f"{self._path} is of another learning: name the `directory` in which this one was learned"


def read_learned(folder: PartyFolder) -> Learned:
    """What there is in the folder of a data owner. ValueError for nothing, and for what does not belong together."""
    kept = read_kept(folder.learning)
    found = None if kept is None else kept_adapters(folder.adapters, kept.learning)
    if kept is None or found is None:
        missing = folder.learning if kept is None else folder.adapters
        raise ValueError(f"{missing} is missing: nothing was learned here; name the `directory` of who has learned")
    return Learned(kept, *found, folder.adapters)

"""What no `repr` shows, hence no log and no traceback: secrets, models, updates, and what is long."""

import dataclasses
import pkgutil
from importlib import import_module

from tacit.protocol import group_key, session
from tacit.protocol import sum as secure_sum
from tests.cases import cases

HIDDEN = {
    "tacit.protocol.group_key": {
        "GroupKey.key",
        "KeyReady.model",
        "LastModel.model",
        "Reencrypt.model",
        "_AgreementData.model",
        "_CommitData.contribution",
        "_ContributionData.contribution",
        "_ContributionData.key",
    },
    "tacit.protocol.session": {
        "FixedPart.data",
        "Model.data",
        "NewModel.model",
        "RoundDone.vectors",
        "SumResult.values",
        "Train.model",
        "_Round.data",
    },
    "tacit.protocol.sum": {
        "Summed.vectors",
        "_AdvertData.vector",
        "_MaskingData.given",
        "_MaskingData.held",
        "_MaskingData.masks",
        "_MaskingData.vector",
        "Own.vector",
        "_SharingData.given",
        "_SharingData.seed",
        "_SharingData.vector",
    },
}


def hidden(package: str, path: list[str]) -> set[str]:
    """Fields of all data classes of a package that their `repr` leaves out."""
    found = set()
    for module in pkgutil.iter_modules(path, f"{package}."):
        for kind in vars(import_module(module.name)).values():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.name:
                found |= {f"{kind.__name__}.{field.name}" for field in dataclasses.fields(kind) if not field.repr}
    return found


@cases("package", [group_key, session, secure_sum])
def test_what_is_not_shown_is_written_here(package: object) -> None:
    name = package.__name__  # type: ignore[attr-defined]
    assert hidden(name, list(package.__path__)) == HIDDEN[name]  # type: ignore[attr-defined]

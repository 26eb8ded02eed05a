"""A model cut in two: an extractor that a client keeps to itself, and the shared rest (Gu et al. 2021, "Federated Deep
Learning with Bayesian Privacy", FedSplit; fedcg.py). The first shared module names the cut; the extractor is everything
before its first tensor in the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tacit.models.configuration import Architecture
from tacit.models.layout import Layout

MIDDLES: Final = {"lenet": "conv3", "convnet": "conv4", "resnet18": "layer3"}
"""Cuts of Chen et al. 2023 for LeNet and ResNet18, derived from the sizes that they report; ConvNet's is ours."""


def first_shared(model: Architecture, split: str) -> str:
    """Return the name of the first shared module; split: as configured. "" if unset and no middle is known."""
    return split or (f"blocks.{model.depth // 2}" if model.name == "vit" else MIDDLES.get(model.name, ""))


def extractor(layout: Layout, model: Architecture, split: str) -> frozenset[str]:
    """Return the tensors that stay with a client. split: the first shared module; "" takes the known middle.

    Raises ValueError if there is no such module, no known middle, or nothing before it.
    """
    cut = first_shared(model, split)
    modules = [*dict.fromkeys(entry.name.rpartition(".")[0] for entry in layout.entries if "." in entry.name)]
    if not cut:
        raise ValueError(
            f'protection.split = "": where to cut "{model.name}" is not known; name the first module that is shared, '
            f"such as {_listed(modules[1:])}"
        )
    first = next((i for i, entry in enumerate(layout.entries) if entry.name.startswith(f"{cut}.")), None)
    if first is None:
        raise ValueError(
            f'protection.split = "{split}": this model has no module "{cut}" with tensors; it has {_listed(modules)}'
        )
    # Tensors of no module, such as the position embedding of a vision transformer, extract nothing.
    if not any("." in entry.name for entry in layout.entries[:first]):
        raise ValueError(
            f'protection.split = "{split}": "{cut}" is the first module of this model, so that nothing would stay with '
            "the clients; name a later one"
        )
    return frozenset(entry.name for entry in layout.entries[:first])


def _listed(modules: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in modules[:8]) + (", ..." if len(modules) > 8 else "")

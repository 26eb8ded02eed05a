"""Files of third-party weights: one-line errors for invalid files, and removal of usual prefixes.

PyTorch's DataParallel prefixes every name with "module.", Lightning with the attribute that holds the model. Nothing in
a file is ever unpickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

PREFIXES: Final = ("module.", "model.", "backbone.")
_PICKLES: Final = (".pth", ".pt", ".bin", ".ckpt", ".tar", ".pkl")
_LONGEST: Final = 300
"""Characters of an error."""
_SHOWN: Final = 60


class WeightsWarning(UserWarning):
    """A file of weights is read differently from its literal content."""


def read_weights(path: Path, expected: Collection[str]) -> dict[str, torch.Tensor]:
    """Read the tensors in a safetensors file, without prefixes that keep their names from those expected; a
    WeightsWarning reports them. FileNotFoundError for a missing file, ValueError with the remedy for an invalid one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = path.expanduser()
    if path.is_dir():
        held = sorted(found.name for found in path.glob("*.safetensors"))
        remedy = f"name the file in it: {', '.join(held[:3])}" if held else "name a .safetensors file"
        raise ValueError(refusal(path, f"is a folder; {remedy}"))
    if not path.is_file():
        raise FileNotFoundError(refusal(path, "is no file"))
    try:
        state: dict[str, torch.Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        with path.open("rb") as file:
            pickled = path.suffix in _PICKLES or file.read(2) in (b"PK", b"\x80\x02")
        reason = "is not a safetensors file"
        if pickled:
            reason += " but a pickle, which could run code; convert it: safetensors.torch.save_file(torch.load(FILE, "
            reason += 'weights_only=True), "model.safetensors")'
        else:
            reason += f": {str(error)[:_SHOWN]}; copy it again"
        raise ValueError(refusal(path, reason)) from None
    prefixes = ["", *PREFIXES, *map("".join, product(PREFIXES, repeat=2))]
    prefix = max(prefixes, key=lambda prefix: len({name.removeprefix(prefix) for name in state}.intersection(expected)))
    if not prefix:
        return state
    counted = sum(name.startswith(prefix) for name in state)
    warnings.warn(
        f'checkpoint {str(path)!r}: "{prefix}" before {counted} names is left out', WeightsWarning, stacklevel=2
    )
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def misfit(state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> str:
    """Describe the first missing, surplus and differently shaped tensor in words; "" if there is none."""
    missing = [name for name in expected if name not in state]
    surplus = [name for name in state if name not in expected]
    said = [
        f"{len(names)} tensors {what}, first {names[0][:_SHOWN]!r}"
        for what, names in (("missing", missing), ("surplus", surplus))
        if names
    ]
    other = [name for name in expected if name in state and state[name].shape != expected[name].shape]
    if other and not said:
        name = other[0]
        shapes = f"is {list(state[name].shape)}, expected {list(expected[name].shape)}"
        said = [f"{len(other)} of other sizes, first {name[:_SHOWN]!r} {shapes}"]
    return "; ".join(said)


def refusal(path: Path, reason: str) -> str:
    """Format an error about a file in one line of at most _LONGEST characters."""
    room = _LONGEST - len(reason) - len("checkpoint '' ")
    name = str(path)
    if len(name) > room:
        name = f"...{name[3 - max(room, 4) :]}"
    return f"checkpoint {name!r} {reason}"

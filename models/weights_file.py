"""Files of weights that others have written: what is wrong with one is said in a line, and usual prefixes are removed.

PyTorch's DataParallel writes every name behind "module.", Lightning behind the name of the attribute that holds the
model. Nothing in a file is ever unpickled.
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
"""Characters of a refusal."""
_SHOWN: Final = 60


class WeightsWarning(UserWarning):
    """A file of weights is read otherwise than it stands there."""


def read_weights(path: Path, expected: Collection[str]) -> dict[str, torch.Tensor]:
    """The tensors in a file of safetensors, without the prefixes that keep their names from being those expected, of
    which a WeightsWarning tells. FileNotFoundError for a missing file, ValueError for what is none, with the remedy."""
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
    """The first missing, the first surplus and the first tensor of another shape, in words; "" if there is none."""
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
    """One line about a file, of no more than _LONGEST characters."""
    room = _LONGEST - len(reason) - len("checkpoint '' ")
    name = str(path)
    if len(name) > room:
        name = f"...{name[3 - max(room, 4) :]}"
    return f"checkpoint {name!r} {reason}"

"""The one place that imports CrypTen, and that corrects it: everybody else takes `crypten` from here.

It is no dependency that pip could install (docs/crypten.md): where it is missing, importing this module raises
CryptenMissingError, which says how to install it.

CrypTen 0.4.1 imports torch.onnx._internal.registration for its ONNX converter. Newer torch (2.9 on) has moved that
module; it gets its old name back before CrypTen looks for it.

What that release computes wrongly is computed rightly within `corrected`, where all of our computations run:

- A negative number is decoded wrongly: -k + r / 2^16 with whole numbers 0 < r < k comes out too small by 1.
- x.pow(p) is x^(3 (p - 1) / 2) for odd p: right for 3, but x^6 for 5.
- The fractions of a NumPy array are cut off before it is encoded.
- Values that are not finite, or beyond what 64 bits hold, become whatever the conversion to integers makes of them.
  They are refused, wherever a party brings a plain text. (Parties that bring none may give an uninitialised tensor of
  the right shape, so theirs is replaced by zeros.)
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from tacit.parties.crypten.errors import CryptenMissingError

_OLD = "torch.onnx._internal.registration"
_NEW = "torch.onnx._internal.torchscript_exporter.registration"

if _OLD not in sys.modules and find_spec(_OLD) is None:
    sys.modules[_OLD] = import_module(_NEW)

try:
    import crypten
    import crypten.mpc.provider.provider
except ImportError as reason:
    raise CryptenMissingError(reason) from None

__all__ = ["Replacement", "corrected", "crypten", "replaced"]

Replacement = tuple[Any, str, object]
"""A module or class of CrypTen, the name of an attribute, and what takes its place."""

_LARGEST = 2.0**63


@contextmanager
def replaced(replacements: Sequence[Replacement]) -> Iterator[None]:
    """Within the block, CrypTen uses these; afterwards its own are back in their places."""
    originals = [(place, name, vars(place)[name]) for place, name, _ in replacements]
    try:
        for place, name, ours in replacements:
            setattr(place, name, ours)
        yield
    finally:
        for place, name, original in originals:
            setattr(place, name, original)


@contextmanager
def corrected() -> Iterator[None]:
    """Within the block, CrypTen computes what its functions promise. ValueError for what cannot be encoded."""
    encoder, arithmetic = crypten.encoder.FixedPointEncoder, crypten.mpc.primitives.ArithmeticSharedTensor
    replacements: list[Replacement] = [
        (encoder, "encode", _encoding(encoder.encode)),
        (encoder, "decode", _decode),
        (arithmetic, "__init__", _sharing(arithmetic.__init__)),
        (crypten.CrypTensor, "pow", _power(vars(crypten.CrypTensor)["pow"])),
    ]
    with replaced(replacements):
        yield


def _decode(self: Any, words: torch.Tensor | None) -> torch.Tensor | None:
    """As FixedPointEncoder.decode."""
    return words if words is None or self.scale == 1 else (words.double() / self.scale).float()


def _encoding(encode: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, x: Any, device: Any = None) -> Any:
        """As FixedPointEncoder.encode."""
        if isinstance(x, np.ndarray):
            x = torch.from_numpy(x).to(device)
        if isinstance(x, int | float | list | torch.Tensor):
            plain, limit = torch.as_tensor(x), _LARGEST / self.scale
            fits = (plain > -limit) & (plain < limit)  # Neither holds for what is not a number.
            if (plain.is_floating_point() or self.scale > 1) and not bool(fits.all()):
                raise ValueError(
                    f"a plain value is not finite, or its magnitude is not below {limit:g}, which shares cannot hold: "
                    "look for what went wrong before, or scale the values"
                )
        return encode(self, x, device)

    return checked


def _sharing(initialize: Callable[..., None]) -> Callable[..., None]:
    def initialized(self: Any, tensor: Any = None, *arguments: Any, **options: Any) -> None:
        """As ArithmeticSharedTensor.__init__ (tensor, size, broadcast_size, precision, src, device)."""
        src = arguments[3] if len(arguments) > 3 else options.get("src", 0)
        if isinstance(tensor, torch.Tensor | np.ndarray) and crypten.communicator.get().get_rank() != src:
            tensor = torch.zeros_like(torch.as_tensor(tensor))
        initialize(self, tensor, *arguments, **options)

    return initialized


def _power(power: Callable[..., Any]) -> Callable[..., Any]:
    def raised(self: Any, p: Any, **options: Any) -> Any:
        """As crypten.common.functions.power.pow."""
        if isinstance(p, int | float) and p > 3 and p % 2 == 1:
            return self.pow(int(p) - 1).mul(self)
        return power(self, p, **options)

    return raised

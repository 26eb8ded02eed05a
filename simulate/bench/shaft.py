"""SHAFT (Kei and Chow, NDSS 2025) on the blocks of a transformer with their true softmax and GELU, beside our protocol.

SHAFT is a public fork of CrypTen, https://github.com/andeskyl/SHAFT, whose package is called `crypten` too. It is no
dependency and not bundled: it is imported from a checkout that the user names, in processes that compute with nothing
else, where CrypTen's modules are taken out of Python's table first. Torch's module that CrypTen 0.4.1 misses in newer
releases gets its old name from tacit.parties.crypten.compatibility, and SHAFT needs no more. Softmax, GELU and inverse
roots are SHAFT's own, with its default configuration. Its inverse roots are good for variances around 1 (Newton's
steps, from one start): the class token of a model with random weights has 0.0004, which makes most of the error behind
SHAFT's blocks.

Where no checkout is at hand there are the figures that we measured once, times what CrypTen's block has taken beside,
over what it took then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import nn

MODEL: Final = "vit_small_patch16_224"
SECONDS: Final = 2.27
"""Of one block of that model and one image, measured by us on two otherwise idle cores."""
BYTES: Final = 792_000_000
"""That both owners send in it."""
ROUNDS: Final = 118
CRYPTEN_SECONDS: Final = 0.53
"""Of CrypTen's default provider, on the same machine."""

_PACKAGE: Final = "crypten"
_CONFIGURATION: Final = "configs/default.yaml"
_ITS_OWN: Final = "softmax_ode_iter_num"
"""A setting that CrypTen does not have."""
_GET_IT: Final = "give the folder that `git clone https://github.com/andeskyl/SHAFT` makes"


def checked(checkout: Path) -> Path:
    """The checkout's own path. ValueError if it is none of SHAFT."""
    try:
        path = checkout.expanduser().resolve()
        found = path.is_dir()
    except RuntimeError:  # There is no such home, or links go in a circle.
        found = False
    if not found:
        raise ValueError(f"--checkout {checkout}: there is no such folder; {_GET_IT}")
    try:
        configuration = (path / _CONFIGURATION).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        configuration = ""
    if _ITS_OWN not in configuration or not (path / _PACKAGE / "__init__.py").is_file():
        raise ValueError(f"--checkout {checkout}: this is no checkout of SHAFT; {_GET_IT}")
    return path


def published(*, blocks: int, crypten_seconds: float) -> dict[str, Any]:
    """Figures of so many blocks and one image, without the owners' names, on a machine where CrypTen's default provider
    takes so many seconds for them."""
    scale = crypten_seconds / (blocks * CRYPTEN_SECONDS)
    return {"scale": scale, "seconds": scale * blocks * SECONDS, "bytes": blocks * BYTES, "rounds": blocks * ROUNDS}


@dataclass(frozen=True)
class ShaftBlocks:
    """Blocks of timm's, to be computed by SHAFT."""

    NAME: ClassVar[str] = "SHAFT"
    checkout: Path
    weights: tuple[dict[str, torch.Tensor], ...] = field(repr=False)
    """Of each block, under timm's names."""
    heads: int
    eps: float

    @classmethod
    def of(cls, checkout: Path, blocks: nn.Module) -> ShaftBlocks:
        """Those of a model of timm's, with its weights."""
        each: list[Any] = list(blocks.children())
        weights = tuple({name: weight.detach() for name, weight in block.named_parameters()} for block in each)
        return cls(checkout, weights, each[0].attn.num_heads, each[0].norm1.eps)

    def library(self) -> Any:
        """SHAFT, once in a process that needs CrypTen no more. ImportError if another one would be imported."""
        import_module("tacit.parties.crypten.compatibility")
        for name in [name for name in sys.modules if name.split(".")[0] == _PACKAGE]:
            del sys.modules[name]
        sys.path.insert(0, str(self.checkout))
        found = import_module(_PACKAGE)
        if not Path(found.__file__ or "").is_relative_to(self.checkout):
            raise ImportError(f"{_PACKAGE} comes from {found.__file__}, not from {self.checkout}")
        return found

    def shared(self, share: Callable[[torch.Tensor], Any]) -> list[Callable[[Any], Any]]:
        """The blocks with weights that `share` has made shares of: each takes and gives shares [B, T, D]."""
        return [
            _Block({name: share(weight) for name, weight in each.items()}, self.heads, self.eps)
            for each in self.weights
        ]


@dataclass(frozen=True)
class _Block:
    """A pre-norm block on shares; its operations are SHAFT's."""

    weights: dict[str, Any] = field(repr=False)
    heads: int
    eps: float

    def __call__(self, x: Any) -> Any:
        x = x + self._attended(self._normalised(x, "norm1"))
        return x + self._linear(self._linear(self._normalised(x, "norm2"), "mlp.fc1").gelu(), "mlp.fc2")

    def _attended(self, x: Any) -> Any:
        images, tokens, width = x.size()
        joint = self._linear(x, "attn.qkv").reshape(images, tokens, 3, self.heads, width // self.heads)
        query, key, value = joint.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, T, D/H]
        # The query is scaled, not the scores, of which there are more.
        scores = (query * (width // self.heads) ** -0.5).matmul(key.transpose(2, 3))
        mixed = scores.softmax(-1).matmul(value)
        return self._linear(mixed.permute(0, 2, 1, 3).reshape(images, tokens, width), "attn.proj")

    def _linear(self, x: Any, name: str) -> Any:
        return x.matmul(self.weights[f"{name}.weight"].transpose(0, 1)) + self.weights[f"{name}.bias"]

    def _normalised(self, x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        inverse = (centred.square().mean(-1, keepdim=True) + self.eps).inv_sqrt()
        return centred * inverse * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

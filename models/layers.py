"""A model as a list of layers, each of which is sent or kept as a whole (docs/fedrsm.md).

The first layer also includes everything before it. A map's output is taken after the following normalisation and
activation: from the last module that receives the previous module's output tensor itself and keeps its shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from timm.models.resnet import BasicBlock, Bottleneck
from timm.models.vision_transformer import Block
from torch import nn

from tacit.models.layout import Layout

Granularity = Literal["layer", "block", "stage"]
Call = tuple[str, int]
"""A module by its name, and the index of its call in a run of the model, from 0."""

Watcher = Callable[[Call, tuple[Any, ...], torch.Tensor], None]
"""Receives a call, its arguments, and its output tensor."""

_MAPS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_BLOCKS = (BasicBlock, Bottleneck, Block)
_STAGED = (BasicBlock, Bottleneck)
_WHOLE: Final = {
    "block": ("residual blocks", '"resnet18" or "vit"'),
    "stage": ("stages of residual blocks", '"resnet18"'),
}
"""Required parts, and a model that has them."""


@dataclass(frozen=True)
class Layer:
    """`name`: of the module that begins it; `tensors`: names from the layout, in order."""

    name: str
    tensors: tuple[str, ...]


def layers(model: nn.Module, granularity: Granularity) -> tuple[Layer, ...]:
    """Return the layers of a model. Raises ValueError if it has none, or lacks the requested blocks or stages."""
    heads = _heads(model, granularity)
    if granularity != "layer" and all(isinstance(model.get_submodule(name), _MAPS) for name in heads):
        what, such = _WHOLE[granularity]
        raise ValueError(
            f'protection.granularity = "{granularity}": this model has no {what}; take "layer", or a model that has '
            f"them, such as {such}"
        )
    if not heads:
        raise ValueError("this model has no convolution and no linear map, and so no layer")
    tensors: dict[str, list[str]] = {name: [] for name in heads}
    current = heads[0]
    for entry in Layout.of(model).entries:
        current = next((name for name in heads if entry.name.startswith(f"{name}.")), current)
        tensors[current].append(entry.name)
    return tuple(Layer(name, tuple(found)) for name, found in tensors.items())


def outputs(model: nn.Module, found: tuple[Layer, ...], x: torch.Tensor) -> tuple[Call, ...]:
    """Find the call that gives the output of every layer, by a run on x [1 or more, C, S, S].

    Raises ValueError for a layer that takes no part in the run.
    """
    heads = {layer.name for layer in found}
    whole = {name for name in heads if not isinstance(model.get_submodule(name), _MAPS)}
    ends: dict[str, tuple[Call, torch.Tensor]] = {}

    def watch(call: Call, given: tuple[Any, ...], output: torch.Tensor) -> None:
        if call[0] in heads:
            ends[call[0]] = call, output
            return
        for name, (_, last) in ends.items():
            if name not in whole and given and given[0] is last and output.shape == last.shape:
                ends[name] = call, output

    with observed(model, {name: watch for name, module in model.named_modules() if _ends(name, module, heads)}):
        model(x)
    missing = [layer.name for layer in found if layer.name not in ends]
    if missing:
        raise ValueError(f'layer "{missing[0]}" takes no part in what the model computes, so that it has no output')
    return tuple(ends[layer.name][0] for layer in found)


@contextmanager
def observed(model: nn.Module, watchers: Mapping[str, Watcher]) -> Iterator[None]:
    """Call a module's watcher after each of its computations, in evaluation mode and without gradients."""
    calls: Counter[str] = Counter()
    handles = []
    training = model.training

    def hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], Any], None]:
        def after(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, torch.Tensor):
                watchers[name]((name, calls[name]), given, output)
            calls[name] += 1

        return after

    try:
        for name in watchers:
            handles.append(model.get_submodule(name).register_forward_hook(hook(name)))
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()
        model.train(training)


def _heads(model: nn.Module, granularity: Granularity) -> list[str]:
    """Return names of the modules that begin a layer, in order of registration."""
    heads: list[str] = []
    for name, module in model.named_modules():
        # Maps have no modules inside.
        inside = any(name.startswith(f"{head}.") for head in heads)
        if name and not inside and (isinstance(module, _MAPS) or _is_whole(module, granularity)):
            heads.append(name)
    return heads


def _is_whole(module: nn.Module, granularity: Granularity) -> bool:
    if granularity == "block":
        return isinstance(module, _BLOCKS)
    inside = list(module.children()) if granularity == "stage" and isinstance(module, nn.Sequential) else []
    return bool(inside) and all(isinstance(child, _STAGED) for child in inside)


def _ends(name: str, module: nn.Module, heads: set[str]) -> bool:
    return name in heads or (not isinstance(module, _MAPS) and not any(module.children()) and name != "")

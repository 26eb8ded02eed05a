"""A model, data and a training step of one's own, in the place of those that an experiment describes.

They are functions that every party has installed: an experiment names them, "package.module:function", and only the
name is ever sent. `load` imports what a client's policy has accepted, and takes nothing that the module itself has
only imported, so that whoever accepts a package does not accept all that the package makes use of. Whatever else of
the model differs between parties, the digest of its layout tells.

What the functions raise is told in one line with the place in their own code; the traceback goes to standard error,
which is a party's log.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from tacit.models.configuration import Architecture, TrainingConfiguration
from tacit.models.interruption import Interrupted

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tacit.models.layout import Flat, Layout

_MAIN: Final = "__main__"
Labelled = tuple["torch.Tensor", "torch.Tensor"]
"""Images float32 [N, C, S, S] and labels int64 [N]."""


class FactoryError(ValueError):
    """A function of one's own cannot be found, or it failed; the message names it and says where."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Functions of one's own; None: what the experiment describes.

    model: () -> nn.Module, of float32 tensors. data: (client, clients) -> what that client has, the first being 0:
    images and labels (x, y), or anything that `train` takes. train: (model, data) -> None if it trained the model in
    place, another trained model, or an update: a flat vector or a mapping of names to tensors, to be added.
    """

    model: Callable[[], Any] | None = None
    data: Callable[[int, int], Any] | None = None
    train: Callable[[Any, Any], Any] | None = None

    @classmethod
    def named(cls, model: Architecture, training: TrainingConfiguration, data: str = "") -> Workload:
        """What these sections name, and these data. FactoryError if it cannot be imported."""
        return cls(
            model=load("model.factory", model.factory),
            data=load("data.factory", data),
            train=load("training.factory", training.factory),
        )

    def check(self, model: Architecture, training: TrainingConfiguration) -> None:
        """Raise FactoryError unless these sections leave to the parties what the functions are for."""
        for key, named, own in (
            ("model.factory", model.factory, self.model),
            ("training.factory", training.factory, self.train),
        ):
            if named and own is None:
                raise FactoryError(f'the server\'s task has {key} = "{named}", and this client has nothing for it')
            if own is not None and not named:
                raise FactoryError(f"this client has {title(own)} for {key}, which the server's task does not have")

    def network(self, configuration: Architecture, *, classes: int, channels: int, seed: int) -> nn.Module:
        """The whole model, with weights from the seed. FactoryError; ValueError as of `networks.build`."""
        from torch import nn

        from tacit.models.layout import Layout
        from tacit.models.networks import build
        from tacit.models.training import seeded

        if self.model is None:
            whole = msgspec.structs.replace(configuration, tune="all")
            return build(whole, classes=classes, channels=channels, seed=seed)
        with seeded(seed), told("the model", self.model):
            made = self.model()
        if not isinstance(made, nn.Module):
            raise FactoryError(f"the model {title(self.model)} returned {_kind(made)}: expected an nn.Module")
        Layout.summed(made)
        return made

    def share(self, client: int, clients: int) -> tuple[Any, torch.Tensor | None]:
        """What a client has: images and labels; or whatever `train` takes, and None. FactoryError."""
        import torch

        assert self.data is not None
        with told("the data", self.data):
            found = self.data(client, clients)
        if isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(one, torch.Tensor) for one in found):
            x, y = found
            if len(x) == len(y):
                return x, y
        if self.train is None:
            raise FactoryError(
                f"the data {title(self.data)} returned {_kind(found)}: without a training step of one's own expected "
                "two tensors of equal length, x float32 and y int64"
            )
        return found, None

    def step(self, model: nn.Module, data: Any, layout: Layout, *, seed: int, device: torch.device) -> None:
        """Train the model in place by the function of one's own. FactoryError; ValueError for another model."""
        import torch
        from torch import nn

        from tacit.models.training import seeded

        assert self.train is not None
        before = layout.flatten(model)
        model.to(device).train()
        with seeded(seed, device), told("the training step", self.train):
            found = self.train(model, data)
        if found is None or found is model:
            return
        if isinstance(found, nn.Module):
            after = layout.flatten(found)
            layout.load_local(model, layout.local(found))
        elif isinstance(found, torch.Tensor | np.ndarray | Mapping):
            after = before + self._update(found, layout)
        else:
            raise FactoryError(
                f"the training step {title(self.train)} returned {_kind(found)}: expected None, a model, or an update "
                "(a vector, or a mapping of names to tensors)"
            )
        layout.load_into(model, after)

    def _update(self, found: Any, layout: Layout) -> Flat:
        place = f"the update of the training step {title(self.train)}"
        if not isinstance(found, Mapping):
            vector = _array(found).reshape(-1)
            if vector.size != layout.size:
                raise FactoryError(f"{place} has {vector.size} values, and the model {layout.size}")
            return vector
        shapes = {entry.name: entry.shape for entry in layout.entries}
        tensors = {name: _array(value) for name, value in found.items()}
        for name, tensor in tensors.items():
            if tensor.shape != shapes.get(name):
                has = f"{list(shapes[name])}" if name in shapes else "no such tensor"
                raise FactoryError(f"{place} has {name!r} of shape {list(tensor.shape)}, and the model {has}")
        return layout.concatenate(tensors)


def samples_of(data: Any) -> int:
    """For how many samples data count: their length, of a loader that of its data set; without a length for 1."""
    try:
        return len(getattr(data, "dataset", data))
    except TypeError:
        return 1


def reference(key: str, function: Any) -> str:
    """The name by which other processes find a function or class. ValueError, with the remedy, if they cannot."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    remedy = "give a function or class that is defined at the top level of a module, or of the script that is run"
    if not callable(function) or not name:
        raise ValueError(f"{key} = {_kind(function)}: it is called by its name in the process of every party; {remedy}")
    if not name.isidentifier() or getattr(sys.modules.get(module or ""), name, None) is not function:
        raise ValueError(f"{key} = {module}.{name}: other processes cannot find it by its name; {remedy}")
    # A program that is read from a pipe has a file of the name <stdin>.
    if module == _MAIN and not Path(getattr(sys.modules[_MAIN], "__file__", "<stdin>")).is_file():
        raise ValueError(f"{key} = {name}: other processes cannot see what was typed here; write it into a module")
    return f"{module}:{name}"


def load(key: str, name: str) -> Callable[..., Any] | None:
    """What is named "package.module:function"; None for "". FactoryError names the key and what is wrong."""
    if not name:
        return None
    where, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(where)
    except Exception as error:
        raise FactoryError(f'{key} = "{name}": {where} cannot be imported: {_described(error, where)}') from error
    found: Callable[..., Any] | None = getattr(module, attribute, None)
    if found is None:
        raise _missing(key, name, dir(module))
    # The script that is run is __main__ to itself, and has another name where it is loaded once more.
    if not callable(found) or found.__module__ != module.__name__:
        home = getattr(found, "__module__", None)
        hint = f'name it where it is: "{home}:{attribute}"' if callable(found) and home else "name a function or class"
        raise FactoryError(f'{key} = "{name}": {attribute} is not defined in {where}; {hint}')
    return found


def check_installed(key: str, name: str) -> None:
    """Raise FactoryError if a module is not there, or its source defines no such name; it is not imported yet."""
    where, _, attribute = name.partition(":")
    if where == _MAIN:
        raise FactoryError(f'{key} = "{name}": it is of the script that began this, which alone can go on with it')
    try:
        spec = find_spec(where)
    except (ImportError, ValueError) as error:
        raise FactoryError(f'{key} = "{name}": {where} cannot be imported: {error}; {_INSTALL}') from error
    if spec is None:
        raise FactoryError(f'{key} = "{name}": there is no module {where}; {_INSTALL}')
    if spec.origin is None or not spec.origin.endswith(".py"):
        return
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError) as error:
        raise FactoryError(f'{key} = "{name}": {where} cannot be imported: {error}') from error
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    if attribute not in names:
        raise _missing(key, name, names)


_INSTALL: Final = "install it where tacit runs, or name its folder in PYTHONPATH"


def title(function: Any) -> str:
    """The name of a function for people."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    # The script that is run is called otherwise where it is loaded once more.
    return name if module in (_MAIN, "__mp_main__") else f"{module}:{name}"


@contextmanager
def told(what: str, function: Any) -> Iterator[None]:
    """Around a call of it: whatever it raises comes out as a FactoryError, and its traceback in the party's log."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        place = _place(error, function)
        raise FactoryError(f"{what} {title(function)} failed: {_line(error)}{place}") from error


def _place(error: Exception, function: Any) -> str:
    """The last line of the function's own file that was at work."""
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _line(error: BaseException) -> str:
    """The last line of its traceback."""
    return " ".join(" ".join(traceback.format_exception_only(error)).split())


def _described(error: Exception, module: str) -> str:
    missing = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or " ")
    return f"there is no such module; {_INSTALL}" if missing else _line(error)


def _missing(key: str, name: str, known: Any) -> FactoryError:
    where, _, attribute = name.partition(":")
    close = get_close_matches(attribute, [one for one in known if not one.startswith("_")], n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"define it there, as a function of {where}"
    return FactoryError(f'{key} = "{name}": {where} has no {attribute}; {hint}')


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _array(value: Any) -> Flat:
    array = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    return np.asarray(array, np.float32)

"""A custom model, data and training step, in place of those that an experiment describes.

An experiment names functions that every party has installed; only the name is ever sent. `load` imports only names that
a client's policy has accepted, and accepts no object that the module itself merely imported. Errors are reported in one
line with their location in the user's code; the traceback goes to standard error, a party's log.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """A custom function was not found, or failed; the message names it and the location."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Custom functions; None: as the experiment describes.

    model: () -> nn.Module, of float32 tensors. data: (client, clients) -> the client's data, the first client being 0:
    images and labels (x, y), or anything that `train` takes. train: (model, data) -> None if it trained the model in
    place, another trained model or its state dictionary, or an update to be added: a flat vector or a mapping of names
    to tensors; and a mapping of metrics, alone or beside one of these. A third parameter `context` receives a Context.
    """

    model: Callable[[], Any] | None = None
    data: Callable[[int, int], Any] | None = None
    train: Callable[[Any, Any], Any] | None = None

    @classmethod
    def named(cls, model: Architecture, training: TrainingConfiguration, data: str = "") -> Workload:
        """Load the functions that these sections name, with these data. Raises FactoryError if an import fails."""
        return cls(
            model=load("model.factory", model.factory),
            data=load("data.factory", data),
            train=load("training.factory", training.factory),
        )

    def check(self, model: Architecture, training: TrainingConfiguration) -> None:
        """Raise FactoryError unless these sections leave the functions' purpose to the parties."""
        for key, named, own in (
            ("model.factory", model.factory, self.model),
            ("training.factory", training.factory, self.train),
        ):
            if named and own is None:
                raise FactoryError(f'the server\'s task has {key} = "{named}", and this client has nothing for it')
            if own is not None and not named:
                raise FactoryError(f"this client has {title(own)} for {key}, which the server's task does not have")

    def network(self, configuration: Architecture, *, classes: int, channels: int, seed: int) -> nn.Module:
        """Build the whole model, with weights from the seed. FactoryError; ValueError as `networks.build` does."""
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
        """Return a client's data: images and labels; or anything that `train` takes, and None. Raises FactoryError."""
        import torch

        assert self.data is not None
        with told("the data", self.data):
            found = self.data(client, clients)
        if isinstance(found, tuple | list) and len(found) == 2 and all(isinstance(one, torch.Tensor) for one in found):
            x, y = found
            if x.ndim and y.ndim and len(x) == len(y):
                if self.train is None:
                    self._check_labelled(x, y)
                return x, y
        if self.train is None:
            raise FactoryError(
                f"the data {title(self.data)} returned {_kind(found)}: without a training step of one's own expected "
                "two tensors of equal length, x float32 and y int64"
            )
        return found, None

    def _check_labelled(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Raise FactoryError for images and labels on which our own training would fail with torch's message."""
        for name, tensor, kind, remedy in (("x", x, "float32", "x.float()"), ("y", y, "int64", "y.long()")):
            found = str(tensor.dtype).removeprefix("torch.")
            if found != kind:
                raise FactoryError(
                    f"the data {title(self.data)} returned {name} as {found}: expected {kind}; write {remedy}"
                )
        if y.ndim == 2 and y.shape[1] == 1:
            raise FactoryError(f"the data {title(self.data)} returned y {list(y.shape)}: expected [N]; write y[:, 0]")
        if y.ndim != 1 or (len(y) and int(y.min()) < 0):
            raise FactoryError(
                f"the data {title(self.data)} returned y {list(y.shape)}: expected the number of a class for each row "
                "of x, int64 [N], from 0"
            )

    def step(
        self,
        model: nn.Module,
        data: Any,
        layout: Layout,
        *,
        seed: int,
        device: torch.device,
        context: Context | None = None,
        metrics: Sequence[str] = (),
    ) -> tuple[float, ...]:
        """Train the model in place by the custom function; return the metrics of these names. FactoryError; ValueError
        for another model.

        context: passed to a function that has a parameter of this name."""
        import torch
        from torch import nn

        from tacit.models.training import seeded

        assert self.train is not None
        before = layout.flatten(model)
        model.to(device).train()
        with seeded(seed, device), told("the training step", self.train):
            more = {"context": context} if context is not None and _takes_context(self.train) else {}
            found = self.train(model, data, **more)
        found, own = self._apart(found, layout, metrics)
        if found is None or found is model:
            return own
        if isinstance(found, nn.Module):
            after = layout.flatten(found)
            layout.load_local(model, layout.local(found))
        elif isinstance(found, torch.Tensor | np.ndarray | Mapping):
            after = self._after(found, layout, before, layout.flatten(model))
        else:
            raise FactoryError(
                f"the training step {title(self.train)} returned {_kind(found)}: expected None, a model, or an update "
                "(a vector, or a mapping of names to tensors)"
            )
        layout.load_into(model, after)
        return own

    def _apart(self, found: Any, layout: Layout, names: Sequence[str]) -> tuple[Any, tuple[float, ...]]:
        """Separate a step's result from its metrics. A mapping of numbers is metrics if the model has no tensors of
        these names; beside another result they are the second of two."""
        given: Mapping[str, Any] = {}
        if isinstance(found, tuple) and len(found) == 2 and _is_metrics(found[1]):
            found, given = found
        elif _is_metrics(found) and found.keys().isdisjoint(entry.name for entry in layout.entries):
            found, given = None, found
        if given.keys() != set(names):
            told = f'training={{"metrics": {list(map(str, given))}}}' if given else "leave training.metrics out"
            raise FactoryError(
                f"the training step {title(self.train)} returned the metrics {sorted(map(str, given))}, and "
                f"training.metrics = {list(names)}: return those, or write {told}"
            )
        own = {name: float(given[name]) for name in names}
        for name, value in own.items():
            if not abs(value) <= LARGEST_METRIC:
                raise FactoryError(
                    f"the training step {title(self.train)} returned the metric {name} = {value}: expected a number "
                    f"from -{LARGEST_METRIC:g} to {LARGEST_METRIC:g}"
                )
        return found, tuple(own.values())

    def _after(self, found: Any, layout: Layout, before: Flat, trained: Flat) -> Flat:
        """Return the weights from a vector or mapping, which is an update or, like `model.state_dict()`, weights.

        It counts as weights if it is a state dictionary, equals the model's weights after the step, or is nearer to its
        initial weights than half their norm: no update doubles a model."""
        weights, named = hasattr(found, "_metadata"), np.ones(layout.size, np.bool_)
        if isinstance(found, Mapping):
            fixed = {entry.name for entry in layout.fixed} | {name for name in found if _counter(name)}
            weights = weights or not fixed.isdisjoint(found)
            found = {name: value for name, value in found.items() if name not in fixed}
            ones = {entry.name: np.ones(entry.shape, np.float32) for entry in layout.entries if entry.name in found}
            named = layout.concatenate(ones) > 0
        values = self._update(found, layout)
        given, had, has = values[named], before[named], trained[named]
        distance, size = (float(np.linalg.norm(vector.astype(np.float64))) for vector in (given - had, had))
        if weights or (given.any() and np.array_equal(given, has)) or distance < size / 2:
            return np.where(named, values, trained)
        return before + values

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


LARGEST_METRIC: Final = 1000.0
"""Largest magnitude of a custom training step's metric."""


def _is_metrics(found: Any) -> bool:
    return (
        isinstance(found, Mapping)
        and len(found) > 0
        and all(
            isinstance(value, int | float) or (getattr(value, "shape", None) == () and hasattr(value, "item"))
            for value in found.values()
        )
    )


_FEW: Final = 8
"""Most arrays that stand beside each other; a longer list is one of samples."""


def samples_of(data: Any, otherwise: int | None = None) -> int:
    """Count the samples of data. An object states it by an attribute `samples`, a loader by its sampler; arrays and
    data sets have a length. Several arrays in a mapping, tuple or list have their common length, several data sets or
    loaders that of the first, for training.

    otherwise: result if the count is unknown; None: FactoryError, with the remedy."""
    found = _counted(data)
    found = otherwise if found is None else found
    if found is None:
        raise FactoryError(
            f"for how many samples the data ({_kind(data)}) count is not known: return (x, y) or {{'x': x, 'y': y}} of "
            "one length, a data set, a loader, or an object with an attribute `samples`"
        )
    return found


def _counted(data: Any) -> int | None:
    if isinstance(data, str | bytes | os.PathLike):
        return None
    if isinstance(said := getattr(data, "samples", None), int) and not isinstance(said, bool):
        return said
    if isinstance(data, Mapping | tuple | list):
        return _counted_parts(data)
    loader = hasattr(data, "dataset") and hasattr(data, "batch_size")
    counted: Any
    for counted in (getattr(data, "sampler", None), data.dataset) if loader else (data,):
        try:
            # len is undefined for sparse tensors.
            return int(counted.shape[0]) if hasattr(counted, "shape") else len(counted)
        except (TypeError, IndexError, NotImplementedError):
            continue
    return None


def _counted_parts(data: Mapping[Any, Any] | tuple[Any, ...] | list[Any]) -> int | None:
    parts = [*data.values()] if isinstance(data, Mapping) else [*data]
    if isinstance(data, list) and (len(parts) > _FEW or all(isinstance(part, int | float | str) for part in parts)):
        return len(parts)
    counts = [(part, count) for part in parts if (count := _counted(part)) is not None]
    if isinstance(data, list) and any(map(_is_sample, parts)):
        return len(parts)
    if sets := [count for part, count in counts if not hasattr(part, "shape") and not _is_column(part)]:
        return sets[0]
    found = {count for _, count in counts}
    shapes = [tuple(getattr(part, "shape", ())) for part in parts]
    if isinstance(data, list) and len(parts) > 1 and len(shapes[0]) > 1 and len(set(shapes)) == 1:
        # A few images of one size, or arrays beside each other: ambiguous.
        return None
    return found.pop() if len(found) == 1 else None


def _is_sample(part: Any) -> bool:
    values = part.values() if isinstance(part, Mapping) else part if isinstance(part, tuple) else ()
    return any(isinstance(value, int | float | str) or getattr(value, "shape", None) == () for value in values)


def _is_column(part: Any) -> bool:
    return isinstance(part, list) and not any(
        hasattr(value, "__len__") and not hasattr(value, "shape") for value in part
    )


def _counter(name: str) -> bool:
    return name.rpartition(".")[2] == "num_batches_tracked"


@dataclass(frozen=True, kw_only=True)
class Context:
    round: int
    """From 1."""
    client: int
    """From 0, as in the call of `data`."""
    device: torch.device
    configuration: TrainingConfiguration
    generator: torch.Generator = field(repr=False)
    """On the CPU; seeded for this client and round, where the run is."""


def _takes_context(function: Any) -> bool:
    try:
        return "context" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def reference(key: str, function: Any) -> str:
    """Return the name by which other processes find a function or class. ValueError if there is none."""
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
    """Import "package.module:function"; None for "". Raises FactoryError naming the key and the problem."""
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
    # The running script is __main__, and has another name where it is loaded once more.
    if not callable(found) or found.__module__ != module.__name__:
        home = getattr(found, "__module__", None)
        hint = f'name it where it is: "{home}:{attribute}"' if callable(found) and home else "name a function or class"
        raise FactoryError(f'{key} = "{name}": {attribute} is not defined in {where}; {hint}')
    return found


def check_installed(key: str, name: str) -> None:
    """Raise FactoryError if a module is missing, or its source defines no such name; the module is not imported yet."""
    where, _, attribute = name.partition(":")
    if where == _MAIN:
        raise FactoryError(
            f'{key} = "{name}": it is defined in the script that started this run; resume it from that script with '
            "Federation(directory=..., resume=True), or move the function to a module"
        )
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
    function = inspect.unwrap(function)
    function = getattr(function, "func", function)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or type(function).__module__
    # The running script has another name where it is loaded once more.
    return name if module in (_MAIN, "__mp_main__") else f"{module}:{name}"


@contextmanager
def told(what: str, function: Any) -> Iterator[None]:
    """Convert any exception of a custom function into a FactoryError, with its traceback in the party's log."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        traceback.print_exc()
        place = _place(error, function)
        raise FactoryError(f"{what} {title(function)} failed: {_line(error)}{place}") from error


def _place(error: Exception, function: Any) -> str:
    try:
        unwrapped = inspect.unwrap(function)
        file = inspect.getsourcefile(getattr(unwrapped, "func", unwrapped))
    except TypeError:
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""


def _line(error: BaseException) -> str:
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

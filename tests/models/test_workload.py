"""Functions of one's own: how they are found, what they may return, and what is said when they fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.models.layout import Layout
from tacit.models.workload import Context, FactoryError, Workload, check_installed, load, reference, samples_of
from tests.cases import cases

CPU = torch.device("cpu")
SOURCE = """
import torch
from os.path import join
from torch import nn

NUMBER = 5

def net():
    return nn.Linear(2, 1)

class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)

def broken():
    part = {}
    return part["head"]
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "own_functions"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def net() -> nn.Module:
    return nn.Linear(2, 1)


def stepped(train: Callable[[Any, Any], Any], data: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The weights of a small model before a step and after it, float32 [3]."""
    model = net()
    layout = Layout.of(model)
    before = layout.flatten(model)
    Workload(train=train).step(model, data, layout, seed=1, device=CPU)
    return before, layout.flatten(model)


def in_place(model: Any, data: Any) -> None:
    with torch.no_grad():
        model.weight += 1
        model.bias += 2


def another(model: Any, data: Any) -> nn.Module:
    other = net()
    other.load_state_dict(model.state_dict())
    in_place(other, data)
    return other


UPDATE = torch.tensor([1.0, 1.0, 2.0])
"""In the order of the model's tensors: weight, bias."""


@pytest.mark.parametrize(
    "train",
    [
        in_place,
        another,
        lambda model, data: in_place(model, data) or model,
        lambda model, data: UPDATE,
        lambda model, data: UPDATE.double().numpy(),
        lambda model, data: {"bias": torch.tensor([2.0], requires_grad=True), "weight": torch.ones(1, 2)},
    ],
)
def test_a_step_trains_in_place_or_returns_a_model_or_an_update(train: Callable[[Any, Any], Any]) -> None:
    before, after = stepped(train)
    assert np.allclose(after - before, UPDATE.numpy())


def test_tensors_that_an_update_does_not_name_stay() -> None:
    before, after = stepped(lambda model, data: {"bias": np.array([3.0])})
    assert np.allclose(after - before, [0.0, 0.0, 3.0])


@cases(
    ("found", "message"),
    [
        ("done", "returned a str: expected None, a model, or an update"),
        (torch.ones(4), "has 4 values, and the model 3"),
        ({"weight": torch.ones(2)}, r"has 'weight' of shape \[2\], and the model \[1, 2\]"),
        ({"head": torch.ones(2)}, "has 'head' of shape .*, and the model no such tensor"),
        (nn.Linear(3, 1), "does not fit the layout"),
        (torch.full((3,), torch.nan), "not finite"),
    ],
)
def test_what_is_no_update_is_refused(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stepped(lambda model, data: found)


def test_a_step_draws_from_the_seed_and_torch_draws_as_before() -> None:
    torch.manual_seed(3)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    made = Workload(model=net, train=lambda model, data: torch.rand(3))
    first, second = (made.network(ModelConfiguration(), classes=1, channels=1, seed=9) for _ in range(2))
    layout = Layout.of(first)
    assert (layout.flatten(first) == layout.flatten(second)).all()
    for model in (first, second):
        made.step(model, None, layout, seed=4, device=CPU)
    assert (layout.flatten(first) == layout.flatten(second)).all()
    assert torch.rand(1) == drawn


def test_what_a_function_raises_is_told_with_its_place(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    own = Workload(model=load("model.factory", f"{module}:broken"))
    with pytest.raises(FactoryError) as refused:
        own.network(ModelConfiguration(), classes=1, channels=1, seed=0)
    line = SOURCE.splitlines().index('    return part["head"]') + 1
    place = f"({module}.py, line {line}, in broken)"
    assert str(refused.value) == f"the model {module}:broken failed: KeyError: 'head' {place}"
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("found", "kind"), [(None, "None"), (torch.ones(2), "a Tensor"), ((torch.ones(2), torch.ones(3)), "a tuple")]
)
def test_without_a_step_of_ones_own_data_are_images_and_labels(found: Any, kind: str) -> None:
    with pytest.raises(FactoryError, match=f"returned {kind}: .*expected two tensors of equal length"):
        Workload(data=lambda client, clients: found).share(0, 3)
    assert Workload(data=lambda client, clients: found, train=in_place).share(0, 3) == (found, None)


def test_data_are_asked_for_by_client() -> None:
    x, y = torch.arange(6.0), torch.arange(6)
    mine = Workload(data=lambda client, clients: (x[client::clients], y[client::clients])).share(1, 3)
    assert [one.tolist() for one in mine if one is not None] == [[1.0, 4.0], [1, 4]]


def test_names_are_those_of_functions_and_classes_at_the_top_of_a_module() -> None:
    assert reference("model", net) == f"{__name__}:net"
    assert reference("model", TrainingConfiguration) == "tacit.models.configuration:TrainingConfiguration"
    for stranger in (lambda: None, partial(net), net(), 5, Layout.flatten):
        with pytest.raises(ValueError, match="give a function or class that is defined at the top level of a module"):
            reference("model", stranger)


def test_what_was_typed_in_cannot_be_seen_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed() -> None: ...

    typed.__module__, typed.__qualname__ = "__main__", "typed"
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "typed", typed, raising=False)
    # Some runners of tests have none.
    monkeypatch.setattr(main, "__file__", __file__, raising=False)
    assert reference("train", typed) == "__main__:typed"
    monkeypatch.setattr(main, "__file__", "<stdin>")
    with pytest.raises(ValueError, match="train = typed: other processes cannot see what was typed here"):
        reference("train", typed)
    monkeypatch.delattr(main, "__file__")
    with pytest.raises(ValueError, match="train = typed: other processes cannot see what was typed here"):
        reference("train", typed)


def test_what_is_named_is_imported(module: str) -> None:
    for name in ("net", "Net"):
        check_installed("model.factory", f"{module}:{name}")
        found = load("model.factory", f"{module}:{name}")
        assert found is not None
        assert isinstance(found(), nn.Linear)
    assert load("model.factory", "") is None


@pytest.mark.parametrize("find", [load, check_installed])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:net", "there is no .*module.*; install it where tacit runs, or name its folder in PYTHONPATH"),
        ("nowhere.at.all:net", "cannot be imported: .*; install it where tacit runs"),
        ("own_functions:nett", "own_functions has no nett; did you mean net"),
        ("own_functions:zzz", "own_functions has no zzz; define it there"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_is_not_there_is_refused(find: Callable[[str, str], Any], name: str, message: str) -> None:
    with pytest.raises(FactoryError, match=f'training.factory = "{name}": .*{message}'):
        find("training.factory", name)


@pytest.mark.usefixtures("module")
def test_what_a_module_has_imported_is_not_its_own() -> None:
    with pytest.raises(FactoryError, match=r'join is not defined in .*; name it where it is: "posixpath:join"'):
        load("model.factory", "own_functions:join")
    with pytest.raises(FactoryError, match="NUMBER is not defined in own_functions; name a function or class"):
        load("model.factory", "own_functions:NUMBER")


def test_a_module_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "half_module.py").write_text("def net(): ...\nimport not_there_either\n")
    with pytest.raises(FactoryError, match=r"half_module cannot be imported: ModuleNotFoundError: .*not_there_either"):
        load("model.factory", "half_module:net")
    (tmp_path / "half_module.py").write_text("def net(:\n")
    with pytest.raises(FactoryError, match="half_module cannot be imported: invalid syntax"):
        check_installed("model.factory", "half_module:net")


def trained_copy(model: Any) -> nn.Module:
    other = net()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1.1
    return other


def in_place_by_a_tenth(model: Any) -> nn.Module:
    model.load_state_dict(trained_copy(model).state_dict())
    return model


WEIGHTS: dict[str, Callable[[nn.Module], Any]] = {
    "state_dict": lambda model: model.state_dict(),
    "clones": lambda model: {name: tensor.clone() for name, tensor in model.state_dict().items()},
    "numpy": lambda model: {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()},
    "half": lambda model: {name: tensor.half() for name, tensor in model.state_dict().items()},
    "parameters": lambda model: dict(model.named_parameters()),
    "some": lambda model: {"weight": model.get_parameter("weight").detach().clone()},
    "vector": lambda model: nn.utils.parameters_to_vector(model.parameters()).detach(),
    "ordered": lambda model: dict(reversed(model.state_dict().items())),
}


@pytest.mark.parametrize("form", WEIGHTS)
@pytest.mark.parametrize("train", [in_place_by_a_tenth, trained_copy])
def test_weights_in_every_form_are_weights_and_not_added(form: str, train: Callable[[Any], nn.Module]) -> None:
    before, after = stepped(lambda model, data: WEIGHTS[form](train(model)))
    expected = 1.1 * before
    if form == "some" and train is trained_copy:
        expected[2] = before[2]
    assert np.allclose(after, expected, rtol=2e-3)


def test_a_state_dictionary_may_have_tensors_that_are_not_sent() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    layout = Layout.summed(model)
    before = layout.flatten(model)

    def train(model: Any, data: Any) -> Any:
        with torch.no_grad():
            model[2].weight += 100.0
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}

    Workload(train=train).step(model, None, layout, seed=1, device=CPU)
    assert (layout.flatten(model) - before).max() == pytest.approx(100.0)


X, Y = torch.zeros(500, 4), torch.zeros(500, dtype=torch.int64)
SET = torch.utils.data.TensorDataset(X, Y)
SMALL = torch.utils.data.TensorDataset(X[:100], Y[:100])
LOADER = torch.utils.data.DataLoader(SET, 16)


class Ward:
    samples = 500


COUNTED: dict[str, Any] = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "list of arrays": [X, Y],
    "with a mask": (X, Y, Y > 0),
    "mapping": {"x": X, "y": Y},
    "mapping with more": {"x": X, "y": Y, "name": "ward a", "rate": 0.1, "none": None},
    "nested": {"train": (X, Y), "val": (X[:10], Y[:10])},
    "pair of pairs": ((X, Y), (X[:10], Y[:10])),
    "loaders": (LOADER, torch.utils.data.DataLoader(SMALL, 16)),
    "mapping of loaders": {"train": LOADER, "val": torch.utils.data.DataLoader(SMALL, 16)},
    "sets": (SET, SMALL),
    "loader": LOADER,
    "sampled": torch.utils.data.DataLoader(
        torch.utils.data.ConcatDataset([SET, SMALL]), 8, sampler=torch.utils.data.SubsetRandomSampler(range(500))
    ),
    "subset": torch.utils.data.Subset(torch.utils.data.ConcatDataset([SET, SMALL]), range(500)),
    "pairs": [(X[0], 1)] * 500,
    "images": [X[0]] * 500,
    "lists": ([X[0]] * 500, [1] * 500),
    "dictionaries": [{"image": X[0], "label": 1}] * 500,
    "loader and a path": (LOADER, "/tmp/ward"),
    "one array": X.numpy(),
    "sparse": X.to_sparse(),
    "said": Ward(),
    "said in a tuple": (Ward(), "more"),
}


@pytest.mark.parametrize("form", COUNTED)
def test_samples_are_counted_in_every_container(form: str) -> None:
    assert samples_of(COUNTED[form]) == 500


@pytest.mark.parametrize(
    "data", ["/data/ward-a", Path("/data"), None, 5, iter([1]), (X, Y[:3]), {}, (), {"path": "/x"}, [X, X], object()]
)
def test_samples_that_cannot_be_counted_are_asked_for(data: Any) -> None:
    with pytest.raises(FactoryError, match=r"for how many samples the data \(.*\) count is not known: return \(x, y\)"):
        samples_of(data)
    assert samples_of(data, otherwise=1) == 1


def test_a_step_that_takes_a_context_is_told_where_it_is() -> None:
    seen: list[Context] = []

    def train(model: Any, data: Any, context: Context) -> None:
        seen.append(context)

    context = Context(round=3, client=1, device=CPU, configuration=TrainingConfiguration(), generator=torch.Generator())
    model = net()
    Workload(train=train).step(model, None, Layout.of(model), seed=1, device=CPU, context=context)
    Workload(train=in_place).step(model, None, Layout.of(model), seed=1, device=CPU, context=context)
    assert seen == [context]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X.double(), Y, r"returned x as float64: expected float32; write x\.float\(\)"),
        (X, Y.int(), r"returned y as int32: expected int64; write y\.long\(\)"),
        (X, Y[:, None], r"returned y \[500, 1\]: expected \[N\]; write y\[:, 0\]"),
        (X, torch.nn.functional.one_hot(Y, 3), r"returned y \[500, 3\]: expected the number of a class"),
        (X, Y - 1, "expected the number of a class for each row of x"),
    ],
)
def test_images_and_labels_of_other_types_are_refused_with_the_remedy(x: Any, y: Any, message: str) -> None:
    with pytest.raises(FactoryError, match=message):
        Workload(data=lambda client, clients: (x, y)).share(0, 3)
    assert Workload(data=lambda client, clients: (x, y), train=in_place).share(0, 3)[0] is x


def test_a_step_returns_metrics_alone_or_beside_its_update() -> None:
    update = np.ones(3, np.float32)
    for returned, names, expected in (
        ({"loss": 0.5, "seen": 3}, ("loss", "seen"), (0.5, 3.0)),
        ({"loss": torch.tensor(0.25), "f1": np.float64(0.5)}, ("f1", "loss"), (0.5, 0.25)),
        ((update, {"loss": -1.5}), ("loss",), (-1.5,)),
        ((None, {"loss": True}), ("loss",), (1.0,)),
        (None, (), ()),
        (update, (), ()),
    ):
        model = net()
        layout = Layout.of(model)
        workload = Workload(train=lambda model, data, returned=returned: returned)
        assert workload.step(model, None, layout, seed=1, device=CPU, metrics=names) == expected
    for returned, names, reason in (
        (
            {"loss": 0.5},
            (),
            r"returned the metrics \['loss'\], and training.metrics = \[\]: .*training=\{\"metrics\": \['loss'\]\}",
        ),
        ({"loss": 0.5}, ("loss", "f1"), r"training.metrics = \['loss', 'f1'\]"),
        (None, ("loss",), "returned the metrics \\[\\], and .* leave training.metrics out"),
        ({"loss": float("nan")}, ("loss",), "metric loss = nan: expected a number from -1000 to 1000"),
        ({"loss": 1e6}, ("loss",), "metric loss = 1000000.0"),
    ):
        workload = Workload(train=lambda model, data, returned=returned: returned)
        with pytest.raises(FactoryError, match=reason):
            workload.step(net(), None, Layout.of(net()), seed=1, device=CPU, metrics=names)

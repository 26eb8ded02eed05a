import msgspec
import pytest

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tests.cases import cases

SECTIONS = [ModelConfiguration, DataConfiguration, TrainingConfiguration]

# (section, field, accepted values, refused values); the numbers stand on both sides of every bound
FIELDS = [
    (ModelConfiguration, "name", ["x", "x" * 128], ["", "x" * 129, 1]),
    (ModelConfiguration, "image_size", [8, 1024], [7, 1025, 32.5]),
    (ModelConfiguration, "patch_size", [0, 1, 256], [-1, 257]),
    (ModelConfiguration, "width", [0, 4, 8192], [-1, 8193]),
    (ModelConfiguration, "depth", [0, 1, 128], [-1, 129]),
    (ModelConfiguration, "heads", [0, 1, 128], [-1, 129]),
    (ModelConfiguration, "mlp_ratio", [0.0, 0.5, 16.0], [-0.5, 16.5]),
    (ModelConfiguration, "pretrained", [True, False], ["yes"]),
    (ModelConfiguration, "checkpoint", ["", "a.safetensors"], [False]),
    (ModelConfiguration, "factory", ["", "package.module:function", "m:F"], ["function", "m:_f", "m:" + "f" * 255]),
    (ModelConfiguration, "train", [(), ("head.*", "*.lora_*")], [("",), "head"]),
    (ModelConfiguration, "tune", ["all", "head", "lora", "parallel"], ["bias"]),
    (ModelConfiguration, "rank", [1, 1024], [0, 1025]),
    (DataConfiguration, "source", ["digits", "a.npz"], ["", 3]),
    (DataConfiguration, "directory", [""], [1]),
    (DataConfiguration, "classes", [(), ("cat", "dog")], [("cat", "cat"), ("",), 3]),
    (DataConfiguration, "centres", [(), (5, 0, 1)], [(6,), (-1,), (1, 1)]),
    (DataConfiguration, "factory", ["", "package.module:function", "m:F"], ["function", "m:_f", "m:" + "f" * 255]),
    (DataConfiguration, "partition", ["dirichlet", "iid", "centre"], ["shards"]),
    (DataConfiguration, "alpha", [1e-6, 1e6], [0.0, 2e6]),
    (DataConfiguration, "mean", [(0.0, 1.0)], [(-0.1, 0.5), (0.5, 1.1)]),
    (DataConfiguration, "std", [(0.1, 1.0)], [(0.0, 0.5), (0.5, 1.1)]),
    (DataConfiguration, "statistics", ["given", "sum"], ["clients"]),
    (DataConfiguration, "limit", [0, 5], [-1]),
    (DataConfiguration, "channels", [0, 15], [-1, 16]),
    (TrainingConfiguration, "algorithm", ["fedavg", "fedsgd"], ["fedprox"]),
    (TrainingConfiguration, "epochs", [1, 1000], [0, 1001]),
    (TrainingConfiguration, "fedsgd_images", [0, 2**31 - 1], [-1, 2**31]),
    (TrainingConfiguration, "batch_size", [1, 65536], [0, 65537]),
    (TrainingConfiguration, "learning_rate", [1e-9, 100.0], [0.0, 101.0]),
    (TrainingConfiguration, "momentum", [0.0, 0.99], [-0.1, 1.0]),
    (TrainingConfiguration, "decay", [1e-9, 0.99], [0.0, 1.1]),
    (TrainingConfiguration, "decay_rounds", [(1, 100_000), (*range(1, 101),)], [(0,), (100_001,), (*range(1, 102),)]),
    (TrainingConfiguration, "warmup_rounds", [0, 100_000], [-1, 100_001]),
    (TrainingConfiguration, "cosine_rounds", [0, 100_000], [-1, 100_001]),
    (TrainingConfiguration, "proximal", [0.0, 1e4], [-0.1, 2e4]),
    (TrainingConfiguration, "server_optimizer", ["none", "momentum", "adam"], ["yogi"]),
    (TrainingConfiguration, "server_learning_rate", [0.0, 100.0], [-0.1, 101.0]),
    (TrainingConfiguration, "server_momentum", [0.0, 0.99], [-0.1, 1.0]),
    (TrainingConfiguration, "augment", [(), ("flip", "crop")], [("rotate",), ("flip", "flip", "flip")]),
    (TrainingConfiguration, "optimizer", ["adamw", "sgd"], ["lion"]),
    (TrainingConfiguration, "weight_decay", [0.0, 10.0], [-0.1, 10.5]),
    (TrainingConfiguration, "buffers", ["average", "local"], ["global"]),
    (TrainingConfiguration, "held_out", [0.0, 0.5], [-0.1, 0.51]),
    (TrainingConfiguration, "metrics", [(), ("loss", "f1")], ["loss", ["a b"], ["x" * 25], list("abcdefghi")]),
    (
        TrainingConfiguration,
        "factory",
        ["", "package.module:function", "m:F"],
        ["function", "m:_f", "m:" + "f" * 255, 1],
    ),
]


def others(section: type[msgspec.Struct], name: str) -> dict[str, object]:
    """Fields beside the one of this name, with which it may have any value."""
    if name in ("mean", "std"):
        return {"mean": (0.5, 0.5), "std": (0.5, 0.5)}
    if name == "centres":
        return {"source": "fed-isic2019", "directory": "isic"}
    if name == "channels":
        return {"statistics": "sum"}
    if name in ("fedsgd_images", "momentum"):
        return {"algorithm": "fedsgd"}
    if name == "tune":
        return {"name": "other", "checkpoint": "given.safetensors"}
    if name == "server_learning_rate":
        return {"server_optimizer": "adam"}
    if name == "metrics":
        return {"factory": "package.module:function"}
    if name in ("decay", "decay_rounds"):
        return {"decay": 0.5, "decay_rounds": (3,)}
    return {"name": "other"} if section is ModelConfiguration and name != "name" else {}


def test_the_table_names_every_field_once() -> None:
    fields = [(section, name) for section in SECTIONS for name in section.__struct_fields__]
    named = [(section, name) for section, name, _, _ in FIELDS]
    assert len(named) == len(fields)
    assert set(named) == set(fields)


@cases("section", SECTIONS)
def test_every_field_has_a_default(section: type[msgspec.Struct]) -> None:
    assert msgspec.convert({}, section) == section()


@cases(("section", "name", "accepted", "refused"), FIELDS)
def test_bounds(section: type[msgspec.Struct], name: str, accepted: list[object], refused: list[object]) -> None:
    for value in accepted:
        assert getattr(msgspec.convert({**others(section, name), name: value}, section), name) == value
    for value in refused:
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.convert({**others(section, name), name: value}, section)


@cases("section", SECTIONS)
def test_unknown_fields_are_refused(section: type[msgspec.Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="dampening"):
        msgspec.convert({"dampening": 0.9}, section)


VIT = {"name": "vit_tiny_patch16_224"}

CONTRADICTIONS: list[tuple[type[msgspec.Struct], dict[str, object], str]] = [
    (TrainingConfiguration, {"metrics": ["loss"]}, "training.metrics = .'loss'.: each names, once"),
    (TrainingConfiguration, {"factory": "m:f", "metrics": ["f1", "f1"]}, "training.metrics = .*: each names, once"),
    (ModelConfiguration, {"image_size": 30}, "image_size 30 must be a multiple of model.patch_size 8"),
    (ModelConfiguration, {"name": "lenet", "width": 64}, 'model.width = 64: "lenet" has its own sizes; leave it out'),
    (ModelConfiguration, {"width": 65}, "width 65 must be a multiple of model.heads"),
    (ModelConfiguration, {"pretrained": True}, "pretrained needs a timm model name"),
    (ModelConfiguration, {**VIT, "pretrained": True, "checkpoint": "a.safetensors"}, "exclude each other"),
    (DataConfiguration, {"centres": [1]}, 'data.centres = .1.: data.source "digits" does not say at which centre'),
    (
        TrainingConfiguration,
        {"fedsgd_images": 8},
        'training.fedsgd_images = 8: with training.algorithm = "fedavg" clients train on all of their images; set it',
    ),
    (
        TrainingConfiguration,
        {"momentum": 0.9},
        'training.momentum = 0.9: training.optimizer = "adamw" has moments of its own; set it to "sgd", or momentum',
    ),
    *(
        (TrainingConfiguration, {"algorithm": "fedsgd", key: value}, f"training.{key} = .*clients send one gradient")
        for key, value in {"proximal": 0.1, "augment": ["flip"], "server_optimizer": "adam"}.items()
    ),
    (TrainingConfiguration, {"server_learning_rate": 0.1}, 'server_optimizer = "none" the server adds the mean'),
    (
        TrainingConfiguration,
        {"factory": "m:f", "proximal": 0.1},
        "training.proximal is not used where training.factory",
    ),
    (TrainingConfiguration, {"decay": 0.1}, r"decay = 0.1 and training.decay_rounds = \[\]: one says nothing without"),
    (TrainingConfiguration, {"decay_rounds": [5]}, r"decay = 1.0 and training.decay_rounds = \[5\]: one says nothing"),
    *(
        (TrainingConfiguration, {"decay": 0.1, "decay_rounds": rounds}, "every round once, in ascending order")
        for rounds in ([5, 5], [5, 4], [1, 3, 2])
    ),
]


@cases(("section", "fields", "message"), CONTRADICTIONS)
def test_contradictions_are_refused(section: type[msgspec.Struct], fields: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(fields, section)
    with pytest.raises(ValueError, match=message):
        section(**fields)


def test_the_learning_rate_decays_from_each_of_its_rounds_on() -> None:
    training = TrainingConfiguration(learning_rate=0.75, decay=0.5, decay_rounds=(2, 5, 6), epochs=7)
    rates = [training.in_round(round).learning_rate for round in range(1, 9)]
    assert rates == [0.75, 0.375, 0.375, 0.375, 0.1875, 0.09375, 0.09375, 0.09375]
    assert training.in_round(5) == TrainingConfiguration(learning_rate=0.1875, epochs=7)


def test_sizes_have_defaults_where_nothing_else_has_them() -> None:
    assert (ModelConfiguration().patch_size, ModelConfiguration().mlp_ratio) == (8, 2.0)
    assert (ModelConfiguration(**VIT).patch_size, ModelConfiguration(**VIT).width) == (0, 0)


def test_the_learning_rate_of_a_round() -> None:
    cosine = TrainingConfiguration(learning_rate=1.0, warmup_rounds=4, cosine_rounds=8)
    rates = [cosine.in_round(round).learning_rate for round in range(1, 16)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[7] == pytest.approx(0.505)
    assert rates[11:] == pytest.approx([0.01] * 4)
    assert rates[3:12] == sorted(rates[3:12], reverse=True)
    alone = TrainingConfiguration(learning_rate=1.0, cosine_rounds=2)
    assert [alone.in_round(round).learning_rate for round in (1, 2, 3)] == pytest.approx([1.0, 0.505, 0.01])

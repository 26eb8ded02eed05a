import msgspec
import pytest

from tacit.models.configuration import DataConfiguration, ModelConfiguration, TrainingConfiguration
from tests.cases import cases

SECTIONS = [ModelConfiguration, DataConfiguration, TrainingConfiguration]


@cases("section", SECTIONS)
def test_every_field_has_a_default(section: type[msgspec.Struct]) -> None:
    assert msgspec.convert({}, section) == section()


@cases("section", SECTIONS)
def test_unknown_fields_are_refused(section: type[msgspec.Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="dampening"):
        msgspec.convert({"dampening": 0.9}, section)


VIT = {"name": "vit_tiny_patch16_224"}

CONTRADICTIONS: list[tuple[type[msgspec.Struct], dict[str, object], str]] = [
    (TrainingConfiguration, {"metrics": ["loss"]}, "training.metrics = .'loss'.:"),
    (TrainingConfiguration, {"factory": "m:f", "metrics": ["f1", "f1"]}, "training.metrics = .*:"),
    (ModelConfiguration, {"image_size": 30}, "image_size 30 must be a multiple of model.patch_size 8"),
    (ModelConfiguration, {"name": "lenet", "width": 64}, "model.width = 64:"),
    (ModelConfiguration, {"width": 65}, "width 65 must be a multiple of model.heads"),
    (ModelConfiguration, {"pretrained": True}, "pretrained needs a timm model name"),
    (ModelConfiguration, {**VIT, "pretrained": True, "checkpoint": "a.safetensors"}, "exclude each other"),
    (DataConfiguration, {"centres": [1]}, "data.centres = .1.:"),
    (TrainingConfiguration, {"fedsgd_images": 8}, "training.fedsgd_images = 8:"),
    (TrainingConfiguration, {"momentum": 0.9}, "training.momentum = 0.9:"),
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
    (TrainingConfiguration, {"decay": 0.1}, "decay = 0.1 and training.decay_rounds = \\[\\]:"),
    (TrainingConfiguration, {"decay_rounds": [5]}, "decay = 1.0 and training.decay_rounds = \\[5\\]:"),
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

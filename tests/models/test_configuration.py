import subprocess
import sys

import msgspec
import pytest

from tacit.models.configuration import (
    DataConfiguration,
    ModelConfiguration,
    ProtectionConfiguration,
    TrainingConfiguration,
)

SECTIONS = [ModelConfiguration, DataConfiguration, TrainingConfiguration, ProtectionConfiguration]

# (section, field, accepted values, refused values); the numbers stand on both sides of every bound
FIELDS = [
    (ModelConfiguration, "name", ["x", "x" * 128], ["", "x" * 129, 1]),
    (ModelConfiguration, "image_size", [8, 1024], [7, 1025, 32.5]),
    (ModelConfiguration, "patch_size", [1, 256], [0, 257]),
    (ModelConfiguration, "width", [4, 8192], [0, 8193]),
    (ModelConfiguration, "depth", [1, 128], [0, 129]),
    (ModelConfiguration, "heads", [1, 128], [0, 129]),
    (ModelConfiguration, "mlp_ratio", [0.5, 16.0], [0.0, 16.5]),
    (ModelConfiguration, "pretrained", [True, False], ["yes"]),
    (ModelConfiguration, "checkpoint", ["", "a.safetensors"], [False]),
    (DataConfiguration, "source", ["digits", "a.npz"], ["", 3]),
    (DataConfiguration, "directory", [""], [1]),
    (DataConfiguration, "partition", ["dirichlet", "iid", "centre"], ["shards"]),
    (DataConfiguration, "alpha", [1e-6, 1e6], [0.0, 2e6]),
    (TrainingConfiguration, "algorithm", ["fedavg", "fedsgd"], ["fedprox"]),
    (TrainingConfiguration, "epochs", [1, 1000], [0, 1001]),
    (TrainingConfiguration, "batch_size", [1, 65536], [0, 65537]),
    (TrainingConfiguration, "learning_rate", [1e-9, 100.0], [0.0, 101.0]),
    (TrainingConfiguration, "optimizer", ["adamw", "sgd"], ["lion"]),
    (TrainingConfiguration, "weight_decay", [0.0, 10.0], [-0.1, 10.5]),
    (ProtectionConfiguration, "scheme", ["none", "model-encryption+fixed-position"], ["encryption", "fixed-position+"]),
    (ProtectionConfiguration, "zero_probability", [0.0, 0.999], [-0.1, 1.0]),
    (ProtectionConfiguration, "layers", [{}, {"head.*": 0.0, "*": 0.999}], [{"head.*": 1.0}, {"head.*": -0.1}]),
    (ProtectionConfiguration, "min_contributors", [2, 1000], [0, 1001]),
    (ProtectionConfiguration, "enforce", ["server", "clients"], ["both"]),
    (ProtectionConfiguration, "masks", ["independent", "coordinated"], ["locked"]),
    (ProtectionConfiguration, "matrix", ["orthogonal", "gaussian"], ["identity"]),
    (ProtectionConfiguration, "initial_model", ["clients", "server"], ["nobody"]),
    (ProtectionConfiguration, "accept_known_plaintext", [True, False], ["yes"]),
    (ProtectionConfiguration, "rekey_every", [0, 100_000], [-1, 100_001]),
    (ProtectionConfiguration, "granularity", ["layer", "block"], ["tensor"]),
    (ProtectionConfiguration, "mask", ["highest", "lowest"], ["random"]),
    (ProtectionConfiguration, "masked_layers", [0, 10_000], [-1, 10_001]),
    (ProtectionConfiguration, "skip_masked_layers", [True, False], [1, "yes"]),
    (ProtectionConfiguration, "split", ["", "blocks.1"], ["x" * 129]),
    (ProtectionConfiguration, "distillation_steps", [1, 1_000_000], [0, 1_000_001]),
    (ProtectionConfiguration, "dp_clip", [0.0, 1e6], [-0.1, 2e6]),
    (ProtectionConfiguration, "dp_noise", [1e-9, 1e6], [0.0, 2e6]),
    (ProtectionConfiguration, "dp_delta", [1e-9, 0.999], [0.0, 1.0]),
]

# The scheme that uses a field, so that it may vary alone: the rules that join fields are tested below.
SCHEMES = {
    **dict.fromkeys(("granularity", "mask", "masked_layers", "skip_masked_layers"), "fedrsm"),
    "split": "fedsplit",
    "distillation_steps": "fedcg",
    **dict.fromkeys(("dp_clip", "dp_noise", "dp_delta"), "dp-gaussian"),
}


def others(section: type[msgspec.Struct], name: str) -> dict[str, object]:
    """Fields beside the one of this name, with which it may have any value."""
    if section is ProtectionConfiguration and name in SCHEMES:
        return {"scheme": SCHEMES[name]}
    if section is ProtectionConfiguration and name != "scheme":
        return {"scheme": "model-encryption+binary-weights", "min_contributors": 2}
    return {"name": "other"} if section is ModelConfiguration and name != "name" else {}


def test_the_table_names_every_field_once() -> None:
    fields = [(section, name) for section in SECTIONS for name in section.__struct_fields__]
    assert [(section, name) for section, name, _, _ in FIELDS] == fields


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_has_a_description_and_a_default(section: type[msgspec.Struct]) -> None:
    assert msgspec.convert({}, section) == section()
    schema = msgspec.json.schema(section)["$defs"][section.__name__]["properties"]
    assert all(properties["description"].endswith(".") for properties in schema.values())


@pytest.mark.parametrize(("section", "name", "accepted", "refused"), FIELDS)
def test_bounds(section: type[msgspec.Struct], name: str, accepted: list[object], refused: list[object]) -> None:
    for value in accepted:
        assert getattr(msgspec.convert({**others(section, name), name: value}, section), name) == value
    for value in refused:
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.convert({**others(section, name), name: value}, section)


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_fields_are_refused(section: type[msgspec.Struct]) -> None:
    with pytest.raises(msgspec.ValidationError, match="momentum"):
        msgspec.convert({"momentum": 0.9}, section)


VIT = {"name": "vit_tiny_patch16_224"}
BINARY: dict[str, object] = {"scheme": "binary-weights", "min_contributors": 2}

CONTRADICTIONS: list[tuple[type[msgspec.Struct], dict[str, object], str]] = [
    (ModelConfiguration, {"image_size": 30}, "image_size 30 must be a multiple of model.patch_size 8"),
    (ModelConfiguration, {"width": 65}, "width 65 must be a multiple of model.heads"),
    (ModelConfiguration, {"pretrained": True}, "pretrained needs a timm model name"),
    (ModelConfiguration, {**VIT, "pretrained": True, "checkpoint": "a.safetensors"}, "exclude each other"),
    *(
        (ProtectionConfiguration, {"scheme": scheme, name: value}, f"protection.{name} is used with {purpose} only")
        for purpose, schemes, options in (
            (
                "binary weights",
                ("none", "fixed-position", "model-encryption"),
                {
                    "layers": {"head.*": 0.5},
                    "zero_probability": 0.25,
                    "enforce": "clients",
                    "masks": "coordinated",
                },
            ),
            (
                "binary weights and fedrsm",
                ("none", "fixed-position", "model-encryption", "fedsplit"),
                {"min_contributors": 2},
            ),
            (
                "fedrsm",
                ("none", "binary-weights"),
                {"granularity": "block", "mask": "lowest", "masked_layers": 2},
            ),
            (
                "schemes that keep whole tensors back",
                ("none", "binary-weights", "model-encryption", "dp-gaussian"),
                {"skip_masked_layers": True},
            ),
            ("fedsplit and fedcg", ("none", "fedrsm"), {"split": "blocks.1"}),
            ("fedcg", ("none", "fedsplit"), {"distillation_steps": 5}),
            ("dp-gaussian", ("none", "fedsplit"), {"dp_clip": 2.0, "dp_noise": 0.5, "dp_delta": 1e-6}),
            (
                "model encryption",
                ("none", "binary-weights"),
                {"matrix": "gaussian", "initial_model": "server", "accept_known_plaintext": True},
            ),
            ("a group key", ("none", "binary-weights", "locked-binary-weights"), {"rekey_every": 1}),
        )
        for scheme in schemes
        for name, value in options.items()
    ),
    (
        ProtectionConfiguration,
        {"scheme": "locked-binary-weights", "masks": "coordinated"},
        "needs fresh weights in every round; scheme is locked",
    ),
    (ProtectionConfiguration, {**BINARY, "masks": "coordinated", "enforce": "clients"}, 'set enforce = "server"'),
    (ProtectionConfiguration, {"scheme": "binary-weights", "enforce": "clients"}, "has nothing to enforce"),
]


@pytest.mark.parametrize(("section", "fields", "message"), CONTRADICTIONS)
def test_contradictions_are_refused(section: type[msgspec.Struct], fields: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(fields, section)
    with pytest.raises(ValueError, match=message):
        section(**fields)


PARTS = {
    "none": "",
    "fixed-position": "fixed_position",
    "binary-weights": "binary",
    "locked-binary-weights": "binary locked",
}


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("scheme", PARTS)
def test_a_scheme_is_what_its_name_says(scheme: str, encrypted: bool) -> None:
    name = "+".join(["model-encryption"] * encrypted + [scheme] * (scheme != "none" or not encrypted))
    protection = ProtectionConfiguration(scheme=name)  # type: ignore[arg-type]
    flags = {flag for flag in ("fixed_position", "binary", "locked", "encrypted") if getattr(protection, flag)}
    assert flags == {*PARTS[scheme].split(), *["encrypted"] * encrypted}
    assert protection.group_key == encrypted


def test_coordination_needs_a_group_key() -> None:
    assert ProtectionConfiguration(scheme="binary-weights", masks="coordinated", rekey_every=4).group_key


def test_reading_the_configuration_does_not_import_torch() -> None:
    script = "import sys, tacit.models.configuration; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)

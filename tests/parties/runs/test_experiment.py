"""The experiment file: what is accepted, every refusal, and the documentation generated from the schema."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.binary_weights import BinaryWeights
from tacit.parties.protections.catalogue import read_protection, registered
from tacit.parties.protections.encryption import Encryption
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.runs.experiment import (
    Aggregation,
    Experiment,
    ExperimentError,
    FederationSection,
    accepted,
    keys,
    load,
    parse,
    read_section,
    refusal,
    with_overrides,
)
from tacit.parties.runs.reference import experiment_toml
from tacit.secagg.graph import GraphParameters
from tacit.secagg.packing import WeightForm

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
KEYS = list(keys(Experiment))


def refused(text: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        parse(text, "federation.toml")
    return str(caught.value)


def test_an_empty_file_is_the_default_experiment() -> None:
    assert parse("", "empty.toml") == Experiment()


def test_what_is_written_is_what_is_read() -> None:
    experiment = parse(
        'name = "lungs"\n[federation]\nclients = 20\nseed = 7\n[aggregation]\nmode = "semi-honest"\nclip = 1\n'
        '[policy]\nmodes = ["active", "semi-honest"]\n[training]\nepochs = 1\n',
        "lungs.toml",
    )
    assert experiment.name == "lungs"
    assert experiment.federation == FederationSection(clients=20, seed=7)
    assert experiment.aggregation == Aggregation(mode="semi-honest", clip=1.0)
    assert experiment.policy.modes == ("active", "semi-honest")
    assert experiment.training.epochs == 1


# Values on the wrong side of each kind of bound, of the wrong type, and at the wrong place.
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[federation]\nclients = 1", "federation.clients = 1:"),
        ("[federation]\nclients = true", "federation.clients = true:"),
        ("[federation]\nseed = -1", "federation.seed = -1:"),
        ("[aggregation]\nclip = -1", "aggregation.clip = -1:"),
        ("[aggregation]\nclip = nan", "aggregation.clip = nan:"),
        ('[aggregation]\nmode = "honest"', 'aggregation.mode = "honest":'),
        ("[model]\npretrained = 1", "model.pretrained = 1:"),
        *((f'name = "{name}"', f'name = "{name}":') for name in ("x/../../escape", "/", "a\\nb", "a\\u0000")),
        ('name = ""', 'name = "":'),
        ("[policy]\nmodes = []", "policy.modes = []:"),
    ],
)
def test_a_bad_value_is_named_with_what_is_accepted(text: str, complaint: str) -> None:
    assert refused(text).startswith(f"federation.toml: {complaint}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[federation]\nclient = 5", "federation.client = 5: there is no such key; did you mean federation.clients?"),
        (
            "[deadlines]\nzzz = [1]",
            "deadlines.zzz = [1]: there is no such key; accepted: deadlines.join, deadlines.train",
        ),
    ],
)
def test_an_unknown_key_is_named_with_close_matches(text: str, complaint: str) -> None:
    assert refused(text).startswith(f"federation.toml: {complaint}")


# Keys that contradict each other.
SEMI_HONEST = '[policy]\nmodes = ["semi-honest"]\n[aggregation]\nmode = "semi-honest"\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[federation]\nclients = 2", "federation.clients = 2:"),
        ('[aggregation]\nmode = "semi-honest"', 'aggregation.mode = "semi-honest":'),
        ("[aggregation]\nclip = 1.5", "aggregation.clip = 1.5:"),
        ("[aggregation]\ncorrupt = 0.19", "aggregation.corrupt = 0.19:"),
        ("[aggregation]\nthreshold = 6", "aggregation.threshold = 6:"),
        ("[policy]\nlargest_epsilon = 8.0", 'protection.scheme = "none":'),
        ('[policy]\nlargest_epsilon = 8.0\n[protection]\nscheme = "dp-gaussian"', "policy.largest_epsilon = 8.0:"),
        ("[policy]\nleast_corrupt = 0.0\n[aggregation]\ncorrupt = 0.0\nthreshold = 3", "aggregation.threshold = 3:"),
        ("[policy]\nthreshold_floor = 5", "aggregation.threshold = 4:"),
        ("[federation]\nclients = 10\n[aggregation]\ncorrupt = 0.5", "aggregation.corrupt = 0.5:"),
        ('[aggregation]\ngraph = "regular"', 'aggregation.graph = "regular":'),
        ("[federation]\nclients = 30\n" + SEMI_HONEST + "corrupt = 0.6\ndropout = 0.6", "aggregation.corrupt = 0.6:"),
        ("[aggregation]\nring_bits = 22", "aggregation.ring_bits = 22:"),
        ("[model]\nimage_size = 30", "model.image_size 30 "),
    ],
)
def test_keys_that_contradict_each_other_are_refused(text: str, complaint: str) -> None:
    assert refused(text).startswith(f"federation.toml: {complaint}")


BINARY = '[protection]\nscheme = "binary-weights"\n'
RSM = '[protection]\nscheme = "fedrsm"\n'
ALONE = "[policy]\nuncoordinated_weights = true\n"
ENCRYPTED = "[encryption]\n"
COORDINATED = '[protection]\nscheme = "coordinated-binary-weights"\n'
NO_SECURE_SUM = '[policy]\nmodes = ["none"]\n[aggregation]\nmode = "none"\n'
KNOWN = 'initial_model = "server"\n'
KNOWN_PLAINTEXT = (
    'encryption.initial_model = "server": the server knows the plain first model and receives the encrypted one, so it '
    'can compute the clients\' key and read every update, which nothing else hides (aggregation.mode = "none"); use '
    'secure aggregation, or initial_model = "clients", or set policy.accept_known_plaintext = true'
)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"{BINARY}{ALONE}least_contributors = 2", "protection.min_contributors = 1:"),
        *((text, f'protection.scheme = "{scheme}":') for scheme, text in (("binary-weights", BINARY), ("fedrsm", RSM))),
        (f"{COORDINATED}min_contributors = 2", "protection.min_contributors = 2:"),
        (f"{COORDINATED}min_contributors = 5", "protection.min_contributors = 5:"),
        (f'{BINARY}enforce = "server"', 'protection.enforce = "server":'),
        ('[protection]\nscheme = "fedrsm"\nskip_masked_layers = true', "protection.skip_masked_layers = true:"),
        *(
            (f"{scheme}[aggregation]\nring_bits = 25", "aggregation.ring_bits = 25:")
            for scheme in (BINARY, COORDINATED)
        ),
        *(
            (f'[protection]\nscheme = "{scheme}"\n[training]\nalgorithm = "fedsgd"', f'protection.scheme = "{scheme}":')
            for scheme in ("fedrsm", "fedsplit")
        ),
        ('[protection]\nscheme = "fedrsm"\nmin_contributors = 6', "protection.min_contributors = 6:"),
        ("[protection]\nmasked_layers = 2", "protection.masked_layers = 2:"),
        *(
            (
                f'{ENCRYPTED}[protection]\nscheme = "{scheme}"',
                f'protection.scheme = "{scheme}" works on updates in the clear, and [encryption] encrypts them; remove',
            )
            for scheme in ("fedrsm", "fedsplit", "dp-gaussian")
        ),
        ('[policy]\nprotections = ["none", "fedprox"]', "policy.protections:"),
        ("[policy]\nleast = {masked_layer = 1}", "policy.least:"),
        (
            f'{ENCRYPTED}[model]\ncheckpoint = "a.safetensors"',
            'model.checkpoint is set, but encryption.initial_model = "clients" makes random weights; set it to',
        ),
        (
            f'{ENCRYPTED}[model]\nname = "vit_tiny_patch16_224"\npretrained = true',
            'model.pretrained is set, but encryption.initial_model = "clients" makes random weights; set it to',
        ),
        (f"{ENCRYPTED}{KNOWN}{NO_SECURE_SUM}", KNOWN_PLAINTEXT),
        (f"{ENCRYPTED}{NO_SECURE_SUM}threshold = 3", "aggregation.threshold = 3:"),
    ],
)
def test_a_protection_that_cannot_be_is_refused(text: str, complaint: str) -> None:
    assert refused(text).startswith(f"federation.toml: {complaint}")


@pytest.mark.parametrize(
    "text",
    [
        f"{ENCRYPTED}{NO_SECURE_SUM}",
        f"{ENCRYPTED}{KNOWN}",
        f'{ENCRYPTED}{KNOWN}[model]\ncheckpoint = "a.safetensors"',
        f"{ENCRYPTED}{KNOWN}[policy]\naccept_known_plaintext = true\n{NO_SECURE_SUM.removeprefix('[policy]')}",
        f"{COORDINATED}min_contributors = 4\n{NO_SECURE_SUM}",
        f"{COORDINATED}{ENCRYPTED}",
        f"{BINARY}{ALONE}[aggregation]\nring_bits = 26",
        f"{COORDINATED}min_contributors = 3",
    ],
)
def test_a_protection_at_the_edge_of_these_rules_is_accepted(text: str) -> None:
    parse(text, "federation.toml")


def test_an_experiment_made_in_python_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"^aggregation\.clip = 2\.0: \[policy\] accepts at most"):
        Experiment(federation=FederationSection(clients=5), aggregation=Aggregation(clip=2.0))


@pytest.mark.parametrize(
    ("text", "place"),
    [("[federation", "at end of document"), ("[federation]\nclients = 5\nclients = 6\n", "at line 3, column 12")],
)
def test_text_that_is_not_toml(text: str, place: str) -> None:
    message = refused(text)
    assert message.startswith("federation.toml: is not TOML: ")
    assert message.endswith(f"({place})")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"nowhere\.toml: cannot be read: No such file or directory"):
        load(tmp_path / "nowhere.toml")
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "a' + b"\xe9" + b'"')
    with pytest.raises(ExperimentError, match=r"latin\.toml: is not UTF-8 text at byte 9"):
        load(latin)


def test_load_reads_a_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(experiment_toml(Experiment()))
    assert load(path) == Experiment()
    path.write_text("[federation]\nrounds = 0")
    with pytest.raises(ExperimentError, match=r"federation\.toml: federation\.rounds = 0: expected"):
        load(path)


def test_overrides_change_what_is_given_and_are_checked() -> None:
    experiment = parse("[federation]\nseed = 3\n[training]\nepochs = 2", "federation.toml")
    assert with_overrides(experiment) == experiment
    changed = with_overrides(experiment, clients=8, rounds=2, seed=0)
    assert changed.federation == FederationSection(clients=8, rounds=2, seed=0)
    assert changed.training == experiment.training
    with pytest.raises(ExperimentError, match=r"^overrides: federation\.clients = 0: expected"):
        with_overrides(experiment, clients=0)
    with pytest.raises(ExperimentError, match=r"^--clients: federation\.clients = 2: \[policy\] accepts at"):
        with_overrides(experiment, clients=2, where="--clients")


@pytest.mark.parametrize(
    ("experiment", "parameters"),
    [
        (Experiment(), GraphParameters(4, 4)),
        (Experiment(aggregation=Aggregation(threshold=5)), GraphParameters(4, 5)),
        (Experiment(federation=FederationSection(clients=100)), GraphParameters(99, 67)),
        (
            Experiment(
                federation=FederationSection(clients=100),
                aggregation=Aggregation(mode="semi-honest"),
                policy=ClientPolicy(modes=("semi-honest",)),
            ),
            GraphParameters(68, 34),
        ),
        (
            Experiment(
                aggregation=Aggregation(threshold=5, corrupt=0.0),
                policy=ClientPolicy(threshold_floor=5, least_corrupt=0.0),
            ),
            GraphParameters(4, 5),
        ),
    ],
    ids=["default", "configured", "100 active", "100 semi-honest", "floor raised"],
)
def test_graph_parameters(experiment: Experiment, parameters: GraphParameters) -> None:
    assert experiment.graph_parameters() == parameters


def test_packing_takes_its_numbers_from_the_experiment() -> None:
    packing = Experiment().packing(tensor_sizes=(10, 3), metrics=("samples",))
    assert (packing.clients, packing.clip, packing.max_weight, packing.ring.bits) == (5, 0.25, 2000, 24)
    accepting = ClientPolicy(uncoordinated_weights=True)
    binary = Experiment(protection=BinaryWeights(), policy=accepting)
    packing = binary.packing(tensor_sizes=(10, 3), metrics=())
    assert (packing.form, packing.max_weight, packing.ring.bits) == (WeightForm.COORDINATE, 1, 32)
    fixed = Experiment(protection=FixedPosition())
    assert fixed.packing(tensor_sizes=(10, 3), metrics=()).form is WeightForm.TENSOR
    five = FederationSection(clients=5)
    with pytest.raises(ValueError, match="ring_bits = 24 is too small"):
        Experiment(federation=five, protection=BinaryWeights(), policy=accepting, aggregation=Aggregation(ring_bits=24))


TOML = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([part for key in KEYS for part in key.path.split(".")]) | st.text(max_size=12)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(NAMES, TOML | st.dictionaries(NAMES, TOML, max_size=3), max_size=3))
def test_whatever_stands_in_a_file_is_accepted_or_explained(data: dict[str, Any]) -> None:
    try:
        msgspec.convert(data, Experiment, dec_hook=read_section)
    except msgspec.ValidationError as error:
        text = refusal(error, data, Experiment)
        assert any(text.startswith(name) for name in [*data, "model.", "aggregation.", "federation."])


def test_types_without_words_are_a_defect() -> None:
    class Strange(msgspec.Struct):
        raw: bytes

    with pytest.raises(TypeError, match="no words for the type"):
        accepted(msgspec.inspect.type_info(bytes))
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([], Strange)
    with pytest.raises(TypeError, match="names no place"):
        refusal(caught.value, {}, Strange)


@pytest.mark.parametrize("encryption", [None, Encryption(matrix="gaussian", initial_model="server", rekey_every=3)])
@pytest.mark.parametrize("scheme", registered())
def test_a_file_with_any_protection_parses_back(scheme: str, encryption: Encryption | None) -> None:
    protection = read_protection({"scheme": scheme})
    mode = "none" if scheme == "fedcg" else "active"
    experiment = Experiment(
        protection=protection,
        encryption=encryption if protection.works_encrypted else None,
        aggregation=Aggregation(mode=mode),  # type: ignore[arg-type]
        policy=ClientPolicy(
            modes=(mode,),  # type: ignore[arg-type]
            least=protection.strengths(),
            uncoordinated_weights=protection.contributors_vary,
        ),
    )
    text = experiment_toml(experiment)
    assert parse(text, "again.toml") == experiment
    assert f'\nscheme = "{scheme}"\n' in text
    assert text.count('\n# scheme = "') == len(registered()) - 1


# What a policy asks of a protection, its strength included.
GAUSSIAN = '[protection]\nscheme = "dp-gaussian"\n'
LEAST = f"{ALONE}least = {{masked_layers = 2, zero_probability = 0.5, dp_noise = 1.0}}\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{RSM}masked_layers = 2\n{LEAST}",
        f"{RSM}masked_layers = 0\n{ALONE}",
        f'{RSM}masked_layers = 0\n{ALONE}protections = ["fedrsm"]\nleast = {{masked_layers = 0}}',
        f"{BINARY}layers = {{pos_embed = 0.75}}\n{LEAST}",
        f"{GAUSSIAN}dp_noise = 1.0\n{LEAST}largest_clip = 13.0",
        f"{ENCRYPTED}[policy]\nencryptions = ['orthogonal']",
    ],
)
def test_a_protection_as_strong_as_the_policy_asks_is_accepted(text: str) -> None:
    parse(text, "federation.toml")


def test_importing_the_schema_does_not_load_torch() -> None:
    code = "import sys, tacit.parties.runs.experiment; print(sorted({'torch', 'timm', 'sklearn'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

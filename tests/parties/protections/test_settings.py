"""The settings of every protection and of encryption: keys of its own, contradictions, and what it says."""

from typing import Any

import msgspec
import pytest

from tacit.models.configuration import TrainingConfiguration
from tacit.parties.protections.binary_weights import BinaryWeights, CoordinatedBinaryWeights, LockedBinaryWeights
from tacit.parties.protections.catalogue import pinnable, protection_hook, read_protection, register, registered
from tacit.parties.protections.encryption import Encryption, check_together
from tacit.parties.protections.fedcg import FedCG
from tacit.parties.protections.fedrsm import FedRSM
from tacit.parties.protections.fedsplit import FedSplit
from tacit.parties.protections.fixed_position import FixedPosition
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Facts, Protection, Scheme, name_of
from tacit.parties.runs.experiment import Aggregation, ClientPolicy, Experiment
from tacit.secagg.packing import WeightForm

PROTECTIONS = list(registered().values())


def test_a_protection_has_its_own_keys_and_no_others() -> None:
    assert read_protection({"scheme": "fedcg", "distillation_steps": 3}) == FedCG(distillation_steps=3)
    with pytest.raises(msgspec.ValidationError, match="unknown field `distillation_steps`"):
        read_protection({"scheme": "fedsplit", "distillation_steps": 3})


COORDINATE, TENSOR = WeightForm.COORDINATE, WeightForm.TENSOR


@pytest.mark.parametrize(
    ("protection", "facts"),
    [
        (NoProtection(), Facts()),
        (FixedPosition(), Facts(form=TENSOR)),
        (BinaryWeights(min_contributors=3), Facts(form=COORDINATE, min_contributors=3)),
        (LockedBinaryWeights(), Facts(form=COORDINATE, min_contributors=1)),
        (
            CoordinatedBinaryWeights(rekey_every=4),
            Facts(form=COORDINATE, min_contributors=3, group_key=True, rekey_every=4),
        ),
        (FedRSM(min_contributors=2), Facts(form=TENSOR, min_contributors=2)),
        (FedSplit(), Facts(form=TENSOR)),
        (FedCG(), Facts(form=TENSOR, single_vectors=True)),
        (GaussianNoise(), Facts()),
    ],
)
def test_what_the_protocol_enforces(protection: Protection, facts: Facts) -> None:
    assert protection.facts() == facts


ENCRYPTABLE = {"none", "fixed-position", "binary-weights", "locked-binary-weights", "coordinated-binary-weights"}


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_encryption_combines_with_what_works_on_encrypted_updates(protection: type[Scheme]) -> None:
    """Every protection says it of itself; there is no list of pairs."""
    mode = "none" if protection is FedCG else "active"
    policy = ClientPolicy(modes=(mode,))
    terms = Experiment(aggregation=Aggregation(mode=mode), policy=policy).terms()  # type: ignore[arg-type]
    check_together(protection(), None, terms, TrainingConfiguration())
    if name_of(protection) in ENCRYPTABLE:
        check_together(protection(), Encryption(), terms, TrainingConfiguration())
        return
    with pytest.raises(ValueError, match=f'"{name_of(protection)}" works on updates in the clear, and .encryption.'):
        check_together(protection(), Encryption(), terms, TrainingConfiguration())


@pytest.mark.parametrize(
    ("protection", "strengths"),
    [
        (NoProtection(), {}),
        (FixedPosition(), {}),
        (BinaryWeights(), {"zero_probability": 0.5}),
        (BinaryWeights(layers={"head.*": 0.25, "*": 0.9}), {"zero_probability": 0.25}),
        (LockedBinaryWeights(zero_probability=0.0), {"zero_probability": 0.0}),
        (CoordinatedBinaryWeights(min_contributors=3), {"zero_probability": 0.5}),
        (FedRSM(masked_layers=2), {"masked_layers": 2}),
        (FedRSM(masked_layers=2, adaptive=True), {"masked_layers": 1}),
        (FedRSM(masked_layers=0, adaptive=True), {"masked_layers": 0}),
        (FedSplit(), {}),
        (FedCG(), {}),
        (GaussianNoise(dp_noise=0.5), {"dp_noise": 0.5}),
        (GaussianNoise(dp_noise=0.5, dp_clip=0.0), {"dp_noise": 0.0}),
    ],
)
def test_what_a_policy_may_ask_for(protection: Protection, strengths: dict[str, float]) -> None:
    assert protection.strengths() == strengths
    assert set(strengths) <= set(pinnable())


@pytest.mark.parametrize("value", [{"scheme": "fedprox"}, {"scheme": 3}, {"scheme": ["none"]}, {"scheme": None}])
def test_an_unknown_scheme_is_refused_with_those_that_there_are(value: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r'protection\.scheme = .*: expected "none" or "fixed-position" or'):
        read_protection(value)


def test_nothing_but_a_protection_is_read() -> None:
    assert protection_hook(Protection, FedSplit()) == FedSplit()
    with pytest.raises(ValueError, match="a section with keys of its own"):
        protection_hook(Protection, 3)
    with pytest.raises(NotImplementedError):
        protection_hook(dict, {})


def test_a_name_is_registered_once() -> None:
    class Other(Scheme, frozen=True, tag="fedsplit"):
        about = "Another."

    assert register(FedSplit) is FedSplit
    with pytest.raises(ValueError, match='there is a protection "fedsplit" already'):
        register(Other)
    assert registered()["fedsplit"] is FedSplit


def test_protections_whose_contributors_vary_declare_what_that_reveals() -> None:
    for name, scheme in registered().items():
        parties = {one.party for one in scheme().disclosures(5)}
        assert ("server" in parties) == (scheme().contributors_vary or name == "fedcg"), name

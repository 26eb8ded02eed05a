"""A study of one's own: does noise on every update cost accuracy?

tacit experiment my_study.py --small --seeds 0-2
"""

from tacit.models.configuration import ModelConfiguration, TrainingConfiguration
from tacit.parties.learning.policy import ClientPolicy
from tacit.parties.protections.gaussian_noise import GaussianNoise
from tacit.parties.protections.none import NoProtection
from tacit.parties.protections.protection import Protection
from tacit.parties.runs.experiment import Aggregation, Experiment, FederationSection
from tacit.simulate.experiments.criteria import differences, verdict
from tacit.simulate.experiments.federations import TEST_ACCURACY, Arm, Federations
from tacit.simulate.experiments.measures import Values
from tacit.simulate.experiments.results import FederatedRun, Quantity
from tacit.simulate.experiments.study import Claim, Size, Study

SENT = Quantity(name="sent by all clients", unit="MB")


def arm(name: str, protection: Protection, *, rounds: int) -> Arm:
    """One row: an experiment, without its seed and its images."""
    experiment = Experiment(
        federation=FederationSection(clients=3, rounds=rounds),
        model=ModelConfiguration(name="lenet", image_size=16),
        training=TrainingConfiguration(epochs=1, batch_size=32, learning_rate=0.005),
        protection=protection,
        aggregation=Aggregation(clip=8.0),
        policy=ClientPolicy(largest_clip=8.0),
    )
    return Arm(name=name, experiment=experiment)


def measured(arm: Arm, run: FederatedRun) -> Values:
    """The columns of a row with one seed."""
    return {TEST_ACCURACY.name: 100 * run.accuracy, SENT.name: run.cost.sent / 1e6}


def size(*, rounds: int) -> Size:
    """Both sizes have the same rows."""
    noise = GaussianNoise(dp_clip=0.0, dp_noise=0.1)
    rows = (arm("plain", NoProtection(), rounds=rounds), arm("noise", noise, rounds=rounds))
    return Size(rows=rows, measure=Federations(values=measured))


STUDY = Study(
    name="noise-costs-accuracy",
    paper="Nobody's",
    shows="test accuracy with and without noise on updates",
    claim="noise costs accuracy",
    columns=(TEST_ACCURACY, SENT),
    full=size(rounds=20),
    small=size(rounds=2),
    claims=(
        Claim(
            rows=("plain", "noise"),
            judge=lambda rows: verdict(
                {"plain less noise": differences(rows["plain"], rows["noise"])},
                claim="without noise the model is more accurate",
                above=0.0,
            ),
        ),
    ),
)

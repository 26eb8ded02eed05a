"""Table 4: parameters are counted, bytes are those of the tensors, and the page says what follows."""

from dataclasses import replace

import pytest
import torch

from tacit.models.configuration import ModelConfiguration
from tacit.simulate.experiments.tastan_costs import (
    CLASSES,
    ROWS,
    TABLE4,
    CostFigures,
    Costs,
    count,
    judge,
    measure,
)
from tacit.simulate.experiments.tastan_costs_page import CostFindings, CostMeasurement
from tacit.simulate.experiments.tastan_tables import LORA, OURS, PROBING, TUNING
from tacit.simulate.experiments.tensor_memory import TensorMemory


def costs(*, ours: tuple[float, float] = (1.0, 1.0), tuning: float = 3.0, parameters: int = 0) -> Costs:
    """With the paper's numbers of parameters, ours off by so many; linear probing takes 1 ms and 1 MB."""
    counts = {place: round(published * 2**20) for place, (published, *_) in TABLE4.published.items()}
    counts = {(name, row): number + parameters * (row == OURS) for (name, row), number in counts.items()}
    figures = {PROBING: (1.0, 1.0), OURS: ours, TUNING: (tuning, 6.0)}
    return Costs(
        counts=counts,
        figures=tuple(
            CostFigures(row=row, seed=seed, milliseconds=milliseconds, megabytes=megabytes)
            for row, (milliseconds, megabytes) in figures.items()
            for seed in (0, 1)
        ),
    )


def test_parameters_are_those_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ViT-B: 85,800,000 and more in the backbone, 769 for a class, 258,252 in the adapters."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    backbone = 86_090_496
    assert count() == {
        (name, row): base + 769 * classes
        for row, base in ((TUNING, backbone), (PROBING, 0), (OURS, 258_252))
        for name, classes in CLASSES.items()
    }


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (costs(), [True, True, True, True]),
        (costs(parameters=200), [False, True, True, True]),
        (costs(ours=(1.2, 1.0)), [True, False, True, True]),
        (costs(ours=(1.1, 1.2)), [True, True, False, True]),
        (costs(tuning=2.0), [True, True, True, False]),
    ],
)
def test_verdicts_follow_from_the_figures(found: Costs, holds: list[bool]) -> None:
    assert [verdict.holds for verdict in judge(TABLE4, found)] == holds


def test_memory_is_the_most_at_one_moment() -> None:
    x = torch.zeros(1000)
    with TensorMemory([x]) as memory:
        y = x * 2
        z = y + 1
        assert memory.peak == 3 * 4000
        del y, z
        _ = x.view(10, 100) * 3
    assert memory.peak == 3 * 4000


def test_memory_has_what_is_kept_for_the_backward_pass() -> None:
    """Results of the three exponentials, then the gradient, which replaces none of them before it is there."""
    weights = torch.zeros(1000, requires_grad=True)
    with TensorMemory([weights]) as memory:
        total = weights.exp().exp().exp().sum()
        forwards = memory.peak
        torch.autograd.grad(total, [weights])
    assert forwards == 4 * 4000 + 4
    assert memory.peak == 5 * 4000 + 8


def test_a_step_of_every_row_is_measured() -> None:
    model = ModelConfiguration(image_size=8, patch_size=4, width=8, depth=2, heads=2)
    size = replace(TABLE4.small, model=model, repetitions=1, batch_size=4)
    lines: list[str] = []
    found = measure(size, seeds=(2, 5), device="cpu", progress=lines.append)
    usable = [row.name for row in ROWS if not row.method.missing]
    assert [(entry.seed, entry.row) for entry in found.figures] == [(seed, row) for seed in (2, 5) for row in usable]
    assert lines[0] == "parameters are counted"
    # Full fine-tuning keeps for the backward pass what linear probing does not.
    assert found.ratio(TUNING, "megabytes") > 1
    assert all(entry.milliseconds > 0 for entry in found.figures)


def test_figures_of_the_paper_stand_beside_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    small, full = ("\n".join(CostFindings(table=TABLE4, small=one, costs=costs()).lines()) for one in (True, False))
    for text in (small, full):
        assert "| ours | 0.2536 (265,919); the paper: 0.2536 | " in text
        assert "| full fine-tuning | 3.00 (3.00) | 6.00 (6.00) |" in text
        assert f"{LORA}: not measured, peft is not installed" in text
    line = "| CIFAR-100 | ours | 16.3 | 9.08 |"
    assert line in full
    assert line not in small


def test_what_was_not_measured_has_no_ratio() -> None:
    with pytest.raises(ValueError, match="LoRA or linear probing was not measured"):
        costs().ratio(LORA, "megabytes")


def test_both_sizes_are_told_apart() -> None:
    measurement = CostMeasurement(claim=TABLE4)
    for small, size in ((True, TABLE4.small), (False, TABLE4.full)):
        prepared = measurement.prepare(small=small, data=None)
        assert prepared.size is size
        assert prepared.differences == size.differences
    rows = CostFindings(table=TABLE4, small=True, costs=costs()).rows()
    assert {(row["data"], row["row"]): row["published"] for row in rows} == TABLE4.published

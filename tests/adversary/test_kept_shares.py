"""Owners that cheat with what is kept of images and with the shared bit that decides about a step, and thieves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tacit.parties.adaptation.kept import KeptShares
from tacit.parties.adaptation.model_owner import Openings
from tacit.parties.adaptation.standing import COUNTS
from tacit.parties.adaptation.step import StepProgram
from tacit.parties.inference.operations import DATA, MODEL
from tacit.parties.inference.ring import signed
from tacit.parties.inference.stages import encoded
from tacit.protocol.adaptation.schedule import REFUSED
from tacit.protocol.adaptation.sums import OpeningPolicy
from tacit.protocol.inference.schedule import STREAM
from tests.parties.adaptation.examples import BOUNDS, PROBE, RATE, example, fitted, kept, opened, shared
from tests.parties.adaptation.whole import WholePass, block_outputs
from tests.parties.inference import conftest as _inference
from tests.parties.inference.in_memory import Pair, shares

one_block = _inference.one_block

SESSION = bytes(32)
IMAGES = 4


@pytest.mark.threat("anybody/steals-kept-shares")
def test_a_stolen_disk_of_one_owner_is_random_and_both_are_the_outputs(tmp_path: Path, one_block: Any) -> None:
    public, sizes = one_block.public, one_block.public.sizes
    step = replace(PROBE, images=IMAGES, tokens=sizes.tokens, width=sizes.width)
    stolen: list[list[bytes]] = []
    for run in range(2):
        both = WholePass(one_block, one_block.images[:IMAGES]).collected(public, step)
        files = []
        for rank, carried in enumerate(both):
            disk = KeptShares(tmp_path / f"{run}-{rank}" / "peer.shares")
            disk.resumed(step.kept, SESSION, 0)
            disk.keep(SESSION, 1, carried.outputs, carried.outside)
            files.append(disk)
            stolen.append([(tmp_path / f"{run}-{rank}" / "peer.shares").read_bytes()])
        words = sum(disk.batch(range(IMAGES))[0] for disk in files)
        outputs = signed(words, STREAM).double() / public.stream
        wanted = block_outputs(one_block, one_block.images[:IMAGES])[-1:, :, :1]
        assert (outputs - wanted).norm() <= 2e-3 * wanted.norm()
    # The same images leave unrelated words with either owner: of so many bytes one in 256 is equal by chance.
    for rank in (MODEL, DATA):
        one, other = (stolen[2 * run + rank][0] for run in range(2))
        equal = sum(a == b for a, b in zip(one, other, strict=True))
        # Binomial: 6 deviations.
        assert abs(equal - len(one) / 256) <= 6 * (len(one) / 256) ** 0.5


@pytest.mark.threat("owner/chooses-the-bit")
def test_a_lying_owner_scales_a_step_and_falsifies_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds 2 to its share of the bit: the step is three times as long, and -2 batches were refused."""
    given, scales, pair = example(PROBE), fitted(PROBE), Pair()
    programs = [StepProgram(party, PROBE, scales) for party in pair.parties]
    counted = programs[DATA]._counted
    honest = counted.settle
    monkeypatch.setattr(counted, "settle", lambda place, limits: honest(place, limits) - 2)
    outputs, both = shares(encoded(kept(PROBE, given.outputs), BOUNDS.stream)), shared(given.parameters)
    none = torch.zeros((), dtype=torch.int64)
    results: list[Any] = pair.run(
        *(
            program.run(both[rank], outputs[rank], given.labels if rank == DATA else None, rate=RATE, outside=none)
            for rank, program in zip((MODEL, DATA), programs, strict=True)
        )
    )
    assert sum(int(result.refused) for result in results) == -2
    after = opened([result.parameters for result in results], given.parameters)
    moved = given.parameters.head_weight - after.head_weight
    wanted = 3 * RATE * given.descent().gradient.head_weight
    assert (moved - wanted).norm() <= 2.0**-8 * wanted.norm()


@pytest.mark.threat("data-owners/count-of-one")
def test_the_count_of_refused_batches_is_told_once_and_is_that_of_one_to_all_others_together() -> None:
    """All others know how many of their own batches were out of range, if they bring such as are or are not."""
    openings = Openings(OpeningPolicy(rounds=3, owners=3, smallest_cohort=2, colluders=0), last=3)
    names, told = ("alice", "bob", "carol"), list[int]()
    refused = {"alice": (0, 1, 1), "bob": (2, 2, 2), "carol": (0, 0, 0)}
    data_owners = 0
    for number in (1, 2, 3):
        for name in names:
            counted = torch.zeros(COUNTS, dtype=torch.int64)
            counted[REFUSED] = refused[name][number - 1]
            own, other = shares(counted)
            data_owners += int(other[REFUSED])
            openings.sums.begin(name, number)
            openings.sums.keep(name, number)
            openings.keep(name, number, own)
        for name in names:
            openings.sums.say(name, number, names, 0.0)
        told.append(int(torch.frombuffer(bytearray(openings.opened(number)), dtype=torch.int64)[REFUSED]))
    assert told[:2] == [0, 0]
    total = (told[2] + data_owners) % 2**64
    assert total - sum(refused["bob"]) - sum(refused["carol"]) == sum(refused["alice"]) == 2

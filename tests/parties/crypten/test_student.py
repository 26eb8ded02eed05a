"""A student by CrypTen's tensors, with both owners and the dealer in one process: logits, rounds, refusals."""

from __future__ import annotations

import threading

import msgspec
import pytest
import torch
from torch import nn

from tacit.models.configuration import ModelConfiguration
from tacit.models.friendly.calibration import calibrate, fix_intervals, intervals
from tacit.models.friendly.polynomials import Interval
from tacit.models.friendly.transformer import Approximation, FriendlyTransformer, convert, with_parameters
from tacit.models.networks import build
from tacit.parties.crypten.computation import Computation, as_program
from tacit.parties.crypten.passes import crypten_stages
from tacit.parties.crypten.student import PrivateStudent, prepared_student, public_student
from tacit.parties.inference.model import Interface
from tacit.parties.inference.operations import Communication
from tacit.parties.inference.stages import Carried, input_share
from tacit.protocol.inference.schedule import LOGITS, Results
from tests.parties.inference.in_memory import Pair

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
SIDE = ModelConfiguration(image_size=8, patch_size=4, width=16, depth=2, heads=2)
NAMES = Interface(mean=(0.0,), std=(1.0,), white=255, classes=("a", "b", "c"))
ERROR = 2.0**-12 + 2e-4
"""Logits are revealed with 12 fractional bits, the last rounded at random. With all 16 bits of CrypTen's numbers the
largest error in 20 runs was 4.9e-5; four times that is out of reach of chance."""


def made(approximation: Approximation = Approximation(), **settings: object) -> FriendlyTransformer:  # noqa: B008
    teacher = build(msgspec.structs.replace(SIDE, **settings), classes=3, channels=1, seed=1)
    with torch.no_grad():
        for tensor in teacher.parameters():
            nn.init.normal_(tensor, std=0.25, generator=torch.Generator().manual_seed(tensor.numel()))
    model = convert(teacher, approximation)
    calibrate(model, IMAGES, margin=1.5)
    return model.requires_grad_(False)


@pytest.fixture(scope="module")
def model() -> FriendlyTransformer:
    return made()


@pytest.fixture(scope="module")
def student(model: FriendlyTransformer) -> PrivateStudent:
    return prepared_student(model, NAMES)


def asked(student: PrivateStudent, results: Results = LOGITS) -> tuple[torch.Tensor, Pair]:
    pair = Pair()
    both = {name: pair.fixed(weight) for name, weight in student.weights.items()}
    shares = [input_share(student.public, len(IMAGES), pixels) for pixels in (None, IMAGES)]
    numbers = {name: layers[0].number for name, layers in both.items()}
    for stage in crypten_stages(student.public, results):
        requests, exchanges = len(pair.requests), len(pair.log)
        runs = [
            stage.prepared(party, len(IMAGES), {name: layers[rank] for name, layers in both.items()})
            for rank, party in enumerate(pair.parties)
        ]
        carried = pair.run(*(run(Carried(share)) for run, share in zip(runs, shares, strict=True)))
        shares = [each.share for each in carried]
        # What both say beforehand is what they do.
        assert tuple(pair.requests[requests:]) == stage.requests(len(IMAGES), numbers)
        assert tuple(pair.log[exchanges:]) == stage.rounds(len(IMAGES))
    model_owner, data_owner = shares
    assert not model_owner.any(), "the model owner learns nothing"
    return data_owner.double() / (1 << results.bits), pair


def test_shares_give_the_logits_of_float64(model: FriendlyTransformer, student: PrivateStudent) -> None:
    exact = with_parameters(model, lambda name, tensor: tensor.double())(IMAGES.double())
    found, pair = asked(student)
    assert (found - exact).abs().max() <= ERROR
    *_, result = pair.log
    assert (result.operation, result.data_owner_bytes) == ("result", 0)
    coarse, _ = asked(student, Results(labels=0, bits=4))
    assert (coarse - exact).abs().max() <= 2.0**-4 + ERROR


def test_the_same_pass_opens_other_words_each_time(student: PrivateStudent) -> None:
    opened = [
        {word for one in pair.exchanges for side in one for words, _ in side.sent for word in words.flatten().tolist()}
        for pair in (asked(student)[1] for _ in range(2))
    ]
    # Words of 32 bits at the end may meet by chance.
    assert len(opened[0] & opened[1]) < 3


def test_code_that_is_left_alone_ends() -> None:
    pair = Pair()
    before = threading.active_count()

    def compute(computation: Computation) -> object:
        return computation.run(computation.party.open("never answered", (torch.zeros(2, dtype=torch.int64), 64)))

    program = as_program(pair.parties[0], compute)
    assert isinstance(next(program), Communication)
    program.close()
    assert threading.active_count() == before
    with pytest.raises(ZeroDivisionError):
        next(as_program(pair.parties[0], lambda computation: 1 // 0))


def test_what_shares_cannot_compute_is_refused(model: FriendlyTransformer, student: PrivateStudent) -> None:
    far = made()
    fix_intervals(far, {**intervals(far), "norm.variance": Interval(1.0, 5000.0)})
    broken = made()
    broken.head.weight[0, 0] = torch.nan
    for wrong, reason in {
        made(Approximation(softmax_degree=None)): "this model has the softmax itself",
        made(Approximation(inverse_steps=None)): "this model has the LayerNorm itself",
        made(Approximation(quadratic_gelu=False)): "this model has the GELU itself: make a student of it",
        far: "norm.variance: values up to 5000 are too large for fixed-point numbers",
        broken: "head holds a value that is not finite",
    }.items():
        with pytest.raises(ValueError, match=reason):
            prepared_student(wrong, NAMES)
    with pytest.raises(ValueError, match="reveals logits alone"):
        student.terms(most_images=1, most_batch=1, results=Results(labels=1, bits=0), audited=0)


def test_terms_that_do_not_fit_are_refused(student: PrivateStudent) -> None:
    terms = student.terms(most_images=9, most_batch=3, results=LOGITS, audited=0)
    assert public_student(terms) == student.public
    public = student.public
    for wrong in (
        msgspec.structs.replace(public, softmax_degree=10**6),
        msgspec.structs.replace(public, last_variance=-1.0),
    ):
        with pytest.raises(ValueError, match="Expected"):
            public_student(msgspec.structs.replace(terms, arithmetic=msgspec.msgpack.encode(wrong)))
    with pytest.raises(ValueError, match="2 blocks come with intervals of 1"):
        msgspec.structs.replace(public, blocks=public.blocks[:1])
    other = msgspec.structs.replace(public, sizes=msgspec.structs.replace(public.sizes, heads=4))
    with pytest.raises(ValueError, match="come with terms for"):
        public_student(msgspec.structs.replace(terms, arithmetic=msgspec.msgpack.encode(other)))

"""What a model owner tells everybody about a learning: strict on the way in, harmless within its limits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest
import torch

from tacit.models.adapters.configuration import AdapterConfiguration, LinearProbeConfiguration, ParallelConfiguration
from tacit.models.adapters.federated import Features, FullBatches, Schedule, rehearsal
from tacit.models.adapters.parallel import initial
from tacit.parties.adaptation.public import PublicLearning, learning_of, learning_terms
from tacit.parties.adaptation.rehearsed import fitted_learning
from tacit.parties.adaptation.step import StepProgram, StepSizes, flat, shaped
from tacit.parties.correlated.material import Request, check
from tacit.parties.inference.operations import DATA, Party
from tacit.parties.inference.private_model import PrivateModel
from tacit.protocol.adaptation.messages import AdaptationTerms, LearningSizes
from tacit.protocol.inference.schedule import Results
from tests.parties.inference import conftest as _inference
from tests.parties.inference.conftest import Transformer

one_block, private = _inference.one_block, _inference.private

Way = tuple[str | int, ...]
SCHEDULE = Schedule(rounds=4, learning_rate=0.05, decay=0.5, decay_rounds=(2,))
PARALLEL, PROBE = ParallelConfiguration(rank=2), LinearProbeConfiguration()
RESULTS = Results(labels=1, bits=0)


def made(model: Transformer, adapter: AdapterConfiguration) -> PublicLearning:
    exact, x, outputs = model.exact(), None, []
    x = exact.embed(exact.patches(model.images.double()))
    for block in exact.blocks:
        x = block(x)
        outputs.append(x)
    own = Features(outputs=torch.stack(outputs).detach(), labels=torch.arange(len(model.images)) % 3)
    work = FullBatches(4, 2)
    reached = rehearsal(own, adapter, SCHEDULE, work, classes=3, epsilon=1e-6, seed=0)
    parallel = isinstance(adapter, ParallelConfiguration)
    sizes = StepSizes(images=4, tokens=5, width=16, classes=3, adapters=int(parallel), rank=2 if parallel else 0)
    return PublicLearning(
        public=model.public,
        scales=fitted_learning(reached, model.public, sizes, rate=0.05).scales,
        adapter=adapter,
        classes=3,
        batch=4,
        batches=2,
        schedule=SCHEDULE,
        seed=7,
    )


@pytest.fixture(scope="module")
def learning(one_block: Transformer) -> PublicLearning:
    return made(one_block, PARALLEL)


@pytest.fixture(scope="module")
def probing(one_block: Transformer) -> PublicLearning:
    return made(one_block, PROBE)


def terms_of(model: PrivateModel, learning: PublicLearning, **changes: Any) -> AdaptationTerms:
    given = {"purpose": "learning", "results": RESULTS, "most_images": 100, "rounds": 4, "smallest_cohort": 2}
    return learning_terms(model, learning, **{**given, **changes})


def changed(plain: Any, path: Way, value: Any) -> Any:
    if not path:
        return value
    copied = list(plain) if isinstance(plain, tuple) else copy.copy(plain)
    copied[path[0]] = changed(plain[path[0]], path[1:], value)
    return copied


def plain_of(learning: PublicLearning) -> Any:
    return msgspec.to_builtins(learning, builtin_types=(bytes,))


def told(terms: AdaptationTerms, plain: Any) -> PublicLearning:
    return learning_of(msgspec.structs.replace(terms, arithmetic=msgspec.msgpack.encode(plain)))


def test_a_learning_survives_the_way(private: PrivateModel, learning: PublicLearning, probing: PublicLearning) -> None:
    for each in (learning, probing):
        terms = terms_of(private, each)
        way = msgspec.msgpack.decode(msgspec.msgpack.encode(terms), type=AdaptationTerms)
        assert learning_of(way) == each
        assert (way.weights, way.most_batch) == (private.commitment, 4)


def test_everything_follows_from_it(learning: PublicLearning, probing: PublicLearning) -> None:
    assert learning.sizes == StepSizes(images=4, tokens=5, width=16, classes=3, adapters=1, rank=2)
    assert probing.sizes == StepSizes(images=4, tokens=5, width=16, classes=3, adapters=0, rank=0)
    checks = learning.scales.adapter
    assert checks is not None
    assert learning.learning == LearningSizes(
        adapters=1, rank=2, classes=3, batch=4, cut=learning.scales.cut, gradient=checks.gradient
    )
    assert probing.learning.adapters == 0
    assert learning.epsilon == learning.public.head.norm.variance.inverse.offset
    assert [learning.rate(number) for number in (1, 2, 3, 4)] == [0.05, 0.05, 0.025, 0.025]
    first = initial(PARALLEL, blocks=1, tokens=5, width=16, classes=3, seed=7)
    for name, tensor in learning.initial().tensors.items():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, first.tensors[name].double())


WRONG: list[tuple[Callable[[Any], tuple[Way, Any]], str]] = [
    (lambda plain: (("scales", "adapter"), None), "scales of no adapters come with Parallel"),
    (lambda plain: (("adapter",), {"kind": "linear-probe"}), "scales of adapters come with LinearProbe"),
    (lambda plain: (("adapter", "rank"), 3), "comes with terms for"),
    (lambda plain: (("classes",), 4), "comes with terms for"),
    (lambda plain: (("batch",), 5), "comes with terms for"),
    (
        lambda plain: (("scales", "parameters"), dict(reversed(plain["scales"]["parameters"].items()))),
        "scales of the parameters bias, weight",
    ),
    (lambda plain: (("scales", "parameters", "more"), plain["scales"]["parameters"]["bias"]), "bias, more come with"),
    (lambda plain: (("scales", "cut"), plain["scales"]["cut"] - 1), "bits are cut off outputs of blocks of scale"),
    (lambda plain: (("scales", "adapter", "backwards"), plain["scales"]["adapter"]["backwards"] - 1), "terms for"),
    (lambda plain: (("scales", "head", "reach"), 1000.0), "logits in range up to 1000; 0.00390625 to 256"),
    (lambda plain: (("scales", "head", "reach"), 0.001), r"logits in range up to 0\.001"),
    (lambda plain: (("scales", "head", "exponential", "precision"), 1), "fractional bits; more than 16 are cut"),
    (lambda plain: (("schedule", "learning_rate"), 0.06), r"a learning rate of 0\.06 comes with scales for 0\.05"),
    (lambda plain: (("schedule", "decay"), 0.0), "a learning rate of 0 for batches of 4 images"),
    (lambda plain: (("schedule", "decay"), 1.5), "<= 1.0"),
    (lambda plain: (("schedule", "decay_rounds"), [1] * 65), "length <= 64"),
    (lambda plain: (("schedule", "rounds"), 5), "terms for 4 rounds come with a schedule of 5"),
    (lambda plain: (("schedule", "rounds"), 0), ">= 1"),
    (lambda plain: (("batches",), 0), ">= 1"),
    (lambda plain: (("seed",), -1), ">= 0"),
    (lambda plain: (("public", "sizes", "classes"), 4), "come with terms for"),
    (lambda plain: (("unknown",), 1), "unknown field"),
]


@pytest.mark.parametrize(("change", "reason"), WRONG)
def test_what_does_not_fit_is_refused_by_a_data_owner(
    private: PrivateModel,
    learning: PublicLearning,
    change: Callable[[Any], tuple[Way, Any]],
    reason: str,
) -> None:
    plain, terms = plain_of(learning), terms_of(private, learning)
    assert told(terms, plain) == learning
    way, value = change(plain)
    parent = plain
    for key in way[:-1]:
        parent = parent[key]
    given = changed(plain, way[:-1], {**parent, way[-1]: value})
    with pytest.raises(ValueError, match=reason):
        told(terms, given)


def test_nothing_is_allocated_beyond_limits(private: PrivateModel, learning: PublicLearning) -> None:
    terms, plain = terms_of(private, learning), plain_of(learning)
    wide = plain["public"]["sizes"] | {"width": 1 << 12, "heads": 1}
    given = changed(changed(plain, ("public", "sizes"), wide), ("adapter", "rank"), 1024)
    many = changed(given, ("classes",), 1 << 12)
    with pytest.raises(ValueError, match="numbers to learn are more than 16777216; take a lower rank"):
        told(terms, many)
    tokens = changed(plain, ("public", "sizes"), wide | {"side": 124})
    with pytest.raises(ValueError, match="the blocks leave of a batch are more than 268435456"):
        told(terms, changed(tokens, ("batch",), 1 << 10))


@pytest.mark.parametrize("arithmetic", [b"", b"\xc1", b"\x91" * 5000])
def test_what_is_no_learning_is_refused(private: PrivateModel, learning: PublicLearning, arithmetic: bytes) -> None:
    terms = msgspec.structs.replace(terms_of(private, learning), arithmetic=arithmetic)
    with pytest.raises(ValueError, match=r"truncated|malformed|expected|Expected"):
        learning_of(terms)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rounds": 3}, "terms for 3 rounds come with a schedule of 4"),
        ({"smallest_cohort": 1}, "smallest_cohort"),
        ({"most_images": 0}, "most_images"),
        ({"results": Results(labels=3, bits=0)}, "the 3 best labels of 3 classes cannot be told"),
        ({"purpose": "something"}, "purpose"),
    ],
)
def test_terms_that_do_not_fit_are_not_offered(
    private: PrivateModel,
    learning: PublicLearning,
    changes: dict[str, Any],
    reason: str,
) -> None:
    with pytest.raises(ValueError, match=reason):
        terms_of(private, learning, **changes)


def test_terms_for_another_model_are_not_offered(private: PrivateModel, learning: PublicLearning) -> None:
    scales = msgspec.structs.replace(learning.public.head, logits=2.0**27)
    other = msgspec.structs.replace(learning, public=msgspec.structs.replace(learning.public, head=scales))
    with pytest.raises(ValueError, match="beside another model"):
        terms_of(private, other)


def test_terms_with_other_batches_are_refused(private: PrivateModel, learning: PublicLearning) -> None:
    with pytest.raises(ValueError, match="come with a learning by batches of 4"):
        learning_of(msgspec.structs.replace(terms_of(private, learning), most_batch=3))


def leaves(plain: Any, path: Way = ()) -> Iterator[tuple[Way, int | float]]:
    if isinstance(plain, dict | list | tuple):
        for key, part in plain.items() if isinstance(plain, dict) else enumerate(plain):
            yield from leaves(part, (*path, key))
    elif isinstance(plain, int | float):
        yield path, plain


def one_of_each_kind(plain: Any) -> Iterable[tuple[Way, int | float]]:
    """The checks of all parameters are of one kind, and so are all waves of a sum."""
    alike = {*plain["parameters"], *range(1 << 10)}
    return {tuple("*" if key in alike else key for key in way): (way, value) for way, value in leaves(plain)}.values()


def test_whatever_stands_within_the_limits_is_computed_without_a_failure(
    learning: PublicLearning, probing: PublicLearning
) -> None:
    """Every kind of number of the scales at both ends of what is accepted, found by trying."""
    tried = 0

    def accepted(plain: Any, path: Way, value: float) -> PublicLearning | None:
        try:
            return msgspec.convert(changed(plain, ("scales", *path), value), PublicLearning)
        except ValueError:
            return None

    def take(request: Request) -> list[torch.Tensor]:
        check(request, 2)
        return [torch.full(draw.shape, 5) for draw in request.free(DATA) + request.dependent()]

    def step(sizes: StepSizes, scales: Any) -> torch.Tensor:
        words = shaped(torch.full((sizes.parameters,), 3), sizes)
        outputs, none = torch.full(sizes.outputs, 9), torch.zeros((), dtype=torch.int64)
        labels = torch.zeros(sizes.images, dtype=torch.int64)
        program = StepProgram(Party(DATA, take), sizes, scales).run(words, outputs, labels, rate=0.05, outside=none)
        exchange = next(program)
        while True:
            try:
                exchange = program.send([torch.full(size, -3) for size, _ in exchange.expected])
            except StopIteration as stop:
                return flat(stop.value.parameters)

    # Without an adapter a step has what follows from the head alone.
    for each in (learning, probing):
        plain, sizes = plain_of(each), each.sizes
        for path, number in one_of_each_kind(plain["scales"]):
            if (path[0] == "head") != (each is probing):
                continue
            powers: list[float] = [2**power for power in range(64)] if isinstance(number, int) else []
            powers = powers or [2.0**power for power in range(-100, 101)]
            within = [found for value in sorted([number, *powers]) if (found := accepted(plain, path, value))]
            for found in (within[0], within[-1]):
                assert step(sizes, found.scales).shape == (sizes.parameters,)
                tried += 1
    assert tried > 70

"""What the dealer reads in an order: sizes, and of every block the whole numbers that say how large words are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from tacit.parties.inference.material import encoded_requests
from tacit.parties.inference.model import PublicModel
from tacit.parties.inference.scales import Scales
from tacit.parties.inference.scores import Division
from tacit.parties.inference.stages import stages
from tacit.parties.inference.tables import SteppedInverse
from tacit.protocol.inference.schedule import MOST_SQUARINGS, Results, layer_shapes
from tests.parties.inference.conftest import Transformer
from tests.parties.inference.test_model import Way, accepted, changed, leaves

ROOT = Path(__file__).parents[3]
PLACE = ("domain", "index", "slope", "levels")
"""Of a table: how many bits of a value are looked up, and compared."""
NORM = {("first_norm", "variance", name) for name in PLACE} | {("second_norm", "variance", name) for name in PLACE}
SUMS = {("totals", name) for name in PLACE} | {("divisions", "sums", "levels")}
TURNS = {("query_turn",), ("key_turn",)}
WAVES = {("exponential", "words"), ("gelu", "words")}
CUTS = {("exponential_cut",), ("divisions", "cut")}
LEVELS = {(name, "levels") for name in ("queries", "keys", "hidden_spread")}
CUT_NORMS = {("first_norm", "cut"), ("second_norm", "cut")}
TOLD = NORM | CUT_NORMS | SUMS | TURNS | WAVES | CUTS | LEVELS


def of_true_functions(one_block: Transformer) -> PublicModel:
    public = one_block.public
    sums = SteppedInverse(factor=1, low=20, high=1000, levels=14, scale=2.0**20)
    divisions = (Division(cut=11, sums=sums), Division(cut=13, sums=sums))
    blocks = tuple(
        msgspec.structs.replace(
            block, gelu=block.exponential, gelu_cut=5, exponential_cut=7, divisions=divisions, hidden_opened=20
        )
        for block in public.blocks
    )
    return with_forms(public, blocks)


def with_forms(public: PublicModel, blocks: tuple[Scales, ...]) -> PublicModel:
    sizes = msgspec.structs.replace(public.sizes, forms=tuple(block.form for block in blocks))
    return msgspec.structs.replace(public, sizes=sizes, blocks=blocks)


def order(public: PublicModel) -> bytes:
    numbers = {name: number for number, name in enumerate(layer_shapes(public.sizes))}
    return b"".join(encoded_requests(stage.requests(2, numbers)) for stage in stages(public))


def others(number: Any) -> list[Any]:
    if isinstance(number, bool):
        return [not number]
    if isinstance(number, str):
        return [name for name in ("inverse", "inverse root") if name != number]
    return [number + 1, number - 1, number + 2] if isinstance(number, int) else [number * 2, number / 2, number + 1]


def test_an_order_tells_of_scales_how_large_words_are_and_nothing_else(one_block: Transformer) -> None:
    """Every number of the terms is changed by itself. Curves, bounds, scales and factors change no byte."""
    public = of_true_functions(one_block)
    plain, before, told, tried = msgspec.to_builtins(public), order(public), set(), set()
    plain.pop("interface")
    for path, number in leaves(plain):
        # The same for all models of these sizes, which say how hidden values are opened.
        if path[0] in ("sizes", "waves") or path[-1] == "hidden_opened" or number is None:
            continue
        models = [model for other in others(number) if (model := accepted(changed(plain, path, other)))]
        name = _name(path)
        if path[-1] != "stream":  # It is the same in all blocks, or refused.
            assert models, path
        tried.add(name)
        if any(order(model) != before for model in models):
            told.add(name)
    assert told == TOLD | {("head", "norm", "variance", name) for name in PLACE} | {("head", "norm", "cut")}
    assert {("exponential", "cosines"), ("queries", "high"), ("totals", "inverse", "scale"), ("value",)} <= tried


def test_it_tells_how_many_waves_a_function_has_and_which_there_are(one_block: Transformer) -> None:
    public = of_true_functions(one_block)
    before, (block,) = order(public), public.blocks
    wave = block.exponential
    longer = msgspec.structs.replace(wave, cosines=(*wave.cosines, 0), sines=(*wave.sines, 0))
    for field, value in (("exponential", longer), ("gelu", longer), ("gelu", None)):
        other = msgspec.structs.replace(block, **{field: value})
        assert order(msgspec.structs.replace(public, blocks=(other,))) != before
    more = (*block.divisions, block.divisions[-1])
    for field, value in (("divisions", ()), ("divisions", more), ("hidden_opened", 21)):
        assert order(with_forms(public, (msgspec.structs.replace(block, **{field: value}),))) != before


def test_what_it_tells_of_a_block_are_a_few_numbers_below_64(one_block: Transformer) -> None:
    """An order of any model can be one of another whose bounds are near. The docs have the number."""
    public = of_true_functions(one_block)
    for block in public.blocks:
        plain = msgspec.to_builtins(block)
        numbers = [number for path, number in leaves(plain) if _name(path) in TOLD]
        numbers += [len(plain[function]["cosines"]) for function in ("exponential", "gelu")]
        numbers.append(block.hidden_opened)
        assert len(numbers) == 25 + 2 * len(block.divisions)
        assert max(numbers) < 64
    for page in ("docs/inference-dealer.md", "docs/threat-model.md"):
        said = re.findall(r"(\d+)\s+whole\s+numbers\s+below\s+64", (ROOT / page).read_text(encoding="utf-8"))
        assert said == [str(26 + 2 * (MOST_SQUARINGS + 1))], page


def _name(path: Way) -> Way:
    names = tuple(part for part in path if isinstance(part, str))
    return names[1:] if names[0] == "blocks" else names


def test_it_tells_of_the_results_whether_labels_alone_are_told(student: Transformer) -> None:
    numbers = {name: number for number, name in enumerate(layer_shapes(student.public.sizes))}
    choices = [Results(labels=count, bits=0) for count in (1, 2)] + [Results(labels=0, bits=bits) for bits in (4, 12)]
    heads = [stages(student.public, results=results)[-1] for results in choices]
    *labels, few, many = [encoded_requests(head.requests(2, numbers)) for head in heads]
    assert few == many
    assert len({*labels, few}) == 2  # Of few classes, all in one step, the material is the same for any labels.

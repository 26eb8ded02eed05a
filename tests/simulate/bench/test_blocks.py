"""`tacit bench inference` without a directory: blocks on shares between processes, beside stock CrypTen."""

import os
import tempfile
from pathlib import Path

import msgspec
import pytest

from tacit.protocol.inference.schedule import BlockForm, Round, Sizes, block_rounds
from tacit.simulate.bench import blocks
from tacit.simulate.bench.ends import BenchmarkError
from tacit.simulate.bench.results import BlockBenchmarkResult
from tacit.simulate.federation.relay import Shaping
from tests.cli.command import invoke
from tests.cli.outputs import check_output
from tests.protocol.inference.totals import by_operation

# The smallest of timm's: 50 tokens.
pytestmark = pytest.mark.end_to_end

MODEL = "vit_small_patch32_224"
OWNERS = ("model-owner", "data-owner")

SHAPED = ["--against", "crypten", "--latency", "1", "--bandwidth", "1000"]


@pytest.mark.parametrize(
    ("known", "count", "against"), [("known", 1, SHAPED), pytest.param("shared", 2, [], marks=pytest.mark.exhaustive)]
)
def test_blocks_are_measured(tmp_path: Path, known: str, count: int, against: list[str]) -> None:
    file = tmp_path / "blocks.json"
    options = ["--model", MODEL, "--blocks", str(count), "--repeats", "1", "--input", known, *against]
    done = invoke("bench", "inference", *options, "--json", str(file))
    assert done.exit_code == 0, done.output
    check_output(file, "bench-blocks")
    found = msgspec.json.decode(file.read_bytes(), type=BlockBenchmarkResult)
    true, polynomials, stock, trusted = found.true_functions, found.polynomials, found.crypten, found.crypten_ttp
    for row in (true, polynomials, stock, trusted):
        if row is None:
            assert not against
            continue
        # The promise for a block; both ends are no worse than one more.
        assert row.relative_error < 4e-3
        assert row.online_seconds > 0
        assert row.sustained_seconds > 0
        assert set(row.dealer_bytes) == set(OWNERS)
        online = row.model_owner_bytes + row.data_owner_bytes
        assert row.total_bytes == online + sum(row.dealer_bytes.values())
        assert row.total_rounds >= row.rounds
        assert set(row.peak_bytes) == {*OWNERS, *([] if row is stock else ["dealer"])}
        # A process that computes has loaded torch, and no laptop has more.
        assert all(1e8 < peak < 1e11 for peak in row.peak_bytes.values())
        # Both passes have gone through the relay, if there is one.
        assert row.relayed_bytes is None if not against else (row.relayed_bytes or 0) > 2 * online
    assert (found.latency_ms, found.bandwidth_mbit) == ((1, 1000) if against else (None, None))
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.own_cores == (found.cores >= 3)
    sizes = Sizes(side=224, channels=3, patch=32, width=384, heads=6, hidden=1536, blocks=count, classes=1000)
    for ours in (true, polynomials):
        assert set(ours.processor_seconds) == {*OWNERS, "dealer"}
        forms = tuple(BlockForm(squarings=squarings) for squarings in ours.squarings)
        rounds = block_rounds(msgspec.structs.replace(sizes, forms=forms), 1, 0)
        if known == "known":
            rounds += (Round("result", 5 * (1 + 7**2) * 384, 0),)
        assert ours.rounds == count * len(rounds)
        assert ours.total_rounds == ours.rounds + count
        for name, cost in by_operation(rounds).items():
            operation = ours.per_operation[name]
            sent = (operation.model_owner_bytes, operation.data_owner_bytes)
            assert sent == (count * cost.model_owner_bytes, count * cost.data_owner_bytes)
            assert name in done.stdout
        assert len(ours.online_seconds_by_block) == count
    # The functions themselves take more of the dealer's words, and of nothing else.
    assert (true.model_owner_bytes, true.data_owner_bytes) == (
        polynomials.model_owner_bytes,
        polynomials.data_owner_bytes,
    )
    assert sum(true.dealer_bytes.values()) > sum(polynomials.dealer_bytes.values())
    if against:
        assert stock is not None
        assert trusted is not None
        # Less than a third of what CrypTen sends, for the same function.
        assert 3 * max(polynomials.model_owner_bytes, polynomials.data_owner_bytes) < stock.data_owner_bytes
        # Its first party makes the tuples itself; from the third party it gets them, for what it asks in rounds.
        assert not any(stock.dealer_bytes.values())
        assert trusted.dealer_bytes["model-owner"] > 1e6
        assert trusted.total_rounds > stock.total_rounds


def test_a_machine_that_cannot_run_the_parties_ends_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    setting = blocks.BlockBenchmark(model=MODEL, repeats=1, shaping=Shaping(latency_ms=1))
    with pytest.raises(BenchmarkError, match=r"the parties cannot be run here: .*gone"):
        blocks.measure(setting, lambda text: None)


REFUSED = (
    (["--latency", "0"], "the latency is 0: "),
    (["--latency", "-1"], "the latency is -1: "),
    (["--latency", "nan"], "the latency is nan: "),
    (["--latency", "1001"], "at most 1000"),
    (["--bandwidth", "0"], "the bandwidth is 0: "),
    (["--bandwidth", "2001"], "at most 2000"),
    (["--device", "tpu"], "unknown device 'tpu'"),
)


def test_what_cannot_be_measured_is_refused() -> None:
    wrong = {}
    for options, reason in REFUSED:
        done = invoke("bench", "inference", *options)
        if (done.exit_code, reason in done.output) != (2, True):
            wrong[reason] = done.output
    assert wrong == {}


def test_a_model_that_is_none_is_refused() -> None:
    done = invoke("bench", "inference", "--model", "resnet18")
    assert done.exit_code == 2
    assert "resnet18" in done.output


def test_parties_share_cores_only_where_there_are_too_few() -> None:
    parties = {"dealer", *OWNERS}
    for available in ([0], [2, 5]):
        assert blocks.placed(available) == dict.fromkeys(parties, frozenset(available))
    for available in ([1, 2, 3], list(range(16))):
        cores = blocks.placed(available)
        assert set(cores) == parties
        assert all(cores.values())
        assert sorted(core for own in cores.values() for core in own) == available

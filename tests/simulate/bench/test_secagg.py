"""`tacit bench secagg` computes real sums and measures their cost."""

import re
from pathlib import Path

import msgspec
import pytest

from tacit.parties.hosting.folder import available_memory
from tacit.secagg.work import WorkKind
from tacit.simulate.bench.results import SumBenchmarkResult
from tests.cli.command import invoke
from tests.cli.outputs import check_output

SEMI_HONEST = {"ADVERTISE_KEYS", "SHARE_KEYS", "MASKED_INPUT", "UNMASK"}


def bench(tmp_path: Path, *arguments: str) -> SumBenchmarkResult:
    file = tmp_path / "sum.json"
    done = invoke("bench", "secagg", *arguments, "--json", str(file))
    assert done.exit_code == 0, done.output
    check_output(file, "bench-secagg")
    found = msgspec.json.decode(file.read_bytes(), type=SumBenchmarkResult)
    assert found.sum_is_exact
    return found


def test_semi_honest_with_dropouts_and_profile(tmp_path: Path) -> None:
    found = bench(
        tmp_path, "--clients", "24", "--dimension", "2000", "--dropout", "0.25", "--corrupt", "0.2", "--profile"
    )
    assert found.survivors == 18
    assert found.neighbours < 23
    assert set(found.client_ms) == set(found.server_ms) == SEMI_HONEST
    assert found.masks_per_client == found.neighbours + 1
    assert set(found.profile_seconds) == {kind.value for kind in WorkKind} - {"signatures"}


def test_active_with_counts_in_several_chunks(tmp_path: Path) -> None:
    found = bench(tmp_path, "--clients", "4", "--dimension", "400000", "--mode", "active", "--counts", "--profile")
    assert set(found.client_ms) == SEMI_HONEST | {"CONSISTENCY_CHECK"}
    assert set(found.profile_seconds) == {kind.value for kind in WorkKind}
    assert (found.neighbours, found.threshold) == (3, 3)
    # 16 value bits, 2 for the sum over four clients and 3 for their count fit 24 bits: three bytes of four.
    assert found.ring_bits == 24
    assert 0.75 < found.expansion < 0.76


@pytest.mark.end_to_end
def test_over_sockets_with_a_dropout(tmp_path: Path) -> None:
    found = bench(tmp_path, "--clients", "5", "--dimension", "500", "--dropout", "0.2", "--transport", "zmq")
    assert found.survivors == 4
    assert found.profile_seconds == {}


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (("--clients", "5", "--graph", "regular", "--corrupt", "0.2"), 2, "no regular graph of 5 clients"),
        (("--clients", "1"), 2, "greater than or equal to 2"),
    ],
)
def test_what_cannot_be_held_is_refused(arguments: tuple[str, ...], status: int, complaint: str) -> None:
    done = invoke("bench", "secagg", "--dimension", "100", *arguments)
    assert done.exit_code == status
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "neighbours", "gigabytes"),
    [(("--dimension", "200000000"), "422", 8006), (("--dimension", "10", "--mode", "active"), "9,999", 145)],
    ids=["vectors", "neighbours"],
)
def test_what_has_no_room_is_refused_before_it_starts(
    arguments: tuple[str, ...], neighbours: str, gigabytes: float
) -> None:
    available = available_memory()
    if available is None or available > 1e9 * gigabytes:
        pytest.skip("this machine has room for it, or does not tell")
    done = invoke("bench", "secagg", "--clients", "10000", *arguments)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tacit: 10,000 clients with {neighbours} neighbours and vectors of ")
    (about,) = re.findall(r"take about ([\d,]+)\.\d GB, and there are ", done.stderr)
    assert int(about.replace(",", "")) == pytest.approx(gigabytes, abs=1)
    assert "(--tolerate-dropout)" in done.stderr

"""`tacit conformance peer` against our own server and our own client, and what it says to wrong input."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result

from tacit.parties.links.keys import generate, save
from tacit.parties.links.roster import write_roster
from tacit.protocol.core.codec import encode_structure
from tacit.protocol.core.errors import Code
from tacit.protocol.core.roster import Roster
from tacit.simulate.conformance.peer.play import CASES, Side
from tacit.simulate.world.federation import small_configuration
from tests.cli.command import Invoke
from tests.cli.outputs import check_output

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).parents[1] / "simulate" / "conformance" / "peer")
    from adaptation_bench import AdaptationBench
    from inference_bench import InferenceBench
    from live_party import SECONDS


def _live_parties() -> ModuleType:
    """The conftest of the kit, whose fixtures pytest shows to its own folder alone."""
    path = Path(__file__).parents[1] / "simulate" / "conformance" / "peer" / "conftest.py"
    spec = importlib.util.spec_from_file_location("conftest_of_conformance_peer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


live_parties = _live_parties()
Bench, bench = live_parties.Bench, live_parties.bench
LIVE_CLIENT = "client-4"
MakeBench = Callable[[int], Any]


PATIENCE = 8.0
"""Seconds after which a live party notices that another one is silent, where one is. Where none is it waits as long as
it must: on busy cores any few seconds were too short at times."""


def names_of(side: Side, *, silent: bool) -> list[str]:
    """The honest case, which is always played first, and the others in which a party waits in vain, or none does."""
    honest, *others = CASES[side]
    return [honest.name, *(case.name for case in others if (Code.TIMEOUT.name in case.expected) == silent)]


def check_all_passed(result: Result, names: list[str], path: Path) -> None:
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"{len(names)} cases: all passed"
    verdicts = check_output(path, "peer")["cases"]
    assert [verdict["case"] for verdict in verdicts] == names
    for verdict in verdicts:
        assert verdict["seen"] == verdict["expected"]
        assert verdict["passed"]


def check_side(tacit: Invoke, folder: Path, side: Side, names: list[str], *, patience: float = SECONDS) -> str:
    """Play these cases against our live party; returns the lines on stderr."""
    addresses: tuple[str, ...] = ()
    if side in ("server", "client"):
        live = Bench(folder, 4 if side == "server" else 8)
        kit = live.give_keys(*(name for name in live.keys if name != (LIVE_CLIENT if side == "server" else "server")))
        running = live.live_client() if side == "server" else live.live_server()
    else:
        live = (
            AdaptationBench(folder, patience=patience)
            if side.startswith("adapting")
            else InferenceBench(folder, patience=patience)
        )
        kit = live.give_keys(side)
        running = live.live(side, sessions=len(names))
        if side != "owners":
            addresses += ("--dealer", live.dealer_address)
        if side == "adapting-model-owner":
            addresses += ("--sums", live.sums_address)
    options = [option for name in names for option in ("--case", name)]
    verdicts = folder / "verdicts.json"
    with running:
        result = tacit(
            "conformance", "peer", live.address, "--as", side, "--keys", kit, *addresses, *options, "--json", verdicts
        )
    check_all_passed(result, names, verdicts)
    return result.stderr


@pytest.mark.parametrize("side", CASES)
def test_our_parties_pass_a_few_cases(tacit: Invoke, bench: MakeBench, tmp_path: Path, side: Side) -> None:
    check_side(tacit, tmp_path, side, names_of(side, silent=False)[:3])


@pytest.mark.end_to_end
@pytest.mark.parametrize("side", CASES)
def test_our_parties_pass(tacit: Invoke, bench: MakeBench, tmp_path: Path, side: Side) -> None:
    check_side(tacit, tmp_path, side, names_of(side, silent=False))


@pytest.mark.exhaustive
@pytest.mark.parametrize("side", [side for side in CASES if len(names_of(side, silent=True)) > 1])
def test_our_parties_notice_silence(tacit: Invoke, bench: MakeBench, tmp_path: Path, side: Side) -> None:
    check_side(tacit, tmp_path, side, names_of(side, silent=True), patience=PATIENCE)


def test_a_failure_is_shown(tacit: Invoke, bench: MakeBench) -> None:
    live = bench(4)
    kit = live.give_keys(*live.clients_of_roster)
    with live.live_server(step=2.0):
        result = tacit("conformance", "peer", live.address, "--as", "client", "--keys", kit, "--case", "stranger")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "2 cases: 1 failed"
    assert "FAILED" in result.stdout


def test_a_silent_client_is_waited_for_with_a_deadline(tacit: Invoke, bench: MakeBench) -> None:
    live = bench(4)
    kit = live.give_keys("server", "client-1", "client-2", "client-3")
    arguments = ("--as", "server", "--keys", kit, "--wait", "1", "--case", "honest")
    result = tacit("conformance", "peer", live.address, *arguments)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 cases: 1 failed"


def complaints(result: Result) -> str:
    return " ".join(line for line in result.stderr.splitlines() if line.startswith("tacit: "))


def foreign_key(live: Any, kit: Path) -> None:
    save(generate("client-5"), kit, role="client")


def other_key(live: Any, kit: Path) -> None:
    (kit / "client-1.key").unlink()
    (kit / "client-1.card").unlink()
    save(generate("client-1"), kit, role="client")


def configured(**changes: Any) -> Callable[[Any, Path], None]:
    configuration = small_configuration(4, **({"graph": "complete"} | changes))
    return lambda live, kit: (kit / "configuration.msgpack").write_bytes(encode_structure(configuration)) and None


NONE: tuple[str, ...] = ()
ALL_CLIENTS = ("client-1", "client-2", "client-3", "client-4")
SERVED = ("server", "client-1", "client-2", "client-3")
WRONG: dict[str, tuple[Side, tuple[str, ...], Callable[[Any, Path], Any], tuple[str, ...], str]] = {
    "no roster": ("client", NONE, lambda live, kit: (kit / "roster.toml").unlink(), NONE, "roster.toml: no such file"),
    "a key of nobody": ("client", ALL_CLIENTS, foreign_key, NONE, "roster.toml has no 'client-5' with these keys"),
    "another key": ("client", ALL_CLIENTS, other_key, NONE, "roster.toml has no 'client-1' with these keys"),
    "few clients": ("client", SERVED, lambda live, kit: None, NONE, "keys of 3 clients of the roster; put the"),
    "no server": ("server", ALL_CLIENTS[:3], lambda live, kit: None, NONE, "server.key is missing"),
    "all clients": ("server", ("server", *ALL_CLIENTS), lambda live, kit: None, NONE, "a .key file here are none"),
    "two live": ("server", SERVED[:3], lambda live, kit: None, NONE, "a .key file here are client-3, client-4"),
    "open key": (
        "server", SERVED, lambda live, kit: (kit / "server.key").chmod(0o644), NONE, "others than its owner may use it"
    ),
    "no such case": (
        "server", SERVED, lambda live, kit: None, ("--case", "nap"), "there is no case 'nap' as server; the cases are h"
    ),
    "no configuration": (
        "server", SERVED, lambda live, kit: (kit / "configuration.msgpack").write_bytes(b"x"), NONE,
        "write the encoding that a server sends",
    ),
    "a configuration for fewer": ("server", SERVED, configured(clients=3), NONE, "and clients = 4 or more"),
    "a configuration with a mode": ("server", SERVED, configured(mode="semi-honest"), NONE, "use mode = active"),
    "a configuration with a threshold": ("server", SERVED, configured(threshold=4), NONE, "threshold = 0"),
    "a configuration that overflows": ("server", SERVED, configured(ring_bits=8), NONE, "ring_bits = 8 is too small"),
    "no address": ("server", SERVED, lambda live, kit: setattr(live, "address", "here"), NONE, "use tcp://HOST:PORT"),
    "nobody there": ("client", ALL_CLIENTS, lambda live, kit: None, ("--wait", "1"), "nothing listens at tcp://"),
}  # fmt: skip


def test_wrong_input(tacit: Invoke, tmp_path: Path) -> None:
    wrong = {}
    for number, (case, (side, given, spoil, more, expected)) in enumerate(WRONG.items()):
        (tmp_path / str(number)).mkdir()
        live = Bench(tmp_path / str(number), 4)
        kit = live.give_keys(*given)
        spoil(live, kit)
        result = tacit("conformance", "peer", live.address, "--as", side, "--keys", kit, *more)
        if result.exit_code != 2 or expected not in complaints(result):
            wrong[case] = result.exit_code, result.output
    assert wrong == {}


def rostered(*names: str) -> Callable[[InferenceBench, Path], None]:
    def spoil(live: InferenceBench, kit: Path) -> None:
        (kit / "roster.toml").unlink()
        write_roster(Roster(tuple(live.roster.member(name) for name in names)), kit / "roster.toml")
        for path in kit.glob("*.key"):
            if path.stem not in names:
                path.unlink()

    return spoil


def without(*names: str) -> Callable[[InferenceBench, Path], None]:
    return lambda live, kit: [(kit / name).unlink() for name in names] and None


def with_terms(live: InferenceBench, kit: Path) -> None:
    (kit / "terms.msgpack").write_bytes(b"x")


def with_a_folder_of_terms(live: InferenceBench, kit: Path) -> None:
    (kit / "terms.msgpack").unlink()
    (kit / "terms.msgpack").mkdir()


DEALING = ("--dealer", "tcp://127.0.0.1:*")
WRONG_INFERENCE: dict[str, tuple[Side, Callable[[InferenceBench, Path], None], tuple[str, ...], str]] = {
    "no address of the dealer": ("model-owner", without(), NONE, "plays the dealer too:"),
    "an address too many": ("owners", without(), DEALING, "as owners it plays no dealer:"),
    "no dealer": ("owners", rostered("hospital", "ward"), NONE, "roster.toml:"),
    "no client": ("owners", rostered("hospital", "trent"), NONE, "0 clients; the scripts need 1 or more"),
    "no key of the dealer": ("data-owner", without("trent.key"), DEALING, "trent.key is missing; put the keys of"),
    "no key of a data owner": ("owners", without("ward.key"), NONE, "keys of 0 clients of the roster; put the"),
    "no key of the model owner": ("owners", without("hospital.key"), NONE, "hospital.key is missing"),
    "no terms": ("model-owner", with_terms, DEALING, "write the encoding of terms that a model owner sends"),
    "terms out of reach": ("model-owner", with_a_folder_of_terms, DEALING, "terms.msgpack:"),
    "no address of the sums": (
        "adapting-model-owner",
        without(),
        DEALING,
        "as adapting-model-owner it plays the sums too:",
    ),
    "sums too many": ("adapting-data-owner", without(), (*DEALING, "--sums", "tcp://127.0.0.1:*"), "it plays no sums:"),
    "one data owner": ("adapting-data-owner", without("ward.key"), DEALING, "put the .key files of 2 or more there"),
    "no such case": ("owners", without(), ("--case", "nap"), "there is no case 'nap' as owners; the cases are honest"),
}


def test_wrong_input_for_private_inference(tacit: Invoke, tmp_path: Path) -> None:
    wrong = {}
    for number, (case, (side, spoil, more, expected)) in enumerate(WRONG_INFERENCE.items()):
        (tmp_path / str(number)).mkdir()
        live = InferenceBench(tmp_path / str(number))
        kit = live.give_keys(side)
        spoil(live, kit)
        result = tacit("conformance", "peer", live.address, "--as", side, "--keys", kit, *more)
        if result.exit_code != 2 or expected not in complaints(result):
            wrong[case] = result.exit_code, result.output
    assert wrong == {}


def test_a_model_owner_without_terms_is_told_of(tacit: Invoke, tmp_path: Path) -> None:
    live = InferenceBench(tmp_path)
    kit = live.give_keys("data-owner")
    rostered("hospital", "ward", "trent")(live, kit)
    with live.live("data-owner"):
        arguments = ("--as", "data-owner", "--keys", kit, "--dealer", live.dealer_address)
        result = tacit("conformance", "peer", live.address, *arguments)
    assert result.exit_code == 2, result.output
    assert "says no terms: the answer to inference-hello is Abort(code=<Code.ROSTER" in result.stderr


def test_it_starts_without_torch() -> None:
    code = "import sys; import tacit.simulate.conformance.peer.play; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "timm", "crypten"} & set(run.stdout.split())

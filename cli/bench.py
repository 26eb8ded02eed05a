"""`tacit bench`: figures of this machine, on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Console

from tacit.cli.adaptation_figures import show_adaptation
from tacit.cli.bench_figures import show_cohorts, show_crypten, show_network, show_protection, show_start, show_sum
from tacit.cli.inference_figures import show_blocks, show_ckks, show_student
from tacit.cli.output import FAILED, WRONG_INPUT, complaining, json_option, measured
from tacit.protocol.inference.known import KNOWN_GIVES_AWAY

JsonFile = Annotated[Path | None, json_option("Write the figures to this file.")]
Progress = Callable[[str], None]

app = typer.Typer(no_args_is_help=True, help="Measure what things cost on this machine.")


_USUAL: Final[dict[str, tuple[Any, Any]]] = {
    "dimension": (100_000, 1_000),
    "dropout": (0.0, 0.05),
    "tolerate_dropout": (0.33, 0.05),
    "corrupt": (0.33, 0.05),
    "mode": ("semi-honest", "active"),
}
"""What `bench secagg` takes where nothing is said, of one sum, and with cohorts."""


def _usual(name: str, **settings: Any) -> Any:
    one, many = _USUAL[name]
    return typer.Option(show_default=f"{one}; with --cohorts {many}", **settings)


@app.command()
def secagg(
    context: typer.Context,
    clients: Annotated[int, typer.Option("--clients", "--cohort", min=2, max=10_000, help="Clients of the sum.")] = 100,
    cohorts: Annotated[
        int, typer.Option(min=1, max=10_000, help="So many sums, of clients of their own, added up.")
    ] = 1,
    dimension: Annotated[int | None, _usual("dimension", min=1, help="Entries of the vector.")] = None,
    dropout: Annotated[
        float | None, _usual("dropout", min=0, max=0.99, help="Fraction that drops out after sharing.")
    ] = None,
    tolerate_dropout: Annotated[
        float | None, _usual("tolerate_dropout", min=0, max=0.99, help="Fraction that may drop out.")
    ] = None,
    corrupt: Annotated[float | None, _usual("corrupt", min=0, max=0.99, help="Fraction that may collude.")] = None,
    mode: Annotated[
        Literal["semi-honest", "active"] | None,
        _usual("mode", help="What the server is trusted with."),
    ] = None,
    graph: Annotated[
        Literal["auto", "complete", "regular"],
        typer.Option(
            help="Who masks with whom; auto: regular from 20 clients on in semi-honest mode, and with --cohorts."
        ),
    ] = "auto",
    counts: Annotated[bool, typer.Option("--counts", help="Let every coordinate carry a count.")] = False,
    transport: Annotated[Literal["memory", "zmq"], typer.Option(help="How messages travel.")] = "memory",
    profile: Annotated[bool, typer.Option("--profile", help="Show the seconds by kind of work.")] = False,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where cohorts that are done are kept, so that none is summed twice.")
    ] = Path("runs/cohorts"),
    json_file: JsonFile = None,
) -> None:
    """One secure sum with the real machines and real cryptography, timed party by party; or one for each of many
    cohorts, on all cores, added up.

    Interrupted, the command for many cohorts goes on where it was; one for more of them adds to those that are there.

    Exit status: 0 the sum is exact; 1 it is not, could not be computed, or the file cannot be written; 2 wrong input.
    """
    from tacit.parties.runs.directory import RunDirectoryError
    from tacit.simulate.bench import cohorts as many
    from tacit.simulate.bench.secagg import SumBenchmark, measure

    one = cohorts == 1
    usual = {name: values[not one] for name, values in _USUAL.items()}
    setting = SumBenchmark(
        clients=clients,
        dimension=dimension or usual["dimension"],
        dropout=usual["dropout"] if dropout is None else dropout,
        tolerate_dropout=usual["tolerate_dropout"] if tolerate_dropout is None else tolerate_dropout,
        corrupt=usual["corrupt"] if corrupt is None else corrupt,
        active=(mode or usual["mode"]) == "active",
        graph=graph if one or graph != "auto" else "regular",
        counts=counts,
        sockets=transport == "zmq",
        everybody=0 if one else many.EVERYBODY,
    )

    def work_on_cohorts(progress: Progress) -> dict[str, Any]:
        _refuse(context, {"transport", "profile", "counts"}, "of one sum only; leave it out with --cohorts")
        with complaining((RunDirectoryError, WRONG_INPUT)):
            return many.measure(many.CohortsBenchmark(setting=setting, cohorts=cohorts, directory=out), progress)

    def work(progress: Progress) -> dict[str, Any]:
        _refuse(context, {"out"}, "for --cohorts; leave it out")
        return measure(setting, lambda phase: progress(phase.lower().replace("_", " ")), profile=profile)

    if one:
        figures = _measured(work, show_sum, json_file, "bench-secagg")
    else:
        figures = _measured(work_on_cohorts, show_cohorts, json_file, "bench-cohorts")
    raise typer.Exit(0 if figures["sum_is_exact"] else FAILED)


@app.command()
def protection(
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; their median is told.")] = 7,
    json_file: JsonFile = None,
) -> None:
    """What the protections of an update cost a client, alone and as a share of its local training."""
    from tacit.simulate.bench.protection import measure

    _measured(lambda progress: measure(progress, repeats=repeats), show_protection, json_file, "bench-protection")


@app.command()
def crypten(
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; their median is told.")] = 15,
    json_file: JsonFile = None,
) -> None:
    """CrypTen over its own transport and over ours, with and without encryption, between two processes.

    Exit status: 0 done; 1 a party ended early, or the file cannot be written; 2 wrong input.
    """

    def work(progress: Progress) -> dict[str, Any]:
        from tacit.simulate.bench.crypten import measure

        return measure(progress, repeats=repeats)

    _measured(work, show_crypten, json_file, "bench-crypten")


@app.command()
def network(
    clients: Annotated[int, typer.Option(min=3, max=100, help="Clients of the rounds.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Rounds; their median is told.")] = 9,
    delay: Annotated[
        list[float] | None, typer.Option(metavar="MS", help="One-way delay; repeat it.", show_default="1, 20 and 50")
    ] = None,
    connected: Annotated[
        int, typer.Option(min=3, max=200, help="Clients that the server's memory is told with.")
    ] = 100,
    json_file: JsonFile = None,
) -> None:
    """What the network costs a federation beyond training, with the real machines, CURVE and ZeroMQ, and no torch.

    Rounds in active mode over a link with delays, the upload of vectors over 1 Gbit/s, and the server's memory.

    Exit status: 0 done; 1 a session failed, or the file cannot be written; 2 wrong input.

    In the JSON file: "by_delay_ms", with "seconds" and "one_way_delays" of a round; "upload" by delay, with "mbit" and
    "of_the_line"; "memory", with "alone_mb", "connected_mb" and "kb_per_client".
    """
    from tacit.simulate.bench.network import NetworkBenchmark, measure

    setting = NetworkBenchmark(
        clients=clients, rounds=rounds, delays_ms=tuple(delay or (1.0, 20.0, 50.0)), connected=connected
    )
    _measured(lambda progress: measure(setting, progress), show_network, json_file, "bench-network")


@app.command()
def start(
    repeats: Annotated[int, typer.Option(min=1, max=99, help="Runs of each; medians are told.")] = 3,
    json_file: JsonFile = None,
) -> None:
    """How long it takes until something happens: help, a refusal, and first rounds, by the commands themselves.

    Exit status: 0 done; 1 a command failed, or the file cannot be written; 2 wrong input.

    In the JSON file: "seconds", with "help", "wrong_input", "simulate_first_round", "infer" (20 images),
    "hosts_first_round" (server and three clients between hosts), and, within that, "imports" and "training"; and
    "profile": the seconds that each package takes of what parties load.
    """
    from tacit.simulate.bench.start import measure

    _measured(lambda progress: measure(repeats, progress), show_start, json_file, "bench-start")


@app.command()
def inference(
    context: typer.Context,
    directory: Annotated[Path | None, typer.Argument(metavar="DIR", help="Results of `tacit distill`.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="With DIR: only so many of the test images.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Images at a time.", show_default="60 with DIR, 1 without")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With DIR: compare every gauge on shares, which tells a bit each.")
    ] = False,
    model: Annotated[str, typer.Option(help="Without DIR: a vision transformer of timm's.")] = "vit_small_patch16_224",
    blocks: Annotated[int, typer.Option(min=1, max=64, help="Without DIR: so many blocks, one after the other.")] = 1,
    known: Annotated[
        Literal["known", "shared"],
        typer.Option(
            "--input",
            help="Without DIR: nobody knows the input of a block (shared), or the data owner does (known): "
            f"{KNOWN_GIVES_AWAY}.",
        ),
    ] = "shared",
    against: Annotated[
        Literal["crypten", "shaft"] | None,
        typer.Option(help="Without DIR: measure stock CrypTen too; with shaft, SHAFT (NDSS 2025) beside both."),
    ] = None,
    checkout: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="With --against shaft: a checkout of github.com/andeskyl/SHAFT, which is run. Without: figures "
            "measured once, scaled by CrypTen's time here.",
        ),
    ] = None,
    latency: Annotated[
        float | None, typer.Option(metavar="MS", help="Without DIR: delay the link between the owners, one way.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="MBIT", help="Without DIR: limit its rate, in megabits a second each way.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Without DIR: repetitions; their median is told.")] = 5,
    device: Annotated[str, typer.Option(help="Without DIR: where both owners compute: cpu or cuda.")] = "cpu",
    json_file: JsonFile = None,
) -> None:
    """Inference on shares, between a model owner, a data owner and a dealer on loopback TCP.

    With DIR: a distilled student on its test images, on CrypTen with our transport and dealer. Without: transformer
    blocks of a model with random weights, by the protocol of our own, on a link of the two owners that can be shaped;
    it is shaped for CrypTen and SHAFT too. Dealer and third party are not delayed. All parties run on two cores, and
    the sustained seconds are those of passes back to back, with the material that they use up made beside them.

    Exit status: 0 done; 1 a party failed, or the file cannot be written; 2 wrong input; 130 Ctrl-C.

    Ours is measured twice: with softmax, GELU and LayerNorm themselves, beside which SHAFT is to be seen, and with the
    polynomials of friendly blocks, which CrypTen computes too.

    In the JSON file: "true_functions" and "polynomials", beside them "crypten", "crypten_ttp" and "shaft", each with
    "online_seconds", "sustained_seconds", "online_bytes_sent", "dealer_bytes" and "peak_bytes" by party, "rounds",
    "total" ("bytes", "rounds") and "relative_error"; ours have "per_operation" and "far" (their scores reach far) as
    well, and "shaft" the "scale" of figures that were not measured here.
    """

    def work(progress: Progress) -> dict[str, Any]:
        progress("starting the parties")
        if directory is not None:
            _refuse(context, _OF_BLOCKS, "of blocks with random weights only; leave out the directory")
            from tacit.simulate.bench.inference import measure

            return measure(directory, images=images, batch=batch or 60, check=check, progress=progress)
        _refuse(context, _OF_STUDENTS, "of a student only; name the directory of its results")
        from tacit.simulate.bench import blocks as measured_blocks
        from tacit.simulate.federation.relay import Shaping

        setting = measured_blocks.BlockBenchmark(
            model=model,
            blocks=blocks,
            batch=batch or 1,
            input=known,
            repeats=repeats,
            device=device,
            shaping=Shaping(latency_ms=latency, bandwidth_mbit=bandwidth),
            against=against,
            checkout=checkout,
        )
        return measured_blocks.measure(setting, progress)

    show, schema = (show_blocks, "bench-blocks") if directory is None else (show_student, "bench-student")
    _measured(work, show, json_file, schema)


@app.command()
def adapt(
    blocks: Annotated[int, typer.Option(min=1, max=64, help="Of the model; fewer are measured too.")] = 4,
    batch: Annotated[int, typer.Option(min=1, max=256, help="Images; smaller batches are measured too.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Batches of each; their median is told.")] = 5,
    against: Annotated[
        Literal["crypten"] | None, typer.Option(help="Measure CrypTen's autograd on the adapters too.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Batches of `tacit adapt` between a model owner, a data owner and a dealer on loopback TCP: learning included.

    A model with random weights of the default sizes, adapters of rank 8, ten classes; data owners are told nothing of
    what blocks leave, or the outputs of all blocks. All parties run on two cores. Sustained seconds are those of
    batches back to back, with the material that they use up made beside them.

    Exit status: 0 done; 1 a party failed, a batch was out of range, or the file cannot be written; 2 wrong input;
    130 Ctrl-C.

    In the JSON file: "arms", by what is told ("none", "all"), each with "online_seconds", their parts in "seconds",
    "backward_of_forward", "waited_seconds" for material, "sustained_seconds", "online_bytes_sent", "dealer_bytes" and
    "peak_bytes" by party, "rounds", "per_operation", and "by_blocks" and "by_batch" for smaller sizes; "plaintext", the
    same step in the clear; and "crypten" and "crypten_ttp", by who makes its tuples.
    """

    def work(progress: Progress) -> dict[str, Any]:
        progress("starting the parties")
        from tacit.simulate.bench.adaptation import AdaptationBenchmark, measure

        return measure(AdaptationBenchmark(blocks=blocks, batch=batch, repeats=repeats, against=against), progress)

    _measured(work, show_adaptation, json_file, "bench-adapt")


@app.command()
def ckks(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Results of `tacit distill`.")],
    json_file: JsonFile = None,
) -> None:
    """The first block of a distilled student on values that are encrypted by CKKS, with bootstrapping.

    Needs the extra "ckks", 19 GB of memory, and minutes: most of them make keys and refresh ciphertexts.

    Exit status: 0 the block is right within 1e-2; 1 it is not, the library failed, or the file cannot be written;
    2 wrong input, or something that it needs is not there; 130 Ctrl-C.

    In the JSON file: "seconds" of the block, "relative_error", bytes of keys and ciphertexts, "peak_bytes",
    "bootstraps", "asked_of_data_owner" (ciphertexts that it had to refresh) and "per_operation".
    """

    def work(progress: Progress) -> dict[str, Any]:
        from tacit.simulate.bench.ckks import measure

        return measure(directory, progress)

    figures = _measured(work, show_ckks, json_file, "bench-ckks")
    raise typer.Exit(0 if figures["within_tolerance"] else FAILED)


def _measured(
    work: Callable[[Progress], dict[str, Any]],
    show: Callable[[Console, dict[str, Any]], None],
    json_file: Path | None,
    schema: str,
) -> dict[str, Any]:
    from tacit.simulate.bench.ends import BenchmarkError
    from tacit.simulate.federation.processes import ProcessError

    return measured(work, show, json_file, schema=schema, failed=(BenchmarkError, ProcessError))


_OF_STUDENTS = {"images", "check"}
_OF_BLOCKS = {"model", "blocks", "known", "against", "checkout", "latency", "bandwidth", "repeats", "device"}


def _refuse(context: typer.Context, names: set[str], remedy: str) -> None:
    """ValueError if one of these parameters of the command was given."""
    given = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            given.append(parameter.opts[0])
    if given:
        raise ValueError(f"{', '.join(given)}: {remedy}")

"""What one secure sum costs in Flower, ours beside its own: `python -m tests.flower.costs`, in the environment that
`make flower` makes.

Both are run in turns, in one process, over the same grid, by clients that train nothing: each returns the model that it
got, plus an update of its own. So a client's seconds are those of the secure sum. The wire is Flower's writing and
reading of messages; it is in no column. SecAgg+ gets the same graph (shares for everybody) and the same threshold.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.server_config import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from tacit.parties.flower import SecureGrid, secure_sum_mod
from tacit.parties.links.roster import enrol_partitions
from tests.flower.local_grid import RUN, LocalGrid
from tests.flower.losing import Loses, Lost

EXAMPLES = 100
SHARED = 2 / 3
"""Of all shares, those that open a secret, and one more: our rule in active mode, with all clients as holders."""


def update_of(node: int, length: int) -> Any:
    """The update [length] of a client."""
    return np.random.default_rng(node).normal(0, 0.01, length).astype(np.float32)


def our_app(length: int, mods: list[Any]) -> ClientApp:
    """A client that trains nothing, in the Message API."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = [message.content["arrays"].to_numpy_ndarrays()[0] + update_of(context.node_id, length)]
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": EXAMPLES})}
        return Message(RecordDict(content), reply_to=message)

    return app


def their_app(length: int, lost: int) -> Callable[[Message, Context], Message]:
    """The same in the records that the mod of SecAgg+ reads. lost: nodes that do not get as far as training."""

    def app(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] < lost:
            raise RuntimeError("lost")
        model = parameters_to_ndarrays(compat.recorddict_to_fitins(message.content, keep_input=True).parameters)[0]
        trained = ndarrays_to_parameters([model + update_of(context.node_id, length)])
        return Message(
            compat.fitres_to_recorddict(FitRes(Status(Code.OK, ""), trained, EXAMPLES, {}), False), reply_to=message
        )

    return lambda message, context: secaggplus_mod(message, context, app)


def ours(folders: Path, nodes: int, length: int, lost: int) -> tuple[LocalGrid, float, Any]:
    """One sum: its grid, the seconds of all of it, and the mean."""
    losing = [Loses(number, (Lost.BEFORE_TRAINING,), folders / f"counter-{number}") for number in range(lost)]
    for one in losing:
        one.counter.unlink(missing_ok=True)
    app = our_app(length, [*losing, secure_sum_mod(f"{folders}/{{partition-id}}")])
    grid = LocalGrid(app, nodes)
    model = ArrayRecord([np.zeros(length, np.float32)])
    content = RecordDict({"arrays": model, "config": ConfigRecord({"lr": 0.1})})
    began = time.perf_counter()
    replies = SecureGrid(grid, folders / "roster.toml").send_and_receive(
        [Message(content, node, "train") for node in grid.contexts]
    )
    took = time.perf_counter() - began
    return grid, took, replies[0].content["arrays"].to_numpy_ndarrays()[0]


def theirs(nodes: int, length: int, lost: int) -> tuple[LocalGrid, float, Any]:
    """One sum of SecAgg+."""
    grid = LocalGrid(their_app(length, lost), nodes)
    strategy = FedAvg(min_fit_clients=nodes, min_available_clients=nodes)
    context = LegacyContext(Context(RUN, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=1), strategy)
    for node in grid.contexts:
        context.client_manager.register(GridClientProxy(node, grid, RUN))
    start = ndarrays_to_parameters([np.zeros(length, np.float32)])
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(start, True)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    threshold = int(SHARED * nodes) + 1
    began = time.perf_counter()
    SecAggPlusWorkflow(1.0, threshold)(grid, context)
    took = time.perf_counter() - began
    found = compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], True)
    return grid, took, parameters_to_ndarrays(found)[0]


def main() -> None:
    """Print one row for each of the two, with and without clients that are lost, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--length", type=int, default=62_006)
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print("| lost | sum | server, s | a client, s | to a client, kB | from a client, kB |\n|---|---|---|---|---|---|")
    for lost in (0, 2):
        rows = measured(chosen.nodes, chosen.length, chosen.repeats, lost)
        for name, row in rows.items():
            print(f"| {lost} | {name} | " + " | ".join(f"{value:.3g}" for value in row) + " |")
        print(f"| {lost} | ratio | " + " | ".join(f"{a / b:.2f}" for a, b in zip(*rows.values(), strict=True)) + " |")


def measured(nodes: int, length: int, repeats: int, lost: int) -> dict[str, list[float]]:
    """Medians over the repeats, of ours and theirs. AssertionError if one of them did not give the mean."""
    rows: dict[str, list[list[float]]] = {"Tacit, active": [], "SecAgg+": []}
    expected = np.mean([update_of(101 + number, length) for number in range(lost, nodes)], axis=0)
    with TemporaryDirectory() as folder:
        folders = Path(folder)
        enrol_partitions(folders, nodes)
        for _ in range(repeats):
            for name, found in (
                ("Tacit, active", ours(folders, nodes, length, lost)),
                ("SecAgg+", theirs(nodes, length, lost)),
            ):
                grid, took, mean = found
                assert np.abs(mean - expected).max() < 1e-4, f"{name} did not give the mean"
                server = took - grid.client_seconds - grid.wire_seconds
                bytes_moved = [moved / nodes / 1000 for moved in (grid.bytes_sent, grid.bytes_received)]
                rows[name].append([server, grid.client_seconds / nodes, *bytes_moved])
    return {name: [median(column) for column in zip(*found, strict=True)] for name, found in rows.items()}


if __name__ == "__main__":
    main()

"""A cheating server in an audit: cases of the conformance kit against a live client, and runs with clients left out.

Cases are played against a client of ours in a process of its own, with fresh keys, over a link with CURVE; server and
other clients are the kit's (tacit.simulate.conformance.peer), which reports after every case. Link, keys, machine and
journal are those of any client; its contribution is drawn at random, since no cheat of a secure sum depends on it. When
a session ends, which a refusal may do, it joins again, until it is stopped. The scripts are written for active mode, in
which a client does not trust the server in anything. In semi-honest mode it trusts that the server keeps to the
protocol, and without a secure sum there is nothing to cheat for.

In runs with clients left out the server is one of the audit's own (tacit.simulate.federation.cheats), and subtracts one
opened sum from another; all clients are as ever. Each has one image, so that its updates are the same in every round,
as they are where a client takes all of its images: one that draws others anew differs in the second sum, and the
difference of both is of no use.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tacit.models.data import load
from tacit.models.data import read as read_images
from tacit.models.interruption import Proceed
from tacit.parties.links.endpoint import EndpointError
from tacit.parties.links.keys import PartyKeys, generate
from tacit.parties.protections.none import NoProtection
from tacit.parties.runs.directory import RunDirectory, write_arrays
from tacit.parties.runs.experiment import Experiment
from tacit.parties.session.client import ClientParty, ClientSettings
from tacit.parties.session.event_log import EventFile, EventLog
from tacit.parties.session.event_log import read as read_events
from tacit.parties.session.events import ClientRoundEnded
from tacit.parties.session.journal import JournalFile
from tacit.parties.session.task import ClientTask, Contribution, RoundWork
from tacit.protocol.core.errors import Code, LocalProtocolError
from tacit.protocol.core.roster import Roster
from tacit.protocol.sum.configuration import Mode
from tacit.protocol.sum.policy import Policy
from tacit.secagg.packing import Total
from tacit.simulate.audit.arms import SMALL, AuditArm
from tacit.simulate.audit.results import ServerCheat
from tacit.simulate.audit.views import DIFFERENCE, RunTerms, UpdateView, without
from tacit.simulate.conformance.peer.against_client import AgainstClient
from tacit.simulate.conformance.peer.cast import Keyring
from tacit.simulate.conformance.peer.script import FEWEST_CLIENTS, Case, draw_update
from tacit.simulate.conformance.peer.training_cases import CLIENT_CASES, TAKES_PART, refuses_round
from tacit.simulate.federation.child import Control
from tacit.simulate.federation.processes import SERVER, Exit, ProcessError, Processes
from tacit.simulate.federation.recording import OpenedSum, Record
from tacit.simulate.federation.run import party_names
from tacit.simulate.world.federation import small_configuration

PLAYED: Final = "active"
"""The mode of the scripts."""
_PATIENCE: Final = 60.0
_GRACE: Final = 0.2
_WAIT: Final = 60.0
_GRACE_SECONDS: Final = 5.0

SUBTRACTION: Final = "subtraction"
_CLIENTS: Final = 10
_GROUP: Final = 2
_CORRUPT, _DROPOUT = 0.05, 0.34
"""Shares with which groups of two are possible; the same without groups."""
_MOST_TEST_IMAGES: Final = 1000


class DrawingTask(ClientTask):
    """A task without training: it draws updates that the configuration admits."""

    def contribute(self, work: RoundWork, proceed: Proceed) -> Contribution:
        return Contribution(draw_update(work.configuration).words)


async def live_client(
    control: Control, *, address: str, keys: PartyKeys, roster: Roster, mode: Mode, folder: Path
) -> dict[str, Any]:
    """Run the process of a client that accepts this mode alone."""
    settings = ClientSettings(
        address=address,
        keys=keys,
        roster=roster,
        policy=Policy(modes=(mode,)),
        journal=JournalFile(folder / "journal.jsonl"),
        patience=_PATIENCE,
        grace=_GRACE,
    )
    with EventFile(folder / "events.jsonl", keys.name) as log:
        while True:
            with contextlib.suppress(EndpointError, LocalProtocolError):
                await ClientParty(settings, {"fedavg": DrawingTask()}, EventLog(log, lambda event: None)).run()


def why_skipped(modes: Sequence[str]) -> str:
    """Return why no case is played for configurations in these modes; "" if there is nothing to cheat for."""
    if PLAYED in modes or "semi-honest" not in modes:
        return ""
    return "in semi-honest mode a client trusts that the server keeps to the protocol"


async def play_cases(
    folder: Path, progress: Callable[[str], None], cases: Sequence[Case] = CLIENT_CASES
) -> list[ServerCheat]:
    """Play these cases against a client whose journal and log go to the folder. ProcessError if its process ends."""
    folder.mkdir(parents=True)
    keys = {name: generate(name) for name in party_names(FEWEST_CLIENTS)}
    roster = Roster(tuple(own.member("server" if name == SERVER else "client") for name, own in keys.items()))
    live = roster.clients[-1]
    keyring = Keyring(roster, {name: own for name, own in keys.items() if name != live}, folder)
    configuration = small_configuration(FEWEST_CLIENTS, mode=PLAYED, graph="complete")
    server = AgainstClient(keyring, live, configuration, "tcp://127.0.0.1:*", wait=_WAIT, tell=lambda text: None)

    async def play() -> list[ServerCheat]:
        played = []
        for case in cases:
            progress(f"the server {case.does}")
            outcome = await server.play(case)
            played.append(
                ServerCheat(
                    case=case.name,
                    action=case.does,
                    expected=outcome.expected,
                    observed=outcome.seen,
                    passed=outcome.passed,
                )
            )
        return played

    async with Processes(folder, grace_seconds=_GRACE_SECONDS) as processes:
        try:
            await server.open()
            given = {"address": server.address, "keys": keys[live], "roster": roster, "mode": PLAYED, "folder": folder}
            await processes.start(live, live_client, **given)
            playing, ending = asyncio.ensure_future(play()), asyncio.ensure_future(_end(processes))
            try:
                await asyncio.wait({playing, ending}, return_when=asyncio.FIRST_COMPLETED)
                if not playing.done():
                    raise ProcessError(f"{live}, against which a server cheats, ended: {ending.result()}")
                return playing.result()
            except EndpointError as error:
                raise ProcessError(f"the server that cheats {live} has no link: {error}") from error
            finally:
                playing.cancel()
                ending.cancel()
                await asyncio.gather(playing, ending, return_exceptions=True)
        finally:
            await server.close()


async def _end(processes: Processes) -> str:
    """Wait for the end of the client's process; return how it ended."""
    last = ""
    async for _, message in processes.messages():
        last = last or (str(message) if isinstance(message, Exit) else str(message.get("failed", "")))
    return last


def subtraction_arms(base: Experiment) -> Iterator[AuditArm]:
    """Configurations with the experiment's secure sum alone, without groups and with them.

    In semi-honest mode groups bind no cheating server, and without a secure sum there is nothing to subtract.
    """
    mode = base.aggregation.mode
    groups = {"active": (0, _GROUP), "semi-honest": (0,), "none": ()}[mode]
    for size in groups:
        kind = f"groups of {size}" if size else "no groups"
        # With groups, a round that all clients refuse comes before these.
        rounds = 2 + _CLIENTS // size if size else 1 + _CLIENTS
        experiment = msgspec.structs.replace(
            base,
            federation=msgspec.structs.replace(base.federation, clients=_CLIENTS, group_size=size, rounds=rounds),
            aggregation=msgspec.structs.replace(
                base.aggregation, corrupt=_CORRUPT, dropout=_DROPOUT, threshold=0, ring_bits=0
            ),
            protection=NoProtection(),
            encryption=None,
            # So few clients may be less than the owners accept.
            policy=msgspec.structs.replace(
                base.policy, modes=(mode,), smallest_cohort=SMALL, threshold_floor=0, least_corrupt=_CORRUPT
            ),
        )
        yield AuditArm(
            name=f"subtraction-{kind.replace(' ', '-')}",
            about=f"secure sum, {kind}, a server that leaves out one after the other of {_CLIENTS} clients",
            experiment=experiment,
            subtracts=True,
        )


def one_image_each(experiment: Experiment, path: Path, seed: int) -> Experiment:
    """Return the experiment with one image for every client, drawn by the seed; write them to the path (.npz)."""
    source = read_images(experiment.data)
    mean, std = load(experiment.data, image_size=experiment.model.image_size, source=source).normalisation
    generator = np.random.default_rng(seed)
    labels, clients = source.train.labels, experiment.clients
    # That of the largest label says how many classes there are.
    last = int(labels.argmax())
    others = generator.permutation(np.delete(np.arange(len(labels)), last))
    chosen = {
        "train": (source.train, np.sort(np.append(others[: clients - 1], last))),
        "test": (source.test, np.sort(generator.permutation(len(source.test.labels))[:_MOST_TEST_IMAGES])),
    }
    arrays = {}
    for part, (samples, indices) in chosen.items():
        arrays[f"x_{part}"] = samples.images.pixels(indices, size=experiment.model.image_size)
        arrays[f"y_{part}"] = samples.labels[indices]
    write_arrays(path, **arrays)
    data = msgspec.structs.replace(
        experiment.data,
        source=str(path.resolve()),
        directory="",
        classes=(),
        centres=(),
        partition="iid",
        mean=mean,
        std=std,
    )
    return msgspec.structs.replace(experiment, data=data)


def differences(records: Sequence[Record], terms: RunTerms) -> Iterator[UpdateView]:
    """Subtract each later sum of a recorded server from its first one; none if it opened none."""
    sums = [record for record in records if isinstance(record, OpenedSum)]
    if not sums:
        return
    first, *others = sums
    model = terms.keeper().flat
    for other in others:
        left = tuple(name for name in first.survivors if name not in other.survivors)
        if not left:
            continue
        mean, known = without(_total(first, terms), [_total(other, terms)]).mean()
        yield UpdateView(
            round=first.round, kind=DIFFERENCE, clients=left, model=model, first=model, mean=mean, known=known
        )


def left_out(arm: AuditArm, run: RunDirectory, clients: Sequence[str]) -> ServerCheat:
    """Return how the clients reacted when the first of them was left out alone, in the second round."""
    groups = bool(arm.experiment.federation.group_size)
    expected = refuses_round(Code.MEMBERS) if groups else TAKES_PART
    answers = dict.fromkeys(_answer(run, client) for client in clients[1:])
    observed = ", ".join(answers)
    return ServerCheat(
        case="leaves-out-of-group" if groups else "leaves-out",
        action=f"leaves a client {'of a group ' if groups else ''}out of a round that begins next to the first model",
        expected=expected,
        observed=observed,
        passed=observed == expected,
    )


def _answer(run: RunDirectory, client: str) -> str:
    for event in read_events(run.events(client)):
        if isinstance(event, ClientRoundEnded) and event.round == 2:
            return TAKES_PART if event.code is None else refuses_round(Code[event.code])
    return "does not end the round"


def _total(opened: OpenedSum, terms: RunTerms) -> Total:
    sizes = terms.configuration.packing().tensor_sizes
    return Total(values=opened.values, weights=opened.weights, metrics={}, tensor_sizes=sizes)

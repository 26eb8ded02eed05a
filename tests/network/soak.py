"""`python -m tests.network.soak`: many rounds of a federation in namespaces, with kills and partitions at random.

In a part of the rounds one thing happens, in a phase drawn by the seed: a client is killed and started again, a client
is cut off for up to twelve seconds, both happen to two clients at once, or the server is killed and started again. In
the end every sum that was applied is compared with what its survivors contributed, the models show that each was
applied once, and memory and descriptors of every process that lived for some rounds are compared between its first and
its last. It says what it found as JSON, and ends with 1 if a sum is wrong, or a round was applied twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from tacit.parties.runs.directory import RunDirectory
from tacit.parties.session.events import PhaseEnded, RoundEnded, SessionEnded
from tacit.protocol.sum.states import Phase
from tacit.simulate.federation.run import verify
from tests.cli.hosts import Process
from tests.network.federation import NetworkHosts, federation
from tests.network.namespaces import obstacle

CLIENTS: Final = 7
"""Two of them may be away and two may collude, so that a round survives the event "both"."""
PHASES: Final = (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS, Phase.TRAIN, Phase.CONSISTENCY_CHECK, Phase.UNMASK)
"""Vectors are small: there is no time between when all are ready and when all have come."""
EVENTS: Final = (("calm", 11), ("kill", 3), ("partition", 4), ("both", 1), ("server", 1))
"""What happens in a round, and how often in twenty."""
LONGEST_AWAY: Final = 12.0
RING_BITS: Final = 24
LONG_LIFE: Final = 10
"""Rounds after which a process is looked at."""
SETTLED: Final = 3
"""Rounds until a process has loaded what it needs."""
CLOSE: Final = 1e-5
_RECORDED: Final = str(Path(__file__).with_name("recorded.py"))


class Soak:
    """One run."""

    def __init__(self, hosts: NetworkHosts, *, rounds: int, seed: int) -> None:
        self._hosts = hosts
        self._rounds = rounds
        self._random = Random(seed)
        self._running: dict[str, Process] = {}
        self._sizes: dict[int, list[tuple[int, int]]] = {}
        """By process, kilobytes in memory and descriptors after each round."""
        self._names: dict[int, str] = {}
        self._partitions: list[threading.Thread] = []
        self.happened: Counter[str] = Counter()

    def run(self) -> None:
        """Until the server has run all rounds."""
        self._hosts.experiment(rounds=self._rounds, clients=CLIENTS)
        path = self._hosts.path / "server" / "experiment.toml"
        text = path.read_text().replace("[aggregation]", "[aggregation]\ndropout = 0.3")
        path.write_text(text.replace("train = 120", "train = 900").replace("grace = 1", "grace = 10"))
        self._start("server", "server", "party.toml", "experiment.toml").until("listens at")
        for name in self._hosts.names[1:]:
            self._start(name, "client", "party.toml", "--stay")
        what, phase = self._draw()
        for event in self._hosts.events().all():
            if isinstance(event, SessionEnded) and event.code is None:
                break
            if isinstance(event, RoundEnded):
                self._measure()
                print(f"round {event.round} {event.status} {event.seconds:.1f} s", file=sys.stderr, flush=True)
                what, phase = self._draw()
            elif isinstance(event, PhaseEnded) and event.next is phase:
                self._strike(what)
                what = "calm"
        for partition in self._partitions:
            partition.join()
        self._running["server"].end()
        for name in self._hosts.names[1:]:
            self._running[name].signal(signal.SIGTERM)
            self._running[name].end()

    def found(self) -> dict[str, Any]:
        """What became of it. VerificationError if a sum is wrong; AssertionError if a round was applied twice."""
        recorded = RunDirectory(self._hosts.path / "recorded")
        exact = verify(recorded, RING_BITS)
        check_models(recorded)
        rounds = self._hosts.rounds()
        status = Counter(entry["status"] for entry in rounds)
        assert [entry["round"] for entry in rounds] == list(range(1, self._rounds + 1))
        assert len(exact) == status["completed"]
        return {
            "rounds": len(rounds),
            "completed": status["completed"],
            "aborted": status["aborted"],
            "exact_sums": len(exact),
            "happened": dict(self.happened),
            "processes": [self._growth(process) for process, sizes in self._sizes.items() if len(sizes) >= LONG_LIFE],
        }

    def _draw(self) -> tuple[str, Phase]:
        (what,) = self._random.choices([name for name, _ in EVENTS], [weight for _, weight in EVENTS])
        return what, self._random.choice(PHASES)

    def _strike(self, what: str) -> None:
        self.happened[what] += 1
        # The first client lives through it all, so that its memory can be looked at.
        first, second = self._random.sample(self._hosts.names[2:], 2)
        if what in ("kill", "both"):
            self._kill(first)
            self._start(first, "client", "party.toml", "--stay")
        if what in ("partition", "both"):
            away = self._random.uniform(0.5, LONGEST_AWAY)
            self._partitions.append(threading.Thread(target=self._cut, args=(second, away)))
            self._partitions[-1].start()
        if what == "server":
            self._kill("server")
            self._start("server", "server", "party.toml")

    def _cut(self, name: str, seconds: float) -> None:
        self._hosts.network.unplug(name)
        time.sleep(seconds)
        self._hosts.network.plug(name)

    def _start(self, name: str, *arguments: str) -> Process:
        recorded = str(self._hosts.path / "recorded")
        process = self._hosts.start(name, recorded, *arguments, script=_RECORDED)
        self._running[name] = process
        self._names[process.process.pid] = name
        return process

    def _kill(self, name: str) -> None:
        self._running[name].signal(signal.SIGKILL)
        self._running[name].end()

    def _measure(self) -> None:
        for process in self._running.values():
            pid = process.process.pid
            try:
                lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            except OSError:
                continue
            resident = next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)
            self._sizes.setdefault(pid, []).append((resident, descriptors))

    def _growth(self, process: int) -> dict[str, Any]:
        sizes = self._sizes[process][SETTLED:]
        part = max(1, len(sizes) // 4)
        (first_kb, first_open), (last_kb, last_open) = (
            np.median(np.array(some), axis=0).tolist() for some in (sizes[:part], sizes[-part:])
        )
        return {
            "party": self._names[process],
            "rounds": len(self._sizes[process]),
            "megabytes": [round(first_kb / 1e3, 1), round(last_kb / 1e3, 1)],
            "descriptors": [first_open, last_open],
        }


def check_models(recorded: RunDirectory) -> None:
    """Every model is the one before moved once by the mean of its round."""
    before = None
    # Of a round that was aborted there is no sum, and no model.
    for path in filter(lambda path: (path / "model.npz").exists(), recorded.verified_rounds()):
        with np.load(path / "model.npz", allow_pickle=False) as found:
            after, mean = found["after"], found["mean"]
        if before is not None:
            error = float(np.abs(after - before - mean).max())
            assert error < CLOSE, f"round {path.name}: the model is off by {error:g}; was its sum applied once?"
        before = after


def main() -> None:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if why := obstacle():
        print(why)
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), clients=CLIENTS) as hosts:
        soak = Soak(hosts, rounds=arguments.rounds, seed=arguments.seed)
        soak.run()
        found = soak.found() | {"seed": arguments.seed, "seconds": round(time.monotonic() - began)}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

"""`python -m tests.network.soak`: a year of a federation in fast motion: many rounds in namespaces, and what happens.

In a part of the rounds one thing happens, in a phase drawn by the seed:

| event | what |
|---|---|
| kill | a client is killed and started again |
| partition | a client is cut off for up to twelve seconds |
| both | both, to two clients |
| server | the server is killed and started again |
| move | the same, on another host: its folder is moved, and the old one is gone |
| copy | a former copy of a client's folder is started beside it: the copy is refused, the client goes on |
| restore | a client's folder is that of a backup, and refused: it gets other keys, by another version of the roster |
| leave | a client is removed from the roster, or one that was removed is added again |
| relay | the HAProxy through which two clients reach the server is killed and started again |

One client has a privacy budget for a third of the rounds, and is restored like others. In the end every sum that was
applied is compared with what its survivors contributed, the models show that each was applied once, no more sums than
the budget has room for have that client in them, and memory and descriptors of every process that lived for some rounds
are compared between its first and its last. It says what it found as JSON, and ends with 1 if any of that is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
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
from dp_accounting import get_epsilon_gaussian

from tacit.parties.protections.gaussian_noise import cost_of
from tacit.parties.protections.protection import Noise
from tacit.parties.runs.directory import RunDirectory
from tacit.parties.session.events import PhaseEnded, RoundEnded, SessionEnded
from tacit.protocol.sum.states import Phase
from tacit.simulate.federation.run import verify
from tests.cli.hosts import Process
from tests.cli.office import Office
from tests.network.federation import PORT, NetworkHosts, federation
from tests.network.namespaces import obstacle

CLIENTS: Final = 8
"""One may be removed, one have spent its budget, and of the others a round survives the event "both"."""
LIMITED: Final = "client-8"
"""Who has a privacy budget."""
RELAYED: Final = ("client-6", "client-7")
RELAY: Final = "relay"
HAPROXY: Final = """defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
listen federation
    bind {own}:{port}
    server federation {server}:{port}
"""
NOISE: Final = '[protection]\nscheme = "dp-gaussian"\ndp_clip = 0.015\ndp_noise = 4.0\n'
EACH: Final = cost_of(Noise(4.0, norm=0.015, delta=1e-5))
PHASES: Final = (Phase.ADVERTISE_KEYS, Phase.SHARE_KEYS, Phase.TRAIN, Phase.CONSISTENCY_CHECK, Phase.UNMASK)
"""Vectors are small: there is no time between when all are ready and when all have come."""
EVENTS: Final = (
    ("calm", 10), ("kill", 3), ("partition", 3), ("both", 1), ("server", 1), ("move", 1),
    ("copy", 2), ("restore", 2), ("leave", 2), ("relay", 1),
)  # fmt: skip
"""What happens in a round, and its weight."""
EPOCHS: Final = 25
"""So many that a round takes a second or two: who starts again is to find the federation where it was."""
LAST: Final = 15
"""Rounds at the end in which nothing happens, since whoever starts then may come too late."""
LONGEST_AWAY: Final = 12.0
RING_BITS: Final = 24
LONG_LIFE: Final = 10
"""Rounds after which a process is looked at."""
SETTLED: Final = 3
"""Rounds until a process has loaded what it needs."""
CLOSE: Final = 1e-5
_RECORDED: Final = str(Path(__file__).with_name("recorded.py"))


class Soak:
    def __init__(self, hosts: NetworkHosts, *, rounds: int, seed: int) -> None:
        self._hosts = hosts
        self._rounds = rounds
        self._random = Random(seed)
        self._running: dict[str, Process] = {}
        self._sizes: dict[int, list[tuple[int, int]]] = {}
        """By process, kilobytes in memory and descriptors after each round."""
        self._names: dict[int, str] = {}
        self._partitions: list[threading.Thread] = []
        self._removed = ""
        self._budget = max(1, rounds // 3)
        self.happened: Counter[str] = Counter()

    def run(self) -> None:
        hosts = self._hosts
        Office(hosts, members=hosts.names)
        path = hosts.experiment(rounds=self._rounds, clients='"all"', epochs=EPOCHS)
        text = path.read_text().replace("[aggregation]", "[aggregation]\ndropout = 0.3") + NOISE
        path.write_text(text.replace("train = 120", "train = 900").replace("grace = 1", "grace = 10"))
        epsilon = get_epsilon_gaussian(1 / math.sqrt((self._budget + 0.5) * EACH), 1e-5)
        with (hosts.path / LIMITED / "party.toml").open("a") as file:
            file.write(f"[policy]\nlargest_epsilon = {epsilon}\n")
        self._begin_relay()
        self._start("server", "server", "party.toml", "experiment.toml").until("listens at")
        for name in hosts.names[1:]:
            self._join(name, "--spent", "0")
        what, phase = self._draw()
        for event in self._hosts.events().all():
            if isinstance(event, SessionEnded) and event.code is None:
                break
            if isinstance(event, RoundEnded):
                self._measure()
                print(f"round {event.round} {event.status} {event.seconds:.1f} s", file=sys.stderr, flush=True)
                what, phase = self._draw() if event.round < self._rounds - LAST else ("calm", phase)
            elif isinstance(event, PhaseEnded) and event.next is phase:
                self._strike(what)
                what = "calm"
        for partition in self._partitions:
            partition.join()
        self._running["server"].end()
        for name in self._hosts.names[1:]:
            self._stop(name, signal.SIGTERM)

    def _begin_relay(self) -> None:
        network, hosts = self._hosts.network, self._hosts
        own, server = network.address(RELAY, 4), network.address("server", 4)
        path = hosts.path / "haproxy.cfg"
        path.write_text(HAPROXY.format(own=own, server=server, port=PORT))
        relay = self._running[RELAY] = hosts.launch(RELAY, ["/usr/sbin/haproxy", "-f", str(path)])
        self._names[relay.process.pid] = RELAY
        for name in RELAYED:
            party = hosts.path / name / "party.toml"
            party.write_text(party.read_text().replace(f"tcp://{server}:", f"tcp://{own}:"))

    def found(self) -> dict[str, Any]:
        """What became of it. VerificationError if a sum is wrong; AssertionError if a round was applied twice."""
        recorded = RunDirectory(self._hosts.path / "recorded")
        exact = verify(recorded, RING_BITS)
        check_models(recorded)
        rounds = self._hosts.rounds()
        status = Counter(entry["status"] for entry in rounds)
        assert [entry["round"] for entry in rounds] == list(range(1, len(rounds) + 1))
        assert sum(not entry["repeated"] for entry in rounds) == self._rounds
        assert len(exact) == status["completed"]
        limited = sum(LIMITED in entry["survivors"] for entry in rounds if entry["status"] == "completed")
        assert limited <= self._budget, f"{LIMITED} is in {limited} sums, and its budget has room for {self._budget}"
        return {
            "rounds": len(rounds),
            "completed": status["completed"],
            "aborted": status["aborted"],
            "exact_sums": len(exact),
            "sums_with_a_budget": [limited, self._budget],
            "happened": dict(self.happened),
            "processes": [self._growth(process) for process, sizes in self._sizes.items() if len(sizes) >= LONG_LIFE],
        }

    def _draw(self) -> tuple[str, Phase]:
        (what,) = self._random.choices([name for name, _ in EVENTS], [weight for _, weight in EVENTS])
        return what, self._random.choice(PHASES)

    def _strike(self, what: str) -> None:
        # The first client lives through it all, so that its memory can be looked at.
        first, second = self._random.sample([name for name in self._hosts.names[2:] if name != self._removed], 2)
        if what in ("copy", "restore") and accepted(self._backup(first)) == accepted(self._hosts.path / first):
            # It has been started and is not there yet: what it was before is no older than what the server knows.
            what = "calm"
        self.happened[what] += 1
        if what in ("kill", "both"):
            self._stop(first)
            self._join(first)
        if what in ("partition", "both"):
            away = self._random.uniform(0.5, LONGEST_AWAY)
            self._partitions.append(threading.Thread(target=self._cut, args=(second, away)))
            self._partitions[-1].start()
        if what in ("server", "move"):
            self._stop("server")
            if what == "move":
                self._move()
            self._start("server", "server", "party.toml")
        if what == "copy":
            copy = self._hosts.path / "copy"
            shutil.copytree(self._backup(first), copy)
            check_refused(self._hosts.start("copy", "client", "party.toml", space=first))
            shutil.rmtree(copy)
        if what == "restore":
            self._restore(first)
        if what == "leave":
            self._leave(first)
        if what == "relay":
            self._stop(RELAY)
            self._begin_relay()

    def _move(self) -> None:
        place = self._hosts.path / "server"
        moved = place.with_name(f"server-{self.happened['move']}")
        os.rename(place.resolve(), moved)
        place.unlink(missing_ok=True)
        place.symlink_to(moved)

    def _backup(self, name: str) -> Path:
        return self._hosts.path / "backups" / name

    def _restore(self, name: str) -> None:
        folder, hosts = self._hosts.path / name, self._hosts
        self._stop(name)
        shutil.rmtree(folder)
        shutil.copytree(self._backup(name), folder)
        shutil.copy(hosts.path / "office" / "roster.toml", folder)
        check_refused(hosts.start(name, "client", "party.toml"))
        shutil.rmtree(hosts.path / "new", ignore_errors=True)
        (hosts.path / "new").mkdir()
        hosts.command("new", "keys", "new", name, "--role", "client")
        for kind in ("key", "card"):
            os.replace(hosts.path / "new" / f"{name}.{kind}", folder / f"{name}.{kind}")
        self._change("rotate", str(folder / f"{name}.card"))
        self._join(name)

    def _leave(self, name: str) -> None:
        if self._removed:
            back, self._removed = self._removed, ""
            self._change("add", str(self._hosts.path / back / f"{back}.card"))
            # It has ended, unless it was still starting.
            self._stop(back)
            self._join(back)
        else:
            self._change("remove", name)
            self._removed = name

    def _change(self, *words: str) -> None:
        """Another version of the roster, for the server; clients are handed it."""
        change, *operands = words
        self._hosts.command("office", "roster", change, "roster.toml", *operands, "--operator", "office.key")
        self._give("server")

    def _give(self, name: str) -> None:
        path = self._hosts.path / name / "new.toml"
        shutil.copy(self._hosts.path / "office" / "roster.toml", path)
        os.replace(path, path.with_name("roster.toml"))

    def _cut(self, name: str, seconds: float) -> None:
        self._hosts.network.unplug(name)
        time.sleep(seconds)
        self._hosts.network.plug(name)

    def _join(self, name: str, *options: str) -> None:
        """Start a client; what its folder was is kept, as a backup has it."""
        self._give(name)
        shutil.rmtree(self._backup(name), ignore_errors=True)
        shutil.copytree(self._hosts.path / name, self._backup(name))
        self._start(name, "client", "party.toml", "--stay", *options)

    def _start(self, name: str, *arguments: str) -> Process:
        recorded = str(self._hosts.path / "recorded")
        process = self._hosts.start(name, recorded, *arguments, script=_RECORDED)
        self._running[name] = process
        self._names[process.process.pid] = name
        return process

    def _stop(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a process; one of a removed client, or of one whose budget is spent, has ended."""
        if (process := self._running.pop(name, None)) is not None:
            with contextlib.suppress(ProcessLookupError):
                process.signal(number)
            process.end()

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


def accepted(client: Path) -> int:
    """Starts of a client's folder that its server has accepted."""
    try:
        kept: dict[str, Any] = json.loads((client / "state" / "tokens.json").read_bytes())
    except FileNotFoundError:
        return 0
    return int(kept["peers"]["server"]["count"])


def check_refused(copy: Process) -> None:
    assert copy.end() == 1, copy.everything
    assert "copy" in copy.everything, copy.everything


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if why := obstacle() or ("" if Path("/usr/sbin/haproxy").exists() else "haproxy is not installed"):
        print(why)
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, federation(Path(folder), clients=CLIENTS, others=(RELAY,)) as hosts:
        soak = Soak(hosts, rounds=arguments.rounds, seed=arguments.seed)
        soak.run()
        found = soak.found() | {"seed": arguments.seed, "seconds": round(time.monotonic() - began)}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

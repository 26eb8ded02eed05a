"""The folder of one party on a host: what it writes, and what it tells of itself to whoever looks.

party.lock              held by the process that runs, so that there is one
status.json             where the party is: state.py
events/NAME.jsonl       what the party did (a server: in the folder of each run)
journal/NAME.jsonl      the rounds that a client took part in, and its group; as precious as its keys
memory/NAME.safetensors what a client must remember from round to round, until the experiment is over
plain-model.safetensors with model encryption: the model in the clear, which one client keeps
logs/NAME.log           lines for people, and tracebacks
answers/IMAGES.jsonl    what a data owner was told of its images, which the name stands for
adapters.safetensors    what a data owner has learned with others: the last common adapters, and their round
learning.msgpack        what is public of a learning, as either owner goes by it; of a model owner the seed is in it
openings.msgpack        which sums of what was learned a model owner has told, and the last of them
sum.msgpack             the last sum of what was learned, as a dealer has it
ledger.json             what data owners have used of their quota, at a model owner
salt                    of a model owner: a secret that goes into the commitment to its model
runs/NUMBER-EXPERIMENT/ of a server: one run directory for each experiment (docs/run-directory.md)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tacit.models.file_system import FILES
from tacit.parties.runs.directory import RunDirectory, RunDirectoryError

_RUN = re.compile(r"(?P<number>[0-9]{4,})-.*")


class PartyFolder:
    """The folder of a party. OSError of `make` and `run` names what cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.status = path / "status.json"
        self.plain_model = path / "plain-model.safetensors"
        self.salt = path / "salt"
        self.ledger = path / "ledger.json"
        self.adapters = path / "adapters.safetensors"
        self.learning = path / "learning.msgpack"
        self.openings = path / "openings.msgpack"
        self.sum = path / "sum.msgpack"
        self._lock = path / "party.lock"

    def make(self) -> None:
        """Make what is missing of it. RunDirectoryError if it cannot be."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in ("events", "journal", "logs", "answers"):
                (self.path / part).mkdir(exist_ok=True)
        except OSError as error:
            raise RunDirectoryError(
                f"{self.path} cannot be made: {error.strerror}; name another folder as `directory`"
            ) from None

    def events(self, party: str) -> Path:
        """The event log of a party; of a server it is in the folder of each run."""
        return self.path / "events" / f"{party}.jsonl"

    def journal(self, party: str) -> Path:
        """The journal of a client."""
        return self.path / "journal" / f"{party}.jsonl"

    def answers(self, images: str) -> Path:
        """Those of a data owner about these images."""
        return self.path / "answers" / f"{images}.jsonl"

    def memory(self, party: str) -> Path:
        """What a client remembers."""
        return self.path / "memory" / f"{party}.safetensors"

    def log(self, party: str) -> Path:
        """The log for people."""
        return self.path / "logs" / f"{party}.log"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one process of this party. RunDirectoryError if there is another."""
        try:
            release = FILES.lock(self._lock)
        except BlockingIOError:
            raise RunDirectoryError(f"{self.path} is of a party that is running already: stop it first") from None
        try:
            yield
        finally:
            release()

    def is_held(self) -> bool:
        """Whether the party is running. OSError if that cannot be found out."""
        if not self._lock.exists():
            return False
        try:
            FILES.lock(self._lock)()
        except BlockingIOError:
            return True
        return False

    def last_run(self) -> RunDirectory | None:
        """The run that was begun last."""
        runs = self._runs()
        return RunDirectory(runs[max(runs)]) if runs else None

    def new_run(self, name: str) -> RunDirectory:
        """A run directory for the next experiment, of this name."""
        number = max(self._runs(), default=0) + 1
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
        return RunDirectory.create(self.path / "runs" / f"{number:04}-{plain}")

    def _runs(self) -> dict[int, Path]:
        found = ((_RUN.fullmatch(path.name), path) for path in (self.path / "runs").glob("*"))
        return {int(match["number"]): path for match, path in found if match is not None}

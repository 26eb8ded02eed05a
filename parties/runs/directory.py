"""The directory of a run: its files (docs/run-directory.md), and the origin of its result.

The server writes time, command, versions, machine and seed into its event log when a session begins, as the event
`invocation-recorded`; summary, report and comparisons read them there. The event names no host and no user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from tacit.models.file_system import FILES, replace_file
from tacit.parties.learning.statistics import Statistics
from tacit.protocol.core.errors import printable

DISTRIBUTION: Final = "tacit"


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware of a session."""

    system: str
    """Name and release of the kernel."""
    processor: str
    cores: int
    """CPU cores available to its processes."""
    memory_bytes: int
    device: str
    """Device of the training: "cpu", or the name of the GPU."""


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """Seed of a run; never of its keys, shares and masks, which no seed determines."""

    value: int
    drawn: bool
    """Whether the run drew the seed, because none was given."""
    repeats: str
    """Scope of a repetition with this value of `--seed`: "everything", bit for bit with the same versions on such a
    processor; "everything but keys", and with it rounding; or "split and initial weights"."""


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a session of a run, for summaries and reports."""

    command: str
    """The command line."""
    versions: dict[str, str]
    """Versions of Tacit, Python, and Tacit's dependencies."""
    machine: Hardware
    began: str
    """Start time, in UTC, in ISO 8601."""


def command_line() -> str:
    """The command of this process in shell syntax."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Installed versions of Tacit, of Python, and of Tacit's dependencies."""
    needed = [line for line in requires(DISTRIBUTION) or () if "extra ==" not in line]
    found = {DISTRIBUTION: version(DISTRIBUTION), "python": platform.python_version()}
    for name in (re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needed):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def machine(device: str) -> Hardware:
    return Hardware(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        device=device,
    )


def _processor() -> str:
    """The model of the processor, or its architecture if Linux does not name the model."""
    try:
        names = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE)
    except OSError:
        names = None
    return names[1] if names else platform.machine()


_PROGRESS = "progress"
_PLACE_IS_WRONG = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENOENT)
"""Errors that free disk space does not fix."""


class RunDirectoryError(Exception):
    """The directory cannot be used; the message names it and the remedy."""


class OtherReleaseError(RunDirectoryError, ValueError):
    """Another release wrote the state in a folder; the message names both, and the remedy."""


READABLE: Final = ("0.3.0",)
"""Releases whose state this one reads and resumes. tests/upgrade has state of each."""
STATE_RELEASE: Final = READABLE[-1]
"""First release with the present format of state. It rises when a file of a run or of a party changes."""
_RELEASE = "release"


def mark_release(folder: Path) -> None:
    """Record the release of the state in a folder. OSError as in `writing`."""
    _keep(folder / _RELEASE, f"{STATE_RELEASE}\n".encode())


def check_release(folder: Path) -> None:
    """Refuse a folder with state of another release. OtherReleaseError."""
    try:
        found = (folder / _RELEASE).read_text(encoding="ascii", errors="replace").strip()[:20]
    except FileNotFoundError:
        found = "0.2.0"
    except OSError as error:
        raise OtherReleaseError(f"{folder / _RELEASE} cannot be read: {error.strerror}; make it readable") from None
    if found not in READABLE:
        raise OtherReleaseError(
            f"{folder} was written by release {printable(found)}, and this one reads state of {READABLE[0]} on: "
            "move it away, and make it anew"
        )


class RunInUseError(RunDirectoryError):
    """Another process writes into the directory; the message names it."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context of writing a file of a run: an OSError is raised as one that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = (
            "choose another place"
            if error.errno in _PLACE_IS_WRONG
            else "make room on the disk, or choose another place"
        )
        raise OSError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


def _keep(path: Path, content: bytes) -> None:
    with writing(path):
        replace_file(path, content)


def write_json(value: Any, path: Path) -> None:
    """Write a value that msgspec can encode as indented JSON. OSError, as in `writing`."""
    with writing(path):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def write_arrays(path: Path, **arrays: Any) -> None:
    """Write an .npz file, and create its folder. OSError, as in `writing`."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **arrays)


def claim(
    path: Path,
    *parts: Path,
    taken: str = "exists already and is not empty: choose another directory with --out",
) -> None:
    """Create a directory for results, or take an empty one. RunDirectoryError if it is `taken`, or on failure."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise FileExistsError
        for part in parts:
            part.mkdir()
    except FileExistsError:
        raise RunDirectoryError(f"{path} {taken}") from None
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be made: {error.strerror}; choose another with --out") from None


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of the run, stored in the model file's metadata."""

    round: int
    """The last finished round; 0 before the first."""
    split_seed: int
    repeated: int = 0
    """Rounds up to that one that lost their clients and were repeated, and do not count."""

    def metadata(self) -> dict[str, str]:
        return {_PROGRESS: msgspec.json.encode(self).decode()}


def progress_of(metadata: Mapping[str, str]) -> Progress | None:
    """Progress from the metadata of a model file; None if no run wrote it."""
    try:
        return msgspec.json.decode(metadata[_PROGRESS], type=Progress)
    except (KeyError, msgspec.MsgspecError):
        return None


class RunDirectory:
    """Paths within a run directory. `create` makes a new one; an existing one is only opened to resume it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.started = path / "journal" / "experiment.toml"
        """The experiment at the start of the last session: people edit the other file."""
        self.model = path / "model.safetensors"
        self.plain_model = path / "plain-model.safetensors"
        self.summary = path / "summary.json"
        self.statistics = path / "statistics.json"
        self.logs = path / "logs"

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Create a run directory, or take an empty one. RunDirectoryError if it is not empty, or cannot be created;
        OSError if nothing can be written."""
        taken = f"exists already: choose another directory with --out, or continue that run with --resume {path}"
        claim(path, *(path / part for part in ("events", "journal", "logs")), taken=taken)
        mark_release(path)
        return cls(path)

    def keep_experiment(self, text: str) -> None:
        """Write experiment.toml atomically: without it the run cannot resume. OSError."""
        _keep(self.experiment, text.encode())
        if self.started.parent.is_dir():
            _keep(self.started, text.encode())

    def keep_statistics(self, found: Statistics) -> None:
        """Write statistics.json atomically. OSError."""
        _keep(self.statistics, msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")

    def kept_statistics(self) -> Statistics | None:
        """The statistics of the clients' pixels, if known. RunDirectoryError if they cannot be read."""
        if not self.statistics.is_file():
            return None
        try:
            return msgspec.json.decode(self.statistics.read_bytes(), type=Statistics)
        except (OSError, msgspec.MsgspecError) as error:
            raise RunDirectoryError(
                f"{self.statistics} has no statistics ({error}): restore it, or start anew"
            ) from None

    def discard(self) -> None:
        """Remove a directory that `create` made, if the run did not start."""
        shutil.rmtree(self.path, ignore_errors=True)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The directory of an earlier run. RunDirectoryError if it is not one, or has no model yet."""
        run = cls(path)
        for file in (run.experiment, run.model):
            if not file.is_file():
                raise RunDirectoryError(f"{path} is no run directory that can be resumed: {file.name} is missing")
        check_release(path)
        return run

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock it as the only writing process. RunInUseError if there is another, OSError if that is unknown."""
        lock = self.path / "run.lock"
        with writing(lock):
            try:
                release = FILES.lock(lock)
            except BlockingIOError:
                who = lock.read_text().strip()
                raise RunInUseError(
                    f"{self.path} is being written by process {who or 'that has just begun'}: wait for it, or stop it"
                ) from None
        try:
            with writing(lock):
                lock.write_text(f"{os.getpid()}\n")
            yield
        finally:
            release()

    @classmethod
    def of_a_run(cls, path: Path) -> RunDirectory:
        """The directory of any run, finished or not. RunDirectoryError if it is not one."""
        run = cls(path)
        if not run.experiment.is_file():
            raise RunDirectoryError(f"{path} is no run directory: {run.experiment.name} is missing")
        check_release(path)
        return run

    def progress(self) -> Progress:
        """The progress in the model file. RunDirectoryError if it is no model of a run."""
        try:
            with safe_open(self.model, framework="np") as file:
                return msgspec.json.decode((file.metadata() or {})[_PROGRESS], type=Progress)
        except (SafetensorError, OSError, KeyError, msgspec.MsgspecError) as error:
            raise RunDirectoryError(
                f"{self.model} is no model of a run ({error!r}): restore it, or start anew"
            ) from None

    def velocity(self, round: int) -> Path:
        return self.path / f"velocity-{round}.safetensors"

    def forget_velocities(self, *, but: int) -> None:
        """Remove those of all rounds except that of the model."""
        for path in self.path.glob("velocity-*.safetensors"):
            if path != self.velocity(but):
                path.unlink()

    def events(self, party: str) -> Path:
        return self.path / "events" / f"{party}.jsonl"

    def journal(self, party: str) -> Path:
        return self.path / "journal" / f"{party}.jsonl"

    def memory(self, party: str) -> Path:
        return self.path / "memory" / f"{party}.safetensors"

    def verification(self, round: int, name: str) -> Path:
        return self.path / "verify" / str(round) / f"{name}.npz"

    def save_moves(self, round: int, moved: npt.NDArray[np.bool_]) -> None:
        """Record the coordinates [D] of the model that a round moved."""
        write_arrays(self.path / "moves" / f"{round}.npz", bits=np.packbits(moved), size=moved.size)

    def count_moves(self) -> npt.NDArray[np.uint16]:
        """Number of moves of each coordinate [D] of the model, as the rounds recorded it. ValueError if none did."""
        counts: npt.NDArray[np.uint16] | None = None
        for path in (self.path / "moves").glob("*.npz"):
            with np.load(path, allow_pickle=False) as file:
                moved = np.unpackbits(file["bits"], count=int(file["size"]))
            counts = moved.astype(np.uint16) if counts is None else counts + moved
        if counts is None:
            raise ValueError(f"{self.path} records no moves")
        return counts

    def verified_rounds(self) -> list[Path]:
        """The directories of the rounds that --verify recorded, in order."""
        return sorted((self.path / "verify").glob("*"), key=lambda path: int(path.name))

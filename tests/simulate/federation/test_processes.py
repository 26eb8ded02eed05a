"""Real processes under a supervisor: what they say, how they end, and that none stays behind.

Tests in this process share one fork server with the real preload. Tests that end the supervisor run it as a program of
its own (supervisor.py) with a preload that costs nothing.
"""

import json
import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tacit.simulate.federation.processes import Exit, Message, Processes

HERE = Path(__file__).parent
PATIENCE = 120  # Seconds until a wait counts as lost; no test takes them.


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(HERE)
    import process_targets

    return process_targets


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(tmp_path / "run", grace_seconds=1.0) as running:
        yield running


async def everything(processes: Processes) -> dict[str, list[Message | Exit]]:
    said: dict[str, list[Message | Exit]] = {}
    async for name, message in processes.messages():
        said.setdefault(name, []).append(message)
    return said


async def one_message_each(processes: Processes, parties: int) -> None:
    heard = processes.messages()
    assert len({(await anext(heard))[0] for _ in range(parties)}) == parties


@pytest.mark.asyncio
async def test_children_talk_and_finish(processes: Processes, targets: Any) -> None:
    await processes.start("one", targets.echo, word="a")
    await processes.start("two", targets.echo, word="b")
    said = await everything(processes)
    for name, word in {"one": "a", "two": "b"}.items():
        assert said[name] == [{"said": word}, {"said": word * 2}, {"finished": {"words": 2}}, Exit(0, None)]


@pytest.mark.asyncio
async def test_real_preload_gives_every_child_torch_with_one_thread(processes: Processes, targets: Any) -> None:
    await processes.start("one", targets.describe_torch)
    said = await everything(processes)
    one_thread = {"loaded": True, "threads": 1, "threads_in_thread": 1, "fork_server_threads": 1}
    assert said["one"] == [{"finished": one_thread}, Exit(0, None)]


@pytest.mark.asyncio
async def test_a_crash_is_named_after_the_last_words(processes: Processes, targets: Any) -> None:
    ends = {
        "exit_with_three": (Exit(3, None), "exit code 3"),
        "kill_itself": (Exit(None, "SIGKILL"), "killed by SIGKILL"),
    }
    for name in ends:
        await processes.start(name, getattr(targets, name))
    assert await everything(processes) == {name: [{"last": "words"}, end] for name, (end, _) in ends.items()}
    assert all(str(end) == text for end, text in ends.values())


@pytest.mark.asyncio
async def test_an_error_is_one_line_and_its_traceback_is_in_the_log(
    processes: Processes, targets: Any, tmp_path: Path
) -> None:
    errors = {
        "raise_an_error": ("RuntimeError: the disk is full", "in raise_an_error"),
        "return_something_strange": ("TypeError: Encoding objects of type object is unsupported", "in work"),
    }
    for name in errors:
        await processes.start(name, getattr(targets, name))
    said = await everything(processes)
    for name, (line, traceback) in errors.items():
        log = tmp_path / "run" / f"{name}.log"
        assert said[name] == [{"failed": line, "log": str(log)}, Exit(1, None)]
        assert traceback in log.read_text()


@pytest.mark.asyncio
async def test_a_busy_thread_does_not_hold_a_finished_process(processes: Processes, targets: Any) -> None:
    await processes.start("one", targets.finish_while_a_thread_is_busy)
    assert await everything(processes) == {"one": [{"finished": "done"}, Exit(0, None)]}


@pytest.mark.asyncio
async def test_stop_cancels_with_the_reason(processes: Processes, targets: Any, tmp_path: Path) -> None:
    await processes.start("one", targets.wait_for_ever)
    await processes.start("two", targets.say_farewell)
    await one_message_each(processes, 2)
    await processes.stop("round 3 was lost", grace_seconds=PATIENCE)
    said = await everything(processes)
    assert said["one"] == [{"stopped": "round 3 was lost"}, Exit(0, None)]
    assert said["two"] == [{"farewell": "round 3 was lost"}, {"finished": None}, Exit(0, None)]
    assert (tmp_path / "run" / "one.log").read_text() == "cleaned up\n"


@pytest.mark.asyncio
async def test_stop_terminates_and_then_kills(processes: Processes, targets: Any) -> None:
    await processes.start("blocked", targets.block_the_loop)
    await processes.start("deaf", targets.ignore_terminate)
    await one_message_each(processes, 2)
    await processes.stop("enough", grace_seconds=0.1)
    assert await everything(processes) == {"blocked": [Exit(None, "SIGTERM")], "deaf": [Exit(None, "SIGKILL")]}


@pytest.mark.asyncio
async def test_a_death_while_another_process_starts_is_read_once(
    processes: Processes, targets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop sees that an answer is there, and the thread that starts the other process reads it first."""
    await processes.start("one", targets.wait_for_ever)
    await one_message_each(processes, 1)
    ready, read_signed = connection.wait, forkserver.read_signed
    seen, read = threading.Event(), threading.Event()

    def wait(*arguments: Any) -> list[Any]:
        answered = ready(*arguments)
        if answered == [sentinel] and threading.current_thread() is threading.main_thread():
            seen.set()
            read.wait(timeout=0.5)
        elif answered == [sentinel]:
            seen.wait(timeout=0.5)
        return answered

    def reading(descriptor: int) -> int:
        number: int = read_signed(descriptor)
        read.set()
        return number

    (victim,) = multiprocessing.active_children()
    sentinel = victim.sentinel
    monkeypatch.setattr(connection, "wait", wait)
    monkeypatch.setattr(forkserver, "read_signed", reading)
    victim.kill()
    ready([sentinel])
    await processes.start("two", targets.echo, word="a")
    said = await everything(processes)
    assert (said["one"][-1], said["two"][-1]) == (Exit(None, "SIGKILL"), Exit(0, None))


@pytest.mark.asyncio
async def test_a_name_that_is_no_file_name_is_refused(processes: Processes, targets: Any) -> None:
    for name in ("", "../one", ".hidden", "a/b", "a b"):
        with pytest.raises(ValueError, match="cannot name a process"):
            await processes.start(name, targets.echo, word="a")


@pytest.mark.asyncio
async def test_what_cannot_run_is_refused(processes: Processes, targets: Any) -> None:
    async def local(_control: object) -> None: ...

    with pytest.raises(ValueError, match="top-level coroutine function"):
        await processes.start("one", local)
    with pytest.raises(ValueError, match="top-level coroutine function"):
        await processes.start("one", os.getpid)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the arguments of 'one' cannot be sent"):
        await processes.start("one", targets.echo, word=lambda: "a")
    await processes.start("one", targets.wait_for_ever)
    with pytest.raises(ValueError, match="'one' is running already"):
        await processes.start("one", targets.wait_for_ever)


@pytest.mark.asyncio
async def test_a_fork_server_without_the_preload_is_reported(
    processes: Processes, targets: Any, tmp_path: Path
) -> None:
    await processes.start("first", targets.echo, word="a")  # Now the fork server runs, with the real preload.
    await everything(processes)
    async with Processes(tmp_path / "other", preload="process_targets") as others:
        await others.start("one", targets.echo, word="a")
        failure, end = (await everything(others))["one"]
    assert end == Exit(1, None)
    assert isinstance(failure, dict)
    assert "the fork server does not hold process_targets" in failure["failed"]


TEMPORARY: dict[int, str] = {}
"""The folder for temporary files of every supervisor."""


@contextmanager
def supervisor(directory: Path, preload: str, ending: str, *targets: str) -> Iterator[subprocess.Popen[str]]:
    """Runs supervisor.py in a process group of its own, as a terminal does, with an empty folder for temporary files.

    The folder has a short name, because the fork server's socket is in it.
    """
    sockets = tempfile.TemporaryDirectory()
    path = os.pathsep.join([str(HERE), str(directory), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, str(HERE / "supervisor.py"), str(directory), preload, ending, *targets],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": sockets.name},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    TEMPORARY[process.pid] = sockets.name
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        sockets.cleanup()


def temporary_files(process: subprocess.Popen[str]) -> list[str]:
    """What the supervisor left in its folder for temporary files."""
    return os.listdir(TEMPORARY[process.pid])


def signal_group(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)


def wait_until_gone(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], PATIENCE)[0], "a process outlived its supervisor"
        os.close(descriptor)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("ending", "end", "code"),
    [
        pytest.param("return", None, 0, marks=pytest.mark.end_to_end, id="return"),
        pytest.param("raise", None, 1, marks=pytest.mark.end_to_end, id="exception"),
        pytest.param("abandon", None, 0, marks=pytest.mark.end_to_end, id="abandoned"),
        pytest.param("wait", signal_group, 130, marks=pytest.mark.end_to_end, id="ctrl-c"),
        pytest.param(
            "wait", subprocess.Popen.terminate, -signal.SIGTERM, marks=pytest.mark.end_to_end, id="terminated"
        ),
        pytest.param("wait", subprocess.Popen.kill, -signal.SIGKILL, id="killed"),
    ],
)
def test_no_process_outlives_the_supervisor(
    tmp_path: Path, ending: str, end: Callable[[subprocess.Popen[str]], None] | None, code: int
) -> None:
    """Children and fork server are watched by pidfd; the resource tracker holds the standard output open."""
    go_ahead = "wait" if end else ending
    with supervisor(tmp_path, "string", go_ahead, "wait_for_ever", "block_the_loop") as process:
        assert process.stdout is not None
        messages = [json.loads(process.stdout.readline())[1] for _ in range(2)]
        alive = {message["pid"] for message in messages} | {message["parent"] for message in messages}
        descriptors = []
        for pid in alive:
            try:
                descriptors.append(os.pidfd_open(pid))
            except ProcessLookupError:
                assert end is None, "only a supervisor that ends by itself may be faster than its test"
        if end:
            end(process)
        _, complaint = process.communicate(timeout=PATIENCE)
        wait_until_gone(descriptors)
        assert process.returncode == code
        assert temporary_files(process) == []
        if ending == "raise":
            assert complaint.endswith("LookupError: the supervisor has a defect\n")
        else:
            assert complaint == ""
    asked = ending in ("return", "raise") or end is signal_group
    assert (tmp_path / "wait_for_ever.log").read_text() == ("cleaned up\n" if asked else "")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(signal_group, 130, id="ctrl-c"),
        pytest.param(subprocess.Popen.kill, -signal.SIGKILL, marks=pytest.mark.end_to_end, id="killed"),
    ],
)
def test_a_supervisor_that_ends_while_the_fork_server_loads(
    tmp_path: Path, end: Callable[[subprocess.Popen[str]], None], code: int
) -> None:
    """The fork server waits for a file that nobody writes: it ends quietly, at once, and leaves nothing."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opener = os.open(gate, os.O_RDWR)
    loads = "import os, select\nprint(os.getpid(), flush=True)\nselect.select([os.open({!r}, os.O_RDONLY)], [], [])\n"
    (tmp_path / "slow_preload.py").write_text(loads.format(str(gate)))
    with supervisor(tmp_path, "slow_preload", "wait", "wait_for_ever") as process:
        assert process.stdout is not None
        server = os.pidfd_open(int(process.stdout.readline()))
        end(process)
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == code
        wait_until_gone([server])
        assert temporary_files(process) == []
    os.close(opener)


@pytest.mark.parametrize(
    "handed", [8, pytest.param(0, marks=pytest.mark.end_to_end), pytest.param(1, marks=pytest.mark.end_to_end)]
)
def test_a_supervisor_that_dies_while_it_hands_over_leaves_no_complaint(tmp_path: Path, handed: int) -> None:
    with supervisor(tmp_path, "string", f"die {handed}", "wait_for_ever") as process:
        assert process.communicate(timeout=PATIENCE) == ("", "")
        assert process.returncode == -signal.SIGKILL


def test_a_preload_that_fails_is_reported_by_the_child(tmp_path: Path) -> None:
    (tmp_path / "bad_preload.py").write_text('raise ImportError("timm is too old")\n')
    with supervisor(tmp_path, "bad_preload", "wait", "wait_for_ever") as process:
        output, complaint = process.communicate(timeout=PATIENCE)
    failure, end = (json.loads(line)[1] for line in output.splitlines())
    assert failure["failed"] == (
        "RuntimeError: the fork server could not load bad_preload: ImportError: timm is too old"
    )
    assert (end, complaint) == ("exit code 1", "")


def test_a_preload_that_ends_the_fork_server_is_reported_by_the_supervisor(tmp_path: Path) -> None:
    (tmp_path / "bad_preload.py").write_text('raise OSError("libtorch.so is damaged")\n')
    with supervisor(tmp_path, "bad_preload", "wait", "wait_for_ever") as process:
        output, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "cannot start 'wait_for_ever': the fork server ended while it loaded bad_preload" in output
    assert complaint.endswith("OSError: libtorch.so is damaged\n")


def test_the_preload_turns_every_failure_into_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"no {name}")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(ImportError, match=r"torch\._dynamo cannot be imported \(OSError: no torch\._dynamo\)"):
        runpy.run_module("tacit.simulate.federation.preload")

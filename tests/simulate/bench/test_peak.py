"""What a process has used at most: its own figure, and another's while that is there."""

import os
import subprocess
import sys

import pytest

from tacit.simulate.bench.ends import BenchmarkError, highest_bytes, resident_bytes


def test_the_highest_is_no_less_than_what_is_used_now() -> None:
    now = resident_bytes()
    assert 0 < now <= highest_bytes() <= highest_bytes(os.getpid())


def test_another_process_is_asked_while_it_runs() -> None:
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        assert highest_bytes(process.pid) > 1e6
        process.stdin.close()
        # It has ended, and is waited for later.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(BenchmarkError, match="VmHWM"):
            highest_bytes(process.pid)
    with pytest.raises(OSError, match=str(process.pid)):
        highest_bytes(process.pid)

"""The tutorial of docs/hosts.md, word for word: three hosts' folders, its commands, and a stand-in for scp."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

PAGE = Path(__file__).parents[2] / "docs" / "hosts.md"
BLOCK = re.compile(
    r"^On `(?P<host>[a-z-]+)`(?P<together>, at the same time)?:\n\n```sh\n(?P<commands>.*?)```$", re.M | re.S
)
SCP = """#!/bin/sh -e
# scp FILE HOST:PLACE between folders that stand for hosts.
exec cp "$1" "$HOSTS/${2%%:*}/${2#*:}"
"""
SECONDS = 900


def test_the_commands_of_the_tutorial(tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
    assert len(blocks) == PAGE.read_text(encoding="utf-8").count("```sh\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scp").write_text(SCP)
    (tools / "scp").chmod(0o755)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{found.getsockname()[1]}"
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOSTS": str(tmp_path),
        "SERVER": server,
        "OMP_NUM_THREADS": "1",
    }
    together: list[subprocess.Popen[str]] = []

    def start(command: str, host: str) -> subprocess.Popen[str]:
        (tmp_path / host).mkdir(exist_ok=True)
        pipe = subprocess.PIPE
        shell = ["sh", "-e", "-c", command]
        return subprocess.Popen(shell, cwd=tmp_path / host, env=environment, stdout=pipe, stderr=pipe, text=True)

    def check(process: subprocess.Popen[str]) -> str:
        said, complained = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, f"{process.args}\n{said}\n{complained}"
        return said

    try:
        fingerprints = []
        for block in blocks:
            host, commands = block["host"], block["commands"]
            if block["together"]:
                together += [start(command, host) for command in commands.splitlines()]
                continue
            while together:
                check(together.pop(0))
            fingerprints += re.findall(r"^fingerprint (.*)$", check(start(commands, host)), re.M)
    finally:
        for process in together:
            process.kill()
            process.communicate()
    assert len(fingerprints) == 3
    assert len(set(fingerprints)) == 1
    hosts = {"ward-a": 1, "ward-b": 1, "ward-c": 1}
    assert {path.parent.parent.name for path in tmp_path.glob("*/client/party.toml")} == set(hosts)
    for host in hosts:
        assert {path.name for path in (tmp_path / host).rglob("*.key")} <= {f"{host}.key", "server.key"}

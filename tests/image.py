"""`make image`: build the image and run compose.yaml, where a container engine works; elsewhere run the steps of
Containerfile and compose.yaml in an environment and folders of their own, without what only an engine does.

Called by any Python: nothing of ours, and no package, is needed.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CONTAINERFILE: Final = ROOT / "Containerfile"
SCRIPT: Final = ROOT / "docs" / "examples" / "container" / "first-round.sh"
LARGEST: Final = 1_500_000_000
"""Bytes that an image may have."""
PARTIES: Final = ("server", "ward-a", "ward-b", "ward-c")
SECONDS: Final = 1800.0


def engine() -> str | None:
    for name in ("docker", "podman"):
        asked = ([name, "info"], [name, "compose", "version"])
        if shutil.which(name) and not any(subprocess.run(one, capture_output=True).returncode for one in asked):
            return name
    return None


def run(*words: str | Path, **environment: str) -> None:
    """Run a command of the repository's root, which must succeed."""
    subprocess.run(words, cwd=ROOT, env={**os.environ, **environment}, check=True, timeout=SECONDS)


def with_engine(name: str, index: str | None) -> None:
    argument = () if index is None else ("--build-arg", f"TORCH_INDEX={index}")
    run(name, "build", *argument, "-f", CONTAINERFILE, "-t", "tacit", ".")
    try:
        run(name, "compose", "-p", "tacit-image", "up", "--no-build", "--abort-on-container-failure")
    finally:
        run(name, "compose", "-p", "tacit-image", "down", "--volumes")
    asked = [name, "image", "inspect", "--format", "{{.Size}}", "tacit"]
    size = int(subprocess.run(asked, capture_output=True, check=True).stdout)
    print(f"image: {size / 1e6:,.0f} MB, of {LARGEST / 1e6:,.0f}")
    if size > LARGEST:
        sys.exit("the image is larger than it may be")


def steps() -> list[str]:
    text = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^RUN (.*)$", text, re.M)


def without_engine(index: str | None, folder: Path) -> None:
    venv.create(folder / "venv", with_pip=True)
    path = f"{folder / 'venv' / 'bin'}:/usr/bin:/bin"
    (default,) = re.findall(r"^ARG TORCH_INDEX=(.*)$", CONTAINERFILE.read_text(encoding="utf-8"), re.M)
    chosen = default if index is None else index
    for step in steps():
        if "useradd" in step:
            print(f"left out, since only an image has users of its own: {step}")
            continue
        print(step, flush=True)
        run("sh", "-ec", step.replace("/wheels", str(folder / "wheels")), PATH=path, TORCH_INDEX=chosen)
    size = sum(one.lstat().st_size for one in (folder / "venv").rglob("*"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (folder / "post").mkdir()
    ended = together(folder, {"PATH": path, "POST": str(folder / "post"), "SERVER": address, "OMP_NUM_THREADS": "1"})
    if any(ended):
        sys.exit(f"parties ended with {ended}")
    print("no container engine works here: the size of the image is not measured")
    print(f"the environment has {size / 1e6:,.0f} MB")


def together(folder: Path, environment: dict[str, str]) -> Sequence[int]:
    """The exit statuses of all parties, each in a folder of its own."""
    started = [
        subprocess.Popen(
            ["sh", "-e", SCRIPT, name],
            cwd=folder,
            env={**environment, "DATA": str(folder / name), "HOME": str(folder), "LANG": "C.UTF-8"},
        )
        for name in PARTIES
    ]
    try:
        return [one.wait(SECONDS) for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                one.kill()


def main() -> None:
    """Do so. The first argument: the index of torch; without it that of Containerfile, "" for that of pip."""
    index = sys.argv[1] if len(sys.argv) > 1 else None
    if (found := engine()) is not None:
        with_engine(found, index)
        return
    with tempfile.TemporaryDirectory() as folder:
        without_engine(index, Path(folder))


if __name__ == "__main__":
    main()

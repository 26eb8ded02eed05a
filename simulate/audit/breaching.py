"""Attackers of breaching, the framework of the authors of Inverting Gradients, so that nobody has to trust ours.

https://github.com/JonasGeiping/breaching is no dependency and not bundled: it is run by the interpreter of an
environment that has it, which the user names. There `breaching_attacker.py`, which imports nothing of ours, hands its
attacker what a server has. Arrays go both ways as .npz; the model goes as the modules of torch that it is made of, with
the program between them (torch.fx), and so that its regularisations find normalisations and linear maps. Nothing that
comes back is unpickled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile

import numpy as np
import torch
from torch import fx

from tacit.models.attacks.labels import classifier, label_of
from tacit.simulate.audit import breaching_attacker
from tacit.simulate.audit.attacks import Attack, Budget
from tacit.simulate.audit.breaching_attacker import COLOURS, FOUND, GRADIENT, MODEL, OBSERVED
from tacit.simulate.audit.subjects import Sight

PREFIX: Final = "breaching:"
"""Before the name of one of its configurations."""
SOURCE: Final = "Geiping et al., github.com/JonasGeiping/breaching"
SHORT_SEARCH: Final = 1000
"""Gradients that it computes for an image without `--full`; with it, as many as its configuration says."""
_LONGEST, _LONGEST_FULL, _LONGEST_LIST = 3600, 86_400, 60
"""Seconds after which it is ended: of a search, of one with `--full`, and where it is only asked for its names."""
_GET_IT: Final = "give the python of an environment in which `pip install breaching==0.1.2` was run"


def attacker(given: str, python: Path | None) -> Attack:
    """The attack of that name, "breaching:NAME", by that interpreter. ValueError, with the remedy, if there is none."""
    name = given.removeprefix(PREFIX)
    if python is None:
        raise ValueError(f"--attack {given} is run by another interpreter: add --breaching-python PATH, and {_GET_IT}")
    try:
        # A link is not followed: the python of an environment is one.
        python = python.expanduser().absolute()
    except RuntimeError:
        raise ValueError(f"--breaching-python {python}: there is no such home; {_GET_IT}") from None
    try:
        with tempfile.TemporaryDirectory() as folder:
            known = _run(python, ["names"], Path(folder), seconds=_LONGEST_LIST).split()
    except ValueError as error:
        raise ValueError(f"--breaching-python {error}; {_GET_IT}") from None
    if name not in known:
        raise ValueError(f"there is no attack {given!r}: expected {', '.join(PREFIX + one for one in known)}")
    return Attack(
        given,
        f"runs breaching's own attacker, by {python}",
        SOURCE,
        partial(_recover, python, name),
    )


def _recover(python: Path, name: str, sight: Sight, budget: Budget) -> torch.Tensor:
    count, channels, *_ = sight.shape
    if count != 1:
        raise ValueError(f"it is for one image, and the gradient is of {count}")
    if channels not in (1, COLOURS):
        raise ValueError(f"breaching is for images of {COLOURS} channels or 1, and these have {channels}")
    try:
        model = fx.symbolic_trace(sight.model)
    except (fx.proxy.TraceError, RuntimeError, TypeError) as error:
        raise ValueError(f"the model cannot be handed over, since torch.fx cannot follow it: {error}") from None
    _, head = classifier(sight.model)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        torch.save(model, folder / MODEL)
        arrays: dict[str, Any] = {
            "shape": sight.shape,
            "mean": sight.mean,
            "std": sight.std,
            "classes": head.out_features,
            "labels": [label_of(sight.model, sight.gradients)],
            "seed": budget.seed,
            "longest": 0 if budget.full else SHORT_SEARCH,
        }
        arrays |= {GRADIENT + key: value.float().numpy() for key, value in sight.gradients.items()}
        np.savez(folder / OBSERVED, **arrays)
        _run(python, ["attack", name, made], folder, seconds=_LONGEST_FULL if budget.full else _LONGEST)
        return _images(python, folder / FOUND, sight.shape)


def _images(python: Path, path: Path, shape: tuple[int, ...]) -> torch.Tensor:
    """What came back, float32 of the shape. ValueError if it is anything else."""
    try:
        with np.load(path, allow_pickle=False) as found:
            images = np.asarray(found["images"], np.float32)
    except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
        raise ValueError(f"{python}: it wrote no images: {error}") from None
    if images.shape != shape or not np.isfinite(images).all():
        raise ValueError(f"{python}: it wrote images of shape {images.shape}, or not finite; expected {shape}")
    return torch.from_numpy(images)


def _run(python: Path, arguments: list[str], folder: Path, *, seconds: float) -> str:
    """Its output. ValueError, beginning with the interpreter and with the last line of its errors, if it fails."""
    # From a folder of its own: the modules beside it would come before packages of the same names.
    script = shutil.copy(breaching_attacker.__file__, folder)
    ended, held = os.pipe()
    try:
        done = subprocess.run(
            [python, script, *arguments],
            cwd=folder,
            stdin=ended,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise ValueError(f"{python}: it cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{python}: it was not done in {seconds:.0f} s") from None
    finally:
        os.close(ended)
        os.close(held)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ValueError(f"{python}: {said[-1]}")
    return done.stdout

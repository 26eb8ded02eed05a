"""audit.html: the matrix of an audit, with the images that came back beside the true ones.

Self-contained as the report is; the images are PNG files in the page itself.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from tacit.parties.runs.directory import writing
from tacit.simulate.audit.arms import AuditArm
from tacit.simulate.audit.figures import CHANNEL, AttackRow, AuditFigures, ends
from tacit.simulate.audit.run import Pictures
from tacit.simulate.audit.scores import CANDIDATES, Pixels
from tacit.simulate.report.page import rendered

MOST_SHOWN: Final = 8
"""Images of a row."""
LEAST_PIXELS: Final = 64
"""Height of an image on the page; smaller ones are enlarged, pixel by pixel."""


def write_page(audit: AuditFigures, pictures: Sequence[Pictures], arms: Sequence[AuditArm], path: Path) -> None:
    """OSError, with the remedy, if it cannot be written."""
    page = rendered("audit.html.j2", _values(audit, pictures, arms), package="tacit.simulate.audit")
    with writing(path):
        path.write_text(page, encoding="utf-8")


def _values(audit: AuditFigures, pictures: Sequence[Pictures], arms: Sequence[AuditArm]) -> dict[str, Any]:
    return {
        "title": "What leaks \N{EN DASH} Tacit audit",
        "pictured": True,
        "candidates": CANDIDATES,
        "blind": audit.blind,
        "arms": [
            {
                "name": arm.name,
                "about": arm.about,
                "rows": [
                    {"row": row, "grid": grid(shown)}
                    for row, shown in zip(audit.rows, pictures, strict=True)
                    if row.arm == arm.name
                ],
            }
            for arm in arms
        ],
        "matrix": matrix(audit.rows),
        "models": audit.models,
        "observations": audit.observations,
        "channel": [one for one in audit.limits if one.factor == CHANNEL],
        "map": [one for one in audit.limits if one.factor != CHANNEL],
        "ends": ends(audit.limits),
        "no_limits": audit.no_limits,
        "attempts": audit.attempts,
        "no_attempts": audit.no_attempts,
    }


def matrix(rows: Sequence[AttackRow]) -> dict[str, Any]:
    """Observations by attacks: of each the row, if there is one."""
    attacks = list(dict.fromkeys(row.attack for row in rows))
    seen = list(dict.fromkeys((row.arm, row.about, row.adversary, row.what, row.cohort) for row in rows))
    by_place = {(row.arm, row.adversary, row.what, row.cohort, row.attack): row for row in rows}
    return {
        "attacks": attacks,
        "lines": [
            {
                "arm": arm,
                "about": about,
                "adversary": adversary,
                "what": what,
                "cohort": cohort,
                "cells": [by_place.get((arm, adversary, what, cohort, attack)) for attack in attacks],
            }
            for arm, about, adversary, what, cohort in seen
        ],
    }


def grid(pictures: Pictures) -> str:
    """The true images above the recovered ones, as the address of a PNG file; empty if there are none."""
    if not pictures.true:
        return ""
    lines = [
        np.concatenate([_shown(one) for one in line[:MOST_SHOWN]], axis=1)
        for line in (pictures.true, pictures.recovered)
    ]
    file = io.BytesIO()
    Image.fromarray(np.concatenate(lines, axis=0)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _shown(image: Pixels) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [S, S, 3], with a margin."""
    colours = np.repeat(image, 3, axis=0) if len(image) == 1 else image[:3]
    levels = np.clip(np.nan_to_num(colours) * 255, 0, 255).round().astype(np.uint8).transpose(1, 2, 0)
    factor = max(1, LEAST_PIXELS // levels.shape[0])
    large = levels.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(large, ((2, 2), (2, 2), (0, 0)), constant_values=255)

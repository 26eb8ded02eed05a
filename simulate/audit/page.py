"""audit.html: the tables of an audit, and pictures of the images from every attack.

The page is self-contained like the report; the pictures are PNG files in the page itself.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from tacit.parties.runs.directory import writing
from tacit.simulate.audit.results import RE_IDENTIFIED, RECONSTRUCTED, AuditResult, closed_form_reach
from tacit.simulate.audit.scores import CANDIDATES, Pixels
from tacit.simulate.report.page import rendered

MOST_SHOWN: Final = 8
LEAST_PIXELS: Final = 64
"""Height of an image on the page; smaller ones are enlarged, pixel by pixel."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    true: list[Pixels] = field(repr=False)
    reconstructed: list[Pixels] = field(repr=False)

    @property
    def address(self) -> str:
        """The true images above the reconstructed ones, as the address of a PNG file; empty if there are none."""
        if not self.true:
            return ""
        lines = [
            np.concatenate([_enlarged(one) for one in line[:MOST_SHOWN]], axis=1)
            for line in (self.true, self.reconstructed)
        ]
        file = io.BytesIO()
        Image.fromarray(np.concatenate(lines, axis=0)).save(file, "PNG")
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def write_page(result: AuditResult, pictures: Sequence[Pictures], path: Path) -> None:
    """Write the page; pictures: those of each attack on images. OSError, with the remedy, if it cannot be written."""
    channel, changed = result.closed_form_tables()
    headings, heat = result.heat_map()
    values = {
        "title": "What leaks \N{EN DASH} Tacit audit",
        "pictured": True,
        "candidates": CANDIDATES,
        "result": result,
        "attacks": list(zip(result.image_attacks, pictures, strict=True)),
        "headings": headings,
        "heat": heat,
        "shades": {RECONSTRUCTED: 60, RE_IDENTIFIED: 20},
        "channel": channel,
        "changed": changed,
        "reach": closed_form_reach(result.closed_form),
    }
    with writing(path):
        path.write_text(rendered("audit.html.j2", values, package="tacit.simulate.audit"), encoding="utf-8")


def _enlarged(image: Pixels) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 [S, S, 3], with a margin."""
    colours = np.repeat(image, 3, axis=0) if len(image) == 1 else image[:3]
    levels = np.clip(np.nan_to_num(colours) * 255, 0, 255).round().astype(np.uint8).transpose(1, 2, 0)
    factor = max(1, LEAST_PIXELS // levels.shape[0])
    large = levels.repeat(factor, axis=0).repeat(factor, axis=1)
    return np.pad(large, ((2, 2), (2, 2), (0, 0)), constant_values=255)

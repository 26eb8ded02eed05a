"""docs/security.md: which protection hides what from whom, from the figures of an audit (docs/security.json).

tacit audit --seed 0 --out DIR; cp DIR/audit.json docs/security.json; make docs
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tacit.simulate.report.outputs import Audit, AuditRow

FIGURES: Final = Path(__file__).parent.parent / "security.json"

_HEAD: Final = """# What leaks: protections against attacks

Every figure is of `tacit audit --seed {seed}`: each configuration was run by real processes, which recorded what they
received and drew, and each attack was given what its adversary had, and nothing else ([how](audits.md)). Five clients,
or three where it says so, send the gradient of one image a round to a small vision transformer: the case that is worst
for them, and that the papers attack. Images are digits of 32 x 32 pixels; 2026-11-25, 2 cores (x86_64).

A blind attacker, who gives the mean of other images, has {blind:.1f} dB. An image is *recovered* where it is better
than that and is picked out of 100 candidates more often than by chance, both with 95 % intervals; *told from others*
where only the second holds. *Not attacked* says that the attack cannot be used there, or fails where nothing is
protected: it says nothing about the protection.

| configuration | adversary | what it has | honest clients in it | attack | verdict | dB | identified |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

_TAIL: Final = """
## Which configuration to use

- **Use the secure sum in active mode, with as many clients as there are.** Masked uploads gave nothing. Of the sum of
  three, and of what is left of five without three colluding clients, images are no better than the mean image but are
  told from others: a sum of few gradients is not nothing. Of all clients but one colluding, the sum hides nothing.
- **Send more than one image's gradient.** A batch of two or more takes the closed form away
  ([measured](audits.md#where-the-closed-form-stops)); one image a round does not.
- **Model encryption alone hides nothing from a server that knows the first model**, orthogonal or Gaussian: leave
  `encryption.initial_model` at "clients". Whoever has the key, each client, can decrypt.
- **Random binary weights alone are weak at 0.2**: solving for what is missing tells images from others.
- **A fixed position embedding** takes away what the closed forms need, and no other attack of this list was good enough
  to be tried against it: that is no evidence of protection.
- **Noise** of the default size gave nothing to these attacks and guarantees next to nothing
  ([epsilon](fedrsm.md)).

Not done: GRNN, CAFE, membership inference. What is not recovered is not recovered by the attacks listed.
"""


def security_page(figures: Path = FIGURES) -> str:
    """The page. ValueError for a file that is no audit's."""
    found = msgspec.json.decode(figures.read_bytes(), type=dict)
    found.pop("schema", None)
    audit = msgspec.convert(found, Audit)
    blind = audit["blind"]
    head = _HEAD.format(seed=audit["seed"], blind=blind["psnr"] if blind else float("nan"))
    return head + "".join(map(_line, audit["rows"])) + _TAIL


def _line(row: AuditRow) -> str:
    figures = row["figures"]
    measured = ("", "") if figures is None else (f"{figures['psnr']:.1f}", f"{100 * figures['identified']:.0f} %")
    verdict = row["verdict"] + (f": {row['why']}" if row["why"] else "")
    cells = (row["about"], row["adversary"], row["what"], str(row["cohort"]), row["attack"], verdict, *measured)
    return "| " + " | ".join(cells) + " |\n"

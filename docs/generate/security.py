"""docs/security.md: which protection hides what from whom, from the figures of an audit (docs/security.json).

tacit audit --seed 0 --out DIR; cp DIR/audit.json docs/security.json; make docs
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from tacit.simulate.audit.figures import (
    CHANNEL,
    AttackRow,
    AuditFigures,
    ClosedFormLimit,
    ObservationRow,
    ServerAttempt,
    ends,
)

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

_OBSERVATIONS: Final = """
## Labels, and coordinates of one client alone

Labels are counted by the gradient of the classifier ([how](../models/attacks/closed_form.py)), beside who guesses as
labels are among other images. At a coordinate to which one honest client contributed alone, an observation is that
client's value, encrypted if the model is.

| configuration | adversary | what it has | honest clients in it | of one alone | labels right | blindly | labels |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

_LIMITS: Final = """
## Where the closed form stops

Computed from the same model in the clear, without parties: an unprotected upload is what a client's own training gives.
Each line is of {images} images. What the channel costs, of one image of one client:

| what is sent | dB | blind attacker, dB | identified | by chance | verdict |
| --- | --- | --- | --- | --- | --- |
{channel}
How much an update may be of. One thing is changed, and of the others there is one: images of a gradient, steps of plain
SGD on the same image, clients whose gradients are added; all in float32. Recovered up to {last}.

| what is changed | dB | blind attacker, dB | identified | by chance | verdict |
| --- | --- | --- | --- | --- | --- |
{map}"""

_ATTEMPTS: Final = """
## What a server that cheats tries

The cases of the [conformance kit](conformance.md#cases-as-server), played by `tacit audit` against a client in a
process of its own, in active mode, with fresh keys. After each follows an honest round, in whose sum the client's
update has to be: *takes part* says that it is. The last are of the runs in which a server leaves clients out, which
[nothing forbids without groups](groups.md). {holding} of {count} hold.

| case | the server | a client is to | the client | verdict |
| --- | --- | --- | --- | --- |
"""

_TAIL: Final = """
## Which configuration to use

- **Use the secure sum in active mode, with as many clients as there are.** Masked uploads gave nothing. Of the sum of
  three, and of what is left of five without three colluding clients, images are no better than the mean image but are
  told from others: a sum of few gradients is not nothing. Of all clients but one colluding, the sum hides nothing.
- **Use [groups](groups.md)** against a server that cheats: one that repeats a round without a client subtracts, and has
  the image of that client, or with groups the sum of a group ([measured](audits.md#a-server-that-cheats)).
- **Labels are not hidden by a sum**: of the few images in it, most labels are counted right where the gradient of the
  classifier is whole ([measured](#labels-and-coordinates-of-one-client-alone)).
- **Send more than one image's gradient.** A batch of two or more takes the closed form away
  ([measured](#where-the-closed-form-stops)); one image a round does not, nor do more steps on it.
- **Model encryption alone hides nothing from a server that knows the first model**, orthogonal or Gaussian: leave
  `encryption.initial_model` at "clients". Ciphertexts of one image tell it from others under either matrix
  ([measured](protection.md#model-encryption)). Whoever has the key, each client, can decrypt. **A new key does not lock
  out a removed member that works with the server**: it knows the model that is encrypted anew, and so the new key.
- **Random binary weights alone are weak at 0.2**: solving for what is missing tells images from others. At 0.5 it does
  not, but several rounds on the same image give it back at either ([measured](audits.md#rounds-pooled)).
- **A fixed position embedding** takes away what the closed forms need, and no other attack of this list was good enough
  to be tried against it: that is no evidence of protection.
- **One layer that is kept back of a single image's gradient hides nothing** from an attacker who leaves it out of what
  is to match ([measured](fedrsm.md#what-a-layer-that-is-kept-back-hides) on a LeNet).
- **Noise** of the default size gave nothing to these attacks and guarantees next to nothing: whatever a coin decided of
  an update was read ([measured](audits.md#a-lower-bound-of-epsilon)).

Not done: GRNN, CAFE, membership inference. What is not recovered is not recovered by the attacks listed.
"""


def security_page(figures: Path = FIGURES) -> str:
    """The page. ValueError for a file that is no audit's."""
    found = msgspec.json.decode(figures.read_bytes(), type=dict)
    found.pop("schema", None)
    # Figures of before there were attempts have none.
    audit = msgspec.convert({"attempts": [], "no_attempts": "", **found}, AuditFigures)
    head = _HEAD.format(seed=audit.seed, blind=audit.blind.floor if audit.blind else float("nan"))
    middle = _LIMITS.format(
        images=max(one.figures.images for one in audit.limits if one.figures),
        channel="".join(_limit(one) for one in audit.limits if one.factor == CHANNEL),
        map="".join(_limit(one) for one in audit.limits if one.factor != CHANNEL),
        last=ends(audit.limits),
    )
    told = _OBSERVATIONS + "".join(map(_observation, audit.observations))
    return head + "".join(map(_line, audit.rows)) + told + middle + _attempts(audit.attempts) + _TAIL


def _attempts(attempts: Sequence[ServerAttempt]) -> str:
    """The section; nothing if there are none."""
    if not attempts:
        return ""
    verdicts = {True: "holds", False: "**does not hold**"}
    lines = [
        f"| `{one.case}` | {one.does} | {one.expected} | {one.seen} | {verdicts[one.holds]} |\n" for one in attempts
    ]
    return _ATTEMPTS.format(holding=sum(one.holds for one in attempts), count=len(attempts)) + "".join(lines)


def _line(row: AttackRow) -> str:
    figures = row.figures
    measured = ("", "") if figures is None else (figures.decibels, f"{100 * figures.identified:.0f} %")
    verdict = row.verdict + (f": {row.why}" if row.why else "")
    cells = (row.about, row.adversary, row.what, str(row.cohort), row.attack, verdict, *measured)
    return "| " + " | ".join(cells) + " |\n"


def _observation(row: ObservationRow) -> str:
    shares = ("", "") if row.labels is None else (f"{100 * one:.0f} %" for one in (row.labels.right, row.labels.blind))
    verdict = row.verdict + (f": {row.why}" if row.why else "")
    cells = (row.about, row.adversary, row.what, str(row.cohort), f"{100 * row.alone:.1f} %", *shares, verdict)
    return "| " + " | ".join(cells) + " |\n"


def _limit(one: ClosedFormLimit) -> str:
    name, figures = one.setting if one.factor == CHANNEL else f"{one.factor}: {one.setting}", one.figures
    shares = " | ".join(f"{100 * share:.0f} %" for share in (figures.identified, figures.chance))
    return f"| {name} | {figures.decibels} | {figures.floor:.1f} | {shares} | {figures.verdict} |\n"

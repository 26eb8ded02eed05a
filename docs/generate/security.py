"""docs/security.md: the protection of each configuration against each adversary, from an audit (docs/security.json).

tacit audit --seed 0 --out DIR; cp DIR/audit.json docs/security.json; make docs
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tacit.parties.runs.results import Table, markdown
from tacit.simulate.audit.results import AuditResult, closed_form_reach

AUDIT: Final = Path(__file__).parent.parent / "security.json"

_PAGE: Final = """# What leaks: protections against attacks

All numbers are of `tacit audit --seed {seed}`: each configuration was run by real processes, which recorded what they
received and drew, and each attack had the observations of its adversary, and nothing else ([how](audits.md)). Five
clients, or three where it says so, send the gradient of one image a round of a small vision transformer: the worst case
for them, and the one that the papers attack. Images are digits of 32 x 32 pixels; 2026-11-25, 2 cores (x86_64).

The baseline observes nothing: it gives the mean of other images, with {baseline:.1f} dB. An image is *reconstructed* if
it is better than that and is re-identified among 100 candidates more often than by chance, both with 95 % intervals;
*re-identified* if only the second holds. *Not attacked* says that the attack cannot be used there, or fails where
nothing is protected: it says nothing about the protection.

{images}

Each row has the best that the adversary had of any observation; [security.json](security.json) has every attack on
each.

## Labels, and coordinates of one client alone

The last columns are of what an observation discloses beside images. Labels are counted from the gradient of the
classifier ([how](../models/attacks/closed_form.py)); the baseline guesses them as they are distributed among other
images. At a coordinate to which one honest client contributed alone, an observation is that client's value, encrypted
if the model is.

## Limits of the closed form

Computed from the same model in the clear, without parties: an unprotected upload is what a client's own training gives.
Each line is of {count} images. First, the precision that the channel leaves:

{channel}

Next, the number of images, steps and clients in an update. One factor changes, and each of the others is one: images of
a gradient, steps of plain SGD on the same image, clients whose gradients are added; all in float32. Reconstructed up to
{reach}.

{changed}

## Which configuration to use

- **Use the secure sum in active mode, with as many clients as there are.** Masked uploads gave nothing. Of the sum of
  three, and of five minus three colluding clients, images are no better than the mean image but are re-identified: a
  sum of few gradients is not nothing. If all clients but one collude, the sum hides nothing.
- **Use [groups](groups.md)** against a cheating server: one that repeats a round without a client subtracts, and has
  the image of that client, or with groups the sum of a group ([measured](audits.md#malicious-server)).
- **Labels are not hidden by a sum**: of the few images in it, most labels are counted right where the gradient of the
  classifier is whole ([measured](#labels-and-coordinates-of-one-client-alone)).
- **Send more than one image's gradient.** A batch of two or more takes the closed form away
  ([measured](#limits-of-the-closed-form)); one image a round does not, nor do more steps on it.
- **Model encryption alone hides nothing from a server that knows the first model**, orthogonal or Gaussian: leave
  `encryption.initial_model` at "clients". Ciphertexts re-identify an image under either matrix
  ([measured](protection.md#model-encryption)). Each client has the key, and can decrypt. **A new key does not lock
  out a removed member that works with the server**: it knows the model that is encrypted anew, and so the new key.
- **Random binary weights alone are weak at 0.2**: solving for the missing entries re-identifies images. At 0.5 it does
  not, but several rounds on the same image reconstruct it at either ([measured](audits.md#pooled-rounds)).
- **A fixed position embedding** takes away what the closed forms need, and no other attack of this list was good enough
  to be tried against it: that is no evidence of protection.
- **Keeping back one layer of a single image's gradient hides nothing** from an attacker that leaves it out of the match
  ([measured](fedrsm.md#gradient-inversion-with-a-masked-layer) on a LeNet).
- **Noise** of the default size gave nothing to these attacks and guarantees next to nothing: whatever a coin decided of
  an update was read ([measured](audits.md#a-lower-bound-of-epsilon)).

Not done: GRNN, CAFE, membership inference. "Not reconstructed" means not by the attacks listed.
"""


def security_page(path: Path = AUDIT) -> str:
    """Return the page from the file of an audit of the closed form. ValueError for another file."""
    audit = msgspec.json.decode(path.read_bytes(), type=AuditResult)
    if audit.baseline is None or not audit.closed_form:
        raise ValueError(f"{path}: it has no baseline, or no closed form; audit the bundled protections")
    channel, changed = audit.closed_form_tables()
    return _PAGE.format(
        seed=audit.seed,
        baseline=audit.baseline.psnr or 0.0,
        images=_lines(audit.summary_table()),
        count=audit.closed_form[0].metrics.images,
        channel=_lines(channel),
        reach=closed_form_reach(audit.closed_form),
        changed=_lines(changed),
    )


def _lines(table: Table) -> str:
    return "\n".join(markdown(table))

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

_PAGE: Final = """# Measured leakage of each protection

This page shows which attacks succeed against each bundled protection, and [which configuration to
use](#which-configuration-to-use). All numbers are of `tacit audit --seed {seed}`: real processes ran each configuration
and recorded what they received and drew, and each attack used only the observations of its adversary
([method](audits.md)). Five clients, or three where stated, send the gradient of one image a round of a small vision
transformer: the worst case for them, and the one that the papers attack. Images are digits of 32 x 32 pixels;
2026-11-25, 2 cores (x86_64).

The baseline (random guess) observes nothing and outputs the mean of other images, with {baseline:.1f} dB. An image is
*reconstructed* if it beats the baseline and is re-identified among 100 candidates more often than by chance, both with
95 % intervals; *re-identified* if only the second holds. *Not attacked* means that the attack does not apply, or fails
where nothing is protected: it says nothing about the protection.

{images}

Each row has the adversary's best result over all its observations; [security.json](security.json) has every attack on
each.

## Labels, and coordinates of one client alone

The last columns state what an observation discloses beside images. Labels are counted from the gradient of the
classifier ([code](../models/attacks/closed_form.py)); the baseline guesses them by their frequency in other images. At
a coordinate to which one honest client contributed alone, an observation is that client's value, encrypted if the model
is.

## Limits of the closed form

Computed from the same model in the clear, without parties, over {count} images a line. First, by the precision of the
channel:

{channel}

Next, by the number of images in a gradient, of plain SGD steps on the same image, and of clients whose gradients are
added. One factor changes, the others are one; all in float32. Reconstructed up to {reach}.

{changed}

## Which configuration to use

- **Use secure aggregation in active mode, with as many clients as possible.** Masked uploads gave nothing. From the sum
  of three clients, and of five minus three colluders, images are no better than the mean image but are re-identified: a
  sum of few gradients discloses something. If all clients but one collude, the sum hides nothing.
- **Use [groups](groups.md)** against a malicious server, which repeats a round without one client and subtracts. It
  then gets the sum of a group instead of that client's image ([measured](audits.md#malicious-server)).
- **A sum does not hide labels**: most labels of its few images are counted correctly if the gradient of the classifier
  is complete ([measured](#labels-and-coordinates-of-one-client-alone)).
- **Send the gradient of more than one image.** A batch of two or more stops the closed form
  ([measured](#limits-of-the-closed-form)); one image a round does not, nor do more steps on it.
- **Model encryption alone hides nothing from a server that knows the initial model**, orthogonal or Gaussian: leave
  `encryption.initial_model` at "clients". Ciphertexts re-identify an image under either matrix
  ([measured](protection.md#model-encryption)). Each client has the key, and can decrypt. **A new key does not exclude
  a removed member that colludes with the server**: it knows the model that is encrypted anew, and so the new key.
- **Random binary weights alone are weak at 0.2**: solving for the missing entries re-identifies images. At 0.5 it does
  not, but several rounds on the same image reconstruct it at either ([measured](audits.md#pooled-rounds)).
- **A fixed position embedding** withholds the input of the closed forms, and no other attack of this list was strong
  enough to be tried against it: that is no evidence of protection.
- **Masking one layer of a single image's gradient hides nothing** from an attacker that leaves it out of the match
  ([measured](fedrsm.md#gradient-inversion-with-a-masked-layer) on a LeNet).
- **Noise** of the default size stopped these attacks but guarantees next to nothing: an attacker read every coin behind
  an update ([measured](audits.md#a-lower-bound-of-epsilon)).

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

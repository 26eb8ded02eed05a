"""docs/choosing.md: which protection for whom, as questions whose answers have the metrics of an audit.

The metrics are those of docs/security.json, as on the page on what leaks; `best` finds those of the best attack on one
kind of observation.
"""

from __future__ import annotations

from typing import Final

import msgspec

from docs.generate.security import AUDIT
from tacit.parties.protections.catalogue import registered
from tacit.simulate.audit.results import BATCH, AuditResult, ImageMetrics
from tacit.simulate.audit.views import DIFFERENCE, LESS_OWN, MASKED, SUM, UPLOAD, WITH_KEYS

_PAGE: Final = """# How to choose a protection

Follow the questions from the top. Numbers are of `tacit audit`, seed {seed}: decibels of the best attack that
reconstructs images, and the fraction of {images} images that it picked out of 100 candidates each. The baseline, the
mean of other images, has {baseline:.1f} dB. [Measured leakage](security.md) has the whole table, including attacks that
do not apply; it covers only the listed attacks.

```mermaid
flowchart TD
    server{{Who may see one client's update?}}
    server -- the server --> plain["No secure aggregation: {plain}"]
    server -- nobody --> sum["Secure aggregation, active mode. An upload: {masked}"]
    sum --> many{{How many honest clients are in a sum?}}
    many -- one --> alone["It hides nothing: {alone}"]
    many -- three --> three["{three}"]
    many -- five or more --> five["{five}"]
    five --> cheats{{May the server leave clients out?}}
    cheats -- yes --> groups["Groups. Without: {subtracted}. Of two: {grouped}"]
    cheats -- no --> result{{May the result disclose a client?}}
    groups --> result
    result -- no --> noise["Noise with a budget of epsilon"]
    result -- yes --> model{{May the server have the model?}}
    noise --> model
    model -- yes --> done[Done]
    model -- no --> encryption["Also model encryption, whose key each client has"]
    plain --> thin{{Which partial protection?}}
    thin -- binary weights --> binary["zero_probability = 0.2: {weak}. 0.5: {half}"]
    thin -- model encryption --> known["The server knows the initial model: {known}. \
A member colludes with it: {insider}"]
```

| question | setting | guide |
| --- | --- | --- |
| who may see one client's update | `aggregation.mode = "active"`, the default; `"semi-honest"` \
trusts the server to follow the protocol | [threat model](threat-model.md) |
| how many honest clients are in a sum | `aggregation.corrupt`: the fraction of clients that may collude; \
every client enforces its own limit with `[policy]` | [policies](decisions/012-policies.md) |
| may the server leave clients out | `federation.group_size` | [groups](groups.md) |
| may the result disclose a client | `protection.scheme = "dp-gaussian"` with `dp_clip`, and \
`policy.largest_epsilon` | [noise](protection.md) |
| may the server have the model | `[encryption]`, with `initial_model = "clients"` | \
[model encryption](protection.md#model-encryption) |
| is a coordinate of one client alone in the sum | `protection.scheme = \
"coordinated-binary-weights"` | [binary weights](protection.md#binary-weights) |
| is the model itself secret | `tacit adapt`, `tacit infer` | [model owner's tutorial](tutorials/model-owner.md) |

## Disclosures about single clients

The table is for secure aggregation over five clients, with the defaults of each protection; the report and `tacit
simulate` state the disclosures of a run.

{disclosures}
Under every choice:

- a batch of two or more images stops the closed form: {one} for one image, and {two} for a gradient of two, in float32;
- labels of few images are counted correctly from a sum too
  ([measured](security.md#labels-and-coordinates-of-one-client-alone));
- independent binary weights add up over rounds on the same images ([measured](audits.md#pooled-rounds)).
"""


def choosing_page() -> str:
    """Return the page. ValueError if the audit has no image for a place."""
    audit = msgspec.json.decode(AUDIT.read_bytes(), type=AuditResult)
    assert audit.baseline is not None

    def best(arm: str, observation: str, honest_clients: int) -> str:
        place = (arm, observation, honest_clients)
        found = [
            row.metrics
            for row in audit.image_attacks
            if (row.arm, row.observation, row.honest_clients) == place and row.metrics
        ]
        images = [one for one in found if one.psnr is not None]
        if not images:
            raise ValueError(f"{AUDIT.name} has no image for {place}")
        return _outcome(max(images, key=lambda one: (one.reconstructed, one.re_identified, one.psnr)))

    def of_batch(size: str) -> str:
        (found,) = (one.metrics for one in audit.closed_form if (one.factor, one.setting) == (BATCH, size))
        return _outcome(found)

    return _PAGE.format(
        disclosures=disclosures_table(),
        seed=audit.seed,
        images=audit.baseline.images,
        baseline=audit.baseline.psnr or 0.0,
        plain=best("unprotected", UPLOAD, 1),
        masked=best("secure-sum-5", MASKED, 1),
        alone=best("secure-sum-5", LESS_OWN, 1),
        three=best("secure-sum-3", SUM, 3),
        five=best("secure-sum-5", SUM, 5),
        subtracted=best("subtraction-no-groups", DIFFERENCE, 1),
        grouped=best("subtraction-groups-of-2", DIFFERENCE, 2),
        weak=best("binary-weights-0.2", UPLOAD, 1),
        half=best("binary-weights-0.5", UPLOAD, 1),
        known=best("encryption-orthogonal-known-model", UPLOAD, 1),
        insider=best("encryption-orthogonal", WITH_KEYS, 1),
        one=of_batch("1"),
        two=of_batch("2"),
    )


def disclosures_table() -> str:
    """Return the declared disclosures of all protections in a secure sum over five clients."""
    rows = ["| protection | party | learns | when |", "|---|---|---|---|"]
    for name, scheme in registered().items():
        found = [(f"the {one.party}", one.what, one.condition) for one in scheme().disclosures(5)]
        rows += [f"| `{name}` | {' | '.join(cells)} |" for cells in found or [("nobody", "nothing", "")]]
    return "\n".join(rows) + "\n"


def _outcome(found: ImageMetrics) -> str:
    verdict = "not reconstructed"
    if found.re_identified:
        verdict = "reconstructed" if found.reconstructed else "re-identified"
    return f"{verdict}, {found.psnr:.1f} dB, {found.re_identification_rate:.0%} picked"

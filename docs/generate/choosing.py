"""docs/choosing.md: which protection for whom, as questions whose answers have the figures of an audit.

The figures are those of docs/security.json, as on the page on what leaks; `figure` finds that of the best attack on one
kind of observation.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from docs.generate.security import FIGURES
from tacit.parties.protections.catalogue import registered

_PAGE: Final = """# How to choose a protection

Begin at the top. Figures are of `tacit audit`, seed {seed}: decibels of the best attack that gives images, and which
share of {images} images it picked out of 100 candidates each. A blind attacker has {blind:.1f} dB. The whole table,
with what was not attacked, is [what leaks](security.md); it says nothing of attacks that are not in its list.

```mermaid
flowchart TD
    server{{Who may see one client's update?}}
    server -- the server --> plain["No secure sum: {plain}"]
    server -- nobody --> sum["Secure sum, active mode. An upload: {masked}"]
    sum --> many{{How many honest clients are in a sum?}}
    many -- one --> alone["It hides nothing: {alone}"]
    many -- three --> three["{three}"]
    many -- five or more --> five["{five}"]
    five --> cheats{{May the server leave clients out?}}
    cheats -- yes --> groups["Groups. Without: {subtracted}. Of two: {grouped}"]
    cheats -- no --> result{{May the result tell of a client?}}
    groups --> result
    result -- no --> noise["Noise with a budget of epsilon"]
    result -- yes --> model{{May the server have the model?}}
    noise --> model
    model -- yes --> done[Done]
    model -- no --> encryption["Also model encryption, whose key each client has"]
    plain --> thin{{Is something to be hidden all the same?}}
    thin -- binary weights --> binary["zero_probability = 0.2: {weak}. 0.5: {half}"]
    thin -- model encryption --> known["The server knows the first model: {known}. A member helps it: {insider}"]
```

| question | what to set | read |
| --- | --- | --- |
| who may see one client's update | `aggregation.mode = "active"`, the default; `"semi-honest"` \
believes the server | [threat model](threat-model.md) |
| how many honest clients are in a sum | `aggregation.corrupt`: the share of clients that may collude; \
every client sees to its own with `[policy]` | [policies](decisions/012-policies.md) |
| may the server leave clients out | `federation.group_size` | [groups](groups.md) |
| may the result tell of a client | `protection.scheme = "dp-gaussian"` with `dp_clip`, and \
`policy.largest_epsilon` | [noise](protection.md) |
| may the server have the model | `[encryption]`, with `initial_model = "clients"` | \
[model encryption](protection.md#model-encryption) |
| is a coordinate of one client alone in the sum | `protection.scheme = \
"coordinated-binary-weights"` | [binary weights](protection.md#binary-weights) |
| is the model itself the secret | `tacit adapt`, `tacit infer` | [its owner's tutorial](tutorials/model-owner.md) |

## What a protection reveals of single clients

In a secure sum over five clients, with the defaults of each protection; the report and `tacit simulate` state it for
the run at hand.

{disclosures}
What no choice changes: a batch of two images or more takes the closed form away, {one} for one image
and {two} for two of one gradient in float32; labels of few images are counted right of a sum as well
([measured](security.md#labels-and-coordinates-of-one-client-alone)); and binary weights that are drawn anew add up over
rounds on the same images ([measured](audits.md#rounds-pooled)).
"""


def choosing_page() -> str:
    """The page. ValueError where the audit has no figure for a place."""
    audit: dict[str, Any] = msgspec.json.decode(FIGURES.read_bytes())

    def figure(arm: str, what: str, cohort: int) -> str:
        place = {"arm": arm, "what": what, "cohort": cohort}
        found = [row["figures"] for row in audit["rows"] if place.items() <= row.items() and row["figures"]]
        images = [one for one in found if one["psnr"] is not None]
        if not images:
            raise ValueError(f"{FIGURES.name} has no image back for {place}")
        return _told(max(images, key=lambda one: (one["recovered"], one["found"], one["psnr"])))

    def of_batch(size: str) -> str:
        (found,) = (one["figures"] for one in audit["limits"] if (one["factor"], one["setting"]) == ("batch", size))
        return _told(found)

    upload, keys = "upload", "upload, and the keys of a member"
    return _PAGE.format(
        disclosures=disclosures_table(),
        seed=audit["seed"],
        images=audit["blind"]["images"],
        blind=audit["blind"]["psnr"],
        plain=figure("unprotected", upload, 1),
        masked=figure("secure-sum-5", "upload under masks", 1),
        alone=figure("secure-sum-5", "opened sum less colluding clients", 1),
        three=figure("secure-sum-3", "opened sum", 3),
        five=figure("secure-sum-5", "opened sum", 5),
        subtracted=figure("subtraction-no-groups", "difference of two sums", 1),
        grouped=figure("subtraction-groups-of-2", "difference of two sums", 2),
        weak=figure("binary-weights-0.2", upload, 1),
        half=figure("binary-weights-0.5", upload, 1),
        known=figure("encryption-orthogonal-known-model", upload, 1),
        insider=figure("encryption-orthogonal", keys, 1),
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


def _told(figures: dict[str, Any]) -> str:
    verdict = "recovered" if figures["recovered"] else "told from others" if figures["found"] else "not recovered"
    return f"{verdict}, {figures['psnr']:.1f} dB, {100 * figures['identified']:.0f} % picked"

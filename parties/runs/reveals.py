"""Disclosures to data owners of block outputs in a simulated adaptation, and the protected values, in words.

They are the same on the screen, in summary.json, in the report and in the documentation.
"""

from __future__ import annotations

from typing import Final

GIVES_AWAY: Final = (
    "INSECURE, in simulation only: data owners receive outputs of blocks, in secret orders; they find the orders and "
    "copy the blocks, so that the model is not protected from them"
)

PROTECTS: Final = {
    "none": "data owners learn on shares and receive no output of a block: the model is protected from those that "
    "follow the protocol, for as many rounds as the model owner opens",
    "sampled": GIVES_AWAY,
    "all": GIVES_AWAY,
}

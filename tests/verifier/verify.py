"""An independent verifier of the test vectors: `python tests/verifier/verify.py [DIRECTORY]`.

It is written from the pages of docs/spec/ alone, shares no code with the implementation, and needs only the standard
library and `cryptography`. It is slow and obvious on purpose. It prints every file in which it disagrees, and exits
with status 0 only if there is none.

    constants   labels, codes, limits         aggregation          what both sides of a secure sum compute
    primitives  hashes, keys, shares          aggregation_client   the phases of a client
    encoding    canonical msgpack             aggregation_server   the phases of the server
    messages    all messages, frames          session_client       a client of a federation
    parameters  graphs, words, layout         session_server       the server of a federation
    proposal    configuration and policy      plain_sum            a sum without secure aggregation
    protections weights, encryption           group_key            one attempt at a group key
    transfer    models in chunks              key_holder           a client and group keys
    play        parties with conversations    key_keeper           the server and group keys
    computations the computations             conversation         who talks to whom, and numbering
    transcripts the transcripts

Of private inference: inference_terms (messages, terms, rounds), inference_owner (both owners towards each other),
inference_dealer (owners and dealer), inference_material (requests and corrections), inference_computations.
Of double-blind adaptation: adaptation_terms, adaptation_owner (both owners, and which sums are disclosed).
"""

import json
import sys
from pathlib import Path
from typing import Any

from computations import COMPUTATIONS, shown
from constants import CODES, Refused
from inference_computations import ADAPTATION_COMPUTATIONS, INFERENCE_COMPUTATIONS
from transcripts import disagreement as disagreement_of_transcript

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
NOT_ON_THE_WIRE = "INVALID"
OF_PROTOCOL: dict[str, dict[str, Any]] = {
    "private inference": INFERENCE_COMPUTATIONS,
    "double-blind adaptation": ADAPTATION_COMPUTATIONS,
}


def disagreement(vector: dict[str, Any]) -> str | None:
    """The first computation with another outcome than the file says."""
    if "steps" in vector:
        return disagreement_of_transcript(vector)
    if set(vector) != {"protocol", "about", "computations"}:
        return "no test vector"
    known = OF_PROTOCOL.get(vector["protocol"], COMPUTATIONS)
    for number, step in enumerate(vector["computations"]):
        outcome = "refused" if "refused" in step else "expect"
        if set(step) != {"do", "with", outcome}:
            return f"computation {number}: has {sorted(step)}"
        expected = {outcome: step[outcome]}
        if outcome == "refused" and expected["refused"] not in (*CODES, NOT_ON_THE_WIRE):
            return f"computation {number}: there is no code {expected['refused']}"
        try:
            found = {"expect": shown(known[step["do"]](**step["with"]))}
        except Refused as reason:
            found = {"refused": reason.code}
        except Exception as error:
            # A wrong vector may break anything, and whatever it is, the file does not hold.
            found = {"failed": f"{type(error).__name__}: {error}"}
        if found != expected:
            return f"computation {number}, {step['do']}:\n  expected {expected}\n  found    {found}"
    return None


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0]) if arguments else VECTORS
    files = sorted(path for path in directory.glob("*.json") if path.name != "schema.json")
    wrong = 0
    for path in files:
        if difference := disagreement(json.loads(path.read_text(encoding="utf-8"))):
            wrong += 1
            print(f"{path.name}: {difference}"[:2000])
    print(f"{len(files) - wrong} of {len(files)} files agree")
    return 0 if files and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

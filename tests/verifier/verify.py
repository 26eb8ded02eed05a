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
    play        the parties of a transcript   key_keeper           the server and group keys
    operations  the operations of the vectors conversation         who talks to whom, and numbering
    transcripts the transcripts of the vectors

Of private inference: inference_terms (messages, terms, rounds), inference_owner (both owners towards each other),
inference_dealer (owners and dealer), inference_material (requests and corrections), inference_play (its operations).
Of double-blind adaptation: adaptation_terms, adaptation_owner (both owners, and which sums are told), adaptation_play.
"""

import json
import sys
from pathlib import Path
from typing import Any

from adaptation_play import AdaptationPerformance
from constants import CODES, Refused
from inference_play import InferencePerformance
from operations import Performance
from transcripts import disagreement as disagreement_of_transcript

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
LEVELS = ("primitive", "message", "round", "session")
NOT_ON_THE_WIRE = "INVALID"
PERFORMANCES: dict[str, Any] = {
    "private inference": InferencePerformance,
    "double-blind adaptation": AdaptationPerformance,
}


def disagreement(vector: dict[str, Any]) -> str | None:
    """The first operation with another outcome than the file says; later ones may follow from it."""
    if "steps" in vector:
        return disagreement_of_transcript(vector)
    if set(vector) != {"protocol", "level", "about", "operations"} or vector["level"] not in LEVELS:
        return "no test vector"
    performance = PERFORMANCES.get(vector["protocol"], Performance)()
    for number, operation in enumerate(vector["operations"]):
        outcome = "refused" if "refused" in operation else "expect"
        if set(operation) != {"do", "with", outcome}:
            return f"operation {number}: has {sorted(operation)}"
        expected = {outcome: operation[outcome]}
        if outcome == "refused" and expected["refused"] not in (*CODES, NOT_ON_THE_WIRE):
            return f"operation {number}: there is no code {expected['refused']}"
        try:
            found = {"expect": performance.perform(operation["do"], operation["with"])}
        except Refused as reason:
            found = {"refused": reason.code}
        except Exception as error:
            # A wrong vector may break anything, and whatever it is, the file does not hold.
            found = {"failed": f"{type(error).__name__}: {error}"}
        if found != expected:
            return f"operation {number}, {operation['do']}:\n  expected {expected}\n  found    {found}"
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

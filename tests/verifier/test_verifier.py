"""The independent verifier agrees on every vector, is independent, and finds errors in the vectors and in itself."""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases import cases

HERE = Path(__file__).parent
VECTORS = HERE.parent / "vectors"
SOURCES = sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)

ALONE = """
import contextlib, io, json, runpy, sys

class NothingOfOurs:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tacit", "numpy", "msgspec", "msgpack"):
            raise ImportError(f"the verifier must not need {name}")

sys.meta_path.insert(0, NothingOfOurs())
verifier, jobs = sys.argv[1], json.load(sys.stdin)
own, path, outcomes = sys.argv[2:], list(sys.path), []
for changed, vectors in jobs:
    for name in own:
        sys.modules.pop(name, None)
    sys.path[:] = [changed, verifier, *path]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        status = runpy.run_path(verifier + "/verify.py")["main"]([vectors])
    outcomes.append((status, output.getvalue()))
json.dump(outcomes, sys.stdout)
"""
"""Runs the verifier once for each job, where neither the environment nor the directory lends it a module of ours.

A job is a directory with changed modules, which come before the verifier's own, and a directory of vectors."""


def verify(*jobs: tuple[Path, Path]) -> list[tuple[int, str]]:
    """Status and output of each run."""
    command = [sys.executable, "-I", "-c", ALONE, str(HERE), *(path.stem for path in SOURCES)]
    given = json.dumps([[str(changed), str(vectors)] for changed, vectors in jobs])
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(status, output) for status, output in json.loads(done.stdout)]


def test_agrees_on_every_vector_without_anything_of_ours(tmp_path: Path) -> None:
    files = len(list(VECTORS.glob("*.json"))) - 1  # less the schema
    assert files >= 32
    assert verify((tmp_path, VECTORS)) == [(0, f"{files} of {files} files agree\n")]


@cases(("name", "status"), [("words", 0), ("schema", 1)])
def test_the_exit_status_says_whether_all_agree(name: str, status: int, tmp_path: Path) -> None:
    """No vector at all is no agreement."""
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(VECTORS / f"{name}.json", folder)
    assert subprocess.run([sys.executable, HERE / "verify.py", folder], check=False).returncode == status


def test_imports_nothing_but_the_standard_library_and_cryptography() -> None:
    own = {path.stem for path in SOURCES}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else names
            for name in names:
                top = name.split(".")[0]
                assert top in own or top in sys.stdlib_module_names or top == "cryptography", f"{path.name}: {name}"
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id
            assert called not in ("__import__", "exec", "eval"), path.name
            assert "importlib" not in names, path.name


# Errors planted into copies of the vectors.

Change = Callable[[Any], Any]


def other(text: str) -> str:
    """Another last hexadecimal digit."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def instead(value: Any) -> Change:
    return lambda _: value


def accepted(step: dict[str, Any]) -> dict[str, Any]:
    return {"do": step["do"], "with": step["with"], "expect": True}


def refused(step: dict[str, Any]) -> dict[str, Any]:
    return {"do": step["do"], "with": step["with"], "refused": "SIGNATURE"}


PLANTED: dict[str, tuple[str, str, tuple[str | int, ...], Change]] = {
    "a byte of a keystream": ("keystreams", '"expect": "c0', ("expect",), other),
    "a masked word": ("masks", "mask", ("expect",), other),
    "a derived key": ("derivations", "derive", ("expect",), other),
    "a context": ("transcripts", "context", ("expect", "context"), other),
    "a share": ("shamir", "share", ("expect", -1, -1), other),
    "an order on the ring": ("ring_order", "ring order", ("expect",), lambda order: order[::-1]),
    "a signature": ("signatures", "sign", ("expect", "signature"), other),
    "a bitmap": ("members", "write members", ("expect",), other),
    "a hash of a configuration": ("configuration", "write configuration", ("expect", "hash"), other),
    "a refusal taken back": ("agreement_bad_point", "agree", (), accepted),
    "a refusal made up": ("signatures", "verify", (), refused),
    "another code": ("sealing_bad_ciphertext", "refused", ("refused",), instead("POLICY")),
    "an unknown computation": ("words", "unpack", ("do",), instead("guess")),
    "a zero of a round": ("adaptation_zeros", "draw zeros", ("expect",), other),
    "a use of a group key": ("group_keys", "use group key", ("expect",), other),
    "a coordinated weight": ("coordinated_weights", "coordinated", ("expect", -1), lambda bit: 1 - bit),
    "an encrypted number": ("model_encryption", "encrypt", ("expect", -4), lambda number: number + 1e-5),
    "an embedding": ("first_embeddings", "first", ("expect",), other),
    "a digest of terms": ("inference_terms", "digest", ("expect", "digest"), other),
    "a commitment to weights": ("inference_commitment", "commit", ("expect",), other),
    "bytes of a round": ("inference_schedule", "schedule", ("expect", "rounds", 3, 2), lambda size: size + 1),
    "a key of material": ("inference_material_keys", "derive", ("expect",), other),
    "a drawn word": ("inference_material", "draw", ("expect", 3, 0), other),
    "a corrected word": ("inference_material", "correct", ("expect", -1, "words"), other),
    "a share of a place": ("inference_trees", "evaluate", ("expect", "points", 0), other),
    "a share of a threshold": ("inference_trees", "evaluate", ("expect", "below", 0, 1), lambda word: word ^ 1),
    "a cosine": ("inference_waves", "cosines", ("expect", "values", 3), lambda word: word + 1),
    "a table of cosines": ("inference_waves", "cosines", ("expect", "digest"), other),
    "a threshold of 64 bits": (
        "inference_trees",
        '"points": []',
        ("expect", "below", 0, 0),
        lambda word: word ^ 1 << 40,
    ),
    "a factor": ("inference_waves", "factors", ("expect", 3, 1), lambda word: word + 1),
    "a slope": ("inference_waves", "inverse", ("expect", "slopes", 2), lambda word: word + 1),
}
"""File, what the first computation concerned says, the way to a value in it, and what becomes of that value."""


def test_finds_every_error_planted_into_the_vectors(tmp_path: Path) -> None:
    for number, (name, text, way, change) in enumerate(PLANTED.values()):
        vector = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
        says = [json.dumps(step | {"with": None}) for step in vector["computations"]]
        place: Any = vector["computations"]
        *path, last = (next(at for at, said in enumerate(says) if text in said), *way)
        for key in path:
            place = place[key]
        before, place[last] = place[last], change(place[last])
        assert place[last] != before
        (tmp_path / f"{number:02}.json").write_text(json.dumps(vector), encoding="utf-8")
    ((status, output),) = verify((HERE, tmp_path))
    disagreed = [line.split(".json: computation ")[0] for line in output.splitlines() if ".json: computation " in line]
    assert status == 1
    assert [what for number, what in enumerate(PLANTED) if f"{number:02}" not in disagreed] == []


def test_finds_every_error_planted_into_the_transcripts(tmp_path: Path) -> None:
    """The last message that is sent, the last event, state and deadline differ, each once per protocol."""
    planted, done = [], set()
    for path in sorted(VECTORS.glob("transcript_*.json"), key=lambda path: path.stat().st_size):
        for what in ("sends", "events", "state", "deadline"):
            file = json.loads(path.read_text(encoding="utf-8"))
            step = next((step for step in reversed(file["steps"]) if step.get(what)), None)
            if step is None or (file["protocol"], what) in done:
                continue
            done.add((file["protocol"], what))
            if what == "sends":
                frames = file["messages"][step["sends"][-1]]["frames"]
                frames[0] = other(frames[0])
            else:
                step[what] = {"state": "ELSEWHERE", "deadline": -1.0, "events": [{"event": "ended"}]}[what]
            planted.append(f"{path.stem}-{what}.json")
            (tmp_path / planted[-1]).write_text(json.dumps(file), encoding="utf-8")
    ((status, output),) = verify((HERE, tmp_path))
    assert status == 1
    assert len(done) == 4 * len({protocol for protocol, _ in done}) >= 20
    assert [name for name in planted if f"{name}: step " not in output] == []


# Errors planted into the verifier.

MISREAD: dict[str, list[tuple[str, str, str]]] = {
    "transcript_sum": [
        ("constants", "tacit/1 self mask seed", "tacit/1 self-mask seed"),
        ("constants", 'tacit/1 pairwise mask"', 'tacit/1 pair mask"'),
        ("aggregation", "for way in (1, -1)", "for way in (1, 2)"),
        ("aggregation_client", "digest + u16(owner) + u16(holder))", "digest + u16(holder) + u16(owner))"),
        ("aggregation_client", "seed_share if owner in", "seed_share if owner not in"),
        ("aggregation_server", "SELF_MASK, bits, length), -1", "SELF_MASK, bits, length), 1"),
    ],
    "shamir": [
        ("constants", "PRIME = 65521", "PRIME = 65519"),
        ("constants", "LIMB_BITS = 15", "LIMB_BITS = 14"),
    ],
    "transcript_sum_spoilt": [("constants", '"THRESHOLD": 14', '"THRESHOLD": 21')],
    "transcripts": [
        ("constants", "WORDS_ALIGNED = 16", "WORDS_ALIGNED = 32"),
        ("aggregation", "1 if member > peer", "1 if member < peer"),
        ("aggregation", "u16(low) + u16(high)", "u16(high) + u16(low)"),
        ("aggregation", "u32(self.neighbours),", "u32(self.size),"),
    ],
    "masks": [
        ("primitives", "range(first, last)", "range(first + 1, last + 1)"),
        ("primitives", 'counter.to_bytes(16, "big")', 'counter.to_bytes(16, "little")'),
        ("parameters", "8 * size >= bits", "8 * size > bits"),
    ],
    "keystreams": [("primitives", 'seed, usage + b"', 'seed, framed(usage) + b"')],
    "derivations": [
        ("primitives", 'number.to_bytes(8, "little")', 'number.to_bytes(8, "big")'),
        ("primitives", "sha256(framed(label, *parts))", "sha256(label + framed(*parts))"),
        ("primitives", "hmac_sha256(salt, secret)", "hmac_sha256(secret, salt)"),
    ],
    "agreement_bad_point": [("primitives", "and u < 2**255 - 19", "and u % 2**255 < 2**255 - 19")],
    "sealing": [("primitives", "encrypt(bytes(12)", 'encrypt(b"nonce of 12!"')],
    "transcript_sum_bad_server": [
        ("aggregation_client", "<= set(self.mine.holders)", "<= set(self.sharers)"),
        ("aggregation_client", "self.terms.check_whole(survivors)", "pass"),
        ("aggregation_client", "require(len(holders) <= terms.most_complaints", "require(bool(holders)"),
    ],
    "transcript_sum_groups": [
        ("aggregation_client", "self.me in survivors or bool(self.terms.groups)", "self.me in survivors"),
        ("aggregation", "self.fewest_survivors if self.groups else max(", "max("),
        ("aggregation_server", "self.there(self.complaints)", "self.there(self.survivors)"),
        ("aggregation_server", "self.queue += group", "self.queue.append(member)"),
    ],
    "transcript_federation_groups": [
        ("conversation", "*sorted(self.signing_keys", "*(self.signing_keys"),
        ("conversation", "set(group) <= set(names) and ", ""),
    ],
    "transcript_federation_groups_bad": [
        ("proposal", 'found["colluders"] + 2 for size', 'found["colluders"] + 1 for size'),
        ("session_client", 'before = b""', "before = None"),
    ],
    "transcript_sum_uploads": [
        ("aggregation_client", "terms.input_seconds + 2 * terms.phase", "2 * terms.phase"),
        ("aggregation_server", "self.waited - ready", "self.waited"),
        ("aggregation_server", "][0] = now + terms.phase_seconds", "][0] += 0"),
        ("aggregation_server", "[now + phase, now + ", "[now + 2 * phase, now + "),
    ],
    "transcript_sum_complaints": [
        ("aggregation", "2 * self.threshold - holders - 1", "2 * self.threshold - holders"),
        ("aggregation", "return sharing, u16(owner) + u16(holder)", "return sharing, u16(holder) + u16(owner)"),
        ("aggregation_server", "if owner in self.convicted else None", "if owner in self.out else None"),
    ],
    "messages": [("messages", "channel_key=HASH, mask_key=HASH", "mask_key=HASH, channel_key=HASH")],
    "message_bad_length": [("messages", "Binary(LARGEST_COHORT // 8)", "Binary(LARGEST_COHORT)")],
    "members": [("encoding", "|= 1 << (member % 8)", "|= 128 >> (member % 8)")],
    "message_bad_integer": [("encoding", "if smaller else fixed_below)", "* 0 if smaller else 0)")],
    "packing": [("parameters", "self.levels).bit_length() + 1", "self.levels).bit_length()")],
    "parameters": [("parameters", "2**41 * n", "2**20 * n")],
    "transcript_federation": [
        ("conversation", "self.received = sent, 0", "self.received = sent + 1, 0"),
        ("conversation", "lost = self.broken and", "lost = False and"),
        ("conversation", 'envelope["link"] != self.link or lost', "lost"),
        ("conversation", "if said[0] >= received]", "if said[0] > received]"),
        ("session_client", "if told_that_it_is_gone and", "if False and"),
        ("session_server", '!= "resume":', '!= "hello":'),
        ("session_server", "at_its_turn(name, self.resume, now)", "at_its_turn(name, self.greet, now)"),
        ("session_server", "= now + HELLO_SECONDS - left", "= now + HELLO_SECONDS"),
        ("session_server", "HELLOS * HELLO_SECONDS\n", "6 * HELLO_SECONDS\n"),
        ("session_server", '"VECTOR" if unusable else self', "self"),
        ("session_server", "CODES[code] if code else None", "CODES[code] if code else 0"),
    ],
    "transcript_federation_bad": [
        ("conversation", "any(0 < said[2] < round_number", "any(0 < said[2] < 0"),
        ("session_client", '(old["session"], old["round"]) !=', '(old["round"], old["session"]) !='),
    ],
    "transcript_group_key": [
        ("group_key", "u32(self.epoch), self.roster", "self.roster, u32(self.epoch)"),
        ("group_key", "u16(owner) + u16(holder))\n\n", "u16(holder) + u16(owner))\n\n"),
        (
            "group_key",
            "private, holder, owner, holder), contribution, self.digest",
            'private, holder, owner, holder), contribution, b""',
        ),
        ("group_key", 'GROUP_KEY, self.digest, b"")', 'GROUP_KEY, b"", self.digest)'),
        ("group_key", "CONFIRMATION, self.digest, u16(member))\n\n", 'CONFIRMATION, self.digest, b"")\n\n'),
    ],
    "transcript_group_key_bad": [
        ("group_key", 'require(commits[self.me] == self.own, "KEYS")', "pass"),
        ("group_key", "require(len({record[:32] for record in commits}) == terms.size", "require(bool(commits)"),
        ("group_key", 'require(self.state == "KEY_ACCEPT", "SHARES")', "self.fail('SHARES', [names[accused]])"),
    ],
    "transcript_federation_keys_bad": [
        ("key_holder", 'require(body["epoch"] > self.epoch', 'require(body["epoch"] >= self.epoch'),
        ("key_holder", 'require(body["former"] in self.keys, "KEYS")', "pass"),
        ("key_holder", "every == 0 or self.rounds < every", "True"),
        ("key_keeper", 'require(body["epoch"] <= self.epoch, "SESSION")', "pass"),
    ],
    "transcript_federation_keys": [
        ("key_keeper", "TRANSFER_LIMIT * self", "2 * self"),
        ("key_keeper", "in (completed, completed - 1)", "in (completed,)"),
        ("key_keeper", "self.server.round = self.to_ask", "self.server.completed = self.to_ask"),
        ("key_holder", 'if not model and self.order["source"] == "remembered"', "if False"),
        ("plain_sum", "max(self.terms.fewest_survivors, 1)", "2 + len(self.terms.cohort)"),
    ],
    "model_encryption": [("protections", "for wave in (math.cos, math.sin)", "for wave in (math.sin, math.cos)")],
    "coordinated_weights": [("protections", "own[place])[me]", "own[place]).index(me)")],
    "first_embeddings": [("protections", "x * 0.02 * math.sqrt(3)", "x * 0.02")],
    "configuration_bad_encoding": [("messages", 'found["mode"] == "none" or not', "True or not")],
    "inference_schedule": [
        ("inference_terms", "8 * n * t * d)", "6 * n * t * d)"),
        ("inference_terms", "+ 4 * n * t * h\n", "+ 4 * n * h\n"),
        ("inference_terms", 'sizes["side"] // sizes["patch"]) ** 2', 'sizes["side"] // sizes["patch"])'),
        ("inference_terms", "min(batch, images - start)", "batch"),
        ("inference_terms", "*divided_again] * squarings", "*divided_again]"),
        ("inference_terms", '(form["hidden_bits"] + 7) // 8', "2"),
        ("inference_terms", "for octets in (5, 4)", "for octets in (5, 5)"),
    ],
    "inference_terms_bad_sizes": [
        ("inference_terms", 'sizes["heads"] * t * t <=', "t * t <="),
        ("inference_terms", 'in (0, sizes["blocks"])', "in range(257)"),
    ],
    "transcript_inference_bad": [
        ("inference_owner", "step == self.range_step for step, _ in self.owed", "()"),
        ("inference_owner", 'require(kind == "abort" or round_number == due, "SESSION")', "pass"),
        ("inference_owner", 'if envelope["sequence"] != 0:', "if False:"),
        ("inference_owner", 'body["step"] <= self.owed[0][0], "UNEXPECTED")', 'True, "UNEXPECTED")'),
        ("inference_owner", 'require(not self.unaudited, "UNEXPECTED")', "pass"),
        ("inference_owner", 'require(self.unaudited, "UNEXPECTED")', "pass"),
        ("inference_owner", '== self.commitment, "SECRET")', '!= b"", "SECRET")'),
        ("inference_owner", "len(raw) == 32 * len(self.picked)", "True"),
        ("inference_owner", 'terms["audited"] == request["audited"], "POLICY"', 'True, "POLICY"'),
        ("inference_dealer", 'len(self.ahead[sender]) < MOST_ORDERS, "UNEXPECTED")', 'True, "UNEXPECTED")'),
        ("inference_dealer", "sender not in self.done and ", ""),
    ],
    "transcript_inference": [
        ("inference_owner", "self.due.next <= self.owed[0][0])", "True)"),
        ("inference_owner", "(self.contribution, theirs) if", "(theirs, self.contribution) if"),
        ("inference_owner", "self.may_use(self.asked_on, self.count())", "True"),
        ("inference_owner", 'self.number < len(self.passes), "POLICY"', 'True, "POLICY"'),
        ("inference_owner", 'self.fail("MODEL", self.name)', 'self.fail("MODEL", self.peer)'),
    ],
    "inference_material_keys": [
        ("inference_dealer", "of_owner + of_dealer, MATERIAL", "of_dealer + of_owner, MATERIAL")
    ],
    "inference_material": [
        ("inference_material", 'b"", number.to_bytes(8, "big")', 'b"", number.to_bytes(8, "little")'),
        ("inference_material", 'from_bytes(half, "little")', 'from_bytes(half, "big")'),
        ("inference_material", "if rank not in receivers", "if rank in receivers"),
        (
            "inference_material",
            "for column in range(size)\n        for row in range(rows)",
            "for row in range(rows)\n        for column in range(size)",
        ),
        ("inference_material", "* 2**16 // 2**bits for word in sums", "% 2**16 for word in sums"),
        ("inference_material", "[1, place % 2**slope]", "[1, place]"),
        ("inference_material", "word - 2**bits if word >> (bits - 1) else word", "word"),
    ],
    "inference_trees": [
        ("inference_trees", "EVEN = 2**128 - 2", "EVEN = 2**128 - 2 - 2**64"),
        ("inference_trees", "(side == bit)", "(side == 1)"),
        ("inference_trees", "hashed(2 + bit, seed)", "hashed(2, seed)"),
        ("inference_trees", "return signed(total, rank)", "return total"),
        ("inference_trees", "% 2**words", "% 2**32"),
    ],
    "inference_waves": [
        ("inference_waves", "- b * cosine, 0)", "+ b * cosine, 0)"),
        ("inference_waves", "27146 * ends[-1] // 2**16", "round(0.4142 * ends[-1])"),
        ("inference_waves", "(cosine + 2**49) // 2**50", "cosine // 2**50"),
        (
            "inference_waves",
            'max(end * 2**slope * inverse["unit"], inverse["unit"])',
            'end * 2**slope * inverse["unit"]',
        ),
    ],
    "transcript_adaptation_bad": [("adaptation_terms", 'sizes | {"classes": c}', "sizes")],
    "adaptation_terms_bad_value": [("adaptation_terms", 'in (0, found["sizes"]["blocks"])', "in range(257)")],
}
"""By the vectors that show it: module, its text, and a misreading of the specification in its place."""


def test_every_misreading_is_of_a_line_that_stands_there_once() -> None:
    for module, text, _ in (error for errors in MISREAD.values() for error in errors):
        assert (HERE / f"{module}.py").read_text(encoding="utf-8").count(text) == 1, text


@pytest.mark.exhaustive
def test_finds_every_misreading_of_the_specification(tmp_path: Path) -> None:
    jobs = []
    planted = [(vector, *error) for vector, errors in MISREAD.items() for error in errors]
    for number, (vector, module, text, misread) in enumerate(planted):
        changed, vectors = tmp_path / f"{number}" / "changed", tmp_path / f"{number}" / "vectors"
        changed.mkdir(parents=True)
        vectors.mkdir()
        source = (HERE / f"{module}.py").read_text(encoding="utf-8")
        (changed / f"{module}.py").write_text(source.replace(text, misread), encoding="utf-8")
        shutil.copy(VECTORS / f"{vector}.json", vectors)
        jobs.append((changed, vectors))
    found = [
        status == 1 and re.search(r"\.json: (computation|step) ", output) is not None
        for status, output in verify(*jobs)
    ]
    assert [error for error, was_found in zip(planted, found, strict=True) if not was_found] == []

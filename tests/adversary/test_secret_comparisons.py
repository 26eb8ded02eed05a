"""Secrets are compared in constant time: `==` would tell by its duration how many of the first bytes agree.

The sources of the packages that handle secrets are walked for comparisons in which a secret takes part: something that
is named like one, or was assigned from an expression with one. Sizes, shapes, names and public halves are none.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.cases import cases

ROOT = Path(__file__).parents[2]
FOLDERS = ("secagg", "protocol", "parties")
WORDS = {"private", "secret", "seed", "share", "key", "tag", "commitment", "mask", "password"}
"""A name is a secret's if one of its words is one of these, or their plural."""
MEASURES = {"len", "type", "isinstance", "np.shape", "range"}
"""What these say of a secret is public."""

ALLOWED = {
    ("protocol/core/roster.py", "key in holder_of_key"): "the public keys of a roster",
    ("protocol/core/roster.py", "self.operator in holder_of_key"): "the public keys of a roster and of its operator",
    ("protocol/group_key/keeper.py", "message.channel_key in map(channel_key_of, self._commits.values())"): (
        "the public keys that members advertised"
    ),
    ("protocol/group_key/holder.py", "order.former not in self._keys"): "the epochs of keys that this client holds",
    ("parties/runs/experiment.py", "rule.key == 'aggregation.clip'"): "the name of a setting",
    (
        "protocol/sum/policy.py",
        "getattr(proposed.configuration, field) in accepted",
    ): "a setting, by the name of its key",
    ("parties/runs/experiment.py", "str(type(section).__struct_config__.tag) == key.choice"): "the name of a setting",
    ("parties/learning/policy.py", "key not in pinnable()"): "the name of a setting that a policy pins",
    ("parties/learning/policy.py", "key in policy.least"): "the name of a setting that a policy pins",
    ("parties/protections/fedrsm.py", "protection.mask == 'lowest'"): "a setting",
    ("parties/protections/fedcg.py", "entry.name not in self._private"): "names of tensors that stay with their client",
    ("parties/protections/fedcg.py", "0 in found"): (
        "whether a client's vector has any weight, by the server that sees it"
    ),
    ("protocol/sum/sharing.py", "digest(SumLabel.SEED, agreement.context, seed) != commitment"): (
        "the server compares a seed that was opened to it with a commitment that it was sent: it knows both"
    ),
    ("protocol/sum/server.py", "owner not in known"): "the number of a member",
    ("protocol/core/roster.py", "_curve_public(self.curve_secret) != self.curve_public"): (
        "two public keys: the one made of the secret, and the one beside it in the owner's own file"
    ),
    (
        "protocol/core/roster.py",
        "_signing_public(self.signing_secret) != self.signing_public",
    ): "two public keys, as above",
    ("protocol/session/one_sum.py", "keys.member('client') not in roster.members"): (
        "a member of a roster has public keys only"
    ),
    ("protocol/core/roster.py", "heir.signing_keys[:len(former.signing_keys)] != former.signing_keys"): (
        "the public keys of two versions of a roster"
    ),
    ("parties/links/roster.py", "key != card.signing_public"): "the public keys of a roster and of a card",
    ("parties/links/roster.py", "card.signing_public in one.signing_keys"): "the public keys of a roster and of a card",
    ("protocol/core/roster.py", "self.standby in (self.operator, *holder_of_key)"): "the public keys of a roster",
    ("parties/session/server.py", "roster.server.signing_keys != settings.roster.server.signing_keys"): (
        "the public keys of two versions of a roster"
    ),
    ("parties/links/tokens.py", "found.signing not in {signing, *map(encode_key, earlier)}"): (
        "the public keys of a member"
    ),
}
"""Comparisons of values that are public, or known to whoever compares and to nobody who could watch."""

pytestmark = pytest.mark.threat("server/curious-log", "client/curious-log")


def is_secret(node: ast.AST, tainted: set[str]) -> bool:
    """Whether the value of an expression depends on a secret in more than its size."""
    if isinstance(node, ast.Name):
        return node.id in tainted or names_a_secret(node.id)
    if isinstance(node, ast.Attribute):
        return names_a_secret(node.attr)
    if isinstance(node, ast.Call):
        if ast.unparse(node.func) in MEASURES:
            return False
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        values = [*receiver, *node.args, *(keyword.value for keyword in node.keywords)]
        return any(is_secret(value, tainted) for value in values)
    return any(is_secret(child, tainted) for child in ast.iter_child_nodes(node))


def names_a_secret(name: str) -> bool:
    words = {word.removesuffix("s") for word in name.lower().strip("_").split("_")}
    return not name.isupper() and "public" not in words and bool(words & WORDS)


@cache
def comparisons(source: str) -> list[str]:
    """The comparisons for equality or membership in which a secret takes part."""
    found: dict[int, str] = {}
    for scope in ast.walk(ast.parse(source)):
        if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        tainted: set[str] = set()
        assignments = [node for node in ast.walk(scope) if isinstance(node, ast.Assign)]
        for node in sorted(assignments, key=lambda node: node.lineno):
            if not isinstance(scope, ast.Module) and is_secret(node.value, tainted):
                tainted |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(scope):
            if (
                isinstance(node, ast.Compare)
                and any(isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for operator in node.ops)
                and any(is_secret(operand, tainted) for operand in (node.left, *node.comparators))
            ):
                found[id(node)] = ast.unparse(node)
    return list(found.values())


@cases("folder", FOLDERS)
def test_no_secret_is_compared_with_an_operator(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for comparison in comparisons(path.read_text(encoding="utf-8")):
            assert (name, comparison) in ALLOWED, f"{name}: {comparison}: use hmac.compare_digest, or say why not"


def test_every_exception_is_still_needed() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), comparison)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for comparison in comparisons(path.read_text(encoding="utf-8"))
    }
    assert found == ALLOWED.keys()


def test_the_check_of_a_share_would_be_found() -> None:
    """The one comparison of secrets there is, if it were made with an operator."""
    source = (ROOT / "protocol/sum/sharing.py").read_text(encoding="utf-8")
    careless = source.replace("hmac.compare_digest(expected, packet[start : start + KEY_BYTES])", "expected == x")
    assert careless != source
    assert set(comparisons(careless)) - set(comparisons(source)) == {"expected == x"}


@cases(
    ("body", "found"),
    [
        ("return seed == given", True),
        ("return self._mask_key.private != given", True),
        ("return given in shares", True),
        ("return digest(label, share) == given", True),
        ("return shares[owner] == given", True),
        ("expected = commit(share)\n    return expected == given", True),
        ("first = derive(seed)\n    second = first[:8]\n    return second == given", True),
        ("return len(seed) == 32", False),
        ("return shares.shape == given", False),
        ("return key.public == given", False),
        ("return KEY_BYTES == given", False),
        ("return hmac.compare_digest(seed, given)", False),
        ("return seed is None", False),
    ],
)
def test_what_counts_as_a_comparison_of_secrets(body: str, found: bool) -> None:
    assert bool(comparisons(f"def function():\n    {body}\n")) is found

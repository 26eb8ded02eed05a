"""Defects are planted where they are said to be, one at a time; tests that run their line are found, and judge."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.campaign import candidates
from tests.mutants.excused import excused
from tests.mutants.forked import Job, Limit, run
from tests.mutants.operators import defects, planted
from tests.mutants.planted import NotPlantable, loaded, plant

SOURCE = '''
def choose(a: int, b: int = 2) -> int:
    """What a number 5 in a docstring says does not matter."""
    if a < b and not ready:
        check(a, text=f"{a - 1}")
    if ready:
        raise ValueError(f"{a + 1}")
    return a % 3 if a in (1,) else a << b

@dataclass(frozen=True)
class Message:
    size: Annotated[int, Meta(ge=0)]
    kind: A | B = field(kw_only=True, repr=False)
    def __init__(self):
        self.known = {}
    def grow(self, octets: Bytes[4]):
        self.size = len(octets.reshape(-1, 4))
        self.size += 1
        del self.known[octets]
    def __repr__(self):
        return 1
'''
EXPECTED = {
    (2, "2 becomes 3", "b: int=3"),
    (4, "Lt becomes LtE", "if a <= b and"),
    (4, "not is left out", "if a < b and ready:"),
    (4, "and becomes or", "if a < b or not"),
    (5, "the call is left out", "pass"),
    (6, "the condition is negated", "if not ready:"),
    (7, "the raise is left out", "pass"),
    (8, "Mod becomes Mult", "return a * 3"),
    (8, "3 becomes 4", "a % 4"),
    (8, "In becomes NotIn", "a not in (1,)"),
    (8, "1 becomes 2", "a in (2,)"),
    (8, "LShift becomes RShift", "a >> b"),
    (12, "0 becomes 1", "Meta(ge=1)"),
    (13, "False becomes True", "repr=True"),
    (17, "the assignment is left out", "pass"),
    (18, "1 becomes 2", "+= 2"),
    (18, "the assignment is left out", "pass"),
    (19, "the del is left out", "pass"),
}


def test_every_defect_is_planted_once_and_alone() -> None:
    found = list(defects(SOURCE))
    assert [defect.number for defect in found] == list(range(len(found)))
    assert {(defect.line, defect.description) for defect in found} == {expected[:2] for expected in EXPECTED}
    texts = {(line, description): text for line, description, text in EXPECTED}
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    for defect in found:
        spoiled = ast.unparse(planted(SOURCE, defect.number)).splitlines()
        differences = [(was, now) for was, now in zip(whole, spoiled, strict=True) if was != now]
        assert len(differences) == 1, defect
        assert texts[defect.line, defect.description] in differences[0][1]


def test_code_is_exchanged_in_a_loaded_module_also_for_who_has_a_function_by_name(tmp_path: Path) -> None:
    source = tmp_path / "loaded_module.py"
    source.write_text("from functools import cache\nLIMIT = 3\n@cache\ndef more(n):\n    return n + LIMIT\n")
    spec = importlib.util.spec_from_file_location("loaded_module", source)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    more = module.more
    assert more(5) == 8
    into = loaded({str(source)})
    with pytest.raises(NotPlantable):
        plant(into, str(source), 0)
    assert more(5) == 8
    plant(into, str(source), 1)
    assert more(5) == 2


def children() -> set[str]:
    return {child for task in Path("/proc/self/task").iterdir() for child in (task / "children").read_text().split()}


def test_a_child_ends_by_its_result_or_by_a_limit_and_leaves_nothing(tmp_path: Path) -> None:
    def burn() -> str:
        while True:
            pass

    def hang() -> str:
        time.sleep(60)
        return ""

    def die() -> str:
        os._exit(3)

    def spoil() -> str:
        SPOILT.append(1)
        print("not on the screen")
        return "done"

    # Other tests of this process may have left some.
    before = children()
    jobs = [
        Job("result", spoil, 30.0, 60.0),
        Job("processor", burn, 0.0, 600.0),
        Job("clock", hang, 30.0, 0.5),
        Job("death", die, 30.0, 60.0),
    ]
    assert dict(run(jobs, 4)) == {
        "result": "done",
        "processor": Limit.PROCESSOR,
        "clock": Limit.CLOCK,
        "death": Limit.DIED,
    }
    assert not SPOILT
    assert children() == before


SPOILT: list[int] = []


def test_an_exception_in_a_child_is_no_result() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)the job: .*ZeroDivisionError"):
        list(run([Job("the job", lambda: str(1 // 0), 30.0, 60.0)], 1))


MACHINE = "tacit.protocol.core.machine"
VERDICTS = {
    ("cls.outputs = cls.outputs if outputs is None", "Is becomes IsNot"): ["survives", ""],
    ("if isinstance(row, Row) and not callable", "and becomes or"): ["noticed", "collection"],
    ("has no handler", "the raise is left out"): ["noticed", "test"],
    ("self.ignored = 0", "0 becomes 1"): ["no test runs it", ""],
}
"""By what stands in the line of the defect, and its description."""
CAMPAIGN = """
import json, sys
from pathlib import Path
from tests.mutants.campaign import Campaign, candidates

module, test, wanted = json.loads(sys.argv[1])
found = {}
for one in candidates([module]):
    line = Path(one.file).read_text("utf-8").splitlines()[one.defect.line - 1]
    for number, (text, description) in enumerate(wanted):
        if text in line and one.defect.description == description:
            found[one] = number
judged = Campaign(list(found), 2, [test]).run(lambda text: None)
print(json.dumps({found[one.candidate]: [one.verdict, "test" if one.by == test else one.by] for one in judged}))
"""


@pytest.mark.exhaustive
@pytest.mark.end_to_end
def test_tests_that_meet_a_defect_notice_it_and_others_do_not() -> None:
    """One test, of what is refused when a machine's class is made."""
    test = "tests/protocol/core/test_machine.py::test_names_in_a_table_that_are_none_fail_when_the_class_is_made"
    given = json.dumps([MACHINE, test, list(VERDICTS)])
    done = subprocess.run([sys.executable, "-c", CAMPAIGN, given], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {str(number): verdict for number, verdict in enumerate(VERDICTS.values())}


def test_what_changed_is_judged_where_secrecy_hangs_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("secagg/ring.py", "secagg/graph.py", "secagg/__init__.py", "protocol/core/link.py"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("LIMIT = 1\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run([*git, *arguments], check=True)
    assert command.modules(None) == ["tacit.secagg.graph", "tacit.secagg.ring"]
    assert command.modules("HEAD") == []
    Path("secagg/ring.py").write_text("LIMIT = 2\n")
    Path("protocol/core/link.py").write_text("LIMIT = 2\n")
    assert command.modules("HEAD") == ["tacit.secagg.ring"]


def test_single_defects_can_be_named() -> None:
    found = command.chosen(["tacit.secagg.ring:3", "tacit.secagg.graph", "tacit.secagg.ring:0"])
    assert [one.defect.number for one in found if one.module == "tacit.secagg.ring"] == [0, 3]
    assert [one for one in found if one.module == "tacit.secagg.graph"] == list(candidates(["tacit.secagg.graph"]))


def test_only_defects_that_there_are_are_excused() -> None:
    planted_now = {
        (
            found.module,
            Path(found.file).read_text("utf-8").splitlines()[found.defect.line - 1].strip(),
            found.defect.description,
        )
        for found in candidates(sorted({module for module, _, _ in excused()}))
    }
    assert excused().keys() <= planted_now
    assert all(excused().values())

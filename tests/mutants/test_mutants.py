"""Tests that run the line of a planted defect are found, and judge."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.campaign import candidates
from tests.mutants.excused import excused

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

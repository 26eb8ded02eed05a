"""Defects are planted where they are said to be, one at a time; tests that run their line are found, and judge."""

import ast

import pytest

from tests.mutants.campaign import Candidate, Score, Verdict, candidates, judge, sample, scores
from tests.mutants.operators import Defect, defects, planted
from tests.mutants.selection import Selection

SOURCE = '''
def choose(a: int, b: int = 2) -> int:
    """What a number 5 in a docstring says does not matter."""
    if a < b and not ready:
        check(a)
    if ready:
        raise ValueError(f"{a + 1}")
    return a % 3 if a in (1,) else a << b
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


@pytest.mark.parametrize("number", [-1, len(EXPECTED)])
def test_there_are_no_other_defects(number: int) -> None:
    with pytest.raises(IndexError, match=f"none of number {number}"):
        planted(SOURCE, number)


def test_the_fastest_tests_of_a_line_come_first_and_not_more_than_there_is_time_for() -> None:
    selection = Selection({("a.py", 3): frozenset("xyz")}, {"x": 5.0, "y": 1.0, "z": 100.0})
    assert selection.of("a.py", 3, 10.0) == ["y", "x"]
    assert selection.of("a.py", 3, 0.0) == ["y"]
    assert selection.of("a.py", 4, 10.0) == []


def test_a_sample_follows_from_its_seed_and_keeps_the_order() -> None:
    found = [Candidate("m", "m.py", Defect(number, number, "")) for number in range(50)]
    assert sample(found, 50, 1) == found
    chosen = sample(found, 10, 1)
    assert (len(chosen), chosen) == (10, sorted(chosen, key=lambda one: one.defect.number))
    assert chosen == sample(found, 10, 1) != sample(found, 10, 2)


GOOD = "tests/secagg/test_counting.py"


def judged(module: str, *tests: str) -> Verdict:
    """A comparison of this module that is off by one, by these tests."""
    found = next(one for one in candidates([module]) if " becomes " in one.defect.description)
    return judge(found, Selection({(found.file, found.defect.line): frozenset(tests)}, dict.fromkeys(tests, 1.0)))


def test_only_tests_that_meet_a_defect_notice_it() -> None:
    """Tests of the packing of counts notice one there, and none in the graphs, which they do not use."""
    met, not_met, not_run = (
        judged("tacit.secagg.counting", GOOD),
        judged("tacit.secagg.graph", GOOD),
        judged("tacit.secagg.graph"),
    )
    assert [(verdict.noticed, verdict.tests) for verdict in (met, not_met, not_run)] == [
        (True, 1),
        (False, 1),
        (False, 0),
    ]
    assert scores([met, not_met, not_run]) == {"tacit.secagg.counting": Score(1, 1), "tacit.secagg.graph": Score(0, 2)}

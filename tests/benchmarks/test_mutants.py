"""Mutants: places that mean something, samples that are found again, and what kills one."""

import subprocess
import warnings
from pathlib import Path

import pytest

from benchmarks import mutants
from benchmarks.mutants_places import Mutant, drawn, found_again, mutants_of
from benchmarks.mutants_runs import RunError, statement_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("cosmic_ray", reason=mutants.INSTALL)
    pytest.importorskip("coverage", reason=mutants.INSTALL)

MEANINGLESS = '''
"""Docstring: 1 + 1 is not 3."""
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    LIMIT = 1 + 2
__all__ = [*("a", "b")][0:2]
Either = int | None
@dataclass(frozen=True)
class Value:
    x: "dict[int, tuple[()]] | None" = None
    y: int | float | None = None
def paired(a: int | str, *, b: list[int] | None = None) -> int | None:
    assert a == b
    return list(zip(a, b, strict=True))
if __name__ == "__main__":
    paired(1, b=2)
'''
TOY = """
def larger(a, b):
    return a if a > b else b


def area(width, height):
    return (
        width
        * height
    )


def never(value):
    return value + 1
"""
TOY_TESTS = """
from toy import area, larger


def test_the_larger_of_two_is_returned():
    assert (larger(1, 2), larger(2, 1)) == (2, 2)


def test_an_area_without_a_side_is_nothing():
    assert area(0, 5) == 0
"""


def text_of(source: str):
    return lambda path: source


def test_places_without_a_meaning_are_left_out():
    assert mutants_of("toy", "toy.py", MEANINGLESS) == []
    source = MEANINGLESS + "total = 'é', 1 + LIMIT\n"
    remaining = mutants_of("toy", "toy.py", source)
    assert {(mutant.operator, mutant.before, mutant.occurrence) for mutant in remaining} == {
        ("ReplaceBinaryOperator_Add_Sub", "total = 'é', 1 + LIMIT", 0),
        ("NumberReplacer", "total = 'é', 1 + LIMIT", 0),
        ("NumberReplacer", "total = 'é', 1 + LIMIT", 1),
    }


def test_a_sample_is_the_same_every_time_and_after_imports_have_changed():
    candidates = mutants_of("toy", "toy.py", TOY)
    sample = drawn(candidates, 3, 0, text_of(TOY))
    assert len({mutant.line for mutant in sample}) == 3
    assert drawn(candidates[::-1], 3, 0, text_of(TOY)) == sample
    moved = "import a\nfrom b import c\n" + TOY
    later = drawn(mutants_of("elsewhere", "other/toy.py", moved), 3, 0, text_of(moved))
    assert [mutant.place for mutant in later] == [mutant.place for mutant in sample]
    assert [mutant.line for mutant in later] == [mutant.line + 2 for mutant in sample]


def test_a_mutant_is_found_where_its_line_has_moved_and_not_where_it_has_changed():
    wanted = drawn(mutants_of("toy", "toy.py", TOY), 1, 0, text_of(TOY))[0]
    moved = "def first(a):\n    return a > 1\n" + TOY
    others = mutants_of("toy", "deeper/toy.py", TOY)
    relocated = found_again(wanted, [*others, *mutants_of("toy", "toy.py", moved)])
    assert relocated is not None
    assert (relocated.path, relocated.line) == ("toy.py", wanted.line + 2)
    away = found_again(wanted, others)
    assert away is not None
    assert away.path == "deeper/toy.py"
    assert (
        found_again(wanted, mutants_of("toy", "toy.py", TOY.replace(wanted.before, "pass"))) is None
    )


def test_a_statement_is_all_of_its_lines_and_of_a_compound_one_the_head():
    assert list(statement_of(TOY, 8)) == [7, 8, 9, 10]
    assert list(statement_of("if (\n    a\n):\n    b\nelse:\n    c\n", 2)) == [1, 2, 3]


def toy(folder: Path) -> tuple[mutants.Package, dict[str, Mutant]]:
    """A repository with two functions that a test looks at and one that none does."""
    (folder / "toy.py").write_text(TOY)
    (folder / "test_toy.py").write_text(TOY_TESTS)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    candidates = mutants_of("toy.py", "toy.py", TOY)
    named = {f"{mutant.line} {mutant.operator}": mutant for mutant in candidates}
    return mutants.Package(source="toy.py", near=("test_toy.py",)), named


def test_a_mutant_that_a_test_notices_is_killed_and_the_others_survive(tmp_path: Path):
    package, named = toy(tmp_path)
    shown = [
        named["3 ReplaceComparisonOperator_Gt_Lt"],
        named["9 ReplaceBinaryOperator_Mul_Div"],
        named["14 ReplaceBinaryOperator_Add_Sub"],
    ]
    output = tmp_path / "results.jsonl"
    results = mutants.measured(tmp_path, [package], shown, output)
    assert [(result["outcome"], result["files"]) for result in results] == [
        ("killed", 1),
        ("survived", 1),
        ("survived", 0),
    ]
    assert (tmp_path / "toy.py").read_text() == TOY
    assert mutants.measured(tmp_path, [package], shown, output) == results
    told = mutants.lines(results)
    assert told[1].split() == ["toy.py", "3", "1", "0", "2", "33%", told[1].split()[-1]]
    assert told[-1] == "  no test reaches it"
    (tmp_path / "toy.py").write_text(TOY + "\n")
    with pytest.raises(RunError, match="other code"):
        mutants.measured(tmp_path, [package], shown, output)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["planner/none", "-o", "x"], "no package `planner/none`"),
        (["-o", "x", "--per-package", "0"], "--per-package 0"),
        (["-o", "x", "--only", "none.json"], "no file `none.json`"),
        (["-o", "none/x"], "no folder `none`"),
        (["--seed", "x"], "--seed"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    with pytest.raises(SystemExit) as stop:
        mutants.main(arguments)
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1

"""Repositories made by mutation: one place changed, hidden tests that see it, edits that undo it."""

import ast
import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.host import needs_sandbox

from cascade_rl.cli import main
from cascade_rl.errors import DataError
from cascade_rl.eval.audit import audit_task
from cascade_rl.tasks.swe.made import TEST_PATH, MadeRepositories
from cascade_rl.tasks.swe.make import changed_lines, is_made_file
from cascade_rl.tasks.swe.mutate import mutants

# name -> code, tests (call, value)
FUNCTIONS = {
    "plus_two": ("def plus_two(x):\n    return x + 2", (("plus_two(1)", 3), ("plus_two(-2)", 0), ("plus_two(0)", 2))),
    "sign": (
        "def sign(x):\n    if x > 0:\n        return 1\n    return -1 if x < 0 else 0",
        (("sign(5)", 1), ("sign(-5)", -1), ("sign(0)", 0)),
    ),
    "evens": (
        "def evens(xs):\n    return [x for x in xs if x % 2 == 0]",
        (("evens([1, 2, 4])", [2, 4]), ("evens([])", []), ("set(evens([2, 2]))", {2})),
    ),
    "same": ("def same(x):\n    return x", (("same(1)", 1),)),
}


def mbpp_file(folder: Path) -> Path:
    rows = []
    for number, (name, (code, tests)) in enumerate(FUNCTIONS.items()):
        asserts = [f"assert {call} == {value!r}" for call, value in tests]
        rows.append({"task_id": 600 + number, "text": f"Write a function {name}.", "code": code, "test_list": asserts})
    path = folder / "mbpp.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    assert main(["mutate", str(mbpp_file(folder)), "--out", str(folder / "rows.jsonl"), "--functions-each", "2"]) == 0
    return folder / "rows.jsonl"


@needs_sandbox
def test_it_writes_over_no_file_but_its_own(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert is_made_file(made)
    functions = mbpp_file(tmp_path)
    before = functions.read_bytes()
    assert main(["mutate", str(functions), "--out", str(functions)]) == 1
    assert "is there already, and no file that `cascade mutate` wrote" in capsys.readouterr().err
    assert functions.read_bytes() == before
    assert main(["mutate", str(functions), "--out", str(tmp_path / "none" / "rows.jsonl")]) == 1
    assert "must be a file in a folder that is there" in capsys.readouterr().err


def test_a_mutant_differs_in_one_place_and_is_python() -> None:
    code = "def f(xs, y):\n    if not xs and y in xs:\n        return max(xs) * 2\n    return True"
    found = mutants(code, random.Random(0))
    assert found == mutants(code, random.Random(0))
    assert found != mutants(code, random.Random(1))
    assert sorted(found) == sorted(mutants(code, random.Random(1)))
    pristine = ast.unparse(ast.parse(code))
    for text in found:
        ast.parse(text)
        assert sum(a != b for a, b in zip(text.split("\n"), pristine.split("\n"), strict=True)) == 1
    bodies = {line.strip() for text in found for line in text.split("\n")}
    for told in ("return min(xs) * 2", "return max(xs) + 2", "return max(xs) * 3", "return False", "if not xs or y in xs:"):
        assert told in bodies
    assert not mutants("def f(x):\n    return x", random.Random(0))


@pytest.mark.parametrize(
    ("before", "after", "edit"),
    [
        ("a\nb\nc", "a\nB\nc", ("b", "B")),
        ("a\nx\nb\nx\nc", "a\nx\nb\nX\nc", ("b\nx", "b\nX")),  # alone it would stand twice
        ("x\nx", "X\nx", ("x\nx", "X\nx")),
        ("a", "b", ("a", "b")),
        ("a\nb", "a\nb\nc", ("b", "b\nc")),
    ],
)
def test_the_lines_that_an_edit_replaces(before: str, after: str, edit: tuple[str, str]) -> None:
    old, new = changed_lines(before, after)
    assert before.replace(old, new, 1) == after
    if before.count(edit[0]) == 1:
        assert (old, new) == edit


@needs_sandbox
@pytest.mark.parametrize("answer", ["tools", "patch"])
def test_rows_hide_what_the_fault_fails_and_gold_undoes_it(made: Path, answer: Any) -> None:
    rows = [json.loads(line) for line in made.read_text().splitlines()]
    assert {row["id"].split("-")[1] for row in rows} == {"plus_two", "sign", "evens"}  # `same` has nothing to change
    task = MadeRepositories(path=str(made), answer=answer, split="train")
    prompts = task.prompts("train")
    for prompt in prompts:
        visible = prompt.reference["files"][TEST_PATH]
        assert not any(test in visible for test in prompt.reference["fail_to_pass"])
        assert all(test in visible for test in prompt.reference["pass_to_pass"])
    report = audit_task(task, prompts)
    assert len(report.gold.full) == len(rows)
    assert not report.other_results
    assert report.false_pass_rates["empty"] == report.false_pass_rates["claims"] == 0


@needs_sandbox
def test_the_same_rows_each_time(made: Path, tmp_path: Path) -> None:
    assert main(["mutate", str(mbpp_file(tmp_path)), "--out", str(tmp_path / "rows.jsonl"), "--functions-each", "2"]) == 0
    assert (tmp_path / "rows.jsonl").read_bytes() == made.read_bytes()
    assert (
        main(["mutate", str(mbpp_file(tmp_path)), "--out", str(tmp_path / "other.jsonl"), "--functions-each", "2", "--seed", "1"])
        == 0
    )
    assert (tmp_path / "other.jsonl").read_bytes() != made.read_bytes()
    assert main(["mutate", str(mbpp_file(tmp_path)), "--out", str(tmp_path / "few.jsonl"), "--functions-each", "9"]) == 1


def test_faulty_rows_are_named(tmp_path: Path) -> None:
    row = {
        "files": {},
        "path": "a.py",
        "issue": "?",
        "old": "",
        "new": "",
        "modules": ["a"],
        "fail_to_pass": ["assert f(1)"],
        "pass_to_pass": [],
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError, match=r'rows.jsonl:1: "fail_to_pass" must hold assertions'):
        MadeRepositories(path=str(tmp_path / "rows.jsonl")).prompts("train")

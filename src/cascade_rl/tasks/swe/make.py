"""Repositories made by mutation, from functions with tests: what `cascade mutate` writes and the task "swe.made" reads.

Each function of a set in MBPP's layout becomes a module of a small repository beside a few others; one place of it is changed. The
tests that the change fails are FAIL_TO_PASS and hidden (the first stands in the issue, as a user would tell it), the others
PASS_TO_PASS. Whether a test fails is found by running it in the sandbox, once, here: reading the rows later runs nothing.
"""

import ast
import asyncio
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cascade_rl import strict_json
from cascade_rl.errors import DataError
from cascade_rl.grade.unit_tests import CallTest, grade_calls
from cascade_rl.records import Prompt
from cascade_rl.sandbox.process import Limits, SandboxPool
from cascade_rl.tasks.code import call_tests, code_block
from cascade_rl.tasks.swe.mutate import mutants

MAX_TRIES = 6  # mutants of a function that are run


@dataclass(frozen=True, slots=True)
class Module:
    """A function with its tests: name, what it does, its code as `ast.unparse` writes it, assertions of a call and a literal."""

    name: str
    says: str
    code: str
    tests: tuple[str, ...]


def modules_of(prompts: Sequence[Prompt]) -> list[Module]:
    """The functions of an MBPP task whose names can be modules' names, one of each name."""
    found: dict[str, Module] = {}
    for prompt in prompts:
        name, tests = prompt.reference["name"], tuple(prompt.reference["tests"])
        usable = (
            name.isidentifier() and name.lower() not in {known.lower() for known in found} and name not in sys.stdlib_module_names
        )
        if usable and not prompt.reference["setup"]:
            code = ast.unparse(ast.parse(code_block(prompt.gold[0].content)))
            found[name] = Module(name, prompt.messages[0].content.split("\n")[0], code, tests)
    return list(found.values())


async def make_rows(
    modules: Sequence[Module], per_repository: int, seed: int, pool: SandboxPool
) -> tuple[list[dict[str, Any]], int]:
    """A row for each function with a change that fails some test of its own; and how many have none. Raises DataError."""
    if len(modules) < per_repository:
        raise DataError(f"mutate: {len(modules)} functions are too few for repositories of {per_repository}")
    turns = asyncio.Semaphore(2 * pool.size)

    async def tried(module: Module) -> tuple[str, list[str]] | None:
        async with turns:
            return await _broken(module, random.Random(f"{seed}/{module.name}"), pool)

    rows, num_without = [], 0
    for number, (module, broken) in enumerate(zip(modules, await asyncio.gather(*map(tried, modules)), strict=True)):
        if broken is None:
            num_without += 1
            continue
        rng = random.Random(f"{seed}/beside/{module.name}")
        code, failed = broken
        others = rng.sample([other for other in modules if other is not module], per_repository - 1)
        beside = sorted([module, *others], key=lambda each: each.name)
        files = {f"{each.name}.py": code if each is module else each.code for each in beside}
        passing = [test for each in beside for test in each.tests if each is not module or test not in failed]
        old, new = changed_lines(code, module.code)
        rows.append(
            {
                "id": f"{number}-{module.name}",
                "issue": _issue(module, failed[0]),
                "files": files,
                "path": f"{module.name}.py",
                "old": old,
                "new": new,
                "modules": [each.name for each in beside],
                "fail_to_pass": failed,
                "pass_to_pass": passing,
            }
        )
    return rows, num_without


async def _broken(module: Module, rng: random.Random, pool: SandboxPool) -> tuple[str, list[str]] | None:
    """The first mutant that fails a test by a wrong value or an error, and the tests that it fails; never by time, which is chance."""
    tests = call_tests(module.tests)
    assert tests is not None
    if await _outcomes(module.code, tests, pool) != [True] * len(tests):
        return None
    for code in mutants(module.code, rng)[:MAX_TRIES]:
        outcomes = await _outcomes(code, tests, pool)
        if outcomes is not None and not all(outcomes):
            return code, [test for test, passed in zip(module.tests, outcomes, strict=True) if not passed]
    return None


async def _outcomes(code: str, tests: Sequence[CallTest], pool: SandboxPool) -> list[bool] | None:
    """Whether each test passes, each in a run of its own; None where one ends by a limit, or cannot be told."""
    outcomes = []
    for test in tests:
        verdict = await grade_calls(code, [test], Limits(cpu_s=4), pool=pool)
        if verdict.kind not in ("passed", "wrong answer", "error"):
            return None
        outcomes.append(verdict.kind == "passed")
    return outcomes


def _issue(module: Module, failed: str) -> str:
    says = module.says[0].lower() + module.says[1:]
    return f"`{module.name}` is wrong. It was asked for as: {says}\nThis should hold, and does not:\n\n{failed}"


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ, with as many around them as it takes for the old ones to stand once: what an edit replaces by what."""
    old, new = before.split("\n"), after.split("\n")
    start = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    end = next((i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b), min(len(old), len(new)))
    end = min(end, len(old) - start - 1, len(new) - start - 1)
    while (start or end) and before.count("\n".join(old[start : len(old) - end])) != 1:
        start, end = (start - 1, end) if start else (start, end - 1)
    return "\n".join(old[start : len(old) - end]), "\n".join(new[start : len(new) - end])


def is_made_file(place: Path) -> bool:
    """Whether a file begins with a row that `cascade mutate` wrote."""
    try:
        with open(place, encoding="utf-8") as lines:
            row = strict_json.loads(next(lines, ""))
    except (OSError, ValueError):  # not to be read, no text, or no JSON
        return False
    return isinstance(row, dict) and row.keys() >= {"files", "path", "issue", "fail_to_pass", "pass_to_pass"}


def as_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"

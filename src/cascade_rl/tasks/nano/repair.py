"""Tiny repositories with one fault: some files as text and an issue; the answer is an edit, graded by running hidden tests.

The tests are calls whose values are compared outside of the sandbox (see `grade.unit_tests`). Those of the function at fault that
its fault fails are FAIL_TO_PASS, all others PASS_TO_PASS: any edit that passes them all is right, whatever it looks like.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_rl.errors import RecipeError
from cascade_rl.grade.patch import DIVIDE, REPLACE, SEARCH, PatchFault, apply_patch
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.code import CodeSettings
from cascade_rl.tasks.drawn import Draft, DrawnTask
from cascade_rl.tasks.swe.calls import grade_files


@dataclass(frozen=True, slots=True)
class Function:
    """A function with a fault: `Function("add", "a, b", "a + b", "a - b", lambda a, b, c: a + b, lambda a, b, c: a - b)`.

    right, wrong: its expression, a format over the constant c. compute, fault: what each gives.
    """

    name: str
    arguments: str
    right: str
    wrong: str
    compute: Callable[..., Any]
    fault: Callable[..., Any]


FUNCTIONS = (
    Function("add", "a, b", "a + b", "a - b", lambda a, b, c: a + b, lambda a, b, c: a - b),
    Function("sub", "a, b", "a - b", "a + b", lambda a, b, c: a - b, lambda a, b, c: a + b),
    Function("mul", "a, b", "a * b", "a + b", lambda a, b, c: a * b, lambda a, b, c: a + b),
    Function("over", "a, b", "a > b", "a < b", lambda a, b, c: a > b, lambda a, b, c: a < b),
    Function("under", "a, b", "a < b", "a > b", lambda a, b, c: a < b, lambda a, b, c: a > b),
    Function("same", "a, b", "a == b", "a != b", lambda a, b, c: a == b, lambda a, b, c: a != b),
    Function("big", "xs", "max(xs)", "min(xs)", lambda xs, c: max(xs), lambda xs, c: min(xs)),
    Function("small", "xs", "min(xs)", "max(xs)", lambda xs, c: min(xs), lambda xs, c: max(xs)),
    Function("total", "xs", "sum(xs)", "len(xs)", lambda xs, c: sum(xs), lambda xs, c: len(xs)),
    Function("size", "xs", "len(xs)", "sum(xs)", lambda xs, c: len(xs), lambda xs, c: sum(xs)),
    Function("first", "xs", "xs[0]", "xs[1]", lambda xs, c: xs[0], lambda xs, c: xs[1]),
    Function("last", "xs", "xs[-1]", "xs[0]", lambda xs, c: xs[-1], lambda xs, c: xs[0]),
    Function("loud", "s", "s.upper()", "s.lower()", lambda s, c: s.upper(), lambda s, c: s.lower()),
    Function("quiet", "s", "s.lower()", "s.upper()", lambda s, c: s.lower(), lambda s, c: s.upper()),
    Function("plus", "x", "x + {c}", "x - {c}", lambda x, c: x + c, lambda x, c: x - c),
    Function("times", "x", "x * {c}", "x + {c}", lambda x, c: x * c, lambda x, c: x + c),
)
_FILES = ("main.py", "util.py", "core.py", "data.py", "text.py", "shop.py")
ISSUES = (
    "{name} is wrong.",
    "{name} gives a wrong result.",
    "Please fix {name}.",
    "There is a bug in {name}.",
    "{name} does not work.",
)


@dataclass(frozen=True, kw_only=True)
class RepairTask(CodeSettings, DrawnTask):
    """One to `max_files` files of one to `max_functions` functions, one of them at fault; the issue names it.

    max_constant: the largest constant in a function.
    """

    max_files: int = 2
    max_functions: int = 2
    max_constant: int = 9
    thinking: bool = False
    time_limit_s: int = 1

    name: str = "nano.repair"
    domain: str = "swe"
    metric: ClassVar[str] = "resolved"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_files <= 3 or not 1 <= self.max_functions <= 4:
            raise RecipeError(
                f'task "{self.name}": max_files {self.max_files} must be 1 to 3 and max_functions {self.max_functions} 1 to 4'
            )

    def draw(self, rng: random.Random) -> Draft:
        broken = draw_repository(rng, self.max_files, self.max_functions, self.max_constant)
        listing = "\n".join(f"# {path}\n{text}" for path, text in broken.files.items())
        question = f"{listing}\nIssue: {rng.choice(ISSUES).format(name=broken.name)}"
        gold = f"{broken.path}\n{SEARCH}\n{broken.wrong}\n{DIVIDE}\n{broken.right}\n{REPLACE}"
        reference = {"files": broken.files, **broken.tests}
        return Draft([sorted(broken.files.items()), broken.name], question, (Message("assistant", gold),), reference, False)

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 when every hidden test passes in the edited files, else 0 (see `partial`)."""
        if refused := self.refuse(rollout.answer):
            return refused
        reference = rollout.prompt.reference
        try:
            edited = apply_patch(reference["files"], rollout.answer)
        except PatchFault as fault:
            return Reward(0.0, why=str(fault))
        return await grade_files(self, edited, reference["fail_to_pass"], reference["pass_to_pass"])


@dataclass(frozen=True, slots=True)
class Broken:
    """A repository with its fault: files (path -> text), the path, name and line at fault, the line that is right, hidden tests.

    tests: {"fail_to_pass": [[call, value], ...], "pass_to_pass": ...}; JSON values.
    """

    files: dict[str, str]
    path: str
    name: str
    wrong: str
    right: str
    tests: dict[str, list[list[Any]]]


def draw_repository(rng: random.Random, max_files: int, max_functions: int, max_constant: int) -> Broken:
    """A repository of the nano world; the faulty line stands only once in its file, so that it alone says what to replace."""
    paths = rng.sample(_FILES, rng.randint(1, max_files))
    counts = [rng.randint(1, max_functions) for _ in paths]
    owners = [path for path, count in zip(paths, counts, strict=True) for _ in range(count)]
    broken = rng.randrange(len(owners))
    at_fault = owners[broken]
    while True:
        functions = rng.sample(FUNCTIONS, len(owners))
        constant = rng.randint(2, max_constant)
        files = _files(owners, functions, constant, broken)
        wrong = _line(functions[broken].wrong, constant)
        if files[at_fault].splitlines().count(wrong) == 1:
            break
    tests: dict[str, list[list[Any]]] = {"fail_to_pass": [], "pass_to_pass": []}
    for number, (path, function) in enumerate(zip(owners, functions, strict=True)):
        for call, value, is_told_apart in fault_cases(function.name, constant if "{c}" in function.right else 0):
            kind = "fail_to_pass" if number == broken and is_told_apart else "pass_to_pass"
            tests[kind].append([f"{path.removesuffix('.py')}.{call}", value])
    return Broken(files, at_fault, functions[broken].name, wrong, _line(functions[broken].right, constant), tests)


@functools.lru_cache(maxsize=1024)
def fault_cases(name: str, constant: int) -> tuple[tuple[str, Any, bool], ...]:
    """(call, value, whether the fault gives another one) for some arguments; the same ones each time."""
    function = next(function for function in FUNCTIONS if function.name == name)
    rng = random.Random(f"{name}/{constant}")
    if function.arguments == "a, b":
        same = rng.randint(3, 40)
        arguments: list[tuple[Any, ...]] = [(rng.randint(2, 40), rng.randint(41, 90)), (rng.randint(41, 90), rng.randint(2, 40))]
        arguments += [(same, same), (0, rng.randint(2, 9))]
    elif function.arguments == "xs":
        arguments = [
            ([9, 2, 30, 4],),
            ([rng.randint(10, 40) for _ in range(3)] + [50],),
            ([7, 5, 1],),
            ([-3, rng.randint(2, 9)],),
        ]
    elif function.arguments == "s":
        arguments = [("aBc",), ("xY" * rng.randint(1, 3),), ("",)]
    else:
        arguments = [(0,), (1,), (constant,), (rng.randint(10, 90),), (-rng.randint(2, 9),)]
    cases = []
    for values in arguments:
        value = function.compute(*values, constant)
        cases.append((f"{name}({', '.join(map(repr, values))})", value, value != function.fault(*values, constant)))
    return tuple(cases)


def _files(owners: list[str], functions: list[Function], constant: int, broken: int) -> dict[str, str]:
    """Path -> text; function number `broken` has its fault."""
    files: dict[str, list[str]] = {}
    for number, (path, function) in enumerate(zip(owners, functions, strict=True)):
        expression = function.wrong if number == broken else function.right
        files.setdefault(path, []).extend([f"def {function.name}({function.arguments}):", _line(expression, constant)])
    return {path: "\n".join(lines) for path, lines in files.items()}


def _line(expression: str, constant: int) -> str:
    return f"    return {expression.format(c=constant)}"

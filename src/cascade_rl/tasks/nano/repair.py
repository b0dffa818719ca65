"""Tiny repositories with one fault: some files as text and an issue; the answer is a search/replace edit.

Nothing is executed here. The verdict applies the edit and asks whether the files are the original ones again.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cascade_rl.errors import RecipeError
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.drawn import Draft, DrawnTask, verdict

SEARCH, DIVIDE, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"

# name, arguments, right expression, wrong expression
FUNCTIONS = (
    ("add", "a, b", "a + b", "a - b"),
    ("sub", "a, b", "a - b", "a + b"),
    ("mul", "a, b", "a * b", "a + b"),
    ("over", "a, b", "a > b", "a < b"),
    ("under", "a, b", "a < b", "a > b"),
    ("same", "a, b", "a == b", "a != b"),
    ("big", "xs", "max(xs)", "min(xs)"),
    ("small", "xs", "min(xs)", "max(xs)"),
    ("total", "xs", "sum(xs)", "len(xs)"),
    ("size", "xs", "len(xs)", "sum(xs)"),
    ("first", "xs", "xs[0]", "xs[1]"),
    ("last", "xs", "xs[-1]", "xs[0]"),
    ("loud", "s", "s.upper()", "s.lower()"),
    ("quiet", "s", "s.lower()", "s.upper()"),
    ("plus", "x", "x + {c}", "x - {c}"),
    ("times", "x", "x * {c}", "x + {c}"),
)
_FILES = ("main.py", "util.py", "core.py", "data.py", "text.py", "shop.py")
_ISSUES = (
    "{name} is wrong.",
    "{name} gives a wrong result.",
    "Please fix {name}.",
    "There is a bug in {name}.",
    "{name} does not work.",
)


@dataclass(frozen=True, kw_only=True)
class RepairTask(DrawnTask):
    """One to `max_files` files of one to `max_functions` functions, one of them at fault; the issue names it.

    max_constant: the largest constant in a function.
    """

    max_files: int = 2
    max_functions: int = 2
    max_constant: int = 9
    thinking: bool = False

    name: str = "nano.repair"
    domain: str = "swe"
    metric: ClassVar[str] = "restored"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.max_files <= 3 or not 1 <= self.max_functions <= 4:
            raise RecipeError(
                f'task "{self.name}": max_files {self.max_files} must be 1 to 3 and max_functions {self.max_functions} 1 to 4'
            )

    def draw(self, rng: random.Random) -> Draft:
        paths = rng.sample(_FILES, rng.randint(1, self.max_files))
        counts = [rng.randint(1, self.max_functions) for _ in paths]
        owners = [path for path, count in zip(paths, counts, strict=True) for _ in range(count)]
        broken = rng.randrange(len(owners))
        at_fault = owners[broken]
        while True:  # until the faulty line stands only once in its file, so that it alone says what to replace
            functions = rng.sample(FUNCTIONS, len(owners))
            constant = rng.randint(2, self.max_constant)
            before = _files(owners, functions, constant, broken)
            wrong = _line(functions[broken][3], constant)
            if before[at_fault].splitlines().count(wrong) == 1:
                break
        after = _files(owners, functions, constant)
        name, _, right, _ = functions[broken]
        listing = "\n".join(f"# {path}\n{text}" for path, text in before.items())
        question = f"{listing}\nIssue: {rng.choice(_ISSUES).format(name=name)}"
        gold = f"{at_fault}\n{SEARCH}\n{wrong}\n{DIVIDE}\n{_line(right, constant)}\n{REPLACE}"
        reference = {"before": before, "after": after}
        return Draft([sorted(before.items()), name], question, (Message("assistant", gold),), reference, False)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        reference = rollout.prompt.reference
        edited, why = apply_edit(reference["before"], answer)
        if edited is None:
            return verdict(False, why)
        restored = edited == reference["after"]
        return verdict(restored, "the original files again" if restored else "applies, but does not give the original files")


def _files(owners: list[str], functions: list[tuple[str, str, str, str]], constant: int, broken: int = -1) -> dict[str, str]:
    """Path -> text; function number `broken` has its fault."""
    files: dict[str, list[str]] = {}
    for number, (path, (name, arguments, right, wrong)) in enumerate(zip(owners, functions, strict=True)):
        lines = files.setdefault(path, [])
        lines += [f"def {name}({arguments}):", _line(wrong if number == broken else right, constant)]
    return {path: "\n".join(lines) for path, lines in files.items()}


def _line(expression: str, constant: int) -> str:
    return f"    return {expression.format(c=constant)}"


def apply_edit(files: Mapping[str, str], answer: str) -> tuple[dict[str, str] | None, str]:
    """The files after every edit block of the answer, or None and the reason why they do not apply.

    A block is a line with a path, then SEARCH, the old lines, DIVIDE, the new lines, REPLACE. The old lines must stand exactly
    once in the file, as whole lines. Text between blocks is ignored.
    """
    edited = dict(files)
    lines = answer.splitlines()
    num_edits = start = 0
    while SEARCH in lines[start:]:
        search = lines.index(SEARCH, start)
        try:
            divide = lines.index(DIVIDE, search)
            end = lines.index(REPLACE, divide)
        except ValueError:
            return None, f"an edit without its {DIVIDE} or {REPLACE}"
        path = lines[search - 1].strip() if search else ""
        if path not in edited:
            return None, f"no such file: {path[:40]!r}"
        old, new = lines[search + 1 : divide], lines[divide + 1 : end]
        text = edited[path].splitlines()
        places = [place for place in range(len(text) - len(old) + 1) if old and text[place : place + len(old)] == old]
        if len(places) != 1:
            return None, f"the lines searched for stand {len(places)} times in {path}; they must stand once"
        edited[path] = "\n".join([*text[: places[0]], *new, *text[places[0] + len(old) :]])
        num_edits += 1
        start = end + 1
    return (edited, "") if num_edits else (None, "no edit block")

"""Small Python functions from a sentence and a signature.

The verdict runs the answer in a sandbox on hidden tests, (call, expected) pairs. They are chosen so that a function of another kind,
or with a constant that is off by one, fails at least one of them.
"""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_rl.grade.unit_tests import CallTest
from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.code import CodeSettings, code_block
from cascade_rl.tasks.drawn import Draft, DrawnTask

_VERBS = ("Return", "Give", "Give back", "Compute")
_LEADS = ("Write {signature}.", "Complete {signature}.", "Define {signature}.", "Make {signature}.")
_NAMES = ("f", "g", "solve", "run", "work", "get")
_LETTERS = "abcdeABCDE"


@dataclass(frozen=True, slots=True)
class Spec:
    """A kind of function. `says` and `solutions` are formats over c and d; `compute(argument, c, d)` gives expected values.

    The first solution is the demonstration; the others are the usual ways to write it. argument: "x" a number, "xs" a list, "s" a string.
    """

    argument: str
    says: tuple[str, ...]
    solutions: tuple[str, ...]
    compute: Callable[[Any, int, int], Any]


SPECS = (
    Spec("x", ("x plus {c}", "the sum of x and {c}"), ("x + {c}", "{c} + x"), lambda x, c, d: x + c),
    Spec("x", ("x minus {c}", "x less {c}"), ("x - {c}",), lambda x, c, d: x - c),
    Spec("x", ("x times {c}", "{c} times x"), ("x * {c}", "{c} * x"), lambda x, c, d: x * c),
    Spec(
        "x",
        ("x times {c}, plus {d}", "{d} more than {c} times x"),
        ("x * {c} + {d}", "{c} * x + {d}", "{d} + x * {c}", "{d} + {c} * x"),
        lambda x, c, d: x * c + d,
    ),
    Spec(
        "x",
        ("x plus {c}, times {d}", "{d} times the sum of x and {c}"),
        ("(x + {c}) * {d}", "({c} + x) * {d}", "{d} * (x + {c})", "{d} * ({c} + x)"),
        lambda x, c, d: (x + c) * d,
    ),
    Spec("x", ("the rest of x by {c}", "x modulo {c}"), ("x % {c}",), lambda x, c, d: x % c),
    Spec("x", ("True if x is over {c}", "whether x is more than {c}"), ("x > {c}", "{c} < x"), lambda x, c, d: x > c),
    Spec("x", ("the larger of x and {c}", "x, but at least {c}"), ("max(x, {c})", "max({c}, x)"), lambda x, c, d: max(x, c)),
    Spec("x", ("the smaller of x and {c}", "x, but at most {c}"), ("min(x, {c})", "min({c}, x)"), lambda x, c, d: min(x, c)),
    Spec("xs", ("the first {c} of xs", "the {c} first items"), ("xs[:{c}]", "xs[0:{c}]"), lambda xs, c, d: xs[:c]),
    Spec("xs", ("the last {c} of xs", "the {c} last items"), ("xs[-{c}:]",), lambda xs, c, d: xs[-c:]),
    Spec("xs", ("xs without its first {c}", "all but the first {c} items"), ("xs[{c}:]",), lambda xs, c, d: xs[c:]),
    Spec("xs", ("how often {c} is in xs", "the count of {c} in xs"), ("xs.count({c})",), lambda xs, c, d: xs.count(c)),
    Spec(
        "xs",
        ("the sum of xs plus {c}", "{c} more than the sum of xs"),
        ("sum(xs) + {c}", "{c} + sum(xs)"),
        lambda xs, c, d: sum(xs) + c,
    ),
    Spec(
        "xs",
        ("each of xs plus {c}", "xs with {c} added to each"),
        ("[x + {c} for x in xs]", "[{c} + x for x in xs]"),
        lambda xs, c, d: [x + c for x in xs],
    ),
    Spec(
        "xs",
        ("each of xs times {c}", "xs with each item times {c}"),
        ("[x * {c} for x in xs]", "[{c} * x for x in xs]"),
        lambda xs, c, d: [x * c for x in xs],
    ),
    Spec(
        "xs",
        ("those of xs over {c}", "the items of xs above {c}"),
        ("[x for x in xs if x > {c}]", "[x for x in xs if {c} < x]"),
        lambda xs, c, d: [x for x in xs if x > c],
    ),
    Spec(
        "xs",
        ("those of xs under {c}", "the items of xs below {c}"),
        ("[x for x in xs if x < {c}]", "[x for x in xs if {c} > x]"),
        lambda xs, c, d: [x for x in xs if x < c],
    ),
    Spec("s", ("s {c} times", "s repeated {c} times"), ("s * {c}", "{c} * s"), lambda s, c, d: s * c),
    Spec("s", ("the first {c} letters of s", "s cut to {c} letters"), ("s[:{c}]", "s[0:{c}]"), lambda s, c, d: s[:c]),
    Spec(
        "s",
        ("s in capitals, {c} times", "s in upper case, repeated {c} times"),
        ("s.upper() * {c}", "{c} * s.upper()"),
        lambda s, c, d: s.upper() * c,
    ),
    Spec(
        "s",
        ("the length of s plus {c}", "{c} more than the length of s"),
        ("len(s) + {c}", "{c} + len(s)"),
        lambda s, c, d: len(s) + c,
    ),
)


@dataclass(frozen=True, kw_only=True)
class ProgramTask(CodeSettings, DrawnTask):
    """`"Write f(x). Return x plus 3."` asks for `def f(x):` and `return x + 3`.

    max_constant: the largest constant in a function.
    """

    max_constant: int = 29
    thinking: bool = False
    time_limit_s: int = 1

    name: str = "nano.program"
    domain: str = "code"
    metric: ClassVar[str] = "passed"

    def draw(self, rng: random.Random) -> Draft:
        number = rng.randrange(len(SPECS))
        spec = SPECS[number]
        c, d = rng.randint(2, self.max_constant), rng.randint(2, self.max_constant)
        name = rng.choice(_NAMES)
        signature = f"{name}({spec.argument})"
        said = rng.choice(spec.says).format(c=c, d=d)
        question = f"{rng.choice(_LEADS).format(signature=signature)} {rng.choice(_VERBS)} {said}."
        solutions = [f"def {signature}:\n    return {body.format(c=c, d=d)}" for body in spec.solutions]
        takes_two = any("{d}" in body for body in spec.solutions)
        key = [number, c, d if takes_two else 0]
        tests = [[f"{name}({value!r})", expected] for value, expected in hidden_cases(*key)]
        return Draft(key, question, (Message("assistant", solutions[0]),), {"tests": tests}, False)

    async def grade(self, rollout: Rollout, tools: Tools | None = None) -> Reward:
        """1 when all hidden tests pass, else 0 (see `partial`)."""
        if refused := self.refuse(rollout.answer):
            return refused
        tests = [CallTest(call, expected) for call, expected in rollout.prompt.reference["tests"]]
        return await self.run_tests(code_block(rollout.answer), tests)


@functools.lru_cache(maxsize=4096)
def hidden_cases(number: int, c: int, d: int) -> tuple[tuple[Any, Any], ...]:
    """(argument, value) pairs of function `number` with its constants; the same ones each time.

    Chosen to tell functions apart: at, next to and far from the constants; lists and texts shorter and longer than they are.
    """
    rng, spec = random.Random(str((number, c, d))), SPECS[number]
    sizes = (1, c, c + 1, c + 2 + rng.randint(0, 4))
    if spec.argument == "x":
        arguments: list[Any] = [c - 1, c, c + 1, c + d, 0, 1, rng.randint(50, 99)]
    elif spec.argument == "xs":
        near = (c, c - 1, c + 1)
        arguments = [[c, c, c + 1, 0], *([rng.choice((rng.randint(0, 40), *near)) for _ in range(size)] for size in sizes)]
    else:
        arguments = ["".join(rng.choice(_LETTERS) for _ in range(size)) for size in sizes]
    return tuple((argument, spec.compute(argument, c, d)) for argument in arguments)

"""Small Python functions from a sentence and a signature.

Nothing is executed here. The verdict compares syntax: an answer passes when, names of local variables aside, it is one of the
known solutions; a right answer written in another way is not recognised, and the metric says so in its name. The hidden tests in
the reference, (call, expected) pairs, are for graders that run code.
"""

import ast
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from cascade_rl.protocols import Tools
from cascade_rl.records import Message, Reward, Rollout
from cascade_rl.tasks.nano.base import Draft, NanoTask, verdict

_MAX_CODE_CHARS = 1_000  # keeps the nesting that the parser can meet harmless
_FENCE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)
_VERBS = ("Return", "Give", "Give back", "Compute")
_LEADS = ("Write {signature}.", "Complete {signature}.", "Define {signature}.", "Make {signature}.")
_NAMES = ("f", "g", "solve", "run", "work", "get")
_WORDS = ("sun", "tree", "Moon", "Red", "star")


@dataclass(frozen=True, slots=True)
class Spec:
    """A kind of function. `says` and `solutions` are formats over c and d; `compute(argument, c, d)` gives expected values.

    The first solution is the demonstration; the others pass as well. argument: "x" a number, "xs" a list, "s" a string.
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
class ProgramTask(NanoTask):
    """`"Write f(x). Return x plus 3."` asks for `def f(x):` and `return x + 3`.

    max_constant: the largest constant in a function.
    """

    max_constant: int = 29
    thinking: bool = False

    name: str = "nano.program"
    domain: str = "code"
    metric: ClassVar[str] = "known_solution"

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
        arguments = random.Random(str(key))  # the same function, the same tests
        reference = {"solutions": solutions, "tests": [_test(arguments, name, spec, c, d) for _ in range(3)]}
        return Draft(key, question, (Message("assistant", solutions[0]),), reference, False)

    def judge(self, rollout: Rollout, answer: str, tools: Tools | None) -> Reward:
        code = code_of(answer)
        found = normalised(code)
        if found is None:
            return verdict(False, "not a Python program of the length asked for")
        known = {normalised(solution) for solution in rollout.prompt.reference["solutions"]}
        return verdict(found in known, "a known solution" if found in known else "none of the known solutions")


def _test(rng: random.Random, name: str, spec: Spec, c: int, d: int) -> list[Any]:
    """A call as text and the value it must give, as JSON: `["f(4)", 7]`."""
    if spec.argument == "x":
        argument: Any = rng.randint(0, 40)
    elif spec.argument == "xs":
        argument = [rng.randint(0, 30) for _ in range(rng.randint(2, 6))] + [c] * rng.randint(0, 2)
    else:
        argument = rng.choice(_WORDS)
    return [f"{name}({argument!r})", spec.compute(argument, c, d)]


def code_of(answer: str) -> str:
    """The last fenced block, or the whole answer where there is none."""
    fenced = _FENCE.findall(answer)
    return fenced[-1] if fenced else answer


def normalised(code: str) -> str | None:
    """The syntax tree as text, comprehension variables renamed by order and docstrings left out; None if it does not parse."""
    if len(code) > _MAX_CODE_CHARS:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
        return ast.dump(_Normalise().visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Normalise(ast.NodeTransformer):
    """Renames the variables that comprehensions bind, and drops docstrings and annotations."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if len(node.body) > 1 and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        return self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        for generator in node.generators:
            if isinstance(generator.target, ast.Name):
                self._names[generator.target.id] = f"_{len(self._names)}"
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

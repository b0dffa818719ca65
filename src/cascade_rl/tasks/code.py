"""What tasks that run code share: the settings, the code of an answer, tests written as assertions."""

import ast
import functools
import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from cascade_rl.errors import RecipeError
from cascade_rl.grade.once import Once
from cascade_rl.grade.unit_tests import CallTest, Verdict, grade_calls
from cascade_rl.records import Reward
from cascade_rl.sandbox.process import MB, Isolation, Limits, shared_pool

# A fence of backticks or tildes at the start of a line, what it says it holds, and all up to the same fence or the end.
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*(\w*)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
# Limits are reached, and sandboxes fail, by chance and load: such a verdict is not used twice.
_VERDICTS: Once[Verdict] = Once(lambda verdict: verdict.kind in ("passed", "wrong answer", "error", "no code"))
_PYTHON = ("python", "python3", "py", "py3")


@dataclass(frozen=True, kw_only=True)
class CodeSettings:
    """Settings of a task whose answers are run.

    time_limit_s: processor time for all tests of a prompt. memory_mb: for the program. partial: the share of passed tests as
    reward, instead of 1 for all and 0 otherwise. sandbox: "unsafe-subprocess" runs model-written code with the rights of whoever
    runs this, without isolation.
    """

    time_limit_s: int = 2
    memory_mb: int = 512
    partial: bool = False
    sandbox: Isolation = "bubblewrap"

    def __post_init__(self) -> None:
        for key, low, high in (("time_limit_s", 1, 3_600), ("memory_mb", 64, 1_000_000)):
            if not low <= getattr(self, key) <= high:
                raise RecipeError(f'task "{getattr(self, "name", "")}": {key} {getattr(self, key)} must be {low} to {high:,}')
        super().__post_init__()  # type: ignore[misc]  # of the task that it is mixed into

    @property
    def grades_elsewhere(self) -> bool:
        """Programs run in processes of their own, beside the sampler."""
        return True

    async def run_tests(self, code: str, tests: Sequence[CallTest], setup: str = "") -> Reward:
        """The reward of code for its tests; unscored where the sandbox fails. The same code for the same tests is run once."""
        limits = Limits(cpu_s=self.time_limit_s, memory_bytes=self.memory_mb * MB)
        pool = shared_pool(self.sandbox)
        asked = repr(
            (code, [(test.call, test.expected, test.check) for test in tests], setup, limits, self.partial, self.sandbox)
        )

        async def graded() -> Verdict:
            return await grade_calls(code, tests, limits, setup=setup, all_tests=self.partial, pool=pool)

        return (await _VERDICTS.ask(hashlib.sha256(asked.encode(errors="surrogatepass")).digest(), graded)).reward(self.partial)


def code_block(answer: str) -> str:
    """The last block of an answer that is fenced as Python, else the last fenced one, else the whole answer.

    A block that says what it holds comes first, since a bare one after it often shows what the program prints.
    """
    blocks = _FENCE.findall(answer.replace("\r\n", "\n"))
    python = [code for _, language, code in blocks if language.lower() in _PYTHON]
    return (python or [code for *_, code in blocks] or [answer])[-1]


@functools.lru_cache(maxsize=4096)
def call_tests(assertions: tuple[str, ...]) -> tuple[CallTest, ...] | None:
    """Assertions of a call and a literal as tests: `assert f(2) == [1]` is CallTest("f(2)", [1]). None if one has another form."""
    tests = []
    for assertion in assertions:
        test = _comparison(assertion)
        if test is None:
            return None
        tests.append(CallTest(ast.unparse(test.left), ast.literal_eval(test.comparators[0])))
    return tuple(tests)


def _comparison(assertion: str) -> ast.Compare | None:
    """The comparison of an assertion that says `... == literal`; a data set's text, which is parsed and never run here."""
    tree = parse_code(assertion)
    if tree is None or len(tree.body) != 1 or not isinstance(statement := tree.body[0], ast.Assert):
        return None
    test = statement.test
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return None
    try:
        ast.literal_eval(test.comparators[0])
    except (ValueError, TypeError, MemoryError, RecursionError):
        return None
    return test


def parse_code(code: str) -> ast.Module | None:
    """The syntax tree of non-empty Python, else None. Nothing is run."""
    if not code.strip():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None

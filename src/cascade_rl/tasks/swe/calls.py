"""Hidden tests of a small repository as calls: one run in a fresh sandbox, every value compared outside of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from cascade_rl.grade.unit_tests import CallTest
from cascade_rl.records import Reward
from cascade_rl.tasks.code import CodeSettings

MAX_TOTAL_CHARS = 400_000


async def grade_files(
    settings: CodeSettings, files: Mapping[str, str], fail_to_pass: Sequence[Sequence[Any]], pass_to_pass: Sequence[Sequence[Any]]
) -> Reward:
    """1 when every call gives its value where the files' modules are known, else 0 (see `partial`); unscored: the sandbox failed.

    The calls, `["main.add(1, 2)", 3]`, name modules of the repository's top folder. What the files print or claim counts nothing.
    """
    tests = [CallTest(call, value) for call, value in (*fail_to_pass, *pass_to_pass)]
    modules = sorted({test.call.partition(".")[0] for test in tests})
    return await grade_calls_of_files(settings, files, tests, f"import {', '.join(modules)}")


async def grade_calls_of_files(settings: CodeSettings, files: Mapping[str, str], tests: Sequence[CallTest], setup: str) -> Reward:
    """The same for given tests; setup: imports that make the names of their calls known."""
    if sum(map(len, files.values())) > MAX_TOTAL_CHARS:
        return Reward(0.0, why=f"files of more than {MAX_TOTAL_CHARS:,} characters together")
    return await settings.run_tests(laid_out(files), tests, setup=setup)


def laid_out(files: Mapping[str, str]) -> str:
    """A program that lays files out in its folder and looks for modules there; their text is data of it, never code."""
    return (
        f"import os, sys\nsys.path.insert(0, os.getcwd())\nfor path, text in {dict(files)!r}.items():\n"
        "    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n"
        "    with open(path, 'w', encoding='utf-8', errors='surrogatepass') as file:\n        file.write(text)"
    )

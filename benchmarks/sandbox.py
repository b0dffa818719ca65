"""How fast and how tight the sandbox is: runs a second against plain Python, latency, a step's worth of verdicts, MBPP, leaks.

    python benchmarks/sandbox.py                          # runs/s, latency, 2,048 mixed verifications
    python benchmarks/sandbox.py --mbpp mbpp.jsonl        # every reference solution, and each made wrong
    python benchmarks/sandbox.py --leak 20000             # memory and descriptors over many runs

The plain way is `python -I -S -c PROGRAM`, no isolation at all. Both ways run the same program, as many at once as there are cores to
use, in short turns, so that what else the machine does hits both; the ratio is the median over turns.
"""

import argparse
import ast
import asyncio
import collections
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from cascade_rl.grade.unit_tests import CallTest, ProgramTest, Verdict, grade_calls, grade_program
from cascade_rl.sandbox.process import Job, Limits, SandboxPool
from cascade_rl.tasks.code import call_tests, code_block
from cascade_rl.tasks.mbpp import MBPP

PROGRAM, STDIN = "print(int(input()) + 1)", b"3\n"
ROUNDS, RUNS_PER_ROUND, NUM_VERIFICATIONS = 20, 50, 2048


def rates(pool: SandboxPool) -> None:
    """Runs a second, ours against plain."""
    job, limits = Job("program", source=PROGRAM, stdin=STDIN), Limits()

    def ours(_: int) -> None:
        assert pool.submit(job, limits).result().exit.stdout == b"4\n"

    def plain(_: int) -> None:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", PROGRAM], input=STDIN, capture_output=True, check=True)
        assert done.stdout == b"4\n"

    ratios, all_rates = [], {"ours": [], "plain": []}
    with ThreadPoolExecutor(pool.size) as threads:
        list(threads.map(ours, range(4 * pool.size)))  # starts the sandboxes
        for _ in range(ROUNDS):
            for name, way in (("ours", ours), ("plain", plain)):
                begin = time.perf_counter()
                list(threads.map(way, range(RUNS_PER_ROUND)))
                all_rates[name].append(RUNS_PER_ROUND / (time.perf_counter() - begin))
            ratios.append(all_rates["ours"][-1] / all_rates["plain"][-1])
    for name, found in all_rates.items():
        print(f"{name:6} {statistics.median(found):7.1f} runs/s  (rounds: {', '.join(f'{rate:.0f}' for rate in found)})")
    print(f"ratio  {statistics.median(ratios):7.2f}  (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


def latency(pool: SandboxPool, num: int = 500) -> None:
    """One run at a time."""
    job, limits, times = Job("program", source=PROGRAM, stdin=STDIN), Limits(), []
    for _ in range(num):
        begin = time.perf_counter()
        pool.submit(job, limits).result()
        times.append(1000 * (time.perf_counter() - begin))
    times.sort()
    print(f"latency, one at a time: median {statistics.median(times):.1f} ms, 99th percentile {times[int(0.99 * num)]:.1f} ms")


def mixed(number: int) -> tuple[str, str, list[CallTest] | list[ProgramTest]]:
    """A verification of a kind that a policy in training causes: (expected verdict, code, tests)."""
    adds = [CallTest(f"f({n}, 1)", n + 1) for n in range(5)]
    if number % 64 == 63:  # one in 64 waits for its time limit
        return "time", "def f(a, b):\n    while True: pass", adds
    kinds = (
        ("passed", "def f(a, b):\n    return a + b", adds),
        ("passed", "def f(a, b):\n    return sum(sorted([a, b] * 1000)) // 1000", adds),
        ("wrong answer", "def f(a, b):\n    return a - b", adds),
        ("error", "def f(a, b) return a + b", adds),
        ("error", "import os\nos._exit(0)", adds),
        ("passed", "print(sum(map(int, input().split())))", [ProgramTest("1 2\n", "3\n"), ProgramTest("5 6\n", "11\n")]),
        ("wrong answer", "print(3)", [ProgramTest("1 2\n", "3\n"), ProgramTest("5 6\n", "11\n")]),
        ("memory", "def f(a, b):\n    return [0] * 10**10", adds),
    )
    return kinds[number % len(kinds)]


def step(pool: SandboxPool) -> None:
    """A step's verifications, end to end."""
    limits = Limits(cpu_s=1)
    work = [mixed(number) for number in range(NUM_VERIFICATIONS)]

    def grade(number: int) -> Awaitable[Verdict]:
        _, code, tests = work[number]
        way = grade_calls if isinstance(tests[0], CallTest) else grade_program
        return way(code, tests, limits, pool=pool)  # type: ignore[arg-type]

    begin = time.perf_counter()
    verdicts = asyncio.run(together(grade, len(work)))
    took = time.perf_counter() - begin
    wrong = sum(verdict.kind != expected for (expected, _, _), verdict in zip(work, verdicts, strict=True))
    kinds = collections.Counter(verdict.kind for verdict in verdicts)
    print(f"{len(work):,} mixed verifications in {took:.1f} s, {wrong} not as expected: {dict(kinds.most_common())}")


async def together(grade: Callable[[int], Awaitable[Verdict]], num: int, at_once: int = 64) -> list[Verdict]:
    """Verdicts in order."""
    turns = asyncio.Semaphore(at_once)

    async def one(number: int) -> Verdict:
        async with turns:
            return await grade(number)

    return list(await asyncio.gather(*(one(number) for number in range(num))))


# --- MBPP ---------------------------------------------------------------------------------------------------------------------------


class _Mutant(ast.NodeTransformer):
    """Changes the first place it can: an operator, a comparison or a number."""

    SWAPS = (
        (ast.Add, ast.Sub), (ast.Sub, ast.Add), (ast.Mult, ast.Add), (ast.Div, ast.Mult), (ast.FloorDiv, ast.Mult), (ast.Mod, ast.Add),
        (ast.Lt, ast.Gt), (ast.Gt, ast.Lt), (ast.LtE, ast.Gt), (ast.GtE, ast.Lt), (ast.Eq, ast.NotEq), (ast.NotEq, ast.Eq),
    )  # fmt: skip

    def __init__(self) -> None:
        self.done = False

    def visit(self, node: ast.AST) -> ast.AST:
        if self.done:
            return node
        for kind, other in self.SWAPS:
            if type(node) is kind:
                self.done = True
                return other()
        if isinstance(node, ast.Constant) and type(node.value) is int:
            self.done = True
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return self.generic_visit(node)


def mutated(code: str) -> str | None:
    """The code with one small change, or None where there is nothing to change."""
    mutant = _Mutant()
    tree = mutant.visit(ast.parse(code))
    return ast.unparse(tree) if mutant.done else None


def spoilt(code: str, name: str) -> str:
    """The code with its function's result put into an object that is equal to everything: always wrong."""
    return (
        f"{code}\n\nclass _Equal(int):\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
        f"    __hash__ = int.__hash__\n\n_right = {name}\ndef {name}(*a, **k):\n    _right(*a, **k)\n    return _Equal(-987654321)\n"
    )


def mbpp(pool: SandboxPool, path: str) -> None:
    """Every reference solution; each with one small change; each with a result that is wrong for certain."""
    task = MBPP(path=path)
    prompts = [prompt for split in ("train", "dev", "test") for prompt in task.prompts(split)]  # type: ignore[arg-type]
    codes = [code_block(prompt.gold[0].content) for prompt in prompts]
    names = [prompt.reference["name"] for prompt in prompts]
    variants: dict[str, Sequence[str | None]] = {
        "reference": codes,
        "one small change": [mutated(code) for code in codes],
        "made wrong": [spoilt(code, name) for code, name in zip(codes, names, strict=True)],
    }
    for told, texts in variants.items():
        places = [place for place, text in enumerate(texts) if text is not None]

        def grade(number: int, texts: Sequence[str | None] = texts, places: Sequence[int] = places) -> Awaitable[Verdict]:
            prompt, code = prompts[places[number]], texts[places[number]]
            tests = call_tests(tuple(prompt.reference["tests"]))
            assert code is not None
            assert tests is not None
            return grade_calls(code, tests, Limits(cpu_s=task.time_limit_s), setup=prompt.reference["setup"], pool=pool)

        begin = time.perf_counter()
        verdicts = asyncio.run(together(grade, len(places)))
        kinds = collections.Counter(verdict.kind for verdict in verdicts)
        print(f"MBPP, {told}: {len(places)} graded in {time.perf_counter() - begin:.1f} s: {dict(kinds.most_common())}")
        for place, verdict in zip(places, verdicts, strict=True):
            if (verdict.kind == "passed") != (told == "reference") and told != "one small change":
                print(f"   {prompts[place].id} {names[place]}: {verdict.kind}, {verdict.why}")


# --- leaks --------------------------------------------------------------------------------------------------------------------------


def leak(pool: SandboxPool, num: int) -> None:
    """Memory and descriptors of this process and of the sandboxes, before and after many runs."""
    job, limits = Job("program", source=PROGRAM, stdin=STDIN), Limits()

    def held() -> tuple[int, int, int]:
        servers = [child for server in pool._alive for child in _descendants(server.process.pid)]
        mine = len(os.listdir("/proc/self/fd"))
        return mine, _rss_kb(os.getpid()), sum(_rss_kb(pid) for pid in servers)

    with ThreadPoolExecutor(pool.size) as threads:
        begin = time.perf_counter()
        for done in range(200, num + 1, 200):  # so many at a time, since the results of all would be memory too
            list(threads.map(lambda _: pool.submit(job, limits).result(), range(200)))
            if done == 200 or done % max(200, num // 4 // 200 * 200) == 0:
                time.sleep(0.5)
                mine, rss, inside = held()
                print(f"after {done:6,} runs: {mine} descriptors, {rss:,} kB here, {inside:,} kB in the sandboxes", flush=True)
    print(f"{num:,} runs in {time.perf_counter() - begin:.0f} s")


def _descendants(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        direct = [int(child) for child in file.read().split()]
    return [*direct, *(pid for child in direct for pid in _descendants(child))]


def _rss_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbpp", metavar="FILE")
    parser.add_argument("--leak", type=int, metavar="RUNS")
    args = parser.parse_args()
    sandboxes = SandboxPool()
    print(f"{sandboxes.size} sandboxes at once")
    try:
        if args.mbpp:
            mbpp(sandboxes, args.mbpp)
        if args.leak:
            leak(sandboxes, args.leak)
        if not (args.mbpp or args.leak):
            rates(sandboxes)
            latency(sandboxes)
            step(sandboxes)
    finally:
        sandboxes.close()

"""Repository tasks: archives, what is graded of an agent's work, rows as published, budgets, sandboxes that die."""

import asyncio
import dataclasses
import io
import itertools
import json
import os
import signal
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.host import children, needs_sandbox
from tests.tasks.test_swe_attacks import PACKAGES, PATCH, ROW, SOURCE, TEST_PATCH, TESTS, make_task, play

from cascade_rl.errors import DataError, RecipeError, SandboxError, ToolError
from cascade_rl.eval.audit import audit_task
from cascade_rl.grade.tests_passed import judge_tests
from cascade_rl.protocols import Task, gold_rollout
from cascade_rl.records import ExecResult, Group, Message, Prompt, Reward, ToolCall
from cascade_rl.sample.verdicts import grade_all
from cascade_rl.sandbox.process import Result
from cascade_rl.tasks.swe import shell
from cascade_rl.tasks.swe.nano import TEST_PATH, NanoAgent
from cascade_rl.tasks.swe.repository import find_repository, graded_files, is_protected, load_repository, packed
from cascade_rl.tasks.swe.rows import SWERows
from cascade_rl.tasks.swe.shell import ShellTools
from cascade_rl.tasks.swe.tools import FileTools, cut

RIGHT = ("edit", {"path": "calc.py", "old": "return a - b  # wrong", "new": "return a + b"})


# --- repositories -------------------------------------------------------------------------------------------------------------------


def archives(folder: Path) -> list[Path]:
    """The same repository as a folder, a tar and a zip as GitHub packs one."""
    files = {"a.py": b"x = 1\n", "pkg/b.py": b"#!/usr/bin/python\n", ".git/config": b"upstream"}
    for name, data in files.items():
        (folder / "plain" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "plain" / name).write_bytes(data)
    (folder / "plain" / "link").symlink_to("/etc/passwd")
    with tarfile.open(folder / "r.tar.gz", "w:gz") as tar, zipfile.ZipFile(folder / "r.zip", "w") as zipped:
        for name, data in files.items():
            info = tarfile.TarInfo(f"r-1/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
            zipped.writestr(f"r-1/{name}", data)
        link = tarfile.TarInfo("r-1/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return [folder / "plain", folder / "r.tar.gz", folder / "r.zip"]


@pytest.mark.parametrize("name", ["../plain", "..", "", "a/../../plain"])
def test_a_row_names_nothing_outside_of_the_archives(name: str, tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    archives(tmp_path)
    with pytest.raises(DataError, match="names no repository"):
        find_repository(tmp_path / "archives", (name, "r"))


def test_a_folder_a_tar_and_a_zip_are_the_same_repository(tmp_path: Path) -> None:
    for place in archives(tmp_path):
        assert load_repository(place) == {"a.py": b"x = 1\n", "pkg/b.py": b"#!/usr/bin/python\n"}
    with tarfile.open(fileobj=io.BytesIO(packed({"a.py": b"x", "b.sh": b"#!/bin/sh"}))) as tar:
        assert {(member.name, member.mode) for member in tar} == {("a.py", 0o644), ("b.sh", 0o755)}


def test_archives_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "out.zip", "w") as zipped:
        zipped.writestr("../out.py", b"")
    (tmp_path / "bad.tar").write_bytes(b"no tar")
    (tmp_path / "empty").mkdir()
    for name, told in (("out.zip", "outside"), ("bad.tar", "cannot be read"), ("empty", "holds no file")):
        with pytest.raises(DataError, match=told):
            load_repository(tmp_path / name)


@pytest.mark.parametrize(
    "path", ["tests/a.py", "pkg/tests/deep/a.py", "test_a.py", "pkg/a_test.py", "test/a.py", "conftest.py", "pkg/conftest.py", "setup.cfg",
             "pytest.ini", "pyproject.toml", "tox.ini", "sitecustomize.py", "x.pth", "a.egg-info/entry_points.txt"],
)  # fmt: skip
def test_what_decides_how_tests_run_is_not_the_agents(path: str) -> None:
    assert is_protected(path)
    assert graded_files({"a.py": b"1", path: b"old"}, {"a.py": b"2", path: b"new"}) == {"a.py": b"2", path: b"old"}
    assert graded_files({"a.py": b"1", path: b"old"}, {"a.py": b"2"}) == {"a.py": b"2", path: b"old"}
    assert graded_files({"a.py": b"1"}, {"a.py": b"1", path: b"new"}) == {"a.py": b"1"}


@pytest.mark.parametrize("path", ["a.py", "django/test/client.py", "testing/tools.py", "contest.py", "latest.py", "pkg/setup.py"])
def test_the_rest_is(path: str) -> None:
    assert not is_protected(path)
    assert graded_files({path: b"1", "b": b""}, {path: b"2", "c": b""}) == {path: b"2", "c": b""}
    assert graded_files({path: b"1"}, {path: b"2"}, also=[path]) == {path: b"1"}  # a file of the test patch


# --- the verdict on told results ----------------------------------------------------------------------------------------------------

GOOD = [("a::x", "passed"), ("a::y", "passed"), ("canary", "failed")]


def lines(told: list[tuple[str, str]], word: str = "w", end: bool = True) -> Result:
    rows: list[dict[str, Any]] = [{"word": word, "id": test, "outcome": outcome} for test, outcome in told]
    rows += [{"word": word, "end": True}] if end else []
    return Result(ExecResult("exit", 0, b"", b"", 0.1, 0.1), tuple(json.dumps(row).encode() for row in rows))


@pytest.mark.parametrize(
    ("result", "value", "why"),
    [
        (lines(GOOD), 1.0, "all 2 tests pass"),
        (lines([*GOOD, ("a::other", "failed")]), 1.0, "all 2"),
        (lines(GOOD[1:]), 0.0, "a::x: was not run"),
        (lines([("a::x", "skipped"), *GOOD[1:]]), 0.0, "a::x: skipped"),
        (lines([*GOOD, ("a::x", "passed")]), 0.0, "twice"),
        (lines(GOOD[:2]), 0.0, "must fail"),
        (lines([*GOOD[:2], ("canary", "passed")]), 0.0, "must fail"),
        (lines(GOOD, end=False), 0.0, "before its tests were done"),
        (lines(GOOD, word="guess"), 0.0, "before its tests were done"),
        (lines([]), 0.0, "must fail"),
        (dataclasses.replace(lines(GOOD), lines=(b"[1", b"7", b"\xff", *lines(GOOD).lines)), 1.0, "all 2"),
        (dataclasses.replace(lines(GOOD), lines=(*lines(GOOD).lines, lines([]).lines[0])), 0.0, "after its end"),
        (dataclasses.replace(lines(GOOD), exit=ExecResult("time", -9, b"", b"", 9.0, 1.0)), 0.0, "time limit"),
        (dataclasses.replace(lines(GOOD), exit=ExecResult("exit", 1, b"", b"", 9.0, 1.0)), 1.0, "all 2"),  # no exit code is asked
    ],
)
def test_what_results_are_worth(result: Result, value: float, why: str) -> None:
    reward = judge_tests(result, "w", ["a::x"], ["a::y"])
    assert reward.value == value
    assert why in reward.why


# --- rows ---------------------------------------------------------------------------------------------------------------------------


def test_rows_are_prompts(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    assert isinstance(task, Task)
    (prompt,) = task.prompts("train")
    assert prompt.reference["fail_to_pass"] == ["test_calc.py::test_add"]
    assert prompt.messages[0].content.endswith("add(2, 3) gives -1.")
    assert {tool["function"]["name"] for tool in prompt.tools} == {"search", "view", "edit", "patch", "test", "bash"}
    (asked,) = dataclasses.replace(task, answer="patch").prompts("train")
    assert f"# calc.py\n{SOURCE}" in asked.messages[0].content
    assert not asked.tools
    with pytest.raises(DataError, match="no rows"):
        dataclasses.replace(task, max_prompt_chars=20).prompts("train")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"FAIL_TO_PASS": "[]"}, '"FAIL_TO_PASS" is empty'),
        ({"FAIL_TO_PASS": "not json"}, "expected a list of test ids"),
        ({"FAIL_TO_PASS": "[" * 200_000}, "expected a list of test ids"),
        ({"PASS_TO_PASS": [1]}, "expected a list of test ids"),
        ({"patch": PATCH.replace("# wrong", "# other")}, '"patch" does not apply'),
        ({"instance_id": "none", "repo": "no/ne"}, "no repository in .* for none"),
        ({"problem_statement": " "}, '"problem_statement" is empty'),
    ],
)
def test_faulty_rows_are_named(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    task = make_task(tmp_path)
    Path(task.path).write_text(json.dumps(ROW | change))
    with pytest.raises(DataError, match=told) as error:
        task.prompts("train")
    assert "rows.jsonl:1" in str(error.value)


@needs_sandbox
@pytest.mark.parametrize("answer", ["tools", "patch"])
def test_gold_is_full_marks_and_nothing_is_none(tmp_path: Path, answer: Any) -> None:
    report = audit_task(
        make_task(tmp_path, runner="plain", answer=answer), make_task(tmp_path / "b", answer=answer).prompts("train"), 1
    )
    assert report.gold.full
    assert not report.other_results
    assert not any(tally.full for tally in report.attacks if "gold" not in tally.name and tally.name != "thinking only"), (
        report.attacks
    )


@needs_sandbox
def test_without_pytest_the_way_out_is_told(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=r"pytest cannot be imported there .*packages = "):
        play(make_task(tmp_path), [RIGHT])
    with pytest.raises(SandboxError, match="is no folder"):
        play(make_task(tmp_path / "b", packages=("/none",)), [RIGHT])


@needs_sandbox
@pytest.mark.parametrize("runner", ["plain", "pytest"])
def test_modules_are_found_at_the_top_and_in_src(tmp_path: Path, runner: Any) -> None:
    """Tests in a folder of their own, one module in `src`, one at the top; and one that is called pytest, which nobody takes for it."""
    task = make_task(tmp_path, runner=runner, packages=(PACKAGES,))
    repository = tmp_path / "archives" / "calc__calc-1"
    for name in ("src", "tests"):
        (repository / name).mkdir()
    (repository / "calc.py").rename(repository / "src" / "calc.py")
    (repository / "other.py").write_text("three = 3")
    (repository / "pytest.py").write_text("raise SystemExit(0)")
    (repository / "test_calc.py").unlink()
    (repository / "tests" / "test_calc.py").write_text(TESTS.replace("import calc", "import calc\nimport other"))
    hidden = TEST_PATCH.replace("test_calc.py", "tests/test_calc.py").replace(" == 5", " == other.three + 2")
    row = ROW | {"patch": PATCH.replace("calc.py", "src/calc.py"), "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
                 "PASS_TO_PASS": ["tests/test_calc.py::test_mul"],
                 "test_patch": hidden}  # fmt: skip
    Path(task.path).write_text(json.dumps(row))
    (prompt,) = task.prompts("train")
    reward, seen = play(task, [("patch", dict(prompt.gold[0].tool_calls[0].arguments))])
    assert reward.value == 1.0, (reward, seen)


@needs_sandbox
def test_tools_of_a_shell(tmp_path: Path) -> None:
    expected: list[tuple[str, dict[str, Any], str]] = [
        ("search", {"text": "def "}, "calc.py:1: def add(a, b):\ncalc.py:5: def mul(a, b):\ntest_calc.py:4: def test_mul():"),
        ("search", {"text": "nowhere"}, "nothing found"),
        ("view", {"path": "calc.py"}, SOURCE),
        ("view", {"path": "calc.py", "first": 5, "last": 6}, "def mul(a, b):\n    return a * b"),
        ("view", {"path": "../../etc/passwd"}, "Error: a path outside of the repository: '../../etc/passwd'"),
        ("view", {"path": "none.py"}, "Error: cannot read none.py: no such file"),
        ("view", {"path": "calc.py", "first": "1"}, "Error: first must be an integer"),
        ("edit", {"path": "calc.py", "old": "zzz", "new": "y"}, "Error: old stands 0 times in calc.py; it must stand once"),
        (*RIGHT, "ok"),
        ("test", {}, "1 passed"),
        ("test", {"path": "test_calc.py"}, "1 passed"),
        ("bash", {"command": "pwd; ls; false"}, "/box/repo\ncalc.py\ntest_calc.py\n[exit code 1]"),
        ("bash", {"command": "git status --short 2>/dev/null | grep -v pycache || echo ' M calc.py'"}, " M calc.py"),
        ("bash", {"cmd": "ls"}, "Error: bash takes command"),
        ("rm", {"path": "calc.py"}, "Error: no tool rm; tools: search, view, edit, patch, test, bash"),
        ("patch", {"patch": "nothing"}, "Error: no edit block"),
    ]
    _, seen = play(make_task(tmp_path, runner="plain"), [(name, arguments) for name, arguments, _ in expected])
    assert seen.replace(SOURCE, "SOURCE\n").split("\n") == "\n".join(t for *_, t in expected).replace(SOURCE, "SOURCE\n").split(
        "\n"
    )


@needs_sandbox
def test_an_agents_budgets(tmp_path: Path) -> None:
    task = make_task(tmp_path, runner="plain", command_s=1, agent_s=2, max_chars=200)
    calls = [("bash", {"command": f"seq {n}"}) for n in (5, 10_000)] + [("bash", {"command": "sleep 30"})] * 3
    _, seen = play(task, calls)
    assert seen.startswith("1\n2\n3\n4\n5\n1\n")
    assert "characters ..." in seen
    assert seen.count("[ended by its time limit]") == 2
    assert seen.endswith("Error: the time for tools is used up; finish")


@needs_sandbox
@pytest.mark.parametrize(
    ("command", "value", "why"),
    [
        ("ln -sf /etc/passwd calc.py", 0.0, "do not pass"),  # a link is no file: the source is gone
        ("rm calc.py; mkfifo calc.py", 0.0, "do not pass"),
        ("mkfifo pipe; ln -s / root; touch $'two\\nlines' $'\\xff'; mkdir .git/x 2>/dev/null; true", 0.0, "changed nothing"),
        ("for i in $(seq 400); do echo > n$i.py; done", 0.0, "changed 400 files"),
        ("head -c 11000000 /dev/zero > big.bin", 0.0, "bytes"),
        ("rm -rf /box/repo", 0.0, "do not pass"),
        ("cd /; rm -rf /box/repo; ln -s /usr/lib /box/repo", 0.0, "do not pass"),
    ],
)
def test_what_an_agent_leaves_is_read_with_care(tmp_path: Path, command: str, value: float, why: str) -> None:
    reward, seen = play(make_task(tmp_path, runner="plain", disk_mb=64), [("bash", {"command": command})])
    assert reward.value == value, (reward, seen)
    assert why in reward.why, (reward, seen)


def test_long_results_keep_their_ends() -> None:
    assert cut("abc" * 10, 30) == "abc" * 10
    told = cut("a" * 50 + "b" * 50, 20)
    assert told == "a" * 10 + "\n... 80 characters ...\n" + "b" * 10


@needs_sandbox
@pytest.mark.parametrize("kills", [1, 2])
def test_a_grading_sandbox_killed_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    """Once: graded again in a fresh one. Twice: unscored."""
    task = make_task(tmp_path, runner="plain")
    made = SWERows._sandbox
    graders = []

    def sandbox(self: SWERows) -> Any:
        graders.append(made(self))
        return graders[-1]

    async def graded() -> Reward:
        (prompt,) = task.prompts("train")
        tools = task.open_tools(prompt)
        assert isinstance(tools, ShellTools)
        await tools.call(ToolCall(*RIGHT))
        await tools.call(
            ToolCall("edit", {"path": "calc.py", "old": "def add", "new": "import time\ntime.sleep(1)\n\n\ndef add"})
        )
        monkeypatch.setattr(SWERows, "_sandbox", sandbox)
        grading = asyncio.ensure_future(task.grade(gold_rollout(prompt), tools))
        killed = 0
        while not grading.done():
            await asyncio.sleep(0.05)
            if killed < min(kills, len(graders)) and (server := graders[killed]._server) is not None:
                os.kill(children(server.process.pid)[0] if os.geteuid() else server.process.pid, signal.SIGKILL)
                killed += 1
        return await grading

    reward = asyncio.run(graded())
    assert reward.value == (1.0 if kills == 1 else None), reward


@needs_sandbox
def test_an_agents_sandbox_killed_from_outside_costs_one_unscored_rollout(tmp_path: Path) -> None:
    """Of a group of two, the other one is graded as ever."""
    task = make_task(tmp_path, runner="plain")
    (prompt,) = task.prompts("train")

    async def played() -> list[Any]:
        rollouts = []
        for dies in (True, False):
            tools = task.open_tools(prompt)
            assert isinstance(tools, ShellTools)
            await tools.call(ToolCall(*RIGHT))
            rollout = dataclasses.replace(gold_rollout(prompt, [Message("assistant", "Done.")]), tools=tools)
            if dies:
                assert tools.sandbox._server is not None
                tools.sandbox._server.process.send_signal(signal.SIGKILL)
            rollouts.append(rollout)
        return rollouts

    (group,) = grade_all([Group(prompt, tuple(asyncio.run(played())))], {prompt.task: task})
    assert [reward.value for reward in group.rewards] == [None, 1.0]
    assert "sandbox" in group.rewards[0].why


# --- the nano world's ---------------------------------------------------------------------------------------------------------------


def nano(**settings: Any) -> tuple[NanoAgent, Prompt]:
    task = NanoAgent(num_train=20, **settings)
    return task, task.prompts("train")[0]


def called(tools: FileTools, name: str, **arguments: Any) -> str:
    return asyncio.run(tools.call(ToolCall(name, arguments)))


@needs_sandbox
def test_gold_of_the_nano_agent_scores_and_its_results_are_what_live_tools_give() -> None:
    task = NanoAgent()
    report = audit_task(task, task.prompts("dev")[:5])
    assert len(report.gold.full) == 5
    assert not report.other_results
    assert report.false_pass_rates["empty"] == report.false_pass_rates["claims"] == 0
    assert report.slowest_ms < 1_000


def test_prompts_of_the_nano_agent_do_not_cross_splits() -> None:
    task = NanoAgent(num_train=500, num_dev=100, num_test=100)
    seen = [{json.dumps(p.reference, sort_keys=True) for p in task.prompts(split)} for split in ("train", "dev", "test")]  # type: ignore[arg-type]
    assert not seen[0] & (seen[1] | seen[2])
    assert not seen[1] & seen[2]
    for prompt in task.prompts("dev"):
        assert prompt.reference["fail_to_pass"]
        assert not any(call in prompt.reference["files"][TEST_PATH] for call, _ in prompt.reference["fail_to_pass"])  # hidden


@needs_sandbox
def test_tools_of_files() -> None:
    task, prompt = nano()
    tools = task.open_tools(prompt)
    path, text = next(iter(prompt.reference["files"].items()))
    assert called(tools, "view", path=path) == text
    assert f"{path}:1: {text.splitlines()[0]}" in called(tools, "search", text="def ").splitlines()
    assert "passed" in called(tools, "test")
    assert called(tools, "edit", path="new.py", old="", new="x = 1") == "made"
    called(tools, "edit", path=TEST_PATH, old=tools.files[TEST_PATH], new="def test_no():\n    assert 1 == 2, 'no'")
    assert called(tools, "test") == "1 of 1 failed\ntest_all.py::test_no: AssertionError: no"
    called(tools, "edit", path=TEST_PATH, old=tools.files[TEST_PATH], new="while True: pass")
    assert "time limit" in called(tools, "test")
    for name, arguments, told in (
        ("view", {"path": "none.py"}, "no file none.py; files: "),
        ("view", {"path": "/etc/passwd"}, "outside of the repository"),
        ("edit", {"path": "new.py", "old": "", "new": "y"}, "is there already"),
        ("edit", {"path": "new.py", "old": "x", "new": "x" * 3_000_000}, "more than"),
        ("search", {"text": " "}, "nothing to search for"),
        ("view", {"path": 3}, "path must be a string"),
    ):
        with pytest.raises(ToolError, match=told):
            called(tools, name, **arguments)
    assert prompt.reference["files"][TEST_PATH] != tools.files[TEST_PATH]  # the prompt's own files are as they were


@needs_sandbox
def test_the_nano_verdict_is_on_the_files_and_never_on_words_or_visible_tests() -> None:
    task, prompt = nano()

    def graded(*calls: tuple[str, dict[str, Any]]) -> Reward:
        async def played() -> Reward:
            tools = task.open_tools(prompt)
            for name, arguments in calls:
                await tools.call(ToolCall(name, arguments))
            return await task.grade(gold_rollout(prompt, [Message("assistant", "Fixed. All tests pass.")]), tools)

        return asyncio.run(played())

    fix = next(call.arguments for message in prompt.gold for call in message.tool_calls if call.name == "edit")
    assert graded(("edit", dict(fix))).value == 1.0
    assert graded().why == "changed nothing"
    tests = {"path": TEST_PATH, "old": prompt.reference["files"][TEST_PATH], "new": "def test_all(): pass"}
    assert graded(("edit", tests)).why == "changed nothing"
    assert graded(("edit", dict(fix) | {"new": "    return 0"})).value == 0.0
    assert graded(("edit", dict(fix)), ("edit", tests)).value == 1.0


def test_settings_out_of_bounds_are_named() -> None:
    with pytest.raises(RecipeError, match="turns 0 must be"):
        NanoAgent(turns=0)
    with pytest.raises(DataError, match="agent_s 0 must be at least 1"):
        SWERows(path="x", archives="y", agent_s=0)


@needs_sandbox
def test_commands_wait_for_their_turn_and_nobody_pays_for_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "num_cores", lambda: 1)
    task = make_task(tmp_path, runner="plain", agent_s=2)
    (prompt,) = task.prompts("train")

    async def worked() -> tuple[list[tuple[int, int]], list[float]]:
        agents = [task.open_tools(prompt) for _ in range(4)]
        call = ToolCall("bash", {"command": "date +%s%N; sleep 0.6; date +%s%N"})
        told = await asyncio.gather(*(agent.call(call) for agent in agents if agent))
        left = [agent.seconds_left for agent in agents if isinstance(agent, ShellTools)]
        await asyncio.gather(*(agent.close() for agent in agents if agent))
        return sorted((int(text.split()[0]), int(text.split()[1])) for text in told), left

    spans, left = asyncio.run(worked())
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert min(left) > 0.4  # 2.4 s for all of them

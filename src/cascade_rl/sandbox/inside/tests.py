"""A repository's own tests, run where its code is, and how each of them ended, told line by line.

The code under test shares this process: what is told is a claim. What makes a false one hard: every line carries a word that only
this run knows, each test is told once, the last line says that it is the last, and one more test that must fail is run with the
others. A test counts as passed when its setup, its call and its teardown raised nothing; reports and exit codes are not asked.
"""

import importlib
import importlib.util
import inspect
import json
import os
import sys
import types
import unittest
from collections.abc import Callable
from typing import Any

RESULTS = 3
CANARY = "canary"  # the id under which the test that must fail is told

Tell = Callable[..., None]


def lay_out(files: list[list[str]]) -> None:
    """Writes files, (path, text) each, below the current folder."""
    for path, text in files:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)


def teller(word: str) -> Tell:
    """What writes a line of results; it holds what it needs, so that patches of `os` and `json` come too late."""
    write, encode = os.write, json.JSONEncoder().encode

    def tell(**told: Any) -> None:
        data = memoryview((encode({"word": word, **told}) + "\n").encode(errors="replace"))
        while data:
            data = data[write(RESULTS, data) :]

    return tell


def plain(request: dict[str, Any]) -> int:
    """Every function `test*` of the files named, in order: no framework."""
    tell = teller(request["word"])
    place = os.path.abspath(request["path"] or ".")
    os.makedirs(place, exist_ok=True)
    os.chdir(place)
    lay_out(request["files"])
    sys.path.insert(0, place)
    for path in request["calls"]:
        outcome, why, module = _loaded(path)
        if module is None:
            tell(id=path, outcome=outcome, why=why)
            continue
        for name, function in list(vars(module).items()):
            if name.startswith("test") and isinstance(function, types.FunctionType):
                outcome, why = _called(function)
                tell(id=f"{path}::{name}", outcome=outcome, why=why)
    tell(id=CANARY, outcome=_called(_must_fail)[0])
    tell(end=True)
    return 0


def _loaded(path: str) -> tuple[str, str, types.ModuleType | None]:
    try:
        name = os.path.splitext(path)[0].replace("/", ".")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, f"no Python file: {path}"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return "", "", module
    except BaseException as error:
        return "error", _shown(error), None


def _called(function: Callable[[], Any]) -> tuple[str, str]:
    try:
        if inspect.isawaitable(result := function()):
            result.close()  # type: ignore[attr-defined]
            return "error", "an async test; a plain run has no event loop"
    except unittest.SkipTest as skipped:
        return "skipped", _shown(skipped)
    except BaseException as error:
        return "failed", _shown(error)
    return "passed", ""


def _must_fail() -> None:
    raise AssertionError("this test fails")


def _shown(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # a hostile __str__
        return "an exception that cannot be shown"


def with_pytest(request: dict[str, Any]) -> int:
    """pytest on the paths or ids named, in a folder that is laid out already; `argv` are more of its arguments."""
    tell = teller(request["word"])
    os.chdir(request["path"] or ".")
    sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place and place not in sys.path]
    try:
        pytest: Any = importlib.import_module("pytest")
    except ImportError as error:
        tell(missing=str(error))
        return 0
    canary = f"test_{CANARY}_{request['word']}"  # of the file and of the test in it
    with open(f"/tmp/{canary}.py", "w", encoding="utf-8") as file:
        file.write(f"def {canary}():\n    raise AssertionError('this test fails')\n")
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", os.getcwd(), *request["argv"]]
    pytest.main([*options, *request["calls"], f"/tmp/{canary}.py"], plugins=[_reporter(pytest, tell, canary)])
    tell(end=True)
    return 0


def _reporter(pytest: Any, tell: Tell, canary: str) -> Any:
    """A plugin that looks at what a test's three phases raised themselves, not at the reports made of it."""
    phases: dict[str, set[str]] = {}
    spoilt: dict[str, str] = {}

    def watched(phase: str) -> Any:
        @pytest.hookimpl(hookwrapper=True, trylast=True)
        def watch(self: Any, item: Any) -> Any:
            if any(item.iter_markers(name="xfail")):
                spoilt.setdefault(item.nodeid, "marked as expected to fail")
            outcome = yield
            error = outcome.excinfo[1] if outcome.excinfo else None
            if error is None:
                phases.setdefault(item.nodeid, set()).add(phase)
            else:
                spoilt.setdefault(item.nodeid, _shown(error))

        return watch

    class Reporter:
        pytest_runtest_setup = watched("setup")
        pytest_runtest_call = watched("call")
        pytest_runtest_teardown = watched("teardown")

        def pytest_runtest_logreport(self, report: Any) -> None:
            if not report.passed:
                spoilt.setdefault(report.nodeid, f"{report.when}: {report.outcome}")

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            passed = phases.get(nodeid) == {"setup", "call", "teardown"} and nodeid not in spoilt
            told = CANARY if canary in nodeid else nodeid
            tell(id=told, outcome="passed" if passed else "failed", why=spoilt.get(nodeid, "")[:200])

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                tell(id=report.nodeid, outcome="error", why=str(report.longrepr)[-200:])

    return Reporter()

"""The rules of the house: imports point down, zips are strict, names are the house's, the README's tree is the disk's."""

import ast
import dataclasses
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "cascade_rl"
FILES = sorted(SRC.rglob("*.py"))

# A room may import rooms of a lower level, and its own. The files of `observe` that
# everyone writes to (log, progress) are low, those that read what others wrote (report, tables) are high.
LEVEL = {
    "errors": 0, "records": 0, "seeds": 0, "strict_json": 0.5,
    "protocols": 1,
    "run": 2, "checkpoint": 2.5, "algo": 2, "sandbox": 2, "observe.log": 2, "observe.progress": 2,
    "model": 3, "grade": 3,
    "sample": 4, "tasks": 4,
    "eval": 4.5, "observe": 4.7,
    "stages": 5,
    "recipe_checks": 5.5, "recipe": 6,
    "plan": 6.5, "shortfall": 6.5,
    "pipeline": 7, "one_checkpoint": 7.5,
    "ablate": 7.5, "ablate_table": 7.6,
    "chat": 8, "serve": 8,
    "cli": 9,
}  # fmt: skip


def room(module: str) -> str:
    """The room of a module: its folder, or itself where LEVEL names it alone."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2]) if ".".join(parts[:2]) in LEVEL else parts[0] if parts else ""


def imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def module_of(path: Path) -> str:
    return ".".join(["cascade_rl", *path.relative_to(SRC).with_suffix("").parts]).removesuffix(".__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_only_go_down(path: Path) -> None:
    own = room(module_of(path))
    tree = ast.parse(path.read_text())
    hints = {  # what only a type checker reads may point up
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for name in imports(node)
    }
    for name in imports(tree):
        if name.startswith("cascade_rl.") and name not in hints and room(name) not in ("", "__version__", own):
            assert LEVEL[room(name)] < LEVEL[own], f"{path.relative_to(ROOT)} ({own}) imports {name}: arrows point down"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_zips_are_strict_and_text_is_never_evaluated(path: Path) -> None:
    runs_text = path.is_relative_to(SRC / "sandbox" / "inside")  # the one place that is made for it
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert runs_text or node.func.id not in ("eval", "exec"), f"{path}:{node.lineno} evaluates text"
            if node.func.id == "zip":
                assert any(word.arg == "strict" for word in node.keywords), f"{path}:{node.lineno} zips without strict="


def test_only_recipe_imports_pydantic() -> None:
    users = [p.name for p in FILES if any(n.split(".")[0] == "pydantic" for n in imports(ast.parse(p.read_text())))]
    assert users == ["recipe.py"]


@pytest.mark.parametrize("module", ["cascade_rl.cli", "cascade_rl.observe.report"])
def test_light_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_runs_inside_a_sandbox_needs_nothing_that_is_not_there() -> None:
    for path in SRC.glob("sandbox/inside/*.py"):
        for name in imports(ast.parse(path.read_text())):
            standard = name.split(".")[0] in sys.stdlib_module_names
            assert standard or name.startswith("cascade_rl.sandbox.inside"), f"{path} imports {name}"


def test_graders_do_not_import_torch() -> None:
    for path in [*SRC.glob("grade/**/*.py"), *SRC.glob("tasks/**/*.py")]:
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not any(name.split(".")[0] == "torch" for node in top for name in imports(node)), path


def test_help_is_quick() -> None:
    """`cascade --help` takes no longer than a few starts of a bare interpreter (a ratio, since machines differ)."""
    import time

    def seconds(*argv: str) -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, *argv], check=True, capture_output=True)
        return time.perf_counter() - begin

    bare = min(seconds("-c", "pass") for _ in range(3))
    assert min(seconds("-m", "cascade_rl.cli", "--help") for _ in range(3)) < 8 * bare + 0.1


BANNED = re.compile(r"\b(episode|trajectory|trajectories|worker_group|rollout_worker|actor)\b", re.IGNORECASE)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_names_are_the_houses(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert not BANNED.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_readme_tree_is_the_disk() -> None:
    """Every line of the README's tree is on disk, and every room and top folder is in the tree."""
    readme = (ROOT / "README.md").read_text()
    block = readme.split("```tree\n")[1].split("```")[0]
    told, folder = set(), ""
    for line in block.splitlines():
        name = line.split()[0]
        path = folder + name if line.startswith("  ") else name
        folder = folder if line.startswith("  ") else (name if name.endswith("/") else "")
        assert (ROOT / path).exists(), f"README tells of {path}, which is not there"
        told.add(path.rstrip("/"))
    rooms = {f"src/cascade_rl/{p.name}" for p in SRC.iterdir() if not p.name.startswith("__") and p.name != "py.typed"}
    tops = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name in ("recipes", "benchmarks", "docs", "tests", "examples")}
    assert rooms | tops <= told, f"not in the README's tree: {sorted((rooms | tops) - told)}"
    assert len(readme.splitlines()) < 150


def config_fields() -> list[tuple[str, str]]:
    from cascade_rl.recipe import STAGES, Recipe

    found: dict[type, None] = {}

    def visit(cls: typing.Any) -> None:
        if dataclasses.is_dataclass(cls) and isinstance(cls, type) and cls not in found:
            found[cls] = None
            for hint in typing.get_type_hints(cls).values():
                for part in (hint, *typing.get_args(hint)):
                    visit(part)

    for cls in (Recipe, *STAGES.values()):
        visit(cls)
    return [(cls.__name__, f.name) for cls in found for f in dataclasses.fields(cls)]


def test_every_recipe_key_is_read() -> None:
    """Invariant 3: a key that nothing reads would be a promise that nothing keeps."""
    read = {node.attr for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    unread = [f"{cls}.{name}" for cls, name in config_fields() if name not in read]
    assert not unread, f"declared in a recipe and never read: {unread}"


def test_calls_are_read_in_one_place() -> None:
    """Invariant 10: training and evaluation must not be forgiving to different degrees, so only the renderer parses calls."""
    readers = {str(path.relative_to(SRC)) for path in FILES if "parse_tool_calls(" in path.read_text()}
    assert readers == {"model/toolcalls.py", "model/render.py"}

"""Edits applied literally: blocks and diffs, where they may stand, what they may name, and that git agrees about diffs."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cascade_rl.grade.patch import MAX_EDITS, PatchFault, apply_patch

FILES = {"a.py": "x = 1\ny = 2\nz = 3\n", "b/c.py": "one\ntwo\none\n", "bare.py": "last"}


def block(path: str, old: str, new: str) -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"


def fault(text: str, files: dict[str, str] | None = None) -> str:
    with pytest.raises(PatchFault) as told:
        apply_patch(FILES if files is None else files, text)
    return str(told.value)


@pytest.mark.parametrize(
    ("text", "path", "after"),
    [
        (block("a.py", "y = 2\n", "y = 5\n"), "a.py", "x = 1\ny = 5\nz = 3\n"),
        (block("a.py", "y = 2\n", ""), "a.py", "x = 1\nz = 3\n"),
        (block("a.py", "x = 1\ny = 2\nz = 3\n", ""), "a.py", ""),
        (block("bare.py", "last\n", "first\nlast\n"), "bare.py", "first\nlast"),
        (block("new/d.py", "", "made\n"), "new/d.py", "made\n"),
        ("Look:\n```python\n" + block("a.py", "y = 2\n", "y = 5\n") + "```", "a.py", "x = 1\ny = 5\nz = 3\n"),
        ("### `a.py`\n```\n" + block("", "y = 2\n", "y = 5\n")[1:], "a.py", "x = 1\ny = 5\nz = 3\n"),
        (block("a.py", "y = 2\n", "y = 5\n").replace("\n", "\r\n"), "a.py", "x = 1\ny = 5\nz = 3\n"),
        (block("a.py", "y = 2\n", "y = 5\n") + block("a.py", "y = 5\n", "y = 6\n"), "a.py", "x = 1\ny = 6\nz = 3\n"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n x = 1\n-y = 2\n+y = 5\n z = 3\n", "a.py", "x = 1\ny = 5\nz = 3\n"),
        ("--- a.py\n+++ a.py\n@@ -9,1 +9,7 @@\n-y = 2\n+y = 5\n", "a.py", "x = 1\ny = 5\nz = 3\n"),  # counts that are wrong
        ("```diff\n--- a/a.py\n+++ b/a.py\n@@ -2 +2 @@\n-y = 2\n+y = 5\n```\nDone.", "a.py", "x = 1\ny = 5\nz = 3\n"),
        ("--- a/b/c.py\n+++ b/b/c.py\n@@ -3 +3 @@\n-one\n+three\n", "b/c.py", "one\ntwo\nthree\n"),  # its place tells which
        ("--- a/a.py\n+++ b/a.py\n@@ -2,0 +3,1 @@\n+new\n", "a.py", "x = 1\ny = 2\nnew\nz = 3\n"),
        ("--- /dev/null\n+++ b/d.py\n@@ -0,0 +1,2 @@\n+p\n+q\n", "d.py", "p\nq\n"),
        ("--- /dev/null\n+++ b/d.py\n@@ -0,0 +1 @@\n+p\n\\ No newline at end of file\n", "d.py", "p"),
        ("--- a/bare.py\n+++ b/bare.py\n@@ -1 +1 @@\n-last\n\\ No newline at end of file\n+last\n", "bare.py", "last\n"),
        ("--- a/a.py\n+++ b/a.py\n@@ -3 +3 @@\n-z = 3\n+z = 3\n\\ No newline at end of file\n", "a.py", "x = 1\ny = 2\nz = 3"),
        ("--- a/s.sql\n+++ b/s.sql\n@@ -1,2 +1,1 @@\n--- old\n+++ new\n-x\n", "s.sql", "++ new\n"),  # lines that look like a head
    ],
)  # fmt: skip
def test_what_an_edit_gives(text: str, path: str, after: str) -> None:
    files = {**FILES, "s.sql": "-- old\nx\n"}
    edited = apply_patch(files, text)
    assert edited == {**files, path: after}


def test_a_diff_may_delete_a_whole_file_and_no_part_of_one() -> None:
    whole = "--- a/a.py\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-x = 1\n-y = 2\n-z = 3\n"
    assert "a.py" not in apply_patch(FILES, whole)
    assert "not all of its lines" in fault(whole.replace("-z = 3\n", "").replace("1,3", "1,2"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no edit"),
        ("Just change y.", "no edit"),
        (block("a.py", "y = 9\n", "y = 5\n"), "stand 0 times"),
        (block("a.py", "y = \n", "y = 5\n"), "stand 0 times"),  # whole lines
        (block("b/c.py", "one\n", "three\n"), "stand 2 times"),
        (block("b.py", "one\n", "three\n"), "no such file"),
        (block("a.py", "", "three\n"), "there already"),
        (block("a.py", "", ""), "without lines to search for"),
        (block("a.py", "y = 2\n", "y = 5\n").replace("=======\n", ""), "without its"),
        (block("a.py", "y = 2\n", "y = 5\n").replace(">>>>>>> REPLACE", ""), "without its"),
        ("<<<<<<< SEARCH\ny = 2\n=======\ny = 5\n>>>>>>> REPLACE", "no path"),
        ("@@ -1 +1 @@\n-x\n+y\n", "before any file"),
        ("--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+p\n", "there already"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x = 1\n-y = 3\n+y = 4\n", "stand 0 times"),
        (block("a.py", "y = 2\n", "y\n" * 3) * (MAX_EDITS + 1), "stand 0 times"),
        (block("n.py", "", "x\n").replace("n.py", "n.py") + "".join(block("n.py", "x\n", "x\n") for _ in range(MAX_EDITS)), "more than"),
        ("x" * 500_000, "characters"),
        (block("a.py", "y = 2\n", "y" * 300_000 + "\n") * 1, ""),
    ],
)  # fmt: skip
def test_what_does_not_apply_says_why(text: str, told: str) -> None:
    if not told:
        assert apply_patch(FILES, text)
        return
    assert told in fault(text)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x.py", "a/../../x.py", "~/x.py", "./a.py", "a//b.py", ".git/config", "a\x00b", "a\\b.py"]
)
def test_paths_stay_in_the_repository(path: str) -> None:
    assert "path" in fault(block(path, "", "x\n"))
    assert "path" in fault(f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+p\n")


@pytest.mark.parametrize(
    "text", ["<<<<<<< SEARCH\n" * 20_000, "@@ -1 +1 @@\n" * 20_000, "--- a\n+++ b\n" * 20_000, "-\n" * 90_000]
)
def test_hostile_text_takes_little_time(text: str) -> None:
    begin = time.perf_counter()
    fault(text)
    assert time.perf_counter() - begin < 2


def test_nothing_is_applied_when_one_edit_is_not() -> None:
    files = dict(FILES)
    fault(block("a.py", "y = 2\n", "y = 5\n") + block("a.py", "none\n", "x\n"), files)
    assert files == FILES


LINES = st.lists(st.sampled_from(["a", "b", "", "- c", "+d", "@@ -1 +1 @@", "\\ e"]), max_size=8)


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
@settings(max_examples=25, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_what_git_says_of_a_change_gives_the_change(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str], end_before: bool, end_after: bool
) -> None:
    old = "\n".join(before) + ("\n" if before and end_before else "")
    new = "\n".join(after) + ("\n" if after and end_after else "")
    folder: Path = tmp_path_factory.mktemp("git")
    for name, text in (("a", old), ("b", new)):
        (folder / name).mkdir()
        (folder / name / "f").write_text(text)
    told = subprocess.run(
        ["git", "diff", "--no-index", "--no-color", "a/f", "b/f"], cwd=folder, capture_output=True, text=True, check=False
    )
    if old != new:
        assert apply_patch({"b/f": old}, told.stdout) == {"b/f": new}

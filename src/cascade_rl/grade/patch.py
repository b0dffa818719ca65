r"""Edits to files, as models write them: search/replace blocks, and unified diffs.

    main.py                              --- a/main.py
    <<<<<<< SEARCH                       +++ b/main.py
        return a - b                     @@ -1,2 +1,2 @@
    =======                               def add(a, b):
        return a + b                     -    return a - b
    >>>>>>> REPLACE                      +    return a + b

What a model writes is hostile: it is taken literally, bounded in size, and names only files of the repository. Nothing is ever put
where the text might have meant: the old lines must stand in the file, whole and in one place.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SEARCH, DIVIDE, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
MAX_PATCH_CHARS = 400_000
MAX_FILE_CHARS = 2_000_000
MAX_EDITS = 500
MAX_PATH_CHARS = 300
NOWHERE = "/dev/null"  # the other side of a file that a diff makes or deletes

_FENCE = re.compile(r"\s*(```+|~~~+)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline"


class PatchFault(ValueError):
    """Why an edit does not apply, in a few words for the model and for verdicts."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Old lines of a file and what replaces them: `Edit("main.py", ("x = 1",), ("x = 2",))`.

    place: the line where they should stand, from 0, where the edit says so. makes, deletes: the file. newline: whether the file
    ends with one afterwards, where the edit says so.
    """

    path: str
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    place: int | None = None
    makes: bool = False
    deletes: bool = False
    newline: bool | None = None


def apply_patch(files: Mapping[str, str], text: str) -> dict[str, str]:
    """The files after all edits of a text, in order: its search/replace blocks if it has any, else its unified diff.

    Raises PatchFault: no edit in it, or one that does not apply; nothing is then applied.
    """
    if len(text) > MAX_PATCH_CHARS:
        raise PatchFault(f"a patch of {len(text):,} characters; at most {MAX_PATCH_CHARS:,} are read")
    lines = text.replace("\r\n", "\n").split("\n")
    blocks = any(line.rstrip() == SEARCH for line in lines)
    edited, num_edits = dict(files), 0
    for edit in _blocks(lines) if blocks else _diff(lines):
        num_edits += 1
        if num_edits > MAX_EDITS:
            raise PatchFault(f"more than {MAX_EDITS} edits")
        _apply(edited, edit)
    if not num_edits:
        raise PatchFault("no edit block")
    return edited


def patch_paths(text: str) -> list[str]:
    """The paths that a patch names, in order. Raises PatchFault."""
    lines = text.replace("\r\n", "\n").split("\n")
    edits = _blocks(lines) if any(line.rstrip() == SEARCH for line in lines) else _diff(lines)
    return list(dict.fromkeys(edit.path for edit in edits))


def check_path(path: str) -> str:
    """A path of the repository as it is; PatchFault for one that leads elsewhere."""
    parts = path.split("/")
    if not path or len(path) > MAX_PATH_CHARS or not path.isprintable() or "\\" in path:
        raise PatchFault(f"no path: {path[:40]!r}")
    if path.startswith(("/", "~")) or any(part in ("", ".", "..", ".git") for part in parts):
        raise PatchFault(f"a path outside of the repository: {path[:40]!r}")
    return path


def _apply(files: dict[str, str], edit: Edit) -> None:
    path = check_path(edit.path)
    if edit.makes:
        if path in files:
            raise PatchFault(f"{path} is there already")
        files[path] = _joined(list(edit.new), edit.newline is not False)
        return
    if path not in files:
        raise PatchFault(f"no such file: {path[:40]!r}")
    text = files[path]
    newline = text.endswith("\n") or not text
    lines = text.removesuffix("\n").split("\n") if text else []
    place = _place(lines, edit, path)
    lines[place : place + len(edit.old)] = edit.new
    if edit.deletes:
        if lines:
            raise PatchFault(f"deletes {path}, but not all of its lines")
        del files[path]
        return
    files[path] = _joined(lines, newline if edit.newline is None else edit.newline)
    if len(files[path]) > MAX_FILE_CHARS:
        raise PatchFault(f"{path} would have more than {MAX_FILE_CHARS:,} characters")


def _place(lines: list[str], edit: Edit, path: str) -> int:
    """Where the old lines stand: at the place that the edit names, else the only place where they do."""
    old, size = list(edit.old), len(edit.old)
    if not old:
        if edit.place is None:
            raise PatchFault(f"an edit of {path} without lines to search for")
        return min(edit.place, len(lines))
    if edit.place is not None and lines[edit.place : edit.place + size] == old:
        return edit.place
    first = [number for number, line in enumerate(lines[: len(lines) - size + 1]) if line == old[0]]
    places = [number for number in first if lines[number : number + size] == old]
    if len(places) != 1:
        raise PatchFault(f"the lines searched for stand {len(places)} times in {path}; they must stand once")
    return places[0]


def _joined(lines: list[str], newline: bool) -> str:
    return "\n".join(lines) + ("\n" if newline and lines else "")


# --- search/replace -----------------------------------------------------------------------------------------------------------------


def _blocks(lines: list[str]) -> Iterator[Edit]:
    """A line with a path, SEARCH, the old lines, DIVIDE, the new lines, REPLACE. Nothing to search for: a new file."""
    marks = [line.rstrip() for line in lines]
    start = 0
    while SEARCH in marks[start:]:
        search = marks.index(SEARCH, start)
        try:
            divide = marks.index(DIVIDE, search)
            end = marks.index(REPLACE, divide)
        except ValueError:
            raise PatchFault(f"an edit without its {DIVIDE} or {REPLACE}") from None
        path = _path_above(lines, search)
        old, new = tuple(lines[search + 1 : divide]), tuple(lines[divide + 1 : end])
        yield Edit(path, old, new, makes=not old and bool(new))
        start = end + 1


def _path_above(lines: list[str], search: int) -> str:
    """The last line above that is no opening fence, without Markdown's marks around a path."""
    above = search - 1
    if above >= 0 and _FENCE.match(lines[above]):
        above -= 1
    return lines[above].strip().removeprefix("###").strip().strip("`*:") if above >= 0 else ""


# --- unified diff -------------------------------------------------------------------------------------------------------------------


def _diff(lines: list[str]) -> Iterator[Edit]:
    """The hunks of every file, in order. Lines outside of files and hunks (prose, fences, "diff --git", "index") say nothing."""
    number, before, after, first = 0, "", "", True
    delta = 0  # by how much the hunks so far have moved what follows
    while number < len(lines):
        if _is_head(lines, number):
            before, after = _side(lines[number]), _side(lines[number + 1])
            number, first, delta = number + 2, True, 0
        elif hunk := _HUNK.match(lines[number]):
            if not after:
                raise PatchFault("a hunk before any file")
            end = _end_of_hunk(lines, number + 1, hunk)
            makes, deletes = before == NOWHERE, after == NOWHERE
            if (makes or deletes) and not first:
                raise PatchFault(f"a second hunk for a file that is made or deleted: {(after if makes else before)[:40]!r}")
            edit = _hunk(lines[number + 1 : end], before if deletes else after, int(hunk[1]), hunk[2] == "0", delta)
            edit = Edit(edit.path, edit.old, edit.new, edit.place, makes, deletes, edit.newline)
            if makes and edit.old:
                raise PatchFault(f"a new file with old lines: {after[:40]!r}")
            delta += len(edit.new) - len(edit.old)
            yield edit
            number, first = end, False
        else:
            number += 1


def _is_head(lines: list[str], number: int) -> bool:
    return lines[number].startswith("--- ") and number + 1 < len(lines) and lines[number + 1].startswith("+++ ")


def _side(line: str) -> str:
    """The path that a line "--- a/path" or "+++ b/path" names."""
    path = line[4:].split("\t")[0].strip()
    return path if path == NOWHERE else re.sub(r"^[ab]/", "", path)


def _end_of_hunk(lines: list[str], start: int, hunk: re.Match[str]) -> int:
    """Past the hunk's last line: as its head counts them, where that fits what stands there; models count badly."""
    old, new = (int(hunk[group]) if hunk[group] is not None else 1 for group in (2, 4))
    end = start
    while (old or new) and end < len(lines):
        mark = lines[end][:1]
        old, new = old - (mark in ("-", " ", "")), new - (mark in ("+", " ", ""))
        if old < 0 or new < 0 or mark not in ("-", "+", " ", "", "\\"):
            break
        end += 1
    if not (old or new):
        return end + 1 if end < len(lines) and lines[end].startswith(_NO_NEWLINE) else end
    end = start
    while end < len(lines) and lines[end][:1] in ("-", "+", " ", "", "\\") and not _is_head(lines, end):
        end += 1
    while end > start and not lines[end - 1]:  # empty lines after a hunk are seldom its own
        end -= 1
    return end


def _hunk(body: list[str], path: str, first_line: int, adds_only: bool, delta: int) -> Edit:
    old: list[str] = []
    new: list[str] = []
    newline: bool | None = None
    last = ""
    for line in body:
        mark, rest = line[:1], line[1:]
        if mark == "\\":
            newline = last not in ("+", " ")  # after an old line it says that the old file had none
            continue
        old += [rest] if mark in ("-", " ", "") else []
        new += [rest] if mark in ("+", " ", "") else []
        last = mark or " "
    place = max(0, first_line - (0 if adds_only else 1) + delta)
    return Edit(path, tuple(old), tuple(new), place, newline=newline)

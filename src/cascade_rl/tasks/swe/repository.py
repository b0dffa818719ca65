"""Repositories as files in memory: read from an archive, told apart from what an agent made of them, packed for a sandbox."""

import fnmatch
import functools
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from cascade_rl.errors import DataError

MAX_BYTES = 400_000_000  # of all files together
ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")

Files = dict[str, bytes]

# What decides how tests run, and so belongs to the grader: a change of it is dropped.
_CONFIGURATION = (
    "conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "setup.cfg", "tox.ini", "noxfile.py", "sitecustomize.py",
    "usercustomize.py", "*.pth", ".coveragerc", "*.egg-info",
)  # fmt: skip
_TESTS = ("test_*.py", "*_test.py", "tests.py", "test.py")


def is_protected(path: str) -> bool:
    """Whether a path is a test or decides how tests run; an agent's change of it never reaches the grader."""
    *folders, name = path.split("/")
    if any(fnmatch.fnmatchcase(part, pattern) for part in (*folders, name) for pattern in _CONFIGURATION):
        return True
    return "tests" in folders or folders[:1] == ["test"] or any(fnmatch.fnmatchcase(name, pattern) for pattern in _TESTS)


def graded_files(pristine: Mapping[str, bytes], left: Mapping[str, bytes], also: Iterable[str] = ()) -> Files:
    """What an agent left, its protected files (and those of `also`) as they were: what the hidden tests run on."""
    kept = {path for path in (*pristine, *left) if is_protected(path)} | set(also)
    files = {path: data for path, data in left.items() if path not in kept}
    return files | {path: pristine[path] for path in kept if path in pristine}


@functools.lru_cache(maxsize=8)
def load_repository(place: Path) -> Mapping[str, bytes]:
    """Path -> content of every regular file of a folder, tar or zip; history (.git), links and a sole top folder are left out.

    Raises DataError.
    """
    try:
        found = dict(_from_folder(place) if place.is_dir() else _from_zip(place) if place.suffix == ".zip" else _from_tar(place))
    except DataError as error:
        raise DataError(f"repository {place}: {error}") from None
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            f"repository {place}: cannot be read ({error}); expected a folder, or an archive {', '.join(ARCHIVES)}"
        ) from None
    tops = {path.partition("/")[0] for path in found}
    if len(tops) == 1 and all("/" in path for path in found) and not place.is_dir():  # as GitHub packs one: repo-commit/...
        found = {path.partition("/")[2]: data for path, data in found.items()}
    files = {path: data for path, data in sorted(found.items()) if ".git" not in path.split("/")}
    if not files:
        raise DataError(f"repository {place}: holds no file")
    return files


def _from_folder(place: Path) -> Iterable[tuple[str, bytes]]:
    return _bounded(
        (path.relative_to(place).as_posix(), path.stat().st_size, path.read_bytes)
        for path in sorted(place.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(place).parts
    )


def _from_zip(place: Path) -> Iterable[tuple[str, bytes]]:
    with zipfile.ZipFile(place) as archive:
        yield from _bounded(
            (info.filename, info.file_size, functools.partial(archive.read, info))
            for info in archive.infolist()
            if not info.is_dir()
        )


def _from_tar(place: Path) -> Iterable[tuple[str, bytes]]:
    with tarfile.open(place) as archive:
        yield from _bounded(
            (member.name, member.size, functools.partial(_member, archive, member)) for member in archive if member.isreg()
        )


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None, "a regular file"
    return file.read()


def _bounded(entries: Iterable[tuple[str, int, "functools.partial[bytes] | object"]]) -> Iterable[tuple[str, bytes]]:
    total = 0
    for name, size, read in entries:
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts:
            raise DataError(f"a path outside of it: {name!r}")
        total += size
        if total > MAX_BYTES:
            raise DataError(f"more than {MAX_BYTES:,} bytes; leave out what no test needs")
        yield PurePosixPath(name).as_posix(), read()  # type: ignore[operator]


def find_repository(folder: Path, names: Iterable[str]) -> Path:
    """The archive (or folder) of one of these names in a folder. Raises DataError; for a name that leads out of the folder, too."""
    names = list(names)
    for name in names:
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            raise DataError(f"{name!r} names no repository: expected the name of a folder or archive in {folder}")
    for name in names:
        for place in (folder / name, *(folder / f"{name}{suffix}" for suffix in ARCHIVES)):
            if place.exists():
                return place
    raise DataError(
        f"no repository in {folder} for {names[0]}; expected a folder or archive named {' or '.join(names)}, such as {names[0]}.tar.gz"
    )


def text_of(files: Mapping[str, bytes], paths: Iterable[str]) -> dict[str, str]:
    """The named files that are there and are text."""
    texts = {}
    for path in paths:
        if path in files:
            try:
                texts[path] = files[path].decode("utf-8")
            except UnicodeDecodeError:
                continue
    return texts


def packed(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755 if data.startswith(b"#!") else 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()

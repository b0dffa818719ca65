"""Process 1 of a run: makes its walls, gives up every power, then becomes the program.

Nothing after `_close_doors` is to be trusted: the program shares the process. It can lie about its results, which is why results are
values that someone else compares, and it knows nothing to lie with.
"""

import atexit
import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import tarfile
import threading
import time
import traceback
import types
from typing import Any, NamedTuple, NoReturn

from cascade_rl.sandbox.inside import kernel, tests, values, wire

WORK, TEMP = "/box", "/tmp"
RESULTS, START = 3, 4  # the descriptors of the results pipe, and of the one that says that the program starts: closed by then
WATCHED = struct.Struct("=dddQ")


class Watched(NamedTuple):
    """What the server must know of a run: when its program started (on the monotonic clock), and the limits that it watches."""

    begin: float
    wall_s: float
    cpu_s: float
    memory_bytes: int


_WARM = (
    "array", "bisect", "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "inspect", "io",
    "itertools", "linecache", "math", "operator", "random", "re", "statistics", "string", "threading", "typing",
)  # fmt: skip


def warm_up() -> None:
    """Imports what programs use most, once for all runs: a fork then costs less than a start."""
    for name in _WARM:
        __import__(name)
    if kernel.can_filter():
        kernel.filter_code(os.uname().machine)


def run(sock: socket.socket, descriptors: list[int], isolated: bool) -> NoReturn:
    """Takes the request that waits on the socket, and never returns. descriptors: stdout, stderr, results, start."""
    code = 70
    try:
        os.setsid()  # a process group reaches across PID namespaces: kill(0, ...) would hit the server
        for place, descriptor in enumerate(_lifted(descriptors), start=1):
            os.dup2(descriptor, place)
        request = json.loads(wire.receive(sock)[1])
        os.dup2(_file(wire.receive(sock)[1]), 0)
        os.closerange(START + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # the socket too
        if isolated:
            _make_walls(request)
        else:
            os.chdir(request["folder"])
        _close_doors(request, isolated)
        limits = request["limits"]
        os.write(START, WATCHED.pack(time.monotonic(), limits["wall_s"], limits["cpu_s"], limits["memory_bytes"]))
        os.close(START)
        code = JOBS[request["kind"]](request)
    except SystemExit as stop:
        code = _exit_code(stop)
    except BaseException:
        _report()
        code = 1
    finally:
        _flush()
        os._exit(code)


def _lifted(descriptors: list[int]) -> list[int]:
    """The same descriptors at numbers that the places 0 to 4 cannot overwrite."""
    return [
        descriptor if descriptor > START else fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, START + 1)
        for descriptor in descriptors
    ]


def _file(data: bytes) -> int:
    """A descriptor of a file in memory that holds the data."""
    descriptor = os.memfd_create("stdin")
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _make_walls(request: dict[str, Any]) -> None:
    """Namespaces and mounts of this run alone. A kept run (`keep`) works in the sandbox's own folders, which live as long as it does."""
    kernel.unshare(kernel.NEWNS | kernel.NEWIPC | kernel.NEWNET | kernel.NEWUTS)  # of PIDs it has had its own from the fork
    kernel.mount("proc", "/proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    size = f"size={request['limits']['disk_bytes']},nr_inodes=20000,mode=755"
    flags = kernel.NOSUID | kernel.NODEV
    kernel.mount("tmpfs", "/dev/shm", flags, size)
    if not request.get("keep"):
        kernel.mount("tmpfs", WORK, flags, size)
        kernel.mount("tmpfs", TEMP, flags, size)
    os.chdir(WORK)


def _close_doors(request: dict[str, Any], isolated: bool) -> None:
    """Limits and privileges, for good. What is asked for here was counted with the harness's own use in mind."""
    limits = request["limits"]
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_FSIZE, limits["disk_bytes"]),
        (resource.RLIMIT_NOFILE, limits["num_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    if isolated:  # elsewhere the limit counts all that this user runs
        resource.setrlimit(resource.RLIMIT_NPROC, (limits["num_processes"] + 3,) * 2)
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")  # if the machine runs out of memory, this run is the one to end
        kernel.drop_privileges()
    else:
        os.environ.clear()
        os.environ.update(PATH="/usr/local/bin:/usr/bin:/bin", HOME=request["folder"], LANG="C.UTF-8")
    os.environ.update(request.get("environment", {}))
    sys.path[:] = [place for place in sys.path if "cascade" not in place]
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115


# --- what a run can be --------------------------------------------------------------------------------------------------------------


def _command(request: dict[str, Any]) -> NoReturn:
    """Any program; its descriptors are the three usual ones."""
    os.close(RESULTS)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored in Python; exec would pass that on
        signal.signal(number, signal.SIG_DFL)
    os.execvp(request["argv"][0], request["argv"])


def _program(request: dict[str, Any]) -> int:
    """A Python program as `python program.py` would run it, at a fork's cost."""
    _execute(request, "__main__")
    # What the interpreter does at its end, which a fork does not come to.
    threading._shutdown()  # type: ignore[attr-defined]  # threads that are no daemons keep a program alive
    atexit._run_exitfuncs()
    return 0


def _calls(request: dict[str, Any]) -> int:
    """A Python module, then calls on it: one line of JSON each, {"value": ...} or {"error": ..., "kind": ...}.

    A module that forks comes back from here once for each copy of itself; only the first process is asked.
    """
    first = os.getpid()
    try:
        module = _execute(request, "program")
    except BaseException as error:
        _tell(_fault(error) | {"kind": "memory" if isinstance(error, MemoryError) else "program"}, first)
        return 0
    for call in request["calls"]:
        try:
            told = {"value": values.encode(eval(compile(call, "<test>", "eval"), module.__dict__))}
        except values.NotPlain as error:
            told = {"error": str(error)[:200], "kind": "value"}
        except BaseException as error:
            told = _fault(error)
        _tell(told, first)
    return 0


def _execute(request: dict[str, Any], name: str) -> types.ModuleType:
    path = os.path.join(os.getcwd(), "program.py")
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    sys.argv = [path]
    if "random" in sys.modules:
        sys.modules["random"].seed(0)  # the same verdict each time
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(request["source"])
    exec(compile(request["source"], path, "exec"), module.__dict__)
    return module


def _read(request: dict[str, Any]) -> int:
    with open(request["path"], "rb") as file:
        while data := file.read(1 << 16):
            sys.stdout.buffer.write(data)
    return 0


def _write(request: dict[str, Any]) -> int:
    os.makedirs(os.path.dirname(os.path.abspath(request["path"])), exist_ok=True)
    with open(request["path"], "wb") as file:
        while data := sys.stdin.buffer.read(1 << 16):
            file.write(data)
    return 0


def _unpack(request: dict[str, Any]) -> int:
    """A tar archive on standard input to a folder; links and devices in it are refused."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        archive.extractall(request["path"], filter="data")
    return 0


JOBS = {
    "command": _command,
    "program": _program,
    "calls": _calls,
    "read": _read,
    "write": _write,
    "unpack": _unpack,
    "tests": tests.plain,
    "pytest": tests.with_pytest,
}


def _fault(error: BaseException) -> dict[str, str]:
    kind = "memory" if isinstance(error, MemoryError) else "error"
    try:
        text = f"{type(error).__name__}: {error}"[:200]
    except BaseException:  # a hostile __str__
        text = "an exception that cannot be shown"
    return {"error": text, "kind": kind}


def _tell(told: dict[str, Any], first: int) -> None:
    """Writes a line of results, in the process that was asked; a copy of it ends here."""
    if os.getpid() != first:
        os._exit(0)
    try:
        line = json.dumps(told)
    except (RecursionError, MemoryError, ValueError):
        line = json.dumps({"error": "a value that cannot be written down", "kind": "value"})
    data = memoryview(line.encode() + b"\n")
    while data:
        data = data[os.write(RESULTS, data) :]


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    with contextlib.suppress(BaseException):
        print(stop.code, file=sys.stderr)
    return 1


def _report() -> None:
    with contextlib.suppress(BaseException):
        traceback.print_exc(limit=-20)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()

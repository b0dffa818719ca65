"""Programs in a sandbox made of processes: namespaces, limits and a kill from outside; no Docker, no daemon, no image.

A fork server waits inside bubblewrap, and each run is forked from it into fresh PID, mount, IPC, UTS and network namespaces (see
`inside`). What a run started has ended, and what it wrote is gone, before the next one begins. docs/security.md says what this
protects against and what it does not: above all, it shares the host's kernel.

    pool = shared_pool()
    result = await pool.run(Job("program", source="print(input())", stdin=b"3"), Limits(cpu_s=2))
    assert result.exit.stdout == b"3\\n"
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from cascade_rl.errors import SandboxError, unknown
from cascade_rl.records import ExecResult
from cascade_rl.sandbox.bubblewrap import WAY_OUT, command, server_arguments
from cascade_rl.sandbox.capture import Capture, Until
from cascade_rl.sandbox.inside import wire

log = logging.getLogger(__name__)

Isolation = Literal["bubblewrap", "unsafe-subprocess"]
MB = 1 << 20
START_TIMEOUT_S = 60.0
GRACE_S = 20.0  # past a run's own limit, on a loaded machine: then the sandbox itself is taken for dead


class SandboxFailed(Exception):
    """The sandbox, not the program in it, failed: no verdict follows from that."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use: `Limits(cpu_s=2, wall_s=5)`.

    cpu_s: of processor time, whole seconds, each process. wall_s: from the program's start; None is cpu_s * 1.5 + 1, so that a
    loaded machine does not turn a verdict into a time-out. memory_bytes: address space of each process, and memory that all of
    them hold together. disk_bytes: of /box, /tmp and /dev/shm, each, and of one file. output_bytes: stdout, stderr and results
    together. num_processes: beside the program's first; threads count.
    """

    cpu_s: int = 2
    wall_s: float | None = None
    memory_bytes: int = 512 * MB
    disk_bytes: int = 32 * MB
    output_bytes: int = MB
    num_processes: int = 32
    num_files: int = 128

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value = getattr(self, limit.name)
            if value is not None and not value > 0:
                raise SandboxError(f"sandbox: {limit.name} {value} must be more than 0")

    @property
    def deadline_s(self) -> float:
        return self.cpu_s * 1.5 + 1 if self.wall_s is None else self.wall_s

    def told(self) -> dict[str, float]:
        return dataclasses.asdict(self) | {"wall_s": self.deadline_s}


@dataclass(frozen=True, slots=True)
class Job:
    """What to run. kind: "program" (Python, as a script), "calls" (Python as a module, then `calls`, each an expression),
    "command" (`argv`), "read" and "write" (`path`), "unpack" (a tar archive on stdin, to folder `path`), "tests" (the plain test
    functions of the files `calls` in folder `path`, after `files`, (path, text) each, are laid there), "pytest" (the same by pytest,
    with arguments `argv`). keep: in the sandbox's own folders instead of fresh ones. word: stands in each line that a run of tests
    tells; one that nobody can guess."""

    kind: Literal["program", "calls", "command", "read", "write", "unpack", "tests", "pytest"]
    source: str = ""
    calls: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    path: str = ""
    files: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    word: str = field(default="", repr=False)
    stdin: bytes = field(default=b"", repr=False)
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """exit: how the run ended. lines: what a job of calls or tests told, a line of JSON for each it got to; hostile text."""

    exit: ExecResult
    lines: tuple[bytes, ...] = ()


class ForkServer:
    """One sandbox. One run at a time, from one thread at a time; `close` may come from any.

    packages: folders of Python packages that programs may import besides the standard library, shown read-only.
    Raises SandboxError where this machine cannot start one.
    """

    def __init__(self, isolation: Isolation = "bubblewrap", scratch_bytes: int = 256 * MB, packages: Sequence[str] = ()) -> None:
        if isolation not in get_args(Isolation):
            raise SandboxError(unknown("sandbox", isolation, get_args(Isolation)))
        self.isolation = isolation
        self._folder = tempfile.TemporaryDirectory(prefix="cascade-") if isolation == "unsafe-subprocess" else None
        if self._folder is None:
            argv = command(scratch_bytes, packages)
        else:
            argv = [sys.executable, *server_arguments(str(Path(__file__).parents[2]), isolation)]
        self._sock, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            with theirs:
                self.process = subprocess.Popen(
                    argv,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    env=_ENVIRONMENT,
                    start_new_session=True,  # Ctrl-C is for us to handle
                )
            self._sock.settimeout(START_TIMEOUT_S)
            wire.receive(self._sock)
        except OSError as error:  # a wait that ran out is one
            why = self._last_words() or str(error)
            self.close()
            raise SandboxError(f"sandbox: bubblewrap did not start: {why}; {WAY_OUT}") from None

    def run(self, job: Job, limits: Limits, until: Until | None = None) -> Result:
        """One run from start to end. until: asked with each line of results and its number; True stops the run. Raises SandboxFailed."""
        try:
            return self._run(job, limits, until)
        except TimeoutError:
            raise SandboxFailed("the sandbox did not answer in time") from None
        except (OSError, ValueError) as error:
            raise SandboxFailed(f"the sandbox ended: {self._last_words() or error}") from None

    def _run(self, job: Job, limits: Limits, until: Until | None) -> Result:
        request = {name: getattr(job, name) for name in _TOLD} | {
            "limits": limits.told(),
            "folder": self._folder and self._folder.name,
        }
        deadline = time.monotonic() + limits.deadline_s + GRACE_S
        self._sock.settimeout(limits.deadline_s + GRACE_S)
        self._sock.sendall(wire.frame(wire.REQUEST, json.dumps(request).encode()) + wire.frame(wire.BLOB, job.stdin))
        kind, payload, pipes = wire.receive_pipes(self._sock, 3)
        if kind != wire.PIPES:
            raise SandboxFailed(payload.decode(errors="replace"))
        capture = Capture(self._sock, pipes, limits.output_bytes, until)
        try:
            kind, payload = capture.finish(deadline)
        finally:
            capture.close()
        if kind != wire.DONE:
            raise SandboxFailed(payload.decode(errors="replace"))
        head = json.loads(payload)
        if not head.pop("started"):
            raise SandboxFailed(f"the run was not set up: {capture.stderr[-2000:].decode(errors='replace').strip()}")
        if capture.over and head["ended"] in ("exit", "stopped"):
            head["ended"] = "output"
        return Result(ExecResult(stdout=bytes(capture.stdout), stderr=bytes(capture.stderr), **head), tuple(capture.lines))

    def close(self) -> None:
        """Ends the sandbox and everything in it."""
        self._sock.close()
        if process := getattr(self, "process", None):
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=START_TIMEOUT_S)
        self._errors.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _last_words(self) -> str:
        try:
            self._errors.seek(0)
            return " ".join(self._errors.read()[-1000:].decode(errors="replace").split())
        except (OSError, ValueError):
            return ""


_TOLD = ("kind", "source", "calls", "argv", "path", "files", "word", "keep")  # of a job; stdin goes as it is
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}  # of the launcher; nothing of it gets inside


class SandboxPool:
    """Up to `size` sandboxes, started when first needed; more runs than that wait. Results do not depend on which one serves.

    Each sandbox serves one run at a time: limits on processes count per sandbox, and runs that are never beside each other
    cannot meet.
    """

    def __init__(self, isolation: Isolation = "bubblewrap", size: int | None = None) -> None:
        self.isolation: Isolation = isolation
        self.size = size or len(os.sched_getaffinity(0))
        # bubblewrap ends when the thread that started it does, so the threads are the pool's own and live as long as it.
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="sandbox")
        self._idle: list[ForkServer] = []
        self._alive: set[ForkServer] = set()
        self._closed = False
        self._started = False

    async def run(self, job: Job, limits: Limits, until: Until | None = None) -> Result:
        """One run in a fresh place. A sandbox that fails is replaced and the run tried once more, then SandboxFailed is raised.

        `until` (see ForkServer.run) is called in another thread. Raises SandboxError where no sandbox can be started at all.
        """
        return await asyncio.wrap_future(self.submit(job, limits, until))

    def submit(self, job: Job, limits: Limits, until: Until | None = None) -> Future[Result]:
        """The same for callers without an event loop."""
        return self._threads.submit(self._run, job, limits, until)

    def _run(self, job: Job, limits: Limits, until: Until | None) -> Result:
        try:
            result = self._try(job, limits, until)
        except SandboxFailed as error:
            if self._closed:  # it was ended, and there is no other
                raise
            log.warning("a sandbox failed (%s); once more in a fresh one", error)
            return self._try(job, limits, until)
        if result.exit.ended == "exit" and result.exit.exit_code == -signal.SIGKILL:
            # Not our kill. Someone outside, perhaps; but a program can bring it on itself (a lower limit of its own), so that the
            # second time it is the program's end like any other: no program shall be able to make itself unscored.
            return self._try(job, limits, until)
        return result

    def _try(self, job: Job, limits: Limits, until: Until | None) -> Result:
        server = self._take()
        try:
            result = server.run(job, limits, until)
        except BaseException:
            self._end(server)
            raise
        self._idle.append(server)
        return result

    def _take(self) -> ForkServer:
        with contextlib.suppress(IndexError):
            while True:
                server = self._idle.pop()
                if server.process.poll() is None:
                    return server
                self._end(server)  # it died while idle
        if self._closed:
            raise SandboxFailed("the pool is closed")
        try:
            server = ForkServer(self.isolation)
        except SandboxError as error:
            if self._started:  # this machine can, so that this is a failure like others
                raise SandboxFailed(str(error)) from None
            raise
        self._started = True
        self._alive.add(server)
        if self._closed:  # while it started
            self._end(server)
            raise SandboxFailed("the pool is closed")
        return server

    def _end(self, server: ForkServer) -> None:
        self._alive.discard(server)
        server.close()

    def close(self) -> None:
        """Ends all sandboxes; runs that are under way fail."""
        self._closed = True
        for server in list(self._alive):
            self._end(server)
        self._threads.shutdown(wait=False, cancel_futures=True)


class ProcessSandbox:
    """A sandbox whose files live as long as it does: what an agent works in (see `protocols.Sandbox`).

    Commands run one after the other in /box, each in fresh namespaces: what one leaves running ends with it.
    """

    def __init__(self, limits: Limits | None = None, isolation: Isolation = "bubblewrap", packages: Sequence[str] = ()) -> None:
        self.limits = limits or Limits(cpu_s=60, memory_bytes=2048 * MB, num_processes=64)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sandbox")
        self._isolation: Isolation = isolation
        self._packages = tuple(packages)
        self._server: ForkServer | None = None
        self._closed = False
        _own.add(self)

    async def run(self, argv: Sequence[str], *, timeout_s: float) -> ExecResult:
        """A command's end. Raises SandboxFailed (its files are then lost)."""
        return (await self.do(Job("command", argv=tuple(argv)), timeout_s)).exit

    async def read(self, path: str) -> bytes:
        """A file's content. Raises FileNotFoundError: not there, not a file, or larger than the output limit."""
        result = (await self.do(Job("read", path=path), 10.0)).exit
        if result.ended != "exit" or result.exit_code != 0:
            raise FileNotFoundError(f"sandbox: cannot read {path}: {_reason(result)}")
        return result.stdout

    async def write(self, path: str, data: bytes) -> None:
        """Makes a file and the folders above it. Raises OSError: no room, or a place that cannot be written."""
        result = (await self.do(Job("write", path=path, stdin=data), 10.0)).exit
        if result.ended != "exit" or result.exit_code != 0:
            raise OSError(f"sandbox: cannot write {path}: {_reason(result)}")

    async def close(self) -> None:
        """Ends it and everything in it; its files are gone."""
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
            self._thread.shutdown(wait=False)

    async def do(self, job: Job, timeout_s: float) -> Result:
        """Any job, on the files that live here. Raises SandboxFailed (they are then lost). Cancelled, it ends the sandbox with the job."""
        if self._closed:
            raise SandboxError("sandbox: it is closed; open another one")
        limits = dataclasses.replace(self.limits, wall_s=timeout_s)
        job = dataclasses.replace(job, keep=True)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._serve, job, limits)
        except asyncio.CancelledError:
            self.kill()  # so that the thread has its answer at once
            raise

    def kill(self) -> None:
        """Ends it without a wait; a command under way fails."""
        if self._server is not None:
            self._server.process.kill()

    def _serve(self, job: Job, limits: Limits) -> Result:
        if self._server is None:
            self._server = ForkServer(self._isolation, scratch_bytes=limits.disk_bytes, packages=self._packages)
        return self._server.run(job, limits)

    def _end(self) -> None:
        if self._server is not None:
            self._server.close()


def _reason(result: ExecResult) -> str:
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return (lines[-1][:200] if lines else "") or f"ended by {result.ended}, exit code {result.exit_code}"


_own: weakref.WeakSet[ProcessSandbox] = weakref.WeakSet()
_shared: dict[Isolation, SandboxPool] = {}
_shared_lock = threading.Lock()
_ending = False


def shared_pool(isolation: Isolation = "bubblewrap") -> SandboxPool:
    """The process-wide pool, made at first use and closed at exit. Raises SandboxFailed while Python ends."""
    with _shared_lock:
        if _ending:
            raise SandboxFailed("the program is ending")
        if isolation not in _shared:
            if isolation == "unsafe-subprocess":
                log.warning("sandbox: unsafe-subprocess runs model-written programs with your rights and no isolation")
            _shared[isolation] = SandboxPool(isolation)
        return _shared[isolation]


def close_shared_pools() -> None:
    """Ends all shared sandboxes; the next use starts new ones."""
    with _shared_lock:
        pools = list(_shared.values())
        _shared.clear()
    for pool in pools:
        pool.close()


def _at_exit() -> None:
    global _ending
    _ending = True
    close_shared_pools()
    for sandbox in list(_own):
        sandbox.kill()


# Not `atexit`: Python waits for threads before that, and those of a pool wait for programs under way. A verdict that outlived the pool
# of an interrupted run may have started another one by then.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_shared.clear)  # a forked process must not talk into its parent's sockets

"""Child processes that can be killed, for work on hostile text that no time-out inside the process can stop.

A child is a Python script of ours that says "ready", then reads one JSON request a line and writes one JSON reply a line. It is
started when first needed, by path and in isolated mode: it imports neither the caller's main module nor the package.
"""

import atexit
import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120.0  # importing sympy on a loaded machine
QUEUE_TIMEOUT_S = 600.0  # waiting for a free child while others are asked


class ChildFailed(Exception):
    """No reply. `cause`: "timed out" (and was killed), "out of CPU time" (it ended itself, and would again), "died" or
    "did not start"."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Pool:
    """Up to `size` children of one script; `ask` may be called from any thread.

    timeout_s: wall-clock limit of one request. A child that passes it is killed and its successor starts with the next request.
    """

    def __init__(self, script: Path, size: int, timeout_s: float) -> None:
        self.script = script
        self.size = size
        self.timeout_s = timeout_s
        self._idle: queue.LifoQueue[_Child | None] = queue.LifoQueue()  # the warm child first; None is one not started yet
        for _ in range(size):
            self._idle.put(None)
        self._closed = False
        self._lock = threading.Lock()
        self._alive: set[_Child] = set()

    def ask(self, request: Any) -> Any:
        """The reply to one request. Raises ChildFailed."""
        try:
            child = self._idle.get(timeout=QUEUE_TIMEOUT_S)
        except queue.Empty:
            raise ChildFailed("timed out") from None
        try:
            if child is not None and not child.is_alive():  # it died while idle
                self._end(child)
                child = None
            child = child or self._start()
            return child.ask(request, self.timeout_s)
        except ChildFailed:
            if child is not None:
                self._end(child)
            child = None
            raise
        finally:
            self._idle.put(child)

    def close(self) -> None:
        """Ends all children and waits for them."""
        with self._lock:
            self._closed = True
            alive = list(self._alive)
            self._alive.clear()
        for child in alive:
            child.end()

    def _start(self) -> "_Child":
        with self._lock:
            if self._closed:
                raise ChildFailed("died")
            child = _Child(self.script)
            self._alive.add(child)
        try:
            child.wait_ready()
        except ChildFailed:
            self._end(child)
            raise ChildFailed("did not start") from None
        return child

    def _end(self, child: "_Child") -> None:
        with self._lock:
            self._alive.discard(child)
        child.end()


class _Child:
    def __init__(self, script: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.pending = b""

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_ready(self) -> None:
        self._line(START_TIMEOUT_S)

    def ask(self, request: Any, timeout_s: float) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            return json.loads(self._line(timeout_s))
        except (OSError, ValueError):  # a broken pipe, or half a reply
            raise ChildFailed("died") from None

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        self.process.wait(timeout=30)

    def _line(self, timeout_s: float) -> bytes:
        assert self.process.stdout is not None
        file = self.process.stdout.fileno()
        until = time.monotonic() + timeout_s
        while b"\n" not in self.pending:
            poll = select.poll()  # not select(): descriptors above 1023 are usual in a trainer
            poll.register(file, select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                raise ChildFailed("timed out")
            data = os.read(file, 65536)
            if not data:
                raise ChildFailed("out of CPU time" if self.process.wait(timeout=30) == -signal.SIGPROF else "died")
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return line


_shared: dict[tuple[Path, int, float], Pool] = {}
_shared_lock = threading.Lock()


def shared_pool(script: Path, size: int, timeout_s: float) -> Pool:
    """The process-wide pool of a script, made at first use and closed at exit."""
    with _shared_lock:
        key = (script, size, timeout_s)
        if key not in _shared:
            _shared[key] = Pool(script, size, timeout_s)
        return _shared[key]


def close_shared_pools() -> None:
    """Ends the children of all shared pools; the next use starts new ones."""
    with _shared_lock:
        pools = list(_shared.values())
        _shared.clear()
    for pool in pools:
        pool.close()


atexit.register(close_shared_pools)
os.register_at_fork(after_in_child=_shared.clear)  # a forked process must not talk into its parent's pipes

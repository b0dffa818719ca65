"""What tests of the sandbox look at on the host, and why they skip where there is no sandbox."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cascade_rl.errors import SandboxError
from cascade_rl.sandbox.process import ForkServer


def why_not() -> str:
    """Why this machine cannot isolate; "" where it can."""
    try:
        ForkServer().close()
    except SandboxError as error:
        return str(error)
    return ""


WHY_NOT = why_not()
needs_sandbox = pytest.mark.skipif(bool(WHY_NOT), reason=f"no isolation on this machine: {WHY_NOT}")


def processes() -> dict[int, str]:
    """Pid -> command line of everything the host sees."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
    return found


def children(pid: int) -> list[int]:
    """Pids of all descendants of a process, near ones first."""
    try:
        direct = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*direct, *(pid for child in direct for pid in children(child))]


def soon(holds: Callable[[], bool], within_s: float = 5.0) -> bool:
    """Whether something holds, now or within some seconds (a loaded machine is slow to bury its dead)."""
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True

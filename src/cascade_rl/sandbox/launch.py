"""Started by root only: gives up root before bubblewrap makes its namespaces, so that per-user limits count.

The limit on processes is not enforced for the host's uid 0, not even inside a user namespace. But an ordinary uid may not reach the
interpreter (below /root, say). So root first puts the few folders that the sandbox needs where everyone can reach them, in a mount
namespace of its own: the host sees nothing of it. Runs as a script, standard library only.

    python launch.py UID '{"name": "/folder", ...}' '["/tmp/name/bwrap", ...]'
"""

import ctypes
import json
import os
import sys

PLACE = "/tmp"
NEWNS = 0x0002_0000
BIND, REC, SLAVE = 0x1000, 0x4000, 0x0008_0000


def main(uid: int, folders: dict[str, str], argv: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")

    def mount(source: str, place: str, kind: str, flags: int, options: str = "") -> None:
        result = libc.mount(source.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)
        check(result, f"mount {source} at {place}")

    check(libc.unshare(NEWNS), "a mount namespace of root's own")
    mount("none", "/", "", REC | SLAVE)
    opened = {name: os.open(path, os.O_PATH) for name, path in folders.items()}  # they may lie below PLACE
    mount("tmpfs", PLACE, "tmpfs", 0, "mode=755,size=64k")
    for name, descriptor in opened.items():
        os.mkdir(f"{PLACE}/{name}")
        mount(f"/proc/self/fd/{descriptor}", f"{PLACE}/{name}", "", BIND | REC)
        os.close(descriptor)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execve(argv[0], argv, {})


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]))

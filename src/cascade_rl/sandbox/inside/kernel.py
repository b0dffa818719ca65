"""The system calls that Python has no names for: namespaces, mounts, capabilities, the system call filter. Linux only."""

import ctypes
import functools
import os
import struct

NEWNS, NEWUTS, NEWIPC, NEWPID, NEWNET = 0x0002_0000, 0x0400_0000, 0x0800_0000, 0x2000_0000, 0x4000_0000
NOSUID, NODEV, NOEXEC = 2, 4, 8

_SET_NO_NEW_PRIVS, _CAPBSET_DROP, _SET_SECCOMP, _SECCOMP_FILTER = 38, 24, 22, 2
_CAPABILITY_VERSION_3 = 0x2008_0522
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leaves the named namespaces for fresh ones; a new PID namespace takes the children, not the caller."""
    _check(_libc.unshare(flags), "unshare")


def setns(namespace: int, kind: int) -> None:
    """Enters the namespace behind a descriptor; where it is one of PIDs, the children do, and not the caller."""
    _check(_libc.setns(namespace, kind), "setns")


def mount(kind: str, place: str, flags: int, options: str = "") -> None:
    """Mounts a fresh file system of a kind ("proc", "tmpfs") at a place."""
    _check(
        _libc.mount(kind.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None),
        f"mount {place}",
    )


def drop_bounding_set() -> None:
    """No program that this process or a child of it starts will get a capability; those that they have stay."""
    for capability in range(64):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last one this kernel knows, or not ours to drop: it is then not ours to use either


def drop_privileges() -> None:
    """Gives up every capability for good, and shuts off system calls that a program of a test does not need."""
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, bytes(24)), "capset")
    filter_system_calls()


# --- the filter ---------------------------------------------------------------------------------------------------------------------

# Not the wall (namespaces, capabilities and limits are), but less of the kernel to attack, and no way around the limits: memory
# that no limit counts (memfd, System V), keys that outlive the run, sockets of families that a network namespace does not hold.
_DENIED = {
    "x86_64": (
        # memfd_create, memfd_secret, shmget, unshare, setns, mount, umount2, pivot_root, ptrace
        319, 447, 29, 272, 308, 165, 166, 155, 101,
        # bpf, userfaultfd, io_uring_setup, perf_event_open, add_key, request_key, keyctl, open_by_handle_at
        321, 323, 425, 298, 248, 249, 250, 304,
        # open_tree, move_mount, fsopen, fsconfig, fsmount, mount_setattr
        428, 429, 430, 431, 432, 442,
    ),
    "aarch64": (
        279, 447, 194, 97, 268, 40, 39, 41, 117,
        280, 282, 425, 241, 217, 218, 219, 265,
        428, 429, 430, 431, 432, 442,
    ),
}  # fmt: skip
_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_FAMILIES = (1, 2, 10)  # Unix, IPv4, IPv6: these end at the network namespace
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JGE|K, BPF_RET|K
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def can_filter() -> bool:
    """Whether there is a table for this type of machine."""
    return os.uname().machine in _DENIED


def filter_system_calls() -> None:
    """Installs the filter for this process and all it starts; on a machine type without a table, nothing."""
    if not can_filter():
        return
    code = filter_code(os.uname().machine)
    program = _Program(len(code) // 8, code)
    _check(_libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program), 0, 0), "seccomp")


@functools.cache
def filter_code(machine: str) -> bytes:
    """The filter as the kernel takes it; put together once, before the forks."""
    return b"".join(struct.pack("=HBBI", *step) for step in _steps(machine))


def _steps(machine: str) -> list[tuple[int, int, int, int]]:
    """(operation, steps to skip if true, if false, value); data: number at 0, machine at 4, the first argument at 16."""
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),  # 32-bit calls have other numbers
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        steps += [(_AT_LEAST, 0, 1, 0x4000_0000), (_RETURN, 0, 0, _ERRNO | _ENOSYS)]  # the x32 variants
    for number in _DENIED[machine]:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | _EPERM)]
    steps += [(_EQUAL, 1, 0, _SOCKET[machine]), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, 16)]
    for family in _FAMILIES:
        steps += [(_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW)]
    return [*steps, (_RETURN, 0, 0, _ERRNO | _EAFNOSUPPORT)]

"""The fork server: waits inside the outer sandbox, forks each run into namespaces of its own, and holds it to its limits.

    keeper (process 1 of the outer sandbox, waits)  ->  server  ->  the run (process 1 of its own PID namespace)

The server reads nothing of a run. Its request is taken from the socket by the run itself, before the program in it starts, and what
the program writes goes through pipes that the host reads: so nothing of one run is in the memory that the next is forked from. When
a run's process 1 ends, for whatever reason, the kernel ends everything it started.
"""

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import time
from typing import Any

from cascade_rl.sandbox.inside import job, kernel, wire

TICK_S = 0.1  # how often memory is looked at


def main(isolated: bool) -> None:
    """Serves the socket that is standard input until it closes. isolated False: no namespaces (the explicit, unsafe choice)."""
    sock = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, job.START + 1))  # where no run puts its own
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    own = _own_namespace(sock) if isolated else None
    job.warm_up()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page of what is already here
    wire.send(sock, wire.READY)
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    try:
        while True:
            waiting.poll()
            kind = sock.recv(1, socket.MSG_PEEK)
            if not kind:
                return
            if kind == wire.STOP:  # it came too late for the run that it meant
                wire.receive(sock)
            else:
                wire.send(sock, wire.DONE, json.dumps(Run(sock, own).finish()).encode())
    except ConnectionError:
        return  # nobody is left to hear of it
    except Exception as error:  # who knows what of the request was taken: this sandbox ends
        wire.send(sock, wire.FAILED, f"{type(error).__name__}: {error}".encode(errors="replace"))


def _own_namespace(sock: socket.socket) -> int:
    """Goes on in a PID namespace of the server's own; a descriptor of it.

    Who unshares for its next child must come back before the child after that, and may come back only to a namespace over which it
    has power. Over the outer one it has none: that belongs to a user namespace further out.
    """
    kernel.unshare(kernel.NEWPID | kernel.NEWNS)
    server = os.fork()
    if server != 0:
        sock.close()
        os.waitpid(server, 0)
        os._exit(0)
    kernel.mount("proc", "/proc", kernel.NOSUID | kernel.NODEV | kernel.NOEXEC)
    kernel.drop_bounding_set()  # runs inherit that; what the server may do now, it still may
    return os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)


class Run:
    """One run from fork to end. own: the server's PID namespace; None is no isolation."""

    def __init__(self, sock: socket.socket, own: int | None) -> None:
        self.sock = sock
        self.isolated = own is not None
        self.limits: job.Watched | None = None  # until the program starts
        self.ended = ""  # why we killed it
        reads, writes = zip(*(os.pipe() for _ in range(4)), strict=True)  # stdout, stderr, results, start
        *told, self.start = reads
        for read in told:
            os.set_blocking(read, False)  # a program can open its own pipe and take back what the host was just told of
        wire.send_pipes(sock, told)
        for read in told:
            os.close(read)
        if own is not None:
            kernel.unshare(kernel.NEWPID)
        self.pid = os.fork()
        if self.pid == 0:
            job.run(sock, list(writes), self.isolated)
        if own is not None:
            kernel.setns(own, kernel.NEWPID)
        for write in writes:
            os.close(write)
        self.pidfd = os.pidfd_open(self.pid)
        self.begin = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """How it ended: told to the host as it is."""
        self._watch()
        if self.limits is None:  # it ended before we looked
            self._take_limits()
        _, status, used = os.wait4(self.pid, 0)  # process 1 is reaped last: all that it started has ended by now
        if not self.isolated:
            _kill_group(self.pid)
        wall_s = time.monotonic() - (self.limits.begin if self.limits else self.begin)
        os.close(self.pidfd)
        os.close(self.start)
        cpu_s = used.ru_utime + used.ru_stime
        code = os.waitstatus_to_exitcode(status)
        if not self.ended and self.limits and code == -signal.SIGKILL and cpu_s >= self.limits.cpu_s / 2:
            self.ended = "time"  # the kernel's kill; its own count of processor time is coarse
        return {
            "started": self.limits is not None,
            "ended": self.ended or "exit",
            "exit_code": code,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "peak_bytes": used.ru_maxrss * 1024,
        }

    def _watch(self) -> None:
        """Until process 1 has ended, or was killed for breaking a limit. The end of a pipe says nothing: a grandchild may hold it."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.register(self.start, select.POLLIN)
        wait_ms, next_look = None, 0.0  # no program, no limit: the host's own wait has an end
        while not self.ended:
            for descriptor, _ in poll.poll(wait_ms):
                if descriptor == self.pidfd:
                    return None
                if descriptor == self.sock.fileno():
                    self._kill("stopped")  # whether told to, or because nobody is left to hear the result
                    wire.receive(self.sock)
                elif descriptor == self.start:
                    poll.unregister(self.start)
                    if self._take_limits():
                        poll.register(self.sock, select.POLLIN)  # not before: until now it was the run's to read
            if self.limits is not None and not self.ended:
                now, deadline = time.monotonic(), self.limits.begin + self.limits.wall_s
                if now >= deadline:
                    return self._kill("time")
                if now >= next_look and self.isolated:
                    if next_look and _memory_of_others() > self.limits.memory_bytes:
                        return self._kill("memory")
                    next_look = now + TICK_S
                wait_ms = 1000 * max(0.0, min(deadline, next_look or deadline) - now)
        return None

    def _take_limits(self) -> bool:
        """What the run says of itself just before its program starts; False where it ended without a word."""
        if told := os.read(self.start, job.WATCHED.size):
            self.limits = job.Watched(*job.WATCHED.unpack(told))
        return bool(told)

    def _kill(self, why: str) -> None:
        self.ended = why
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        if not self.isolated:
            _kill_group(self.pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _memory_of_others() -> int:
    """Bytes that the processes of the run hold of their own; /proc shows this server and the run alone, and the server is small."""
    own = os.getpid()
    total = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/status", encoding="ascii", errors="replace") as file:
            total += sum(1024 * int(line.split()[1]) for line in file if line.startswith(("RssAnon:", "RssShmem:")))
    return total
